"""Randomised HMC: Hamiltonian dynamics with momenta drawn anew at random times. Bou-Rabee & Sanz-Serna (2017).

A chain draws its momenta anew with probability 1 - e^{-nu h} in a step, in between it follows the leapfrog. \
On Gaussians
"B A R A B" is exact; "leapfrog" has the variance T/(k (1 - h^2 k/(4 m))).
"""

from recipe import Recipe, positive, potential, refresh, total, vector

theta, p = vector("theta"), vector("p")
m = positive("m", default=1.0, per=theta, doc="mass")
nu = positive("nu", default=1.0, doc="rate of refreshment, per unit of time")

RandomisedHMC = Recipe(
    name="hmc-randomised",
    source="Bou-Rabee & Sanz-Serna 2017",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2 / m) / 2,
    D={},
    Q={(theta, p): -1},
    jumps={"R": refresh(p, rate=nu)},
    scheme="B A R A B",
    schemes={"leapfrog": "R B A B"},
    doc=__doc__,
)
