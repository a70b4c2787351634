"""Recipes for the certificate: right ones of the literature, wrong ones with the question that must catch each.

Each entry makes its Recipe when it is called, since some are refused when they are declared.
"""

import torch
from sympy import Abs, Matrix, Max, Piecewise, Rational, atan, cancel, cos, cosh, exp, log, pi, sin, sqrt, tan, tanh
from torch.nn import Hardshrink, Linear, ReLU, Sequential, Softplus, Threshold

from integrators.networks import network
from recipe import (
    Energy,
    Recipe,
    copies,
    function,
    mapped,
    nonnegative,
    numerical,
    operator,
    positive,
    potential,
    real,
    refresh,
    scalar,
    swap,
    temperature,
    total,
    vector,
)

theta, p, r, s, xi, eta = vector("theta"), vector("p"), vector("r"), vector("s"), scalar("xi"), scalar("eta")
x, y, z, u, v = (scalar(name) for name in "xyzuv")
rate, scale = vector("rate", domain="positive"), scalar("scale", domain="positive")
rise, run = scalar("rise", domain="positive"), scalar("run", domain="positive")
choice, one_choice = vector("choice", domain="binary"), scalar("one_choice", domain="binary")
share = vector("share", domain="fraction")
hour, heading = vector("hour", domain=("periodic", 24)), scalar("heading", domain="periodic")
angle, turn = vector("angle", domain="periodic"), vector("turn", domain="periodic")
box, walled = vector("box", domain=(-1, 2)), scalar("walled", domain=(-1, 1))
A, gamma, mu = positive("A", default=1.0), positive("gamma", default=1.0), positive("mu", default=1.0)
U, n = potential(theta), total(1)
U_r, U_s = copies(r, s)
U2, U3 = potential(x, y), potential(x, y, z)
early, late = positive("early", default=1.0), positive("late", default=2.0)
TURNS = {(theta, p): -1}


def recipe(name, state, H, D, Q=None, **more):
    """A recipe whose target is the first block, if no other one is named."""
    return Recipe(name=name, state=state, H=H, D=D, Q=Q or {}, **more)


class Rounded(torch.nn.Module):
    """Numbers rounded down; torch gives them the slope 0."""

    def forward(self, inputs):
        return inputs.floor()


def learned(module):
    """A positive network of one layer of such a module, of one input or several."""

    def of(*inputs):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            layers = Linear(len(inputs), 5), module, Linear(5, 1), Softplus()
        return network(Sequential(*layers).double(), name="f", sign="positive")(*inputs)

    return of


def overdamped(D, H=None, block=theta, **more):
    """dtheta = (-D dH/dtheta + D') dt + sqrt(2D) dW."""
    H = potential(block) if H is None else H
    return recipe("overdamped", (block,), H, {block: D}, scheme="Euler", **more)


def beside(block, H, D=1):
    """theta and an auxiliary block, each with noise of its own."""
    return recipe("beside", (theta, block), U + H, {theta: 1, block: D}, scheme="Euler")


def underdamped(H, friction=gamma, **more):
    """A momentum with friction."""
    return recipe("underdamped", (theta, p), H, {p: friction}, TURNS, **more)


def two(D, H=None, Q=None, **more):
    """Two explicit coordinates, a target both."""
    H = potential(x, y) if H is None else H
    return recipe("two", (x, y), H, D, Q or {}, target=(x, y), scheme="Euler", **more)


def at_speed(speed, block=theta):
    """A momentum with noise, which moves a block at a speed that is its own multiple of the momentum."""
    H = potential(block) + total(p**2) / 2
    return recipe("at-speed", (block, p), H, {p: 1}, {(block, p): -speed}, scheme="Euler")


def beside_a_choice(H, drawn=choice, **more):
    """Langevin dynamics beside a binary block that is drawn anew in every step."""
    moves = dict(jumps={"F": refresh(drawn)}, scheme="Euler F")
    return recipe(
        "beside-a-choice",
        (theta, drawn),
        H + temperature * (total(drawn) if drawn.is_vector else drawn),
        {theta: 1},
        **moves,
        **more,
    )


def by_choice(noise, H):
    """theta and a binary block, of one energy, which is drawn anew."""
    return recipe("by-choice", (theta, choice), H, {theta: noise}, jumps={"R": refresh(choice)}, scheme="Euler R")


def half_line(H, noise, curl):
    """A positive coordinate and a real one, with noise of their own and a curl between them."""
    target = (scale, y)
    return recipe("half-line", target, H, {scale: noise, y: 1}, {target: curl}, target=target, scheme="Euler")


def isotropic(noise, H=None):
    """Two explicit coordinates of equal noise."""
    return two({x: noise, y: noise}, H)


def three(H):
    """Overdamped motion of three explicit coordinates in a well."""
    H += (x**2 + y**2 + z**2) / 2
    return recipe("three", (x, y, z), H, dict.fromkeys((x, y, z), 1), target=(x, y, z), scheme="Euler")


def momenta(H, **more):
    """Two explicit coordinates with momenta."""
    D, Q = {u: 1, v: 1}, {(x, u): -1, (y, v): -1}
    return recipe("momenta", (x, y, u, v), H + (u**2 + v**2) / 2, D, Q, target=(x, y), **more)


def drawn_together(kinetic, blocks=(u, v)):
    """Hamiltonian motion of two explicit coordinates whose momenta are drawn anew together."""
    Q, jumps = {(x, u): -1, (y, v): -1}, {"R": refresh(blocks)}
    return recipe("together", (x, y, u, v), U2 + kinetic, {}, Q, target=(x, y), jumps=jumps, scheme="R B A B")


