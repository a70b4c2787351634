"""Draws of weighted recipes: their law is proved, what reads draws counts by weights, and what cannot refuses."""

import numpy as np
import pytest
import torch
from covering import covering
from sympy import exp, log, sqrt

import samplers
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    adapted,
    fraction,
    grad,
    mapped,
    observe,
    positive,
    potential,
    refresh,
    step_size,
    temperature,
    total,
    vector,
)
from samplers import diagnostics
from samplers.results import statistics
from samplers.results.draws import Draws

theta, p = vector("theta"), vector("p")
U = potential(theta)
slow = positive("slow", default=0.5)
psi = 1 + slow * total(theta**2)
zeta = adapted("zeta", domain="positive", start=1)
rate, gamma = fraction("rate", default=0.1), positive("gamma", default=1.0)
clock = 1 / sqrt(1 + zeta)
FLAT = (1 + exp(U)) ** -slow


def rescaled(weights=psi, **more):
    """Langevin dynamics in the time of a clock psi(theta)."""
    given = dict(name="rescaled", state=theta, H=U + temperature * log(psi), D={theta: psi}, weights=weights)
    return Recipe(**given | more)


def adaptive(weights=clock, D=gamma * clock, Q=-clock, **more):
    """Underdamped Langevin dynamics in the time of a clock that follows the gradient."""
    given = dict(
        name="adaptive",
        state=(theta, p),
        H=U + total(p**2) / 2,
        D={p: D},
        Q={(theta, p): Q},
        adapt={zeta: (1 - rate) * zeta + rate * total(grad(U) ** 2)},
        weights=weights,
        scheme="B A O A B",
    )
    return Recipe(**given | more)


def flattened(weights=FLAT, **more):
    """A law whose barriers are lower than those of U."""
    return Recipe(name="flat", state=theta, H=U + temperature * log(FLAT), D={theta: 1}, weights=weights, **more)


# ---- the certificate


@pytest.mark.parametrize("T", covering([1.0, 0.5], [0.5]))
@pytest.mark.parametrize("declare", [rescaled, adaptive, flattened])
def test_the_law_of_weighted_draws_is_proved(declare, T):
    certificate = declare().check(temperature=T)
    assert certificate.exact and certificate["claim"].answer == "exact, by weights", str(certificate)
    assert certificate["marginal"].question == "the weighted marginal of theta is exp(-U)"
    assert certificate["marginal"].verdict == certificate["stationary"].verdict == "proved"


@pytest.mark.parametrize("declare, own", [(rescaled, psi), (flattened, FLAT)])
def test_weights_left_out_inverted_or_squared_are_refuted(declare, own):
    for wrong in (None, 1 / own, own**2):
        assert declare(wrong).check()["marginal"].verdict == "failed"


def test_jumps_at_rates_that_the_clock_scales_are_in_its_time():
    own = adaptive(jumps={"R": refresh(p, rate=gamma * clock)}, scheme="B A O R A B")
    assert own.claim == "exact" and own.check()["clock"].verdict == "proved"
    assert "in every step" in adaptive(jumps={"R": refresh(p)}).check()["clock"].answer


CATEGORIES = [(-theta, temperature, "proved"), (theta, temperature, "failed"), (-theta, 1, "failed")]


@pytest.mark.parametrize("of, T, verdict", covering(CATEGORIES, CATEGORIES[::2]))
def test_weights_of_a_sum_over_categories(of, T, verdict):
    """theta and b ~ Bernoulli(1/(1 + e^theta)) site by site, weighed to exp(-U), at any temperature."""
    b = vector("b", domain="binary")
    psi = exp(-total(log(1 + exp(of / T))))
    own = dict(name="categories", state=(theta, b), target=theta, H=U + total(b * theta), D={theta: 1})
    recipe = Recipe(**own, jumps={"R": refresh(b)}, weights=psi, scheme="Euler R")
    assert recipe.check(temperature=0.7)["marginal"].verdict == verdict


def test_weights_below_0_at_some_U_say_what_to_write():
    with pytest.raises(RecipeError, match=r"for every U, which may be below 0: log\(1 \+ exp\(U\)\), say"):
        rescaled(weights=log(1 + U))


