"""Solving a piece: an ordered table of closed forms in the time t, each verified when it is built.

Every rule gives the new value of each block it moves as an expression of the old state, t and independent random
numbers; `exact` says whether it is the law of the piece's SDE at time t.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from sympy import (
    Abs,
    Add,
    Expr,
    Function,
    ImmutableMatrix,
    S,
    Symbol,
    Tuple,
    cos,
    diff,
    exp,
    expand,
    factor_terms,
    sin,
    sqrt,
    zeros,
)

from recipe.algebra import random_value, vanishes
from recipe.errors import RecipeError
from recipe.proof import numeric
from recipe.symbols import OPAQUE, Block, Partial, Total, masked, step_size, temperature
from recipe.symbols import duration as t

from .split import Subsystem


class phi1(Function):
    """(e^x - 1)/x, and 1 at 0: the response of a linear equation to a constant force."""

    is_real = is_positive = True
    nargs = 1

    @classmethod
    def eval(cls, x):
        return S.One if x == 0 else None

    def fdiff(self, argindex=1):
        x = self.args[0]
        return (exp(x) - phi1(x)) / x

    @staticmethod
    def value(x: float) -> float:
        """The number phi1(x)."""
        return math.expm1(x) / x if x else 1.0


class braked(Function):
    """y after a time s of dy/ds = -y/sqrt(1 + y^2): F(|y|) falls by s, F(y) = sqrt(1 + y^2) + log(y/(1 + sqrt(1 + y^2)))."""

    is_real = True

    @classmethod
    def eval(cls, y, s):
        return y if s == 0 else None


class Variate(Symbol):
    """A random number drawn for a block: one per site or per chain, as the block unless `is_vector` says otherwise."""

    __slots__ = ("block", "is_vector")

    class_key = Symbol.class_key
    kind = ""

    def __new__(cls, block, name=None, is_vector=None):
        draw = Symbol.__xnew__(cls, name or block.name, real=True)
        draw.block, draw.is_vector = block, block.is_vector if is_vector is None else is_vector
        return draw

    def __getnewargs_ex__(self):
        return (self.block, self.name, self.is_vector), {}

    def _hashable_content(self):
        return (*super()._hashable_content(), self.kind, self.block, self.is_vector)

    def sort_key(self, order=None):
        """Apart from that of the block of its name: terms of equal keys would be written in an order that no run repeats."""
        return self.class_key(), (1, (f"{self.name}~{self.kind}",)), S.One.sort_key(), S.One

    def _sympystr(self, printer):
        return f"{self.kind.capitalize()}[{self.name}]"


class Normal(Variate):
    """A standard normal."""

    kind = "normal"
    _sympystr = lambda self, printer: f"N[{self.name}]"


class Uniform(Variate):
    """A uniform number between 0 and 1."""

    kind = "uniform"


class PoissonVariate(Variate):
    """A Poisson number; its rate depends on the state."""

    kind = "poisson"


class GammaVariate(Variate):
    """A Gamma number of scale 1; its shape depends on the state."""

    kind = "gamma"


class Drawn(Function):
    """A variate whose law depends on the state, with its rate or shape."""

    nargs = 2
    is_real = is_nonnegative = True
    variate = property(lambda self: self.args[0])
    parameter = property(lambda self: self.args[1])


class MatrixFunction(Function):
    """An entry (part, row, column) of matrices that are computed together at run time from a `system` of expressions."""

    is_real = True
    part = property(lambda self: self.args[0].name)
    row = property(lambda self: int(self.args[1]))
    column = property(lambda self: int(self.args[2]))
    system = property(lambda self: self.args[3:])

    @property
    def siblings(self) -> tuple["MatrixFunction", ...]:
        """All entries of the matrices of the same system."""
        size = range(int(self.system[0]))
        return tuple(
            type(self)(Symbol(part), i, j, *self.system)
            for part in self.parts
            for i in size
            for j in size
            if j <= i or not self.is_triangular
        )


class MatrixOU(MatrixFunction):
    """The solution of dx = (-A x + c) dt + sqrt(2D) dW over a time; the system is the size, the time, A and D.

    Part M is e^{-At}, J is int_0^t e^{-As} ds, L a square root of the covariance.
    """

    parts, is_triangular, text = "MJL", False, "matrix_ou"


class SquareRoot(MatrixFunction):
    """The lower Cholesky factor of a positive semidefinite matrix; the system is the size and the matrix."""

    parts, is_triangular, text = "L", True, "square_root"


@dataclass(frozen=True)
class Flow:
    """One piece solved: new values of the moving blocks, the normals they use, the rule, and whether it is exact."""

    letter: str
    updates: dict[Block, Expr]
    draws: tuple[Variate, ...]
    rule: str
    exact: bool
    equation: str
    even: bool = True  # whether the flow has order 2 or is exact, so that palindromes keep order 2

    def over(self, fraction: Expr) -> dict[Block, Expr]:
        """The updates over a fraction of the step."""
        return {b: e.xreplace({t: fraction * step_size}) for b, e in self.updates.items()}

    @property
    def reads_gradient(self) -> bool:
        """Whether the flow reads grad U."""
        return any(e.has(Partial) for e in self.updates.values())

    def __str__(self):
        return f"{self.letter}: {self.equation}  [{self.rule}{'' if self.exact else ', not exact'}]"


# ---- the closed forms


def injected(piece: Subsystem, time: Expr = t) -> ImmutableMatrix:
    """A square root of 2 (T D - supplied) times a time: the one home of the noise's amplitude."""
    if any(piece.supplied.values()):
        return sqrt(2 * time) * square_root(piece.matrix(piece.injected))
    return sqrt(2 * temperature * time) * square_root(piece.matrix(piece.diffusion))


