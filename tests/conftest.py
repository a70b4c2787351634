"""One thread if nothing is said, for the tensors of these tests are small; kernels find their headers read.

Where there is no GPU, Triton's kernels are interpreted. The seeds of all random numbers may be shifted.
"""

import gc
import hashlib
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import optional
import pytest
from _pytest.doctest import DoctestModule

from integrators import flow_rules, metropolis
from integrators.kernels import native
from integrators.kernels.cache import folder
from recipe import representative

gc.disable()  # until everything is imported
os.environ.setdefault("MPLBACKEND", "Agg")
SHIFT = pytest.StashKey()
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def monkeypatch(monkeypatch):
    """Mistakes are planted in the compiler: what is declared beside one is made with it, and shared with nobody."""
    monkeypatch.setattr(representative, "_first", lambda content: content.recipe)
    monkeypatch.setattr(metropolis, "_proposal", metropolis._proposal.__wrapped__)
    monkeypatch.setattr(flow_rules, "_mean_and_spread", flow_rules._mean_and_spread.__wrapped__)
    return monkeypatch


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder named mnist with the four idx files of made up images."""
    from idx_files import write_blurs

    folder = tmp_path_factory.mktemp("data") / "mnist"
    write_blurs(folder)
    return folder


@contextmanager
def scripts_of(folder: Path):
    """Scripts that import each other by their names, which scripts of another folder may bear, too."""
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [path.stem for path in folder.glob("*.py")]:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def papers():
    """The experiments of the papers; networks are made in float32."""
    import torch

    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    with scripts_of(EXAMPLES / "papers") as folder:
        yield folder
    torch.set_default_dtype(dtype)


@pytest.fixture(scope="module")
def gallery():
    """The script that runs the samplers of the gallery."""
    with scripts_of(EXAMPLES / "gallery"):
        import run

        yield run


@pytest.fixture
def brief(monkeypatch):
    """Pilot runs with short windows and trials."""
    from samplers.tuning import pilot, tuner

    monkeypatch.setattr(tuner, "MOST_WORDS", tuner.FEWEST_WORDS)
    monkeypatch.setattr(pilot, "TRIAL", 80)


@pytest.fixture
def study(papers, tmp_path):
    """A quick one."""
    from study import Scale, Study

    return Study(tmp_path, scale=Scale.QUICK)


@pytest.fixture
def pixels(study, tmp_path):
    """Images of noise in the format of the exact ones."""
    import numpy as np

    random = np.random.RandomState(0)
    (tmp_path / "cifar10").mkdir()
    arrays = {}
    for part, rows in (("train", 48), ("test", 20)):
        arrays[f"X_{part}"] = random.randint(0, 256, (rows, 32, 32, 3)).astype(np.uint8)
        arrays[f"y_{part}"] = random.randint(0, 10, rows).astype(np.uint8)
    np.savez(tmp_path / "cifar10" / "cifar10_lossless_4k_1k.npz", **arrays)
    study.data = tmp_path
    return study


HEADERS = """#include <cmath>
#include <cstdint>
#include <cstring>
#if defined __AVX2__
#include <immintrin.h>
#endif
"""


def pytest_addoption(parser):
    parser.addoption("--seed-shift", type=int, default=0, help="what is added to the seeds of all random numbers")


def pytest_configure(config):
    config.pluginmanager.register(optional)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell leaves it to what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", 0):  # this process runs tests
        prepare_torch()
    if config.getoption("seed_shift"):
        from shifted_seeds import Shift

        config.stash[SHIFT] = Shift(config.getoption("seed_shift"))
        config.stash[SHIFT].install()
    config.pluginmanager.register(Doctests())
    if "CXX" not in os.environ and config.getoption("markexpr") != "slow":  # those of `make slow` are a user's own
        native.FLAGS = tuple("-Og" if flag == "-O3" else flag for flag in native.FLAGS)
    with suppress(OSError):  # of a home that cannot be written, or is none
        precompile_headers()


def prepare_torch():
    """One thread, unless more are asked for; `devices` says whether Triton interprets."""
    import devices  # noqa: F401
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))


class Doctests:
    """Files that show no example are not imported to look for one."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path):
        found = yield
        return [c for c in found if not isinstance(c, DoctestModule) or ">>> " in file_path.read_text()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Known answers are of the seed that they state."""
    shift = item.config.stash.get(SHIFT, None)
    stated = isinstance(item, pytest.DoctestItem) or item.get_closest_marker("stated_seed")
    if shift is None or not stated:
        return (yield)
    by, shift.by = shift.by, 0
    try:
        return (yield)
    finally:
        shift.by = by


def precompile_headers():
    """Half of what a kernel takes to compile are the system's headers: GCC reads them once for all kernels of a run."""
    compiler = native.compiler()
    if compiler is None or "clang" in compiler.version:
        return
    command = (*compiler.command, *native.FLAGS, *compiler.flags)
    key = hashlib.sha256("\0".join([*command, compiler.version, native.processor(), HEADERS]).encode()).hexdigest()[:16]
    header = folder() / f"headers-{key}" / "headers.hpp"
    if not header.exists():
        precompile(command, header)
    native.FLAGS = (*native.FLAGS, "-include", str(header))


def pytest_collection_finish():
    """What has been imported stays: the collector need not look at it again and again, nor so often."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)


def precompile(command, header: Path):
    """Where this fails, the header is read as it stands."""
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(HEADERS)
    own = header.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*command, "-x", "c++-header", str(header), "-o", str(own)], capture_output=True)
    if done.returncode == 0:
        os.replace(own, f"{header}.gch")
