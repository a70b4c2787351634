"""The layers of checks where a site has four blocks or more, where sites feel each other, and where no grid is fine."""

from functools import cache

import numpy as np
import pytest
from certificates import RIGHT, ccadl
from covering import covering
from mutation import Mutant, with_mistake, wrong_recipes
from sympy import Symbol, tanh

from recipe import Energy, Recipe, positive, potential, refresh, scalar, total, vector
from samplers import catalogue
from samplers.testing import LAYERS, assert_stationary, check
from samplers.testing.canonical import ComposedLaw, metropolis
from samplers.testing.grids import Unresolved
from samplers.testing.subject import sites_of, subject_of

theta, p, r, s, xi = vector("theta"), vector("p"), vector("r"), vector("s"), scalar("xi")
x, y, z, v = (scalar(name) for name in "xyzv")
gamma, mu = positive("gamma", default=0.8), positive("mu", default=1.3)
U, n = potential(theta), total(1)
OF_THE_LAW = ("generator", "one-step defect", "stationary start", "non-Gaussian")


def chain(thermostats):
    """Nose-Hoover chain on a momentum with friction, noise at its end. Martyna, Klein & Tuckerman 1992."""
    links = [scalar(f"xi{k}") for k in range(1, thermostats + 1)]
    first, *others = links
    H = U + total(p**2) / 2 + n * mu * first**2 / 2 + sum(mu * link**2 / 2 for link in others)
    Q = {(theta, p): -1, (p, first): p / (n * mu), (first, others[0]): first / (n * mu)}
    Q |= {(a, b): a / mu for a, b in zip(others, others[1:])}
    return Recipe(name=f"chain-of-{thermostats}", state=(theta, p, *links), H=H, D={p: 0.6, links[-1]: gamma}, Q=Q)


def generalised(auxiliary):
    """Generalised Langevin with some auxiliary momenta. Ceriotti, Bussi & Parrinello 2010."""
    extra = (r, s, vector("w"))[:auxiliary]
    return Recipe(
        name=f"generalised-{auxiliary}",
        state=(theta, p, *extra),
        H=U + total(p**2 + sum(b**2 for b in extra)) / 2,
        D={b: gamma * (k + 1) / 2 for k, b in enumerate(extra)},
        Q={(theta, p): -1, **{(p, b): -1 - k / 3 for k, b in enumerate(extra)}},
    )


MODELS = {
    "chain of 2": lambda: chain(2),
    "chain of 3": lambda: chain(3),
    "generalised Langevin of 2": lambda: generalised(2),
    "generalised Langevin of 3": lambda: generalised(3),
    "third-order Langevin": RIGHT["third-order Langevin"],
    "CCAdL": ccadl,
    "ALDI": RIGHT["ALDI"],
}
PLANTED = {
    "chain of 2": ("Q[xi2, xi1] of the wrong sign", "D grad H of xi2 dropped", "noise sqrt(D) for"),
    "chain of 3": ("Q[xi2, xi3] of the wrong sign", "D grad H of p dropped", "noise sqrt(4 D) for"),
    "generalised Langevin of 2": ("Q[s, p] of the wrong sign", "D grad H of r dropped", "noise sqrt(D) for"),
    "generalised Langevin of 3": ("Q[p, w] of the wrong sign", "D grad H of w dropped", "noise sqrt(4 D) for"),
    "third-order Langevin": ("Q[r, p] of the wrong sign", "D grad H of r dropped", "noise sqrt(D) for"),
    "CCAdL": ("Q[p, xi] of the wrong sign", "D grad H of p dropped", "noise sqrt(D) for"),
    "ALDI": ("Gamma[theta] dropped", "D grad H of theta dropped", "noise sqrt(4 D) for"),
}


@cache
def subject(name):
    return subject_of(MODELS[name]())


@pytest.mark.parametrize("name", covering(MODELS, ["CCAdL"]))  # the others take seconds
def test_right_recipes_pass_every_layer_and_nothing_is_left_out(name):
    report = assert_stationary(subject(name).recipe)
    assert report.left_out == () and {r.layer for r in report.results} >= set(LAYERS) - {"linear law", "work"}


@pytest.mark.parametrize("name", covering(MODELS, ["CCAdL"]))
def test_planted_mistakes_are_killed_by_the_generator_and_by_the_chains(name):
    """All three by the generator, a coupling of the wrong sign by one step and by the chains too."""
    right, wrong_ones = subject(name), list(wrong_recipes(subject(name).recipe))
    for k, mistake in enumerate(PLANTED[name]):
        wrong = next(recipe for text, recipe in wrong_ones if mistake in text)
        mutant = Mutant(mistake, with_mistake(right, wrong=wrong))
        layers = ("generator", "one-step defect", "stationary start") if k == 0 else ("generator",)
        for layer in layers:
            assert mutant.killing_time(layer) is not None, (mistake, layer)


# ---- sites that feel each other


