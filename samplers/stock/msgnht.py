"""mSGNHT. Gan et al. (2015), eq. (7): a thermostat for every parameter absorbs unknown diagonal gradient noise."""

from sympy import sqrt

from recipe import Recipe, euler, positive, potential, step_size, total, vector

from .sgd import conversions_of_sgd

theta, p, xi = vector("theta"), vector("p"), vector("xi")
A = positive("A", default=1.0, doc="friction = injected noise, per unit of time")
mu = positive("mu", default=1.0, doc="thermostat mass")
eta, a = positive("eta"), positive("a")

MSGNHT = Recipe(
    name="msgnht",
    source="Gan et al. 2015",
    state=(theta, p, xi),
    target=theta,
    H=potential(theta) + total(p**2) / 2 + total(mu * (xi - A) ** 2) / 2,
    D={p: A},
    Q={(theta, p): -1, (p, xi): p / mu},
    scheme="B A' O A' B",
    schemes={"paper": "G A'"},
    pieces={"G": euler(p)},
    conversions={"eta, a": {step_size: sqrt(eta), A: a / sqrt(eta)}, **conversions_of_sgd("OFG", A, thermostat=mu)},
    doc=__doc__,
)
