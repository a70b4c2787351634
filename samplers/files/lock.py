"""The right to write in a folder, which one process has at a time."""

import os
from pathlib import Path
from typing import Self

from recipe.errors import RecipeError

from . import regular, storage


class Lock:
    """The right to write in a folder, from its making until `release`, the end of a `with` block or of the process.

    It is held by an empty file, `lock`. Systems and file systems without such locks grant it to all. Raises RecipeError
    where another process has it, where something else bears that name, and with the system's reason where the folder
    cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Lock(folder):
    ...     Lock(folder)                                                    # doctest: +ELLIPSIS
    Traceback (most recent call last):
    recipe.errors.RecipeError: ...: another run writes there. Wait for it, or choose another folder.
    """

    def __init__(self, folder: Path):
        check_lock(folder)
        with storage.refused(folder):
            self._file = os.fdopen(regular.opened(folder / "lock", os.O_RDWR | os.O_CREAT), "r+b")
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise RecipeError(
                str(folder), "another run writes there", do="Wait for it, or choose another folder."
            ) from error
        except (ImportError, OSError):  # a system, or a file system, without such locks
            pass

    def release(self) -> None:
        """Let others write there."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_lock(folder: Path) -> None:
    """Refuse a folder in which somebody keeps a file `lock` that is no lock: locks are empty."""
    path = folder / "lock"
    with storage.refused(path):
        status = regular.status_of(path)
    if status is not None and status.st_size:
        raise RecipeError(
            str(path),
            f"it has {status.st_size} bytes, a lock has none: it is not of a run",
            do="Move it away, or choose another folder.",
        )
