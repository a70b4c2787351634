"""The experiments with ATMC: the laws that they show, in small runs; seeds are fixed."""

import pytest

pytestmark = pytest.mark.usefixtures("papers")


# ---- thermostats


@pytest.mark.parametrize("name", ["ATMC", "mSGNHT", "SGHMC, V_g known"])
def test_a_thermostat_and_who_is_told_have_the_variance_of_the_target(study, name):
    """Within 8 %: more than four standard errors."""
    from atmc_thermostats import moments

    result = moments(study, name, "gaussian", 100.0, chains=150, steps=600)
    assert result["square"] == pytest.approx(1, abs=0.08)
    assert result["error"] < 0.02
    if name == "ATMC":
        assert result["xi"] == pytest.approx([1.25, 1.0], abs=0.1)


def test_who_is_not_told_is_as_hot_as_the_noise_makes_it(study):
    """1 + h V_g/(2 gamma m) = 3.5."""
    from atmc_thermostats import moments

    result = moments(study, "SGHMC, V_g unknown", "gaussian", 100.0, chains=150, steps=600)
    assert result["square"] == pytest.approx(3.5, rel=0.12)


def test_one_thermostat_for_all_is_wrong_where_the_noise_differs(study):
    """Sites with V_g = 0 and 200 in turn: too cold and too hot, as one friction is for both."""
    from atmc_thermostats import moments

    result = moments(study, "SGNHT", "gaussian", 100.0, noise="by site", chains=150, steps=600)
    assert max(result["by site"][::2]) < 0.7 and min(result["by site"][1::2]) > 1.3


def test_the_noise_of_the_data_has_no_mean_and_unit_variance():
    from atmc_thermostats import normal_data, spiked_data

    for data in (normal_data(), spiked_data()):
        assert data.mean(0).abs().max() < 1e-12
        assert data.square().mean(0).tolist() == pytest.approx([1.0] * data.shape[1])


# ---- the integrator


def test_the_steps_have_their_order_and_what_is_printed_has_none(study):
    from atmc_order import ERRORS, WORDS, order

    slopes = [order(study, word)["slope"] for word in WORDS]
    assert slopes[0] == pytest.approx(2, abs=0.1) and min(slopes[1:]) > 2.9
    for error in ERRORS:
        assert order(study, "F A'", error)["slope"] == pytest.approx(1, abs=0.05)


def test_the_algorithm_by_hand_is_that_of_the_library(study):
    """The variance of its target within 10 %, ten standard errors, and with the printed sign none."""
    import torch
    from atmc_order import algorithm

    def run(**changes):
        def potential(theta):
            return theta.square().sum(-1) / 2

        start = torch.randn(4000, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        settings = dict(steps=60, step_size=0.2, temperature=1.0, seed=0)
        return float(algorithm(m=1.0, **changes)(potential, start, **settings).square().mean())

    assert run() == pytest.approx(1, abs=0.1)
    assert not run(sign=+1) < 100


def test_speeds_of_exp_minus_K_are_those_of_a_normal_where_m_c_squared_is_large():
    from atmc_order import exact_speeds

    assert exact_speeds(1.0) == pytest.approx((0.886, 0.772), abs=0.002)
    assert exact_speeds(30.0) == pytest.approx((1, (2 / 3.14159265) ** 0.5), abs=1e-3)


# ---- cycles


def test_an_estimate_of_a_cycle_is_of_its_last_state(study):
    """xi at the end of a short cycle is below that of the long steps, h_0 V_g/(2m) = 10."""
    from atmc_cycles import estimates

    result = estimates(study, h=0.4, length=50, chains=20, steps=1000)["50"]
    assert 3 < result["xi"] < 7 and result["error"].keys() == {"1000"}
