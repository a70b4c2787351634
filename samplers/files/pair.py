"""Two checkpoints in a folder, of which one is always whole."""

import itertools
import json
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from recipe.errors import RecipeError

from . import storage


class Pair:
    """Two checkpoints in a folder that are written in turn: a run that is killed leaves one of them whole.

    `what` is told of whose they are. Raises RecipeError for a folder that cannot be made, if no checkpoint in it is intact, for one
    of another kind or other settings, and if somebody else writes there.
    """

    def __init__(self, folder, what: str):
        with storage.refused(folder):
            self.folder, self.what = Path(folder).absolute(), what
            self.files = [self.folder / f"state-{k}.safetensors" for k in (0, 1)]
            self.next, self.generation, self._seen, self._lock = 0, 0, self._stamps(), None

    def lock(self) -> None:
        """Let no other process write here until `unlock`."""
        with storage.refused(self.folder):
            self._lock = open(self.folder / "lock", "w")
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.unlock()
            raise RecipeError(
                str(self.folder), "another run writes there", do="Wait for it, or choose another folder."
            ) from error
        except (ImportError, OSError):  # a system, or a file system, without such locks
            pass

    def unlock(self) -> None:
        """Let others write here."""
        self._lock.close()
        self._lock = None

    def newest(self, settings: Mapping | None = None) -> tuple[dict[str, torch.Tensor], dict] | None:
        """The latest that is intact, of a run of these settings if any are given: tensors and plain data; None in a new folder.

        `write` goes on after it, once `accept` has been called.
        """
        found, broken, self._found = [], [], (0, 0, self._stamps())
        for k, path in enumerate(self.files):
            try:
                if path.exists():
                    values, account = storage.read(path, "checkpoint")
                    if type(account.get("generation")) is not int or not isinstance(account.get("settings"), dict):
                        raise RecipeError(str(path), "it is no checkpoint", do="Choose another folder.")
                    found.append((account["generation"], k, values, account))
            except RecipeError:
                broken.append(path)
        if broken and not found:
            told = (
                "neither " + " nor ".join(path.name for path in broken)
                if len(broken) > 1
                else f"{broken[0].name} is the only one"
            )
            raise RecipeError(
                str(self.folder),
                f"no checkpoint is intact, {told}",
                do="Restore one from a copy, or start in another folder.",
            )
        if not found:
            return None
        generation, k, values, account = max(found, key=lambda one: one[0])
        for other in broken:
            warnings.warn(
                f"{other} is not intact: the run goes on from the one before it, {self.files[k]}",
                RuntimeWarning,
                stacklevel=4,
            )
        if account.get("what") != self.what:
            raise RecipeError(
                str(self.folder),
                f"it holds a {account.get('what', 'run of another version')}, this is a {self.what}",
                do="Choose another folder.",
            )
        for name in {**settings, **account["settings"]} if settings is not None else ():
            mine, other = (json.dumps(x.get(name)) for x in (settings, account["settings"]))
            if mine != other:
                mine, other = _differing(settings.get(name), account["settings"].get(name))
                raise RecipeError(
                    str(self.folder),
                    f"it holds a run of {name} = {other}, this one has {mine}",
                    do="Give the settings of that run, or choose another folder.",
                )
        self._found = 1 - k, generation + 1, self._stamps()
        return values, account

    def accept(self) -> None:
        """Go on after what `newest` has found."""
        self.next, self.generation, self._seen = self._found

    def write(self, tensors: Mapping[str, torch.Tensor], settings: Mapping, account: Mapping) -> None:
        """Write the next, in place of the last but one."""
        with self._locked():
            if self._stamps() != self._seen:
                raise RecipeError(
                    str(self.folder),
                    "the checkpoints there are not those that this run has seen: another run has written there, "
                    "or somebody removed them",
                    do="Choose another folder, or load again.",
                )
            for left in self.folder.glob(".state-?.safetensors.*"):  # by a run that was killed
                left.unlink(missing_ok=True)
            storage.write(
                self.files[self.next],
                "checkpoint",
                tensors,
                {"what": self.what, "generation": self.generation, "settings": settings, **account},
            )
            self.next, self.generation, self._seen = 1 - self.next, self.generation + 1, self._stamps()

    @contextmanager
    def _locked(self):
        if self._lock is not None:
            yield
            return
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    def _stamps(self):
        found = [path.stat() if path.exists() else None for path in self.files]
        return [s and (s.st_ino, s.st_mtime_ns, s.st_size) for s in found]


def _differing(mine, other):
    """Two settings, or the first lines in which long ones differ."""
    if isinstance(mine, str) and isinstance(other, str) and "\n" in mine + other:
        return next(
            (a, b) for a, b in itertools.zip_longest(mine.split("\n"), other.split("\n"), fillvalue="") if a != b
        )
    return mine, other
