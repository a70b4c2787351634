"""`accuracy(of=f)` and `report(of=f)`: errors and mixing of a function of theta in the place of its coordinates."""

import math

import pytest
import torch
from torch.distributions import Normal

import samplers
from recipe import RecipeError
from samplers import SGLD, Draws, Metropolis
from samplers.results.functional import Functional

SITES, H = 3, 0.2


def bowl(theta):
    return (theta**2).sum() / 2


def run(energy=bowl, recipe=SGLD, init=None, **settings):
    init = torch.zeros(SITES, dtype=torch.float64) if init is None else init
    settings = {"chains": 20, "steps": 2000, "warmup": 50, "step_size": H, "progress": False} | settings
    return samplers.sample(recipe, energy, init=init, **settings)


@pytest.fixture(scope="module")
def draws():
    return run()


def test_the_step_of_sgld_has_the_bias_of_its_closed_form_in_the_energy(draws):
    """Null: E U = 3/(2 (1 - h/2)), in place of 3/2. Five standard errors, alpha 6e-7 a figure."""
    result = draws.accuracy(of=bowl)
    mean, sd = result.figures
    assert (str(mean), str(sd)) == ("bowl mean", "bowl sd")
    law = SITES / 2 / (1 - H / 2)
    assert abs(mean.value - law) < 5 * mean.monte_carlo < 0.1
    assert abs(mean.law - law) < 5 * mean.law_error
    assert abs(mean.step - (law - SITES / 2)) < 5 * mean.step_error < 0.16
    assert abs(sd.step - (law - SITES / 2) * math.sqrt(2 / SITES)) < 5 * sd.step_error
    assert result.verdict.startswith("The bias of the step is the largest")


@pytest.mark.slow
def test_minibatches_have_the_bias_of_their_noise_in_the_energy():
    """U~ of four of forty data, of variance 1: h V_g/2 of T, V_g = 40^2/4, is .2 of 1/2. Five standard errors."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(40, generator=generator, dtype=torch.float64)
    data = (data - data.mean()) / data.std(correction=0)

    def loss(theta):
        return 40 * theta**2 / 2

    energy = samplers.posterior(lambda theta, x: (x - theta) ** 2 / 2, lambda theta: 0 * theta, num_data=40)
    noisy = run(energy, init=torch.zeros((), dtype=torch.float64), data=data, batch_size=4, step_size=0.001)
    mean = noisy.accuracy(of=loss).by_name()["loss", "mean"]
    assert abs(mean.minibatches - 0.1) < 5 * mean.minibatches_error < 0.1


def test_accepted_steps_leave_a_function_the_error_of_monte_carlo_alone():
    accepted = run(metropolis=Metropolis(), steps=200)
    figure, _ = accepted.accuracy(of=lambda theta: theta.square().sum(), chains=8, steps=40).figures
    assert figure.name == "f" and figure.step is figure.minibatches is None and figure.monte_carlo > 0


def test_a_function_of_named_tensors_sees_them_by_name():
    start = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}

    def both(theta):
        return torch.stack([theta["a"].sum(), theta["b"]])

    named = run(lambda t: bowl(t["a"]) + t["b"] ** 2 / 8, init=start, chains=4, steps=200, step_size=0.5)
    result = named.accuracy(of=both, chains=16, steps=100).by_name()
    assert list(result) == [(f"both[{k}]", statistic) for k in (0, 1) for statistic in ("mean", "sd")]
    own = named.accuracy(chains=16, steps=100).by_name()["b", "sd"]  # pairs of another length: 5 % of an sd of 2.3
    assert result["both[1]", "sd"].value == pytest.approx(own.value)
    assert result["both[1]", "sd"].step == pytest.approx(own.step, abs=0.1)


def test_the_summary_and_the_print_stay_those_of_coordinates(draws):
    kept = draws.report(evaluations=0)
    draws.report(of=bowl, evaluations=0)
    draws.accuracy(of=bowl, chains=8, steps=40)
    assert "bias_step_sd" not in draws.summary().columns
    assert kept.verdict in str(draws) and "bowl" not in str(draws)


def test_a_function_may_mix_where_coordinates_do_not():
    noise = torch.randn(4, 1000, 1, generator=torch.Generator().manual_seed(0))
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0])[:, None, None]
    apart = Draws({"theta": 3 * signs + signs * noise}, info={})

    def size(theta):
        return theta.abs().sum()

    assert "R-hat of theta[0]" in apart.report().wrong[0].title
    assert not apart.report(of=size).wrong and {f.of for f in apart.report(of=size)} == {"", "size"}


@pytest.mark.parametrize(
    "of, words",
    [
        (3, "of is 3.*Pass a function"),
        (lambda theta: 1.0, "f fails, called with theta"),
        (lambda theta: theta.no_such(), "f fails, called with theta: AttributeError"),
        (lambda theta: (theta > 0).sum(), "f returns torch.int64"),
        (lambda theta: (theta.sum() - 1e9).sqrt(), "f is not finite at .* values"),
        (lambda theta: theta.sum() * 0, "no coordinate of f varies"),
    ],
)
def test_what_is_no_function_of_theta_is_refused(draws, of, words):
    with pytest.raises(RecipeError, match=words):
        draws.accuracy(of=of, chains=8, steps=40)


def test_names_of_functions():
    assert Functional(bowl, "here").name == "bowl" and Functional(lambda theta: theta, "here").name == "f"


def test_a_function_of_a_model_of_one_variable_takes_the_dict_that_its_likelihood_takes(tmp_path):
    one = torch.ones((), dtype=torch.float64)
    model = samplers.model({"mu": Normal(0 * one, 10 * one)}, lambda v: Normal(v["mu"], one).log_prob(one.expand(5)))
    draws = samplers.sample("mala", model, step_size=0.1, steps=64, progress=False)
    draws.save(tmp_path / "draws")
    rows = torch.arange(3.0, dtype=torch.float64)
    expected = draws["mu"][:, :, None] + rows
    for some in (draws, samplers.Draws.load(tmp_path / "draws")):
        torch.testing.assert_close(some.predict(lambda v, x: v["mu"] + x, rows), expected)
        (mixing,) = [f for f in some.report(of=lambda v: v["mu"] ** 2) if f.question == "sample size"]
        assert mixing.of == "f"
    (of_square,) = {figure.name for figure in draws.accuracy(of=lambda v: v["mu"] ** 2, steps=40).figures}
    assert of_square == "f"
    alone = samplers.sample("sgld", lambda t: t.square().sum(), init=one, step_size=0.1, steps=64, progress=False)
    assert alone.predict(lambda theta, x: theta + x, rows).shape == (4, 64, 3)
