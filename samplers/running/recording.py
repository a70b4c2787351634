"""The draws of a run in memory, or in a folder with checkpoints from which an ended run continues."""

import math
import numbers
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from integrators.transfers import Arrivals, is_near
from recipe.arguments import number
from recipe.errors import RecipeError

from ..files import memory_maps, regular, storage
from ..files.store import NEW, Lock, Saved, Store
from ..target.potential import Blocks
from .chains import Chains, without_prefix
from .drive import Moves
from .gauges import Gauges
from .memory import check_fits
from .probe import GRADIENT, Probe

KIND = "sampling run"
CHUNK = 2**24  # bytes of states in a chunk from a GPU
STATES = 256  # states in a chunk, at most
UNDER_WAY = 4  # chunks in transfer, at most


@dataclass(frozen=True)
class Folder:
    """Where a run is kept on disk, for `sample(checkpoint=...)`; `every`: seconds between two saved states.

    The folder has the draws and two states, one of them always complete; the same call continues from the folder, to
    the same draws bit for bit. Calls with other settings or another energy are refused: torch functions are compared at
    the start and at the saved states, at the cost of five gradients a checkpoint.

    >>> Folder("run", every=10)
    Folder(path='run', every=10)
    """

    path: str | os.PathLike[str]
    every: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)) or not str(self.path):
            what = f"checkpoint is the name of a folder, got {self.path!r}"
            raise RecipeError("Folder", what, do='Pass checkpoint="run".')
        what = f"every is a number of seconds, got {self.every!r}"
        number("Folder", "every", self.every, least=0, kinds=numbers.Real, what=what, do="Pass a number >= 0.")


def folder_of(checkpoint: Any) -> Folder | None:
    """`checkpoint=` as a `Folder`, or None."""
    return checkpoint if checkpoint is None or isinstance(checkpoint, Folder) else Folder(checkpoint)


