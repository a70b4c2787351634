"""Recipes for the certificate: right ones of the literature, wrong ones with the question that must catch each.

Each entry makes its Recipe when it is called, since some are refused when they are declared.
"""

from sympy import Abs, Matrix, Max, atan, cos, exp, log, pi, sin, sqrt, tan, tanh

from recipe import (
    Energy,
    Recipe,
    function,
    nonnegative,
    numerical,
    positive,
    potential,
    real,
    refresh,
    scalar,
    temperature,
    total,
    vector,
)

theta, p, r, xi, eta = vector("theta"), vector("p"), vector("r"), scalar("xi"), scalar("eta")
x, y, z, u, v = (scalar(name) for name in "xyzuv")
rate, scale = vector("rate", domain="positive"), scalar("scale", domain="positive")
choice = vector("choice", domain="binary")
share = vector("share", domain="fraction")
hour, heading = vector("hour", domain=("periodic", 24)), scalar("heading", domain="periodic")
angle, turn = vector("angle", domain="periodic"), vector("turn", domain="periodic")
box, walled = vector("box", domain=(-1, 2)), scalar("walled", domain=(-1, 1))
A, gamma, mu = positive("A", default=1.0), positive("gamma", default=1.0), positive("mu", default=1.0)
U, n = potential(theta), total(1)


def overdamped(D, H=None, block=theta, **more):
    """dtheta = (-D dH/dtheta + D') dt + sqrt(2D) dW."""
    H = potential(block) if H is None else H
    return Recipe(name="overdamped", state=(block,), H=H, D={block: D}, scheme="Euler", **more)


def underdamped(H, friction=gamma, **more):
    """A momentum with friction."""
    return Recipe(name="underdamped", state=(theta, p), target=theta, H=H, D={p: friction}, Q={(theta, p): -1}, **more)


def two(D, H=None, Q=None, **more):
    """Two explicit coordinates, a target both."""
    H = potential(x, y) if H is None else H
    return Recipe(name="two", state=(x, y), target=(x, y), H=H, D=D, Q=Q or {}, scheme="Euler", **more)


def walled_two(D, Q=None):
    """Two coordinates, one in a box."""
    H = potential(walled, y)
    return Recipe(name="walled", state=(walled, y), target=(walled, y), H=H, D=D, Q=Q or {}, scheme="Euler")


def bouncing(kinetic, block=None, **more):
    """Underdamped motion in a box, or on another domain."""
    block = box if block is None else block
    H = potential(block) + kinetic
    return Recipe(name="bouncing", state=(block, p), target=block, H=H, D={p: gamma}, Q={(block, p): -1}, **more)


def isokinetic(block):
    """dx = cos(turn) dt: a velocity of length 1 in the plane, whose direction is an angle. Minary et al. 2003."""
    H = potential(block)
    return Recipe(name="isokinetic", state=(block, turn), target=block, H=H, D={turn: A}, Q={(block, turn): sin(turn)})


def half_noisy(H):
    """Underdamped motion with noise for x > 0 alone."""
    return Recipe(name="half-noisy", state=(x, y), target=x, H=H + y**2 / 2, D={y: Max(0, x)}, Q={(x, y): -1})


def nose_hoover_langevin():
    """Noise on the thermostat alone. Leimkuhler, Noorizadeh & Theil 2009."""
    return Recipe(
        name="nose-hoover-langevin",
        state=(theta, p, xi),
        target=theta,
        H=U + total(p**2) / 2 + n * mu * xi**2 / 2,
        D={xi: gamma / (n * mu)},
        Q={(theta, p): -1, (p, xi): p / (n * mu)},
    )


def thermostat(H, coupling=1, **more):
    """A Nose-Hoover thermostat with noise on the momenta."""
    return Recipe(
        name="thermostat",
        state=(theta, p, xi),
        target=theta,
        H=U + H,
        D={p: A},
        Q={(theta, p): -1, (p, xi): coupling * p / (n * mu)},
        **more,
    )


