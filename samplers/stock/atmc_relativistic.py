"""ATMC with relativistic kinetic energy. Heek & Kalchbrenner (2019), eqs. (2)-(4) and section 2.5.

The thermostat and the friction follow K: dxi = (m/mu) (K'^2 - K'') dt and -m (alpha + xi) K'. The forms p^2/m - 1 and
(alpha + xi) p of the Gaussian K would not leave exp(-H) invariant. The word "paper" is Algorithm 1, corrected as in
atmc.py, with the friction rate (alpha + xi) m/M(p), M = m sqrt(1 + p^2/(m c)^2), of the p before the step. rms_step is
h0/sqrt(m), the rms step where m c^2 >> 1; at the paper's settings, m c^2 = 11, it is 6 % more than the rms step.
"""

from sympy import Max, diff, log, sqrt

from recipe import (
    Recipe,
    force,
    fraction,
    friction,
    noise,
    nonnegative,
    numerical,
    positive,
    potential,
    step_size,
    total,
    vector,
)

theta, p, xi = vector("theta"), vector("p"), vector("xi")
m = positive("m", default=1.0, doc="mass at rest")
c = positive("c", default=1.0, doc="greatest speed, of theta per unit of time")
mu = positive("mu", default=1.0, doc="thermostat mass")
Dmin = positive("Dmin", default=1.0, doc="least friction rate, per unit of time")
B = nonnegative("B", default=0.0, doc="noise that the gradient supplies, h V_g; may be left unknown")
K = m * c**2 * (sqrt(1 + (p / (m * c)) ** 2) - 1)
alpha = Max(Dmin - xi, 0)
h0, rms_step, max_step = positive("h0"), positive("rms_step"), positive("max_step")

RelativisticATMC = Recipe(
    name="atmc-relativistic",
    source="Heek & Kalchbrenner 2019, eqs. (2)-(4)",
    state=(theta, p, xi),
    target=theta,
    H=potential(theta) + total(K) + total(mu * (xi - B / (2 * m)) ** 2) / 2,
    D={p: alpha * m + B / 2},
    Q={(theta, p): -1, (p, xi): m * diff(K, p) / mu},
    supplied={p: B / 2},
    pieces={"R": friction(p), "W": force(p) + noise(p), "F": numerical(p, "exponential")},
    scheme="A' R W R A'",
    schemes={"paper": "F A'"},
    conversions={
        "h0, momentum, rms_step, max_step": {
            step_size: h0,
            Dmin: -log(fraction("momentum")) / h0,
            m: (h0 / rms_step) ** 2,
            c: max_step / h0,
        }
    },
    doc=__doc__,
)
