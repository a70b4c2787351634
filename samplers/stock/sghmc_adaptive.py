"""SGHMC with adapted masses. Springenberg et al. (2016), appendix: m = sqrt(V), with V adapted in the burn-in only.

V is the running second moment of the gradient, over tau steps; the gradient supplies h V/2 of the friction gamma m, or
all of it where h sqrt(V) > 2 T gamma. V and gbar move by 1/(tau + 1) of their way, where the paper prints 1/tau, which
would forget their start at once at tau = 1. Freeze V after the burn-in: phases=[Phase(..., keep=False),
Phase(..., freeze=("V", "gbar", "tau"))]. With V adapting, E theta^2 is off by +19 % under
theta^4/4, with a gradient of variance 1, lam = 0.3 and h = 0.05.
"""

from sympy import Min, sqrt

from recipe import Recipe, adapted, euler, grad, positive, potential, step_size, temperature, total, vector

theta, p = vector("theta"), vector("p")
gamma = positive("gamma", default=1.0, doc="friction rate, per unit of time")
lam = positive("lam", default=1e-8, doc="added to the root of V in the mass")
U = potential(theta)
V = adapted("V", like=theta, start=grad(U) ** 2, domain="nonnegative")
gbar = adapted("gbar", like=theta, start=grad(U))
tau = adapted("tau", like=theta, start=1, domain="positive")
m = lam + sqrt(V)
eps, friction = positive("eps"), positive("friction")

AdaptiveSGHMC = Recipe(
    name="sghmc-adaptive",
    source="Springenberg et al. 2016",
    state=(theta, p),
    target=theta,
    H=U + total(p**2 / m) / 2,
    D={p: gamma * m},
    Q={(theta, p): -1},
    supplied={p: Min(step_size * V / 2, temperature * gamma * m)},
    adapt={
        V: V + (grad(U) ** 2 - V) / (tau + 1),
        gbar: gbar + (grad(U) - gbar) / (tau + 1),
        tau: 1 + tau * (1 - gbar**2 / (lam**2 + V)),
    },
    pieces={"G": euler(p)},
    scheme="B A O A B",
    schemes={"paper": "A G"},
    conversions={"eps, friction": {step_size: eps, gamma: friction / eps}},
    doc=__doc__,
)
