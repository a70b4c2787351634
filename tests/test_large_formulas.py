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


@pytest.mark.parametrize(
    "limits",
    [
        {"terms(40)": 1, "coordinates(50)": 1, "product(40)": 0.7, "blocks(20)": 0.7},
        slow({"terms(200)": 5, "coordinates(300)": 7, "product(200)": 4, "blocks(60)": 2.5}),
        slow({"blocks(120)": 5}),
    ],
    ids=" ".join,
)
def test_the_first_draw_of_a_large_formula_takes_seconds(limits):
    """About half of the limit, in seconds of CPU; the rest is allowed to a busy machine."""
    command = [sys.executable, "-c", MAKE + IN_PROCESSES_OF_THEIR_OWN, *limits]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60 * len(limits))
    seconds = {formula: float(time) for time, formula in map(str.split, run.stdout.splitlines())}
    assert seconds.keys() == limits.keys()
    assert not {formula: time for formula, time in seconds.items() if time >= limits[formula]}


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
