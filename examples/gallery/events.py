"""Samplers that move on straight lines or circles between jumps, whose rate and new value read the state."""

from exhibit import Exhibit
from sympy import Max

from recipe import Recipe, flip, grad, positive, potential, reflect, refresh, total, vector

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

GALLERY = (Exhibit(zig_zag), Exhibit(bouncy_particle), Exhibit(boomerang, 0.025))