def test_weights_lift_the_condition_on_a_clock_alone():
    assert adaptive().claim == "exact" and adaptive().check()["clock"].verdict == "proved"
    assert adaptive(None).claim == "given frozen zeta"
    others = {
        "inverse": adaptive(1 / clock),
        "squared": adaptive(clock**2),
        "friction without it": adaptive(D=gamma),
        "a mass that follows too": adaptive(H=U + total(p**2) / 2 / (1 + zeta)),
        "redraws at their own times": adaptive(jumps={"R": refresh(p)}),
        "redraws at a rate of their own": adaptive(jumps={"R": refresh(p, rate=gamma)}),
    }
    for wrong, recipe in others.items():
        certificate = recipe.check()
        assert certificate["clock"].verdict == certificate["claim"].verdict == "failed", wrong
        assert recipe.claim == "given frozen zeta"


def test_a_law_whose_weights_have_no_finite_mean_is_refused():
    def gaussian(weights):
        return Recipe(name="wide", state=theta, H=total(theta**2), D={theta: 1}, weights=weights)

    assert gaussian(exp(total(theta**2) / 2)).check().exact
    finding = gaussian(exp(2 * total(theta**2))).check()["normalisable"]
    assert finding.verdict == "failed" and "times the weights" in finding.question


def test_weights_follow_a_map_and_bound_functions():
    above = vector("theta", domain="positive")
    own = Recipe(name="m", state=above, H=total(2 * above - log(above)), D={above: 1}, weights=exp(total(above)))
    assert str(mapped(own, theta=vector("z"), by=exp).weights) == "exp(total(exp(z)))"
    assert flattened().bind(U=lambda x: total(x**2)).weights == FLAT.subs(U, total(theta**2))
    assert "weights slow*total(theta**2) + 1" in str(rescaled())


@pytest.mark.parametrize(
    "weights, words",
    [
        (theta**2, "one value per site"),
        (-psi, "they are -"),
        (0 * psi, "0 is 0 at every draw"),
        (total(grad(U) ** 2), "they read grad"),
        (1 + observe("loss") ** 2, "they read loss"),
        (1 + step_size, "they read h"),
        ("psi", "a formula is a sympy expression"),
    ],
)
def test_weights_that_are_no_numbers_of_a_kept_state_are_refused(weights, words):
    with pytest.raises(RecipeError, match=words):
        rescaled(weights)


def test_weights_of_what_was_adapted_before_the_step_are_refused():
    with pytest.raises(RecipeError, match="same_step"):
        adaptive(order="same_step")


# ---- a run


def test_a_parameter_may_stand_in_weights_alone():
    run = dict(energy=lambda x: (x**2).sum() / 2, init=torch.zeros(2).double(), steps=5, step_size=0.1, progress=False)
    recipe = Recipe(name="w", state=theta, H=U, D={theta: 1}, weights=psi, marginal=U - temperature * log(psi))
    draws = samplers.sample(recipe, **run, slow=2.0)
    expected = 1 + 2 * draws["theta"].square().sum(-1)
    torch.testing.assert_close(draws.weights, expected / expected.mean())


def quartic(x):
    return (x**4).sum() / 4


RESCALED = rescaled()
RUN = dict(init=torch.ones(3), chains=4, steps=20, step_size=0.02, backend="torch", progress=False)


def test_the_weights_of_a_run_are_those_of_its_kept_states(tmp_path):
    x = vector("x")
    inline = Energy(x, U=total(x**4) / 4)
    of_flat = -0.7, lambda draws: torch.log1p(torch.exp((draws["theta"] ** 4).sum(-1) / 4))
    cases = [
        (rescaled, quartic, True, (1, lambda draws: torch.log(1 + 0.7 * (draws["theta"] ** 2).sum(-1)))),
        (adaptive, quartic, False, (-0.5, lambda draws: torch.log1p(draws["zeta"]))),
        (flattened, quartic, False, of_flat),
        (flattened, inline, True, of_flat),
    ]
    for declare, energy, metropolis, (factor, of_draws) in cases:
        own = {} if declare is adaptive else {"slow": 0.7}
        draws = samplers.sample(declare(), energy, temperature=0.5, metropolis=metropolis, **own, **RUN)
        torch.testing.assert_close(draws.log_weights.float(), factor * of_draws(draws), rtol=1e-4, atol=1e-4)
        assert draws.info["law"] == "exact, by weights" or energy is inline
        assert draws.weights.mean() == pytest.approx(1)
        draws.save(tmp_path / "run.safetensors")
        loaded = Draws.load(tmp_path / "run.safetensors")
        assert torch.equal(loaded.log_weights, draws.log_weights) and "weighted: " in repr(loaded)


def test_parts_of_a_run_have_the_weights_of_the_whole():
    whole = samplers.sample(RESCALED, quartic, **RUN)
    parts = [samplers.sample(RESCALED, quartic, **RUN | {"chains": some}) for some in (range(1), range(1, 4))]
    assert torch.equal(whole.log_weights, torch.cat([part.log_weights for part in parts]))