def simplex(factor):
    """Two positive coordinates with a Dikin metric of their own ends, and a factor."""
    D = {rise: rise**2 * factor, run: run**2 * factor}
    return recipe("simplex", (rise, run), potential(rise, run), D, target=(rise, run), scheme="Euler")


def replicas(H):
    """Overdamped copies of an energy U at two blocks."""
    return recipe("replicas", (r, s), H, {r: 1, s: 1}, target=(r, s), scheme="Euler")


def dikin(*sides):
    """Two explicit coordinates with the inverse of Dikin's metric of a polygon, of sides (a, b, c): ax + by + c > 0."""
    normals = [(Matrix([a, b]), a * x + b * y + c) for a, b, c in sides]
    metric = sum((n * n.T / distance**2 for n, distance in normals), Matrix.zeros(2, 2))
    return two(metric.inv().applyfunc(cancel))


def walled_two(D, Q=None):
    """Two coordinates, one in a box."""
    H = potential(walled, y)
    return recipe("walled", (walled, y), H, D, Q or {}, target=(walled, y), scheme="Euler")


def turned(kinetic, J=operator("J", kind="skew"), **more):
    """Langevin motion whose momenta an operator turns."""
    return recipe("turned", (theta, p), U + kinetic, {p: gamma}, {**TURNS, p: J}, **more)


def bouncing(kinetic, block=None, **more):
    """Underdamped motion in a box, or on another domain."""
    block = box if block is None else block
    H = potential(block) + kinetic
    return recipe("bouncing", (block, p), H, {p: gamma}, {(block, p): -1}, **more)


def isokinetic(block):
    """dx = cos(turn) dt: a velocity of length 1 in the plane, whose direction is an angle. Minary et al. 2003."""
    H = potential(block)
    return recipe("isokinetic", (block, turn), H, {turn: A}, {(block, turn): sin(turn)})


def half_noisy(H):
    """Underdamped motion with noise for x > 0 alone."""
    return recipe("half-noisy", (x, y), H + y**2 / 2, {y: Max(0, x)}, {(x, y): -1})


def nose_hoover_langevin():
    """Noise on the thermostat alone. Leimkuhler, Noorizadeh & Theil 2009."""
    return recipe(
        "nose-hoover-langevin",
        (theta, p, xi),
        U + total(p**2) / 2 + n * mu * xi**2 / 2,
        {xi: gamma / (n * mu)},
        {**TURNS, (p, xi): p / (n * mu)},
    )


def nose_hoover_chain(H=0):
    """Thermostats in a chain, of which the last has noise, with a further energy H."""
    H += U + total(p**2) / 2 + n * mu * xi**2 / 2 + mu * (eta**2 + z**2) / 2
    Q = {**TURNS, (p, xi): p / (n * mu), (xi, eta): xi / mu, (eta, z): eta / mu}
    return recipe("nose-hoover-chain", (theta, p, xi, eta, z), H, {z: gamma}, Q)


def thermostat(H, coupling=1, **more):
    """A Nose-Hoover thermostat with noise on the momenta."""
    return recipe("thermostat", (theta, p, xi), U + H, {p: A}, {**TURNS, (p, xi): coupling * p / (n * mu)}, **more)