WRONG = {
    # ---- improper: no law is left invariant that is one (H.1)
    "improper: concave target": ("normalisable", lambda: overdamped(1, total(-(theta**2)) / 2)),
    "improper: tail of log(1+x^2)/4": ("normalisable", lambda: overdamped(1, total(log(1 + theta**2)) / 4)),
    "improper: Cauchy to the half": ("normalisable", lambda: overdamped(1, total(log(1 + theta**2)) / 2)),
    "improper: Gamma shape below 0": ("normalisable", lambda: overdamped(rate, total(rate + log(rate) * 3 / 2), rate)),
    "improper: flat target": ("normalisable", lambda: overdamped(1, total(cos(theta)))),
    "improper: momentum free along a diagonal": (
        "normalisable",
        lambda: Recipe(
            name="ridge",
            state=(theta, p, r),
            target=theta,
            H=U + total((p - r) ** 4) / 4,
            D={p: 1, r: 1},
            Q={(theta, p): -1},
        ),
    ),
    "improper: two ridges": (
        "normalisable",
        lambda: Recipe(
            name="ridges",
            state=(theta, p, r),
            target=theta,
            H=U + total(p**4 + r**4 - 2 * p**2 * r**2),
            D={p: 1, r: 1},
            Q={(theta, p): -1},
        ),
    ),
    "improper: saddle of two coordinates": ("normalisable", lambda: two({x: 1, y: 1}, x * y)),
    "improper: coordinates held apart only": ("normalisable", lambda: two({x: 1, y: 1}, (x - y) ** 2)),
    "improper: bound energy without a bound": (
        "normalisable",
        lambda: two({x: 1, y: 1}).bind(U=Energy((x, y), U=x**2 * y**2)),
    ),
    "improper: thermostat of a cubic energy": ("normalisable", lambda: thermostat(total(p**2) / 2 + n * xi**3 / 3)),
    # ---- the marginal is another one (H.2)
    "marginal: mass of theta without its log": (
        "marginal",
        lambda: underdamped(U + total(p**2 / (1 + theta**2)) / 2),
    ),
    "marginal: log of the mass doubled": (
        "marginal",
        lambda: underdamped(U + total(p**2 / (1 + theta**2)) / 2 + temperature * total(log(1 + theta**2))),
    ),
    "marginal: bound, where the opaque one fails": (
        "marginal",
        lambda: underdamped(U + total(p**2 / (1 + theta**2)) / 2).bind(U=Energy(theta, U=total(theta**2) / 2)),
    ),
    "marginal: the momentum shifted and stiffened": (
        "marginal",
        lambda: underdamped(U + total(p**2 + (p - theta) ** 2) / 2),
    ),
    "marginal: U twice": ("marginal", lambda: underdamped(2 * U + total(p**2) / 2)),
    "marginal: a quartic momentum of a mass of theta": (
        "marginal",
        lambda: underdamped(U + total(p**4 * (1 + theta**2)) / 4),
    ),
    "marginal: a thermostat coupled to theta": (
        "marginal",
        lambda: thermostat(total(p**2) / 2 + n * mu * xi**2 * (1 + (total(theta) / n) ** 2) / 2),
    ),
    # ---- the noise does not reach everything (H.5)
    "reach: one noise for two coordinates": ("reached", lambda: two(Matrix([[1, 1], [1, 1]]))),
    "reach: noise along circles": ("reached", lambda: two(Matrix([[y**2, -x * y], [-x * y, x**2]]))),
    "reach: noise along ellipses": ("reached", lambda: two(Matrix([[4 * y**2, -2 * x * y], [-2 * x * y, x**2]]))),
    "reach: a wall at 0": ("reached", lambda: overdamped(theta**2)),
    "reach: two walls": ("reached", lambda: overdamped((theta**2 - 2) ** 2 / (1 + theta**2) ** 2)),
    "reach: friction of 0 by default": (
        "reached",
        lambda: underdamped(U + total(p**2) / 2, nonnegative("C", default=0.0)),
    ),
    "reach: coupling of 0 by default": (
        "reached",
        lambda: Recipe(
            name="loose",
            state=(theta, p),
            target=theta,
            H=U + total(p**2) / 2,
            D={p: 1},
            Q={(theta, p): -nonnegative("k", default=0.0)},
        ),
    ),
    "reach: a thermostat on its own": (
        "reached",
        lambda: Recipe(
            name="alone",
            state=(theta, p, xi),
            target=theta,
            H=U + total(p**2) / 2 + n * xi**2 / 2,
            D={p: 1},
            Q={(theta, p): -1},
        ),
    ),
    "reach: Hamiltonian motion": ("reached", lambda: underdamped(U + total(p**2) / 2, 0)),
    "reach: a Nose-Hoover thermostat without noise": (
        "reached",
        lambda: Recipe(
            name="nose-hoover",
            state=(theta, p, xi),
            target=theta,
            H=U + total(p**2) / 2 + n * mu * xi**2 / 2,
            D={},
            Q={(theta, p): -1, (p, xi): p / (n * mu)},
        ),
    ),
    "reach: a wall on the top between two wells": (
        "reached",
        lambda: overdamped(theta**2, total((theta**2 - 1) ** 2) / 4),
    ),
    "reach: noise of the mean square, of one site": ("reached", lambda: overdamped(total(theta**2) / n)),
    "reach: momentum drawn anew at a rate of 0": (
        "reached",
        lambda: Recipe(
            name="never",
            state=(theta, p),
            target=theta,
            H=U + total(p**2) / 2,
            D={},
            Q={(theta, p): -1},
            jumps={"R": refresh(p, rate=nonnegative("nu", default=0.0))},
            scheme="B A R A B",
        ),
    ),
    "reach: a binary block that no jump draws": (
        "reached",
        lambda: Recipe(
            name="undrawn",
            state=(theta, choice),
            target=theta,
            H=total((theta - choice) ** 2) / 2,
            D={theta: 1},
            scheme="Euler",
        ),
    ),
    "reach: a thermostat of equal springs keeps the plane of motion": (
        "reached",
        lambda: nose_hoover_langevin().bind(U=Energy(theta, U=total(theta**2) / 2)),
    ),
    "reach: no noise in the left one of two wells": ("reached", lambda: half_noisy(2 * (x**2 - 1) ** 2)),
    "reach: a well without end in the law between two halves": (
        "reached",
        lambda: overdamped(1, total(theta**2) / 2 - total(log(theta**2))),
    ),
    "reach: a diagonal without noise": ("reached", lambda: two({x: (x - y) ** 2, y: (x - y) ** 2})),
    "reach: no noise across a diagonal": (
        "reached",
        lambda: two(Matrix([[1 + (x - y) ** 2, 1 - (x - y) ** 2], [1 - (x - y) ** 2, 1 + (x - y) ** 2]])),
    ),
    "reach: a circle without noise": (
        "reached",
        lambda: two({x: (x**2 + y**2 - 1) ** 2, y: (x**2 + y**2 - 1) ** 2}, (x**2 + y**2) / 2),
    ),
    # ---- boundaries and explosions (H.3, H.4)
    "explosion: Cauchy along a diagonal, and noise that grows there": (
        "explosion",
        lambda: two(
            {
                (x, x): (1 + (x + y) ** 2) ** 2 + 1,
                (x, y): (1 + (x + y) ** 2) ** 2 - 1,
                (y, y): (1 + (x + y) ** 2) ** 2 + 1,
            },
            log(1 + (x + y) ** 2) + (x - y) ** 2 / 2,
        ),
    ),
    "explosion: a curl that grows faster than a Cauchy law falls": (
        "explosion",
        lambda: Recipe(
            name="swept",
            state=(x, y),
            target=x,
            H=log(1 + x**2) + y**2 / 2,
            D={y: 1},
            Q={(x, y): -((1 + x**2) ** 2)},
        ),
    ),
    "boundary: constant noise on a half line": ("boundary", lambda: overdamped(1, potential(rate), rate)),
    "boundary: constant noise between 0 and 1": ("boundary", lambda: overdamped(1, potential(share), share)),
    "boundary: a momentum runs off a half line": (
        "boundary",
        lambda: Recipe(
            name="runaway",
            state=(rate, p),
            target=rate,
            H=potential(rate) + total(p**2) / 2,
            D={p: 1},
            Q={(rate, p): -1},
        ),
    ),
    "boundary: Gamma of shape 3/2 under constant noise": (
        "boundary",
        lambda: overdamped(1, total(rate - log(rate) / 2), rate),
    ),
    "boundary: Beta(1, 1) under constant noise": ("boundary", lambda: overdamped(2, total(share), share)),
    "explosion: noise exp(x^2)": ("explosion", lambda: overdamped(exp(theta**2), total(theta**2) / 2)),
    "explosion: Student under noise of the sixth power": (
        "explosion",
        lambda: overdamped((1 + theta**2) ** 3, 2 * total(log(1 + theta**2))),
    ),
    # ---- reflections at the ends of a box
    "reflection: a curl that flows through an end": (
        "boundary",
        lambda: walled_two({walled: 1, y: 1}, {(walled, y): 1}),
    ),
    "reflection: noise shared with what is not reflected": (
        "boundary",
        lambda: walled_two({walled: 1, y: 1, (walled, y): 0.5}),
    ),
    "reflection: a momentum beside noise": (
        "boundary",
        lambda: Recipe(
            name="both",
            state=(box, p),
            target=box,
            H=potential(box) + total(p**2) / 2,
            D={box: 1, p: 1},
            Q={(box, p): -1},
        ),
    ),
    "reflection: a momentum about 1": ("boundary", lambda: bouncing(total((p - 1) ** 2) / 2)),
    "reflection: momenta with an energy of their sum": (
        "boundary",
        lambda: bouncing(total(p**2) / 2 + total(p) ** 2 / 4),
    ),
    "reflection: an angle for a momentum": ("boundary", lambda: isokinetic(box)),
    "reflection: a box with a barrier inside": ("reached", lambda: overdamped((box - 1) ** 2, block=box)),
    "reflection: mass without end at the end of a box": (
        "normalisable",
        lambda: overdamped(1, 3 * total(log(box + 1)) / 2, box),
    ),
    # ---- angles
    "angle: a circle cut by two barriers, one at the top of H": (
        "reached",
        lambda: overdamped(sin(angle) ** 2, -total(cos(angle)), angle),
    ),
    "angle: a circle cut by two barriers": ("reached", lambda: overdamped(sin(angle) ** 2, block=angle)),
    "angle: D that jumps": ("smooth", lambda: overdamped(2 + tanh(1 / sin(angle)), block=angle)),
    "angle: a momentum that no noise reaches": (
        "reached",
        lambda: Recipe(
            name="pendulum",
            state=(angle, p),
            target=angle,
            H=potential(angle) + total(p**2) / 2,
            D={},
            Q={(angle, p): -1},
        ),
    ),
    "angle: a target on the line without a bound": ("normalisable", lambda: overdamped(1, total(sin(theta)))),
    "angle: H of another period": ("declaration", lambda: overdamped(1, total(angle**2) / 2, angle)),
    "angle: H of twice the period": ("declaration", lambda: overdamped(1, total(cos(angle / 2)), angle)),
    "angle: D of another period": ("declaration", lambda: overdamped(2 + sin(angle / 2), block=angle)),
    "angle: H of a mean angle": ("declaration", lambda: overdamped(1, cos(total(angle) / n), angle)),
    # ---- jumps and singularities (H.6)
    "smooth: tanh(1/x)": ("smooth", lambda: overdamped(2 + tanh(1 / theta))),
    "smooth: atan(1/x)": ("smooth", lambda: overdamped(2 + atan(1 / theta))),
    "smooth: tanh(1/(x-1)) in Q": (
        "smooth",
        lambda: two({x: 1, y: 1}, Q={(x, y): 2 + tanh(1 / (x - 1))}),
    ),
    "smooth: a pole of Q": ("smooth", lambda: two({x: 1, y: 1}, Q={(x, y): tan(x)})),
    "smooth: H with a step": ("smooth", lambda: overdamped(1, total(theta**2) / 2 + total(atan(1 / theta)))),
    "smooth: H with a sawtooth": ("smooth", lambda: overdamped(1, total(theta**2) / 2 + total(atan(tan(theta))))),
}
"""Name -> the topic of the question that must not pass, and the recipe, which may not be one: "declaration"."""