def square_root(C: ImmutableMatrix) -> ImmutableMatrix:
    """A lower triangular L with L L^T = C: square roots on the diagonal, a Cholesky factor where entries are coupled."""
    n = C.rows
    L = zeros(n, n)
    for group in joined([{i} for i in range(n)], [(i, j) for i in range(n) for j in range(n) if C[i, j] != 0]):
        rows = sorted(group)
        system = (len(rows), *C.extract(rows, rows))
        for k, i in enumerate(rows):
            for l, j in enumerate(rows[: k + 1]):
                L[i, j] = sqrt(C[i, i]) if len(rows) == 1 else SquareRoot(Symbol("L"), k, l, *system)
    return ImmutableMatrix(L)


def joined(groups, pairs):
    """The groups, those that a pair links made one."""
    for a, b in pairs:
        linked = [g for g in groups if a in g or b in g]
        groups = [g for g in groups if g not in linked] + [set().union(*linked)]
    return groups


def _brownian(piece: Subsystem, f: dict):
    """x + t f + sqrt(2 t (T D - supplied)) N."""
    blocks, L = piece.moving, injected(piece)
    draws = [Normal(b) for b in blocks]
    used = tuple(d for j, d in enumerate(draws) if any(L[:, j]))
    return {
        b: b + t * f.get(b, 0) + Add(*(L[i, j] * d for j, d in enumerate(draws))) for i, b in enumerate(blocks)
    }, used


def shift(piece: Subsystem):
    """dx = c dt + s dW with c and s frozen:  x' = x + t c + s sqrt(t) N."""
    if any(e.has(*piece.moving) for e in (*piece.drift.values(), *piece.diffusion.values())):
        return None
    return _brownian(piece, piece.drift)


