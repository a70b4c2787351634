"""Flow rules: closed forms of a piece's SDE in the time t.

A rule is a function of a `Subsystem`, dz = drift dt + noise with all but its moving blocks frozen. The rule returns
`(updates, draws)`: the new value of each moving block as a formula of the old values, t and independent variates, and
these variates; or None if the rule does not apply. A rule whose solution is not obvious verifies its own equations (see
`_verify`). The docstring of a rule is the equation and the solution. The table RULES, at the end of this file, is tried
in order, special rules before general ones; tests stand in tests/test_flows.py. Approximations are in
`numerical_flows.py`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

from sympy import (
    Add,
    Dummy,
    Expr,
    ImmutableMatrix,
    Ne,
    Piecewise,
    S,
    Symbol,
    cos,
    diff,
    exp,
    expand,
    factor_terms,
    sin,
    sqrt,
    zeros,
)
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import connected_components

from recipe.algebra import entries, vanishes
from recipe.fields import operators_of, outer_products, transposed
from recipe.operators import coefficient, is_operator, times
from recipe.random_points import is_zero_at_random_points
from recipe.spheres import project
from recipe.symbols import Block, Crossing, Partial, Potential, Total, is_site, temperature, total
from recipe.symbols import duration as t

from .functions import MatrixOU, SquareRoot, braked, phi1
from .split import Subsystem
from .variates import Drawn, GammaVariate, Normal, PoissonVariate, Variate

Solution = tuple[dict[Block, Expr], tuple[Variate, ...]]
CONSTANT = Dummy("c", real=True)  # in the place of a constant that operators apply to


# ---- the amplitude of the noise


def injected(piece: Subsystem, time: Expr = t) -> ImmutableMatrix:
    """A square root of 2 (T D - supplied) times a time: the amplitude of the injected noise."""
    if any(piece.supplied.values()):
        return sqrt(2 * time) * square_root(piece.matrix(piece.injected))
    return sqrt(2 * temperature * time) * square_root(piece.matrix(piece.diffusion))


def square_root(C: ImmutableMatrix) -> ImmutableMatrix:
    """A lower triangular L with L L^T = C: square roots where C is diagonal, Cholesky factors of coupled rows."""
    n = C.rows
    L = zeros(n, n)
    for group in connected_components(([*range(n)], [*entries(C)])):
        rows = sorted(group)
        system = (len(rows), *C.extract(rows, rows))
        for k, i in enumerate(rows):
            for l, j in enumerate(rows[: k + 1]):
                L[i, j] = sqrt(C[i, i]) if len(rows) == 1 else SquareRoot(Symbol("L"), k, l, *system)
    return ImmutableMatrix(L)


def brownian(piece: Subsystem, f: dict[Block, Expr]) -> Solution:
    """x + t f + sqrt(2 t (T D - supplied)) N; of c v v^T in D the noise is sqrt(2 t T c) v N, with N per chain."""
    blocks = piece.moving
    along = {b: outer_products(piece.diffusion.get((b, b), S.Zero)) for b in blocks}
    rest = {key: e.xreplace(dict.fromkeys(outer_products(e), S.Zero)) for key, e in piece.diffusion.items()}
    L = entries(injected(replace(piece, diffusion=rest)))
    draws = [Normal(b) for b in blocks]
    spreads: list[list[Expr]] = [[] for _ in blocks]
    for (i, j), e in L.items():
        spreads[i].append(times(e, draws[j]))
    drawn = [d for j, d in enumerate(draws) if any(j == k for _, k in L)]
    for b, terms in zip(blocks, spreads):
        for k, v in enumerate(along[b], 1):
            number = Normal(b, f"{b} along {k}", is_vector=False)
            terms.append(sqrt(2 * temperature * t * expand(piece.diffusion[b, b]).coeff(v)) * v.vector * number)
            drawn.append(number)
    return {b: b + t * f.get(b, 0) + Add(*terms) for b, terms in zip(blocks, spreads)}, tuple(drawn)


# ---- the rules


def shift(piece: Subsystem) -> Solution | None:
    """dx = c dt + s dW with c and s frozen:  x' = x + t c + s sqrt(t) N."""
    if any(e.has(*piece.moving) for e in (*piece.drift.values(), *piece.diffusion.values())):
        return None
    return brownian(piece, piece.drift)


