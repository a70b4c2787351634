"""Parameters of phases: numbers, or schedules, in place of those of the run."""

import math

import pytest
import torch

import integrators
from integrators.noise import Key
from recipe import Energy, Recipe, RecipeError, nonnegative, potential, total, vector
from samplers import HMC, SGHMC, Ladder, Phase, UnderdampedLangevin, sample

theta, p = vector("theta"), vector("p")
BOWL = Energy(theta, U=total(theta**2) / 2)
RUN = dict(init=torch.ones(2, dtype=torch.float64), chains=3, step_size=0.2, seed=5, progress=False, keep="p")

AT_REST = {"init": {"theta": torch.ones(2, dtype=torch.float64), "p": torch.zeros(2, dtype=torch.float64)}}


def rising(k):
    return 0.5 + k / 10


def by_hand(values):
    """The run in torch, of one call of the step after another."""
    step = integrators.compile(UnderdampedLangevin, energy=BOWL)
    state = {"theta": torch.ones(3, 2, dtype=torch.float64), "p": torch.zeros(3, 2, dtype=torch.float64)}
    seen = []
    for k, gamma in enumerate(values):
        state = step(state, 0.2, noise=Key(5, k), gamma=gamma)
        seen.append(state["theta"])
    return torch.stack(seen, 1)


@pytest.mark.parametrize("backend", ["torch", "auto", "cpp"])
def test_a_schedule_is_followed_step_by_step_and_counted_from_the_start_of_its_phase(backend):
    phases = [Phase(5, parameters={"gamma": 3.0}), Phase(7, parameters={"gamma": rising}), Phase(4)]
    draws = sample(UnderdampedLangevin, BOWL, phases=phases, gamma=2.0, backend=backend, **RUN | AT_REST)
    values = [3.0] * 5 + [rising(k) for k in range(7)] + [2.0] * 4
    torch.testing.assert_close(draws["theta"], by_hand(values), rtol=1e-6, atol=1e-6)
    others = [3.0] * 5 + [rising(k + 1) for k in range(7)] + [2.0] * 4
    assert (draws["theta"] - by_hand(others)).abs().max() > 1e-4
    assert "phase has parameters of its own" in draws.info["backend_reason"]


def test_the_law_is_asked_at_the_extremes_of_a_schedule():
    assert (
        "exact" in sample(UnderdampedLangevin, BOWL, phases=[Phase(5, parameters={"gamma": rising})], **RUN).info["law"]
    )
    g = nonnegative("g", default=1.0)
    vanishing = Recipe(name="vanishing", state=(theta, p), target=theta, H=potential(theta) + total(p**2) / 2, D={p: g},
                       Q={(theta, p): -1})  # fmt: skip
    with pytest.warns(RuntimeWarning, match="the noise reaches every block"):
        draws = sample(vanishing, BOWL, phases=[Phase(5, parameters={"g": lambda k: float(k)})], **RUN)
    assert "not ergodic" in draws.info["law"]


def test_accuracy_is_of_one_law_and_of_the_parameters_of_the_run():
    burnt_in = [Phase(50, parameters={"gamma": rising, "m": lambda k: 2.0 - k / 100}, keep=False), Phase(300)]
    assert sample(UnderdampedLangevin, BOWL, phases=burnt_in, **RUN | {"chains": 16}).accuracy().figures
    draws = sample(UnderdampedLangevin, BOWL, phases=[Phase(50, parameters={"gamma": rising})], **RUN)
    with pytest.raises(RecipeError, match="whose draws are kept has parameters of its own"):
        draws.accuracy()


def test_a_run_goes_on_from_its_checkpoint_along_the_schedule(tmp_path):
    phases = [Phase(6, parameters={"gamma": rising}), Phase(6)]
    whole = sample(UnderdampedLangevin, BOWL, phases=phases, **RUN)
    settings = RUN | dict(phases=phases, checkpoint=tmp_path / "run")
    sample(UnderdampedLangevin, BOWL, **settings)
    assert torch.equal(sample(UnderdampedLangevin, BOWL, **settings)["theta"], whole["theta"])
    with pytest.raises(RecipeError):
        sample(UnderdampedLangevin, BOWL, **settings | {"phases": [Phase(6), Phase(6)]})


REFUSED = {
    "an unknown name": (dict(phases=[Phase(5, parameters={"gama": 1.0})]), "'gama' is not a parameter.*gamma"),
    "out of its range": (dict(phases=[Phase(5, parameters={"gamma": lambda k: 1.0 - k})]), "gamma"),
    "no number": (dict(phases=[Phase(5, parameters={"gamma": lambda k: "1"})]), "the schedule gives the gamma '1'"),
    "not finite": (dict(phases=[Phase(5, parameters={"gamma": lambda k: math.nan})]), "gamma"),
    "that fails": (dict(phases=[Phase(5, parameters={"gamma": lambda k: 1 / k})]), "schedule of the gamma fails"),
    "a parameter of H where draws are kept": (dict(phases=[Phase(5, parameters={"m": 2.0})]), "H reads m"),
    "temperatures side by side": (
        dict(phases=[Phase(5, parameters={"gamma": 2.0})], temperature=Ladder(1, 2, swap_every=2)),
        "a phase has parameters of its own",
    ),
    "less noise than is supplied": (
        dict(recipe=SGHMC, phases=[Phase(5, parameters={"B": lambda k: float(k)})], C=1.0),
        "B",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_schedule_is_refused_before_the_first_step(case):
    changes, message = REFUSED[case]
    settings = RUN | {"recipe": UnderdampedLangevin, "energy": BOWL} | changes
    with pytest.raises(RecipeError, match=message):
        sample(**settings)


def test_what_is_no_dict_of_numbers_is_refused():
    with pytest.raises(RecipeError, match="a dict by name"):
        Phase(5, parameters=("gamma", 1.0))
    with pytest.raises(RecipeError, match=r"parameters\['gamma'\].*a number or a function"):
        Phase(5, parameters={"gamma": "1"})
    draws = sample(HMC, BOWL, phases=[Phase(5, parameters={"m": 4.0}, keep=False), Phase(5)], **RUN)
    assert draws["theta"].shape == (3, 5, 2)
