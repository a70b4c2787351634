"""What a user writes in a declaration, checked and made regular."""

from collections.abc import Mapping

from sympy import ImmutableMatrix, zeros
from sympy.core.relational import Relational
from sympy.matrices import MatrixBase

from .errors import RecipeError, did_you_mean
from .pieces import Jump, lettered
from .symbols import Adapted, Block, Parameter, formula, num_data

ORDERS = ("lagged", "same_step", "differentiated")


def state_of(state, name):
    """The blocks of a state as a tuple."""
    state = (state,) if isinstance(state, Block) else tuple(state) if isinstance(state, (tuple, list)) else state
    if not isinstance(state, tuple) or not state or not all(isinstance(b, Block) for b in state):
        raise RecipeError(
            f"{name}, state",
            f"a state is made of blocks, got {state!r}",
            do='Declare them with vector("theta") or scalar("xi").',
        )
    for b in state:
        if isinstance(b, Adapted):
            raise RecipeError(
                f"{name}, state",
                f"{b} is adapted, and no part of the dynamics",
                do=f"Leave it out of state=, and give its update in adapt={{{b}: ...}}.",
            )
    return state


def target_of(target, state, name):
    """The target as a block, or a tuple of scalar blocks."""
    if target is None:
        target = state[0]
    blocks = tuple(target) if isinstance(target, (tuple, list)) else (target,)
    if not blocks:
        raise RecipeError(f"{name}, target", "it is empty", do="Name the block that the energy is a function of.")
    for b in blocks:
        if b not in state:
            raise RecipeError(f"{name}, target", f"{b} is not in the state", do="Target blocks are part of state=.")
        if b.domain == "binary":
            raise RecipeError(f"{name}, target", f"{b} is binary, and has no gradient", do="Keep it beside the target.")
    if len(blocks) > 1 and any(b.is_vector for b in blocks):
        raise RecipeError(
            f"{name}, target",
            "several target blocks are explicit coordinates, and so scalars",
            do="Use one vector block, or several scalar blocks.",
        )
    return blocks if len(blocks) > 1 else blocks[0]


def updates_of(adapt, order, name):
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


def jumps_of(jumps, state, pieces, name):
    """The jumps by letter."""
    if not isinstance(jumps, Mapping):
        raise RecipeError(
            f"{name}, jumps", f"jumps are a dict by letter, got {jumps!r}", do='Write jumps={"R": refresh(p)}.'
        )
    for letter, jump in jumps.items():
        where = f"{name}, jumps[{letter!r}]"
        if not isinstance(jump, Jump):
            raise RecipeError(where, f"a jump is a refresh(block), got {jump!r}", do="Write refresh(p, rate=nu).")
        if jump.block not in state:
            raise RecipeError(where, f"{jump.block} is not in the state", do="Refresh a block of the state.")
        if jump.rate is not None and jump.rate.has(jump.block):
            raise RecipeError(
                f"{where}, rate",
                f"{jump.rate} reads {jump.block}, and the jump would not keep the law",
                do="Make it a rate of what stays.",
            )
        if letter in pieces:
            raise RecipeError(where, "this letter names a piece too", do="Use another letter.")
    lettered({letter: jump.block for letter, jump in jumps.items()}, f"{name}, jumps")
    return dict(jumps)


def conversions_of(conversions, name):
    """The values by parameter for each set of a paper's parameters, whose names are the key."""
    settled = {}
    for key, values in conversions.items():
        where, names = f"{name}, conversions[{key!r}]", set(key.split(", "))
        values = {s: formula(e, f"{where}[{s}]") for s, e in values.items()}
        read = {s.name for e in values.values() for s in e.free_symbols} - {num_data.name}
        if read != names:
            raise RecipeError(
                where, f"its formulas read {', '.join(sorted(read))}", do="Name the paper's parameters in the key."
            )
        settled[key] = values
    return settled


def drift_of(drift, state, where):
    """The rows of somebody's drift as formulas, in the order of the state; a block that a dict leaves out has 0."""
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


def requirements_of(requires, name):
    """The relations between parameters that must hold."""
    requires = tuple(requires) if isinstance(requires, (tuple, list)) else (requires,)
    for r in requires:
        if not isinstance(r, Relational) or not all(isinstance(s, Parameter) for s in r.free_symbols):
            raise RecipeError(
                f"{name}, requires", f"it is a relation between parameters, got {r!r}", do="Write (v0 < v1,)."
            )
    return requires


def matrix_of(entries, state, symmetry, where):
    """The matrix of a dict or matrix of entries, with A^T = symmetry * A."""
    n, index = len(state), {b: i for i, b in enumerate(state)}
    word = {+1: "symmetric", -1: "skew"}[symmetry]
    if isinstance(entries, MatrixBase):
        if entries.shape != (n, n):
            raise RecipeError(
                where,
                f"a state of {n} blocks needs a {n} x {n} matrix, got {entries.shape}",
                do="Order rows and columns as in state=.",
            )
        given = {(a, b): entries[i, j] for a, i in index.items() for b, j in index.items()}
    elif isinstance(entries, Mapping):
        given = {}
        for key, value in entries.items():
            pair = key if isinstance(key, tuple) else (key, key)
            if len(pair) != 2 or not all(isinstance(b, Block) for b in pair):
                raise RecipeError(
                    where,
                    f"an entry is named by a block or a pair of blocks, got {key!r}",
                    do="Write for example {p: gamma} or {(theta, p): -1}.",
                )
            given[pair] = value
    else:
        raise RecipeError(
            where,
            f"it is a dict over blocks or a sympy Matrix, got {type(entries).__name__}",
            do="Write for example {p: gamma} or {(theta, p): -1}.",
        )
    matrix = zeros(n, n)
    for (a, b), value in given.items():
        for block in (a, b):
            if block not in index:
                raise RecipeError(where, f"{block} is not a block of the state", do=did_you_mean(block, index))
        i, j = index[a], index[b]
        value = formula(value, f"{where}[{a}, {b}]")
        mirror = formula(given.get((b, a), symmetry * value), f"{where}[{b}, {a}]")
        excess = (mirror - symmetry * value).expand()
        if excess != 0 and excess.simplify() != 0:
            label, op = where.split(", ")[-1], "-" if symmetry > 0 else "+"
            raise RecipeError(
                where,
                f"not {word}: {label}[{b}, {a}] {op} {label}[{a}, {b}] = {excess}, not 0",
                do="Give one triangle only, the other follows.",
            )
        matrix[i, j], matrix[j, i] = value, symmetry * value
    return ImmutableMatrix(matrix)
