"""SGLD. Welling & Teh (2011), eq. (4); the paper's step size is eps = 2h.

With a minibatch gradient of covariance V_g the temperature is too high by the factor 1 + h V_g/2.
"""

from recipe import Recipe, positive, potential, step_size, vector

theta = vector("theta")

SGLD = Recipe(
    name="sgld",
    source="Welling & Teh 2011, eq. (4)",
    state=(theta,),
    target=theta,
    H=potential(theta),
    D={theta: 1},
    scheme="Euler",
    conversions={"eps": {step_size: positive("eps") / 2}},
    doc=__doc__,
)
