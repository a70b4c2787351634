"""Two checkpoints in a folder, one of which is always whole."""

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recipe import __version__
from recipe.errors import RecipeError, warn

from . import regular, storage

FORMAT = 3  # of the checkpoints that are written and read; format 1 has no entry for the format

Stamp = tuple[int, int, int] | None  # inode, time and size of a file, None for a missing one


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


class Pair:
    """Two checkpoints in a folder, written in turn: a run that is killed leaves one of them whole.

    `kind`: of the runs, in words. Raises RecipeError for a folder that cannot be read.

    >>> import tempfile
    >>> pair = Pair(tempfile.mkdtemp(), "training loop")
    >>> mark = pair.write({"w": torch.ones(2)}, {"lr": 0.1}, {"epoch": 1}, after=NEW)
    >>> mark = pair.write({"w": torch.ones(2)}, {"lr": 0.1}, {"epoch": 2}, after=mark)
    >>> saved = pair.newest({"lr": 0.1})
    >>> saved.account["epoch"], saved.mark == mark
    (2, True)
    """

    def __init__(self, folder: str | os.PathLike, kind: str):
        with storage.refused(folder):
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
        intact: list[Saved] = []
        broken: list[Path] = []
        for k, (path, stamp) in enumerate(zip(self.files, stamps, strict=True)):
            if stamp is None:
                continue
            try:
                tensors, account = storage.read(path, "checkpoint", links=False)
            except storage.Foreign as error:
                raise self._foreign(path) from error
            except RecipeError:
                broken.append(path)
                continue
            self._check_format(account)
            if type(account.get("generation")) is int and isinstance(account.get("settings"), dict):
                intact.append(Saved(tensors, account, Mark(account["generation"], k, stamps)))
            else:
                broken.append(path)
        if broken and not intact:
            raise self._none_intact(broken)
        if not intact:
            return None
        saved = max(intact, key=lambda one: one.mark.generation)
        for path in broken:
            warn(f"{path} is not intact: the run goes on from the one before it, {self.files[saved.mark.file]}")
        self._check_kind(saved.account)
        if settings is not None:
            self.check_settings(settings, saved.account["settings"])
        return saved

    def write(
        self, tensors: Mapping[str, torch.Tensor], settings: Mapping, account: Mapping, *, after: Mark = NEW
    ) -> Mark:
        """Writes the next checkpoint, in place of the last but one, and returns its mark; the caller holds the Lock.

        `after`: the mark of the checkpoint before. Raises RecipeError where another process has written or removed a
        checkpoint since.
        """
        if self._stamps() != after.stamps:
            raise RecipeError(
                str(self.folder),
                "the checkpoints there are not those that this run has seen: another run has written there, "
                "or somebody removed them",
                do="Choose another folder, or load again.",
            )
        self._sweep()
        generation = after.generation + 1
        k = 1 - after.file
        version = {"format": FORMAT, "version": __version__}
        header = {"what": self.kind, **version, "generation": generation, "settings": settings, **account}
        storage.write(self.files[k], "checkpoint", tensors, header)
        return Mark(generation, k, self._stamps())

    def _sweep(self) -> None:
        """Removes unfinished checkpoints of killed runs."""
        for path in self.folder.glob(".state-?.safetensors.*"):
            if re.fullmatch(storage.TEMPORARY, path.name) and not path.is_symlink() and path.is_file():
                path.unlink(missing_ok=True)

    def _stamps(self) -> tuple[Stamp, ...]:
        with storage.refused(self.folder):
            return tuple(_stamp(path) for path in self.files)

    def _none_intact(self, broken: list[Path]) -> RecipeError:
        if len(broken) > 1:
            which = "neither " + " nor ".join(path.name for path in broken)
        else:
            which = f"{broken[0].name} is the only one"
        return RecipeError(
            str(self.folder),
            f"no checkpoint is intact, {which}",
            do="Restore one from a copy, or start in another folder.",
        )

    def _foreign(self, path: Path) -> RecipeError:
        return RecipeError(
            str(path), "it is a file of somebody else, no checkpoint", do="Move it away, or choose another folder."
        )

    def _check_format(self, account: dict) -> None:
        """Refuses a checkpoint of another format, in which the same names may have other meanings."""
        written = account.get("format", 1)
        if written == FORMAT:
            return
        version = account.get("version", "before 0.1.0")
        raise RecipeError(
            str(self.folder),
            f"its checkpoint has format {written}, of sde-recipe {version}; this is sde-recipe {__version__}, "
            f"which reads format {FORMAT}",
            do="Go on with that version, or start in another folder.",
        )

    def _check_kind(self, account: dict) -> None:
        if account.get("what") != self.kind:
            raise RecipeError(
                str(self.folder),
                f"it holds a {account.get('what')}, this is a {self.kind}",
                do="Choose another folder.",
            )

    def check_settings(self, mine: Mapping, other: Mapping) -> None:
        """Refuses the folder of a run of other settings, compared as JSON."""
        for name in {**mine, **other}:
            if json.dumps(mine.get(name)) != json.dumps(other.get(name)):
                here, there = _first_difference(mine.get(name), other.get(name))
                raise RecipeError(
                    str(self.folder),
                    f"it holds a run of {name} = {there}, this one has {here}",
                    do="Give the settings of that run, or choose another folder.",
                )


def _stamp(path: Path) -> Stamp:
    status = regular.status_of(path)
    return None if status is None else (status.st_ino, status.st_mtime_ns, status.st_size)


def _first_difference(mine: Any, other: Any) -> tuple[Any, Any]:
    """Two settings, or of texts of several lines the first different lines."""
    if isinstance(mine, str) and isinstance(other, str) and "\n" in mine + other:
        lines = itertools.zip_longest(mine.split("\n"), other.split("\n"), fillvalue="")
        return next((a, b) for a, b in lines if a != b)
    return mine, other
