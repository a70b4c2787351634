"""A sign of clipped gradients in a training loop: one of their sizes stays the same while the other one changes."""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from integrators.transfers import Arrivals, largest, norms
from recipe.errors import warn

from .shards import Shards

LOOKS = 24  # first steps of a training loop that are all looked at; later ones now and then
ALIKE = 4  # of LOOKS steps in a row that were looked at, of one norm or one largest entry: no accident
SAME = 1e-5  # relative: sizes that differ by less are one


class Sizes(NamedTuple):
    """The norm of the gradients of a step, and the largest of their parts: an entry, or the norm of a group."""

    norm: float
    largest: float


class Clipping:
    """Warns once if gradients keep one norm or one largest entry, and the other of the two changes.

    Clipping changes the law that is sampled. Sizes are those of each group, and the norm of all groups of a step, which
    one call of clip_grad_norm_ keeps. `where` begins the warning. `constant`: "norm", or "largest entry", which a loss
    of bounded slope keeps as well. Gradients in half precision are not looked at: their sizes are one by rounding.
    """

    def __init__(self, where: str, arrivals: Arrivals):
        self.where = where
        self.arrivals = arrivals
        self.looks = 0
        self.constant = ""
        self._measured: list[torch.Tensor] = []  # of each group in this step: norms of tensors, largest entry
        self._of_groups: deque[Sizes] = deque(maxlen=LOOKS)
        self._of_steps: deque[tuple[Sizes, Sizes]] = deque(maxlen=LOOKS)  # of several groups, by entry and by group

    @property
    def looks_on(self) -> bool:
        """Whether the gradients of the next step, one of the first, are looked at."""
        return self.looks < LOOKS

    def measure(self, gradients: Sequence[torch.Tensor], shards: Shards | None = None) -> None:
        """Measures the gradients of a group; sharded ones are the parts on this rank, and sizes are of all ranks."""
        self.looks += 1
        if any(torch.finfo(g.dtype).eps > SAME for g in gradients):
            return
        if self.constant and shards is None:  # ranks do not see it at one time, and measure together
            return
        of_each, biggest = norms(gradients), largest(gradients).amax().reshape(1)
        if shards is not None:
            of_each = shards.add(of_each.square()).sqrt()
            shards.spread.maximise(biggest)
        self._measured.append(torch.cat([of_each, biggest]))

    def end_step(self) -> None:
        """Compares what was measured in this step with earlier steps, when all of it has arrived."""
        measured, self._measured = self._measured, []
        arrived: list[Sizes] = []

        def read(numbers: list[float]) -> None:
            *of_each, biggest = numbers
            arrived.append(Sizes(math.hypot(*of_each), biggest))
            if len(arrived) == len(measured):
                self._compare(arrived)

        for numbers in measured:
            self.arrivals.send(numbers, read)

    def _compare(self, of_groups: Sequence[Sizes]) -> None:
        """Compares the sizes of the groups of a step with earlier ones, and that of all together.

        One norm of all is a sign where the largest norm of a group changes: else that group alone makes up the norm.
        """
        for sizes in of_groups:
            if _has_one_norm(sizes, self._of_groups):
                self._warn("norm")
            if _has_one_largest(sizes, self._of_groups):
                self._warn("largest entry")
            self._of_groups.append(sizes)
        if len(of_groups) > 1:
            norms_of_groups, entries = zip(*of_groups)
            norm = math.hypot(*norms_of_groups)
            of_step = Sizes(norm, max(entries)), Sizes(norm, max(norms_of_groups))
            if all(_has_one_norm(now, [then[k] for then in self._of_steps]) for k, now in enumerate(of_step)):
                self._warn("norm")
            self._of_steps.append(of_step)

    def _warn(self, constant: str) -> None:
        """Warns of a size that is constant, unless there was a warning before."""
        if self.constant:
            return
        self.constant = constant
        bounded = "" if constant == "norm" else " A loss of bounded slope, such as L1, has such gradients too."
        warn(
            f"{self.where}: gradients of one {constant}, as if they were clipped. A step that depends on the "
            "gradient's size needs a correction: the law is not the posterior's. Clip the loss, or take a smaller "
            f"lr.{bounded}"
        )


def _has_one_norm(now: Sizes, earlier: Sequence[Sizes]) -> bool:
    """Whether sizes have the norm of earlier ones, with other largest parts."""
    return _distinct([now.largest, *(then.largest for then in earlier if _same(now.norm, then.norm))]) >= ALIKE


def _has_one_largest(now: Sizes, earlier: Sequence[Sizes]) -> bool:
    """Whether sizes have the largest entry of earlier ones, with other norms."""
    return _distinct([now.norm, *(then.norm for then in earlier if _same(now.largest, then.largest))]) >= ALIKE


def _distinct(sizes: Sequence[float]) -> int:
    """How many sizes differ from each other by more than slow changes.

    >>> _distinct([1.0, 1.0005, 1.5, 0.5])
    3
    """
    count, last = 0, 0.0
    for size in sorted(sizes):
        if size - last > 1e-3 * size:
            count, last = count + 1, size
    return count


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * a < math.inf  # norms of a loop that blows up overflow
