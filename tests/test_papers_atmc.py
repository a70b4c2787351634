"""The experiments with ATMC: the laws that they show, in small runs; seeds are fixed."""

import math

import pytest
import torch

import samplers

pytestmark = pytest.mark.usefixtures("papers")


# ---- thermostats


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_steps_have_their_order_and_what_is_printed_has_none(study):
    from atmc_order import ERRORS, WORDS, order

    slopes = [order(study, word)["slope"] for word in WORDS]
    assert slopes[0] == pytest.approx(2, abs=0.1) and min(slopes[1:]) > 2.9
    for error in ERRORS:
        assert order(study, "F A'", error)["slope"] == pytest.approx(1, abs=0.05)


def test_the_algorithm_by_hand_is_that_of_the_library(study):
    """The variance of its target within 10 %, ten standard errors, and with the printed sign none."""
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


def test_an_estimate_of_a_cycle_is_of_its_last_state(study, monkeypatch):
    """Of a run whose thermostat is the step size: the last of a cycle is h_0/2 (1 + cos(pi 49/50))."""
    from atmc_cycles import estimates

    def run(*_, init, chains, steps, warmup, thin, step_size, **__):
        h = torch.tensor([step_size(k) for k in range(warmup + thin - 1, warmup + steps, thin)])
        return {"theta": torch.zeros(chains, len(h), len(init)), "xi": h.expand(chains, -1)}

    monkeypatch.setattr(samplers, "sample", run)
    result = estimates(study, h=0.4, length=50, chains=2, steps=200)["50"]
    assert result["xi"] == pytest.approx(0.2 * (1 + math.cos(math.pi * 49 / 50)), rel=1e-5)


@pytest.mark.slow
def test_friction_at_the_end_of_a_cycle_is_still_that_of_longer_steps(study):
    """xi at the end of a short cycle is below that of the long steps, h_0 V_g/(2m) = 10."""
    from atmc_cycles import estimates

    result = estimates(study, h=0.4, length=50, chains=20, steps=1000)["50"]
    assert 3 < result["xi"] < 7 and result["error"].keys() == {"1000"}


# ---- CIFAR-10


@pytest.mark.slow
@pytest.mark.parametrize("method", ["SGD, batch norm", "ATMC", "SGNHT"])
def test_the_last_state_of_each_cycle_but_the_first_is_a_sample(pixels, method):
    from atmc_cifar import run

    result = run(pixels, method, seed=0, epochs=3, cycle=1, size=(8, 2), lr=0.01)
    assert result["samples"] == (1 if method.startswith("SGD") else 2)
    if method.startswith("SGD"):
        assert result["single"]["nll"] == pytest.approx(result["predictive"]["nll"])
    else:
        assert [epoch for epoch, _ in result["curve"]] == [2.0, 3.0]


def test_what_sgd_would_take_for_the_papers_step_is_its_lr(papers):
    """h^2/m phi1(-.105) N = 4.3e-3 for 50,000 images; 0.034 where steps are ten times as long for 4000."""
    from atmc_cifar import optimizer_of
    from networks import residual

    network = residual(depth=8, filters=2, batch_norm=False, seed=0)
    for rows, longer, lr in ((50_000, 1.0, 4.3e-3), (4000, 10.0, 0.034)):
        group = optimizer_of("ATMC", network, rows, 0.0, 0, longer).param_groups[0]
        x = group["Dmin"] * group["step_size"]
        assert group["step_size"] ** 2 / group["m"] * (1 - math.exp(-x)) / x * rows == pytest.approx(lr, rel=0.02)
        assert group["m"] * group["c"] ** 2 == pytest.approx(11.1, rel=0.01)


def test_a_normed_layer_is_scale_times_direction_and_its_prior_is_the_papers(papers):
    from networks import Normed, prior, residual

    torch.manual_seed(0)
    layer = Normed(3, 4, kernel=0, scale=0.5)
    x = torch.randn(5, 3)
    assert layer.energy().item() == pytest.approx(
        0.5 * 2 / 5, abs=1e-4
    )  # |scale|/5, where the directions have length 1
    with torch.no_grad():
        before = layer(x)
        layer.direction *= 2
        assert torch.allclose(layer(x), before, atol=1e-6)
    assert layer.energy().item() == pytest.approx(3 / 2 * 4 * 9 + 0.2, abs=1e-4)
    network = residual(depth=14, filters=4, batch_norm=False, seed=0)
    assert sum(isinstance(m, Normed) for m in network.modules()) == 14
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert float(prior(network).detach()) > 0


def test_batch_normalisation_comes_before_the_scale_and_adds_no_weight(papers):
    """Each filter is that of the unit direction, normalised; the parameters and their start are those without it."""
    from networks import Normed, residual

    torch.manual_seed(0)
    layer, x = Normed(3, 4, scale=0.5, batch_norm=True), torch.randn(6, 3, 8, 8)
    with torch.no_grad():
        layer.bias.fill_(2.0)
        y = layer(x)
        layer.direction *= 3
        assert torch.allclose(layer(x), y, atol=1e-4)
    assert y.mean((0, 2, 3)).tolist() == pytest.approx([2.0] * 4, abs=1e-5)
    assert y.std((0, 2, 3)).tolist() == pytest.approx([0.5] * 4, rel=0.01)
    shape = {"depth": 8, "filters": 2, "seed": 1}
    own, plain = residual(batch_norm=True, plus=True, **shape), residual(batch_norm=False, **shape)
    assert all(torch.equal(p, q) for p, q in zip(own.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize(
    ("sgd", "verdict"), [(1.0, "reproduced"), (1.4, "not decided here"), (1.2, "not decided here")]
)
def test_a_sampler_underfits_by_itself_where_sgd_does_not(papers, sgd, verdict):
    """The NLL of training rises from 1.2 to 1.4 under ATMC; where that of SGD does so too, the network may do it."""
    import atmc_batchnorm as example

    def results(nll):
        rows = [{"training": {"nll": nll + k / 100, "accuracy": 50.0}} for k in range(3)]
        return [row | {"single": {"each": [nll, nll - 1, nll + 1], "accuracy": 40.0}} for row in rows]

    table = {("ATMC", False): 1.2, ("ATMC", True): 1.4, ("SGD", False): 1.2, ("SGD", True): sgd}
    found = example.claims_of({key: results(nll) for key, nll in table.items()})
    assert found[0].verdict.value == verdict
