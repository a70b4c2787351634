"""C++ text to a loaded library: a plain compiler, and a cache on disk that many processes may share."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from recipe.errors import RecipeError

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-w",
)
CACHE = "SDE_RECIPE_CACHE"  # the variable that names the folder of compiled kernels
LIMIT = 300.0  # seconds for one file


@cache
def compiler() -> tuple[tuple[str, ...], str] | None:
    """The command and version of a C++ compiler: what the variable CXX says, else c++, g++ or clang++; None if there is none."""
    given = shlex.split(os.environ.get("CXX", ""))
    for name, *flags in [given] if given else [["c++"], ["g++"], ["clang++"]]:
        if path := shutil.which(name):
            try:
                told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
            except (OSError, subprocess.SubprocessError):
                continue
            if told.returncode == 0:
                return (path, *flags), told.stdout.partition("\n")[0]
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
        named = os.environ.get("CXX")
        raise RecipeError(
            "cpp",
            f"CXX={named} is no C++ compiler" if named else "there is no C++ compiler",
            do="Install g++ or clang++, or name one in CXX; or use backend='torch'.",
        )
    command, version = found
    flags = (*FLAGS, *(f"-D{d}" for d in defines))
    key = hashlib.sha256("\0".join([source, *command, version, *flags, processor()]).encode()).hexdigest()[:32]
    try:
        kept = _folder().resolve() / f"{key}.so"
        if _is_whole(kept):
            try:
                return ctypes.CDLL(str(kept))
            except OSError:  # of another system
                kept.unlink()
        return _compiled(source, command, flags, kept)
    except OSError as error:
        raise RecipeError(
            "cpp",
            f"a kernel cannot be made in {folder()}: {error}",
            do=f"Name another folder in {CACHE}, or use backend='torch'.",
        ) from error


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


def _compiled(source, command, flags, kept):
    """Compile into a file of one's own and load it, then give it its name: another process sees all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=kept.parent) as own:
        text, built, seal = (Path(own) / name for name in ("kernel.cpp", "kernel.so", "seal"))
        text.write_text(source)
        try:
            done = subprocess.run(
                [*command, *flags, "-o", str(built), str(text)], capture_output=True, text=True, timeout=LIMIT
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RecipeError(
                "cpp", f"the compiler {command[0]} did not run: {error}", do="Mend it, or use backend='torch'."
            ) from error
        if done.returncode != 0 or not built.exists():
            told = next(
                (line for line in done.stderr.splitlines() if "error" in line),
                done.stderr.strip()[:300] or "no message",
            )
            raise RecipeError(
                "cpp",
                f"the compiler {command[0]} failed ({done.returncode}): {told}",
                do="Mend it, or use backend='torch'.",
            )
        loaded = ctypes.CDLL(str(built))
        seal.write_text(hashlib.sha256(built.read_bytes()).hexdigest())
        os.replace(built, kept)
        os.replace(seal, _seal(kept))
        return loaded
