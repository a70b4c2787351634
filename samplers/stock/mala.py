"""MALA: the Metropolis-adjusted Langevin algorithm. Roberts & Tweedie (1996), eq. (2); the paper's sigma^2 is 2h.

A step of Euler is accepted or rejected; with `metropolis=False` it is the unadjusted algorithm of the paper.
"""

from recipe import Recipe, positive, potential, vector

theta = vector("theta")
G = positive("G", default=1.0, per=theta, doc="preconditioner, the variance of a coordinate say")

MALA = Recipe(
    name="mala",
    source="Roberts & Tweedie 1996, eq. (2)",
    state=(theta,),
    target=theta,
    H=potential(theta),
    D={theta: G},
    scheme="Euler",
    metropolis=True,
    doc=__doc__,
)
