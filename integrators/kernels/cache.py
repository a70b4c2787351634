"""Cache of compiled kernels: a folder that no other user can write to, because its files are executed."""

import atexit
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from recipe.errors import warn

CACHE = "SDE_RECIPE_CACHE"  # the variable that names the folder of compiled kernels
BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")  # false on some systems
FOREIGN = stat.S_IWGRP | stat.S_IWOTH  # permissions that other users may not have


def folder() -> Path:
    """The folder of compiled kernels: $SDE_RECIPE_CACHE, else sde-recipe in the user's cache folder.

    Raises OSError for a user without a home.
    """
    path = os.environ.get(CACHE)
    if path:
        return Path(path)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sde-recipe"
    except RuntimeError as error:
        raise OSError("there is no home folder") from error


class Files:
    """Files of an open folder by name, independent of a later change of the folder's path.

    `descriptor`: descriptor of the open folder; None on systems without one, where files are opened by path.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.descriptor = descriptor

    def whole(self, name: str) -> bool:
        """Whether a file matches its seal and belongs to this user; any other file is compiled again."""
        try:
            sealed = self._read(_seal(name)).decode()
            return sealed == hashlib.sha256(self._read(name)).hexdigest()
        except (OSError, ValueError):
            return False

    def names(self, name: str, functions: Sequence[str]) -> bool:
        """Whether a library contains the names of the functions; otherwise the library is compiled again."""
        contents = self._read(name)
        return all(f"{function}\0".encode() in contents for function in functions)

    def write(self, name: str, contents: bytes) -> None:
        """Write a file and its seal atomically: another process sees the whole file or none."""
        seal = hashlib.sha256(contents).hexdigest().encode()
        for at, data in ((name, contents), (_seal(name), seal)):
            draft = f"{at}.{secrets.token_hex(8)}"
            try:
                with os.fdopen(self._open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                    file.write(data)
                os.replace(self._at(draft), self._at(at), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            except BaseException:
                self.remove(draft)
                raise

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        try:
            os.unlink(self._at(name), dir_fd=self.descriptor)
        except FileNotFoundError:
            pass

    def name_for_loading(self, name: str) -> str:
        """The path of a file, through the folder's descriptor if the system allows it."""
        path = f"/proc/self/fd/{self.descriptor}"
        return f"{path if self.descriptor is not None and os.path.isdir(path) else self.path}/{name}"

    def _at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)

    def _open(self, name: str, flags: int) -> int:
        extra = sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
        return os.open(self._at(name), flags | extra, 0o600, dir_fd=self.descriptor)

    def _read(self, name: str) -> bytes:
        with os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or foreign(status):
                raise OSError(f"{name} may have been written by somebody else")
            return file.read()


@contextmanager
def files() -> Iterator[Files]:
    """The files of the cache; with a warning those of a temporary folder if the cache is unusable or unsafe."""
    place: Path | str = "the user's cache folder"
    try:
        place = folder()
        opened = _opened(place)
    except OSError as error:
        opened = _opened(_temporary(f"{place} cannot be used ({error.strerror or error})"))
    try:
        yield opened
    finally:
        if opened.descriptor is not None:
            os.close(opened.descriptor)


def foreign(status: os.stat_result) -> str:
    """The reason why another user may have written a file or folder, its owner or mode; "" if there is none.

    >>> foreign(os.stat(tempfile.mkdtemp()))
    ''
    """
    if not hasattr(os, "getuid"):
        return ""
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}"
    return "others may write there" if status.st_mode & FOREIGN else ""


def _opened(path: Path) -> Files:
    """The files of a folder, created if missing; raises OSError unless only this user can write to it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = path.resolve()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) if BY_DESCRIPTOR else None
    try:
        reason = foreign(path.stat() if descriptor is None else os.fstat(descriptor))
        if reason:
            raise OSError(reason)
        if not os.access(path, os.W_OK):
            raise OSError("it cannot be written")
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise
    return Files(path, descriptor)


@cache
def _temporary(reason: str) -> Path:
    """A temporary folder of this process, removed at exit."""
    warn(f"cpp: {reason}: kernels are compiled anew in a temporary folder. Name a folder of your own in {CACHE}")
    path = Path(tempfile.mkdtemp(prefix="sde-recipe-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not at the end of a fork
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


def _seal(name: str) -> str:
    return Path(name).with_suffix(".sha256").name
