"""The converse problem: the curl Q from H, D and a given drift, or the residual of the drift.

Ma, Chen & Fox (2015), Theorem 2: if F = f - rowdiv(D) + D grad H has a residual of 0, a skew Q with
-Q grad H + rowdiv(Q) = F exists. The equation is linear in Q.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING

from sympy import (
    Dummy,
    Expr,
    Heaviside,
    ImmutableMatrix,
    Matrix,
    S,
    Symbol,
    Tuple,
    diff,
    linear_eq_to_matrix,
    sign,
    simplify,
    zeros,
)
from sympy.core.function import AppliedUndef
from sympy.matrices import MatrixBase

from . import derive
from .algebra import integrands, vanishes, weakest
from .arrays import of_arrays
from .declaration import Recipe
from .declared import Block, Parameter
from .dynamics import Entries
from .ensembles import Outer
from .errors import RecipeError, did_you_mean
from .fields import fields_of, is_skew, operators_of, transposed
from .formulas import formula
from .random_points import random_value
from .reading import drift_of, state_of
from .results import GRADES, Findings, Row
from .spheres import project
from .symbols import OPAQUE, Partial, Potential, is_site, masked, total

if TYPE_CHECKING:
    from numpy import ndarray

POINTS = 400


@dataclass(frozen=True, repr=False)
class Recovery(Findings):
    """Result of `recover`: the Q of a drift, or the reason why there is none; `.ok` is None if Q is outside the ansatz.

    `how`: "reversible" (Q = 0), "ansatz", "not found" (stationary, but Q is outside the ansatz) or "not stationary".
    """

    state: tuple[Block, ...]
    Q: ImmutableMatrix | None
    residual: Expr
    how: str
    verdict: str = "proved"  # of Q, or of the residual where no Q is found; "checked" if it is 0 at random states alone

    @property
    def title(self) -> str:
        """Whether the drift leaves exp(-H) invariant."""
        condition = ", at random states" if self.verdict == "checked" else ""
        return f"exp(-H) is {'not ' if self.how == 'not stationary' else ''}stationary{condition}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The entries of Q on and above its diagonal, or why there are none."""
        if self.Q is not None:
            return entries_of_curl(self.Q, self.state, self.verdict)
        if self.how == "not found":
            cure = "give functions=(...)" if len(self.state) > 1 else "in one block Q is made of skew operators alone"
            return (Row("Q", "it is not in the ansatz", "open", cure=cure),)
        return (Row("residual", str(self.residual), "failed", cure="samplers.testing.diagnose says what is missing."),)


def entries_of_curl(Q: ImmutableMatrix, state: tuple[Block, ...], verdict: str) -> tuple[Row, ...]:
    """The entries of Q on and above its diagonal that are not 0, a row of a verdict for each."""
    pairs = combinations_with_replacement(enumerate(state), 2)
    rows = [Row(f"Q[{a}, {b}]", str(Q[i, j]), verdict) for (i, a), (j, b) in pairs if Q[i, j] != 0]
    return tuple(rows) or (Row("Q", "0", verdict),)


def recover(
    state: tuple[Block, ...],
    H: Expr,
    drift: Mapping[Block, Expr | float] | Sequence[Expr | float] | MatrixBase,
    D: Entries,
    *,
    functions: Sequence[Expr] = (),
) -> Recovery:
    """The skew Q of a drift at T = 1, or the residual of a drift that has none.

    -Q grad H + rowdiv(Q) = F = f - rowdiv(D) + D grad H, with each Q_ij a combination of monomials of degree <= 2 in
    the blocks, of dH/dz, of operators, and of opaque and declared `functions` times 1 or a block.

    `state`, `H` and `D`: as in a Recipe; `drift`: a dict over blocks or a column in the order of `state`. Raises
    RecipeError if H and D do not make a recipe, or the drift does not fit the state.
    Source: Ma, Chen & Fox (2015), Theorem 2.

    >>> from recipe import vector, positive, potential, total, grad
    >>> theta, p, c, m = vector("theta"), vector("p"), positive("c"), positive("m")
    >>> U = potential(theta)
    >>> print(recover((theta, p), U + total(p**2)/2/m, {theta: p/m, p: -grad(U) - c*p/m}, {p: c}))
    exp(-H) is stationary
      proved   Q[theta, p]  -1
    """
    H = formula(H, "recover, H")
    read = {b for U in H.atoms(Potential) for b in U.blocks}
    target = tuple(b for b in state_of(state, "recover") if b in read) or None
    recipe = Recipe(name="recover", state=state, target=target, H=H, D=D)
    state, D = recipe.state, recipe.D
    f = ImmutableMatrix(drift_of(drift, state, "recover"))
    functions = [formula(g, "recover, functions") for g in functions]
    for g in functions:
        if jump := min(g.atoms(sign, Heaviside), key=str, default=None):
            what = f"{g} jumps where {jump.args[0]} = 0, and an entry of Q has a derivative"
            raise RecipeError("recover, functions", what, do="Leave it out, or give a continuous function.")
    _known_symbols([*f, *functions], recipe)

    F = derive.circulation(f, H, D, state)
    R = derive.residual(f, H, D, state)
    of_residual = vanishes(R)
    if of_residual is None:
        return Recovery(state, None, R, "not stationary", GRADES[None])
    reversible = weakest(*map(vanishes, F))
    if reversible:
        return Recovery(state, ImmutableMatrix(zeros(len(state))), R, "reversible", GRADES[reversible])
    Q, of_Q = _ansatz(F, H, D, state, functions)
    if Q is None:
        return Recovery(state, None, R, "not found", GRADES[of_residual])
    return Recovery(state, Q, R, "ansatz", GRADES[of_Q])