def ornstein_uhlenbeck(piece: Subsystem) -> Solution | None:
    """dx = (c - a x) dt + s dW:  x' = e^{-at} x + t phi1(-at) c + s sqrt(t phi1(-2at)) N, any sign of a.

    The rate a may be a formula of an operator, if the noise is a formula of the same operator; the variance then has
    the symmetric part of a.
    """
    affine = _affine(piece) if len(piece.moving) == 1 else None
    if affine is None:
        return None
    A, (c,) = affine
    (x,) = piece.moving
    a = A[0, 0]
    if is_operator(a) and not _commutes(a, piece):
        return None
    mean, spread = (_operator_mean_and_spread if is_operator(a) else _mean_and_spread)(x, a, c)
    if (x, x) not in piece.diffusion:
        return {x: mean}, ()
    supplied = piece.supplied.get((x, x), S.Zero)
    if c.has(Partial) and supplied != 0:  # the gradient's noise is multiplied by the response t phi1(-at), not by t
        response = t * phi1(-a * t)
        piece = replace(piece, supplied={(x, x): supplied * response**2 / (t * spread)})
    draw = Normal(x)
    return {x: mean + times(injected(piece, spread)[0], draw)}, (draw,)


def matrix_ornstein_uhlenbeck(piece: Subsystem) -> Solution | None:
    """dx = (c - A x) dt + sqrt(2D) dW jointly:  x' = e^{-At} x + J c + L N with L L^T the Van Loan integral."""
    affine = _affine(piece) if len({b.is_vector for b in piece.moving}) == 1 else None
    if affine is None:
        return None
    A, c = affine
    D = piece.matrix(piece.injected)
    if any(map(operators_of, (*A, *D))):
        return None
    blocks = piece.moving
    draws = () if D.is_zero_matrix else tuple(map(Normal, blocks))

    def entry(part: str, i: int, j: int) -> MatrixOU:
        return MatrixOU(Symbol(part), i, j, len(blocks), t, *A, *D)

    updates = {}
    for i, b in enumerate(blocks):
        terms = []
        for j, x in enumerate(blocks):
            terms += [entry("M", i, j) * x, entry("J", i, j) * c[j]]
        updates[b] = Add(*terms, *(entry("L", i, j) * d for j, d in enumerate(draws)))
    return updates, draws


def geometric(piece: Subsystem) -> Solution | None:
    """dx = a x dt + sqrt(2 d) x dW:  x' = x exp((a - d) t + sqrt(2 d t) N)  (Ito)."""
    row = _single_row(piece)
    if row is None or any(piece.supplied.values()):
        return None
    x, a, c, D = row
    d = factor_terms(expand(D / x**2))
    if c != 0 or d == 0 or d.has(x):
        return None
    draw = Normal(x)
    return {x: x * exp((-a - temperature * d) * t + sqrt(2 * temperature * d * t) * draw)}, (draw,)


def cox_ingersoll_ross(piece: Subsystem) -> Solution | None:
    """dx = (c - k x) dt + sqrt(2 s x) dW:  x' = r Gamma(c/s + Poisson(x e^{-kt}/r)), r = s t phi1(-kt)."""
    row = _single_row(piece)
    if row is None or any(piece.supplied.values()):
        return None
    x, k, c, D = row
    s = temperature * factor_terms(expand(D / x))
    if x.domain.is_real or s == 0 or s.has(x):
        return None
    _mean_and_spread(x, k, c)
    r = s * t * phi1(-k * t)
    poisson, gamma = PoissonVariate(x), GammaVariate(x)
    count = Drawn(poisson, x * exp(-k * t) / r)
    return {x: r * Drawn(gamma, expand(c / s) + count)}, (poisson, gamma)


def rotation(piece: Subsystem) -> Solution | None:
    """dq = a p dt, dp = (c - b q) dt with a, b > 0: a turn by sqrt(ab) t about q = c/b, p = 0."""
    affine = _affine(piece) if len(piece.moving) == 2 and not piece.diffusion else None
    if affine is None:
        return None
    A, (cq, cp) = affine
    q, p = piece.moving
    a, b = -A[0, 1], A[1, 0]
    if A[0, 0] != 0 or A[1, 1] != 0 or not (a * b).is_positive:
        return None
    rate = sqrt(a * b)
    angle, q0, p0 = rate * t, cp / b, -cq / a
    of_p, of_q = (sqrt(a / b), sqrt(b / a)) if a.is_positive else (a / rate, b / rate)
    return {
        q: q0 + cos(angle) * (q - q0) + of_p * sin(angle) * (p - p0),
        p: p0 + cos(angle) * (p - p0) - of_q * sin(angle) * (q - q0),
    }, ()


