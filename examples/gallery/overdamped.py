"""Diffusions of the target alone: metrics, domains, currents that do no work, many sites that feel each other."""

from dataclasses import replace

from exhibit import Exhibit
from sympy import Matrix, Rational, cos, log

from recipe import Recipe, numerical, positive, potential, scalar, temperature, total, vector

theta = vector("theta")
x, y = scalar("x"), scalar("y")
U, n = potential(theta), total(1)

# dtheta = sqrt(2 (1 + a theta^2/(1 + theta^2))) dW + ...: noise that grows away from 0. Roberts & Stramer 2002.
metric = Recipe(
    name="position-dependent",
    source="Roberts & Stramer 2002",
    state=(theta,),
    H=U,
    D={theta: 1 + theta**2 / (1 + theta**2)},
    scheme="Euler",
)

# A current along the level sets makes the chain forget faster. Hwang, Hwang-Ma & Sheu 1993.
irreversible = Recipe(
    name="irreversible",
    source="Hwang, Hwang-Ma & Sheu 1993",
    state=(x, y),
    target=(x, y),
    H=potential(x, y),
    D={x: 1, y: 1},
    Q={(x, y): 2},
    scheme="Euler",
)

# A dense D and a curl, both of which depend on where the chain is. Ma, Chen & Fox 2015, section 4.
swirl = Recipe(
    name="swirl",
    source="Ma, Chen & Fox 2015",
    state=(x, y),
    target=(x, y),
    H=potential(x, y),
    D=Matrix([[1 + y**2 / (1 + y**2), 0.25], [0.25, 1 + x**2 / (1 + x**2)]]),
    Q={(x, y): cos(x)},
    scheme="Euler",
)

# Noise in proportion to the spread of the sites: affine-invariant. Garbuno-Inigo, Nuesken & Reich 2020.
aldi = Recipe(
    name="interacting-sites",
    source="Garbuno-Inigo, Nuesken & Reich 2020",
    state=(theta,),
    H=U,
    D={theta: 0.5 + (total(theta**2) / n - (total(theta) / n) ** 2) / (1 + total(theta**2) / n)},
    scheme="Euler",
)

# theta and a copy that a spring holds near it: the copy's force is that of the smoothed energy. Chaudhari et al. 2017.
copy, stiffness = vector("copy"), positive("stiffness", default=2.0)
local_entropy = Recipe(
    name="local-entropy",
    source="Chaudhari et al. 2017, eq. (5)",
    state=(theta, copy),
    target=theta,
    H=U + stiffness * total((theta - copy) ** 2) / 2,
    D={theta: 1, copy: 1},
    scheme="Euler",
)

# ---- more than one gradient a step: the order is 2, and the step may be longer

# The noise of a step is known before its drift: the slope is the mean of those at both ends. Kloeden & Platen 1992.
heun = Recipe(
    name="heun",
    source="Kloeden & Platen 1992, section 15.1",
    state=(theta,),
    H=U,
    D={theta: 1},
    pieces={"X": numerical(theta, "heun")},
    scheme="X",
)
midpoint = replace(
    heun,
    name="randomised-midpoint",
    source="He, Balasubramanian & Erdogdu 2020",
    pieces={"X": numerical(theta, "randomised midpoint")},
)
runge_kutta = replace(
    heun,
    name="srk-ld",
    source="Li, Wu, Mackey & Erdogdu 2019",
    pieces={"X": numerical(theta, "stochastic runge-kutta")},
)

# ---- what reads U itself, and not its gradient alone

# The energy is flattened by a function of itself, so that chains climb: weights of the draws undo it. Deng et al. 2020.
psi = (1 + U**2) ** Rational(-1, 2)
flat = U + temperature * log(psi)
contour = Recipe(
    name="contour",
    source="Deng, Lin & Liang 2020, with the weights of their levels at hand",
    state=(theta,),
    H=flat,
    D={theta: 1},
    weights=psi,
    scheme="Euler",
)

# Time runs slower where U is high, dtheta = -psi grad U dt + sqrt(2 psi) dW; weights take the place of a correction.
rescaled = Recipe(
    name="time-rescaled",
    source="Leroy, Leimkuhler, Latz & Higham 2024, without their correction",
    state=(theta,),
    H=flat,
    D={theta: psi},
    weights=psi,
    scheme="Euler",
)

# ---- diffusions of Pearson, solved exactly: the law of a step of any size is right

v = vector("v", domain="positive")
cir = Recipe(
    name="cox-ingersoll-ross",
    source="Cox, Ingersoll & Ross 1985",
    state=(v,),
    H=total(2 * v - 2.5 * log(v)),
    D={v: v},
    pieces={"X": v},
    scheme="X",
)

share = vector("share", domain="fraction")
wright_fisher = Recipe(
    name="wright-fisher",
    source="Wright 1931; the law is Beta(3, 2)",
    state=(share,),
    H=-total(2 * log(share) + log(1 - share)),
    D={share: share * (1 - share)},
    pieces={"X": numerical(share, "reflected")},
    scheme="X",
)

student = Recipe(
    name="student-t",
    source="Bibby & Sorensen 2003, of eleven degrees of freedom",
    state=(theta,),
    H=6 * total(log(1 + theta**2)),
    D={theta: 1 + theta**2},
    scheme="Euler",
)

# ---- domains with ends

angle = vector("angle", domain="periodic")
von_mises = Recipe(name="von-mises", source="Bao & others", state=(angle,), H=-2 * total(cos(angle - 1)), D={angle: 1})

box = vector("box", domain=(0, 1))
reflected = Recipe(
    name="reflected",
    source="Tanaka 1979",
    state=(box,),
    H=total(2 * box**2),
    D={box: 1},
    pieces={"X": numerical(box, "reflected")},
    scheme="X",
)

GALLERY = [
    Exhibit(metric, 0.005),
    Exhibit(irreversible, 0.01),
    Exhibit(swirl, 0.005, steps=40_000),
    Exhibit(aldi, 0.01),
    Exhibit(local_entropy, 0.01),
    Exhibit(heun, 0.02, steps=50_000),
    Exhibit(midpoint, 0.01, steps=100_000),
    Exhibit(runge_kutta, 0.02, steps=50_000),
    Exhibit(contour, 0.005, steps=100_000),
    Exhibit(rescaled, 0.01, steps=100_000),
    Exhibit(cir, 1.0, steps=2000),
    Exhibit(wright_fisher, 0.001),
    Exhibit(student, 0.005),
    Exhibit(von_mises, 0.02),
    Exhibit(reflected, 0.0005),
]
