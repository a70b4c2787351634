"""Where these packages run: without docstrings and asserts, without a compiler, a home, AVX2 or optional packages."""

import os
import platform
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import samplers
from integrators.kernels import fallback, native
from recipe import Energy, total, vector

ROOT = Path(__file__).parent.parent
COMPILER = native.compiler()

WITHOUT_DOCSTRINGS = """
import samplers, torch
from samplers.cli import main
from samplers.stock import catalogue
from samplers.testing.properties import _agree

try:
    _agree({"p": 1.0}, {"p": 2.0}, 1e-12, "one step")
except AssertionError as error:
    print(error)
list(catalogue.values())
draws = samplers.sample(samplers.SGHMC, lambda x: (x**2).sum() / 2, init=torch.zeros(3), steps=200, step_size=0.4,
                        chains=4, progress=False)
print(len(draws.summary()), len(draws.to_arviz().posterior["theta"]), len(draws.plot().axes))
main(["show", "sghmc"])
"""

BARE = """
import os, pwd, warnings
import samplers, torch
from recipe import Energy, RecipeError, total, vector
from samplers.running import choice

choice.STEPS = 100

def nobody(number):
    raise KeyError(number)

if "HOME" not in os.environ:
    pwd.getpwuid = nobody
theta = vector("theta")
U = Energy(theta, U=total(theta**2) / 2)

def run(backend):
    init = torch.zeros(3, dtype=torch.float64)
    return samplers.sample(samplers.SGHMC, U, init=init, steps=100, step_size=0.4, seed=1, thin=10, progress=False,
                           backend=backend)

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    both = run("auto"), run("auto")
print(*{draws.info["backend"] for draws in both}, len(told), *[w.message for w in told])
torch.testing.assert_close(both[0]["theta"], run("torch")["theta"], rtol=1e-9, atol=1e-9)
both[0].summary(), both[0].plot()
try:
    both[0].to_arviz()
except RecipeError as error:
    print(error)
"""

WITHOUT_OPTIONAL_PACKAGES = """
import sys, pytest
for name in ("arviz", "jax", "matplotlib", "pyro", "sklearn", "triton"):
    sys.modules[name] = None
sys.exit(pytest.main(["--collect-only", "-p", "no:cacheprovider", "-o", "addopts=-q -rs -p no:doctest", "tests"]))
"""


def story(text, *flags, **environment):
    """What a process prints; a variable that is None is not set there."""
    kept = {k: v for k, v in (os.environ | environment).items() if v is not None}
    done = subprocess.run([sys.executable, *flags, "-c", text], cwd=ROOT, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.needs("arviz", "matplotlib")
def test_without_docstrings_and_asserts_and_with_warnings_as_errors():
    told = story(WITHOUT_DOCSTRINGS, "-OO", "-W", "error")
    assert told.startswith("one step: p is off by 0.5, more than 1e-12\n3 4 9\nsghmc")


NO_OTHER_FOLDER = {"XDG_CACHE_HOME": None, "SDE_RECIPE_CACHE": None}


def test_without_a_compiler_steps_run_in_torch_which_is_said_once(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("samplers.running.choice.STEPS", 1)  # of a run that is worth a kernel
    monkeypatch.setattr(native, "compiler", native.compiler.__wrapped__)  # which looks again
    fallback._say_once.cache_clear()
    theta = vector("theta")
    unseen = Energy(theta, U=total(theta**2) / 2.718)  # no kernel of it is in memory
    how = dict(init=torch.zeros(2), steps=3, step_size=0.1, progress=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for draws in (samplers.sample(samplers.SGLD, unseen, **how) for _ in range(2)):
            assert draws.info["backend"] == "torch"
    said = [str(w.message) for w in told if "no kernel is compiled" in str(w.message)]
    assert len(said) == 1 and "there is no C++ compiler" in said[0]


@pytest.mark.slow
@pytest.mark.needs("arviz", "matplotlib")
def test_without_a_compiler_a_home_and_a_name_steps_run_in_torch_which_is_said_once():
    told = story(BARE, **NO_OTHER_FOLDER, HOME=None, CXX=None, PATH="/nowhere")
    assert told.startswith("torch 1 no kernel is compiled, steps run in torch: cpp: there is no C++ compiler")


@pytest.mark.slow
@pytest.mark.needs("arviz", "matplotlib")
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_in_a_home_that_cannot_be_written_and_without_avx2_a_kernel_has_the_numbers_of_torch():
    v2 = " -march=x86-64-v2" * (platform.machine() == "x86_64")
    told = story(BARE, **NO_OTHER_FOLDER, HOME=os.devnull, CXX=" ".join(COMPILER.command) + v2)
    assert told.startswith("cpp 1 cpp: /dev/null/.cache/sde-recipe cannot be used (Not a directory)")


@pytest.mark.slow
def test_what_needs_an_optional_package_that_is_not_there_is_skipped_by_its_name():
    told = story(WITHOUT_OPTIONAL_PACKAGES)
    skipped = dict(re.findall(r"SKIPPED .* tests/(\w+)\.py:0: (\w+) is not installed", told))
    assert skipped["test_pyro"] == "pyro" and skipped["test_triton"] == "triton" and len(skipped) < 10
    assert "tests/test_draws.py::" in told
