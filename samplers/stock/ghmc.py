"""Guided (generalised) HMC: momenta are refreshed in part. Horowitz (1991).

A step refreshes the momenta in part, makes a step of the leapfrog, accepts it or reverses the chain's direction, and \
refreshes again; with `metropolis=False` every leapfrog step is taken.
"""

from recipe import Recipe, positive, potential, total, vector

theta, p = vector("theta"), vector("p")
gamma = positive("gamma", default=1.0, doc="rate of refreshment, per unit of time")
m = positive("m", default=1.0, per=theta, doc="mass")

GHMC = Recipe(
    name="ghmc",
    source="Horowitz 1991",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2 / m) / 2,
    D={p: gamma * m},
    Q={(theta, p): -1},
    scheme="O B A B O",
    metropolis=True,
    doc=__doc__,
)