@pytest.mark.parametrize(
    "declare, settings, words",
    [
        (rescaled, dict(scope="tensor", init={"a": torch.ones(2), "b": torch.ones(1)}), "not one per tensor"),
        (rescaled, dict(temperature=0.0), "there is no law"),
        (lambda: rescaled(psi * temperature), dict(temperature=lambda k: 1.0 + k), "which changes"),
        (rescaled, dict(phases=[samplers.Phase(9, parameters={"slow": 0.1})], steps=1000), "slow"),
        (adaptive, dict(temperature=[1, 2], init=torch.ones(3)), "states are exchanged"),
    ],
)
def test_a_run_whose_draws_have_no_one_weight_is_refused(declare, settings, words):
    with pytest.raises(RecipeError, match=words):
        samplers.sample(declare(), quartic, **RUN | settings)


def test_exchanged_chains_have_the_weights_of_the_first_temperature():
    draws = samplers.sample(RESCALED, quartic, temperature=[1, 2], **RUN)
    torch.testing.assert_close(draws.log_weights.float(), torch.log(1 + 0.5 * (draws["theta"] ** 2).sum(-1)))


# ---- what reads draws


def spread(weighted=True):
    """The quantiles of N(0, 2^2) in a random order, weighted to N(0, 1)."""
    shares = (torch.randperm(16000, generator=torch.Generator().manual_seed(0)).double() + 0.5) / 16000
    x = 2 * torch.special.ndtri(shares).reshape(4, 4000, 1)
    logs = -3 / 8 * x[:, :, 0] ** 2 + 1000  # of any constant
    return Draws({"theta": x}, info={}, log_weights=logs if weighted else None)


