"""Derivatives of U along a word: which of them a step reads, leaves behind and carries over, and their names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NamedTuple

from sympy import Expr

from recipe import Recipe
from recipe.scheme import Scheme
from recipe.symbols import Adapted, Block, Potential

from .flow import Flow, reads_U
from .program import Local
from .variates import Variate


class Derivative(NamedTuple):
    """A derivative of U: its order, 0 for U itself, and the potential, None where a recipe has none."""

    order: int
    U: Potential | None

    def blocks(self, recipe: Recipe) -> tuple[Block, ...]:
        """The blocks that the derivative is a function of."""
        return self.U.blocks if self.U else recipe.targets

    def exchanged(self, places: Mapping[Block, Block]) -> "Derivative":
        """The derivative that takes the place of this derivative in a swap of blocks."""
        return Derivative(self.order, self.U and self.U.xreplace(places))

    def names(self, recipe: Recipe) -> dict[Block, Local]:
        """Names of the derivative by block; for U itself (order 0) one name, at the first block."""
        blocks = self.blocks(recipe)[: None if self.order else 1]
        stem = {0: "U", 1: "g", 2: "c"}[self.order]
        if self.U is not None and recipe.has_several_potentials:
            names = [f"{stem}_{recipe.place(self.U, b)}" for b in blocks]
        else:
            names = [stem] if len(blocks) == 1 else [f"{stem}_{b}" for b in blocks]
        return {b: Local(name, bool(self.order) and b.is_vector) for b, name in zip(blocks, names)}


@dataclass(frozen=True)
class Composition:
    """The flows of a step in their order, each with its share of h, and the adaptations."""

    recipe: Recipe
    scheme: Scheme
    moves: Sequence[tuple[Flow, Expr]]
    adapt: Mapping[Adapted, Expr]
    reuses: bool

    @cached_property
    def has_swaps(self) -> bool:
        """Whether a flow swaps blocks."""
        return any(flow.swaps for flow, _ in self.moves)

    @property
    def follows(self) -> bool:
        """Whether derivatives of U follow swaps."""
        return self.reuses and not self.adapt

    @property
    def adapts_first(self) -> bool:
        """Whether quantities adapt before the first flow that reads them."""
        return self.recipe.order == "same_step"

    @property
    def first_read(self) -> int:
        """The index of the first move that reads grad U, else of the last move."""
        reading = [k for k, (flow, _) in enumerate(self.moves) if flow.reads_gradient]
        return min([*reading, len(self.moves) - 1])

    def derivatives(self, order: int) -> list[Derivative]:
        """The derivatives of one order of all potentials."""
        return [Derivative(order, U) for U in self.recipe.potentials or (None,)]

    def reads(self, d: Derivative, k: int) -> bool:
        """Whether move k or a later one, cyclically, reads a derivative of U before the target moves.

        A swap that derivatives follow does not count as a move of the target.
        """
        for flow, _ in (*self.moves[k:], *self.moves[:k]):
            if flow.reads(*d):
                return True
            if self._moves(flow, d) and not (self.follows and flow.swaps):
                return False
        return False

    def leaves(self, d: Derivative) -> bool:
        """Whether a step that starts without derivatives of U ends with this one known at its last target."""
        moving = [k for k, (flow, _) in enumerate(self.moves) if self._moves(flow, d)]
        rest = max(moving, default=-1) + 1  # from this move on the target stays
        if any(flow.reads(*d) for flow, _ in self.moves[rest:]):
            return True
        if not reads_U(self.adapt.values(), *d):
            return False
        if self.adapts_first:
            return self.first_read >= rest
        # lagged quantities read the first gradient of the step, if there is one
        return d.order != 1 or not any(flow.reads(*d) for flow, _ in self.moves)

    def _moves(self, flow: Flow, d: Derivative) -> bool:
        return any(b in d.blocks(self.recipe) for b in flow.updates)

    def named_draws(self) -> list[dict[Variate, Variate]]:
        """For each move, the flow's variates renamed: "p" if the step draws one for p, else "p1", "p2", ..."""
        total = Counter(d.block for flow, _ in self.moves for d in flow.draws)

        def named(b: Block, gap: str, number: int) -> str:
            return f"{b}{gap}{number}" if total[b] > 1 else b.name

        def are_unique(gap: str) -> bool:
            names = [named(b, gap, k + 1) for b, number in total.items() for k in range(number)]
            return len({*names}) == len(names)

        gap = next(filter(are_unique, ("_" * k for k in count())))
        numbers = {b: count(1) for b in total}
        return [
            {d: type(d)(d.block, named(d.block, gap, next(numbers[d.block])), d.is_vector) for d in flow.draws}
            for flow, _ in self.moves
        ]