class InMemory:
    """The kept states of each block in the host's memory, `(chains, draws, *shape)`; `like`: states by block.

    States of a GPU are copied in chunks while the GPU makes further steps. `step_sizes` has one number for each state
    kept so far; `gauges` average some of the states.
    """

    def __init__(self, like: Blocks, draws: int, gauges: Gauges) -> None:
        self.number = draws
        self.gauges = gauges
        self.step_sizes: list[float] = []
        self.leaving = Chunks(self._put)
        self.values = {b: self.room(b, (len(x), draws, *x.shape[1:]), x) for b, x in like.items()}

    def room(self, block: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """An uninitialised tensor for the draws of a block, of the type of `like`."""
        advice = "Keep fewer states by thin=..., or let them lie on disk by checkpoint='folder'."
        values = torch.empty(0, dtype=like.dtype, device="cpu")
        check_fits("sample", f"the draws of {block}", shape, values, do=advice)
        return values.new_empty(shape)

    def __enter__(self) -> "InMemory":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def resume(self, chains: Chains) -> None:
        """Restore the chains of an earlier run; in memory there is none."""

    def take(self, moves: Moves) -> None:
        """Keep the states and step sizes of `moves`."""
        begin = len(self.step_sizes)
        for b in (b for b in self.values if b in moves.kept):
            self.leaving.send(b, begin, moves.kept[b])
        self.gauges.take(moves, begin)
        self.step_sizes += moves.step_sizes

    def _put(self, block: str, begin: int, x: torch.Tensor) -> None:
        self.values[block][:, begin : begin + x.shape[1]] = x

    def so_far(self, block: str) -> torch.Tensor:
        """The draws of a block so far, `(chains, draws, *shape)`."""
        self.leaving.wait()
        return self.values[block][:, : len(self.step_sizes)]

    def save(self, chains: Chains, *, now: bool = False) -> None:
        """Write a checkpoint; in memory there is none."""

    def draws(self) -> Blocks:
        """The draws so far by block, `(chains, draws, *shape)`."""
        self.leaving.wait()
        kept = len(self.step_sizes)
        if kept == self.number:
            return dict(self.values)
        return {b: x[:, :kept].clone() for b, x in self.values.items()}


class Chunks:
    """Copies kept states from a device to the host in chunks of many steps; `put(block, begin, x)` stores a chunk.

    States in the host's memory are stored at once.
    """

    def __init__(self, put: Callable[[str, int, torch.Tensor], None]) -> None:
        self.put = put
        self.arrivals = Arrivals()
        self.waiting: dict[str, tuple[int, list[torch.Tensor]]] = {}
        self.bytes = 0

    def send(self, block: str, begin: int, x: torch.Tensor) -> None:
        """Send states `(chains, number, *shape)`, from draw `begin` on; no step may change `x` afterwards."""
        if is_near(x):
            self.put(block, begin, x)
            return
        self.waiting.setdefault(block, (begin, []))[1].append(x)
        self.bytes += x.numel() * x.element_size()
        if self.bytes >= CHUNK or sum(len(states) for _, states in self.waiting.values()) >= STATES:
            self._set_off()

    def _set_off(self) -> None:
        for block, (begin, states) in self.waiting.items():
            self.arrivals.bring(torch.cat(states, 1), partial(self.put, block, begin))
        self.waiting = {}
        self.bytes = 0
        self.arrivals.look()
        self.arrivals.wait(most=UNDER_WAY)

    def wait(self) -> None:
        """Wait until all sent states are stored."""
        self._set_off()
        self.arrivals.wait()


class InFolder(InMemory):
    """Draws in files that are mapped to memory, with two checkpoints of the state, one of them always complete.

    `settings`: plain JSON data; `probe`: compares energies. A run continues only from checkpoints of the same settings,
    and of the same probe up to rounding. The first checkpoint of a run has no state, and marks the files of draws as
    the run's own. Raises RecipeError for a folder of another run, of a run in
    progress or with other files of these names, for damaged checkpoints, and for a full disk.
    """

    def __init__(
        self, folder: Folder, like: Blocks, draws: int, gauges: Gauges, *, settings: dict, probe: Probe
    ) -> None:
        self.every = folder.every
        self.settings = settings
        self.probe = probe
        self.stretches: list[list[int]] = []  # by checkpoint: the end of its draws, and their checksum for each block
        self.saved = time.monotonic()
        self.maps: list[np.memmap] = []
        self.store = Store(folder.path, KIND)
        self.folder = self.store.folder
        storage.make_folder(self.folder)
        self.lock = Lock(self.folder)
        try:
            self.at_start = _named("probe.start.", probe.at(probe.start, 0))
            self.before = self._begun(list(like))
            super().__init__(like, draws, gauges)
        except BaseException:
            self.lock.release()
            raise

    def _begun(self, blocks: list[str]) -> Saved | None:
        """The checkpoint from which the run continues; None for a new run, after the first checkpoint is written."""
        saved = self.store.newest()
        names: Any = []  # blocks with files of draws by a run in this folder
        self.mark = NEW
        if saved is not None:
            names, stretches = saved.account.get("draws"), saved.account.get("stretches", False)
            if not (isinstance(names, list) and (stretches is None or isinstance(stretches, list))):
                raise _no_checkpoint(self.folder, "its account is of another form")
            self.mark = saved.mark
            if stretches is not None:
                self.store.check_settings(self.settings, saved.account["settings"])
                other = without_prefix("probe.start.", saved.tensors)
                self._compare("the start", other, without_prefix("probe.start.", self.at_start))
                self.at_start = _named("probe.start.", other)
                return saved
        for b in blocks:
            if b not in names and regular.size_of(self._file(b)) is not None:
                what = "it is there, but in this folder no run of such draws has begun: it is a file of somebody else"
                raise RecipeError(str(self._file(b)), what, do="Move it away, or choose another folder.")
        account = {"draws": [*names, *(b for b in blocks if b not in names)], "stretches": None, "chains": None}
        self.mark = self.store.write({}, self.settings, account, after=self.mark)
        return None

    def _file(self, block: str) -> Path:
        return self.folder / f"{block}.draws"

    def room(self, block: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """The tensor for the draws of a block, mapped to its file, with the draws of an earlier run."""
        path = self._file(block)
        kept = self.before is not None and self.before.account["stretches"]
        if kept and regular.size_of(path) != math.prod(shape) * like.element_size():
            raise self._changed(block, 0, kept[0][0])
        values, file = memory_maps.mapped(path, shape, like.dtype)
        if file is not None:
            self.maps.append(file)
        return values

    def __exit__(self, *_: Any) -> None:
        self.lock.release()

    def take(self, moves: Moves) -> None:
        """Keep the states and step sizes of `moves`. Raises RecipeError where a file of draws was truncated."""
        self._check_files()
        super().take(moves)

    def _check_files(self) -> None:
        for b, x in self.values.items():
            memory_maps.check_whole(self._file(b), x)

    def resume(self, chains: Chains) -> None:
        """Restore the chains from the folder. Raises RecipeError where its draws, checkpoint or energy differ."""
        if self.before is None:
            return
        tensors = self.before.tensors
        account = self.before.account
        try:
            self._check_draws(account["stretches"])
            chains.restore(without_prefix("chains.", tensors), account["chains"])
            self.gauges.restore(without_prefix("gauges.", tensors))
            self.step_sizes = tensors["step_sizes"].tolist()
            if tensors["step_sizes"].shape != (account["stretches"][-1][0] if account["stretches"] else 0,):
                raise ValueError("there is not one step size for each draw")
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            if isinstance(error, RecipeError):
                raise
            raise _no_checkpoint(self.folder, error) from error
        self.stretches = account["stretches"]
        other = without_prefix("probe.state.", tensors)
        self._compare("the saved state", other, self.probe.at(chains.state, chains.steps))

    def _check_draws(self, stretches: list[list[int]]) -> None:
        begin = 0
        for end, *checksums in stretches:
            for (b, x), checksum in zip(self.values.items(), checksums, strict=True):
                if _checksum(x[:, begin:end]) != checksum:
                    raise self._changed(b, begin, end)
            begin = end

    def _changed(self, block: str, begin: int, end: int) -> RecipeError:
        what = f"draws {begin} to {end} are not those that were written"
        return RecipeError(str(self._file(block)), what, do="Restore the file from a copy, or start in another folder.")

    def _compare(self, where: str, other: Blocks, mine: Blocks) -> None:
        """Refuse the folder of a run with other functions; `where` names the state of the comparison."""
        if other.keys() != mine.keys() or any(other[name].shape != x.shape for name, x in mine.items()):
            raise _no_checkpoint(self.folder, "its probe is of another form")
        for name, x in mine.items():
            chain, distance = self.probe.farthest(x, other[name])
            if distance > self.probe.tolerance:
                what = "energy" if name.startswith(GRADIENT) else f"observation '{name}'"
                raise RecipeError(
                    str(self.folder),
                    f"it holds a run of another {what}: {name} differs by {distance:.2g} of its size at {where} of "
                    f"chain {chain}, where rounding makes less than {self.probe.tolerance:g}",
                    do="Give the energy and the functions of that run, or choose another folder.",
                )

    def save(self, chains: Chains, *, now: bool = False) -> None:
        """Write a checkpoint, if `every` seconds have passed since the last one, or `now`."""
        if not now and 0 <= time.monotonic() - self.saved < self.every:
            return
        self._check_files()
        self.leaving.wait()
        for draws in self.maps:
            draws.flush()
        begin = self.stretches[-1][0] if self.stretches else 0
        end = len(self.step_sizes)
        if end > begin:
            self.stretches.append([end, *(_checksum(x[:, begin:end]) for x in self.values.values())])
        tensors, account = chains.snapshot()
        sizes = torch.tensor(self.step_sizes, dtype=torch.float64, device="cpu")
        state = _named("probe.state.", self.probe.at(chains.state, chains.steps))
        gauges = _named("gauges.", self.gauges.snapshot())
        self.mark = self.store.write(
            {"step_sizes": sizes} | _named("chains.", tensors) | gauges | self.at_start | state,
            self.settings,
            {"draws": list(self.values), "stretches": self.stretches, "chains": account},
            after=self.mark,
        )
        self.saved = time.monotonic()

    def draws(self) -> Blocks:
        """The draws so far by block, `(chains, draws, *shape)`; writing to them does not change the files."""
        self._check_files()
        kept = super().draws()
        if len(self.step_sizes) == self.number:
            kept = {b: memory_maps.private(self._file(b), x) for b, x in kept.items()}
        return kept


def _no_checkpoint(folder: Path, reason: object) -> RecipeError:
    return RecipeError(str(folder), f"it holds no checkpoint of such a run ({reason})", do="Choose another folder.")


def _named(prefix: str, tensors: Blocks) -> Blocks:
    return {prefix + name: x for name, x in tensors.items()}


def _checksum(x: torch.Tensor) -> int:
    return zlib.crc32(np.ascontiguousarray(x.numpy()).data)
