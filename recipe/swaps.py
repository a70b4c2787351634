"""Swaps: blocks that change places with the probability at which exp(-H/T) stays, as replicas do that are exchanged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sympy import Expr, exp, expand

from .algebra import vanishes
from .errors import RecipeError
from .symbols import Block, formula
from .symbols import temperature as T


@dataclass(frozen=True)
class Swap:
    """An exchange of blocks, accepted by the ratio of exp(-H/T); `rate` is per unit of time, None for every step.

    The exchange S is an involution of volume 1, so that min(1, exp(-(H(S z) - H(z))/T)) leaves exp(-H/T) as it is,
    whatever H, and whichever blocks change places.
    """

    pairs: tuple[tuple[Block, Block], ...]
    rate: Expr | None = None
    law = None  # no block is drawn anew
    redrawn = ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Those that change places."""
        return tuple(b for pair in self.pairs for b in pair)

    @property
    def places(self) -> dict[Block, Block]:
        """What comes to the place of each block."""
        return {a: b for pair in self.pairs for a, b in (pair, pair[::-1])}

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """That of its rate."""
        return () if self.rate is None else (self.rate,)

    def excess(self, H: Expr) -> Expr:
        """H of the state with its blocks exchanged, less H."""
        return expand(H.xreplace(self.places) - H)

    def ratio(self, H: Expr) -> Expr:
        """exp(-H/T) of the state with its blocks exchanged, over that of the state."""
        return exp(-self.excess(H) / T)

    def is_balanced(self, H: Expr) -> str | None:
        """How it is known that the way back has the inverse ratio, "symbolic" or "numeric"; None if it has not."""
        there = self.excess(H)
        return vanishes(expand(there + there.xreplace(self.places)))

    def __str__(self):
        sides = [f"({', '.join(map(str, side))})" if len(side) > 1 else str(side[0]) for side in zip(*self.pairs)]
        if self.rate is not None:
            sides.append(f"rate={self.rate}")
        return f"swap({', '.join(sides)})"


def swap(first: Block | Sequence[Block], second: Block | Sequence[Block], rate: Expr | float | None = None) -> Swap:
    """A jump: two blocks change places with the probability min(1, exp(-(H' - H)/T)), where H' is H after the change.

    The whole of a chain changes places or none of it. Tuples change places block by block, positions with their momenta
    say: `swap((x, p), (y, q))`. With a `rate` nu per unit of time, it is tried with the probability 1 - e^{-nu h} in a
    step, else in every step. Raises RecipeError unless both are of as many blocks, each pair of one kind and domain,
    and the recipe for energies that are not `copies` of one.

    Source: Swendsen and Wang (1986), "Replica Monte Carlo simulation of spin glasses".

    >>> from recipe import copies, vector
    >>> x, y = vector("x"), vector("y")
    >>> U_x, U_y = copies(x, y)
    >>> print(swap(x, y), swap(x, y).ratio(U_x + U_y/4))
    swap(x, y) exp((3*U(x)/4 - 3*U(y)/4)/T)
    """
    one, other = _side(first), _side(second)
    where = f"swap({first}, {second})"
    advice = "Write swap(x, y), or swap((x, p), (y, q)), of blocks as vector() and scalar() make them."
    if len(one) != len(other) or not one:
        raise RecipeError(where, f"{len(one)} blocks and {len(other)} do not change places", do=advice)
    if not all(isinstance(b, Block) for b in one + other) or len({*one, *other}) < 2 * len(one):
        raise RecipeError(where, "it is of blocks, each of them once", do=advice)
    for a, b in zip(one, other):
        if a.is_vector != b.is_vector or a.domain != b.domain:
            kinds = [f"{c} is a {'vector' if c.is_vector else 'scalar'}, {c.domain.in_words}" for c in (a, b)]
            raise RecipeError(where, ", ".join(kinds), do="Blocks of one kind and one domain change places.")
    return Swap(tuple(zip(one, other)), None if rate is None else formula(rate, f"{where}, rate"))


def _side(blocks: Any) -> tuple[Any, ...]:
    return tuple(blocks) if isinstance(blocks, (tuple, list)) else (blocks,)
