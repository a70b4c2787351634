"""Barker's proposal: noise whose sign the drift tilts, the work of it, and its law."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from error_budget import CLAIMS
from same_step import accepted_ways_agree
from scipy.integrate import quad
from sympy import S

import integrators
from integrators import metropolis, numerical_flows
from recipe import Energy, Recipe, RecipeError, numerical, positive, potential, total, vector
from samplers import MALA, sample
from samplers.testing import assert_stationary
from samplers.testing.layers import LAYERS
from samplers.testing.subject import subject_of

theta, p = vector("theta"), vector("p")
C = positive("C", default=0.7, per=theta)
BARKER = Recipe(
    name="barker",
    state=(theta,),
    H=potential(theta),
    D={theta: C},
    pieces={"G": numerical(theta, "barker")},
    scheme="G",
    metropolis=True,
)
WELL = Energy(theta, U=total((theta**2 - 1) ** 2))


def test_every_layer_agrees_with_its_step_and_its_work():
    report = assert_stationary(BARKER)
    assert BARKER.check(temperature=0.7).exact and not report.left_out
    step = integrators.metropolised(BARKER)
    assert step.work_formulas["G"].count("theta_tilt") == 2 and "not exact" in str(step)


def test_draws_have_the_law_of_a_quadrature_from_a_far_start_where_those_of_mala_stand_still():
    settings = dict(init=torch.full((1,), 6.0, dtype=torch.float64), steps=300, thin=300, step_size=0.3, progress=False)
    draws = sample(BARKER, WELL, chains=4000, **settings)
    x = draws["theta"].flatten().numpy()

    def density(t):
        return np.exp(-((t**2 - 1) ** 2))

    means = {k: quad(lambda t: t**k * density(t), -6, 6)[0] / quad(density, -6, 6)[0] for k in (1, 2)}
    scores = {k: ((x**k).mean() - mean) / ((x**k).std() / 4000**0.5) for k, mean in means.items()}
    assert not CLAIMS["Barker's proposals"].failures(scores) and 0.3 < np.mean(draws.info["acceptance"]) < 0.9
    with pytest.warns(RuntimeWarning, match="have accepted none of 300 steps"):
        sample(MALA, WELL, chains=4, **settings)


def test_a_step_in_cpp_is_that_in_torch():
    start, zero = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(16, 3), torch.zeros(16).double()
    state = {"theta": start, "direction": zero + 1, "work": zero, "accepted": zero}
    accepted_ways_agree(BARKER, state, 0.2, energy=WELL, temperature=0.8)


MISTAKES = {
    "the ratio left out": lambda one: replace(one, returned=S.Zero),
    "the ratio turned round": lambda one: replace(one, returned=-one.returned),
    "the ratio counted twice": lambda one: replace(one, returned=2 * one.returned),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_ratio_is_seen_by_the_layer_of_the_work(mistake, monkeypatch):
    works, change = metropolis.works, MISTAKES[mistake]
    monkeypatch.setattr(metropolis, "works", lambda *args: {k: change(one) for k, one in works(*args).items()})
    assert not all(result.ok for result in LAYERS["work"](subject_of(BARKER)))


def test_a_sign_that_the_drift_does_not_tilt_is_another_sde(monkeypatch):
    barker = numerical_flows.METHODS["barker"]

    def untilted(piece):
        return barker.advance(replace(piece, drift={}))

    monkeypatch.setitem(numerical_flows.METHODS, "barker", barker._replace(advance=untilted))
    assert not all(r.ok for r in LAYERS["one-step defect"](subject_of(replace(BARKER, name="untilted"))))


REFUSED = {
    "noise that reads the block": (dict(D={theta: 1 / (1 + theta**2)}), "depends on theta"),
    "noise that is supplied": (dict(supplied={theta: C / 2}), "supplied in part"),
    "several blocks": (
        dict(
            state=(theta, p),
            H=potential(theta) + total(p**2) / 2,
            D={theta: C, p: 1},
            pieces={"G": numerical((theta, p), "barker")},
        ),
        "several blocks",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_such_proposal_is_refused(case):
    changes, message = REFUSED[case]
    given = dict(name="refused", state=(theta,), H=potential(theta), D={theta: C}, pieces=BARKER.pieces)
    with pytest.raises(RecipeError, match=message):
        integrators.compile(Recipe(**given | changes), "G")
