"""Compilation of C++ text to a loaded library, with a cache on disk that processes share."""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from recipe.errors import RecipeError

from .cache import CACHE, files

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
LIMIT = 300.0  # seconds for one file


class Compiler(NamedTuple):
    """A C++ compiler: the command, the flags that come after all others, and its version."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    version: str


@cache
def compiler() -> Compiler | None:
    """The compiler in CXX, such as `clang++ -march=x86-64-v2`, else c++, g++ or clang++; None if there is none."""
    try:
        command = shlex.split(os.environ.get("CXX", ""))
    except ValueError:  # an open quote
        return None
    for name, *words in [command] if command else [["c++"], ["g++"], ["clang++"]]:
        path = shutil.which(name)
        version = path and _version(path)
        if path and version is not None:
            wrapped = tuple(takewhile(lambda word: not word.startswith("-"), words))
            return Compiler((path, *wrapped), tuple(words[len(wrapped) :]), version)
    return None


def _version(path):
    """The first line of a compiler's --version; None if the compiler does not run."""
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.partition("\n")[0] if run.returncode == 0 else None


@cache
def processor() -> str:
    """The model and features of this CPU, for which -march=native compiles."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "; ".join(sorted({line for line in lines if line.startswith(("flags", "model name", "Features"))}))


@cache
def library(source: str, defines: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The compiled and loaded library of a C++ text, cached by text, compiler, flags and CPU.

    `defines`: macros, NAME=VALUE; `flags`: further flags. Raises RecipeError if there is no compiler, or if it fails.
    """
    cxx = compiler()
    if cxx is None:
        choice = os.environ.get("CXX")
        what = f"CXX={choice} is no C++ compiler" if choice else "there is no C++ compiler"
        raise RecipeError("cpp", what, do="Install g++ or clang++, or name one in CXX; or use backend='torch'.")
    command = cxx.command
    source = "".join(f"#define {d.replace('=', ' ', 1)}\n" for d in defines) + source  # -D undoes precompiled ones
    flags = (*FLAGS, *flags, *cxx.flags)
    key = hashlib.sha256("\0".join([source, *command, cxx.version, *flags, processor()]).encode()).hexdigest()[:32]
    name = f"{key}.so"
    functions = re.findall(r'^extern "C" \w+ (\w+)\(', source, flags=re.M)
    try:
        with files() as folder:
            if folder.whole(name) and folder.names(name, functions):
                try:
                    return ctypes.CDLL(folder.name_for_loading(name))
                except OSError:  # a library of another system
                    folder.remove(name)
            folder.write(name, _compiled(source, command, flags))
            return ctypes.CDLL(folder.name_for_loading(name))
    except OSError as error:
        what = f"a kernel cannot be made: {error}"
        raise RecipeError("cpp", what, do=f"Name another folder in {CACHE}, or use backend='torch'.") from error


def _compiled(source, command, flags):
    """The bytes of the library that a compiler makes of a text; raises RecipeError if it makes none."""
    with tempfile.TemporaryDirectory(prefix="sde-recipe-") as folder:
        text = Path(folder) / "kernel.cpp"
        built = Path(folder) / "kernel.so"
        text.write_text(source)
        words = [*command, "-o", str(built), str(text), *flags]
        try:
            run = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
        except (OSError, subprocess.SubprocessError) as error:
            what = f"the compiler {command[0]} did not run: {error}"
            raise RecipeError("cpp", what, do="Mend it, or use backend='torch'.") from error
        if run.returncode == 0 and built.exists():
            return built.read_bytes()
    errors = (line for line in run.stderr.splitlines() if "error" in line)
    message = next(errors, run.stderr.strip()[:300] or "no message")
    what = f"the compiler {command[0]} failed ({run.returncode}): {message}"
    raise RecipeError("cpp", what, do="Mend it, or use backend='torch'.")
