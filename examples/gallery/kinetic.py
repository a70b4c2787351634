"""Hamiltonian dynamics with other kinetic energies, frictions and memories."""

from math import e

import torch
from exhibit import Exhibit
from sympy import exp, log, sqrt

from recipe import (
    Recipe,
    fraction,
    friction,
    noise,
    numerical,
    positive,
    potential,
    project,
    real,
    refresh,
    scalar,
    temperature,
    total,
    vector,
)

theta, p, r, s = (vector(name) for name in ("theta", "p", "r", "s"))
u, n = vector("u", domain="sphere"), total(1)
x, y, px, py = (scalar(name) for name in ("x", "y", "px", "py"))
gamma = positive("gamma", default=1.0, doc="friction rate")
U = potential(theta)
KINETIC = U + total(p**2) / 2
TURNS = {(theta, p): -1}
HEUN = numerical(friction(p) + noise(p), "heun")

# Two momenta in a memory of e^{-t}: coloured noise. Ceriotti, Bussi & Parrinello 2010.
generalised = Recipe(
    name="generalised-langevin",
    source="Ceriotti, Bussi & Parrinello 2010",
    state=(theta, p, r, s),
    target=theta,
    H=KINETIC + total(r**2 + s**2) / 2,
    D={r: 1, s: 2},
    Q={**TURNS, (p, r): -1, (p, s): -0.5},
    pieces={"O": (friction(p) + noise(p), r, s)},
    scheme="B A O A B",
)

# Noise enters at the third derivative. Mou, Ma, Wainwright, Bartlett & Jordan 2021.
third_order = Recipe(
    name="third-order",
    source="Mou et al. 2021, eq. (7)",
    state=(theta, p, r),
    target=theta,
    H=KINETIC + total(r**2) / 2,
    D={r: 2 * gamma},
    Q={**TURNS, (p, r): -gamma},
    pieces={"O": (friction(p) + noise(p), r)},
    scheme="B A O A B",
)

# Friction that is the larger the farther the chain is from 0: of the fluctuation-dissipation kind.
rough = Recipe(
    name="position-friction",
    source="Sachs, Leimkuhler & Danos 2017",
    state=(theta, p),
    target=theta,
    H=KINETIC,
    D={p: gamma * (1 + theta**2)},
    Q=TURNS,
)

# Friction that falls with speed, and a Gamma for it. Klimontovich 1994.
nonlinear_friction = Recipe(
    name="nonlinear-friction",
    source="Klimontovich 1994",
    state=(theta, p),
    target=theta,
    H=KINETIC,
    D={p: gamma / (1 + p**2)},
    Q=TURNS,
    pieces={"O": numerical(friction(p) + noise(p), "euler")},
    scheme="B A O A B",
)

# Momenta with tails of Student's t: slow chains in heavy-tailed targets. Livingstone, Faulkner & Roberts 2019.
heavy_momenta = Recipe(
    name="student-momenta",
    source="Livingstone, Faulkner & Roberts 2019",
    state=(theta, p),
    target=theta,
    H=U + 4 * total(log(1 + p**2 / 6)),
    D={p: gamma},
    Q=TURNS,
    pieces={"O": HEUN},
    scheme="B A O A B",
)

# Speeds that are bounded: |p|, rounded off. Livingstone, Faulkner & Roberts 2019.
laplace = Recipe(
    name="laplace-momenta",
    source="Livingstone, Faulkner & Roberts 2019",
    state=(theta, p),
    target=theta,
    H=U + total(sqrt(1 + p**2)),
    D={p: gamma},
    Q=TURNS,
    pieces={"R": friction(p), "W": noise(p)},
    scheme="B A R W R A B",
)

# Time runs slower where theta is large: a step of one size is a short one there. Leroy, Leimkuhler et al. 2024.
clock = 1 / sqrt(1 + theta**2)
time_changed = Recipe(
    name="time-changed",
    source="Leroy et al. 2024",
    state=(theta, p),
    target=theta,
    H=KINETIC,
    D={p: clock * gamma},
    Q={(theta, p): -clock},
    pieces={"A": numerical(theta, "heun")},
    scheme="B A O A B",
)

