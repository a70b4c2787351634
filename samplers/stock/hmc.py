"""Hamiltonian Monte Carlo. Duane, Kennedy, Pendleton & Roweth (1987), Neal (2011).

A step draws the momenta, makes L steps of the leapfrog, with `repeat=L`, and accepts or rejects their end. With \
`metropolis=False` momenta are drawn anew at every step of the leapfrog, which is SGLD with eps = h^2/m.
"""

from recipe import Recipe, positive, potential, refresh, total, vector

theta, p = vector("theta"), vector("p")
m = positive("m", default=1.0, per=theta, doc="mass")

HMC = Recipe(
    name="hmc",
    source="Duane et al. 1987; Neal 2011",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2 / m) / 2,
    D={},
    Q={(theta, p): -1},
    jumps={"R": refresh(p)},
    scheme="R B A B",
    metropolis=True,
    doc=__doc__,
)
