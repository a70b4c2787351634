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
    """The command and version of a C++ compiler: what the variable CXX says, else c++, g++ or clang++.

    None if there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for name, *flags in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        path = shutil.which(name)
        version = path and _version(path)
        if path and version is not None:
            return (path, *flags), version
    return None


def _version(path):
    """The first line of what a compiler says of itself; None if it does not run."""
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.partition("\n")[0] if run.returncode == 0 else None


@cache
def processor() -> str:
    """What -march=native stands for here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "; ".join(sorted({line for line in lines if line.startswith(("flags", "model name", "Features"))}))


def folder() -> Path:
    """Where compiled kernels are kept: $SDE_RECIPE_CACHE, else sde-recipe in the user's cache folder."""
    own = os.environ.get(CACHE)
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sde-recipe"


@cache
def library(source: str, defines: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The text compiled and loaded; from the cache where the same compiler has compiled it for the same CPU.

    Raises RecipeError where there is no compiler, or it fails.
    """
    known = compiler()
    if known is None:
        named = os.environ.get("CXX")
        raise RecipeError(
            "cpp",
            f"CXX={named} is no C++ compiler" if named else "there is no C++ compiler",
            do="Install g++ or clang++, or name one in CXX; or use backend='torch'.",
        )
    command, version = known
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


def _is_whole(path):
    """Whether a file of the cache is what was written: a stale or half-written one is compiled again."""
    try:
        return _seal(path).read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return False


def _compiled(source, command, flags, kept):
    """Compile into a file of one's own, load it, then give it its name: another process sees all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=kept.parent) as own:
        text, built, seal = (Path(own) / name for name in ("kernel.cpp", "kernel.so", "seal"))
        text.write_text(source)
        _compile([*command, *flags, "-o", str(built), str(text)], built)
        loaded = ctypes.CDLL(str(built))
        seal.write_text(hashlib.sha256(built.read_bytes()).hexdigest())
        os.replace(built, kept)
        os.replace(seal, _seal(kept))
        return loaded


def _compile(command, built):
    """Run a compiler, which makes a file."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except (OSError, subprocess.SubprocessError) as error:
        raise RecipeError(
            "cpp", f"the compiler {command[0]} did not run: {error}", do="Mend it, or use backend='torch'."
        ) from error
    if run.returncode != 0 or not built.exists():
        errors = (line for line in run.stderr.splitlines() if "error" in line)
        message = next(errors, run.stderr.strip()[:300] or "no message")
        raise RecipeError(
            "cpp",
            f"the compiler {command[0]} failed ({run.returncode}): {message}",
            do="Mend it, or use backend='torch'.",
        )
