"""Chains with sites divided over processes: the sites of this process, and sums over all processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .noise import Places

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SiteRun:
    """A run of neighbouring sites of this process: `sites` sites from the site `first` of the chain on.

    `counted`: whether this process adds the run to sums over all processes; other processes may hold copies.
    """

    first: int
    sites: int
    counted: bool = True


@dataclass(frozen=True, eq=False)
class Spread:
    """The runs of this process, in the order of its memory, of chains with `sites` sites over all processes.

    `add(x)` replaces a tensor by its sum over the processes, in place, `maximise(x)` by the maximum. Random numbers
    equal those of undivided chains, and totals over the sites equal theirs up to rounding.
    """

    sites: int
    runs: tuple[SiteRun, ...]
    add: "Callable[[Tensor], object]"
    maximise: "Callable[[Tensor], object]"

    @property
    def places(self) -> Places:
        """The sites of this process as places of the noise."""
        return Places(self.sites, tuple((run.first, run.sites) for run in self.runs))

    def total(self, x: "Tensor") -> "Tensor":
        """The sums over the sites of all processes, `(chains,)`, from the values at the sites of this process."""
        parts = x.reshape(len(x), -1).split([run.sites for run in self.runs], 1)
        sums = x.new_zeros(len(x)).double()
        for run, part in zip(self.runs, parts):
            if run.counted:
                sums += part.sum(1, dtype=sums.dtype)
        self.add(sums)
        return sums.to(x.dtype)
