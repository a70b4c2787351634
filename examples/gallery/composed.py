"""Several energies of one target, several targets, copies of a target."""

from math import e

from exhibit import Exhibit
from sympy import exp, log

from recipe import (
    Recipe,
    copies,
    kick,
    mapped,
    outer,
    particles,
    positive,
    potential,
    scalar,
    swap,
    total,
    vector,
)

theta, p = vector("theta"), vector("p")
gamma = positive("gamma", default=1.0, doc="friction rate")
U_fast, U_slow = potential(theta, name="fast"), potential(theta, name="slow")

# Multiple time steps: four inner steps with the fast force to one of the slow. Tuckerman, Berne & Martyna 1992.
respa = Recipe(
    name="respa",
    source="Tuckerman, Berne & Martyna 1992",
    state=(theta, p),
    target=theta,
    H=U_fast + U_slow + total(p**2) / 2,
    D={p: gamma},
    Q={(theta, p): -1},
    pieces={"F": kick("fast"), "S": kick("slow")},
    scheme="S (F A O A F)*4 S",
)
OF_BANANA = {"fast": lambda z: (z[1] - z[0] ** 2) ** 2 / 2, "slow": lambda z: z[0] ** 2 / 2}

# Two replicas of a double well that are held together, the second one hotter. Baldassi et al. 2016.
x, y = scalar("x"), scalar("y")
k = positive("k", default=1.0, doc="stiffness of the coupling")
U_x, U_y = copies(x, y)
replicas = Recipe(
    name="coupled-replicas",
    source="Baldassi et al. 2016",
    state=(x, y),
    target=(x, y),
    H=U_x + U_y / 2 + k * (x - y) ** 2 / 2,
    D={x: 1, y: 1},
)

# Replica exchange, with the gradient on all data: two chains, the second one hotter, swap where they are. Deng et al.
# 2020, "Non-convex learning via replica exchange stochastic gradient MCMC".
tau, rate_of_swaps = positive("tau", default=5.0), positive("a", default=10.0, doc="rate at which swaps are tried")
exchange = Recipe(
    name="replica-exchange",
    source="Deng et al. 2020, with full gradients",
    state=(x, y),
    target=(x, y),
    H=U_x + U_y / tau,
    D={x: 1, y: tau},
    jumps={"S": swap(x, y, rate=rate_of_swaps)},
    scheme="Euler S",
)

# Langevin dynamics of the log of a Gamma law. Hsieh et al. 2018, the idea.
rate = vector("rate", domain="positive")
of_rate = Recipe(
    name="langevin-of-logs",
    source="Hsieh et al. 2018, the idea",
    state=(rate, p),
    H=total(rate - log(rate)) + total(p**2) / 2,
    D={p: gamma},
    Q={(rate, p): -1},
    scheme="B A O A B",
)

# Particles that read one another, with the law of U for each: Langevin dynamics in the metric of their covariance, of
# which Gamma is the correction of the ensemble Kalman sampler. Garbuno-Inigo, Nuesken & Reich 2020.
ensemble = particles(theta, 4)
mean = sum(ensemble) / len(ensemble)
uneven = sum(total(x**4 / 4 - x / 2) for x in ensemble)
aldi = Recipe(
    name="aldi",
    source="Garbuno-Inigo, Nuesken & Reich 2020",
    state=ensemble,
    target=ensemble,
    H=uneven,
    D=dict.fromkeys(ensemble, sum(outer(x - mean) for x in ensemble) / len(ensemble)),
)

# Stein variational gradient descent with the noise of its kernel, of which Gamma is the repulsion. Gallego & Insua
# 2018; Nuesken & Renger 2023.
stein = Recipe(
    name="stein-with-noise",
    source="Nuesken & Renger 2023",
    state=ensemble,
    target=ensemble,
    H=uneven,
    D={(x, y): exp(-total((x - y) ** 2) / 2) / len(ensemble) for k, x in enumerate(ensemble) for y in ensemble[k:]},
)

GALLERY = [
    Exhibit(mapped(of_rate, rate=vector("z"), by=exp), density=lambda x: x * e ** min(-x, 0.0) if x > 0 else 0.0),
    Exhibit(respa, 0.3, steps=2000, energy=OF_BANANA),
    Exhibit(replicas.bind(U=lambda z: (z**2 - 1) ** 2), 0.01),
    Exhibit(exchange.bind(U=lambda z: 6 * (z**2 - 1) ** 2 + z / 2), 0.002),
    Exhibit(aldi, 0.01, steps=20_000),
    Exhibit(stein, 0.02, steps=20_000),
]
