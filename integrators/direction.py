"""The direction of time of a chain: the sign s of its curl, expressions at -s, and what a flow keeps of its start."""

from collections.abc import Collection
from dataclasses import replace

from sympy import Abs, Expr, S, Symbol

from recipe import Recipe, total
from recipe.domains import domain_of
from recipe.errors import RecipeError
from recipe.symbols import Adapted, Block, Total, is_site

from .program import DERIVATIVES


class Direction(Adapted):
    """The sign of the curl of a chain, 1 or -1: the direction of time."""

    __slots__ = ()

    def __new__(cls, name="direction"):
        return cls._of(name, {"real": True, "nonzero": True}, False, domain_of("real", name), S.One)

    def __getnewargs_ex__(self):
        return (self.name,), {}


DIRECTION = Direction()
WORK = Adapted("work", False, "real", S.Zero)
ACCEPTED = Adapted("accepted", False, "real", S.Zero)


def directed(recipe: Recipe, frozen: Collection[str] = ()) -> Recipe:
    """The recipe with s Q for Q, where s is the direction of time, and without supplied noise.

    Raises RecipeError for adapted quantities that are not `frozen`.
    """
    running = [a.name for a in recipe.adapted if a.name not in frozen]
    if running:
        what = f"its steps adapt {', '.join(running)} to the path, which has no time reversal"
        raise RecipeError(f"{recipe.name}, work", what, do=f"Freeze them: freeze=({', '.join(map(repr, running))},).")
    symbols = (DIRECTION, WORK, ACCEPTED)
    clashes = {s.name for s in recipe.symbols} & {*(s.name for s in symbols), DERIVATIVES[0]}
    if clashes:
        what = f"'{min(clashes)}' is a name in the state of an accepted step"
        raise RecipeError(f"{recipe.name}, work", what, do="Rename it in the recipe.")
    still = {a: a for a in (*recipe.adapted, *symbols)}
    curl, transport = DIRECTION * recipe.Q, DIRECTION * recipe.transport
    exact = replace(recipe, Q=curl, transport=transport, supplied=0 * recipe.supplied, adapt=still, claim=recipe.claim)
    known = {*exact.parameters}  # without those of the supplied noise and of adaptations
    return replace(exact, requires=tuple(r for r in recipe.requires if r.free_symbols <= known), claim=recipe.claim)


def remembered(s: Symbol, what: str) -> Adapted:
    """The quantity that keeps a value of a symbol until later in the step, by a name that nobody gives a block."""
    return Adapted(f"{s}__{what}", bool(s.is_vector), "real", S.Zero)


def value_before(block: Block) -> Adapted:
    """The quantity that keeps a block's value from before a flow."""
    return remembered(block, "left")


def noise_in(block: Block) -> Adapted:
    """The quantity that keeps the noise in a block's new value."""
    return remembered(block, "jump")


def unsigned(e: Expr) -> Expr:
    """The expression with s^2 = 1 and |s| = 1."""
    s = DIRECTION
    e = e.replace(lambda x: isinstance(x, Abs) and x.args[0] == s, lambda x: S.One)
    return e.replace(lambda x: x.is_Pow and x.base == s and x.exp.is_Integer, lambda x: s ** (x.exp % 2))


def reversed_in_time(e: Expr) -> Expr:
    """The expression at -s."""
    return e.xreplace({DIRECTION: -DIRECTION})


def summed(e: Expr, block: Block) -> Expr:
    """The sum of e over the sites of a vector block; e itself for a scalar block."""
    e = unsigned(e)
    if not block.is_vector:
        return e
    return Total(e) if is_site(e) else total(1) * e
