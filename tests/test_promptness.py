"""Nothing makes a user wait: processor seconds of importing and compiling, on any machine of this decade."""

import subprocess
import sys
import time

import pytest

import integrators
from samplers import catalogue


def test_importing_recipe_takes_less_than_a_second_and_no_torch():
    code = ("import time, sys; import recipe; assert time.process_time() < 1; "
            "assert not {'torch', 'numpy', 'arviz'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", catalogue)
def test_compiling_a_stock_recipe_takes_less_than_a_second(name):
    recipe = catalogue[name]
    recipe = recipe.bind(inverse_metric=lambda theta: 1 + theta**2) if name == "sgrld" else recipe
    begin = time.process_time()
    assert integrators.compile(recipe).standalone()
    assert time.process_time() - begin < 1
