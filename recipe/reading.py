"""Reading of a declaration's arguments: each is checked, and put into the form that all else takes."""

from collections.abc import Mapping
from typing import Any

from sympy import Expr, ImmutableMatrix, Symbol, zeros
from sympy.core.relational import Relational
from sympy.matrices import MatrixBase

from .arguments import as_tuple, check_known
from .declared import Adapted, Block, Parameter, num_data
from .dynamics import Entries
from .errors import RecipeError
from .fields import transposed
from .formulas import formula
from .involutions import Involution
from .pieces import Jump, Piece, lettered
from .swaps import Swap
from .symbols import is_site

ORDERS = ("lagged", "same_step", "differentiated")


def state_of(state: Any, name: str) -> tuple[Block, ...]:
    """The blocks of a state as a tuple; raises RecipeError for anything else."""
    blocks = (state,) if isinstance(state, Block) else state
    where = f"{name}, state"
    if not isinstance(blocks, (tuple, list)) or not blocks or not all(isinstance(b, Block) for b in blocks):
        what = f"a state is made of blocks, got {tuple(blocks) if isinstance(blocks, list) else blocks!r}"
        raise RecipeError(where, what, do='Declare them with vector("theta") or scalar("xi").')
    for b in blocks:
        if isinstance(b, Adapted):
            do = f"Leave it out of state=, and give its update in adapt={{{b}: ...}}."
            raise RecipeError(where, f"{b} is adapted, and no part of the dynamics", do=do)
    return tuple(blocks)


def target_of(target: Any, state: tuple[Block, ...], name: str) -> Block | tuple[Block, ...]:
    """The target as a block, or as a tuple of several blocks, vectors first."""
    where = f"{name}, target"
    target = state[0] if target is None else target
    blocks = as_tuple(target)
    if not blocks:
        raise RecipeError(where, "it is empty", do="Name the block that the energy is a function of.")
    for b in blocks:
        if b not in state:
            raise RecipeError(where, f"{b} is not in the state", do="Target blocks are part of state=.")
    if len(set(blocks)) < len(blocks):
        raise RecipeError(where, f"a block stands twice in {blocks}", do="Name each once.")
    return tuple(sorted(blocks, key=lambda b: not b.is_vector)) if len(blocks) > 1 else blocks[0]


def updates_of(adapt: Any, order: str, name: str) -> dict[Adapted, Expr]:
    """The updates of adapted quantities as formulas."""
    where = f"{name}, adapt"
    check_known(f"{name}, order {order!r}", "no such order", [order], ORDERS)
    if not isinstance(adapt, Mapping) or not all(isinstance(a, Adapted) for a in adapt):
        do = 'Write V = adapted("V", like=theta, start=...) and adapt={V: ...}.'
        raise RecipeError(where, f"it is a dict over adapted quantities, got {adapt!r}", do=do)
    return {a: formula(e, f"{where}[{a}]") for a, e in adapt.items()}


def jumps_of(
    jumps: Any, state: tuple[Block, ...], pieces: Mapping[str, Piece], name: str
) -> dict[str, Jump | Swap | Involution]:
    """The jumps by letter."""
    where = f"{name}, jumps"
    if not isinstance(jumps, Mapping):
        raise RecipeError(where, f"jumps are a dict by letter, got {jumps!r}", do='Write jumps={"R": refresh(p)}.')
    for letter, jump in jumps.items():
        at = f"{where}[{letter!r}]"
        if not isinstance(jump, Jump | Swap | Involution):
            what = f"a jump is a refresh, gibbs, propose, swap, flip or involution, got {jump!r}"
            raise RecipeError(at, what, do="Write refresh(p, rate=nu), or swap(x, y), or flip(v, rate=...).")
        for b in jump.blocks:
            if b not in state:
                how = "Swap blocks" if isinstance(jump, Swap) else "Move blocks"
                do = f"{'Refresh a block' if jump.redrawn else how} of the state."
                raise RecipeError(at, f"{b} is not in the state", do=do)
        if letter in pieces:
            raise RecipeError(at, "this letter names a piece too", do="Use another letter.")
    lettered({letter: jump.blocks for letter, jump in jumps.items()}, where)
    return dict(jumps)


def conversions_of(conversions: Mapping[str, Mapping], name: str) -> dict[str, dict[Symbol, Expr]]:
    """The conversions by key, the names of a paper's parameters; each is a dict of formulas by parameter."""
    read = {}
    for key, formulas in conversions.items():
        where = f"{name}, conversions[{key!r}]"
        read[key] = {s: formula(e, f"{where}[{s}]") for s, e in formulas.items()}
        names = {s.name for e in read[key].values() for s in e.free_symbols} - {num_data.name}
        if names != set(key.partition("; ")[0].split(", ")):
            what = f"its formulas read {', '.join(sorted(names))}"
            raise RecipeError(where, what, do="Name the paper's parameters in the key.")
    return read


