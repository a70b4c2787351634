"""Underdamped Langevin dynamics.  dtheta = p/m dt, dp = -grad U dt - gamma p dt + sqrt(2 gamma m) dW."""

from recipe import Recipe, positive, potential, total, vector

from .sgd import conversions_of_sgd

theta, p = vector("theta"), vector("p")
gamma = positive("gamma", default=1.0, doc="friction rate, per unit of time")
m = positive("m", default=1.0, per=theta, doc="mass")
U = potential(theta)

UnderdampedLangevin = Recipe(
    name="underdamped-langevin",
    source="Ma, Chen & Fox 2015; Leimkuhler & Matthews 2013",
    state=(theta, p),
    target=theta,
    H=U + total(p**2 / m) / 2,
    D={p: gamma * m},
    Q={(theta, p): -1},
    scheme="B A O A B",
    conversions=conversions_of_sgd("OF", gamma, m),
    doc=__doc__,
)
