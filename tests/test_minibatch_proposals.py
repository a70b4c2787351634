"""Proposals by gradients of minibatches, accepted by U of all data: exact whatever the batches, at any step size."""

import math

import numpy as np
import pytest
import torch
from covering import covering, slow
from error_budget import CLAIMS

from recipe import Energy, Recipe, RecipeError, copies, data_total, datum, scalar, swap, total, vector
from samplers import GHMC, HMC, MALA, SGNHT, Metropolis, UnderdampedLangevin, sample
from samplers.running.inputs import Evaluations
from samplers.target import tape

DATA = torch.linspace(-3, 3, 12, dtype=torch.float64)
GRID = np.linspace(-5, 5, 20_001)
CHAINS, STEPS = 4000, 40


def energy(theta, batch):
    """A double well, of which every row has another part: most of a gradient of two rows is noise."""
    t = theta[0]
    return 12 * (batch * t + (t**2 - 1) ** 2 / 6 * (1 + batch / 3)).mean()


def law():
    of_all = [2 * (t**2 - 1) ** 2 for t in GRID]
    weights = np.exp(-np.array(of_all))
    return weights / weights.sum()


def from_the_law():
    shares = np.random.default_rng(1).random(CHAINS)
    return torch.as_tensor(GRID[np.searchsorted(law().cumsum(), shares)])[:, None]


RUN = dict(data=DATA, batch_size=2, progress=False)
WORDS = {
    "GHMC": (GHMC, {}, 1),
    "HMC": (HMC, {}, 4),
    "MALA": (MALA, {"step_size": 0.02}, 1),
    "AMAGOLD": (UnderdampedLangevin, {"scheme": "A F A"}, 3),
    "no palindrome": (UnderdampedLangevin, {"scheme": "B A O B"}, 2),
    "SGNHT": (SGNHT, {}, 1),
}


def scores_of(name):
    """Standard errors by which means of chains that begin with the law are off, and the acceptance."""
    recipe, how, repeat = WORDS[name]
    settings = dict(step_size=0.15, chains=CHAINS, steps=STEPS, thin=STEPS) | RUN | how
    how_accepted = Metropolis(repeat=repeat, minibatches=True)
    draws = sample(recipe, energy, init=from_the_law(), metropolis=how_accepted, **settings)
    x = draws["theta"].flatten().numpy()
    means = {k: (x**k).mean() - law() @ GRID**k for k in (1, 2)}
    return {(name, k): off / ((x**k).std() / CHAINS**0.5) for k, off in means.items()}, draws.info["acceptance"]


ALWAYS = ["AMAGOLD"]  # several steps


@pytest.mark.parametrize("name", covering(WORDS, ALWAYS))
def test_the_law_is_exact(name):
    scores, acceptance = scores_of(name)
    assert not CLAIMS["minibatch proposals"].failures(scores)
    assert 0.1 < np.mean(acceptance) < 0.8


@pytest.mark.parametrize("name", ["GHMC", slow("no palindrome")])
def test_acceptance_by_an_estimate_of_U_is_not(name, monkeypatch):
    monkeypatch.setattr(Evaluations, "_value", lambda self, part, theta: self._on_latest(part, theta, {0}).value)
    scores, _ = scores_of(name)
    assert max(map(abs, scores.values())) > 10


def test_all_data_are_asked_once_a_proposal_and_a_formula_has_the_draws_of_a_function(monkeypatch):
    monkeypatch.setattr(tape, "CALLS", math.inf)  # so that each gradient is a call
    asked = {2: 0, len(DATA): 0, 2 * len(DATA): 0}

    def counted(theta, batch):
        asked[len(batch)] += 1
        return energy(theta, batch)

    t, row = vector("theta"), datum("row")
    well = Energy(t, U=data_total(row * total(t) + total((t**2 - 1) ** 2) / 6 * (1 + row / 3)), data=row)
    settings = RUN | dict(init=torch.ones(1, dtype=torch.float64), steps=20, chains=2, step_size=0.1)
    settings["metropolis"] = Metropolis(repeat=4, minibatches=True)
    draws = sample(HMC, counted, **settings)
    assert asked[len(DATA)] <= 25 and asked[2] >= 80
    torch.testing.assert_close(sample(HMC, well, **settings)["theta"], draws["theta"])
    torch.testing.assert_close(sample(HMC, well, backend="cpp", **settings)["theta"], draws["theta"])


def test_the_report_of_such_a_run_has_no_bias_of_minibatches():
    settings = RUN | dict(init=torch.ones(1, dtype=torch.float64), steps=200, chains=16, step_size=0.1)
    draws = sample(GHMC, energy, metropolis=Metropolis(minibatches=True), **settings)
    assert "exact" in draws.info["law"]
    assert all(figure.step is None and figure.minibatches is None for figure in draws.accuracy().figures)
    assert "accepted or rejected" in draws.accuracy().divergence.reason
    assert "heat of the minibatches: steps are accepted by U of all data" in str(draws.report())


def own_scale(theta, batch):
    return 6 * (batch - theta).square().sum()


x, y = scalar("x"), scalar("y")
U_x, U_y = copies(x, y)
SWAPPED = Recipe(name="swapped", state=(x, y), target=(x, y), H=U_x + U_y / 2, D={x: 1, y: 1},
                 jumps={"S": swap(x, y)}, scheme="Euler S")  # fmt: skip

REFUSED = {
    "no batches": (dict(batch_size=None), "without batch_size"),
    "an energy with a scale of its own": (dict(energy=own_scale), "on two copies of all: no estimate of one U"),
    "a swap": (
        dict(
            recipe=SWAPPED,
            energy=lambda t, b: 12 * (b - t).square().mean(),
            init={"x": torch.zeros(()).double(), "y": torch.ones(()).double()},
        ),
        "is not what a rejected chain goes back to",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_exact_is_refused(case):
    changes, message = REFUSED[case]
    settings = dict(recipe=GHMC, energy=energy, init=torch.ones(1, dtype=torch.float64), steps=5, step_size=0.1) | RUN
    with pytest.raises(RecipeError, match=message):
        sample(**settings | changes, metropolis=Metropolis(minibatches=True))


def test_the_setting_is_a_truth_value_and_is_named_where_batches_are_refused():
    with pytest.raises(RecipeError, match="minibatches is True or False, got 3"):
        Metropolis(minibatches=3)
    with pytest.raises(RecipeError, match=r"Metropolis\(minibatches=True\), which asks all data"):
        sample(GHMC, energy, init=torch.ones(1, dtype=torch.float64), steps=5, step_size=0.1, **RUN)
