"""The right to write in a folder, which one process has at a time."""

from pathlib import Path
from typing import Self

from recipe.errors import RecipeError

from . import storage


class Lock:
    """The right to write in a folder, from its making until `release`, the end of a `with` block or of the process.

    Systems and file systems without such locks grant it to all. Raises RecipeError where another process has it, and
    with the system's reason where the folder cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Lock(folder):
    ...     Lock(folder)                                                    # doctest: +ELLIPSIS
    Traceback (most recent call last):
    recipe.errors.RecipeError: ...: another run writes there. Wait for it, or choose another folder.
    """

    def __init__(self, folder: Path):
        with storage.refused(folder):
            self._file = open(folder / "lock", "w")
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
