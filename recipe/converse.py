"""The converse problem: the curl Q from H, D and a given drift, or the defect of the drift.

Ma, Chen & Fox (2015), Theorem 2: if F = f - rowdiv(D) + D grad H has a residual of 0, a skew Q with
-Q grad H + rowdiv(Q) = F exists. The equation is linear in Q.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING, Any

from sympy import (
    Dummy,
    Expr,
    ImmutableMatrix,
    Matrix,
    Mul,
    S,
    Symbol,
    Tuple,
    diff,
    expand,
    linear_eq_to_matrix,
    simplify,
    zeros,
)
from sympy.core.function import AppliedUndef
from sympy.matrices import MatrixBase

from . import derive
from .algebra import at_one_site, integrands, random_value, vanishes
from .arrays import of_arrays
from .declaration import Recipe
from .dynamics import Entries
from .errors import RecipeError, did_you_mean
from .reading import drift_of
from .symbols import OPAQUE, Block, Parameter, Partial, Potential, formula, is_site, masked, total

if TYPE_CHECKING:
    from numpy import ndarray

POINTS = 400


@dataclass(frozen=True)
class Recovery:
    """Result of `recover`: the Q of a drift, or the reason why there is none; printable, `.ok` if Q was found.

    `how`: "reversible" (Q = 0), "ansatz", "not found" (stationary, but Q is outside the ansatz) or "not stationary".
    """

    Q: ImmutableMatrix | None
    residual: Expr
    how: str
    report: str

    @property
    def ok(self) -> bool:
        """Whether a Q was found."""
        return self.Q is not None

    def __str__(self) -> str:
        return self.report


def recover(
    state: tuple[Block, ...],
    H: Expr,
    drift: Mapping[Block, Expr | float] | Sequence[Expr | float] | MatrixBase,
    D: Entries,
    *,
    functions: Sequence[Expr] = (),
) -> Recovery:
    """The skew Q of a drift at T = 1, or the defect of the drift.

    -Q grad H + rowdiv(Q) = F = f - rowdiv(D) + D grad H, with each Q_ij a combination of monomials of degree <= 2 in
    the blocks, of dH/dz, and of opaque and declared `functions` times 1 or a block.

    `state`, `H` and `D`: as in a Recipe; `drift`: a dict over blocks or a column in the order of `state`. Raises
    RecipeError if H and D do not make a recipe, or the drift does not fit the state.
    Source: Ma, Chen & Fox (2015), Theorem 2.

    >>> from recipe import vector, positive, potential, total, grad
    >>> theta, p, c, m = vector("theta"), vector("p"), positive("c"), positive("m")
    >>> U = potential(theta)
    >>> print(recover((theta, p), U + total(p**2)/2/m, {theta: p/m, p: -grad(U) - c*p/m}, {p: c}))
    exp(-H) is stationary, with
      Q[theta, p] = -1
    """
    H = formula(H, "recover, H")
    potential = next(iter(H.atoms(Potential)), None)
    reversible = Recipe(name="recover", state=state, target=potential and potential.blocks, H=H, D=D)
    state = reversible.state
    D = reversible.D
    f = _column(drift, reversible)
    functions = [formula(g, "recover, functions") for g in functions]
    _known_symbols([*f, *functions], reversible)

    F = derive.circulation(f, H, D, state)
    R = derive.residual(f, H, D, state)
    if vanishes(R) is None:
        return Recovery(None, R, "not stationary", _diagnosis(F, R, reversible))
    if all(map(vanishes, F)):
        return Recovery(ImmutableMatrix(zeros(len(state))), R, "reversible", "exp(-H) is stationary, with Q = 0")
    Q = _ansatz(F, H, D, state, functions)
    if Q is None:
        return Recovery(None, R, "not found", "exp(-H) is stationary, but Q is not in the ansatz: give functions=(...)")
    entries = [f"  Q[{a}, {b}] = {Q[i, j]}" for (i, a), (j, b) in combinations(enumerate(state), 2) if Q[i, j] != 0]
    return Recovery(Q, R, "ansatz", "\n".join(["exp(-H) is stationary, with", *entries]))


def _column(drift: Any, recipe: Recipe) -> ImmutableMatrix:
    """The drift as a column of formulas, one per block of the state."""
    rows = drift_of(drift, recipe.state, "recover")
    for b, row in zip(recipe.state, rows):
        if not b.is_vector and is_site(row):
            what = f"{row} has one value per site, but {b} is a scalar"
            raise RecipeError(f"recover, drift[{b}]", what, do="Wrap it in total().")
    return ImmutableMatrix(rows)


def _known_symbols(formulas: Sequence[Expr], recipe: Recipe) -> None:
    """Refuse symbols that are neither blocks nor parameters, and two symbols with the same name."""
    used = set().union(*(e.free_symbols for e in formulas)) - set(recipe.state)
    names = [s.name for s in (*recipe.state, *(used | set(recipe.parameters)))]
    for s in sorted(used, key=str):
        if not isinstance(s, Parameter):
            raise RecipeError(
                "recover",
                f"'{s}' is unbound: neither a block of the state nor a parameter",
                do=did_you_mean(s.name, set(names) - {s.name}),
            )
        if names.count(s.name) > 1:
            raise RecipeError("recover", f"two blocks or parameters are named '{s}'", do="Rename one.")


# ---- the linear equation for Q


def _ansatz(
    F: ImmutableMatrix, H: Expr, D: ImmutableMatrix, state: tuple[Block, ...], functions: Sequence[Expr]
) -> ImmutableMatrix | None:
    """Q as a combination of basis functions, exact in the parameters, verified row by row; or None."""
    unknowns = []
    Q = zeros(len(state))
    for b in _basis(F, H, D, state, functions):
        for (i, row), (j, column) in combinations(enumerate(state), 2):
            unknown = Dummy()
            unknowns.append(unknown)
            entry = unknown * (total(b) if is_site(b) and not (row.is_vector or column.is_vector) else b)
            Q[i, j] += entry
            Q[j, i] -= entry

    def defect(Q: Matrix) -> ImmutableMatrix:
        return derive.row_divergence(Q, state) - derive.times_gradient(Q, H, state) - F

    values = coefficients(defect(Q), unknowns)
    if values is None:
        return None
    Q = Q.xreplace(dict(zip(unknowns, values))).expand()
    return ImmutableMatrix(Q) if all(map(vanishes, defect(Q))) else None


def _basis(
    F: ImmutableMatrix, H: Expr, D: ImmutableMatrix, state: tuple[Block, ...], functions: Sequence[Expr]
) -> list[Expr]:
    """The distinct basis functions: monomials of degree <= 2 in the blocks, dH/dz, and functions times 1 or a block."""
    opaque = sorted(Tuple(H, F, D).atoms(AppliedUndef), key=str)
    slopes = [s for s in (diff(H, b) for b in state) if not s.has(Partial)]
    products = [f * b for b in (S.One, *state) for f in (*opaque, *functions)]
    squares = [a * b for a, b in combinations_with_replacement(state, 2)]
    return list(dict.fromkeys([S.One, *state, *slopes, *products, *squares]))


def coefficients(rows: Iterable[Expr], unknowns: Sequence[Symbol]) -> list[Expr] | None:
    """The values of `unknowns` at which rows, linear in them, vanish: formulas of the parameters and n; or None.

    >>> from recipe import positive, vector
    >>> p, c = vector("p"), Dummy()
    >>> coefficients([c*p - 2*positive("m")*p], [c])
    [2*m]
    """
    # n as a positive parameter, so that a constant may be divided by n
    n = Dummy("n", positive=True)
    parts = [part for row in rows for part in integrands(row.xreplace({total(1): n})).values()]
    equations, _ = masked(Tuple(*parts), *OPAQUE)
    A, b = linear_eq_to_matrix(list(equations), unknowns)
    values = _solve(A, b, n)
    return None if values is None else [v.xreplace({n: total(1)}) for v in values]


def _solve(A: Matrix, b: Matrix, n: Dummy) -> list[Expr] | None:
    """Solve A(z) x = b(z) for all z: numerically at random z for the support of x, exactly at a few z for x.

    Columns that depend on earlier columns (the gauge of Q) get the coefficient 0.
    """
    symbols = sorted(A.free_symbols | b.free_symbols, key=lambda s: s.sort_key())
    draw = random.Random(2015)
    constants = {s: random_value(s, draw) for s in symbols if s is n or isinstance(s, Parameter)}
    variables = [s for s in symbols if s not in constants]
    points = [{s: S(round(16 * random_value(s, draw)) or 1) / 16 for s in variables} for _ in range(POINTS)]

    M, y = _at_points(A, b, symbols, constants, points)
    support = _support(M, y)
    if support is None:
        return None
    rows = [divmod(k, POINTS) for k in _independent(M[:, support])]
    left = Matrix([[A[i, k].xreplace(points[z]) for k in support] for i, z in rows])
    right = Matrix([b[i].xreplace(points[z]) for i, z in rows])
    exact = dict(zip(support, left.LUsolve(right).applyfunc(simplify)))
    return [exact.get(k, S.Zero) for k in range(A.cols)]


def _at_points(
    A: Matrix, b: Matrix, symbols: list[Symbol], constants: dict[Symbol, float], points: list[dict[Symbol, Expr]]
) -> tuple["ndarray", "ndarray"]:
    """A, (rows * points, columns), and b, (rows * points,), in floats; 0 at points with entries that are not finite."""
    import numpy

    at = [constants.get(s) or numpy.array([float(z[s]) for z in points]) for s in symbols]
    entries = list(dict.fromkeys([*A, *b]))  # most of them are 0
    with numpy.errstate(all="ignore"):
        numbers = dict(zip(entries, of_arrays([symbols], entries)(at)))
    values = numpy.array([numpy.broadcast_to(numbers[e], len(points)) for e in (*A, *b)], dtype=float)
    values[:, ~numpy.isfinite(values).all(0)] = 0
    M = values[: -A.rows].reshape(A.rows, A.cols, len(points)).swapaxes(1, 2).reshape(-1, A.cols)
    return M, values[-A.rows :].ravel()


def _support(M: "ndarray", y: "ndarray") -> list[int] | None:
    """The columns with nonzero x in a solution of M x = y, among linearly independent columns; None if unsolvable."""
    from numpy.linalg import lstsq, norm

    free = _independent(M.T)
    x = lstsq(M[:, free], y, rcond=None)[0]
    if norm(M[:, free] @ x - y) > 1e-10 * norm(y):
        return None
    return [k for k, v in zip(free, x) if abs(v) * norm(M[:, k]) > 1e-9 * norm(y)]


def _independent(vectors: "ndarray") -> list[int]:
    """The indices of the vectors that are linearly independent of the vectors before (Gram-Schmidt, twice)."""
    from numpy import vstack, zeros
    from numpy.linalg import norm

    indices: list[int] = []
    basis = zeros((0, vectors.shape[1]))
    for k, v in enumerate(vectors):
        if len(indices) == vectors.shape[1]:
            break
        rest = v - basis.T @ (basis @ v)
        rest = rest - basis.T @ (basis @ rest)
        if norm(rest) > 1e-8 * norm(v):
            indices.append(k)
            basis = vstack([basis, rest / norm(rest)])
    return indices


# ---- the defect of a drift


def _diagnosis(F: ImmutableMatrix, R: Expr, recipe: Recipe) -> str:
    """The report: F, the residual, a missing drift, and the first moments that change."""
    return "\n".join(
        [
            "exp(-H) is not stationary: no Q exists",
            *(f"  F[{b}] = {f}" for b, f in zip(recipe.state, F) if f != 0),
            f"  residual {R}",
            *_missing(R, recipe),
            *_first_moments(R, recipe),
        ]
    )


def _missing(R: Expr, recipe: Recipe) -> list[str]:
    """The line of a term, c times the friction, 1 or a block, that makes the residual vanish when added to one row."""
    friction = derive.times_gradient(recipe.D, recipe.H, recipe.state)
    c = Dummy()
    for i, row in enumerate(recipe.state):
        for term in (friction[i], S.One, *recipe.state):
            if term == 0 or is_site(term) and not row.is_vector:
                continue
            change = -diff(term, row) + term * diff(recipe.H, row)
            repaired = expand(R + c * (total(change) if row.is_vector else change))
            values = coefficients([repaired], [c])
            if values and vanishes(repaired.xreplace({c: values[0]})):
                return [f"  missing drift: {expand(values[0] * term)} in the row of {row}"]
    return []


def _first_moments(R: Expr, recipe: Recipe) -> list[str]:
    """Lines of E_pi[L phi] = E_pi[phi R] for H and the worst monomial, at the defaults, for one site, U a quartic."""
    import numpy

    state = recipe.state
    U = recipe.potential
    quartic = sum(b**4 / 4 + b**2 / 2 - S(2) / 5 * b for b in U.blocks) if U else None
    H = _one_site(recipe.H, U, quartic)
    R = _one_site(R, U, quartic)
    if Tuple(H, R).has(AppliedUndef) or (H.free_symbols | R.free_symbols) - set(state) or len(state) > 3:
        return []
    z, volume = _grid(state)

    def on_grid(e: Expr) -> "ndarray":
        return numpy.broadcast_to(of_arrays([state], e)(z), volume.shape)

    with numpy.errstate(all="ignore"):
        energy, rest = on_grid(H), on_grid(R)
        law = numpy.exp(energy.min() - energy) * volume
        law = law / law.sum()
        inner = law[(slice(1, -1),) * len(z)].sum()
    if not inner > 1 - 1e-9 or not numpy.isfinite(rest).all():
        # The grid does not hold the density.
        return []

    def rate(phi: Expr) -> float:
        return float((law * on_grid(phi) * rest).sum())

    def score(phi: Expr) -> float:
        values = on_grid(phi)
        variance = float((law * (values - float((law * values).sum())) ** 2).sum())
        return abs(rate(phi)) / variance**0.5

    monomials = (Mul(*factors) for d in range(1, 5) for factors in combinations_with_replacement(state, d))
    worst = max(monomials, key=score)
    if score(worst) < 1e-7:
        return []
    energy_in_words = f", U = {quartic}" if U else ""
    # 0.0 is added so that no -0 is printed.
    heating = round(rate(H), 6) + 0.0
    return [
        f"  one site, parameters at their defaults{energy_in_words}:",
        f"    heating E[L H] = {heating:.3g}, worst monomial E[L {worst}] = {rate(worst):.3g}",
    ]


def _one_site(e: Expr, U: Potential | None, energy: Expr | None) -> Expr:
    """The expression at one site, with `energy` for U and the parameters at their defaults."""
    derivatives = {g: diff(energy, *g.variables) for g in e.atoms(Partial)}
    defaults = {s: S(s.default) for s in e.free_symbols if getattr(s, "default", None) is not None}
    return at_one_site(e.xreplace(derivatives | {U: energy})).xreplace(defaults)


def _grid(state: tuple[Block, ...]) -> tuple["ndarray", "ndarray"]:
    """The coordinates of a grid, (blocks, *points), and the volumes of its cells, even in the chart of each domain."""
    import numpy

    from .certificate import charts

    t = numpy.linspace(-4.5, 4.5, 51)
    axes = [charts.point(b.domain, t) for b in state]
    widths = [numpy.exp(charts.log_slope(b.domain, t)) for b in state]
    volume = numpy.array(numpy.meshgrid(*widths, indexing="ij")).prod(0)
    return numpy.array(numpy.meshgrid(*axes, indexing="ij")), volume
