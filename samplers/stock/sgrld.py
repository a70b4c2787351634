"""SGRLD with a site-wise metric. Patterson & Teh (2013), with the Lebesgue-correct Gamma = dG^-1/dtheta.

The inverse metric is left open: `SGRLD.bind(inverse_metric=lambda theta: 1 + theta**2)`. The paper's drift agrees
with Gamma for such a diagonal, separable metric, and is wrong for a general one.
"""

from recipe import Recipe, function, positive, potential, step_size, vector

theta = vector("theta")
inverse_metric = function("inverse_metric", theta, sign="positive")

SGRLD = Recipe(
    name="sgrld",
    source="Patterson & Teh 2013",
    state=(theta,),
    target=theta,
    H=potential(theta),
    D={theta: inverse_metric},
    scheme="Euler",
    conversions={"eps": {step_size: positive("eps") / 2}},
    doc=__doc__,
)