def _known_symbols(formulas: Sequence[Expr], recipe: Recipe) -> None:
    """Refuse symbols that are neither blocks nor parameters, and two symbols with the same name."""
    used = set().union(*(e.free_symbols for e in formulas)) - set(recipe.state)
    names = [s.name for s in (*recipe.state, *(used | set(recipe.parameters)))]
    for s in sorted(used, key=str):
        if not isinstance(s, Parameter):
            what = f"'{s}' is unbound: neither a block of the state nor a parameter"
            raise RecipeError("recover", what, do=did_you_mean(s.name, set(names) - {s.name}))
        if names.count(s.name) > 1:
            raise RecipeError("recover", f"two blocks or parameters are named '{s}'", do="Rename one.")


# ---- the linear equation for Q


def _ansatz(
    F: ImmutableMatrix, H: Expr, D: ImmutableMatrix, state: tuple[Block, ...], functions: Sequence[Expr]
) -> tuple[ImmutableMatrix | None, str | None]:
    """Q as a combination of basis functions, exact in the parameters, and its grade of proof, row by row; or None.

    The basis: monomials of degree <= 2 in the blocks, dH/dz without jumps, functions times 1 or a block, operators.
    """
    opaque = sorted(Tuple(H, F, D).atoms(AppliedUndef), key=str)
    slopes = [s for s in (diff(H, b) for b in state) if not s.has(Partial, sign, Heaviside)]
    products = [f * b for b in (S.One, *state) for f in (*opaque, *functions)]
    squares = [a * b for a, b in combinations_with_replacement(state, 2)]
    unknowns = []
    Q = zeros(len(state))
    for b in dict.fromkeys([S.One, *state, *slopes, *products, *squares]):
        for (i, row), (j, column) in combinations(enumerate(state), 2):
            spheres = [u for u in (row, column) if u.domain.is_sphere]
            if spheres and (is_site(b) or len(spheres) > 1 or row.is_vector != column.is_vector):
                continue
            unknowns.append(Dummy())
            entry = unknowns[-1] * (total(b) if is_site(b) and not (row.is_vector or column.is_vector) else b)
            entry = entry * project(spheres[0]) if spheres else entry
            Q[i, j] += entry
            Q[j, i] -= entry
    for i, j, M in _entries_of_operators(F, state):
        unknowns.append(Dummy())
        Q[i, j] += unknowns[-1] * M
        if i != j:
            Q[j, i] -= unknowns[-1] * transposed(M)
    if not unknowns:
        return None, None

    def defect(Q: Matrix) -> ImmutableMatrix:
        return derive.row_divergence(Q, state) - derive.times_gradient(Q, H, state) - F

    values = coefficients(defect(Q), unknowns)
    if values is None:
        return None, None
    Q = Q.xreplace(dict(zip(unknowns, values))).expand()
    known = weakest(*map(vanishes, defect(Q)))
    return (ImmutableMatrix(Q), known) if known else (None, None)


def _entries_of_operators(F: ImmutableMatrix, state: tuple[Block, ...]) -> Iterator[tuple[int, int, Expr]]:
    """The entries of Q, (row, column, operator), that operators of F may make: on the diagonal those that are skew."""
    vectors = [i for i, b in enumerate(state) if b.is_vector and b.domain.is_real]
    for M in sorted(set().union(*map(operators_of, F)) - set().union(*map(fields_of, F)), key=str):
        for i, j in combinations_with_replacement(vectors, 2):
            if not isinstance(M, Outer) and (i != j or is_skew(M)):
                yield i, j, M


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
