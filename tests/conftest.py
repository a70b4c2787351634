"""One thread, for the tensors of these tests are small; kernels find their headers read, or are interpreted."""

import gc
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import devices  # noqa: F401, says whether Triton interprets
import pytest
import torch
from idx_files import write_blurs

from integrators.kernels import native

torch.set_num_threads(1)
PAPERS = Path(__file__).parent.parent / "examples" / "papers"


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder named mnist with the four idx files of made up images."""
    folder = tmp_path_factory.mktemp("data") / "mnist"
    write_blurs(folder)
    return folder


@pytest.fixture(scope="module")
def papers():
    """The experiments of the papers are scripts that import each other; networks are made in float32."""
    sys.path.insert(0, str(PAPERS))
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield PAPERS
    torch.set_default_dtype(dtype)
    sys.path.remove(str(PAPERS))


@pytest.fixture
def study(papers, tmp_path):
    """A quick one."""
    from study import Scale, Study

    return Study(tmp_path, scale=Scale.QUICK)


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


def pytest_collection_finish():
    """What has been imported stays: the collector need not look at it again and again, nor so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def precompile(command, flags, header: Path):
    """Where this fails, the header is read as it stands."""
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(HEADERS)
    own = header.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*command, *flags, "-x", "c++-header", str(header), "-o", str(own)], capture_output=True)
    if done.returncode == 0:
        os.replace(own, f"{header}.gch")
