"""One thread, for the tensors of these tests are small; kernels find their headers read, or are interpreted."""

import hashlib
import os
import subprocess
from pathlib import Path

import devices  # noqa: F401, says whether Triton interprets
import torch

from integrators.kernels import native

torch.set_num_threads(1)

HEADERS = """#include <cmath>
#include <cstdint>
#include <cstring>
#if defined __AVX2__
#include <immintrin.h>
#endif
"""


def pytest_configure(config):
    """Half of what a kernel takes to compile are the system's headers: GCC reads them once for all kernels of a run."""
    if native.compiler() is None or "clang" in native.compiler()[1]:
        return
    (command, version), flags = native.compiler(), native.FLAGS
    key = hashlib.sha256("\0".join([*command, version, *flags, native.processor(), HEADERS]).encode()).hexdigest()[:16]
    header = native.folder() / f"headers-{key}" / "headers.hpp"
    if not header.exists():
        precompile(command, flags, header)
    native.FLAGS = (*flags, "-include", str(header))


def precompile(command, flags, header: Path):
    """Where this fails, the header is read as it stands."""
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(HEADERS)
    own = header.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*command, *flags, "-x", "c++-header", str(header), "-o", str(own)], capture_output=True)
    if done.returncode == 0:
        os.replace(own, f"{header}.gch")
