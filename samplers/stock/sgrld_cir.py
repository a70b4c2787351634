"""The Cox-Ingersoll-Ross process of a Dirichlet posterior, solved exactly. Baker et al. (2018).

dtheta = (a + counts - theta) dt + sqrt(2 theta) dW at T = 1: theta/sum(theta) is Dirichlet(a + counts), at every h.
"""

from sympy import log

from recipe import Recipe, nonnegative, positive, total, vector

theta = vector("theta", domain="positive")
a = positive("a", default=1.0, per=theta, doc="weight of the Dirichlet prior")
counts = nonnegative("counts", default=0.0, per=theta, doc="observed counts, or an unbiased estimate of them")

SGRLDCIR = Recipe(
    name="sgrld-cir",
    source="Baker et al. 2018",
    state=(theta,),
    target=theta,
    H=total(theta - (a + counts - 1) * log(theta)),
    D={theta: theta},
    pieces={"A": theta},
    scheme="A",
    doc=__doc__,
)
