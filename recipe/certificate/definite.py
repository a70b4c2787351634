"""Tests whether a matrix of formulas is positive semidefinite: by the signs of its minors, else at random states."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from sympy import Dummy, Expr, ImmutableMatrix, S, Symbol
from sympy.core.relational import Relational

from ..algebra import entries
from ..arrays import of_arrays
from ..declared import Block, temperature
from ..dynamics import Dynamics
from ..ensembles import Outer
from ..random_points import random_value
from ..symbols import OPAQUE, Total, masked
from .explicit import Explicit
from .writing import written_out

OTHERS = Dummy("n - 1", positive=True)
NUMBERS = (2, 3)  # of sites at which a D that couples them is looked at
ROUNDED = 1e-12  # least eigenvalue, relative to the largest entry, that counts as 0


def reads_other_sites(A: ImmutableMatrix) -> bool:
    """Whether an entry reads a total over sites, other than their number, or an outer product."""
    return any(
        isinstance(t, Outer) or t.integrand is not S.One for e in entries(A).values() for t in e.atoms(Total, Outer)
    )


def least_eigenvalue(
    recipe: Dynamics, *, points: int, fixed: Mapping | None = None, numbers: Collection[int] = NUMBERS
) -> tuple[float, str]:
    """The least eigenvalue of D at T = 1, and where, as in `minimum_eigenvalue`.

    Unless signs show it to be >= 0, a D with totals or outer products is written out over `numbers` of sites: they are
    not independent of the coordinates. A sphere has more than one site.
    """
    D = recipe.D.xreplace({temperature: S.One})
    if recipe.spheres:
        D = D.xreplace({Total(S.One): 1 + OTHERS})
    if not reads_other_sites(D) or _is_nonnegative(D):
        return minimum_eigenvalue(D, points=points, fixed=fixed, requires=recipe.requires)
    values = {s.name: x for s, x in (fixed or {}).items() if isinstance(x, (int, float))}
    return min(minimum_eigenvalue(written_out(recipe, sites, values=values).D, points=points) for sites in numbers)


def least_in_bulk(explicit: Explicit, open_blocks: Collection[Block]) -> tuple[float, str]:
    """The least eigenvalue of D over states in the bulk of the law, and anywhere in blocks of an open U, and where."""
    states = explicit.bulk.copy()
    rows = [i for i, b in enumerate(explicit.blocks) if b in open_blocks]
    states[rows] = explicit.anywhere[rows, : states.shape[1]]
    least = explicit.least_eigenvalues(states)
    least[abs(least) < ROUNDED * explicit.function([sum(map(abs, explicit.D))])(states)[0]] = 0.0
    worst = int(least.argmin())
    at = zip(explicit.coordinates, states[:, worst], strict=True)
    return float(least[worst]), ", ".join(f"{z} = {x:.3g}" for z, x in at)


# A number, or several numbers that the points take in turn.
Number = float | tuple[float, ...]


def minimum_eigenvalue(
    A: ImmutableMatrix,
    *,
    points: int,
    fixed: Mapping[Symbol, float | list[float] | None] | None = None,
    requires: Sequence[Relational] = (),
) -> tuple[float, str]:
    """The least eigenvalue of a symmetric matrix over random states, and where; (0, "") if it is >= 0 by signs.

    `points`: number of random states; `fixed`: numbers by symbol, or lists of numbers that the points take in turn;
    None for a random value. `requires`: relations of the symbols that hold at every state.

    >>> from recipe import positive, real
    >>> a, x = positive("a"), real("x")
    >>> minimum_eigenvalue(ImmutableMatrix([[a]]), points=10)
    (0.0, '')
    >>> minimum_eigenvalue(ImmutableMatrix([[a - 2]]), points=10, fixed={a: 0.5})
    (-1.5, 'a = 0.5')
    """
    known = {s: tuple(v) if isinstance(v, list) else v for s, v in (fixed or {}).items() if v is not None}
    rows = sorted({i for i, _ in entries(A)})
    A = A.extract(rows, rows)
    return (0.0, "") if _is_nonnegative(A) else _least(A, points, tuple(known.items()), tuple(requires))


def least_value(expression: Expr, *, points: int) -> tuple[float, str]:
    """The least value of a formula at random states, and where; unlike signs, values distinguish 0 from above 0."""
    return _least(ImmutableMatrix([[expression]]), points, (), ())


@lru_cache(maxsize=256)
def _least(
    A: ImmutableMatrix, points: int, fixed: tuple[tuple[Symbol, Number], ...], requires: tuple[Relational, ...]
) -> tuple[float, str]:
    """The least eigenvalue over random states, and where; cached for recipes that are variants of each other."""
    import numpy as np

    outside, _ = masked(A, *OPAQUE)
    required = set().union(*(relation.free_symbols for relation in requires))
    symbols = sorted(outside.free_symbols | required, key=lambda s: s.name)
    states = np.array(list(_points(symbols, points, dict(fixed)))).T
    holds = np.ones(states.shape[1:], dtype=bool)
    for relation in requires:
        holds &= np.broadcast_to(of_arrays([symbols], relation)(states), holds.shape)
    states = states[:, holds] if holds.any() else states
    with np.errstate(all="ignore"):
        values = [np.broadcast_to(e, states.shape[1:]) for e in of_arrays([symbols], list(outside), cse=True)(states)]
    matrices = np.array(values, dtype=float).T.reshape(-1, *A.shape)
    least = np.linalg.eigvalsh(matrices)[:, 0]
    least[abs(least) < ROUNDED * abs(matrices).max(axis=(1, 2))] = 0.0
    worst = int(np.nan_to_num(least, nan=np.inf).argmin())
    where = ", ".join(f"{s.name} = {v:.3g}" for s, v in zip(symbols, states[:, worst], strict=True))
    return float(least[worst]), where or "every state"


@lru_cache(maxsize=256)
def _is_nonnegative(A: ImmutableMatrix) -> bool:
    """Whether the signs of its principal minors show that a symmetric matrix is positive semidefinite."""
    if A.is_diagonal() and all(A[i, i].is_nonnegative for i in range(A.rows)):
        return True
    if A.rows > 4 or not A.free_symbols:  # there are 2^d minors; a constant matrix has numerical eigenvalues
        return False
    subsets = (list(s) for k in range(1, A.rows + 1) for s in combinations(range(A.rows), k))
    return all(A.extract(s, s).det().is_nonnegative for s in subsets)


def _points(symbols: list[Symbol], points: int, fixed: Mapping[Symbol, Number]) -> Iterator[list[float]]:
    """Values of the symbols at random points, at least as many points as the longest list in `fixed` has numbers."""
    draw = random.Random(2015)
    lengths = [len(v) for v in fixed.values() if isinstance(v, tuple)]
    for k in range(max([points, *lengths])):
        # Fixed symbols draw too, so that the others have the same values whatever is fixed.
        values = [fixed.get(s, random_value(s, draw)) for s in symbols]
        yield [v[k % len(v)] if isinstance(v, tuple) else v for v in values]
