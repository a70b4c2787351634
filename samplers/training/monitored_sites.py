"""The sites of a parameter group at which its numbers are monitored: about a thousand, whatever the size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from .kernels import Text
from .shards import Shards
from .stacked import count
from .tensors import by_chain

SITES, FEWEST = 1024, 32  # sites of a group, and of each of many chains
TENSORS, RUN = 32, 16  # tensors of a group that these sites are in, and neighbours in memory that are read together

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, eq=False)
class MonitoredSites:
    """Sites of each chain of a group, in evenly spaced runs in the memory of at most TENSORS of its tensors.

    `chosen`: the numbers of these tensors; `weights`, and `states` by block: views `(chains, runs, sites of a run)` of
    them. `scalars`: blocks with one value per chain, `(chains,)`. Methods return `(chains, sites)` in float64.
    """

    chosen: Sequence[int]
    chains: int
    device: torch.device
    weights: Tensors
    states: Mapping[str, Tensors]
    scalars: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, params: Tensors, kernel: Text, shards: Shards | None) -> "MonitoredSites":
        """The sites of parameters, in the tensors that their kernel moves: of sharded ones this rank's parts."""
        chains = count(params)
        candidates = range(0, len(params), -(-len(params) // TENSORS))
        wanted = max(SITES, FEWEST * chains)
        every = max(1, -(-sum(params[k].numel() for k in candidates) // wanted))
        run = 1 if every == 1 else RUN
        chosen = [
            k for k in candidates if (shards is None or shards.counted[k]) and kernel.params[k].numel() >= run * chains
        ]

        def views(tensors: Tensors) -> Tensors:
            return [by_chain(tensors[k], chains).unfold(1, run, run * every) for k in chosen]

        states = {b: views(tensors) for b, tensors in kernel.vectors.items()}
        return cls(chosen, chains, params[0].device, views(kernel.params), states, kernel.scalars)

    @cached_property
    def forms(self) -> list[tuple[torch.Size, tuple[int, ...]]]:
        """Shape and strides of the view of each chosen tensor."""
        return [(x.shape, x.stride()) for x in self.weights]

    def count(self, skipped: Sequence[int]) -> int:
        """The number of sites of a chain that a step moves; `skipped`: numbers of the tensors that it does not."""
        return sum(shape[1] * shape[2] for k, (shape, _) in zip(self.chosen, self.forms) if k not in skipped)

    def concatenated(self, views: Tensors) -> torch.Tensor:
        """Views side by side in float64, `(chains, sites)`."""
        if not views:
            return torch.zeros(self.chains, 0, dtype=torch.float64, device=self.device)
        return torch.cat(list(views), 1).double().flatten(1)

    def values(self, blocks: Sequence[str], skipped: Sequence[int]) -> torch.Tensor:
        """The weights, then each of the blocks, `(chains, 1 + blocks, sites)`; blocks are 0 at skipped tensors."""
        lists = [self.weights, *(self.states[b] for b in blocks)]
        values = self.concatenated([x for views in lists for x in views]).view(self.chains, len(lists), -1)
        if skipped:
            values[:, 1:] *= self.is_moved(skipped)[:, None]
        return values

    def is_moved(self, skipped: Sequence[int]) -> torch.Tensor:
        """1 at the sites that a step moves, and 0 at those of skipped tensors, `(chains, sites)`."""
        return self.concatenated(
            [torch.full_like(x, float(k not in skipped)) for k, x in zip(self.chosen, self.weights)]
        )

    def of_gradients(self, gradients: Tensors) -> torch.Tensor:
        """The gradients of the chosen tensors, which lie in memory as the tensors do, `(chains, sites)`."""
        return self.concatenated([g.as_strided(*form) for g, form in zip(gradients, self.forms)])
