"""Schedules: their formulas, the laws of their sums, what they refuse."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipe.errors import RecipeError
from samplers import SGLD, Phase, sample
from samplers.running.plan import Setting
from samplers.running.schedules import BlockDecay, Cyclical, Jittered, Later, Polynomial

sizes = st.floats(1e-6, 10)
steps = st.integers(0, 10**6)


@given(sizes, st.floats(1e-3, 1e4), st.floats(0.01, 2), steps)
def test_a_polynomial_is_a_power_that_falls_towards_0(a, b, gamma, k):
    h = Polynomial(a, b, gamma)
    assert math.isclose(h(k), a / (b + k) ** gamma, rel_tol=1e-12)
    assert 0 < h(k + 1) <= h(k)


@pytest.mark.parametrize("gamma", [0.55, 0.75, 1.0])
def test_partial_sums_of_a_polynomial_keep_growing_while_those_of_its_square_settle(gamma):
    h = Polynomial(1.0, 1.0, gamma)
    values = [h.over(range(10**n, 10 ** (n + 1))) for n in (2, 3, 4)]
    grown, squares = ([part.sum() for part in parts] for parts in (values, [part**2 for part in values]))
    assert grown[1] > 0.99 * grown[0] and grown[2] > 0.99 * grown[1]
    assert squares[2] < squares[1] < squares[0]


@given(sizes, st.floats(0.01, 1), st.integers(1, 1000), st.integers(0, 50), st.integers(0, 999))
def test_a_block_decay_is_constant_on_blocks_and_falls_by_its_factor_between_them(start, factor, every, block, within):
    h = BlockDecay(start, factor, every)
    first = h(block * every)
    assert h(0) == start and h(block * every + within % every) == first
    assert math.isclose(h((block + 1) * every), factor * first, rel_tol=1e-12)


cyclical = st.integers(1, 500).flatmap(lambda n: st.builds(Cyclical, sizes, st.integers(1, n), st.just(n)))


@given(cyclical, steps)
def test_a_cyclical_schedule_is_the_cosine_of_its_definition(h, k):
    L = math.ceil(h.steps / h.cycles)
    cosine = h.start / 2 * (1 + math.cos(math.pi * (k % L) / L))
    assert math.isclose(h(k), cosine, rel_tol=1e-9, abs_tol=1e-15 * h.start)


@given(cyclical, st.integers(0, 20))
def test_every_cycle_begins_at_the_start_and_falls_within_positive_step_sizes(h, cycle):
    values = [h(cycle * h.length + k) for k in range(h.length)]
    assert values[0] == h.start and values[-1] > 0
    assert values == sorted(values, reverse=True)
    assert values == [h(k) for k in range(h.length)]


def test_a_cyclical_schedule_stays_positive_at_the_end_of_a_very_long_cycle():
    h = Cyclical(1.0, 1, 10**9)
    assert math.isclose(h(10**9 - 1), (math.pi / 2 * 1e-9) ** 2, rel_tol=1e-6)


@pytest.mark.parametrize("explore, count", [(0.0, 0), (0.05, 1), (0.1, 1), (0.3, 3), (0.5, 5), (0.75, 8), (0.9, 9)])
def test_the_first_fraction_of_each_cycle_explores_at_temperature_0(explore, count):
    h = Cyclical(0.1, cycles=3, steps=29, explore=explore)
    assert h.length == 10
    assert [h.sampling(k) for k in range(29)] == [k % 10 >= count for k in range(29)]
    cold = [phase.temperature == 0 and not phase.keep for phase in h.phases for _ in range(phase.steps)]
    assert cold == [k % 10 < count for k in range(len(cold))]
    assert [phase.step_size(k) for phase in h.phases for k in range(phase.steps)] == [h(k) for k in range(29)]


@given(st.floats(1e-6, 1e3), st.floats(0.01, 0.99), st.integers(0, 10**9))
def test_jittered_step_sizes_fill_both_sides_of_their_mean_evenly_and_every_sixteenth_is_a_quarter(h, width, k):
    """Of 89 in a row, a Fibonacci number, each of 89 equal parts of the range holds 2 at most."""
    some = np.arange(k, k + 89)
    sizes = Jittered(h, width).over(range(k, k + 89)) * np.where(some % 16 == 15, 4, 1)
    shares = (sizes / h - 1) / width
    counts = np.histogram(shares, bins=89, range=(-1, 1))[0]
    assert counts.sum() == 89 and counts.max() <= 2
    assert abs(shares.mean()) < 2 / 89


def test_schedules_are_data():
    h = Cyclical(0.1, cycles=4, steps=100, explore=0.5)
    assert repr(h) == "Cyclical(start=0.1, cycles=4, steps=100, explore=0.5)"
    assert repr(Polynomial(0.1, 1, 0.55)) == "Polynomial(a=0.1, b=1, gamma=0.55)"
    assert h == Cyclical(0.1, 4, 100, 0.5)
    with pytest.raises(FrozenInstanceError):
        h.start = 0.2


@pytest.mark.parametrize(
    "make, arguments",
    [
        (Polynomial, dict(a=0.1, b=1.0, gamma=0.55)),
        (BlockDecay, dict(start=0.1, factor=0.5, every=10)),
        (Cyclical, dict(start=0.1, cycles=2, steps=10)),
        (Jittered, dict(step_size=0.1)),
    ],
)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, None, "0.1"])
def test_what_is_not_a_positive_number_is_refused_by_name(make, arguments, value):
    for name in arguments:
        message = rf"{make.__name__}: {name} is (a number > 0|an integer >= 1), got .*Pass {name}="
        with pytest.raises(RecipeError, match=message):
            make(**arguments | {name: value})


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: BlockDecay(0.1, 1.5, 10), "factor is at most 1, got 1.5"),
        (lambda: Jittered(0.1, width=1), "width is a number > 0 and < 1, got 1"),
        (lambda: Jittered(0.1, width=0.0), "width is a number > 0 and < 1, got 0.0"),
        (lambda: BlockDecay(0.1, 0.5, 2.5), "every is an integer >= 1, got 2.5"),
        (lambda: Cyclical(0.1, 11, 10), "11 cycles do not fit in 10 steps"),
        (lambda: Cyclical(0.1, 2.0, 10), "cycles is an integer >= 1, got 2.0"),
        (lambda: Cyclical(0.1, 2, 10, explore=1), r"explore is a fraction in \[0, 1\), got 1"),
        (lambda: Cyclical(0.1, 2, 10, explore=-0.1), "explore is a fraction"),
        (lambda: Cyclical(0.1, 2, 10, explore=math.nan), "explore is a fraction"),
        (lambda: Cyclical(0.1, 2, 10, explore=None), "explore is a fraction"),
        (lambda: Cyclical(0.1, 5, 10, explore=0.6), "no step samples: cycles of 2 steps, explore = 0.6"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


def test_a_sampler_takes_the_step_sizes_of_a_schedule():
    def run(schedule):
        return sample(
            SGLD,
            lambda theta: (theta**2).sum() / 2,
            init=torch.ones(2),
            chains=2,
            steps=6,
            step_size=schedule,
            progress=False,
        )["theta"]

    h = BlockDecay(0.1, 0.5, 2)
    assert torch.equal(run(h), run([0.1, 0.1, 0.05, 0.05, 0.025, 0.025].__getitem__))
    assert not torch.equal(run(h), run(0.1))


def test_exact_draws_weigh_equally_whatever_their_step_sizes():
    run = dict(init=torch.ones(2), steps=40, step_size=Jittered(0.5), progress=False)
    exact, plain = (sample(SGLD, lambda theta: (theta**2).sum() / 2, metropolis=m, **run) for m in (True, False))
    assert exact.step_sizes is None and plain.step_sizes is not None
    assert torch.allclose(exact.average("theta").float(), exact["theta"].mean((0, 1)))


def test_phases_bring_their_own_number_of_steps_for_thinning():
    """`steps` is 1000 where it is left out, which says nothing of phases."""
    phases = [Phase(steps=2400)]
    run = dict(init=torch.zeros(1), chains=1, phases=phases, thin=1200, step_size=0.1, progress=False)
    draws = sample(SGLD, lambda theta: (theta**2).sum() / 2, **run)
    assert draws.draws == 2


@pytest.mark.parametrize(
    "schedule",
    [
        Polynomial(0.1, 7.0, 0.55),
        BlockDecay(0.1, 0.9, 7),
        Cyclical(0.1, 3, 100),
        Later(Cyclical(0.1, 3, 100), 11),
        Jittered(0.1),
        lambda k: 0.1 / (1 + k),
        lambda k: 1,
        lambda k: np.float32(0.1),
        0.1,
    ],
)
def test_many_steps_have_the_values_that_they_have_one_at_a_time(schedule):
    setting = Setting("step size", schedule, origin=5, where="here")
    some = range(3, 90, 4)
    values = setting.over(some)
    assert values.dtype == np.float64 and values.tolist() == [setting(k) for k in some]
    if callable(schedule):
        assert values.tolist() == [float(schedule(5 + k)) for k in some]
    assert not len(setting.over(range(0)))


@pytest.mark.parametrize("bad", [0.0, -1, float("nan"), float("inf"), 10**400, True, None, "1", torch.ones(2)])
def test_a_function_that_gives_no_number_is_refused_at_its_step(bad):
    setting = Setting("step size", lambda k: bad if k == 8 else 0.1, origin=5, where="here")
    for asked in (lambda: setting.over(range(10)), lambda: setting(3)):
        with pytest.raises(RecipeError, match="the schedule gives the step size .* at step 3"):
            asked()


def test_a_function_that_fails_is_told_with_its_step_and_is_asked_once_for_each():
    asked = []
    setting = Setting("temperature", lambda k: asked.append(k) or 1 / (7 - k), origin=5, where="here")
    with pytest.raises(RecipeError, match="the schedule of the temperature fails at step 2: .*zero"):
        setting.over(range(10))
    assert asked == [5, 6, 7]
    assert Setting("temperature", lambda k: 0.0, origin=0, where="here").over(range(3)).tolist() == [0.0] * 3
