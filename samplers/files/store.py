"""The folder of a run: two checkpoints, one of which is always whole, and a lock."""

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from recipe import __version__
from recipe.errors import RecipeError, warn

from . import regular, storage

FORMAT = 4  # of the checkpoints that are written and read; format 1 has no entry for the format
SHA256 = "sha256"  # the entry of a tensor's digest in settings
ELSEWHERE = "Move it away, or choose another folder."

Stamp = tuple[int, int, int] | None  # inode, time and size of a file, None for a missing one


class Lock:
    """The lock of a folder, held until `release`, the end of a `with` block or of the process.

    The lock is on an empty file, `lock`. On systems and file systems without such locks every process gets it. Raises
    RecipeError where another process holds the lock, for a file `lock` of another kind, and with the system's reason
    where the folder cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Lock(folder):
    ...     Lock(folder)                                                    # doctest: +ELLIPSIS
    Traceback (most recent call last):
    recipe.errors.RecipeError: ...: another run writes there. Wait for it, or choose another folder.
    """

    def __init__(self, folder: Path):
        check_lock(folder)
        with regular.refused(folder):
            self._file = os.fdopen(regular.opened(folder / "lock", os.O_RDWR | os.O_CREAT), "r+b")
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            what, advice = "another run writes there", "Wait for it, or choose another folder."
            raise RecipeError(str(folder), what, do=advice) from error
        except (ImportError, OSError):  # a system, or a file system, without such locks
            pass

    def release(self) -> None:
        """Releases the lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_lock(folder: Path) -> None:
    """Refuses a folder with a file `lock` that is not empty, and so no lock."""
    path = folder / "lock"
    size = regular.size_of(path)
    if size:
        raise RecipeError(str(path), f"it has {size} bytes, a lock has none: it is not of a run", do=ELSEWHERE)


@dataclass(frozen=True)
class Mark:
    """The seen state of a folder: generation and file of its latest checkpoint, and the stamps of both files."""

    generation: int
    file: int
    stamps: tuple[Stamp, ...]


NEW = Mark(generation=-1, file=1, stamps=(None, None))  # of a folder without checkpoints


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint: its tensors by name, its plain data, and its mark, after which the next one is written."""

    tensors: dict[str, torch.Tensor]
    account: dict[str, Any]
    mark: Mark