def test_weights_of_whole_numbers_are_draws_so_many_times():
    """The shortest interval has its mass up to two draws, of both the least length that such a mass has."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 200, 3, generator=generator, dtype=torch.float64).sort(1).values
    times = torch.randint(1, 5, (200,), generator=generator) + 20 * (torch.arange(200) > 99)  # of x > 0, about
    weighted = Draws({"theta": x}, info={}, log_weights=times.double().log().expand(2, 200))
    repeated = Draws({"theta": x.repeat_interleave(times, dim=1)}, info={})
    for f in (None, torch.square):
        torch.testing.assert_close(weighted.average("theta", f), repeated.average("theta", f))
    own, other = weighted.summary(), repeated.summary()
    number = 2 * int(times.sum())
    np.testing.assert_allclose(own["mean"], other["mean"], rtol=1e-9)
    np.testing.assert_allclose(own["sd"], other["sd"] * (1 - 1 / number) ** 0.5, rtol=1e-9)
    low, high = (torch.tensor(own[name].values) for name in ("hdi_3%", "hdi_97%"))
    some, more = (statistics.highest_density(repeated["theta"], 0.94 + off) for off in (-2 / 400, 2 / 400))
    assert (some[1] - some[0] <= high - low).all() and (high - low <= more[1] - more[0]).all()
    inside = (repeated["theta"] >= low) & (repeated["theta"] <= high)
    assert (inside.double().mean((0, 1)) >= 0.94 - 2 / 400).all()


def test_step_sizes_and_weights_multiply():
    logs = torch.tensor([[2.0, 1.0], [1.0, 4.0]]).log()
    draws = Draws({"theta": torch.tensor([[1.0, 2], [3, 4]])}, info={}, step_sizes=[0.2, 0.1], log_weights=logs)
    assert draws.average("theta") == pytest.approx((0.4 * 1 + 0.1 * 2 + 0.2 * 3 + 0.4 * 4) / 1.1)


def test_equal_weights_change_nothing():
    plain = spread(weighted=False)
    equal = Draws(dict(plain), info={}, log_weights=torch.full((4, 4000), -7.0))
    np.testing.assert_allclose(equal.summary(), plain.summary(), rtol=2e-3)
    assert equal.report().rows[-1].answer.split(",")[0][:4] == plain.report().rows[-1].answer.split(",")[0][:4]


def test_a_summary_has_the_moments_and_the_errors_of_the_ratio_estimator():
    """Var = E_g[w^2 (x - m)^2]/number, where w^2 g is N(0, v) times 2 sqrt(v) of v = 1/(2 - 1/4)."""
    row = spread().summary().iloc[0]
    np.testing.assert_allclose([row["mean"], row["sd"]], [0, 1], atol=1e-3)
    np.testing.assert_allclose([row["hdi_3%"], row["hdi_97%"]], [-1.88, 1.88], atol=0.1)
    v = 1 / (2 - 1 / 4)
    error = (2 * v**1.5 / 16000) ** 0.5
    np.testing.assert_allclose([row["mcse_mean"], row["ess_bulk"]], [error, 1 / error**2], rtol=0.1)
    assert abs(row["ess_bulk"] / 16000 - 1) > 0.1 and row["r_hat"] < 1.01
    sizes = diagnostics.effective_sample_size(spread(), "theta"), diagnostics.autocorrelation_time(spread(), "theta")
    np.testing.assert_allclose([float(sizes[0]), 16000 / float(sizes[1])], 1 / error**2, rtol=0.1)


def test_lost_chains_have_no_weight():
    logs = torch.zeros(2, 3)
    logs[1] = torch.nan
    draws = Draws({"theta": torch.ones(2, 3)}, info={"diverged": {"1": 5}}, log_weights=logs)
    assert draws.weights.tolist() == [[1.0] * 3, [0.0] * 3]
    for wrong in (torch.zeros(3), torch.full((2, 3), torch.nan), torch.full((2, 3), -torch.inf)):
        with pytest.raises(RecipeError, match="log weight"):
            Draws({"theta": torch.ones(2, 3)}, info={}, log_weights=wrong)


def test_a_density_is_that_of_the_weighted_law():
    x = spread()["theta"].flatten().numpy()
    at, height = statistics.density(x, np.exp(-3 / 8 * x**2))
    assert np.abs(height - np.exp(-(at**2) / 2) / (2 * np.pi) ** 0.5).max() < 0.03
    assert statistics.density(x)[1].max() < 0.25
    titles = [axes.get_title() for axes in spread().plot().axes]
    assert any(f"ESS {spread().summary()['ess_bulk'].iloc[0]:.0f}" in title for title in titles)


def test_bounded_weights_have_no_tail_and_heavy_ones_have():
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0)).numpy()
    assert statistics.tail_of_weights(-np.log1p(np.float32(x) ** 8)) == 0
    assert statistics.tail_of_weights(x**2 / 2.5) > 0.7


def test_a_report_counts_by_weights():
    draws = samplers.sample(RESCALED, quartic, **RUN | {"steps": 400})
    report = draws.report(evaluations=400)
    findings = {f.title: f for f in report}
    x, w = draws["theta"].double(), draws.weights[..., None]
    temperature = (w * (x - (w * x).mean((0, 1))) * x**3).mean()
    assert findings["configurational temperature of theta"].value == pytest.approx(float(temperature), rel=1e-5)
    assert findings["Pareto index of the weights"].ok and any("kinetic" in reason for reason in report.unasked)
    least = min(draws.summary()["ess_bulk"])
    assert [f.value for f in report if f.question == "sample size"] == pytest.approx([least])
    heavy = Draws(dict(spread()), info={}, log_weights=(spread()["theta"][:, :, 0] ** 2) / 4)
    assert {f.title: f.ok for f in heavy.report()}["Pareto index of the weights"] is False


def test_what_cannot_use_weights_refuses_by_name():
    draws = samplers.sample(RESCALED, quartic, **RUN)
    normal, network = torch.distributions.Normal(torch.zeros(3), 1.0), torch.nn.Linear(2, 1)
    refused = {
        "accuracy": draws.accuracy,
        "ArviZ": draws.to_arviz,
        "evidence": lambda: samplers.evidence(rescaled(), quartic, reference=normal),
        "tune": lambda: samplers.tune(rescaled(), quartic, init=torch.zeros(3)),
        "training loop": lambda: samplers.Optimizer(network.parameters(), rescaled(), lr=0.1, num_data=10),
    }
    for words, call in refused.items():
        with pytest.raises(RecipeError, match=words) as refusal:
            call()
        assert "weight" in str(refusal.value)
    with pytest.warns(RuntimeWarning, match=r"by draws\.weights\[:, ::2\]"):
        draws.predict(lambda x, rows: rows * x.sum(), torch.ones(5), thin=2)


def test_predictions_are_averaged_by_weights():
    draws = spread()
    predictions = draws["theta"][..., None, :1]
    moments = samplers.PredictiveMoments()
    moments.add(predictions, weight=draws.weights)
    assert float(moments.mean) == pytest.approx(draws.summary()["mean"].iloc[0], abs=1e-12)
    assert float(moments.variance) == pytest.approx(1, abs=0.06)
