"""Two checkpoints in a folder, of which one is always whole."""

import itertools
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recipe.errors import RecipeError

from . import storage

Stamp = tuple[int, int, int] | None  # inode, time and size of a file, if it is there


@dataclass(frozen=True)
class Mark:
    """What has been seen of a folder: generation and file of its latest checkpoint, and the stamps of both files."""

    generation: int
    file: int
    stamps: tuple[Stamp, ...]


NEW = Mark(generation=-1, file=1, stamps=(None, None))  # of a folder without checkpoints


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint: its tensors by name, its plain data, and the mark after which a run goes on from it."""

    tensors: dict[str, torch.Tensor]
    account: dict[str, Any]
    mark: Mark


class Pair:
    """Two checkpoints in a folder that are written in turn: a run that is killed leaves one of them whole.

    `kind` says of what they are. Raises RecipeError for a folder that cannot be read.

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
        """The latest that is intact, of a run of these settings if any are passed; None in a new folder.

        Raises RecipeError where none is intact, and for one of another kind or of other settings.
        """
        stamps = self._stamps()
        intact: list[Saved] = []
        broken: list[Path] = []
        for k, (path, stamp) in enumerate(zip(self.files, stamps, strict=True)):
            if stamp is None:
                continue
            try:
                tensors, account = _read(path)
            except RecipeError:
                broken.append(path)
            else:
                intact.append(Saved(tensors, account, Mark(account["generation"], k, stamps)))
        if broken and not intact:
            raise self._none_intact(broken)
        if not intact:
            return None
        saved = max(intact, key=lambda one: one.mark.generation)
        for path in broken:
            warnings.warn(
                f"{path} is not intact: the run goes on from the one before it, {self.files[saved.mark.file]}",
                RuntimeWarning,
                stacklevel=4,
            )
        self._check_kind(saved.account)
        if settings is not None:
            self._check_settings(settings, saved.account["settings"])
        return saved

    def write(
        self, tensors: Mapping[str, torch.Tensor], settings: Mapping, account: Mapping, *, after: Mark = NEW
    ) -> Mark:
        """Write the next, in place of the last but one, and return its mark; hold the folder's Lock meanwhile.

        `after`: the mark of the one before. Raises RecipeError where somebody else has written or removed one since.
        """
        if self._stamps() != after.stamps:
            raise RecipeError(
                str(self.folder),
                "the checkpoints there are not those that this run has seen: another run has written there, "
                "or somebody removed them",
                do="Choose another folder, or load again.",
            )
        for left in self.folder.glob(".state-?.safetensors.*"):  # by a run that was killed
            left.unlink(missing_ok=True)
        generation = after.generation + 1
        k = 1 - after.file
        header = {"what": self.kind, "generation": generation, "settings": settings, **account}
        storage.write(self.files[k], "checkpoint", tensors, header)
        return Mark(generation, k, self._stamps())

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

    def _check_kind(self, account: dict) -> None:
        if account.get("what") != self.kind:
            raise RecipeError(
                str(self.folder),
                f"it holds a {account.get('what', 'run of another version')}, this is a {self.kind}",
                do="Choose another folder.",
            )

    def _check_settings(self, mine: Mapping, other: Mapping) -> None:
        """Refuse the folder of a run of other settings; they are compared as JSON."""
        for name in {**mine, **other}:
            if json.dumps(mine.get(name)) != json.dumps(other.get(name)):
                here, there = _first_difference(mine.get(name), other.get(name))
                raise RecipeError(
                    str(self.folder),
                    f"it holds a run of {name} = {there}, this one has {here}",
                    do="Give the settings of that run, or choose another folder.",
                )


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the plain data of a checkpoint, which has a generation and settings."""
    tensors, account = storage.read(path, "checkpoint")
    if type(account.get("generation")) is not int or not isinstance(account.get("settings"), dict):
        raise RecipeError(str(path), "it is no checkpoint", do="Choose another folder.")
    return tensors, account


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _first_difference(mine: Any, other: Any) -> tuple[Any, Any]:
    """Two settings, or the first lines in which long ones differ."""
    if isinstance(mine, str) and isinstance(other, str) and "\n" in mine + other:
        lines = itertools.zip_longest(mine.split("\n"), other.split("\n"), fillvalue="")
        return next((a, b) for a, b in lines if a != b)
    return mine, other
