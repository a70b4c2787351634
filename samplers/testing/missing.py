"""Terms missing from a drift that does not leave exp(-H) invariant, and the curl behind a right drift."""

from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from sympy import Add, Dummy, Expr, Function, ImmutableMatrix, Pow, S, diff, expand, factor_terms, simplify

from recipe import RecipeError, derive
from recipe.algebra import at_one_site, vanishes
from recipe.converse import Recovery, coefficients, recover
from recipe.symbols import OPAQUE, Block, is_site, total

LONG = 500  # operations of a residual, beyond which missing terms are not looked for
SHARES = (S.One, S.Half, S.NegativeOne, S(2))  # missing shares of a term: dropped, halved, doubled, of the wrong sign

Term = tuple[Block, Expr]  # of the drift of a block
Drift = dict[Block, Expr]


class SDE(NamedTuple):
    """dz = f dt + sqrt(2D) dW, and the H whose law exp(-H) should be invariant."""

    state: tuple[Block, ...]
    drift: Any
    H: Expr
    D: ImmutableMatrix


def recovered(sde: SDE) -> Recovery:
    """The Q of recover() among its usual candidates, else with roots and functions of the drift and D, or why none."""
    recovery = recover(sde.state, sde.H, sde.drift, sde.D)
    if recovery.how != "not found":
        return recovery
    functions = {x for e in (*sde.drift, *sde.D) for x in e.atoms(Pow, Function) if not _is_power(x)}
    candidates = sorted((x for x in functions if x.free_symbols and not x.has(*OPAQUE)), key=str)
    return recover(sde.state, sde.H, sde.drift, sde.D, functions=candidates)


def _is_power(x):
    return isinstance(x, Pow) and x.exp.is_integer and x.exp > 0


# ---- missing terms


def missing_drift(residual: Expr, sde: SDE) -> Drift:
    """The simplest drift u found that cancels the residual, in one row, else in several; {} where none is found.

    u in row i adds sum(-du/dz_i + u dH/dz_i) to the residual, linear in the coefficients of u.
    """
    if residual.count_ops() > LONG:
        return {}
    few = _few_terms(sde)
    quotients = [_quotient(residual, b, sde.H) for b in _moving(sde)]
    together = [term for terms in few for term in terms]
    for attempts in (few, quotients, [together], _many_terms(residual, sde, few)):
        drifts = [u for u in (_cancel(residual, terms, sde.H) for terms in attempts if terms) if u]
        if drifts:
            return min(drifts, key=lambda u: sum(e.count_ops() for e in u.values()))
    return {}


def _moving(sde):
    return [b for b in sde.state if not b.domain.is_discrete]


def _few_terms(sde):
    """Candidates by row: the friction, Gamma, a constant, and forces of other blocks of the same kind."""
    friction, gamma = derive.times_gradient(sde.D, sde.H, sde.state), derive.row_divergence(sde.D, sde.state)

    def forces(b):
        return [diff(sde.H, c) for c in _moving(sde) if c != b and c.is_vector == b.is_vector]

    rows = []
    for b in _moving(sde):
        i = sde.state.index(b)
        rows.append([(b, e) for e in dict.fromkeys([friction[i], gamma[i], S.One, *forces(b)]) if e != 0])
    return rows


def _many_terms(residual, sde, few):
    """Candidates by row: those of `few`, the terms of the drift, blocks and their products; none for H with roots."""
    rooted = any(x.base.is_Add and not x.exp.is_integer for e in (residual, sde.H) for x in e.atoms(Pow))
    if rooted:  # hard to solve exactly
        return []
    blocks = _moving(sde)
    powers = [*blocks, *(x * y for x, y in combinations_with_replacement(blocks, 2))]
    rows = []
    for b, terms in zip(blocks, few):
        own = Add.make_args(expand(sde.drift[sde.state.index(b)]))
        rows.append([*terms, *((b, e) for e in (*own, *powers) if b.is_vector or not is_site(e))])
    return rows


def _quotient(residual, b, H):
    """The u in the row of b that does not depend on b, -residual over dH/db, for dH/db linear in b."""
    inside = at_one_site(residual) if b.is_vector else residual
    above, below = diff(inside, b), diff(H, b, 2)
    if above == 0 or below == 0 or above.has(b) or below.has(b):
        return []
    return [(b, -short(above / below))]


def _cancel(residual, terms, H):
    """The combination {block: u} of terms that makes the residual vanish, else None."""

    def change(b, e):
        added = -diff(e, b) + e * diff(H, b)
        return expand(total(added) if b.is_vector else added)

    try:
        changes = [change(b, e) for b, e in terms]
    except RecipeError:  # a term that needs more of U than there is
        return None
    c = [Dummy() for _ in terms]
    x = coefficients([expand(residual) + Add(*(k * e for k, e in zip(c, changes)))], c)
    if not x or not vanishes(expand(residual + Add(*(k * e for k, e in zip(x, changes))))):
        return None
    u: Drift = {}
    for k, (b, e) in zip(x, terms):
        u[b] = u.get(b, S.Zero) + k * e
    return {b: expand(e) for b, e in u.items() if expand(e) != 0}


def shares_of(missing: Drift, sde: SDE) -> list[str]:
    """Notes on the share of the friction, or of Gamma, in the drift, where the missing term is a multiple of either."""
    if not missing:
        return []
    whole_drift = [e + missing.get(b, S.Zero) for b, e in zip(sde.state, sde.drift)]
    Q = recovered(sde._replace(drift=whole_drift)).Q
    friction = derive.times_gradient(sde.D, sde.H, sde.state)
    gamma = derive.row_divergence(sde.D if Q is None else sde.D + Q, sde.state)
    notes = []
    for b, u in missing.items():
        i = sde.state.index(b)
        for whole, name in ((-friction[i], f"the friction D grad H of {b}"), (gamma[i], f"Gamma[{b}] = {gamma[i]}")):
            shares = [1 - k for k in SHARES if whole != 0 and vanishes(u - k * whole)]
            notes += [f"the drift has {k} times {name}" for k in shares[:1]]
    return notes


def short(residual: Expr) -> Expr:
    """A formula in its shortest form; simplify, slow for long formulas, is tried only on short ones."""
    forms = [residual, factor_terms(residual)]
    if residual.count_ops() < 60:
        forms.append(simplify(residual))
    return min(forms, key=lambda e: (e.count_ops(), str(e)))
