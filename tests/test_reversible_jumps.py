"""Involutions that change H, balanced by their own way back: births and deaths, spins, Barker's jumps."""

import numpy as np
import pytest
import torch
from covering import covering
from sympy import exp, log

import integrators
import samplers
from integrators.metropolis import metropolised
from recipe import (
    Recipe,
    RecipeError,
    flip,
    fraction,
    involution,
    numerical,
    positive,
    refresh,
    scalar,
    temperature,
    total,
    vector,
)
from samplers.testing import check

theta, v, b = vector("theta"), vector("v"), vector("b", domain="binary")
narrow, wide = positive("narrow", default=0.3), positive("wide", default=2.0)
w = fraction("w", default=0.3)
SLAB = (theta - 1) ** 2 / (2 * wide) + log(wide) / 2 - log(w)
SPIKE = theta**2 / (2 * narrow) + log(narrow) / 2 - log(1 - w)
RISE = (1 - 2 * b) * (SLAB - SPIKE) / temperature
BIRTH = b + (1 - b) * exp((SPIKE - SLAB) / temperature)
RATES = {"Barker's": 1 / (1 + exp(RISE)), "a root's": exp(-RISE / 2), "births at the ratio, deaths at 1": BIRTH}


def spike_and_slab(rate, **more):
    return Recipe(
        name="spike-and-slab",
        state=(theta, b),
        target=theta,
        H=total(b * SLAB + (1 - b) * SPIKE),
        D={theta: 1},
        jumps={"F": flip(b, rate=rate)},
        scheme="A F A",
        pieces={"A": numerical(theta, "euler")},
        **more,
    )


@pytest.mark.parametrize("rate", RATES.values(), ids=RATES)
def test_a_rate_with_its_ratio_is_proved(rate):
    recipe = spike_and_slab(rate)
    assert recipe.gain == 0
    certificate = recipe.check(temperature=0.7)
    assert certificate.exact, certificate
    assert certificate["involution"].verdict == "proved"
    assert certificate["involution"].question == f"{recipe.jumps['F']} is reversible for exp(-H/T)"


WRONG = {
    "no ratio": 1 + 0 * b,
    "the ratio upside down": 1 / (1 + exp(-RISE)),
    "half of the exponent": exp(-RISE / 4),
    "a ratio at another temperature": 1 / (1 + exp(RISE * temperature)),
    "births without deaths": exp((SPIKE - SLAB) / temperature),
    "the ratio of another weight": 1 / (1 + exp(RISE.xreplace({w: w**2}))),
}


@pytest.mark.parametrize("name", covering(WRONG, ["no ratio", "the ratio upside down", "births without deaths"]))
def test_another_rate_is_refuted_and_is_not_run(name):
    recipe = spike_and_slab(WRONG[name])
    assert "rate exp(-H/T) is not the same at z and F(z)" in recipe.check().failures[0].answer
    with pytest.raises(RecipeError, match="has not the law it claims"):
        samplers.sample(recipe, init=torch.ones(2), steps=2, step_size=0.1, progress=False)


def kernel(recipe, state, h, T):
    """The matrix of the probabilities of a step of jumps alone from each state of two spins to each, by a grid of u."""
    step = integrators.compile(recipe)
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    rows = []
    for x, y in state:
        start = {name: torch.full_like(u, float(k)) for name, k in (("x", x), ("y", y), ("theta", 0.5))}
        noise = {name: u if name == next(iter(step.draws)) else torch.ones_like(u) for name in step.draws}
        after = step(start, h, gradient=None, noise=noise, temperature=T)
        rows.append([float(((after["x"] == i) & (after["y"] == j)).double().mean()) for i, j in state])
    return np.array(rows)


def test_a_flip_of_one_of_two_coupled_spins_is_reversible_at_every_step():
    """exp(-H/T) P is symmetric for the letter of a flip, up to the grid; at a rate without the coupling it is not."""
    x, y, z = scalar("x", domain="binary"), scalar("y", domain="binary"), scalar("theta")
    H = 2 * (x - y) ** 2 + x * z + z**2 / 2
    for rise, is_right in ((H.xreplace({x: 1 - x}) - H, True), ((1 - 2 * x) * z, False)):
        recipe = Recipe(
            name="spins",
            state=(z, x, y),
            target=z,
            H=H,
            D={},
            jumps={"F": flip(x, rate=1 / (1 + exp(rise.expand() / temperature)))},
            scheme="F",
        )
        assert not recipe.check().exact  # nothing moves theta and y
        assert (recipe.jumps["F"].is_reversible(H) == "symbolic") is is_right
        states = [(i, j) for i in (0, 1) for j in (0, 1)]
        weights = np.array([float(exp(-H.xreplace({x: i, y: j, z: 0.5}) / 0.7)) for i, j in states])
        flow = weights[:, None] * kernel(recipe, states, 0.8, 0.7)
        assert bool(abs(flow - flow.T).max() < 1e-3) is is_right


def proposals(rate, **more):
    """theta -> theta + v and v -> -v, with v drawn anew: a random walk by jumps."""
    return Recipe(
        name="random-walk",
        state=(theta, v),
        target=theta,
        H=total(theta**4 / 4 + v**2 / 2),
        D={theta: 1},
        jumps={"F": involution({theta: theta + v, v: -v}, rate=rate), "R": refresh(v)},
        pieces={"A": numerical(theta, "euler")},
        scheme="A R F",
        **more,
    )


STEEP = total((theta + v) ** 4 / 4 - theta**4 / 4).expand() / temperature


def test_barkers_jumps_of_a_continuous_block_are_proved():
    certificate = proposals(1 / (1 + exp(STEEP))).check()
    assert certificate.exact and certificate["involution"].verdict == "proved"
    assert proposals(1 / (1 + exp(-STEEP))).check().failures
    assert proposals(exp(-STEEP / 2)).check()["explosion"].verdict == "open"


def test_jumps_alone_leave_the_reach_open():
    alone = Recipe(
        name="jumps-alone",
        state=(theta, v),
        target=theta,
        H=total(theta**4 / 4 + v**2 / 2),
        D={},
        jumps={"F": involution({theta: theta + v, v: -v}, rate=1 / (1 + exp(STEEP))), "R": refresh(v)},
        scheme="R F",
    )
    assert alone.check()["reached"].verdict == "open"


def test_a_reversible_jump_has_no_work():
    recipe = spike_and_slab(RATES["Barker's"])
    assert "no work" in str(metropolised(recipe, "A F A"))


def test_the_text_is_that_of_two_interpreters():
    report = check(spike_and_slab(RATES["Barker's"]), layers=["symbolic", "differential"])
    assert report.ok, str(report)
