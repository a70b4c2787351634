"""Regular files, never pipes, devices or folders, and links only if asked; written whole or not at all."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recipe.errors import RecipeError

# A pipe is opened without waiting for its other end. Systems lack some of these.
ALONE = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
TEMPORARY = r"\..*\.[0-9a-f]{8}"  # names of files that are being written

KINDS: dict[str, Callable[[int], bool]] = {
    "a symbolic link": stat.S_ISLNK,
    "a folder": stat.S_ISDIR,
    "a pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
}


@contextmanager
def refused(path: str | os.PathLike, *, do: str = "Choose a folder with room that you may write to.") -> Iterator[None]:
    """Turns errors of the system into a RecipeError that names the path."""
    try:
        yield
    except RecipeError:
        raise
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(str(path), f"cannot be written ({reason})", do=do) from error


def status_of(path: Path, *, links: bool = False) -> os.stat_result | None:
    """The status of a regular file, None for a missing one. Raises RecipeError for anything but a regular file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "theta.draws").symlink_to("elsewhere")
    >>> status_of(folder / "theta.draws")                                   # doctest: +ELLIPSIS
    Traceback (most recent call last):
    recipe.errors.RecipeError: .../theta.draws: it is a symbolic link, not a regular file. Move it away, or choose \
another folder.
    """
    try:
        status = path.stat() if links else path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    _check_regular(path, status.st_mode)
    return status


def size_of(path: Path) -> int | None:
    """The bytes of a regular file, None for a missing one. Raises RecipeError for anything but a regular file."""
    with refused(path):
        status = status_of(path)
    return None if status is None else status.st_size


def opened(path: Path, flags: int, *, links: bool = False) -> int:
    """Opens a regular file, through a symbolic link only with `links`, and returns its descriptor.

    Raises RecipeError for anything but a regular file, and OSError.
    """
    status_of(path, links=links)
    descriptor = os.open(path, flags | ALONE | (0 if links else NO_LINK), 0o666)
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def read_by_name(path: Path, *, links: bool) -> Iterator[str]:
    """A name for reading a regular file; where the system has one, a name of the very descriptor that was checked.

    `links`: whether symbolic links are followed. Raises the errors of `opened`.
    """
    descriptor = opened(path, os.O_RDONLY, links=links)
    try:
        names = (f"/proc/self/fd/{descriptor}", f"/dev/fd/{descriptor}")
        yield next(filter(os.path.exists, names), str(path))
    finally:
        os.close(descriptor)


def replace(path: Path, data: bytes) -> None:
    """Writes a file, in place of a regular file or a new one, whole or not at all. Raises OSError."""
    if path.exists() and not path.is_file():
        raise FileExistsError("not a regular file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((kind for kind, holds in KINDS.items() if holds(mode)), "a device")
    raise RecipeError(str(path), f"it is {kind}, not a regular file", do="Move it away, or choose another folder.")
