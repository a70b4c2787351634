"""Detection of clipped gradients: clipping changes the law that is sampled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from integrators.processes import Spread
from integrators.transfers import Arrivals, largest, norms
from recipe.errors import warn

from .shards import counted

LOOKS = 24  # first steps of a training loop
ALIKE = 4  # steps of one norm, or one largest entry, that are no accident


@dataclass(frozen=True)
class Size:
    """The size of a step's gradients: their norm, and their largest entry."""

    norm: float
    largest: float

    def only_norm_is(self, other: "Size") -> bool:
        """Whether the norms agree and the largest entries do not."""
        return _same(self.norm, other.norm) and _apart(self.largest, other.largest)

    def only_largest_is(self, other: "Size") -> bool:
        """Whether the largest entries agree and the norms do not."""
        return _same(self.largest, other.largest) and _apart(self.norm, other.norm)


class ClippingWatch:
    """Warns once if gradients of the first steps keep one norm or one largest entry, and the other of the two changes.

    `where` begins the warning.
    """

    def __init__(self, where: str, arrivals: Arrivals):
        self.where = where
        self.arrivals = arrivals
        self.looks = 0
        self.sizes: list[Size] = []

    @property
    def looks_on(self) -> bool:
        """Whether the gradients of the next step are looked at."""
        return self.looks < LOOKS

    def see(self, gradients: Sequence[torch.Tensor], spread: Spread | None = None) -> None:
        """Measures the gradients of a step; the sizes are compared when they have arrived from the device.

        With a `spread`, `gradients` are the part on this rank, and sizes are taken over all ranks.
        """
        if self.looks_on:
            self.looks += 1
            sizes = [norms(gradients), largest(gradients)]
            if spread is not None:
                squares = (sizes[0].square() * sizes[0].new_tensor(counted(spread, gradients))).sum().reshape(1)
                spread.add(squares)
                spread.maximise(sizes[1])
                sizes = [squares.sqrt(), sizes[1].amax().reshape(1)]
            self.arrivals.send(torch.cat(sizes), self._read)

    def _read(self, sizes: list[float]) -> None:
        """Compares the sizes of a step's gradients with the sizes of earlier steps."""
        if len(self.sizes) >= LOOKS:
            return
        tensors = len(sizes) // 2
        biggest = max(sizes[tensors:])
        size = Size(math.hypot(*sizes[:tensors]), biggest)
        of_one_norm = sum(other.only_norm_is(size) for other in self.sizes)
        of_one_largest = sum(other.only_largest_is(size) for other in self.sizes)
        self.sizes.append(size)
        if biggest and max(of_one_norm, of_one_largest) >= ALIKE - 1:
            warn(
                f"{self.where}: gradients of one norm, or of one largest entry, as if they were clipped. A step that "
                "depends on the gradient's size needs a correction: the law is not the posterior's. Clip the loss, or "
                "take a smaller lr."
            )
            self.sizes += [Size(0.0, 0.0)] * LOOKS  # no more looks


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-5 * a


def _apart(a: float, b: float) -> bool:
    return abs(a - b) > 1e-3 * a
