"""Nothing makes a user wait: processor seconds of importing and compiling, on any machine of this decade."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest
from covering import slow

from samplers.testing.cases import CASES

STAGES = {
    "recipe": "import recipe",
    "samplers": "import samplers",
    "schedules": "import samplers.schedules",
    "commands": """
from samplers.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert [main(argv) for argv in (["list"], ["show", "sgld"], ["emit", "sgld"])] == [0, 0, 0]
""",
    "draws": "import samplers.results.draws, samplers.results.plots",
}


@cache
def imported():
    """The modules after each stage of one process, and its processor seconds."""
    lines = ["import contextlib, io, json, sys, time", "after = {}"]
    for stage, text in STAGES.items():
        lines += [text, f"after[{stage!r}] = [*sys.modules], time.process_time()"]
    code = "\n".join([*lines, "print(json.dumps(after))"])
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return {stage: (set(modules), seconds) for stage, (modules, seconds) in json.loads(done.stdout).items()}


def test_importing_recipe_takes_less_than_a_second_and_neither_torch_nor_numpy():
    modules, seconds = imported()["recipe"]
    assert seconds < 1 and not {"torch", "numpy", "arviz"} & modules


def test_importing_samplers_imports_no_torch():
    assert "torch" not in imported()["samplers"][0]


def test_importing_schedules_imports_neither_torch_nor_anything_else_of_weight():
    names = {"samplers.running", "samplers.running.phases", "samplers.running.schedules", "samplers.schedules"}
    assert imported()["schedules"][0] - imported()["samplers"][0] == names


def test_what_only_reads_formulas_imports_neither_torch_nor_arviz():
    """What is imported takes its time: sympy alone is half a second, torch one and a half more."""
    slow = {"torch", "arviz", "matplotlib", "pandas", "scipy", "tqdm", "safetensors"}
    assert not slow & imported()["commands"][0]


def test_draws_and_plots_import_neither_arviz_nor_pandas_nor_matplotlib():
    assert not {"arviz", "pandas", "matplotlib"} & imported()["draws"][0]


LONGEST = dict.fromkeys(["sgld-sa-classification-gibbs", "sghmc-sa-classification-gibbs", "sghmc-relativistic"], 1)
WHOLE = {name: len(case.all_words) for name, case in CASES.items()}


@pytest.mark.parametrize("words", [LONGEST, slow(WHOLE)], ids=len)
def test_compiling_each_stock_recipe_takes_less_than_a_second(words):
    # in a process of its own: neither the garbage of other tests nor their threads count
    code = (
        "import sys, time, integrators\n"
        "from samplers.testing.cases import CASES\n"
        "for name, number in eval(sys.argv[1]).items():\n"
        "    case = CASES[name]\n"
        "    for word in case.all_words[:number]:\n"
        "        begin = time.process_time()\n"
        "        assert integrators.compile(case.recipe, word).standalone()\n"
        "        print(time.process_time() - begin, name, word, sep='\\t')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(words)], capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert {name for _, name, _ in rows} == set(words)
    assert not [row for row in rows if float(row[0]) >= 1]


@pytest.mark.slow
def test_a_step_of_few_weights_wakes_no_threads():
    # the kernel's own threads and torch's would wait for each other
    code = (
        "import os, sys, torch, samplers\n"
        "weights = [torch.nn.Parameter(torch.zeros(1000)) for _ in range(int(sys.argv[1]))]\n"
        "optimizer = samplers.Optimizer(weights, 'sghmc', lr=0.01, num_data=10)\n"
        "for w in weights: w.grad = torch.zeros_like(w)\n"
        "threads = len(os.listdir('/proc/self/task'))\n"
        "optimizer.step()\n"
        "print(len(os.listdir('/proc/self/task')) - threads)\n"
    )
    command, environment = [sys.executable, "-c", code], os.environ | {"OMP_NUM_THREADS": "2"}
    few, many = (
        subprocess.run([*command, size], env=environment, capture_output=True, text=True, check=True).stdout
        for size in ("1", "100")
    )
    assert int(few) == 0 < int(many)
