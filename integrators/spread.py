"""Chains whose sites are spread over processes: which sites are here, and sums over those of all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .noise import Places

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Neighbouring sites that are here: so many from the site `first` of the chain on.

    `counted`: whether sums over all processes have them from here; others may have copies.
    """

    first: int
    sites: int
    counted: bool = True


@dataclass(frozen=True, eq=False)
class Spread:
    """The sites of this process, in the order of its memory, of chains that have `sites` of them over all processes.

    `add(x)` replaces a tensor by its sum over the processes, in place, `maximise(x)` by its largest. Numbers that are
    drawn, and totals over the sites, are those of chains that are whole, the latter up to rounding.
    """

    sites: int
    runs: tuple[Run, ...]
    add: "Callable[[Tensor], object]"
    maximise: "Callable[[Tensor], object]"

    @property
    def places(self) -> Places:
        """Where the sites of this process are in the noise."""
        return Places(self.sites, tuple((run.first, run.sites) for run in self.runs))

    def total(self, x: "Tensor") -> "Tensor":
        """The sums over all sites of each chain, `(chains,)`, of the values at the sites that are here."""
        parts = x.reshape(len(x), -1).split([run.sites for run in self.runs], 1)
        sums = x.new_zeros(len(x)).double()
        for run, part in zip(self.runs, parts):
            if run.counted:
                sums += part.sum(1, dtype=sums.dtype)
        self.add(sums)
        return sums.to(x.dtype)
