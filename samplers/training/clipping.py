"""A sign of clipped gradients in a training loop: one of their sizes stays the same while the other one changes."""

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from integrators.transfers import Arrivals, largest, norms
from recipe.errors import warn

from .shards import Shards

LOOKS = 24  # first steps of a training loop that are all looked at; later ones now and then
ALIKE = 4  # of LOOKS steps in a row that were looked at, of one norm or one largest entry: no accident
SAME = 1e-5  # relative: sizes that differ by less are one


class Sizes(NamedTuple):
    """Sizes of the gradients of a step, and how far these are rounded, relative."""

    norm: float
    largest: float
    rounding: float


class Clipping:
    """Warns once if gradients keep one norm or one largest entry, and the other of the two changes.

    Clipping changes the law that is sampled. Norms are compared of each group, and of all groups of a step together,
    which one call of clip_grad_norm_ keeps; largest entries of each group. `where` begins the warning. `constant`:
    "norm", or "largest entry", which a loss of bounded slope keeps as well; of gradients in half precision, whose
    entries are rounded, norms alone tell.
    """

    def __init__(self, where: str, arrivals: Arrivals):
        self.where = where
        self.arrivals = arrivals
        self.looks = 0
        self.constant = ""
        self._measured: dict[int, tuple[torch.Tensor, float]] = {}  # by group, in this step: sizes, and their rounding
        self._earlier: dict[tuple[int, ...], deque[Sizes]] = {}  # by groups that are taken together

    @property
    def looks_on(self) -> bool:
        """Whether the gradients of the next step, one of the first, are looked at."""
        return self.looks < LOOKS

    def measure(self, index: int, gradients: Sequence[torch.Tensor], shards: Shards | None = None) -> None:
        """Measures the gradients of a group; sharded ones are the parts on this rank, and sizes are of all ranks."""
        if self.constant and shards is None:  # ranks do not see it at one time, and measure together
            return
        of_each, biggest = norms(gradients), largest(gradients).amax().reshape(1)
        if shards is not None:
            of_each = shards.add(of_each.square()).sqrt()
            shards.spread.maximise(biggest)
        self._measured[index] = torch.cat([of_each, biggest]), max(torch.finfo(g.dtype).eps for g in gradients)

    def end_step(self) -> None:
        """Compares what was measured in this step with earlier steps, when all of it has arrived."""
        if not self._measured:
            return
        self.looks += 1
        measured, self._measured = self._measured, {}
        arrived: dict[int, Sizes] = {}

        def read(numbers: list[float], index: int, rounding: float) -> None:
            *of_each, biggest = numbers
            arrived[index] = Sizes(math.hypot(*of_each), biggest, rounding)
            if len(arrived) == len(measured):
                self._compare(arrived)

        for index, (numbers, rounding) in measured.items():
            self.arrivals.send(numbers, partial(read, index=index, rounding=rounding))

    def _compare(self, of_groups: dict[int, Sizes]) -> None:
        """Compares the sizes of a step, of each group and of all together, with those of earlier steps."""
        sizes: dict[tuple[int, ...], Sizes] = {(index,): of_group for index, of_group in of_groups.items()}
        several = list(of_groups.values())
        if len(several) > 1:
            norm = math.hypot(*(s.norm for s in several))
            sizes[tuple(of_groups)] = Sizes(norm, max(s.largest for s in several), max(s.rounding for s in several))
        for groups, now in sizes.items():
            earlier = self._earlier.setdefault(groups, deque(maxlen=LOOKS))
            if not self.constant:
                self.constant = _constant(now, earlier, by_entries=len(groups) == 1)
                if self.constant:
                    self._warn()
            earlier.append(now)

    def _warn(self) -> None:
        bounded = "" if self.constant == "norm" else " A loss of bounded slope, such as L1, has such gradients too."
        warn(
            f"{self.where}: gradients of one {self.constant}, as if they were clipped. A step that depends on the "
            "gradient's size needs a correction: the law is not the posterior's. Clip the loss, or take a smaller "
            f"lr.{bounded}"
        )


def _constant(now: Sizes, earlier: Sequence[Sizes], *, by_entries: bool) -> str:
    """The name of the size that is constant, if there is one; `by_entries`: whether the largest entry is looked at."""
    if not now.largest:
        return ""
    apart = max(1e-3, 4 * now.rounding)
    entries_differ = [abs(now.largest - then.largest) > apart * now.largest for then in earlier]
    norms_differ = [abs(now.norm - then.norm) > apart * now.norm for then in earlier]
    one_norm = sum(_same(now.norm, then.norm) and differ for then, differ in zip(earlier, entries_differ))
    one_largest = sum(_same(now.largest, then.largest) and differ for then, differ in zip(earlier, norms_differ))
    if one_norm >= ALIKE - 1:
        return "norm"
    return "largest entry" if by_entries and now.rounding <= SAME and one_largest >= ALIKE - 1 else ""


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * a < math.inf  # norms of a loop that blows up overflow
