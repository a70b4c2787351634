"""Where the draws of a run go: memory, or a folder from which the run goes on after it has ended in any way."""

import math
import os
import signal
import threading
import time
import zlib
from contextlib import contextmanager

import numpy as np
import torch

from recipe.errors import RecipeError

from ..files import storage
from ..files.lock import Lock
from ..files.pair import NEW, Pair
from .chains import Chains


class InMemory:
    """The kept states of each block, `(chains, draws, *shape)`, as they come; `like` are tensors `(chains, *shape)`."""

    def __init__(self, like: dict[str, torch.Tensor], number: int):
        self.values = {b: self.room(b, (len(x), number, *x.shape[1:]), x) for b, x in like.items()}
        self.number, self.step_sizes = number, []

    def room(self, block: str, shape, like: torch.Tensor) -> torch.Tensor:
        """An empty tensor for the draws of a block."""
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def resume(self, chains: Chains) -> None:
        """Put chains where a run before this one has left them."""

    def take(self, step_sizes: list[float], kept: dict[str, torch.Tensor]) -> None:
        """Keep states that were made with these step sizes."""
        for b, x in kept.items():
            self.values[b][:, len(self.step_sizes) : len(self.step_sizes) + len(step_sizes)] = x
        self.step_sizes += step_sizes

    def save(self, chains: Chains, *, now: bool = False) -> None:
        """Write down where the run is, if it is time to."""

    def draws(self) -> dict[str, torch.Tensor]:
        """What has been kept so far."""
        whole = len(self.step_sizes) == self.number
        return {b: x if whole else x[:, : len(self.step_sizes)].clone() for b, x in self.values.items()}


class InFolder(InMemory):
    """Draws in files that are mapped to memory, beside two checkpoints of the state, of which one is always whole.

    `settings` are plain JSON data: a run goes on only from checkpoints of the same ones. Raises RecipeError for a folder of
    another run, one in which a run is going on, checkpoints that are not intact, and a disk that is full.
    """

    def __init__(
        self, folder, like: dict[str, torch.Tensor], number: int, every: float, settings: dict, probe: list[float]
    ):
        self.every, self.settings, self.device = every, settings, {b: x.device for b, x in like.items()}
        self.probe = [x if math.isfinite(x) else None for x in probe]  # values of the energy, the same up to rounding
        self.stretches: list[list[int]] = []  # where each checkpoint's draws end, and a checksum of them for each block
        self.saved, self.maps = time.monotonic(), []
        self.pair = Pair(folder, "sampling run")
        self.folder = self.pair.folder
        storage.make_folder(self.folder)
        self.lock = Lock(self.folder)
        try:
            self.before = self.pair.newest(settings)
            self.mark = self.before.mark if self.before else NEW
            self._compare()
            super().__init__(like, number)
        except BaseException:
            self.lock.release()
            raise

    def _compare(self):
        """Refuse the folder of another energy."""
        apart = (
            [
                (a, b)
                for a, b in zip(self.probe, self.before.account["probe"], strict=True)
                if None not in (a, b) and not math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3)
            ]
            if self.before
            else []
        )
        if apart:
            raise RecipeError(
                str(self.folder),
                f"it holds a run of another energy, whose gradient at the start is {apart[0][1]:.6g} where this one's "
                f"is {apart[0][0]:.6g}",
                do="Give the energy of that run, or choose another folder.",
            )

    def room(self, block, shape, like):
        path, size = self.folder / f"{block}.draws", int(np.prod(shape)) * like.element_size()
        try:
            with open(path, "ab") as file:
                if size and hasattr(os, "posix_fallocate"):  # a map into a full disk would end the process
                    os.posix_fallocate(file.fileno(), 0, size)
                file.truncate(size)
        except OSError as error:
            raise RecipeError(
                str(path),
                f"there is no room for {size} bytes of draws ({error.strerror or error})",
                do="Choose another folder, or a larger thin.",
            ) from error
        if not size:
            return torch.empty(shape, dtype=like.dtype)
        numpy_type = torch.empty(0, dtype=like.dtype).numpy().dtype
        self.maps.append(np.memmap(path, dtype=numpy_type, mode="r+", shape=tuple(shape)))
        return torch.from_numpy(self.maps[-1])

    def __exit__(self, *_):
        self.lock.release()

    def resume(self, chains):
        if self.before is None:
            return
        values, account = self.before.tensors, self.before.account
        at = 0
        for end, *sums in account["stretches"]:
            for (b, x), known in zip(self.values.items(), sums):
                if _checksum(x[:, at:end]) != known:
                    raise RecipeError(
                        str(self.folder / f"{b}.draws"),
                        f"draws {at} to {end} are not those that were written",
                        do="Restore the file from a copy, or start in another folder.",
                    )
            at = end
        self.stretches, self.step_sizes = account["stretches"], values.pop("step_sizes").tolist()
        chains.restore(values, account["chains"])

    def save(self, chains, *, now=False):
        if not now and time.monotonic() - self.saved < self.every:
            return
        at, end = self.stretches[-1][0] if self.stretches else 0, len(self.step_sizes)
        for draws in self.maps:
            draws.flush()
        if end > at:
            self.stretches.append([end, *(_checksum(x[:, at:end]) for x in self.values.values())])
        tensors, account = chains.snapshot()
        self.mark = self.pair.write(
            tensors | {"step_sizes": torch.tensor(self.step_sizes, dtype=torch.float64)},
            self.settings,
            {"probe": self.probe, "stretches": self.stretches, "chains": account},
            after=self.mark,
        )
        self.saved = time.monotonic()

    def draws(self):
        return {b: x.to(self.device[b]) for b, x in super().draws().items()}


def _checksum(x):
    return zlib.crc32(np.ascontiguousarray(x.numpy()))


@contextmanager
def until_interrupted():
    """A function that says whether Ctrl-C has been pressed; a second time ends at once."""
    pressed = []

    def note(number, frame):
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
