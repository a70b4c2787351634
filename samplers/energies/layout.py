"""How an energy sees the target of a chain: as one tensor, or as tensors by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from recipe import Recipe

Target = torch.Tensor | dict[str, torch.Tensor]  # `(chains, *shape)`, by block for explicit coordinates


@dataclass(frozen=True)
class Layout:
    """How the target tensor of a chain is seen by the energy: as it is, or as tensors by name laid end to end.

    `shapes`: those of the tensors by name, in their order; None where the target is one tensor.

    >>> Layout({"w": (2, 2), "c": (1,)}).by_name(torch.arange(5))["w"]
    tensor([[0, 1],
            [2, 3]])
    """

    shapes: dict[str, tuple[int, ...]] | None = None

    @property
    def sizes(self) -> list[int]:
        """The number of sites of each tensor."""
        return [torch.Size(shape).numel() for shape in (self.shapes or {}).values()]

    def by_name(self, theta: torch.Tensor) -> Any:
        """The target `(*leading, sites)` as a dict of named tensors; unchanged where the target is one tensor."""
        if self.shapes is None:
            return theta
        parts = zip(self.shapes.items(), theta.split(self.sizes, -1))
        return {name: part.reshape((*theta.shape[:-1], *shape)) for (name, shape), part in parts}


def target_of(recipe: Recipe, state: Mapping[str, Any]) -> Target:
    """The target of all chains: a tensor `(chains, *shape)`, or a dict by block for explicit coordinates."""
    if len(recipe.targets) == 1:
        return state[recipe.targets[0].name]
    return {b.name: state[b.name] for b in recipe.targets}
