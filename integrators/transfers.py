"""Asynchronous copies from a device: the host starts a copy, continues, and reads the numbers once the copy is done."""

from collections import deque
from collections.abc import Callable, Sequence

import torch

Taker = Callable[[torch.Tensor], None]
Reader = Callable[[list[float]], None]
IS_NEAR = {"cpu"}  # types of devices whose numbers are read without a copy


def is_near(numbers: torch.Tensor) -> bool:
    """Whether reading a tensor needs no copy from a device.

    >>> is_near(torch.ones(2))
    True
    """
    return numbers.device.type in IS_NEAR


def _on_the_way(numbers: torch.Tensor) -> tuple[torch.Tensor, Callable[[], bool], Callable[[], None]]:
    """An asynchronous copy in pinned memory, a function that says whether the copy is done, and one that waits."""
    if numbers.device.type != "cuda":  # as on MPS and XPU, whose copies are waited for
        return numbers.cpu(), lambda: True, lambda: None
    copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    copy.copy_(numbers, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(numbers.device))
    return copy, event.query, event.synchronize


class Arrivals:
    """Queue of tensors on their way from a device, each with a reader called in the order of sending.

    Tensors of the CPU are read at once.

    >>> arrivals = Arrivals()
    >>> arrivals.send(torch.ones(2), print)
    [1.0, 1.0]
    """

    def __init__(self) -> None:
        self._coming: deque[tuple[torch.Tensor, Callable[[], bool], Callable[[], None], Taker]] = deque()

    def send(self, numbers: torch.Tensor, read: Reader) -> None:
        """Call `read` with a tensor `(n,)` as a list, once the tensor is on the host."""
        self.bring(numbers, lambda x: read(x.tolist()))

    def bring(self, numbers: torch.Tensor, take: Taker) -> None:
        """Call `take` with a tensor once the tensor is on the host."""
        if is_near(numbers):
            take(numbers)
        else:
            self._coming.append((*_on_the_way(numbers), take))

    def look(self) -> None:
        """Call the readers of all finished copies, without waiting."""
        while self._coming and self._coming[0][1]():
            copy, _, _, take = self._coming.popleft()
            take(copy)

    def wait(self, most: int = 0) -> None:
        """Call all readers but the last `most`, waiting for their copies."""
        while len(self._coming) > most:
            self._coming[0][2]()
            copy, _, _, take = self._coming.popleft()
            take(copy)


def largest(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest absolute value of each tensor, not finite if an entry is not; 0 for an empty tensor.

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
    """Norms of all tensors in one fused call; 0 for an empty tensor."""
    full = [t for t in tensors if t.numel()]
    norms = torch._foreach_norm(full, order) if full else ()
    if len(full) == len(tensors):
        return torch.stack(norms)
    norms_of_full = iter(norms)
    return torch.stack([next(norms_of_full) if t.numel() else t.new_zeros(()) for t in tensors])