# Wrong recipes by the question that must catch them.
BY_TOPIC = {
    "normalisable": {  # no law is left invariant that is one (H.1)
        "improper: concave target": lambda: overdamped(1, total(-(theta**2)) / 2),
        "improper: tail of log(1+x^2)/4": lambda: overdamped(1, total(log(1 + theta**2)) / 4),
        "improper: Cauchy to the half": lambda: overdamped(1, total(log(1 + theta**2)) / 2),
        "improper: Gamma shape below 0": lambda: overdamped(rate, total(rate + log(rate) * 3 / 2), rate),
        "improper: flat target": lambda: overdamped(1, total(cos(theta))),
        "improper: momentum free along a diagonal": lambda: recipe(
            "ridge", (theta, p, r), U + total((p - r) ** 4) / 4, {p: 1, r: 1}, TURNS
        ),
        "improper: two ridges": lambda: recipe(
            "ridges", (theta, p, r), U + total(p**4 + r**4 - 2 * p**2 * r**2), {p: 1, r: 1}, TURNS
        ),
        "improper: saddle of two coordinates": lambda: two({x: 1, y: 1}, x * y),
        "improper: coordinates held apart only": lambda: two({x: 1, y: 1}, (x - y) ** 2),
        "improper: bound energy without a bound": lambda: two({x: 1, y: 1}).bind(U=Energy((x, y), U=x**2 * y**2)),
        "improper: a copy of U of a negative weight": lambda: replicas(U_r - U_s / 2),
        "improper: copies of U with a spring that pushes": lambda: replicas(U_r + U_s - 5 * total((r - s) ** 2)),
        "improper: a pole of first order": lambda: overdamped(1, total(theta**2 / 2 + log(Abs(theta)))),
        "improper: a pole of second order": lambda: overdamped(1, total(theta**2 / 2 - 1 / theta**2)),
        "improper: a pole of a momentum": lambda: underdamped(U + total(p**2 / 2 + log(Abs(p)))),
        "improper: a pole inside of a box": lambda: overdamped((box + 1) * (2 - box), total(log(Abs(box - 1))), box),
        "improper: a pole of an angle": lambda: overdamped(1, total(log(1 - cos(angle - 1))), angle),
        "improper: one observation of a logistic regression without a prior": lambda: overdamped(
            1, total(log(1 + exp(theta)) - theta)
        ),
        "improper: log cosh held from one side": lambda: two({x: 1, y: 1}, log(cosh(x)) - x + y**2 / 2),
        "improper: flat where a binary block is 0": lambda: by_choice(1, total(theta**2 * choice) / 2),
        "improper: a pole where a binary block is 1": lambda: by_choice(
            1, total(theta**2 / 2 + choice * log(Abs(theta - 1)))
        ),
        "improper: a pole at a point of the plane": lambda: two({x: 1, y: 1}, (x**2 + y**2) / 2 + log(x**2 + y**2)),
        "improper: a pole at a point beside the middle": lambda: two(
            {x: 1, y: 1}, (x**2 + y**2) / 2 + log((x - 1.25) ** 2 + (y + 2) ** 2)
        ),
        "improper: a pole along a line of three coordinates": lambda: three(log(x**2 + y**2) + (x - z) ** 2),
        "improper: a pole where two sites are 0": lambda: overdamped(1, total(theta**2) / 2 + log(total(theta**2))),
        "improper: a marginal of a negative U": lambda: overdamped(1, -U, marginal=-U),
        "improper: thermostat of a cubic energy": lambda: thermostat(total(p**2) / 2 + n * xi**3 / 3),
        "reflection: mass without end at the end of a box": lambda: overdamped(1, 3 * total(log(box + 1)) / 2, box),
        "angle: a target on the line without a bound": lambda: overdamped(1, total(sin(theta))),
    },
    "marginal": {  # the marginal is another one (H.2)
        "marginal: mass of theta without its log": lambda: underdamped(U + total(p**2 / (1 + theta**2)) / 2),
        "marginal: log of the mass doubled": lambda: underdamped(
            U + total(p**2 / (1 + theta**2)) / 2 + temperature * total(log(1 + theta**2))
        ),
        "marginal: bound, where the opaque one fails": lambda: underdamped(U + total(p**2 / (1 + theta**2)) / 2).bind(
            U=Energy(theta, U=total(theta**2) / 2)
        ),
        "marginal: the momentum shifted and stiffened": lambda: underdamped(U + total(p**2 + (p - theta) ** 2) / 2),
        "marginal: a block between walls, as if on the line": lambda: beside(share, total((share - theta) ** 2) / 2),
        "marginal: a positive block, as if on the line": lambda: beside(rate, total((rate - theta) ** 2) / 2, rate**2),
        "marginal: an angle pulled by theta": lambda: beside(angle, -total(theta * cos(angle))),
        "marginal: U twice": lambda: underdamped(2 * U + total(p**2) / 2),
        "marginal: a quartic momentum of a mass of theta": lambda: underdamped(U + total(p**4 * (1 + theta**2)) / 4),
        "marginal: a thermostat coupled to theta": lambda: thermostat(
            total(p**2) / 2 + n * mu * xi**2 * (1 + (total(theta) / n) ** 2) / 2
        ),
        "marginal: half of U beside a choice": lambda: beside_a_choice(U / 2),
        "marginal: weights beside a choice": lambda: beside_a_choice(U, weights=1 + total(theta**2)),
        "marginal: one that is declared of a U that a choice doubles": lambda: beside_a_choice(
            U * (1 + one_choice), one_choice, marginal=total(theta**4)
        ),
        "marginal: weights of the wrong choice": lambda: beside_a_choice(
            U * (1 + one_choice) / 2, one_choice, weights=1 - one_choice
        ),
    },
    "reached": {  # the noise does not reach everything (H.5)
        "reach: one noise for two coordinates": lambda: two(Matrix([[1, 1], [1, 1]])),
        "reach: noise along circles": lambda: two(Matrix([[y**2, -x * y], [-x * y, x**2]])),
        "reach: noise along ellipses": lambda: two(Matrix([[4 * y**2, -2 * x * y], [-2 * x * y, x**2]])),
        "reach: a wall one sd from the middle of a wide law": lambda: overdamped(
            1, total(theta**2 / 50 + 1 / (theta - 5) ** 2)
        ),
        "reach: a wall of momenta in a wide law": lambda: underdamped(
            total(theta**2 / 50 + 1 / (theta - 5) ** 2 + p**2 / 2)
        ),
        "reach: a speed that vanishes with theta": lambda: at_speed(theta),
        "reach: a speed that vanishes at the tops of a wave": lambda: at_speed(sin(theta)),
        "reach: a speed that vanishes with the mean": lambda: at_speed(total(theta) / n),
        "reach: a speed that vanishes inside of a half line": lambda: at_speed(rate * (rate - 1), rate),
        "reach: a speed that vanishes, under momenta drawn anew": lambda: recipe(
            "drawn",
            (theta, p),
            U + total(p**2) / 2,
            {},
            {(theta, p): -theta},
            jumps={"R": refresh(p)},
            scheme="Euler R",
        ),
        "reach: a pendulum of which one coordinate keeps its side": lambda: two({x: 1}, Q={(x, y): y}),
        "reach: noise of a binary block that is 0 at either value": lambda: by_choice(
            choice * (1 - choice), total(theta**2 / 2 - choice * theta)
        ),
        "reach: the least power of a wall beside the middle": lambda: overdamped(
            1, total(theta**2 / 2 - log(Abs(theta - 2)))
        ),
        "reach: three charges of the least power": lambda: three(-log(Abs(x - y) * Abs(y - z) * Abs(x - z))),
        "reach: a wall of a law far from 0": lambda: overdamped(
            1, total((theta - 1000) ** 2 / 2 - log((theta - 1001) ** 2))
        ),
        "reach: a line without noise beside the middle": lambda: isotropic((x + y - 4) ** 2),
        "reach: a line without noise through a narrow law": lambda: isotropic(
            (x + y - Rational(1, 100)) ** 2, 5000 * (x**2 + y**2)
        ),
        "reach: a line without noise through a law far from 0": lambda: isotropic(
            (x + y - 2001) ** 2, ((x - 1000) ** 2 + (y - 1000) ** 2) / 2
        ),
        "reach: a ring without noise of twice the law's width": lambda: isotropic((x**2 + y**2 - 4) ** 2),
        "reach: a ring without noise in a wide law": lambda: isotropic((x**2 + y**2 - 400) ** 2, (x**2 + y**2) / 400),
        "reach: charges held apart in a wide law": lambda: two(
            {x: 1, y: 1}, (x**2 + y**2) / 50 - 2 * log(Abs(x - y - 6))
        ),
        "reach: a wall at 0": lambda: overdamped(theta**2),
        "reach: two walls": lambda: overdamped((theta**2 - 2) ** 2 / (1 + theta**2) ** 2),
        "reach: friction of 0 by default": lambda: underdamped(U + total(p**2) / 2, nonnegative("C", default=0.0)),
        "reach: coupling of 0 by default": lambda: recipe(
            "loose", (theta, p), U + total(p**2) / 2, {p: 1}, {(theta, p): -nonnegative("k", default=0.0)}
        ),
        "reach: a thermostat on its own": lambda: recipe(
            "alone", (theta, p, xi), U + total(p**2) / 2 + n * xi**2 / 2, {p: 1}, TURNS
        ),
        "reach: Hamiltonian motion": lambda: underdamped(U + total(p**2) / 2, 0),
        "reach: a Nose-Hoover thermostat without noise": lambda: recipe(
            "nose-hoover",
            (theta, p, xi),
            U + total(p**2) / 2 + n * mu * xi**2 / 2,
            {},
            {**TURNS, (p, xi): p / (n * mu)},
        ),
        "reach: a wall on the top between two wells": lambda: overdamped(theta**2, total((theta**2 - 1) ** 2) / 4),
        "reach: noise of the mean square, of one site": lambda: overdamped(total(theta**2) / n),
        "reach: momentum drawn anew at a rate of 0": lambda: recipe(
            "never",
            (theta, p),
            U + total(p**2) / 2,
            {},
            TURNS,
            jumps={"R": refresh(p, rate=nonnegative("nu", default=0.0))},
            scheme="B A R A B",
        ),
        "reach: a binary block that no jump draws": lambda: recipe(
            "undrawn", (theta, choice), total(theta**2 / 2 - choice * theta), {theta: 1}, scheme="Euler"
        ),
        "reach: a thermostat of equal springs keeps the plane of motion": lambda: nose_hoover_langevin().bind(
            U=Energy(theta, U=total(theta**2) / 2)
        ),
        "reach: no noise in the left one of two wells": lambda: half_noisy(2 * (x**2 - 1) ** 2),
        "reach: a well without end in the law between two halves": lambda: overdamped(
            1, total(theta**2) / 2 - total(log(theta**2))
        ),
        "reach: a diagonal without noise": lambda: two({x: (x - y) ** 2, y: (x - y) ** 2}),
        "reach: no noise across a diagonal": lambda: two(
            Matrix([[1 + (x - y) ** 2, 1 - (x - y) ** 2], [1 - (x - y) ** 2, 1 + (x - y) ** 2]])
        ),
        "reach: two charges of one line": lambda: two({x: 1, y: 1}, (x**2 + y**2) / 2 - 2 * log(Abs(x - y))),
        "reach: a diagonal of infinite energy": lambda: two({x: 1, y: 1}, (x**2 + y**2) / 2 + 1 / (x - y) ** 2),
        "reach: momenta before a diagonal of infinite energy": lambda: momenta((x**2 + y**2) / 2 - log(Abs(x - y)) / 2),
        "reach: a barrier in every site": lambda: underdamped(total(theta**2 + 1 / theta**2 + p**2) / 2),
        "reach: a wall in momenta of a long chain of thermostats": lambda: nose_hoover_chain(total(1 / p**2)),
        "reach: a level of U of infinite energy": lambda: overdamped(
            1, U + 1 / (U - 1) ** 2, marginal=U + 1 / (U - 1) ** 2
        ),
        "reach: the side of a triangle beside positive coordinates": lambda: simplex((1 - rise - run) ** 2),
        "reach: the metric of a triangle": lambda: dikin((2, 1, 2), (1, 3, 3), (-1, -1, 2)),
        "reach: a circle without noise": lambda: two(
            {x: (x**2 + y**2 - 1) ** 2, y: (x**2 + y**2 - 1) ** 2}, (x**2 + y**2) / 2
        ),
        "reflection: a box with a barrier inside": lambda: overdamped((box - 1) ** 2, block=box),
        "angle: a circle cut by two barriers, one at the top of H": lambda: overdamped(
            sin(angle) ** 2, -total(cos(angle)), angle
        ),
        "angle: a circle cut by two barriers": lambda: overdamped(sin(angle) ** 2, block=angle),
        "angle: a momentum that no noise reaches": lambda: recipe(
            "pendulum", (angle, p), potential(angle) + total(p**2) / 2, {}, {(angle, p): -1}
        ),
    },
    "explosion": {  # chains run off to infinity (H.4)
        "explosion: Cauchy along a diagonal, and noise that grows there": lambda: two(
            {
                (x, x): (1 + (x + y) ** 2) ** 2 + 1,
                (x, y): (1 + (x + y) ** 2) ** 2 - 1,
                (y, y): (1 + (x + y) ** 2) ** 2 + 1,
            },
            log(1 + (x + y) ** 2) + (x - y) ** 2 / 2,
        ),
        "explosion: a curl that grows faster than a Cauchy law falls": lambda: recipe(
            "swept", (x, y), log(1 + x**2) + y**2 / 2, {y: 1}, {(x, y): -((1 + x**2) ** 2)}
        ),
        "explosion: noise exp(U) in three coordinates": lambda: recipe(
            "outwards", (x, y, z), U3, dict.fromkeys((x, y, z), exp(U3)), target=(x, y, z), scheme="Euler"
        ),
        "explosion: noise a little above exp(x^2/2)": lambda: overdamped(exp(0.55 * theta**2), total(theta**2) / 2),
        "explosion: noise exp(x^2)": lambda: overdamped(exp(theta**2), total(theta**2) / 2),
        "explosion: Student under noise of the sixth power": lambda: overdamped(
            (1 + theta**2) ** 3, 2 * total(log(1 + theta**2))
        ),
    },
    "definite": {  # D is negative where the law has mass
        "definite: noise that is negative far from 0, under an open U": lambda: overdamped(10 + theta),
        "definite: noise of a sum of sites, under an open U": lambda: underdamped(
            U + total(p**2) / 2, 2 + total(theta) / 5
        ),
        "definite: noise negative one sd from the middle": lambda: overdamped(1 - theta**2 / 25, total(theta**2) / 50),
        "definite: noise negative along a diagonal of a wide law": lambda: two(
            {x: 1 - (x + y) ** 2 / 5000, y: 1}, (x**2 + y**2) / 2000
        ),
    },
    "boundary": {  # chains leave, or are reflected where mass flows through (H.3)
        "boundary: a curl through an end where D vanishes": lambda: half_line(scale + y**2 / 2, scale, 1),
        "boundary: a momentum beside noise that vanishes at an end": lambda: half_line(scale + y**2 / 2, scale**2, -1),
        "boundary: constant noise on a half line": lambda: overdamped(1, potential(rate), rate),
        "boundary: constant noise between 0 and 1": lambda: overdamped(1, potential(share), share),
        "boundary: a momentum runs off a half line": lambda: recipe(
            "runaway", (rate, p), potential(rate) + total(p**2) / 2, {p: 1}, {(rate, p): -1}
        ),
        "boundary: Gamma of shape 3/2 under constant noise": lambda: overdamped(1, total(rate - log(rate) / 2), rate),
        "boundary: Beta(1, 1) under constant noise": lambda: overdamped(2, total(share), share),
        "reflection: a curl that flows through an end": lambda: walled_two({walled: 1, y: 1}, {(walled, y): 1}),
        "reflection: noise shared with what is not reflected": lambda: walled_two({walled: 1, y: 1, (walled, y): 0.5}),
        "reflection: a momentum beside noise": lambda: recipe(
            "both", (box, p), potential(box) + total(p**2) / 2, {box: 1, p: 1}, {(box, p): -1}
        ),
        "reflection: a momentum about 1": lambda: bouncing(total((p - 1) ** 2) / 2),
        "reflection: momenta with an energy of their sum": lambda: bouncing(total(p**2) / 2 + total(p) ** 2 / 4),
        "reflection: an angle for a momentum": lambda: isokinetic(box),
    },
    "smooth": {  # jumps and singularities (H.6)
        "angle: D that jumps": lambda: overdamped(2 + tanh(1 / sin(angle)), block=angle),
        "smooth: tanh(1/x)": lambda: overdamped(2 + tanh(1 / theta)),
        "smooth: atan(1/x)": lambda: overdamped(2 + atan(1 / theta)),
        "smooth: tanh(1/(x-1)) in Q": lambda: two({x: 1, y: 1}, Q={(x, y): 2 + tanh(1 / (x - 1))}),
        "smooth: a network with a threshold": lambda: overdamped(learned(Threshold(0.1, 2.0))(theta)),
        "smooth: a network that shrinks to 0": lambda: overdamped(1 + learned(Hardshrink())(theta) ** 2),
        "smooth: a network that rounds": lambda: underdamped(U + total(p**2) / 2, learned(Rounded())(theta, p)),
        "smooth: a pole of Q": lambda: two({x: 1, y: 1}, Q={(x, y): tan(x)}),
        "smooth: H with the log of a negative number": lambda: overdamped(
            1, log(1 - total(theta**4) / 4) - total(theta**4) / 4
        ),
        "smooth: H with a step": lambda: overdamped(1, total(theta**2) / 2 + total(atan(1 / theta))),
        "smooth: H with a sawtooth": lambda: overdamped(1, total(theta**2) / 2 + total(atan(tan(theta)))),
    },
    "declaration": {
        "angle: H of another period": lambda: overdamped(1, total(angle**2) / 2, angle),
        "angle: H of twice the period": lambda: overdamped(1, total(cos(angle / 2)), angle),
        "angle: D of another period": lambda: overdamped(2 + sin(angle / 2), block=angle),
        "angle: H of a mean angle": lambda: overdamped(1, cos(total(angle) / n), angle),
        "jump: momenta, each Gaussian given the other, drawn together": lambda: drawn_together(
            (u**2 + v**2 + u**2 * v**2) / 2
        ),
        "jump: a saddle of momenta, drawn together": lambda: drawn_together((u**2 + v**2) / 2 + 2 * u * v),
        "jump: a coordinate of an open energy, drawn with its momentum": lambda: drawn_together(
            (u**2 + v**2) / 2, (u, x)
        ),
        "jump: a momentum twice": lambda: drawn_together((u**2 + v**2) / 2, (u, u)),
    },
}
WRONG = {name: (topic, declare) for topic, cases in BY_TOPIC.items() for name, declare in cases.items()}
"""Name -> the topic of the question that must not pass, and the recipe, which may not be one: "declaration"."""