def relativistic_friction(piece: Subsystem) -> Solution | None:
    """dp = -a p/sqrt(1 + b p^2) dt: sqrt(b) p is `braked` for a time a t."""
    if len(piece.moving) != 1 or piece.diffusion:
        return None
    ((p, f),) = piece.drift.items()
    if _is_hidden(f, [p]):
        return None
    a = -diff(f, p).subs(p, 0)
    if a == 0 or not a.is_finite and a.has(S.NaN, S.ComplexInfinity):
        return None
    b = diff(f, p, 3).subs(p, 0) / (3 * a)
    if b == 0 or b.has(S.NaN, S.ComplexInfinity) or not is_zero_at_random_points(f**2 * (1 + b * p**2) - a**2 * p**2):
        return None
    b = factor_terms(expand(b).simplify())
    if not b.is_positive or vanishes(f + a * p / sqrt(1 + b * p**2)) is None:
        return None
    return {p: braked(sqrt(b) * p, a * t) / sqrt(b)}, ()


# ---- on the sphere, up to the length of u, which becomes 1


def great_circle(piece: Subsystem) -> Solution | None:
    """du = (f - u total(u f)) dt with f frozen, along the great circle through u and f, with r = |f|:

    u' ~ 2 e^{-rt} u + k (1 + e^{-rt} + k total(u f)) f,   k = t phi1(-rt)
    """
    kick = kicked(piece)
    if kick is None:
        return None
    (u,) = piece.moving
    f, still, k, b = kick
    return {u: 2 * still * u + k * (1 + still + k * b) * f}, ()


def kicked(piece: Subsystem) -> tuple[Expr, Expr, Expr, Expr] | None:
    """f, e^{-rt}, k and total(u f) of `great_circle`, or None for another equation."""
    if len(piece.moving) != 1 or piece.diffusion:
        return None
    ((u, whole),) = piece.drift.items()
    f = whole.xreplace({u: S.Zero})
    if f.has(u) or vanishes(whole - project(u)(f)) is None:
        return None
    r = sqrt(total(f**2))
    return f, exp(-r * t), t * phi1(-r * t), total(u * f)


def round_noise(piece: Subsystem) -> Solution | None:
    """Brownian motion, du = -(n - 1) d u dt + sqrt(2 d) P dW:  u' ~ u + sqrt(2 d t phi1(2 (n - 4) d t)) N.

    Of weak order 2, and not exact. Its density reads total(u u') alone: it is reversible for the uniform law.
    """
    (u, *others) = piece.moving
    D = piece.diffusion.get((u, u), S.Zero)
    if others or D == 0 or any(piece.supplied.values()):
        return None
    d = temperature * D / project(u)
    if vanishes(piece.drift.get(u, S.Zero) - d * project(u).divergence) is None:
        return None
    draw = Normal(u)
    return {u: u + sqrt(2 * d * t * phi1(2 * (total(1) - 4) * d * t)) * draw}, (draw,)


# ---- the form of a piece


def _is_hidden(e: Expr, blocks: Iterable[Block]) -> bool:
    """Whether a total, an open energy or its derivative reads one of the blocks."""
    return any(x.has(*blocks) for x in e.atoms(Total, Potential, Partial, Crossing))


def _commutes(a: Expr, piece: Subsystem) -> bool:
    """Whether the noise of a piece is a formula of the operator in its rate a, and neither reads a block beside it."""
    noise = Add(*piece.diffusion.values(), *piece.supplied.values())
    moving = (a + noise).atoms(Block)
    return operators_of(noise) <= operators_of(a) and not is_site(noise) and not moving


