"""The lock of a folder, which one process at a time holds to write there."""

import os
from pathlib import Path
from typing import Self

from recipe.errors import RecipeError

from . import regular, storage


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
        """Releases the lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_lock(folder: Path) -> None:
    """Refuses a folder with a file `lock` that is not empty, and so no lock."""
    path = folder / "lock"
    with storage.refused(path):
        status = regular.status_of(path)
    if status is not None and status.st_size:
        raise RecipeError(
            str(path),
            f"it has {status.st_size} bytes, a lock has none: it is not of a run",
            do="Move it away, or choose another folder.",
        )
