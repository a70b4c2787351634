"""SGLD with a constant diagonal preconditioner G, one value per parameter. Li et al. (2016), section 2, G constant."""

from recipe import Recipe, positive, potential, vector

theta = vector("theta")
G = positive("G", default=1.0, per=theta, doc="preconditioner, the step size of each parameter is h G")

PreconditionedSGLD = Recipe(
    name="sgld-preconditioned", source="Li et al. 2016, section 2",
    state=(theta,), target=theta,
    H=potential(theta),
    D={theta: G},
    scheme="Euler",
)
