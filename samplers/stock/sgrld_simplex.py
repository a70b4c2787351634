"""SGRLD on the simplex in the expanded mean, omega = theta/sum(theta). Patterson & Teh (2013), section 4; eps = 2h.

U is -log likelihood alone, the prior Gamma(a, 1) of every theta is here. Reflected Euler is far off for a < 1, at
a = 0.1 and h = 0.01 without counts E theta is 0.24: prefer "sgrld-cir" where the counts are known.
"""

from sympy import log

from recipe import Recipe, numerical, positive, potential, step_size, total, vector

theta = vector("theta", domain="positive")
a = positive("a", default=1.0, per=theta, doc="weight of the Dirichlet prior")
E = potential(theta) + total(theta - (a - 1) * log(theta))

SGRLDSimplex = Recipe(
    name="sgrld-simplex",
    source="Patterson & Teh 2013, section 4",
    state=(theta,),
    target=theta,
    H=E,
    marginal=E,
    D={theta: theta},
    pieces={"E": numerical(theta, "reflected")},
    scheme="E",
    conversions={"eps": {step_size: positive("eps") / 2}},
    doc=__doc__,
)
