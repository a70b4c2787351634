"""Samplers whose jumps read what they move: straight lines or circles between them, births and deaths, proposals."""

from exhibit import Exhibit
from sympy import Max, exp, log

from recipe import (
    Recipe,
    flip,
    fraction,
    grad,
    involution,
    numerical,
    positive,
    potential,
    reflect,
    refresh,
    temperature,
    total,
    vector,
)

theta, v, b = vector("theta"), vector("v"), vector("b", domain="binary")
U, g = potential(theta), grad(potential(theta))
nu, s = positive("nu", default=1.0), positive("s", default=1.5)
speed, excess = 2 * b - 1, g - theta / s**2

zig_zag = Recipe(
    name="zig-zag",
    source="Bierkens, Fearnhead and Roberts 2019",
    state=(theta, b),
    target=theta,
    H=U,
    D={},
    transport={theta: speed},
    jumps={"F": flip(b, rate=Max(0, speed * g) + nu)},
    pieces={"A": theta},
    scheme="A F A",
)
bouncy_particle = Recipe(
    name="bouncy-particle",
    source="Bouchard-Cote, Vollmer and Doucet 2018",
    state=(theta, v),
    target=theta,
    H=U + total(v**2) / 2,
    D={},
    transport={theta: v},
    jumps={"F": reflect(v, along=g, rate=Max(0, total(v * g))), "R": refresh(v, rate=nu)},
    scheme="A F R F A",
)
boomerang = Recipe(
    name="boomerang",
    source="Bierkens, Grazzi, Kamatani and Roberts 2020",
    state=(theta, v),
    target=theta,
    H=U + total(v**2 / s**2) / 2,
    D={},
    transport={theta: v, v: -theta},
    jumps={
        "F": reflect(v, along=excess, rate=Max(0, total(v * excess)), variance=s**2),
        "R": refresh(v, rate=nu),
    },
    pieces={"A": (theta, v)},
    scheme="A F R F A",
)

# A coefficient that is born and dies, between a wide and a narrow law. Preston 1975; Stephens 2000, section 3.
w = fraction("w", default=0.3)
slab = (theta - 1) ** 2 / 4 + log(2) / 2 - log(w)
spike = 2 * theta**2 - log(4) / 2 - log(1 - w)
birth_and_death = Recipe(
    name="birth-and-death",
    source="Preston 1975; Stephens 2000",
    state=(theta, b),
    target=theta,
    H=total(b * slab + (1 - b) * spike),
    D={theta: 1},
    jumps={"F": flip(b, rate=b + (1 - b) * exp((spike - slab) / temperature))},
    pieces={"A": numerical(theta, "euler")},
    scheme="A F A",
)

# A random walk that jumps at Barker's rate, between steps of Langevin's dynamics. Barker 1965.
well = theta**4 / 4 - theta / 2
rise = total(well.xreplace({theta: theta + v}) - well).expand()
random_walk = Recipe(
    name="barker-jumps",
    source="Barker 1965",
    state=(theta, v),
    target=theta,
    H=total(well) + total(v**2 / s**2) / 2,
    D={theta: 1},
    jumps={
        "F": involution({theta: theta + v, v: -v}, rate=1 / (1 + exp(rise / temperature))),
        "R": refresh(v),
    },
    pieces={"A": numerical(theta, "euler")},
    scheme="A R F A",
)

GALLERY = (
    Exhibit(zig_zag),
    Exhibit(bouncy_particle),
    Exhibit(boomerang, 0.025),
    Exhibit(birth_and_death, 0.01, 40_000),
    Exhibit(random_walk, 0.02, 20_000),
)
