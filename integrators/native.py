"""C++ text to a loaded library: a plain compiler, and a cache on disk that many processes may share."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from recipe.errors import RecipeError

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-w")
CACHE = "SDE_RECIPE_CACHE"  # the variable that names the folder of compiled kernels
LIMIT = 300.0  # seconds for one file


@cache
def compiler() -> tuple[str, str] | None:
    """The path and version of a C++ compiler: that of the variable CXX, else c++, g++ or clang++; None if there is none."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = name and shutil.which(name)
        if path:
            try:
                told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
            except (OSError, subprocess.SubprocessError):
                continue
            if told.returncode == 0:
                return path, told.stdout.partition("\n")[0]
    return None


@cache
def processor() -> str:
    """What -march=native stands for here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "; ".join(sorted({line for line in lines if line.startswith(("flags", "model name", "Features"))}))
    except OSError:
        return platform.processor() + platform.machine()


def folder() -> Path:
    """Where compiled kernels are kept: $SDE_RECIPE_CACHE, else sde-recipe in the user's cache folder."""
    given = os.environ.get(CACHE)
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sde-recipe"


@cache
def library(source: str, defines: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The text compiled and loaded; from the cache where the same text was compiled by the same compiler for the same CPU.

    Raises RecipeError where there is no compiler, or it fails.
    """
    found = compiler()
    if found is None:
        raise RecipeError("cpp", "there is no C++ compiler", do="Install g++ or clang++, or name one in CXX; or use backend='torch'.")
    path, version = found
    flags = (*FLAGS, *(f"-D{d}" for d in defines))
    key = hashlib.sha256("\0".join([source, path, version, *flags, processor()]).encode()).hexdigest()[:32]
    kept = _folder() / f"{key}.so"
    if _is_whole(kept):
        return ctypes.CDLL(str(kept))
    _compile(source, path, flags, kept)
    return ctypes.CDLL(str(kept))


def _folder():
    """The folder of the cache, made; a temporary one where it cannot be written."""
    kept = folder()
    try:
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(kept, os.W_OK):
            return kept
    except OSError:
        pass
    return _temporary()


@cache
def _temporary():
    return Path(tempfile.mkdtemp(prefix="sde-recipe-"))


def _seal(path):
    return path.with_suffix(".sha256")


def _is_whole(path) -> bool:
    """Whether a file of the cache is what was written: a stale or half-written one is compiled again."""
    try:
        return _seal(path).read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return False


def _compile(source, path, flags, kept):
    """Compile into a file of one's own, then give it its name: another process sees all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=kept.parent) as own:
        text, built = Path(own) / "kernel.cpp", Path(own) / "kernel.so"
        text.write_text(source)
        try:
            done = subprocess.run([path, *flags, "-o", str(built), str(text)], capture_output=True, text=True, timeout=LIMIT)
        except (OSError, subprocess.SubprocessError) as error:
            raise RecipeError("cpp", f"the compiler {path} did not run: {error}", do="Mend it, or use backend='torch'.") from error
        if done.returncode != 0 or not built.exists():
            told = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300] or "no message")
            raise RecipeError("cpp", f"the compiler {path} failed ({done.returncode}): {told}",
                              do="Mend it, or use backend='torch'.")
        seal = Path(own) / "seal"
        seal.write_text(hashlib.sha256(built.read_bytes()).hexdigest())
        os.replace(built, kept)
        os.replace(seal, _seal(kept))
