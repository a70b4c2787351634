"""Relaxation times by linearisation, against what chains do."""

import math

import pytest
import torch
from error_budget import CLAIMS, beyond

import samplers
from integrators.relaxation import relaxation_steps
from recipe import Recipe, nonnegative, positive, potential, scalar, total, vector
from samplers import ATMC, HMC, PSGLD, SANTA, SGNHT, RandomisedHMC, RelativisticSGHMC, catalogue


@pytest.mark.parametrize("name", ["sgnht", "msgnht"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_thermostat_and_its_momenta_relax_as_their_equations_do(name, temperature):
    steps = relaxation_steps(catalogue[name], 0.01, {"A": 2.0, "mu": 7.0}, temperature=temperature)
    # dxi = (<p^2> - 1)/mu, d<p^2> = -2 xi <p^2> + 2 A T: at T < 1 by the roots of r^2 - 2 A r + 2 T/mu
    assert steps["p"] == pytest.approx(50, rel=1e-6)
    assert steps["xi"] == pytest.approx(100 / (2 - math.sqrt(4 - 2 * temperature / 7)), rel=1e-4)


@pytest.mark.parametrize("name", ["sgnht", "msgnht", "atmc", "sghmc", "underdamped-langevin"])
def test_times_in_steps_depend_on_the_momentum_alone(name):
    recipe, times = catalogue[name], []
    for lr, number in ((0.05, 50_000), (1e-3, 100)):
        converted = recipe.convert(lr=lr, momentum=0.9, num_data=number)
        times.append(relaxation_steps(recipe, converted.pop("step_size"), converted))
    assert times[0] == pytest.approx(times[1], rel=1e-5)
    assert times[0]["p"] == pytest.approx(-1 / math.log(0.9), rel=1e-6)


def test_jumps_updates_frozen_blocks_and_what_depends_on_more():
    assert relaxation_steps(HMC, 0.1, {}) == {"p": 0.0}
    assert relaxation_steps(RandomisedHMC, 0.1, {"nu": 2.0})["p"] == pytest.approx(5)
    assert relaxation_steps(PSGLD, 0.1, {"alpha": 0.0}) == {"V": 0.0}
    assert relaxation_steps(PSGLD, 0.1, {}, frozen=["V"]) == {}
    assert "xi" not in relaxation_steps(SANTA, 0.1, {})  # it depends on V
    assert relaxation_steps(SANTA, 0.1, {"V": 1.0, "V_last": 1.0, "lam": 1e-8})["p"] == pytest.approx(10)
    assert relaxation_steps(SGNHT, 0.1, {}, temperature=0.0) == {}


def test_a_thermostat_that_never_relaxes():
    theta, p, xi = vector("theta"), vector("p"), scalar("xi")
    mu, C = positive("mu", default=1.0), nonnegative("C", default=0.0)
    hoover = Recipe(
        name="nose-hoover",
        state=(theta, p, xi),
        H=potential(theta) + total(p**2) / 2 + total(1) * mu * xi**2 / 2,
        D={p: C},
        Q={(theta, p): -1, (p, xi): p / (total(1) * mu)},
    )
    assert relaxation_steps(hoover, 0.1, {}) == {"p": math.inf, "xi": math.inf}


@pytest.mark.slow
def test_relativistic_momenta_forget_as_long_chains_say():
    """By the initial slope of their autocorrelation, which is what <p^2>/-<p f> is."""
    h = 0.02
    draws = samplers.sample(
        RelativisticSGHMC,
        lambda t: 0 * t.sum(),
        init=torch.zeros(4000),
        chains=1,
        steps=400,
        step_size=h,
        keep="p",
        seed=1,
        progress=False,
    )["p"][0].double()
    late = draws[200:]
    rate = relaxation_steps(RelativisticSGHMC, h, {})["p"] ** -1
    residuals = (late[1:] - late[:-1]) * late[:-1] + rate * late[:-1] ** 2
    assert not CLAIMS["starts and relaxation"].failures({"slope": beyond(residuals, 0.02 * rate * late.var())})


def test_the_optimizer_says_how_long_its_thermostats_take():
    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))]
    optimizer = samplers.Optimizer(weights[:1], ATMC, lr=0.1, momentum=0.9, num_data=50)
    assert "Relaxation in steps: p 9.49, xi 89.9" in repr(optimizer)
    optimizer.add_param_group({"params": weights[1:], "momentum": 0.5})
    assert optimizer.relaxation_steps()["p of group 1"] == pytest.approx(-1 / math.log(0.5))
    optimizer = samplers.Optimizer(weights, SANTA, lr=0.1, num_data=50)
    assert "xi" not in optimizer.relaxation_steps()
    for w in weights:
        w.grad = torch.ones_like(w)
    optimizer.step()
    assert optimizer.relaxation_steps()["xi"] > 0  # V is known by now