def ornstein_uhlenbeck(piece: Subsystem):
    """dx = (c - a x) dt + s dW:  x' = e^{-at} x + t phi1(-at) c + s sqrt(t phi1(-2at)) N, any sign of a."""
    if len(piece.moving) > 1 or not (affine := _affine(piece)):
        return None
    (x,), ((a,),), (c,) = piece.moving, affine[0].tolist(), affine[1]
    response, spread, draw = t * phi1(-a * t), t * phi1(-2 * a * t), Normal(x)
    mean = exp(-a * t) * x + response * c
    _verify(x, a, c, mean, exp(-2 * a * t), spread)
    if (x, x) not in piece.diffusion:
        return {x: mean}, ()
    if c.has(Partial) and piece.supplied[x, x] != 0:  # the gradient's noise answers with `response`, not with t
        piece = replace(piece, supplied={(x, x): piece.supplied[x, x] * response**2 / (t * spread)})
    return {x: mean + injected(piece, spread)[0] * draw}, (draw,)


def matrix_ornstein_uhlenbeck(piece: Subsystem):
    """dx = (c - A x) dt + sqrt(2D) dW jointly:  x' = e^{-At} x + J c + L N with L L^T the Van Loan integral."""
    if len({b.is_vector for b in piece.moving}) > 1 or not (affine := _affine(piece)):
        return None
    A, c = affine
    blocks, N = piece.moving, len(piece.moving)
    D = piece.matrix(piece.injected)
    part = lambda name, i, j: MatrixOU(Symbol(name), i, j, N, t, *A, *D)
    noisy = not D.is_zero_matrix
    draws = tuple(Normal(b) for b in blocks) if noisy else ()
    return {
        b: Add(
            *(part("M", i, j) * x + (part("J", i, j) * c[j] if c[j] != 0 else 0) for j, x in enumerate(blocks)),
            *(part("L", i, j) * d for j, d in enumerate(draws)),
        )
        for i, b in enumerate(blocks)
    }, draws


def geometric(piece: Subsystem):
    """dx = a x dt + sqrt(2 d) x dW:  x' = x exp((a - d) t + sqrt(2 d t) N)  (Ito)."""
    if not (shape := _of_one(piece)) or shape[2] != 0 or any(piece.supplied.values()):
        return None
    x, a, _, D = shape
    d = factor_terms(expand(D / x**2))
    if d == 0 or d.has(x):
        return None
    draw = Normal(x)
    return {x: x * exp((-a - temperature * d) * t + sqrt(2 * temperature * d * t) * draw)}, (draw,)


def cox_ingersoll_ross(piece: Subsystem):
    """dx = (c - k x) dt + sqrt(2 s x) dW:  x' = r Gamma(c/s + Poisson(x e^{-kt}/r)), r = s t phi1(-kt)."""
    if not (shape := _of_one(piece)) or any(piece.supplied.values()) or shape[0].domain == "real":
        return None
    x, k, c, D = shape
    s = temperature * factor_terms(expand(D / x))
    if s == 0 or s.has(x):
        return None
    _verify(x, k, c, exp(-k * t) * x + t * phi1(-k * t) * c, exp(-2 * k * t), t * phi1(-2 * k * t))
    scale = s * t * phi1(-k * t)
    counted = Drawn(PoissonVariate(x), x * exp(-k * t) / scale)
    return {x: scale * Drawn(GammaVariate(x), expand(c / s) + counted)}, (PoissonVariate(x), GammaVariate(x))


def rotation(piece: Subsystem):
    """dq = a p dt, dp = (c - b q) dt with a, b > 0: a turn by sqrt(ab) t about q = c/b, p = 0."""
    if len(piece.moving) != 2 or piece.diffusion or not (affine := _affine(piece)):
        return None
    (A, (cq, cp)), (q, p) = affine, piece.moving
    a, b = -A[0, 1], A[1, 0]
    if A[0, 0] != 0 or A[1, 1] != 0 or not ((a * b).is_positive and a.is_positive):
        return None
    angle, q0, p0 = sqrt(a * b) * t, cp / b, -cq / a
    return {
        q: q0 + cos(angle) * (q - q0) + sqrt(a / b) * sin(angle) * (p - p0),
        p: p0 + cos(angle) * (p - p0) - sqrt(b / a) * sin(angle) * (q - q0),
    }, ()