def ccadl():
    """Covariance-controlled adaptive Langevin. Shang, Zhu, Leimkuhler & Storkey 2015."""
    S = positive("S", default=0.3, per=theta, doc="covariance of the gradient")
    return recipe(
        "ccadl",
        (theta, p, xi),
        U + total(p**2) / 2 + n * mu * (xi - A) ** 2 / 2,
        {p: A + S},
        {**TURNS, (p, xi): p / (n * mu)},
    )


def aldi():
    """Affine-invariant Langevin in the mean field of its sites. Garbuno-Inigo, Nuesken & Reich 2020."""
    spread = total(theta**2) / n - (total(theta) / n) ** 2
    return recipe("aldi", (theta,), U, {theta: spread}, scheme="Euler")


def riemannian():
    """Momenta with a dense mass of the position, which drives the search for a proof to long formulas."""
    G = Matrix([[1 + x**2, x * y / 2], [x * y / 2, 1 + y**2]])
    kinetic = (Matrix([[u, v]]) * G.adjugate() * Matrix([u, v]))[0] / G.det() / 2
    return recipe(
        "riemannian",
        (x, y, u, v),
        potential(x, y) + kinetic + temperature * log(G.det()) / 2,
        {(u, u): gamma * G[0, 0], (u, v): gamma * G[0, 1], (v, v): gamma * G[1, 1]},
        {(x, u): -1, (y, v): -1},
        target=(x, y),
        scheme="Euler",
    )