class Store:
    """Two checkpoints in a folder, written in turn: a run that is killed leaves one of them whole.

    `kind`: of the runs, in words. Raises RecipeError for a folder that cannot be read.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp(), "training loop")
    >>> mark = store.write({"w": torch.ones(2)}, {"lr": 0.1}, {"epoch": 1}, after=NEW)
    >>> mark = store.write({"w": torch.ones(2)}, {"lr": 0.1}, {"epoch": 2}, after=mark)
    >>> saved = store.newest({"lr": 0.1})
    >>> saved.account["epoch"], saved.mark == mark
    (2, True)
    """

    def __init__(self, folder: str | os.PathLike, kind: str):
        with regular.refused(folder):
            self.folder = Path(folder).absolute()
        self.kind = kind
        self.files = [self.folder / f"state-{k}.safetensors" for k in (0, 1)]

    def exists(self) -> bool:
        """Whether there is a checkpoint, intact or not."""
        return self._stamps() != NEW.stamps

    def newest(self, settings: Mapping[str, Any] | None = None) -> Saved | None:
        """Reads the latest intact checkpoint, of a run of `settings` if given; None in a new folder.

        Raises RecipeError where no checkpoint is intact, for another format, kind or other settings, and for a file
        with the name of a checkpoint that is none.
        """
        stamps = self._stamps()
        checkpoints = {path: self._read(k, stamps) for k, path in enumerate(self.files) if stamps[k] is not None}
        intact = [saved for saved in checkpoints.values() if saved is not None]
        broken = [path for path, saved in checkpoints.items() if saved is None]
        if not intact and broken:
            names = [path.name for path in broken]
            phrase = f"neither {' nor '.join(names)}" if len(names) > 1 else f"{names[0]} is the only one"
            what, advice = f"no checkpoint is intact, {phrase}", "Restore one from a copy, or start in another folder."
            raise RecipeError(str(self.folder), what, do=advice)
        if not intact:
            return None
        saved = max(intact, key=lambda one: one.mark.generation)
        for path in broken:
            warn(f"{path} is not intact: the run goes on from the one before it, {self.files[saved.mark.file]}")
        if saved.account.get("what") != self.kind:
            what = f"it holds a {saved.account.get('what')}, this is a {self.kind}"
            raise RecipeError(str(self.folder), what, do="Choose another folder.")
        if settings is not None:
            self.check_settings(settings, saved.account["settings"])
        return saved

    def _read(self, k: int, stamps: tuple[Stamp, ...]) -> Saved | None:
        """A checkpoint; None where it is not intact. In another format the same names may have other meanings."""
        try:
            tensors, account = storage.read(self.files[k], "checkpoint", links=False)
        except storage.ForeignFile as error:
            what = "it is a file of somebody else, no checkpoint"
            raise RecipeError(str(self.files[k]), what, do=ELSEWHERE) from error
        except RecipeError:
            return None
        written = account.get("format", 1)
        if written != FORMAT:
            what = (
                f"its checkpoint has format {written}, of sde-recipe {account.get('version', 'before 0.1.0')}; "
                f"this is sde-recipe {__version__}, which reads format {FORMAT}"
            )
            raise RecipeError(str(self.folder), what, do="Go on with that version, or start in another folder.")
        if type(account.get("generation")) is not int or not isinstance(account.get("settings"), dict):
            return None
        return Saved(tensors, account, Mark(account["generation"], k, stamps))

    def write(
        self, tensors: Mapping[str, torch.Tensor], settings: Mapping, account: Mapping, *, after: Mark = NEW
    ) -> Mark:
        """Writes the next checkpoint, in place of the last but one, and returns its mark; the caller holds the Lock.

        `after`: the mark of the checkpoint before. Raises RecipeError where another process has written or removed a
        checkpoint since.
        """
        if self._stamps() != after.stamps:
            what = (
                "the checkpoints there are not those that this run has seen: another run has written there, "
                "or somebody removed them"
            )
            raise RecipeError(str(self.folder), what, do="Choose another folder, or load again.")
        for path in self.folder.glob(".state-?.safetensors.*"):  # unfinished checkpoints of killed runs
            if re.fullmatch(regular.TEMPORARY, path.name) and not path.is_symlink() and path.is_file():
                path.unlink(missing_ok=True)
        generation = after.generation + 1
        k = 1 - after.file
        version = {"format": FORMAT, "version": __version__}
        header = {"what": self.kind, **version, "generation": generation, "settings": settings, **account}
        storage.write(self.files[k], "checkpoint", tensors, header)
        return Mark(generation, k, self._stamps())

    def _stamps(self) -> tuple[Stamp, ...]:
        with regular.refused(self.folder):
            statuses = [regular.status_of(path) for path in self.files]
        return tuple(None if s is None else (s.st_ino, s.st_mtime_ns, s.st_size) for s in statuses)

    def check_settings(self, mine: Mapping, other: Mapping) -> None:
        """Refuses the folder of a run of other settings, compared as JSON."""
        path, value, other_value = _first_difference("", dict(mine), dict(other))
        if path:
            changed = f"{path} = {other_value}, this one has {value}"
            if path.endswith(f".{SHA256}"):
                changed = f"{path.removesuffix(f'.{SHA256}')} with other numbers"
            what = f"it holds a run of {changed}"
            raise RecipeError(str(self.folder), what, do="Give the settings of that run, or choose another folder.")


def _first_difference(path: str, mine: Any, other: Any) -> tuple[str, Any, Any]:
    """The path to the first difference of two settings as JSON, and both values there; of long texts, both lines.

    >>> _first_difference("", {"start": {"theta": [0.0, 1.0]}}, {"start": {"theta": [0.0, 2.0]}})
    ('start.theta[1]', 1.0, 2.0)
    """
    if json.dumps(mine) == json.dumps(other):
        return "", mine, other
    inside: list[tuple[str, Any, Any]] = []
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        inside = [(f"{path}.{name}" if path else name, mine.get(name), other.get(name)) for name in {**mine, **other}]
    if isinstance(mine, (list, tuple)) and isinstance(other, (list, tuple)) and len(mine) == len(other):
        inside = [(f"{path}[{k}]", *both) for k, both in enumerate(zip(mine, other))]
    if isinstance(mine, str) and isinstance(other, str) and "\n" in mine + other:
        lines = itertools.zip_longest(mine.split("\n"), other.split("\n"), fillvalue="")
        return path, *next((a, b) for a, b in lines if a != b)
    return next((place for place in itertools.starmap(_first_difference, inside) if place[0]), (path, mine, other))
