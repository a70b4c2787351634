"""Each stock recipe is the SDE of its paper, row by row, with U opaque; and its residual is identically 0.

Signs of Q and factors of D that give other valid samplers are seen only here.
"""

import pytest
from recipe import grad, total
from recipe.algebra import vanishes
from samplers import catalogue
from sympy import Max, diff, expand


def rows(name):
    """The drift and the diffusion of the paper, in the blocks and parameters of the recipe."""
    R = catalogue[name]
    at = {b.name: b for b in R.state} | {s.name: s for s in R.parameters}
    g, n = grad(R.potential), total(1)
    theta, p, xi = at["theta"], at.get("p"), at.get("xi")
    match name:
        case "sgld":
            return [-g], {theta: 1}
        case "sgld-preconditioned":
            return [-at["G"] * g], {theta: at["G"]}
        case "sgrld":
            (V,) = R.D
            return [-V * g + diff(V, theta)], {theta: V}
        case "underdamped-langevin":
            return [p / at["m"], -g - at["gamma"] * p], {p: at["gamma"] * at["m"]}
        case "sghmc":
            return [p / at["m"], -g - at["C"] * p / at["m"]], {p: at["C"]}
        case "sgnht":
            return [p, -g - xi * p, (total(p**2) / n - 1) / at["mu"]], {p: at["A"]}
        case "msgnht":
            return [p, -g - xi * p, (p**2 - 1) / at["mu"]], {p: at["A"]}
        case "atmc":
            alpha, m = Max(at["Dmin"] - xi, 0), at["m"]
            return [p / m, -g - (alpha + xi) * p, (p**2 / m - 1) / at["mu"]], {p: alpha * m + at["B"] / 2}


@pytest.mark.parametrize("name", catalogue)
def test_the_sde_of_a_stock_recipe_is_the_papers(name):
    R, (drift, diffusion) = catalogue[name], rows(name)
    assert all(vanishes(mine - paper) for mine, paper in zip(R.drift, drift, strict=True))
    for i, a in enumerate(R.state):
        for j, b in enumerate(R.state):
            assert expand(R.D[i, j] - (diffusion.get(a, 0) if a == b else 0)) == 0


@pytest.mark.parametrize("name", catalogue)
def test_a_stock_recipe_is_proved(name):
    R = catalogue[name]
    assert R.residual() == 0
    assert all(f.verdict == "proved" for f in R.check().findings)


def test_the_noise_that_a_gradient_supplies_is_declared():
    """SGHMC injects 2(C - B), ATMC 2 alpha m; no other stock recipe subtracts anything."""
    supplied = {name: [e for e in R.supplied if e != 0] for name, R in catalogue.items()}
    assert {name for name, e in supplied.items() if e} == {"sghmc", "atmc"}
    assert str(supplied["sghmc"]) == "[B]" and str(supplied["atmc"]) == "[B/2]"
