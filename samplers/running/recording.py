"""Where the draws of a run go: memory, or a folder from which the run goes on after it has ended in any way."""

import math
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipe.errors import RecipeError

from ..files import storage
from ..files.lock import Lock
from ..files.pair import NEW, Pair
from .chains import Chains
from .moving import Moves

Blocks = dict[str, torch.Tensor]


class InMemory:
    """The kept states of each block, `(chains, number, *shape)`, as they come; `like`: one of each, `(chains, *shape)`.

    `step_sizes` has one number for each state that has been kept.
    """

    def __init__(self, like: Blocks, number: int) -> None:
        self.number = number
        self.step_sizes: list[float] = []
        self.values = {b: self.room(b, (len(x), number, *x.shape[1:]), x) for b, x in like.items()}

    def room(self, block: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """An empty tensor for the draws of a block."""
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    def __enter__(self) -> "InMemory":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def resume(self, chains: Chains) -> None:
        """Put chains where a run before this one has left them."""

    def take(self, moves: Moves) -> None:
        """Keep the states that were handed on."""
        begin = len(self.step_sizes)
        end = begin + len(moves.step_sizes)
        for b, x in moves.kept.items():
            self.values[b][:, begin:end] = x
        self.step_sizes += moves.step_sizes

    def save(self, chains: Chains, *, now: bool = False) -> None:
        """Write down where the run is, if it is time to."""

    def draws(self) -> Blocks:
        """What has been kept so far, `(chains, draws, *shape)` by block."""
        kept = len(self.step_sizes)
        if kept == self.number:
            return dict(self.values)
        return {b: x[:, :kept].clone() for b, x in self.values.items()}


class InFolder(InMemory):
    """Draws in files that are mapped to memory, beside two checkpoints of the state, of which one is always whole.

    `every`: seconds between two checkpoints; `settings`: plain JSON data, and `probe`: values of the energy, None for
    nan. A run goes on only from checkpoints of the same settings, and of the same probe up to rounding. Raises
    RecipeError for a folder of another run, one in which a run is going on, checkpoints that are not intact, and a disk
    that is full.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        like: Blocks,
        number: int,
        *,
        every: float,
        settings: dict,
        probe: list[float | None],
    ) -> None:
        self.every = every
        self.settings = settings
        self.probe = probe
        self.device = {b: x.device for b, x in like.items()}
        self.stretches: list[list[int]] = []  # where each checkpoint's draws end, and a checksum of them for each block
        self.saved = time.monotonic()
        self.maps: list[np.memmap] = []
        self.pair = Pair(folder, "sampling run")
        self.folder = self.pair.folder
        storage.make_folder(self.folder)
        self.lock = Lock(self.folder)
        try:
            self.before = self.pair.newest(settings)
            self.mark = NEW if self.before is None else self.before.mark
            if self.before is not None:
                _compare(self.folder, probe, self.before.account["probe"])
            super().__init__(like, number)
        except BaseException:
            self.lock.release()
            raise

    def room(self, block: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """An empty tensor for the draws of a block, on disk."""
        path = self.folder / f"{block}.draws"
        size = math.prod(shape) * like.element_size()
        _allot(path, size)
        if not size:
            return torch.empty(shape, dtype=like.dtype)
        numpy_type = torch.empty(0, dtype=like.dtype).numpy().dtype
        self.maps.append(np.memmap(path, dtype=numpy_type, mode="r+", shape=tuple(shape)))
        return torch.from_numpy(self.maps[-1])

    def __exit__(self, *_: Any) -> None:
        self.lock.release()

    def resume(self, chains: Chains) -> None:
        """Put chains where the run in this folder has left them, if its draws are those that it wrote."""
        if self.before is None:
            return
        tensors, account = self.before.tensors, self.before.account
        begin = 0
        for end, *checksums in account["stretches"]:
            for (b, x), checksum in zip(self.values.items(), checksums):
                if _checksum(x[:, begin:end]) != checksum:
                    raise RecipeError(
                        str(self.folder / f"{b}.draws"),
                        f"draws {begin} to {end} are not those that were written",
                        do="Restore the file from a copy, or start in another folder.",
                    )
            begin = end
        self.stretches = account["stretches"]
        self.step_sizes = tensors["step_sizes"].tolist()
        chains.restore({name: x for name, x in tensors.items() if name != "step_sizes"}, account["chains"])

    def save(self, chains: Chains, *, now: bool = False) -> None:
        """Write a checkpoint, if `every` seconds have passed since the last one, or `now`."""
        if not now and time.monotonic() - self.saved < self.every:
            return
        for draws in self.maps:
            draws.flush()
        begin = self.stretches[-1][0] if self.stretches else 0
        end = len(self.step_sizes)
        if end > begin:
            self.stretches.append([end, *(_checksum(x[:, begin:end]) for x in self.values.values())])
        tensors, account = chains.snapshot()
        self.mark = self.pair.write(
            tensors | {"step_sizes": torch.tensor(self.step_sizes, dtype=torch.float64)},
            self.settings,
            {"probe": self.probe, "stretches": self.stretches, "chains": account},
            after=self.mark,
        )
        self.saved = time.monotonic()

    def draws(self) -> Blocks:
        """What has been kept so far, `(chains, draws, *shape)` by block, where the chains are."""
        return {b: x.to(self.device[b]) for b, x in super().draws().items()}


def _compare(folder: Path, mine: list[float | None], other: list[float | None]) -> None:
    """Refuse the folder of another energy."""
    for a, b in zip(mine, other, strict=True):
        if a is None or b is None or math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3):
            continue
        raise RecipeError(
            str(folder),
            f"it holds a run of another energy, whose gradient at the start is {b:.6g} where this one's is {a:.6g}",
            do="Give the energy of that run, or choose another folder.",
        )


def _allot(path: Path, size: int) -> None:
    """Make a file of this size; refuse a full disk, as a map into it would end the process."""
    try:
        with open(path, "ab") as file:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
    except OSError as error:
        raise RecipeError(
            str(path),
            f"there is no room for {size} bytes of draws ({error.strerror or error})",
            do="Choose another folder, or a larger thin.",
        ) from error


def _checksum(x: torch.Tensor) -> int:
    return zlib.crc32(np.ascontiguousarray(x.numpy()).data)
