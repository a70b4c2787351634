"""A sign of clipped gradients in a training loop: one of their sizes stays the same while the other one changes."""

import math
from collections import deque
from collections.abc import Sequence

import torch

from integrators.transfers import Arrivals, largest, norms
from recipe.errors import warn

from .shards import Shards

LOOKS = 24  # first steps of a training loop that are all looked at; later ones now and then
ALIKE = 4  # of LOOKS steps in a row that were looked at, of one norm or one largest entry: no accident
SAME = 1e-5  # relative: sizes that differ by less are one


class Clipping:
    """Warns once if gradients keep one norm or one largest entry, and the other of the two changes.

    Clipping changes the law that is sampled. `where` begins the warning. `constant`: "norm", or "largest entry", which
    a loss of bounded slope keeps as well; of gradients in half precision, whose entries are rounded, norms alone tell.
    """

    def __init__(self, where: str, arrivals: Arrivals):
        self.where = where
        self.arrivals = arrivals
        self.looks = 0
        self.sizes: deque[tuple[float, float]] = deque(maxlen=LOOKS)  # norm and largest entry of gradients of a step
        self.rounding = 0.0  # of gradients, relative
        self.constant = ""

    @property
    def looks_on(self) -> bool:
        """Whether the gradients of the next step, one of the first, are looked at."""
        return self.looks < LOOKS

    def see(self, gradients: Sequence[torch.Tensor], shards: Shards | None = None) -> None:
        """Measures the gradients of a step; sharded ones are the parts on this rank, and sizes are of all ranks."""
        if self.constant and shards is None:  # ranks do not see it at one time, and measure together
            return
        self.looks += 1
        self.rounding = max(torch.finfo(g.dtype).eps for g in gradients)
        of_each, biggest = norms(gradients), largest(gradients).amax().reshape(1)
        if shards is not None:
            of_each = shards.add(of_each.square()).sqrt()
            shards.spread.maximise(biggest)
        self.arrivals.send(torch.cat([of_each, biggest]), self._read)

    def _read(self, sizes: list[float]) -> None:
        """Compares the sizes of a step's gradients with the sizes of earlier steps."""
        *of_each, biggest = sizes
        norm = math.hypot(*of_each)
        apart = max(1e-3, 4 * self.rounding)
        one_norm = sum(_same(norm, n) and abs(biggest - b) > apart * biggest for n, b in self.sizes)
        one_largest = sum(_same(biggest, b) and abs(norm - n) > apart * norm for n, b in self.sizes)
        if self.rounding > SAME:
            one_largest = 0
        if not self.constant and biggest and max(one_norm, one_largest) >= ALIKE - 1:
            self.constant = "norm" if one_norm >= ALIKE - 1 else "largest entry"
            bounded = "" if self.constant == "norm" else " A loss of bounded slope, such as L1, has such gradients too."
            warn(
                f"{self.where}: gradients of one {self.constant}, as if they were clipped. A step that depends on the "
                "gradient's size needs a correction: the law is not the posterior's. Clip the loss, or take a smaller "
                f"lr.{bounded}"
            )
        self.sizes.append((norm, biggest))


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * a < math.inf  # norms of a loop that blows up overflow
