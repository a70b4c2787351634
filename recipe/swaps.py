"""Swaps: jumps that exchange blocks with a probability that leaves exp(-H/T) invariant, as in replica exchange."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sympy import Expr, exp, expand

from .algebra import vanishes
from .arguments import as_tuple
from .declared import Block
from .declared import temperature as T
from .errors import RecipeError, of_known_arguments
from .formulas import formula


@dataclass(frozen=True)
class Swap:
    """An exchange of blocks, accepted by the ratio of exp(-H/T); `rate`: per unit of time, None for every step.

    The exchange S is an involution of volume 1, so that acceptance with min(1, exp(-(H(S z) - H(z))/T)) leaves
    exp(-H/T) invariant for every H and all blocks.
    """

    pairs: tuple[tuple[Block, Block], ...]
    rate: Expr | None = None
    law = None  # a swap redraws no block
    redrawn = ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The exchanged blocks."""
        return tuple(b for pair in self.pairs for b in pair)

    @property
    def places(self) -> dict[Block, Block]:
        """The block that takes the place of each block."""
        return {a: b for pair in self.pairs for a, b in (pair, pair[::-1])}

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """The formula of the rate, if there is one."""
        return () if self.rate is None else (self.rate,)

    def replaced(self, of: Callable[[Expr], Expr]) -> "Swap":
        """The swap with a function applied to the formula of its rate."""
        return Swap(self.pairs, None if self.rate is None else of(self.rate))

    def excess(self, H: Expr) -> Expr:
        """The difference H(S z) - H(z), with S the exchange of blocks."""
        return expand(H.xreplace(self.places) - H)

    def ratio(self, H: Expr) -> Expr:
        """The ratio exp(-(H(S z) - H(z))/T), with S the exchange of blocks."""
        return exp(-self.excess(H) / T)

    def is_balanced(self, H: Expr) -> str | None:
        """The grade of proof that the way back has the inverse ratio, "symbolic" or "numeric"; None if it has not."""
        excess = self.excess(H)
        return vanishes(expand(excess + excess.xreplace(self.places)))

    def __str__(self):
        sides = [f"({', '.join(map(str, side))})" if len(side) > 1 else str(side[0]) for side in zip(*self.pairs)]
        if self.rate is not None:
            sides.append(f"rate={self.rate}")
        return f"swap({', '.join(sides)})"


@of_known_arguments("swap")
def swap(first: Block | Sequence[Block], second: Block | Sequence[Block], rate: Expr | float | None = None) -> Swap:
    """A jump: two blocks change places with the probability min(1, exp(-(H' - H)/T)), where H' is H after the change.

    All sites of a chain are swapped, or none. Tuples are swapped block by block, such as positions with their momenta:
    `swap((x, p), (y, q))`. With a `rate` nu per unit of time, a swap is tried with the probability 1 - e^{-nu h} in a
    step, else in every step. Raises RecipeError unless both sides have equally many blocks, with pairs of equal kind
    and domain; the Recipe raises for energies that are not `copies` of one energy.

    Source: Swendsen and Wang (1986), "Replica Monte Carlo simulation of spin glasses".

    >>> from recipe import copies, vector
    >>> x, y = vector("x"), vector("y")
    >>> U_x, U_y = copies(x, y)
    >>> print(swap(x, y), swap(x, y).ratio(U_x + U_y/4))
    swap(x, y) exp((3*U(x)/4 - 3*U(y)/4)/T)
    """
    one, other = as_tuple(first), as_tuple(second)
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