def test_a_mean_field_is_checked_at_several_sites_and_all_else_at_one():
    assert sites_of(RIGHT["ALDI"]()) == 3
    coupled = Recipe(
        name="coupled", state=(theta,), H=total(theta**4) + total(theta) ** 2 / n, D={theta: 1}, scheme="Euler"
    )
    assert sites_of(coupled) == 3
    assert {sites_of(R) for R in (*catalogue.values(), chain(2), ccadl())} == {1}


def test_a_mean_field_beside_a_constant_passes_and_its_gamma_is_seen():
    D = 1 + (total(theta) / n) ** 2
    recipe = Recipe(name="mean-field", state=(theta,), H=U, D={theta: D}, scheme="Euler")
    assert assert_stationary(recipe, layers=["generator", "stationary start"]).left_out == ()
    wrong = dict(wrong_recipes(recipe))["Gamma[theta] dropped"]
    assert Mutant("Gamma", with_mistake(subject_of(recipe), wrong=wrong)).killing_time("generator") is not None


# ---- laws without a grid


@pytest.mark.slow
def test_a_banana_passes_every_layer_of_the_law():
    H = x**2 / 2 + 5 * (y - x**2) ** 2
    banana = Recipe(name="banana", state=(x, y), target=(x, y), H=H, D={x: 1, y: 1}, scheme="Euler")
    report = assert_stationary(banana)
    assert report.left_out == () and {r.layer for r in report.results} >= set(OF_THE_LAW) - {"non-Gaussian"}
    for mistake, wrong in [*wrong_recipes(banana)][-2:]:
        mutant = Mutant(mistake, with_mistake(subject_of(banana), wrong=wrong))
        assert mutant.killing_time("generator") is not None, mistake


def test_an_energy_of_the_caller_may_be_one_that_no_grid_resolves():
    a, b = Symbol("a", real=True), Symbol("b", real=True)
    steep = Energy((a, b), U=a**2 / 2 + 5 * (b - a**2) ** 2)
    recipe = Recipe(name="two", state=(x, y), target=(x, y), H=potential(x, y), D={x: 1, y: 1}, scheme="Euler")
    assert assert_stationary(recipe, steep).left_out == ()


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["generator", "stationary start"])
def test_what_is_neither_normal_nor_on_a_grid_is_drawn(layer):
    """Four coordinates coupled by quartic energies."""
    H = sum(b**4 / 4 for b in (x, y, z, v)) + (x - y) ** 4 / 4 + (y - z) ** 4 / 4 + (z - v) ** 4 / 4 - x / 3
    recipe = Recipe(
        name="quartics", state=(x, y, z, v), target=(x, y, z, v), H=H, D=dict.fromkeys((x, y, z, v), 1), scheme="Euler"
    )
    one = subject_of(recipe)
    assert one.laws["its own"].drawn
    results = list(LAYERS[layer](one))
    assert results and all(r.ok for r in results), results
    wrong = dict(wrong_recipes(recipe))["noise sqrt(4 D) for sqrt(2 D)"]
    assert Mutant("noise", with_mistake(one, wrong=wrong)).killing_time(layer) is not None


def test_many_sources_of_noise_and_a_jump_are_drawn():
    three = Recipe(
        name="three",
        state=(theta, p, xi),
        D={theta: 1 + p**2 / 4, p: 1, xi: 1 / n},
        H=U + total((p - tanh(theta)) ** 2) / 2 + n * (xi - total(tanh(theta)) / n) ** 2 / 2,
        Q={(theta, p): -1, (p, xi): p / n},
        jumps={"J": refresh(p, rate=gamma)},
        scheme="J Euler J",
    )
    report = check(three, layers=["one-step defect"])
    assert report.ok and "draws" in report.results[0].subject


# ---- the laws themselves


def test_a_composed_law_has_the_moments_of_its_formula():
    """y | x ~ N(x^2, T/10), x of the quartic left of it; three quadratures and draws agree."""
    law = ComposedLaw(x**4 / 4 + x**2 / 2 + 5 * (y - x**2) ** 2, (x, y), temperature=1.25)
    points, weights = law.rule(12)
    square, fourth = (float(weights @ points[x] ** k) for k in (2, 4))
    assert float(weights @ points[y]) == pytest.approx(square, rel=1e-10)
    assert float(weights @ points[y] ** 2) == pytest.approx(fourth + 0.125, rel=1e-10)
    draws = law.draws(40_000, seed=3)
    assert draws[y].mean() == pytest.approx(square, abs=6 * draws[y].std() / 200)


def test_a_metropolis_chain_of_two_modes_has_both_and_one_that_does_not_settle_is_refused():
    draws = metropolis(lambda x: 4 * (x**2 - 2) ** 2, (x,), 8000, seed=0)[x]
    assert (draws > 0).mean() == pytest.approx(0.5, abs=6 * 0.5 / 8000**0.5)
    with pytest.raises(Unresolved, match="Metropolis moves do not reach"):
        metropolis(lambda x: np.log1p(np.abs(x)) / 2, (x,), 4000, seed=0)