def _agree(one, other) -> bool:
    """Whether two formulas have the same value at a random point."""
    both, _ = masked(Tuple(one, other), *OPAQUE)
    symbols, draw = sorted(both.free_symbols, key=lambda s: s.name), random.Random(2015)
    found, expected = numeric(symbols, both)([random_value(s, draw) for s in symbols])
    return abs(found - expected) <= 1e-8 * (1 + abs(expected))


def relativistic_friction(piece: Subsystem):
    """dp = -a p/sqrt(1 + b p^2) dt: sqrt(b) p is `braked` for a time a t."""
    if len(piece.moving) != 1 or piece.diffusion:
        return None
    ((p, f),) = piece.drift.items()
    if any(e.has(p) for e in f.atoms(Total, Partial)):
        return None
    a = -diff(f, p).subs(p, 0)
    if a == 0 or not a.is_finite and a.has(S.NaN, S.ComplexInfinity):
        return None
    b = diff(f, p, 3).subs(p, 0) / (3 * a)
    if b == 0 or b.has(S.NaN, S.ComplexInfinity) or not _agree(f**2 * (1 + b * p**2), a**2 * p**2):
        return None
    b = factor_terms(expand(b).simplify())
    if not b.is_positive or vanishes(f + a * p / sqrt(1 + b * p**2)) is None:
        return None
    return {p: braked(sqrt(b) * p, a * t) / sqrt(b)}, ()


RULES: dict[str, Callable] = {
    "shift": shift,
    "Ornstein-Uhlenbeck": ornstein_uhlenbeck,
    "geometric": geometric,
    "Cox-Ingersoll-Ross": cox_ingersoll_ross,
    "rotation": rotation,
    "matrix Ornstein-Uhlenbeck": matrix_ornstein_uhlenbeck,
    "relativistic friction": relativistic_friction,
}


def _of_one(piece):
    """(x, a, c, D) of one block with noise of its own and the drift c - a x, or None."""
    if len(piece.moving) != 1 or not piece.diffusion:
        return None
    (x,), (D,) = piece.moving, piece.diffusion.values()
    affine = _affine(replace(piece, diffusion={}, drift={x: piece.drift.get(x, S.Zero)}))
    return None if affine is None or any(e.has(x) for e in D.atoms(Total)) else (x, affine[0][0], affine[1][0], D)


def _affine(piece):
    """(A, c) with drift = c - A x and A, c, D free of the moving blocks, or None."""
    blocks = piece.moving
    f = [piece.drift.get(b, S.Zero) for b in blocks]
    if any(t.has(*blocks) for e in f for t in e.atoms(Total)) or any(e.has(*blocks) for e in piece.diffusion.values()):
        return None
    if any(p.U.has(*blocks) for e in f for p in e.atoms(Partial)):
        return None
    A = ImmutableMatrix(len(blocks), len(blocks), [factor_terms(-diff(e, b)) for e in f for b in blocks])
    c = [expand(e.xreplace({b: S.Zero for b in blocks})) for e in f]
    linear = [expand(e - k + sum(A[i, j] * b for j, b in enumerate(blocks))) for i, (e, k) in enumerate(zip(f, c))]
    return None if A.has(*blocks) or any(linear) else (A, c)


