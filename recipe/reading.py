"""Checks and normal forms of a declaration's arguments."""

from collections.abc import Mapping
from typing import Any

from sympy import Expr, ImmutableMatrix, Symbol, zeros
from sympy.core.relational import Relational
from sympy.matrices import MatrixBase

from .declared import Adapted, Block, Parameter, num_data
from .dynamics import Entries
from .errors import RecipeError, did_you_mean
from .laws import Law
from .operators import transposed
from .pieces import Jump, Piece, lettered
from .swaps import Swap
from .symbols import formula, is_site

ORDERS = ("lagged", "same_step", "differentiated")


def state_of(state: Any, name: str) -> tuple[Block, ...]:
    """The blocks of a state as a tuple; raises RecipeError for anything else."""
    blocks = (state,) if isinstance(state, Block) else state
    if not isinstance(blocks, (tuple, list)) or not blocks or not all(isinstance(b, Block) for b in blocks):
        raise RecipeError(
            f"{name}, state",
            f"a state is made of blocks, got {tuple(blocks) if isinstance(blocks, list) else blocks!r}",
            do='Declare them with vector("theta") or scalar("xi").',
        )
    for b in blocks:
        if isinstance(b, Adapted):
            raise RecipeError(
                f"{name}, state",
                f"{b} is adapted, and no part of the dynamics",
                do=f"Leave it out of state=, and give its update in adapt={{{b}: ...}}.",
            )
    return tuple(blocks)


def target_of(target: Any, state: tuple[Block, ...], name: str) -> Block | tuple[Block, ...]:
    """The target as a block, or as a tuple of several blocks, vectors first."""
    if target is None:
        target = state[0]
    blocks = tuple(target) if isinstance(target, (tuple, list)) else (target,)
    if not blocks:
        raise RecipeError(f"{name}, target", "it is empty", do="Name the block that the energy is a function of.")
    for b in blocks:
        if b not in state:
            raise RecipeError(f"{name}, target", f"{b} is not in the state", do="Target blocks are part of state=.")
        if b.domain.is_discrete:
            raise RecipeError(
                f"{name}, target", f"{b} is of categories, and has no gradient", do="Keep it beside the target."
            )
    if len(set(blocks)) < len(blocks):
        raise RecipeError(f"{name}, target", f"a block stands twice in {blocks}", do="Name each once.")
    return tuple(sorted(blocks, key=lambda b: not b.is_vector)) if len(blocks) > 1 else blocks[0]


def updates_of(adapt: Any, order: str, name: str) -> dict[Adapted, Expr]:
    """The updates of adapted quantities as formulas."""
    where = f"{name}, adapt"
    if order not in ORDERS:
        raise RecipeError(f"{name}, order {order!r}", "no such order", do=did_you_mean(order, ORDERS))
    if not isinstance(adapt, Mapping) or not all(isinstance(a, Adapted) for a in adapt):
        raise RecipeError(
            where,
            f"it is a dict over adapted quantities, got {adapt!r}",
            do='Write V = adapted("V", like=theta, start=...) and adapt={V: ...}.',
        )
    return {a: formula(e, f"{where}[{a}]") for a, e in adapt.items()}


def jumps_of(jumps: Any, state: tuple[Block, ...], pieces: Mapping[str, Piece], name: str) -> dict[str, Jump | Swap]:
    """The jumps by letter."""
    if not isinstance(jumps, Mapping):
        raise RecipeError(
            f"{name}, jumps", f"jumps are a dict by letter, got {jumps!r}", do='Write jumps={"R": refresh(p)}.'
        )
    for letter, jump in jumps.items():
        where = f"{name}, jumps[{letter!r}]"
        if not isinstance(jump, Jump | Swap):
            what = f"a jump is a refresh(block) or a gibbs(block, law), got {jump!r}"
            raise RecipeError(where, what, do="Write refresh(p, rate=nu), or swap(x, y).")
        for b in jump.blocks:
            if b not in state:
                do = "Refresh a block of the state." if jump.redrawn else "Swap blocks of the state."
                raise RecipeError(where, f"{b} is not in the state", do=do)
        if jump.law is not None:
            _check_law(jump.block, jump.law, where)
        if jump.rate is not None:
            _check_rate(jump, jump.rate, f"{where}, rate")
        if letter in pieces:
            raise RecipeError(where, "this letter names a piece too", do="Use another letter.")
    lettered({letter: jump.blocks for letter, jump in jumps.items()}, f"{name}, jumps")
    return dict(jumps)


def _check_law(block: Block, law: Law, where: str) -> None:
    """Refuse a law with parameters that read the block, or that are per site for a scalar block."""
    for e in law.arguments:
        if e.has(block):
            what = f"{e} reads {block}, and a law given all else is of what stays"
            raise RecipeError(where, what, do=f"Write its parameters without {block}.")
        if is_site(e) and not block.is_vector:
            what = f"{e} has one value per site, but {block} is one number"
            raise RecipeError(where, what, do="Wrap it in total().")


