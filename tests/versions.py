"""A quarter of the tests with the oldest versions that pyproject.toml allows, and with the newest on each Python.

python tests/versions.py [oldest] [3.11] [3.12] [3.13] [what pytest is told]

An environment for each stands in out/versions; PyPI's torch with CUDA takes some 5 GB in each, unless PIP_INDEX_URL or
PIP_EXTRA_INDEX_URL name an index of CPU builds. One has no optional packages. A Python that is not on PATH is named and
left out.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("arviz", "demo", "pyro", "test")  # triton is that of torch
OPTIONAL = ("arviz", "jax", "jaxlib", "matplotlib", "pyro-api", "pyro-ppl", "scikit-learn", "triton")
SHOWN = ("torch", "numpy", "scipy", "sympy", "pandas", "arviz", "jax", "triton")
QUARTER = """calculus certificates checkpoints cli cuda_graphs diagnostics draws emitted_step environments evidence
flows gradients_given kernel_cache kernels names noise operators optimizer pyro recipes regression running_ahead scores
stock strategies triton tuning unrolled""".split()  # each library is used by some of them


class Environment(NamedTuple):
    """A Python, whether versions are the oldest, and whether optional packages are left out."""

    python: str
    oldest: bool = False
    bare: bool = False

    @property
    def requirements(self):
        """What pip is told."""
        names = ("test",) if self.bare else EXTRAS
        extras = [r for name in names for r in PROJECT["optional-dependencies"][name] if not r.startswith("sde-recipe")]
        every = [*PROJECT["dependencies"], *extras]
        if self.bare:
            every = [r for r in every if re.match(r"[\w-]+", r)[0] not in OPTIONAL]
        return [re.sub(r">=([\w.]+).*", r"==\1", r) for r in every] if self.oldest else every


ENVIRONMENTS = {
    "oldest": Environment("3.11", oldest=True),
    "3.11": Environment("3.11"),
    "3.12": Environment("3.12", bare=True),
    "3.13": Environment("3.13"),
}


def python_of(version):
    """The command of a Python of that version, None where there is none that runs."""
    for name in (f"python{version}", "python3", "python", sys.executable):
        path = shutil.which(name)
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        if path and subprocess.run([path, "-c", code], capture_output=True, text=True).stdout.strip() == version:
            return path
    return None


def made(name, environment, python):
    """The Python of an environment with its packages and this one."""
    folder = ROOT / "out" / "versions" / name
    own = folder / "bin" / "python"
    if not own.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [own, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    newest = [] if environment.oldest else ["--upgrade", "--upgrade-strategy", "eager"]
    subprocess.run([*pip, "install", *newest, *environment.requirements], check=True)
    if environment.bare:
        subprocess.run([*pip, "uninstall", "--yes", *OPTIONAL], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([*pip, "install", "--no-deps", "--editable", ROOT], check=True)
    return own


def versions_of(python):
    """What an environment has, of the packages that are shown."""
    code = (
        "import sys; from importlib.metadata import distributions as d; have = {x.name: x.version for x in d()}; "
        "print(*(f'{n} {have[n]}' for n in sys.argv[1:] if n in have), sep=', ')"
    )
    return subprocess.run([python, "-c", code, *SHOWN], capture_output=True, text=True, check=True).stdout.strip()


def tested(python, given):
    """The end of what pytest says, and its exit status."""
    files = [f"tests/test_{name}.py" for name in QUARTER]
    command = [python, "-m", "pytest", "--numprocesses=auto", "--dist=worksteal", "-rfEs", *(given or files)]
    settings = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True)
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    return last, process.wait()


def main(arguments):
    names = [a for a in arguments if a in ENVIRONMENTS] or list(ENVIRONMENTS)
    given = [a for a in arguments if a not in ENVIRONMENTS]
    rows, faults = [], 0
    for name in names:
        environment = ENVIRONMENTS[name]
        python = python_of(environment.python)
        if python is None:
            rows.append(f"{name}: left out, there is no python{environment.python}")
            continue
        print(f"\n{name}:", *environment.requirements, flush=True)
        began = time.monotonic()
        try:
            own = made(name, environment, python)
        except subprocess.CalledProcessError as error:
            rows.append(f"{name}: {error}")
            faults += 1
            continue
        ready = time.monotonic()
        last, status = tested(own, given)
        faults += status != 0
        rows.append(f"{name}: {last}; made in {ready - began:.0f} s\n    {versions_of(own)}")
    print("", *rows, sep="\n")
    return faults != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
