"""How an energy sees the target of a chain: as one tensor, or as tensors by name."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layout:
    """How the target tensor of a chain is seen by the energy: as it is, or as tensors by name laid end to end."""

    shapes: dict[str, tuple[int, ...]] | None = None

    @property
    def sizes(self) -> list[int]:
        """The number of sites of each tensor."""
        return [torch.Size(shape).numel() for shape in (self.shapes or {}).values()]

    def by_name(self, theta: torch.Tensor):
        """The target `(*leading, sites)` as a dict of named tensors; unchanged where the target is one tensor."""
        if self.shapes is None:
            return theta
        return {
            name: part.reshape((*theta.shape[:-1], *shape))
            for (name, shape), part in zip(self.shapes.items(), theta.split(self.sizes, -1))
        }
