"""SGHMC. Chen, Fox & Guestrin (2014), eq. (13): friction C, of whose noise the minibatch gradient supplies B.

The paper's step is the word "paper"; B = h V_g/2 for a gradient of covariance V_g.
"""

from recipe import Recipe, euler, nonnegative, positive, potential, total, vector

from .sgd import conversions_of_sgd

theta, p = vector("theta"), vector("p")
C = positive("C", default=1.0, doc="friction, mass per unit of time")
B = nonnegative("B", default=0.0, doc="the part of C that the gradient noise supplies, h V_g/2")
m = positive("m", default=1.0, doc="mass")

SGHMC = Recipe(
    name="sghmc",
    source="Chen, Fox & Guestrin 2014, eq. (13)",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2) / (2 * m),
    D={p: C},
    Q={(theta, p): -1},
    supplied={p: B},
    pieces={"G": euler(p)},
    scheme="B A O A B",
    schemes={"paper": "A G"},
    conversions=conversions_of_sgd("OFG", C, m),
    doc=__doc__,
)