# A mass that depends on theta, log(mass) times the temperature. Girolami & Calderhead 2011, site by site.
mass = 1 + theta**2 / (1 + theta**2)
riemann = Recipe(
    name="riemann-by-site",
    source="Girolami & Calderhead 2011",
    state=(theta, p),
    target=theta,
    H=U + total(p**2 / mass) / 2 + temperature * total(log(mass)) / 2,
    D={p: gamma * mass},
    Q=TURNS,
    scheme="Euler",
)

# A magnetic field turns the momenta, and does no work. Tripuraneni, Rowland, Ghahramani & Turner 2017.
magnetic = Recipe(
    name="magnetic",
    source="Tripuraneni et al. 2017",
    state=(x, y, px, py),
    target=(x, y),
    H=potential(x, y) + (px**2 + py**2) / 2,
    D={px: gamma, py: gamma},
    Q={(x, px): -1, (y, py): -1, (px, py): 1.5},
    scheme="B A O A B",
)

# All momenta are drawn anew at random times. Bou-Rabee & Sanz-Serna 2017; of a mass that varies by site.
m = positive("m", default=1.5, per=theta)
andersen = Recipe(
    name="andersen",
    source="Andersen 1980",
    state=(theta, p),
    target=theta,
    H=U + total(p**2 / m) / 2,
    D={},
    Q=TURNS,
    jumps={"R": refresh(p, rate=gamma)},
    scheme="B A R A B",
)

# Langevin dynamics on a half line in which the force e^{-theta} is a wall, not a reflection.
wall = Recipe(
    name="soft-wall",
    source="Weeks, Chandler & Andersen 1971, the idea",
    state=(theta, p),
    H=total(theta + exp(-theta)) + total(p**2) / 2,
    D={p: gamma},
    Q=TURNS,
    scheme="B A O A B",
)

# A speed of length 1, which the force turns and noise on the sphere refreshes. Robnik & Seljak 2024.
microcanonical = Recipe(
    name="microcanonical-langevin",
    source="Robnik & Seljak 2024",
    state=(theta, u),
    H=U,
    D={u: project(u) / 2},
    Q={(u, theta): project(u) / (n - 1)},
    scheme="B A O A B",
)

# The same accepted by its work, the volume of the kicks in it. Robnik, Cohn-Gordon & Seljak 2025.
adjusted = Recipe(
    name="microcanonical-adjusted",
    source="Robnik, Cohn-Gordon & Seljak 2025",
    state=(theta, u),
    H=U,
    D={},
    Q={(u, theta): project(u) / (n - 1)},
    jumps={"R": refresh(u, persistence=fraction("c", default=0.8))},
    scheme="R B A B",
    metropolis=True,
)

# Energy-sampling Hamiltonian dynamics: the speed of all coordinates is in the weights. Ver Steeg & Galstyan 2021.
sampling_energy = Recipe(
    name="energy-sampling",
    source="Ver Steeg & Galstyan 2021",
    state=(theta, u),
    H=U * (n - 1) / n,
    D={u: project(u) / 2},
    Q={(u, theta): project(u) / (n - 1)},
    weights=exp(-U / (n * temperature)),
    scheme="B A O A B",
)

# Langevin dynamics on a sphere, accepted by the densities of its steps in the planes that touch it. Fisher 1953.
v = vector("v", domain="sphere")
mu = real("mu", per=v, doc="mean direction times the concentration")
on_sphere = Recipe(
    name="von-mises-fisher",
    source="Fisher 1953",
    state=v,
    H=-total(mu * v),
    D={v: project(v)},
    scheme="Euler",
    metropolis=True,
)
POLE = torch.tensor([2.0, 0.0, 0.0])

GALLERY = [
    Exhibit(generalised),
    Exhibit(third_order),
    Exhibit(rough),
    Exhibit(nonlinear_friction, 0.02),
    Exhibit(heavy_momenta, 0.05),
    Exhibit(laplace, steps=20_000),
    Exhibit(time_changed, 0.05),
    Exhibit(riemann, 0.01),
    Exhibit(magnetic, steps=10_000),
    Exhibit(andersen),
    Exhibit(wall),
    Exhibit(microcanonical, step_size=0.3, steps=40_000),
    Exhibit(adjusted, step_size=0.5, steps=40_000),
    Exhibit(sampling_energy, step_size=0.2, steps=40_000),
    Exhibit(on_sphere, 0.4, 20_000, density=lambda z: e ** (2 * z) * (abs(z) <= 1), values={"mu": POLE}, init=POLE / 2),
]
