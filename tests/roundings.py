"""The suite under other roundings than this machine's own: vector units, compilers, threads, orders of sets, seeds.

python tests/roundings.py [portable] [avx2] [clang] [seeds] [what pytest is told]

Each value is in one run at least, not every pair of them. What this machine cannot do is said and left out.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROUNDINGS = {
    "portable": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "CXX": "c++ -march=x86-64-v2",
        "OMP_NUM_THREADS": "2",
        "PYTHONHASHSEED": "1",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "CXX": "c++ -ffp-contract=off",
        "OMP_NUM_THREADS": "4",
        "PYTHONHASHSEED": "2",
    },
    "clang": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "CXX": "clang++",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "3",
    },
    "seeds": {"OMP_NUM_THREADS": "1", "SEED_SHIFT": "1"},
}
CAPABILITIES = ["default", "avx2", "avx512"]


def is_possible(name, value):
    """Whether this machine can do it."""
    if name == "ATEN_CPU_CAPABILITY":
        own = torch.backends.cpu.get_cpu_capability().lower()
        return own in CAPABILITIES[CAPABILITIES.index(value) :]
    if name == "MKL_CBWR":
        return torch.backends.mkl.is_available()
    return name != "CXX" or compiles(shlex.split(value))


def compiles(command):
    """Whether a compiler makes a library with OpenMP."""
    with tempfile.TemporaryDirectory() as folder:
        what = ["-fopenmp", "-shared", "-x", "c++", "-", "-o", f"{folder}/made.so"]
        text = "#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n"
        try:
            return subprocess.run([*command, *what], input=text, capture_output=True, text=True).returncode == 0
        except OSError:
            return False


def failures(name, given):
    """The tests that fail under a rounding, and pytest's exit status."""
    left_out = [key for key, value in ROUNDINGS[name].items() if not is_possible(key, value)]
    settings = {key: value for key, value in ROUNDINGS[name].items() if key not in left_out}
    print(f"\n{name}:", *(f"{key}={value}" for key, value in settings.items()), flush=True)
    for key in left_out:
        print(f"left out, this machine cannot do it: {key}={ROUNDINGS[name][key]}", flush=True)
    shift = f"--seed-shift={settings.pop('SEED_SHIFT', 0)}"
    command = [sys.executable, "-m", "pytest", "--numprocesses=auto", "--dist=worksteal", "-rfE", shift, *given]
    failed = []
    with subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout:
            print(line, end="", flush=True)
            failed += re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", line)
    return failed, run.returncode


def main(given):
    names = [name for name in ROUNDINGS if name in given] or [*ROUNDINGS]
    results = {name: failures(name, [word for word in given if word not in ROUNDINGS]) for name in names}
    tests = sorted({test for failed, _ in results.values() for test in failed})
    rows = [["failed", *names], ["---"] * (1 + len(names))]
    rows += [[test, *("x" if test in results[name][0] else "" for name in names)] for test in tests]
    rows += [["sum", *(str(len(results[name][0])) for name in names)]]
    print("", *("| " + " | ".join(row) + " |" for row in rows), sep="\n")
    return max(status for _, status in results.values())


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent)
    sys.exit(main(sys.argv[1:]))
