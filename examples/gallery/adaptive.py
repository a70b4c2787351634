"""Preconditioners, masses and clocks that follow what the steps see.

Each is exact given the frozen one, and settles; but for the clock, which does not settle, and is the weight of a draw.
"""

from exhibit import Exhibit
from sympy import sqrt

from recipe import Recipe, adapted, fraction, grad, positive, potential, step_number, step_size, total, vector

theta, p = vector("theta"), vector("p")
U = potential(theta)
g = grad(U)
rate = fraction("rate", default=0.01)
least = positive("least", default=0.1)

# The mean square of all gradients so far, whose steps fall off. Duchi, Hazan & Singer 2011, as a preconditioner.
V = adapted("V", like=theta, start=1.0, domain="positive")
adagrad = Recipe(
    name="adagrad-sgld",
    source="Duchi, Hazan & Singer 2011",
    state=(theta,),
    H=U,
    D={theta: 1 / (least + sqrt(V))},
    adapt={V: V + (g**2 - V) / (step_number + 2)},
    scheme="Euler",
)

# The mass of SGHMC by RMSprop, with a gain that vanishes.
rmsprop = Recipe(
    name="rmsprop-mass",
    source="Li et al. 2016, of momenta",
    state=(theta, p),
    target=theta,
    H=U + total(p**2 / (least + sqrt(V))) / 2,
    D={p: least + sqrt(V)},
    Q={(theta, p): -1},
    adapt={V: V + rate * (g**2 - V) / (1 + rate * step_number)},
    scheme="B A O A B",
)

# The spread of the draws themselves: a diagonal of Haario, Saksman & Tamminen's (2001) covariance.
mean = adapted("mean", like=theta, start=0.0)
spread = adapted("spread", like=theta, start=1.0, domain="positive")
haario = Recipe(
    name="adaptive-diagonal",
    source="Haario, Saksman & Tamminen 2001",
    state=(theta,),
    H=U,
    D={theta: least + spread},
    adapt={
        mean: mean + (theta - mean) / (step_number + 2),
        spread: spread + ((theta - mean) ** 2 - spread) / (step_number + 2),
    },
    scheme="Euler",
)

# Time runs slower where gradients have been large: the weights are its rate. Leimkuhler, Lohmann & Whalley 2025.
gamma, most = positive("gamma", default=1.0), positive("most", default=2.0)
zeta = adapted("zeta", start=1.0, domain="positive")
psi = least * (sqrt(zeta) + most) / (sqrt(zeta) + least)
samadams = Recipe(
    name="samadams",
    source="Leimkuhler, Lohmann & Whalley 2025",
    state=(theta, p),
    target=theta,
    H=U + total(p**2) / 2,
    D={p: gamma * psi},
    Q={(theta, p): -psi},
    adapt={zeta: zeta + step_size * (total(g**2) - zeta)},
    weights=psi,
    scheme="B A O A B",
)

GALLERY = [
    Exhibit(adagrad, 0.02, 40_000),
    Exhibit(rmsprop, 0.1, 20_000),
    Exhibit(haario, 0.005, 400_000),
    Exhibit(samadams, 0.05, 40_000),
]
