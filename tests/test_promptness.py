"""Nothing makes a user wait: processor seconds of importing and compiling, on any machine of this decade."""

import subprocess
import sys
import time

import pytest

import integrators
from samplers.testing.cases import CASES


def test_importing_recipe_takes_less_than_a_second_and_no_torch():
    code = (
        "import time, sys; import recipe; assert time.process_time() < 1; "
        "assert not {'torch', 'numpy', 'arviz'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_draws_and_plots_imports_neither_arviz_nor_pandas_nor_matplotlib():
    code = "import sys, samplers.results.draws, samplers.results.plots; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"arviz", "pandas", "matplotlib"} & set(done.stdout.split())


@pytest.mark.parametrize("name, word", [(name, word) for name, case in CASES.items() for word in case.all_words])
def test_compiling_a_stock_recipe_takes_less_than_a_second(name, word):
    begin = time.process_time()
    assert integrators.compile(CASES[name].recipe, word).standalone()
    assert time.process_time() - begin < 1
