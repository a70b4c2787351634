"""Opening of regular files only, never of pipes, devices or folders, and of links only if asked."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recipe.errors import RecipeError

# A pipe is opened without waiting for its other end. Systems lack some of these.
ALONE = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))
NO_LINK = getattr(os, "O_NOFOLLOW", 0)

KINDS: dict[str, Callable[[int], bool]] = {
    "a symbolic link": stat.S_ISLNK,
    "a folder": stat.S_ISDIR,
    "a pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
}


def status_of(path: Path) -> os.stat_result | None:
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
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    _check_regular(path, status.st_mode)
    return status


def opened(path: Path, flags: int, *, links: bool = False) -> int:
    """Opens a regular file, through a symbolic link only with `links`, and returns its descriptor.

    Raises RecipeError for anything but a regular file, and OSError.
    """
    if not links:
        status_of(path)
    elif path.exists():
        _check_regular(path, path.stat().st_mode)
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


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((kind for kind, holds in KINDS.items() if holds(mode)), "a device")
    raise RecipeError(str(path), f"it is {kind}, not a regular file", do="Move it away, or choose another folder.")
