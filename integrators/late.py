"""Numbers of a device that are read late: the host asks for them, goes on, and looks at them when they have come."""

from collections import deque
from collections.abc import Callable, Sequence

import torch

Taker = Callable[[torch.Tensor], None]
Reader = Callable[[list[float]], None]
IS_NEAR = {"cpu"}  # types of devices whose numbers are there at once


def is_near(numbers: torch.Tensor) -> bool:
    """Whether a look at numbers waits for no device.

    >>> is_near(torch.ones(2))
    True
    """
    return numbers.device.type in IS_NEAR


def _on_the_way(numbers: torch.Tensor) -> tuple[torch.Tensor, Callable[[], bool], Callable[[], None]]:
    """A copy in the host's memory, whether it has come, and what waits for it."""
    here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    here.copy_(numbers, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(numbers.device))
    return here, event.query, event.synchronize


class Arrivals:
    """Numbers that come from a device, each with a function that reads them, in the order in which they were sent.

    Those of the CPU are read at once.

    >>> arrivals = Arrivals()
    >>> arrivals.send(torch.ones(2), print)
    [1.0, 1.0]
    """

    def __init__(self) -> None:
        self._coming: deque[tuple[torch.Tensor, Callable[[], bool], Callable[[], None], Taker]] = deque()

    def send(self, numbers: torch.Tensor, read: Reader) -> None:
        """Have numbers of one axis read when they have come."""
        self.bring(numbers, lambda here: read(here.tolist()))

    def bring(self, numbers: torch.Tensor, take: Taker) -> None:
        """Have a tensor taken when it has come to the host."""
        if is_near(numbers):
            take(numbers)
        else:
            self._coming.append((*_on_the_way(numbers), take))

    def look(self) -> None:
        """Take what has come; raises what a reader raises."""
        while self._coming and self._coming[0][1]():
            here, _, _, take = self._coming.popleft()
            take(here)

    def wait(self, most: int = 0) -> None:
        """Take all, also what has not come yet, but for the last so many."""
        while len(self._coming) > most:
            self._coming[0][2]()
            here, _, _, take = self._coming.popleft()
            take(here)


def largest(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest absolute value of each tensor, not finite where one of its numbers is not; 0 of an empty one.

    >>> largest([torch.tensor([1.0, -3.0]), torch.tensor([]), torch.tensor([float("nan")])])
    tensor([3., 0., nan])
    """
    return _of_each(tensors, float("inf"))


def norms(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of each tensor.

    >>> norms([torch.tensor([4.0, -3.0]), torch.tensor([])])
    tensor([5., 0.])
    """
    return _of_each(tensors, 2.0)


def _of_each(tensors, order):
    """Norms by as few kernels as there are; an empty tensor has none."""
    full = [t for t in tensors if t.numel()]
    norms_of_full = iter(torch._foreach_norm(full, order) if full else ())
    return torch.stack([next(norms_of_full) if t.numel() else t.new_zeros(()) for t in tensors])
