"""SGNHT. Ding et al. (2014): one thermostat xi for all parameters absorbs unknown isotropic gradient noise.

dxi = (total(p^2)/n - 1)/mu dt. The energy n mu (xi - A)^2/2 counts every site; with a gradient of covariance V_g the
mean of xi moves to A + h V_g/2 and the marginal of theta stays.
"""

from sympy import sqrt

from recipe import Recipe, euler, positive, potential, scalar, step_size, total, vector

from .sgd import conversions_of_sgd

theta, p, xi = vector("theta"), vector("p"), scalar("xi")
A = positive("A", default=1.0, doc="friction = injected noise, per unit of time")
mu = positive("mu", default=1.0, doc="thermostat mass")
n = total(1)
eta, a = positive("eta"), positive("a")

SGNHT = Recipe(
    name="sgnht",
    source="Ding et al. 2014",
    state=(theta, p, xi),
    target=theta,
    H=potential(theta) + total(p**2) / 2 + n * mu * (xi - A) ** 2 / 2,
    D={p: A},
    Q={(theta, p): -1, (p, xi): p / (n * mu)},
    scheme="B A' O A' B",
    schemes={"paper": "G A'"},
    pieces={"G": euler(p)},
    conversions={"eta, a": {step_size: sqrt(eta), A: a / sqrt(eta)}, **conversions_of_sgd("OFG", A, thermostat=mu)},
    doc=__doc__,
)