def thermostats_in_a_chain(links):
    """A Nose-Hoover chain whose last thermostat has noise."""
    first, *others = chain = [scalar(f"eta{k}") for k in range(links)]
    H = U + total(p**2) / 2 + mu * (n * first**2 + sum(e**2 for e in others)) / 2
    Q = {**TURNS, (p, first): p / (n * mu), (first, others[0]): first / mu}
    Q |= {(a, b): a / mu for a, b in zip(others, others[1:])}
    return recipe("chain", (theta, p, *chain), H, {chain[-1]: gamma}, Q)


RIGHT = {
    "a chain of five thermostats": lambda: thermostats_in_a_chain(5),
    "noise for one of two blocks that change places": lambda: recipe(
        "exchanged", (r, s), U_r + U_s / 2, {r: 1}, target=(r, s), jumps={"S": swap(r, s)}, scheme="Euler S"
    ),
    "noise that a binary block multiplies": lambda: by_choice(
        1 + choice * theta**2, total(theta**2 / 2 - choice * theta)
    ),
    "a curl that vanishes at an end": lambda: half_line(scale + y**2 / 2, scale, scale),
    "a curl through an end where exp(-H) vanishes": lambda: half_line(scale - 2 * log(scale) + y**2 / 2, scale, 1),
    "a momentum beside noise, where exp(-H) vanishes": lambda: half_line(scale - log(scale) / 2 + y**2 / 2, scale, -1),
    "noise with a kink in its slope": lambda: two({x: 1 + Max(0, x**2 - 1) ** 2, y: 1 + Abs(y) ** 3}),
    "a wall with a gate of noise": lambda: two({x: x**2 + Max(0, y) ** 2, y: 1}, (x**2 + y**2) / 2),
    "a wall with a gate in the energy": lambda: two({x: 1, y: 1}, (x**2 + y**2) / 2 + Max(0, 1 - y**2) ** 2 / x**2),
    "a block without noise at 0, drawn anew": lambda: recipe(
        "crossing", (x, y), (x**2 + y**2) / 2, {x: x**2, y: 1}, target=y, jumps={"R": refresh(x)}, scheme="Euler R"
    ),
    "noise that grows towards the top of a barrier": lambda: overdamped(
        exp((theta**2 - 1) ** 2 / 2), total((theta**2 - 1) ** 2)
    ),
    "noise exp(x^4/5) under x^4/4": lambda: overdamped(exp(theta**4 / 5), total(theta**4) / 4),
    "two wells eighty apart": lambda: overdamped(
        1 + theta**2, -total(log(exp(-(theta**2) / 2) + exp(-((theta - 80) ** 2) / 2)))
    ),
    "Cauchy kinetics of a scale of theta": lambda: underdamped(U + total(log(1 + p**2 * exp(-2 * theta)) + theta)),
    "Laplace kinetics of a scale of theta": lambda: underdamped(U + total(Abs(p) * (1 + theta**2) - log(1 + theta**2))),
    "a pole of the plane that an integral allows": lambda: two(
        {x: 1, y: 1}, (x**2 + y**2) / 2 + Rational(9, 10) * log(x**2 + y**2)
    ),
    "a pole at a point of three coordinates": lambda: three(log(x**2 + y**2 + z**2)),
    "an exponential law of a rate that theta sets": lambda: beside(
        rate, total(rate * (1 + theta**2) - log(1 + theta**2)), rate
    ),
    "an angle that follows theta": lambda: beside(angle, -total(cos(angle - theta))),
    "overdamped Langevin": lambda: overdamped(1),
    "overdamped with a metric": lambda: overdamped(1 + theta**2 / (1 + theta**2)),
    "underdamped Langevin": lambda: underdamped(U + total(p**2) / 2),
    "friction of theta": lambda: underdamped(U + total(p**2) / 2, 1 + theta**2),
    "Laplace-like kinetics": lambda: underdamped(U + total(sqrt(1 + p**2))),
    "Laplace kinetics": lambda: underdamped(U + total(Abs(p))),
    "Student kinetics": lambda: underdamped(U + 3 * total(log(1 + p**2 / 5))),
    "quartic kinetics": lambda: underdamped(U + total(p**4) / 4 + total(p**2) / 2),
    "mass of theta, right at every temperature": lambda: underdamped(
        U + total(p**2 / (1 + theta**2)) / 2 + temperature * total(log(1 + theta**2)) / 2
    ),
    "momentum drawn anew": lambda: recipe(
        "refreshed", (theta, p), U + total(p**2) / 2, {}, TURNS, jumps={"R": refresh(p)}, scheme="R B A B"
    ),
    "momenta of one Gaussian, drawn anew together": lambda: drawn_together((u**2 + v**2 + u * v) / 2),
    "generalised Langevin": lambda: recipe(
        "generalised-langevin", (theta, p, r), U + total(p**2 + r**2) / 2, {r: gamma}, {**TURNS, (p, r): -1}
    ),
    "third-order Langevin": lambda: recipe(
        "third-order", (theta, p, r), U + total(p**2) / 2 + total(r**2) / 2, {r: 2 * gamma}, {**TURNS, (p, r): -gamma}
    ),
    "underdamped by the word U B U": lambda: underdamped(U + total(p**2) / 2, pieces={"U": (theta, p)}, scheme=None),
    "Nose-Hoover-Langevin": nose_hoover_langevin,
    "Nose-Hoover chain with noise at its end": nose_hoover_chain,
    "CCAdL": ccadl,
    "ALDI": aldi,
    "a thermostat per site": lambda: recipe(
        "site-thermostat",
        (theta, p, r),
        U + total(p**2) / 2 + total(mu * (r - A) ** 2) / 2,
        {p: A},
        {**TURNS, (p, r): p / mu},
    ),
    "dense D and Q": lambda: two(Matrix([[1 + y**2, x / 4], [x / 4, 1 + x**2]]), Q={(x, y): x * y}),
    "one noise, turned by Q": lambda: two(Matrix([[1, 1], [1, 1]]), Q={(x, y): 1}),
    "non-reversible": lambda: two({x: 1, y: 1}, Q={(x, y): 3}),
    "banana": lambda: two({x: 1, y: 1}, x**2 / 2 + 5 * (y - x**2) ** 2),
    "funnel": lambda: two({x: 1, y: 1}, x**2 / 18 + x / 2 + exp(-x) * y**2 / 2),
    "funnel of two sites": lambda: recipe(
        "funnel",
        (theta, xi),
        xi**2 / 18 + total(theta**2) * exp(-xi) / 2 + n * xi / 2,
        {theta: 1, xi: 1},
        scheme="Euler",
    ),
    "horseshoe": lambda: recipe(
        "horseshoe",
        (theta, rate),
        total(theta**2 / (2 * rate**2) + log(rate) + log(1 + rate**2)),
        {theta: 1, rate: rate**2},
        scheme="Euler",
    ),
    "a common scale of all sites": lambda: recipe(
        "scaled",
        (theta, scale),
        total(theta**2) / (2 * scale**2) + n * log(scale) + log(1 + scale**2),
        {theta: 1, scale: scale**2},
        scheme="Euler",
    ),
    "a Cauchy block and a width that falls with it": lambda: two(
        {x: 1, y: 1}, x**2 * (1 + y**2) / 2 + log(1 + y**2) / 2
    ),
    "noise in one half of a bowl": lambda: half_noisy(x**2 / 2),
    "copies of U of two weights": lambda: replicas(U_r + U_s / 2),
    "copies of U with a spring": lambda: replicas(U_r + U_s + A * total((r - s) ** 2)),
    "a copy of U of a negative weight under a quartic": lambda: replicas(U_r - U_s / 2 + total(s**4)),
    "a marginal of twice U": lambda: overdamped(1, 2 * U, marginal=2 * U),
    "a choice that U does not see": lambda: beside_a_choice(U),
    "two charges that pass each other": lambda: two({x: 1, y: 1}, (x**2 + y**2) / 2 - log(Abs(x - y)) / 2),
    "a point of infinite energy in the plane": lambda: two({x: 1, y: 1}, (x**2 + y**2) / 2 - 2 * log(x**2 + y**2)),
    "a diagonal of high energy": lambda: two({x: 1, y: 1}, (x**2 + y**2) / 2 + 9 / (1 + (x - y) ** 2)),
    "momenta before a kink along a diagonal": lambda: momenta((x**2 + y**2) / 2 + 2 * Abs(x - y)),
    "positive coordinates with noise past a line": lambda: simplex(1 + (1 - rise - run) ** 2),
    "noise along brackets": lambda: recipe(
        "heisenberg",
        (x, y, z),
        (x**2 + y**2 + z**2) / 2,
        Matrix([[1, 0, -y / 2], [0, 1, x / 2], [-y / 2, x / 2, (x**2 + y**2) / 4]]),
        target=(x, y, z),
        scheme="Euler",
    ),
    "noise that vanishes on an axis, which motion crosses": lambda: two({x: 1, y: x**2}),
    "noise of each coordinate by the other": lambda: two({x: y**2, y: x**2}),
    "noise exp(U) in two coordinates": lambda: two(dict.fromkeys((x, y), exp(U2)), U2),
    "a network with kinks": lambda: overdamped(learned(ReLU())(theta)),
    "Huber's kinetic energy": lambda: underdamped(
        U + total(Piecewise((p**2 / 2, Abs(p) < A), (A * Abs(p) - A**2 / 2, True))), scheme="Euler"
    ),
    "noise that a relation of parameters makes positive": lambda: overdamped(late - early, requires=(early < late,)),
    "a positive auxiliary block, seen by its log": lambda: mapped(
        recipe("wide", (theta, rate), U + total(rate - 2 * log(rate)), {theta: rate, rate: rate}, scheme="Euler"),
        rate=vector("log_rate"),
        by=exp,
    ),
    "noise that grows without end": lambda: overdamped(exp(theta), total(theta**2) / 2),
    "noise that dies out": lambda: overdamped(1 / (1 + exp(-theta)), total(theta**2) / 2),
    "a positive scale that a curl drives": lambda: recipe(
        "driven",
        (u, scale),
        u**2 / 2 + scale - 2 * log(scale),
        {scale: scale},
        {(u, scale): scale},
        target=(u, scale),
        scheme="Euler",
    ),
    "Student target": lambda: overdamped(1, 3 * total(log(1 + theta**2 / 5))),
    "Student target, noise that grows": lambda: overdamped(1 + theta**2, 3 * total(log(1 + theta**2 / 5))),
    "double well": lambda: overdamped(1, 2 * total((theta**2 - 1) ** 2)),
    "Laplace target": lambda: overdamped(1, total(Abs(theta))),
    "Cox-Ingersoll-Ross": lambda: overdamped(rate, total(rate - log(rate)), rate, pieces={"C": rate}),
    "Cox-Ingersoll-Ross that touches 0": lambda: overdamped(
        rate, total(rate + log(rate) / 2), rate, pieces={"C": rate}
    ),
    "geometric": lambda: overdamped(rate**2, total(rate - log(rate)), rate),
    "Gamma of shape 3 under constant noise": lambda: overdamped(1, total(rate - 2 * log(rate)), rate),
    "Jacobi": lambda: overdamped(share * (1 - share), -total(log(share) + log(1 - share)), share),
    "reflected on a half line": lambda: recipe(
        "reflected", (rate,), potential(rate), {rate: 1}, pieces={"E": numerical(rate, "reflected")}, scheme="E"
    ),
    "reflected on a half line, noise that varies": lambda: overdamped(
        1 + rate, block=rate, pieces={"E": numerical(rate, "reflected")}
    ),
    "underdamped on a half line": lambda: bouncing(total(p**2) / 2, rate, pieces={"A": numerical(rate, "reflected")}),
    "reflected in a box": lambda: overdamped(1, block=box),
    "reflected in a box, noise that varies": lambda: overdamped(1 + box**2, block=box),
    "reflected in a box, with a curl that vanishes at its ends": lambda: walled_two(
        {walled: 1, y: 1}, {(walled, y): 1 - walled**2}
    ),
    "underdamped in a box": lambda: bouncing(total(p**2) / 2),
    "relativistic in a box": lambda: bouncing(total(sqrt(1 + p**2))),
    "von Mises": lambda: overdamped(1, -A * total(cos(angle)), angle),
    "an angle, noise that vanishes at one point": lambda: overdamped(1 + cos(angle), block=angle),
    "an hour of the day": lambda: overdamped(1, -total(cos(pi * hour / 12)), hour),
    "underdamped on an angle": lambda: bouncing(total(p**2) / 2, angle),
    "isokinetic on a line": lambda: isokinetic(theta),
    "isokinetic on an angle": lambda: isokinetic(angle),
    "microcanonical in the plane": lambda: recipe(
        "microcanonical",
        (x, y, heading),
        potential(x, y),
        {heading: A},
        {(x, heading): sin(heading), (y, heading): -cos(heading)},
        target=(x, y),
    ),
    "Riemannian Langevin in two coordinates": riemannian,
    "an open metric": lambda: overdamped(function("G", theta, sign="positive")),
    "a mass per site": lambda: underdamped(U + total(p**2 / positive("m", default=1.0, per=theta)) / 2),
    "momenta turned by a skew operator": lambda: turned(total(p**2) / 2),
    "magnetic motion": lambda: recipe(
        "magnetic",
        (x, y, u, v),
        potential(x, y) + (u**2 + v**2) / 2,
        {u: 1, v: 1},
        {(x, u): -1, (y, v): -1, (u, v): real("B", default=2.0)},
        target=(x, y),
    ),
}
"""Recipes that the certificate must call exact, beside the stock samplers."""