def _verify(x, a, c, mean, decay, spread):
    """The closed form against its own equations: m' = c - a m, v' = 1 - 2 a v, and the semigroup property."""
    s = Symbol("s", positive=True)
    after = lambda e: e.xreplace({t: s})
    equations = (
        diff(mean, t) - c + a * mean,
        diff(spread, t) - 1 + 2 * a * spread,
        mean.xreplace({t: t + s}) - after(mean).xreplace({x: mean}),
        spread.xreplace({t: t + s}) - after(decay) * spread - after(spread),
    )
    draw = random.Random(2015)
    for equation in equations:
        e, _ = masked(equation, *OPAQUE)
        symbols = sorted(e.free_symbols, key=lambda v: v.name)
        terms = list(Add.make_args(e))
        evaluate = numeric(symbols, terms, phi1=phi1.value)
        for _ in range(3):
            try:
                values = [float(v) for v in evaluate([random_value(v, draw) / 2 for v in symbols])]
            except OverflowError:  # too stiff at these values
                continue
            if not abs(sum(values)) <= 1e-8 * max(map(abs, values)):
                raise AssertionError(f"the closed form of d{x} = ({c} - {a} {x}) dt breaks its equation: {equation}")


# ---- numerical sub-flows, by request only


def euler(piece: Subsystem):
    """x' = x + t f(x) + sqrt(2 t D(x)) N  (Euler-Maruyama)."""
    return _brownian(piece, piece.drift)


def reflected(piece: Subsystem):
    """x' = |x + t f(x) + sqrt(2 t D(x)) N|, for blocks that are positive."""
    if any(b.domain == "real" for b in piece.moving):
        raise RecipeError(
            f"numerical(..., 'reflected') for {piece.letter!r}",
            "it moves a block that may be negative",
            do='Declare it with domain="positive", or use "euler".',
        )
    updates, draws = _brownian(piece, piece.drift)
    return {b: Abs(e) for b, e in updates.items()}, draws


def heun(piece: Subsystem):
    """y = x + t f(x) + w,  x' = x + t (f(x) + f(y))/2 + w, with additive noise w."""
    where = f"numerical(..., 'heun') for {piece.letter!r}"
    if any(e.has(*piece.moving) for e in piece.diffusion.values()):
        raise RecipeError(where, "its noise depends on the blocks it moves", do="Use 'euler', or another split.")
    if any(p.U.has(*piece.moving) for f in piece.drift.values() for p in f.atoms(Partial)):
        raise RecipeError(where, "it would need grad U at a predicted point", do="Put the force into another piece.")
    predicted, draws = _brownian(piece, piece.drift)
    f = {b: (e + e.xreplace(predicted)) / 2 for b, e in piece.drift.items()}
    return _brownian(piece, f)[0], draws


METHODS: dict[str, tuple[Callable, int]] = {"euler": (euler, 1), "reflected": (reflected, 1), "heun": (heun, 2)}


def solve(piece: Subsystem, name: str = "") -> Flow:
    """The flow of a piece by the first rule that fits each group of coupled blocks, or by the method it names.

    Raises RecipeError where no closed form is known and no method is named: there is no silent fall-back.
    """
    if piece.method:
        method, order = METHODS[piece.method]
        updates, draws = method(piece)
        exact = method is not reflected and shift(piece) is not None
        return Flow(piece.letter, updates, draws, piece.method, exact, str(piece), exact or order >= 2)
    updates, draws, rules = {}, (), []
    for group in _groups(piece):
        part = piece.restricted(group)
        for rule, form in RULES.items():
            if solved := form(part):
                break
        else:
            raise RecipeError(
                f"{name}, solve",
                f"no closed form is known for piece {piece.letter!r}: {part}",
                do="Cut it finer, ask for numerical(piece, 'heun'), or use the word 'Euler'.",
            )
        updates |= solved[0]
        draws += solved[1]
        rules.append(rule)
    return Flow(piece.letter, updates, draws, ", ".join(dict.fromkeys(rules)) or "nothing moves", True, str(piece))


def _groups(piece):
    """The moving blocks, grouped by what couples them: a drift that reads another moving block, or shared noise."""
    pairs = [(a, b) for a, f in piece.drift.items() for b in piece.moving if f.has(b)] + list(piece.diffusion)
    order = {b: i for i, b in enumerate(piece.moving)}
    groups = joined([{b} for b in piece.moving], pairs)
    return sorted(([b for b in piece.moving if b in g] for g in groups), key=lambda g: order[g[0]])
