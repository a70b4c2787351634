"""Solving a piece: an ordered table of closed forms in h, each verified when it is built.

Every rule gives the new value of each block it moves as an expression of the old state, h and independent
standard normals; `exact` says whether it is the law of the piece's SDE at time h.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from sympy import Add, Expr, Function, ImmutableMatrix, S, Symbol, diff, exp, expand, factor_terms, sqrt, zeros

from recipe.algebra import random_value
from recipe.errors import RecipeError
from recipe.proof import numeric
from recipe.symbols import OPAQUE, Block, Partial, Total, freeze, step_size as h, temperature

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


class Normal(Symbol):
    """A standard normal drawn for a block: one per site or per chain, as the block."""

    __slots__ = ("block",)
    is_vector = property(lambda self: self.block.is_vector)

    class_key = Symbol.class_key

    def __new__(cls, block, name=None):
        draw = Symbol.__xnew__(cls, name or block.name, real=True)
        draw.block = block
        return draw

    def __getnewargs_ex__(self):
        return (self.block, self.name), {}

    def _hashable_content(self):
        return (*super()._hashable_content(), self.block)

    def _sympystr(self, printer):
        return f"N[{self.name}]"


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
        return tuple(type(self)(Symbol(part), i, j, *self.system) for part in self.parts for i in size for j in size
                     if j <= i or not self.is_triangular)


class MatrixOU(MatrixFunction):
    """The solution of dx = (-A x + c) dt + sqrt(2D) dW over h; the system is the size, h, A and D.

    Part M is e^{-Ah}, J is int_0^h e^{-As} ds, L a square root of the covariance.
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
    draws: tuple[Normal, ...]
    rule: str
    exact: bool
    equation: str
    even: bool = True  # whether the flow has order 2 or is exact, so that palindromes keep order 2

    def over(self, fraction: Expr) -> dict[Block, Expr]:
        """The updates over a fraction of the step."""
        return {b: e.subs(h, fraction * h) for b, e in self.updates.items()}

    @property
    def reads_gradient(self) -> bool:
        """Whether the flow reads grad U."""
        return any(e.has(Partial) for e in self.updates.values())

    def __str__(self):
        return f"{self.letter}: {self.equation}  [{self.rule}{'' if self.exact else ', not exact'}]"


# ---- the closed forms


def injected(piece: Subsystem, time: Expr = h) -> ImmutableMatrix:
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
            for l, j in enumerate(rows[:k + 1]):
                L[i, j] = sqrt(C[i, i]) if len(rows) == 1 else SquareRoot(Symbol("L"), k, l, *system)
    return ImmutableMatrix(L)


def joined(groups, pairs):
    """The groups, those that a pair links made one."""
    for a, b in pairs:
        linked = [g for g in groups if a in g or b in g]
        groups = [g for g in groups if g not in linked] + [set().union(*linked)]
    return groups


def _brownian(piece: Subsystem, f: dict):
    """x + h f + sqrt(2 h (T D - supplied)) N."""
    blocks, L = piece.moving, injected(piece)
    draws = [Normal(b) for b in blocks]
    used = tuple(d for j, d in enumerate(draws) if any(L[:, j]))
    return {b: b + h * f.get(b, 0) + Add(*(L[i, j] * d for j, d in enumerate(draws)))
            for i, b in enumerate(blocks)}, used


def shift(piece: Subsystem):
    """dx = c dt + s dW with c and s frozen:  x' = x + h c + s sqrt(h) N."""
    if any(e.has(*piece.moving) for e in (*piece.drift.values(), *piece.diffusion.values())):
        return None
    return _brownian(piece, piece.drift)


def ornstein_uhlenbeck(piece: Subsystem):
    """dx = (c - a x) dt + s dW:  x' = e^{-ah} x + h phi1(-ah) c + s sqrt(h phi1(-2ah)) N, any sign of a."""
    if len(piece.moving) > 1 or not (affine := _affine(piece)):
        return None
    (x,), ((a,),), (c,) = piece.moving, affine[0].tolist(), affine[1]
    response, spread, draw = h * phi1(-a * h), h * phi1(-2 * a * h), Normal(x)
    mean = exp(-a * h) * x + response * c
    _verify(x, a, c, mean, exp(-2 * a * h), spread)
    if (x, x) not in piece.diffusion:
        return {x: mean}, ()
    if c.has(Partial) and piece.supplied[x, x] != 0:  # the gradient's noise answers with `response`, not with h
        piece = replace(piece, supplied={(x, x): piece.supplied[x, x] * response**2 / (h * spread)})
    return {x: mean + injected(piece, spread)[0] * draw}, (draw,)