ON_CIRCLE, IN_BOX, ABOVE_0 = -total(2 * cos(angle) + sin(2 * angle)), 2 * total(box), 3 * total(rate)
ACCEPTED = {
    "MALA on an angle": lambda: overdamped(1, ON_CIRCLE, angle),
    "MALA on an angle, noise that varies": lambda: overdamped(2 + cos(angle), ON_CIRCLE, angle),
    "MALA in a box": lambda: overdamped(1, IN_BOX, box),
    "MALA in a box, noise that varies": lambda: overdamped(1 + box**2, IN_BOX, box),
    "MALA on a half line": lambda: recipe(
        "half", (rate,), ABOVE_0, {rate: 1}, pieces={"E": numerical(rate, "reflected")}, scheme="E"
    ),
}
"""Recipes of one block of a symbolic energy that is led back into its domain, and that acceptance makes exact."""

NOT_ACCEPTED = {
    "an angle by predicted points": lambda: overdamped(1, block=angle, pieces={"Euler": numerical(angle, "heun")}),
    "a box beside a momentum by Euler": lambda: bouncing(total(p**2) / 2, scheme="Euler"),
    "quartic momenta that an operator turns": lambda: turned(total(p**4) / 4, scheme="Euler"),
    "momenta with a mass that an operator turns": lambda: turned(total(positive("m", default=1.0, per=theta) * p**2)),
}
"""Neighbours of recipes that acceptance makes exact, whose path has no density that is known."""
