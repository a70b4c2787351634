"""ATMC. Heek & Kalchbrenner (2019), eqs. (2)-(4), Gaussian kinetic energy: friction max(xi, Dmin) never runs away.

The paper's Algorithm 1 prints e^{+beta h} and drops m from the noise; the word "paper" is its corrected form.
"""

from sympy import Max, log

from recipe import Recipe, fraction, nonnegative, positive, potential, step_size, total, vector

from .sgd import conversions_of_sgd

theta, p, xi = vector("theta"), vector("p"), vector("xi")
m = positive("m", default=1.0, doc="mass")
mu = positive("mu", default=1.0, doc="thermostat mass")
Dmin = positive("Dmin", default=1.0, doc="least friction rate, per unit of time")
B = nonnegative("B", default=0.0, doc="noise that the gradient supplies, h V_g; may be left unknown")
alpha = Max(Dmin - xi, 0)
h0, rms_step, momentum = positive("h0"), positive("rms_step"), fraction("momentum")

ATMC = Recipe(
    name="atmc",
    source="Heek & Kalchbrenner 2019, eqs. (2)-(4)",
    state=(theta, p, xi),
    target=theta,
    H=potential(theta) + total(p**2) / (2 * m) + total(mu * (xi - B / (2 * m)) ** 2) / 2,
    D={p: alpha * m + B / 2},
    Q={(theta, p): -1, (p, xi): p / mu},
    supplied={p: B / 2},
    scheme="B A' O A' B",
    schemes={"paper": "F A'"},
    conversions={
        "h0, momentum, rms_step": {step_size: h0, Dmin: -log(momentum) / h0, m: (h0 / rms_step) ** 2},
        **conversions_of_sgd("OF", Dmin, m, thermostat=mu),
    },
    doc=__doc__,
)
