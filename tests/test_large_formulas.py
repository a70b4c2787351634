"""Large formulas: what a run costs before its first draw grows with their size, and not faster by much."""

import cProfile

import pytest
import torch
from covering import covering, slow
from sympy import Add, Mul, Symbol, log, sin, sqrt

import samplers
from recipe import Energy, Recipe, RecipeError, scalar, total, vector
from samplers import SGLD


def sum_of_terms(n):
    theta, p = vector("theta"), vector("p")
    H = Add(total(p**2) / 2, *(total(sin(k * theta) + theta**2) / k for k in range(1, n + 1)))
    return Recipe(name="terms", state=(theta, p), H=H, D={p: 1}, Q={(theta, p): -1}), None, 3


def explicit_coordinates(n):
    x = [Symbol(f"x{i}", real=True) for i in range(n)]
    return SGLD, Energy(x, U=ring(x)), n


def log_of_product(n):
    x = [Symbol(f"x{i}", real=True) for i in range(n)]
    return SGLD, Energy(x, U=log(Mul(*(1 + a**2 for a in x))) + Add(*(a**4 for a in x))), n


def scalar_blocks(n):
    x = [scalar(f"x{i}") for i in range(n)]
    return Recipe(name="blocks", state=x, target=x, H=ring(x), D=dict.fromkeys(x, 1)), None, 0


def ring(x):
    """An energy of coordinates that are coupled to their neighbours on a ring."""
    return Add(*((a - b**2) ** 2 + a**2 for a, b in zip(x, x[1:] + x[:1])))


def first_draw(recipe, energy, sites):
    values = torch.full((sites,) if sites else (2,), 0.1, dtype=torch.float64)
    init = values if sites else {b.name: values for b in recipe.targets}
    samplers.sample(recipe, energy, init=init, chains=2, steps=2, step_size=1e-3, progress=False)


def calls(function, *arguments):
    """Calls of functions, which no machine's speed changes."""
    with cProfile.Profile() as profile:
        function(*arguments)
    return sum(entry.callcount for entry in profile.getstats())


SIZES = {sum_of_terms: (24, 200), explicit_coordinates: (24, 300), log_of_product: (24, 200), scalar_blocks: (12, 120)}


@pytest.mark.parametrize("formula", covering(SIZES, [log_of_product]))
@pytest.mark.parametrize("size", [0, slow(1)], ids=["small", "large"])
def test_the_first_draw_costs_less_than_the_square_of_the_formula(formula, size):
    """A formula of four times the size: 4 times the calls if their number is linear, 16 times by the square."""
    n = SIZES[formula][size]
    first_draw(*formula(4))  # what the first run of all imports
    quarter = calls(lambda: first_draw(*formula(n // 4)))
    assert calls(lambda: first_draw(*formula(n))) <= 8 * quarter


def test_a_declaration_asks_what_is_not_zero_and_no_log_of_a_base():
    """5.4 million calls where every entry and log is asked for."""
    scalar_blocks(3)
    assert calls(scalar_blocks, 60) < 1_500_000


def test_sixty_coupled_coordinates_are_too_many_to_search_and_the_certificate_says_so():
    x = [scalar(f"x{i}") for i in range(14)]
    H = Add(*((a - b) ** 4 / 4 + a**2 / 2 for a, b in zip(x, x[1:] + x[:1])))
    certificate = Recipe(name="ring", state=x, target=x, H=H, D=dict.fromkeys(x, 1)).check()
    finding = certificate["normalisable"]
    assert finding.verdict == "open" and "14 coupled coordinates are too many to search" in finding.answer
    assert certificate.ok is None and not certificate.exact


def test_a_formula_that_is_nested_too_deeply_is_refused_where_it_is_declared():
    theta = vector("theta")
    e = total(theta**2)
    for _ in range(150):
        e = sqrt(1 + e)
    with pytest.raises(RecipeError, match="nested more deeply"):
        Recipe(name="deep", state=(theta,), H=e, D={theta: 1})
