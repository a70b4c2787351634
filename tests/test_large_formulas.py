"""Large formulas: what a run costs before its first draw grows with their size, and not faster by much."""

import cProfile
import subprocess
import sys

import pytest
from covering import slow

MAKE = """
import time
from sympy import Add, Mul, Symbol, log, sin
import samplers, torch
from recipe import Energy, Recipe, scalar, total, vector
from samplers import SGLD

def terms(n):
    theta, p = vector("theta"), vector("p")
    H = Add(total(p**2) / 2, *(total(sin(k * theta) + theta**2) / k for k in range(1, n + 1)))
    return Recipe(name="terms", state=(theta, p), target=theta, H=H, D={p: 1}, Q={(theta, p): -1}), None, 3

def coordinates(n):
    x = [Symbol(f"x{i}", real=True) for i in range(n)]
    return SGLD, Energy(x, U=Add(*((a - b**2) ** 2 + a**2 for a, b in zip(x, x[1:] + x[:1])))), n

def product(n):
    x = [Symbol(f"x{i}", real=True) for i in range(n)]
    return SGLD, Energy(x, U=log(Mul(*(1 + a**2 for a in x))) + Add(*(a**4 for a in x))), n

def blocks(n):
    x = [scalar(f"x{i}") for i in range(n)]
    H = Add(*((a - b**2) ** 2 + a**2 for a, b in zip(x, x[1:] + x[:1])))
    return Recipe(name="blocks", state=x, target=x, H=H, D=dict.fromkeys(x, 1)), None, 0

def first_draw(recipe, energy, sites):
    values = torch.full((sites,) if sites else (2,), 0.1, dtype=torch.float64)
    init = values if sites else {b.name: values for b in recipe.targets}
    samplers.sample(recipe, energy, init=init, chains=2, steps=2, step_size=1e-3, progress=False)
"""


IN_PROCESSES_OF_THEIR_OWN = """
import os, sys
import samplers.running.sampling
for formula in sys.argv[1:]:
    if not os.fork():
        begin = time.process_time()
        first_draw(*eval(formula))
        print(time.process_time() - begin, formula, flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(1)
"""


SMALL = {"terms": 40, "coordinates": 48, "product": 40, "blocks": 20}
LARGE = {"terms": 200, "coordinates": 300, "product": 200, "blocks": 120}


@pytest.mark.parametrize("sizes", [SMALL, slow(LARGE)], ids=["small", "large"])
def test_the_first_draw_costs_no_more_than_the_square_of_the_formula(sizes):
    """Seconds of CPU of a formula and of its quarter: 16 times as many by the square, and half of that for noise."""
    formulas = [f"{formula}({n})" for formula, size in sizes.items() for n in (size // 4, size)]
    command = [sys.executable, "-c", MAKE + IN_PROCESSES_OF_THEIR_OWN, *formulas]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    seconds = {formula: float(time) for time, formula in map(str.split, run.stdout.splitlines())}
    assert [*seconds] == formulas
    quarters, wholes = formulas[::2], formulas[1::2]
    assert all(seconds[whole] <= 24 * seconds[quarter] for quarter, whole in zip(quarters, wholes)), seconds


def test_a_declaration_asks_what_is_not_zero_and_no_log_of_a_base():
    """Calls of functions, which no machine's speed changes: 5.4 million where every entry and log is asked for."""
    names: dict = {}
    exec(MAKE, names)
    names["blocks"](3)
    with cProfile.Profile() as profile:
        names["blocks"](60)
    assert sum(entry.callcount for entry in profile.getstats()) < 1_500_000


def test_sixty_coupled_coordinates_are_too_many_to_search_and_the_certificate_says_so():
    from sympy import Add

    from recipe import Recipe, scalar

    x = [scalar(f"x{i}") for i in range(14)]
    H = Add(*((a - b) ** 4 / 4 + a**2 / 2 for a, b in zip(x, x[1:] + x[:1])))
    certificate = Recipe(name="ring", state=x, target=x, H=H, D=dict.fromkeys(x, 1)).check()
    finding = certificate["normalisable"]
    assert finding.verdict == "open" and "14 coupled coordinates are too many to search" in finding.answer
    assert certificate.ok is None and not certificate.exact


def test_a_formula_that_is_nested_too_deeply_is_refused_where_it_is_declared():
    from sympy import sqrt

    from recipe import Recipe, RecipeError, total, vector

    theta = vector("theta")
    e = total(theta**2)
    for _ in range(150):
        e = sqrt(1 + e)
    with pytest.raises(RecipeError, match="nested more deeply"):
        Recipe(name="deep", state=(theta,), H=e, D={theta: 1})
