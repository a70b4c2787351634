"""Nothing makes a user wait: processor seconds of importing and compiling, on any machine of this decade."""

import os
import subprocess
import sys

import pytest
from covering import slow

from samplers.testing.cases import CASES


def test_importing_recipe_takes_less_than_a_second_and_no_torch_and_draws_and_plots_import_no_pandas():
    code = (
        "import time, sys; import recipe; assert time.process_time() < 1; "
        "assert not {'torch', 'numpy', 'arviz'} & set(sys.modules); "
        "import samplers.results.draws, samplers.results.plots; "
        "assert not {'arviz', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