def drift_of(drift: Any, state: tuple[Block, ...], where: str, name: str = "drift") -> list[Expr]:
    """The rows of a drift, or of what has this `name`, in the order of the state; 0 for blocks missing in a dict."""
    if isinstance(drift, Mapping):
        check_known(f"{where}, {name}", "{} is not a block of the state", drift, state)
        drift = [drift.get(b, 0) for b in state]
    rows = list(drift) if isinstance(drift, (MatrixBase, list, tuple)) else []
    if len(rows) != len(state):
        what = f"a state of {len(state)} blocks needs {len(state)} rows, got {drift!r}"
        raise RecipeError(f"{where}, {name}", what, do="Give a dict over blocks, or a column in the order of state=.")
    rows = [formula(row, f"{where}, {name}[{b}]") for b, row in zip(state, rows)]
    for b, row in zip(state, rows):
        if not b.is_vector and is_site(row):
            what = f"{row} has one value per site, but {b} is a scalar"
            raise RecipeError(f"{where}, {name}[{b}]", what, do="Wrap it in total().")
    return rows


def requirements_of(requires: Any, name: str) -> tuple[Relational, ...]:
    """The required relations between parameters as a tuple."""
    requires = as_tuple(requires)
    for r in requires:
        if not isinstance(r, Relational) or not all(isinstance(s, Parameter) for s in r.free_symbols):
            what = f"it is a relation between parameters, got {r!r}"
            raise RecipeError(f"{name}, requires", what, do="Write (v0 < v1,).")
    return requires


def matrix_of(entries: Entries, state: tuple[Block, ...], symmetry: int, where: str) -> ImmutableMatrix:
    """The matrix of a dict or matrix of entries, with A^T = symmetry * A and operators transposed.

    `symmetry`: +1 or -1. Raises RecipeError for entries of unknown blocks, and for a matrix of another symmetry.

    >>> from recipe import vector
    >>> theta, p = vector("theta"), vector("p")
    >>> matrix_of({(theta, p): -1}, (theta, p), -1, "example, Q")
    Matrix([
    [0, -1],
    [1,  0]])
    """
    index = {b: i for i, b in enumerate(state)}
    by_pair = _by_pair(entries, index, where)
    matrix = zeros(len(state))
    for (a, b), entry in by_pair.items():
        value = formula(entry, f"{where}[{a}, {b}]")
        opposite = symmetry * transposed(value)
        excess = (formula(by_pair.get((b, a), opposite), f"{where}[{b}, {a}]") - opposite).expand()
        if excess != 0 and excess.simplify() != 0:
            label = where.split(", ")[-1]
            kind, sign = ("symmetric", "-") if symmetry > 0 else ("skew", "+")
            what = f"not {kind}: {label}[{b}, {a}] {sign} {label}[{a}, {b}] = {excess}, not 0"
            raise RecipeError(where, what, do="Give one triangle only, the other follows.")
        matrix[index[a], index[b]] = value
        matrix[index[b], index[a]] = opposite
    return ImmutableMatrix(matrix)


def _by_pair(entries: Entries, index: dict[Block, int], where: str) -> dict[tuple[Block, Block], Any]:
    """The entries of a dict or a matrix by row and column."""
    do = "Write for example {p: gamma} or {(theta, p): -1}."
    if isinstance(entries, MatrixBase):
        n = len(index)
        if entries.shape != (n, n):
            what = f"a state of {n} blocks needs a {n} x {n} matrix, got {entries.shape}"
            raise RecipeError(where, what, do="Order rows and columns as in state=.")
        return {(a, b): entries[i, j] for a, i in index.items() for b, j in index.items()}
    if not isinstance(entries, Mapping):
        what = f"it is a dict over blocks or a sympy Matrix, got {type(entries).__name__}"
        raise RecipeError(where, what, do=do)
    by_pair = {key if isinstance(key, tuple) else (key, key): entry for key, entry in entries.items()}
    for key in by_pair:
        if len(key) != 2 or not all(isinstance(b, Block) for b in key):
            name = key if key in entries else key[0]
            raise RecipeError(where, f"an entry is named by a block or a pair of blocks, got {name!r}", do=do)
        check_known(where, "{} is not a block of the state", key, index)
    return by_pair