def matrix_ornstein_uhlenbeck(piece: Subsystem):
    """dx = (c - A x) dt + sqrt(2D) dW jointly:  x' = e^{-Ah} x + J c + L N with L L^T the Van Loan integral."""
    if len({b.is_vector for b in piece.moving}) > 1 or not (affine := _affine(piece)):
        return None
    A, c = affine
    blocks, N = piece.moving, len(piece.moving)
    D = piece.matrix(piece.injected)
    part = lambda name, i, j: MatrixOU(Symbol(name), i, j, N, h, *A, *D)
    noisy = not D.is_zero_matrix
    draws = tuple(Normal(b) for b in blocks) if noisy else ()
    return {b: Add(*(part("M", i, j) * x + (part("J", i, j) * c[j] if c[j] != 0 else 0) for j, x in enumerate(blocks)),
                   *(part("L", i, j) * d for j, d in enumerate(draws))) for i, b in enumerate(blocks)}, draws


RULES: dict[str, Callable] = {
    "shift": shift,
    "Ornstein-Uhlenbeck": ornstein_uhlenbeck,
    "matrix Ornstein-Uhlenbeck": matrix_ornstein_uhlenbeck,
}


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
    after = lambda e: e.xreplace({h: s})
    equations = (diff(mean, h) - c + a * mean,
                 diff(spread, h) - 1 + 2 * a * spread,
                 mean.xreplace({h: h + s}) - after(mean).xreplace({x: mean}),
                 spread.xreplace({h: h + s}) - after(decay) * spread - after(spread))
    draw = random.Random(2015)
    for equation in equations:
        e, _ = freeze(equation, *OPAQUE)
        symbols = sorted(e.free_symbols, key=lambda v: v.name)
        terms = list(Add.make_args(e))
        evaluate = numeric(symbols, terms, phi1=phi1.value)
        for _ in range(3):
            values = [float(v) for v in evaluate([random_value(v, draw) / 2 for v in symbols])]
            if not abs(sum(values)) <= 1e-8 * max(map(abs, values)):
                raise AssertionError(f"the closed form of d{x} = ({c} - {a} {x}) dt breaks its equation: {equation}")


# ---- numerical sub-flows, by request only


def euler(piece: Subsystem):
    """x' = x + h f(x) + sqrt(2 h D(x)) N  (Euler-Maruyama)."""
    return _brownian(piece, piece.drift)


def heun(piece: Subsystem):
    """y = x + h f(x) + w,  x' = x + h (f(x) + f(y))/2 + w, with additive noise w."""
    where = f"numerical(..., 'heun') for {piece.letter!r}"
    if any(e.has(*piece.moving) for e in piece.diffusion.values()):
        raise RecipeError(where, "its noise depends on the blocks it moves", do="Use 'euler', or another split.")
    if any(p.U.has(*piece.moving) for f in piece.drift.values() for p in f.atoms(Partial)):
        raise RecipeError(where, "it would need grad U at a predicted point", do="Put the force into another piece.")
    predicted, draws = _brownian(piece, piece.drift)
    f = {b: (e + e.xreplace(predicted)) / 2 for b, e in piece.drift.items()}
    return _brownian(piece, f)[0], draws


METHODS: dict[str, tuple[Callable, int]] = {"euler": (euler, 1), "heun": (heun, 2)}


def solve(piece: Subsystem, name: str = "") -> Flow:
    """The flow of a piece by the first rule that fits each group of coupled blocks, or by the method it names.

    Raises RecipeError where no closed form is known and no method is named: there is no silent fall-back.
    """
    if piece.method:
        method, order = METHODS[piece.method]
        updates, draws = method(piece)
        exact = shift(piece) is not None
        return Flow(piece.letter, updates, draws, piece.method, exact, str(piece), exact or order >= 2)
    updates, draws, rules = {}, (), []
    for group in _groups(piece):
        part = piece.restricted(group)
        for rule, form in RULES.items():
            if solved := form(part):
                break
        else:
            raise RecipeError(f"{name}, solve", f"no closed form is known for piece {piece.letter!r}: {part}",
                              do="Cut it finer, ask for numerical(piece, 'heun'), or use the word 'Euler'.")
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