def _check_rate(jump: Jump | Swap, rate: Expr, where: str) -> None:
    """Refuse a rate that reads a jumping block, and a rate per site of a swap."""
    for b in jump.blocks:
        if rate.has(b):
            what = f"{rate} reads {b}, and the jump would not keep the law"
            raise RecipeError(where, what, do="Make it a rate of what stays.")
    if isinstance(jump, Swap) and is_site(rate):
        what = f"{rate} has one value per site, and a chain is swapped as a whole"
        raise RecipeError(where, what, do="Wrap it in total().")


def conversions_of(conversions: Mapping[str, Mapping], name: str) -> dict[str, dict[Symbol, Expr]]:
    """The conversions by key, the names of a paper's parameters; each is a dict of formulas by parameter."""
    return {key: _conversion(key, formulas, f"{name}, conversions[{key!r}]") for key, formulas in conversions.items()}


def _conversion(key: str, formulas: Mapping, where: str) -> dict[Symbol, Expr]:
    conversion = {s: formula(e, f"{where}[{s}]") for s, e in formulas.items()}
    names = {s.name for e in conversion.values() for s in e.free_symbols} - {num_data.name}
    if names != set(key.partition("; ")[0].split(", ")):
        what = f"its formulas read {', '.join(sorted(names))}"
        raise RecipeError(where, what, do="Name the paper's parameters in the key.")
    return conversion


def drift_of(drift: Any, state: tuple[Block, ...], where: str) -> list[Expr]:
    """The rows of a drift as formulas, in the order of the state; 0 for blocks missing in a dict."""
    if isinstance(drift, Mapping):
        for b in drift.keys() - set(state):
            raise RecipeError(f"{where}, drift", f"{b} is not a block of the state", do=did_you_mean(b, state))
        drift = [drift.get(b, 0) for b in state]
    rows = list(drift) if isinstance(drift, (MatrixBase, list, tuple)) else []
    if len(rows) != len(state):
        raise RecipeError(
            f"{where}, drift",
            f"a state of {len(state)} blocks needs {len(state)} rows, got {drift!r}",
            do="Give a dict over blocks, or a column in the order of state=.",
        )
    return [formula(row, f"{where}, drift[{b}]") for b, row in zip(state, rows)]


def requirements_of(requires: Any, name: str) -> tuple[Relational, ...]:
    """The required relations between parameters as a tuple."""
    requires = tuple(requires) if isinstance(requires, (tuple, list)) else (requires,)
    for r in requires:
        if not isinstance(r, Relational) or not all(isinstance(s, Parameter) for s in r.free_symbols):
            raise RecipeError(
                f"{name}, requires", f"it is a relation between parameters, got {r!r}", do="Write (v0 < v1,)."
            )
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
    by_pair = _by_pair(entries, state, where)
    matrix = zeros(len(state))
    for (a, b), entry in by_pair.items():
        for block in (a, b):
            if block not in index:
                raise RecipeError(where, f"{block} is not a block of the state", do=did_you_mean(block, index))
        value = formula(entry, f"{where}[{a}, {b}]")
        mirror = formula(by_pair.get((b, a), symmetry * transposed(value)), f"{where}[{b}, {a}]")
        excess = (mirror - symmetry * transposed(value)).expand()
        if excess != 0 and excess.simplify() != 0:
            raise _asymmetric(where, a, b, symmetry, excess)
        matrix[index[a], index[b]] = value
        matrix[index[b], index[a]] = symmetry * transposed(value)
    return ImmutableMatrix(matrix)


_AN_ENTRY = "Write for example {p: gamma} or {(theta, p): -1}."


def _by_pair(entries: Entries, state: tuple[Block, ...], where: str) -> dict[tuple[Block, Block], Any]:
    """The entries of a dict or a matrix by row and column."""
    if isinstance(entries, Mapping):
        return {_pair(key, where): entry for key, entry in entries.items()}
    if not isinstance(entries, MatrixBase):
        what = f"it is a dict over blocks or a sympy Matrix, got {type(entries).__name__}"
        raise RecipeError(where, what, do=_AN_ENTRY)
    n = len(state)
    if entries.shape != (n, n):
        raise RecipeError(
            where,
            f"a state of {n} blocks needs a {n} x {n} matrix, got {entries.shape}",
            do="Order rows and columns as in state=.",
        )
    return {(a, b): entries[i, j] for i, a in enumerate(state) for j, b in enumerate(state)}


def _pair(key: Any, where: str) -> tuple[Block, Block]:
    """The row and the column of an entry's key."""
    pair = key if isinstance(key, tuple) else (key, key)
    if len(pair) != 2 or not all(isinstance(b, Block) for b in pair):
        raise RecipeError(where, f"an entry is named by a block or a pair of blocks, got {key!r}", do=_AN_ENTRY)
    return pair


def _asymmetric(where: str, a: Block, b: Block, symmetry: int, excess: Expr) -> RecipeError:
    label = where.split(", ")[-1]
    kind, sign = ("symmetric", "-") if symmetry > 0 else ("skew", "+")
    return RecipeError(
        where,
        f"not {kind}: {label}[{b}, {a}] {sign} {label}[{a}, {b}] = {excess}, not 0",
        do="Give one triangle only, the other follows.",
    )
