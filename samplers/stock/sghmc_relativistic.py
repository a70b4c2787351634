"""Relativistic SGHMC. Lu et al. (2017): the speed |dtheta/dt| of every parameter stays below c.

K = m c^2 (sqrt(1 + p^2/(m c)^2) - 1), per coordinate. The friction is solved exactly without its noise, \
so R and W split
them. B is as in SGHMC.
"""

from sympy import sqrt

from recipe import Recipe, force, friction, noise, nonnegative, positive, potential, total, vector

theta, p = vector("theta"), vector("p")
C = positive("C", default=1.0, doc="friction, mass per unit of time")
B = nonnegative("B", default=0.0, doc="the part of C that the gradient noise supplies, h V_g/2")
m = positive("m", default=1.0, doc="mass at rest")
c = positive("c", default=1.0, doc="greatest speed, of theta per unit of time")
K = m * c**2 * (sqrt(1 + (p / (m * c)) ** 2) - 1)

RelativisticSGHMC = Recipe(
    name="sghmc-relativistic",
    source="Lu et al. 2017",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(K),
    D={p: C},
    Q={(theta, p): -1},
    supplied={p: B},
    pieces={"R": friction(p), "W": force(p) + noise(p)},
    scheme="A R W R A",
    doc=__doc__,
)
