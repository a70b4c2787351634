"""Santa. Chen et al. (2016): a thermostat in the metric of RMSprop, annealed; the paper's eta = h^2, beta = 1/T.

Exploration is a Phase of falling temperature, refinement Phase(temperature=0, freeze="xi"), \
which is RMSprop with momentum.
Let the exploration end cold: a thermostat that is frozen below 0 drives the refinement away.
g1 and g2 are the preconditioners after and before the gradient of this step. \
The paper's Euler step is the word "euler", its term
(1 - g_{t-1}/g_t)/u, the derivative of a frozen g, is left out, as in the authors' code.
At temperature 1, with lam = 0.3 and h = 0.05, E theta^2 is off by +8 % under theta^4/4 while V and V_last move.
"""

from sympy import sqrt

from recipe import (
    Recipe,
    adapted,
    euler,
    force,
    fraction,
    friction,
    grad,
    noise,
    num_data,
    positive,
    potential,
    step_size,
    total,
    vector,
)

theta, p, xi = vector("theta"), vector("p"), vector("xi")
sigma = fraction("sigma", default=0.99, doc="weight of the past in V")
lam = positive("lam", default=1e-8, doc="added to the root of V, on the scale of the mean gradient")
U = potential(theta)
slope = grad(U) / num_data
V = adapted("V", like=theta, start=slope**2, domain="nonnegative")
V_last = adapted("V_last", like=theta, start=slope**2, domain="nonnegative")
g1, g2 = 1 / sqrt(lam + sqrt(V)), 1 / sqrt(lam + sqrt(V_last))

SANTA = Recipe(
    name="santa",
    source="Chen et al. 2016",
    state=(theta, p, xi),
    target=theta,
    H=U + total(p**2) / 2 + total((xi - g2) ** 2) / 2,
    D={p: g2},
    Q={(theta, p): -g1, (p, xi): p},
    adapt={V: sigma * V + (1 - sigma) * slope**2, V_last: V},
    order="same_step",
    pieces={"R": friction(p), "W": force(p) + noise(p), "G": euler(p)},
    scheme="A' R W R A'",
    schemes={"euler": "C G A"},
    conversions={"eta": {step_size: sqrt(positive("eta"))}},
    doc=__doc__,
)
