"""SGLD with a constant diagonal preconditioner G, one value per parameter. Li et al. (2016), eq. (3), G constant.

Given the gradient's covariance V and the curvature K of U, the injected noise is lowered by the supplied noise:
2h G T - h^2 G (V + K T) G. With both, the chain is exact on Gaussians at every h.
"""

from recipe import Recipe, nonnegative, positive, potential, step_size, temperature, vector

theta = vector("theta")
G = positive("G", default=1.0, per=theta, doc="preconditioner, the step size of each parameter is h G")
V = nonnegative("V", default=0.0, per=theta, doc="covariance of the gradient, where it is to be made up for")
K = nonnegative("K", default=0.0, per=theta, doc="curvature of U, where the bias of the step is to be made up for")

PreconditionedSGLD = Recipe(
    name="sgld-preconditioned",
    source="Li et al. 2016, eq. (3), G constant",
    state=(theta,),
    target=theta,
    H=potential(theta),
    D={theta: G},
    supplied={theta: step_size * G**2 * (V + temperature * K) / 2},
    scheme="Euler",
    conversions={"eps": {step_size: positive("eps") / 2}},
    doc=__doc__,
)