def _affine(piece: Subsystem) -> tuple[ImmutableMatrix, list[Expr]] | None:
    """(A, c) with drift = c - A x and A, c, D free of the moving blocks, or None."""
    blocks = piece.moving
    if any(map(outer_products, piece.diffusion.values())):
        return None
    drift = [piece.drift.get(b, S.Zero) for b in blocks]
    if len(blocks) == 1 and drift[0].has(Crossing):
        rate = coefficient(-drift[0], blocks[0])
        return None if rate is None else (ImmutableMatrix([[rate[0]]]), [-rate[1]])
    if any(_is_hidden(f, blocks) for f in drift) or any(e.has(*blocks) for e in piece.diffusion.values()):
        return None
    if any(f.has(*blocks) for e in drift for f in e.atoms(AppliedUndef)):
        return None
    n = len(blocks)
    A = ImmutableMatrix(n, n, [factor_terms(-diff(f, b)) for f in drift for b in blocks])
    c = [expand(f.xreplace({b: S.Zero for b in blocks})) for f in drift]
    if A.has(*blocks):
        return None
    rest = [f - c[i] + sum(A[i, j] * b for j, b in enumerate(blocks)) for i, f in enumerate(drift)]
    return (A, c) if all(map(vanishes, rest)) else None


def _single_row(piece: Subsystem) -> tuple[Block, Expr, Expr, Expr] | None:
    """(x, a, c, D) of a piece of one block with noise D and drift c - a x, or None."""
    if len(piece.moving) != 1 or not piece.diffusion:
        return None
    (x,), (D,) = piece.moving, piece.diffusion.values()
    affine = _affine(replace(piece, diffusion={}, drift={x: piece.drift.get(x, S.Zero)}))
    if affine is None or any(e.has(x) for e in D.atoms(Total)):
        return None
    A, (c,) = affine
    if operators_of(A[0, 0] + D):
        return None
    return x, A[0, 0], c, D


# ---- checks of closed forms


@lru_cache(maxsize=256)  # for recipes that share a piece
def _mean_and_spread(x: Block, a: Expr, c: Expr) -> tuple[Expr, Expr]:
    """m and v of dx = (c - a x) dt + dW: e^{-at} x + t phi1(-at) c, and t phi1(-2at), verified."""
    mean = exp(-a * t) * x + t * phi1(-a * t) * c
    spread = t * phi1(-2 * a * t)
    _verify(x, a, c, mean, exp(-2 * a * t), spread)
    return mean, spread


def _operator_mean_and_spread(x: Block, a: Expr, c: Expr) -> tuple[Expr, Expr]:
    """m and v of dx = (c - a x) dt + dW for a formula a of an operator; v has the symmetric part of a."""
    _mean_and_spread(x, a, CONSTANT)
    mean = times(exp(-a * t), x) + times(t * phi1(-a * t), c)
    return mean, t * phi1(-(a + transposed(a)) * t)


def _verify(x: Block, a: Expr, c: Expr, mean: Expr, decay: Expr, spread: Expr) -> None:
    """Verify a closed form by its equations: m' = c - a m, v' = 1 - 2 a v, and the semigroup property."""
    s = Symbol("s", positive=True)
    first = {t: s}
    equations = (
        diff(mean, t) - c + a * mean,
        diff(spread, t) - 1 + 2 * a * spread,
        mean.xreplace({t: t + s}) - mean.xreplace(first).xreplace({x: mean}),
        spread.xreplace({t: t + s}) - decay.xreplace(first) * spread - spread.xreplace(first),
    )
    for equation in equations:
        written = equation.replace(phi1, lambda x: Piecewise(((exp(x) - 1) / x, Ne(x, 0)), (S.One, True)))
        if not is_zero_at_random_points(written):
            raise AssertionError(f"the closed form of d{x} = ({c} - {a} {x}) dt breaks its equation: {equation}")


# ---- the table, tried in this order

RULES: dict[str, Callable[[Subsystem], Solution | None]] = {
    "shift": shift,
    "Ornstein-Uhlenbeck": ornstein_uhlenbeck,
    "geometric": geometric,
    "Cox-Ingersoll-Ross": cox_ingersoll_ross,
    "rotation": rotation,
    "matrix Ornstein-Uhlenbeck": matrix_ornstein_uhlenbeck,
    "relativistic friction": relativistic_friction,
}

# Of a block on the sphere.
ROUND_RULES: dict[str, Callable[[Subsystem], Solution | None]] = {
    "great circle": great_circle,
    "round noise": round_noise,
}
