"""The zoo: recipes that stand in several test files, and steps that are compiled once a session."""

from functools import cache

from sympy import Rational, log

import integrators
from recipe import Energy, Recipe, friction, grad, positive, potential, real, refresh, scalar, total, vector

theta, p, s, xi = vector("theta"), vector("p"), vector("s"), scalar("xi")
x, y, px, py = (scalar(name) for name in ("x", "y", "px", "py"))
a, b, c = positive("a", default=0.6), real("b", default=0.3), positive("c", default=1.3)
zeta = positive("zeta", default=0.5)
U, n = potential(theta), total(1)

QUARTIC = Energy(theta, U=total(theta**4) / 4)

# ---- momenta

HAMILTONIAN = Recipe(name="hamiltonian", state=(theta, p), H=U + total(p**2) / 2, D={}, Q={(theta, p): -1})
QUARTIC_KINETIC = Recipe(  # cubic friction: dp = ... - c p^3 dt + sqrt(2c) dW
    name="quartic-kinetic", state=(theta, p), H=U + total(p**4) / 4, D={p: c}, Q={(theta, p): -1}
)
GENERALISED_LANGEVIN = Recipe(  # friction with memory: p is coupled to s, which is damped; Ceriotti et al. (2010)
    name="generalised-langevin",
    state=(theta, p, s),
    H=U + total(p**2) / 2 + total(s**2) / 2,
    D={s: a},
    Q={(theta, p): -1, (p, s): c},
)
JOINT = {"O": (friction(p), s)}  # the letter that solves p and s of GENERALISED_LANGEVIN together
NOSE_HOOVER = Recipe(
    name="nose-hoover",
    state=(theta, p, xi),
    H=U + total(p**2) / 2 + n * xi**2 / 2,
    D={},
    Q={(theta, p): -1, (p, xi): p / n},
    jumps={"R": refresh(p)},
    scheme="R A' B O B A'",
)
MAGNETIC = Recipe(  # the O piece turns and damps (px, py) jointly
    name="magnetic",
    state=(x, y, px, py),
    target=(x, y),
    H=potential(x, y) + (px**2 + py**2) / 2,
    D={px: a + Rational(1, 2), py: c + Rational(1, 2), (px, py): Rational(1, 3)},
    Q={(x, px): -1, (y, py): -1, (px, py): b},
)

# ---- overdamped

CURVED = Recipe(name="curved", state=(theta,), H=U, D={theta: 1 / (1 + grad(U) ** 2)})  # Gamma reads U''
CONTOUR = Recipe(name="contour", state=(theta,), H=U + zeta * log(1 + U), D={theta: 1}, marginal=U + zeta * log(1 + U))
PER_SITE = Recipe(name="per-site", state=(theta,), H=U, D={theta: positive("d", per=theta)}, scheme="Euler")
PLANE = Recipe(name="plane", state=(x, y), target=(x, y), H=potential(x, y), D={x: 1, y: 1}, scheme="Euler")
BANANA = Recipe(  # the metric of U = x^2/2 + (y - x^2/2)^2, with a curl
    name="banana",
    state=(x, y),
    target=(x, y),
    H=potential(x, y),
    D={x: 1, (x, y): x, y: 1 + x**2},
    Q={(x, y): (x + y) / 3},
)


def compiled(recipe, word=None, *, pieces=None, **settings):
    """`integrators.compile`, once a session for the same arguments."""
    word = tuple(word) if isinstance(word, list) else word
    return _compiled(recipe, word, tuple((pieces or {}).items()), tuple(sorted(settings.items())))


@cache
def _compiled(recipe, word, pieces, settings):
    word = list(word) if isinstance(word, tuple) else word
    return integrators.compile(recipe, word, pieces=dict(pieces), **dict(settings))
