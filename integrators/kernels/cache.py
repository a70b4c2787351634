"""The cache of compiled kernels: a folder whose files nobody else may have written, as they become code."""

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
BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")  # what a system may lack
FOREIGN = stat.S_IWGRP | stat.S_IWOTH  # what others may not do


def folder() -> Path:
    """Where compiled kernels are kept: $SDE_RECIPE_CACHE, else sde-recipe in the user's cache folder.

    Raises OSError for a user without a home.
    """
    own = os.environ.get(CACHE)
    if own:
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sde-recipe"
    except RuntimeError as error:
        raise OSError("there is no home folder") from error


class Files:
    """The files of an open folder by their names, whatever becomes of the folder's own name meanwhile.

    `descriptor`: of the open folder, None where a system has none; then files go by their paths.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.descriptor = descriptor

    def whole(self, name: str) -> bool:
        """Whether a file is what was written, by this user: a half-written one, or that of another, is made again."""
        try:
            sealed = self._read(_seal(name)).decode()
            return sealed == hashlib.sha256(self._read(name)).hexdigest()
        except (OSError, ValueError):
            return False

    def names(self, name: str, functions: Sequence[str]) -> bool:
        """Whether a library has the names of these functions: one of another text is made again."""
        contents = self._read(name)
        return all(f"{function}\0".encode() in contents for function in functions)

    def write(self, name: str, contents: bytes) -> None:
        """Write a file and its seal: another process sees all of it or nothing."""
        seal = hashlib.sha256(contents).hexdigest().encode()
        for at, some in ((name, contents), (_seal(name), seal)):
            own = f"{at}.{secrets.token_hex(8)}"
            try:
                with os.fdopen(self._open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                    file.write(some)
                os.replace(self._at(own), self._at(at), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            except BaseException:
                self.remove(own)
                raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            os.unlink(self._at(name), dir_fd=self.descriptor)
        except FileNotFoundError:
            pass

    def name_for_loading(self, name: str) -> str:
        """A path that leads to a file of this very folder, where the system has one."""
        path = f"/proc/self/fd/{self.descriptor}"
        return f"{path if self.descriptor is not None and os.path.isdir(path) else self.path}/{name}"

    def _at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)

    def _open(self, name: str, flags: int) -> int:
        alone = sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
        return os.open(self._at(name), flags | alone, 0o600, dir_fd=self.descriptor)

    def _read(self, name: str) -> bytes:
        with os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or foreign(status):
                raise OSError(f"{name} may have been written by somebody else")
            return file.read()


@contextmanager
def files() -> Iterator[Files]:
    """The files of the cache; those of a temporary folder, with a warning, where others may write, or nobody."""
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
    """Why a file or a folder may be of somebody else: its owner or its mode; "" where it is not.

    >>> foreign(os.stat(tempfile.mkdtemp()))
    ''
    """
    if not hasattr(os, "getuid"):
        return ""
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}"
    return "others may write there" if status.st_mode & FOREIGN else ""


def _opened(path: Path) -> Files:
    """A folder that this user alone may write to, made if there is none. Raises OSError for another."""
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
    """A folder of this process, which is removed at its end."""
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