def ccadl():
    """Covariance-controlled adaptive Langevin. Shang, Zhu, Leimkuhler & Storkey 2015."""
    S = positive("S", default=0.3, per=theta, doc="covariance of the gradient")
    return Recipe(
        name="ccadl",
        state=(theta, p, xi),
        target=theta,
        H=U + total(p**2) / 2 + n * mu * (xi - A) ** 2 / 2,
        D={p: A + S},
        Q={(theta, p): -1, (p, xi): p / (n * mu)},
    )


def aldi():
    """Affine-invariant Langevin in the mean field of its sites. Garbuno-Inigo, Nuesken & Reich 2020."""
    spread = total(theta**2) / n - (total(theta) / n) ** 2
    return Recipe(name="aldi", state=(theta,), H=U, D={theta: spread}, scheme="Euler")


RIGHT = {
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
    "momentum drawn anew": lambda: Recipe(
        name="refreshed",
        state=(theta, p),
        target=theta,
        H=U + total(p**2) / 2,
        D={},
        Q={(theta, p): -1},
        jumps={"R": refresh(p)},
        scheme="R B A B",
    ),
    "generalised Langevin": lambda: Recipe(
        name="generalised-langevin",
        state=(theta, p, r),
        target=theta,
        H=U + total(p**2 + r**2) / 2,
        D={r: gamma},
        Q={(theta, p): -1, (p, r): -1},
    ),
    "third-order Langevin": lambda: Recipe(
        name="third-order",
        state=(theta, p, r),
        target=theta,
        H=U + total(p**2) / 2 + total(r**2) / 2,
        D={r: 2 * gamma},
        Q={(theta, p): -1, (p, r): -gamma},
    ),
    "underdamped by the word U B U": lambda: underdamped(U + total(p**2) / 2, pieces={"U": (theta, p)}, scheme=None),
    "Nose-Hoover-Langevin": nose_hoover_langevin,
    "Nose-Hoover chain with noise at its end": lambda: Recipe(
        name="nose-hoover-chain",
        state=(theta, p, xi, eta),
        target=theta,
        H=U + total(p**2) / 2 + n * mu * xi**2 / 2 + mu * eta**2 / 2,
        D={eta: gamma},
        Q={(theta, p): -1, (p, xi): p / (n * mu), (xi, eta): xi / mu},
    ),
    "CCAdL": ccadl,
    "ALDI": aldi,
    "a thermostat per site": lambda: Recipe(
        name="site-thermostat",
        state=(theta, p, r),
        target=theta,
        H=U + total(p**2) / 2 + total(mu * (r - A) ** 2) / 2,
        D={p: A},
        Q={(theta, p): -1, (p, r): p / mu},
    ),
    "dense D and Q": lambda: two(Matrix([[1 + y**2, x / 4], [x / 4, 1 + x**2]]), Q={(x, y): x * y}),
    "one noise, turned by Q": lambda: two(Matrix([[1, 1], [1, 1]]), Q={(x, y): 1}),
    "non-reversible": lambda: two({x: 1, y: 1}, Q={(x, y): 3}),
    "banana": lambda: two({x: 1, y: 1}, x**2 / 2 + 5 * (y - x**2) ** 2),
    "funnel": lambda: two({x: 1, y: 1}, x**2 / 18 + x / 2 + exp(-x) * y**2 / 2),
    "funnel of two sites": lambda: Recipe(
        name="funnel",
        state=(theta, xi),
        target=theta,
        H=xi**2 / 18 + total(theta**2) * exp(-xi) / 2 + n * xi / 2,
        D={theta: 1, xi: 1},
        scheme="Euler",
    ),
    "horseshoe": lambda: Recipe(
        name="horseshoe",
        state=(theta, rate),
        target=theta,
        H=total(theta**2 / (2 * rate**2) + log(rate) + log(1 + rate**2)),
        D={theta: 1, rate: rate**2},
        scheme="Euler",
    ),
    "a common scale of all sites": lambda: Recipe(
        name="scaled",
        state=(theta, scale),
        target=theta,
        H=total(theta**2) / (2 * scale**2) + n * log(scale) + log(1 + scale**2),
        D={theta: 1, scale: scale**2},
        scheme="Euler",
    ),
    "a Cauchy block and a width that falls with it": lambda: two(
        {x: 1, y: 1}, x**2 * (1 + y**2) / 2 + log(1 + y**2) / 2
    ),
    "noise in one half of a bowl": lambda: half_noisy(x**2 / 2),
    "noise along brackets": lambda: Recipe(
        name="heisenberg",
        state=(x, y, z),
        target=(x, y, z),
        H=(x**2 + y**2 + z**2) / 2,
        D=Matrix([[1, 0, -y / 2], [0, 1, x / 2], [-y / 2, x / 2, (x**2 + y**2) / 4]]),
        scheme="Euler",
    ),
    "noise that vanishes on an axis, which motion crosses": lambda: two({x: 1, y: x**2}),
    "noise of each coordinate by the other": lambda: two({x: y**2, y: x**2}),
    "noise that grows without end": lambda: overdamped(exp(theta), total(theta**2) / 2),
    "noise that dies out": lambda: overdamped(1 / (1 + exp(-theta)), total(theta**2) / 2),
    "a positive scale that a curl drives": lambda: Recipe(
        name="driven",
        state=(u, scale),
        target=(u, scale),
        H=u**2 / 2 + scale - 2 * log(scale),
        D={scale: scale},
        Q={(u, scale): scale},
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
    "reflected on a half line": lambda: Recipe(
        name="reflected",
        state=(rate,),
        H=potential(rate),
        D={rate: 1},
        pieces={"E": numerical(rate, "reflected")},
        scheme="E",
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
    "microcanonical in the plane": lambda: Recipe(
        name="microcanonical",
        state=(x, y, heading),
        target=(x, y),
        H=potential(x, y),
        D={heading: A},
        Q={(x, heading): sin(heading), (y, heading): -cos(heading)},
    ),
    "an open metric": lambda: overdamped(function("G", theta, sign="positive")),
    "a mass per site": lambda: underdamped(U + total(p**2 / positive("m", default=1.0, per=theta)) / 2),
    "magnetic motion": lambda: Recipe(
        name="magnetic",
        state=(x, y, u, v),
        target=(x, y),
        H=potential(x, y) + (u**2 + v**2) / 2,
        D={u: 1, v: 1},
        Q={(x, u): -1, (y, v): -1, (u, v): real("B", default=2.0)},
    ),
}
"""Recipes that the certificate must call exact, beside the stock samplers."""
