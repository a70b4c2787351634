"""What a report finds in good runs, nothing but for its rate of false alarms, where it is shown, and its bands.

out of band                                  report()     report(evaluations=0), as in repr
good: 8 samplers, gaussian, 25 seeds each    0 of 200     0 of 200
good: the same, banana                       1 of 200     2 of 200 (of both, one has lost a chain)
"""

import json
import math

import pytest
import torch
from covering import slow

import samplers
from recipe import Energy, total, vector
from recipe.errors import RecipeError
from samplers import GHMC, HMC, MALA, MSGNHT, SGHMC, SGLD, SGNHT, Draws, UnderdampedLangevin
from samplers.results.averages import Average, agreements_of, average_of
from samplers.results.findings import Finding, Report, banded
from samplers.running.repeated import PairedRun
from samplers.target.targets import TARGETS

GAUSSIAN = TARGETS["gaussian"]
BANANA = TARGETS["banana"]
BOWL = Energy(vector("theta"), U=total(vector("theta") ** 2) / 2)
AT_MODE = {"x": torch.tensor(0.0), "y": torch.tensor(0.0)}
MANY = torch.randn(50_000, generator=torch.Generator().manual_seed(1)) + 1

pytestmark = pytest.mark.filterwarnings("ignore:.*chains are lost", "ignore:.*have accepted none")


def sampled(recipe, energy, **arguments):
    return samplers.sample(recipe, energy, **{"progress": False, "init": torch.zeros(2)} | arguments)


# ---- good runs

ON_GAUSSIAN = {"steps": 40_000, "warmup": 1000, "thin": 8}
ON_BANANA = {"init": AT_MODE, "steps": 300_000, "warmup": 5000, "thin": 60}
GOOD = {
    "sgld": (SGLD, {"step_size": 0.05}, {"step_size": 0.004, "steps": 600_000, "thin": 120}),
    "sghmc": (SGHMC, {"step_size": 0.3}, {"step_size": 0.07}),
    "underdamped": (UnderdampedLangevin, {"step_size": 0.3}, {"step_size": 0.07}),
    "sgnht": (SGNHT, {"step_size": 0.3}, {"step_size": 0.07}),
    "msgnht": (MSGNHT, {"step_size": 0.3}, {"step_size": 0.07}),
    "mala": (MALA, {"step_size": 0.5, "metropolis": True}, {"step_size": 0.03, "metropolis": True}),
    "hmc": (HMC, {"step_size": 0.3, "metropolis": samplers.Metropolis(repeat=5)},
            {"step_size": 0.07, "metropolis": samplers.Metropolis(repeat=5)}),
    "ghmc": (GHMC, {"step_size": 0.3, "metropolis": True}, {"step_size": 0.07, "metropolis": True}),
}  # fmt: skip


def good(name, target, seed):
    recipe, on_gaussian, on_banana = GOOD[name]
    if target == "gaussian":
        return sampled(recipe, GAUSSIAN, seed=seed, **ON_GAUSSIAN | on_gaussian)
    return sampled(recipe, BANANA, seed=seed, **ON_BANANA | on_banana)


def alarms(runs):
    wrong = [run.report().wrong for run in runs]
    return [[str(f) for f in of_run] for of_run in wrong if of_run]


# The null is a rate of ALPHA = 0.01 a run, nearly; the chance of more than the allowed number is below 1e-9.


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gaussian", "banana"])
def test_false_alarms_of_many_good_runs_are_rare(target):
    # 200 runs at a rate of 0.01: 18 or more have a probability below 1e-9
    found = alarms(good(name, target, seed) for name in GOOD for seed in range(25))
    assert len(found) < 18, found


def test_chains_that_are_lost_are_the_first_finding():
    draws = sampled(SGLD, lambda x: x.pow(4).sum() / 4, init=torch.tensor([[0.0], [9.0]]), step_size=0.1, chains=2)
    report = draws.report()
    assert report.wrong[0].key == "lost_chains" and report.wrong[0].value == 1
    assert "Change first: lost chains is 1" in repr(draws) and "diverged" in repr(draws)
    every = Draws(dict(draws), info={"diverged": {0: 1, 1: 2}}).report()
    assert every.wrong[0].value == 2 and any("every chain is lost" in reason for reason in every.unasked)


# ---- where it is shown


@pytest.mark.parametrize("sites", [slow(2), 20])
def test_the_line_after_a_run_counts_what_report_asks_beside(sites):
    """Counts that differ for one run: "All 5 pass; 4 left out", then "All 6 pass; 3 left out"."""
    draws = sampled(SGHMC, BOWL, init=torch.zeros(sites), step_size=0.3, steps=4000)
    glance, whole = draws.report(evaluations=0), draws.report()
    later = len(glance.unasked) - len(whole.unasked)
    assert later == 1 + (sites > 16) and f"left out, of which report() asks {later}" in glance.verdict
    assert glance.verdict == draws.info["report"] and "report()" not in whole.verdict


def cure_of_r_hat(w, accepted):
    report = Draws({"w": w}, info={"acceptance": [accepted] * len(w)}).report()
    (cure,) = [f.cure for f in report.wrong if f.question == "R-hat"]
    return cure


def test_chains_that_do_not_meet_while_all_steps_are_accepted_are_to_take_larger_ones():
    walks = torch.randn(16, 400, 1, generator=torch.Generator().manual_seed(0)).cumsum(1)
    assert cure_of_r_hat(walks, 0.9996).startswith('Take a larger step size, or step_size="auto"')
    assert "longer warmup" in cure_of_r_hat(walks, 0.7)


@pytest.mark.parametrize("accepted", [0.7, 0.9996])
def test_chains_that_move_well_in_modes_of_their_own_are_not_told_to_run_longer(accepted):
    """Normal draws, nine standard deviations apart: no longer run brings them together."""
    apart = torch.randn(2, 400, 1, generator=torch.Generator().manual_seed(0)) + torch.tensor([0.0, 9.0])[:, None, None]
    assert cure_of_r_hat(apart, accepted).startswith("Take a Ladder of temperatures, or put components that may change")


def test_its_first_line_is_in_the_account_the_representation_and_a_file(tmp_path):
    draws = sampled(SGHMC, GAUSSIAN, step_size=0.3, steps=4000)
    assert draws.info["report"] in repr(draws) and "4 left out" in draws.info["report"]
    draws.save(tmp_path / "run.safetensors")
    loaded = Draws.load(tmp_path / "run.safetensors")
    assert repr(loaded) == repr(draws)
    report = loaded.report()
    assert {"kinetic_temperature.p", "lost_chains"} < set(report.scalars())
    assert any(reason.startswith("configurational temperature: the run is not at hand") for reason in report.unasked)
    assert loaded.info["report"] == draws.info["report"]  # what the run said stays on record


def test_it_is_one_line_after_the_bar(capsys):
    samplers.sample(SGLD, lambda x: (x**2).sum() / 2, init=torch.zeros(1), steps=60, step_size=1.0)
    assert capsys.readouterr().err.splitlines()[-1].startswith("Change first: sample size of theta[0]")


def test_it_never_says_that_chains_have_converged_and_what_it_did_not_ask():
    report = good("sghmc", "gaussian", 1).report()
    assert report and "converge" not in str(report)
    assert "All 6 diagnostics pass; 3 left out." == report.verdict
    assert str(report).count("left out:") == 3
    wide = Draws({"w": torch.randn(2, 40, 5000)}, info={})
    assert "mixing of 2500 of 5000 coordinates of w" in wide.report().unasked


def test_scalars_are_a_flat_dict_of_floats_and_a_report_is_plain_data():
    report = sampled(SGLD, GAUSSIAN, step_size=0.7, steps=4000, chains=40, thin=4).report()
    scalars = report.scalars()
    assert all(type(x) is float for x in scalars.values()) and scalars["ok"] == 0.0
    assert scalars["configurational_temperature.theta"] > scalars["configurational_temperature.theta.high"]
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["verdict"] == report.verdict and not data["ok"]
    assert [f["question"] for f in data["findings"] if not f["ok"]] == ["configurational temperature"]


def test_momenta_are_averaged_over_the_run_and_not_looked_at_once():
    draws = sampled(SGHMC, BOWL, step_size=0.3, steps=2000, keep=["p"])
    p = draws["p"].double()[:, ::8]
    numbers = draws.info["averages"]["kinetic_temperature"]["p"]
    assert numbers["value"] == pytest.approx(float(p.square().mean()), rel=1e-6)
    assert 0.01 < numbers["error"] < 0.1 and 0 < numbers["kick"] < 0.2
    accepted = sampled("hmc", lambda x: (x**2).sum() / 2, step_size=1.0, steps=100)
    assert accepted.info["averages"]["kinetic_temperature"]["p"]["kick"] == 0  # it leaves N(0, T) as it is
    hot = sampled(SGHMC, BOWL, step_size=0.3, steps=200, temperature=lambda k: 1 + k)
    assert "averages" not in hot.info
    at_three = sampled(SGHMC, GAUSSIAN, step_size=0.1, steps=2000, temperature=3.0)
    (finding,) = [f for f in at_three.report() if f.question == "kinetic temperature"]
    assert finding.low < 3 < finding.high and finding.ok


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 0},
        {"alpha": 1.5},
        {"tolerance": 0},
        {"tolerance": math.nan},
        {"evaluations": -1},
        {"evaluations": 2.5},
    ],
)
def test_settings_that_are_none_are_refused(settings):
    with pytest.raises(RecipeError, match="draws, report"):
        Draws({"theta": torch.randn(2, 40)}, info={}).report(**settings)


def test_a_smaller_alpha_widens_the_bands_and_a_smaller_tolerance_asks_more():
    draws = good("sghmc", "gaussian", 1)
    bands = [{f.key: f.high - f.low for f in draws.report(alpha=alpha)} for alpha in (0.1, 1e-6)]
    assert all(bands[0][key] <= bands[1][key] for key in bands[0])
    assert not draws.report(tolerance=0.001) and draws.report(tolerance=0.05)


# ---- bands


def test_an_answer_of_little_power_is_not_known_and_says_so_first():
    few = torch.randn(2, 40, 1, generator=torch.Generator().manual_seed(2)).cumsum(1)
    (wandering,) = [f for f in Draws({"w": few}, info={}).report() if f.question == "R-hat"]
    assert wandering.value > 1.01 and wandering.ok is None and "not known: chance leaves" in str(wandering)
    assert wandering.high == 1.01 and "more than 1.01 in so few draws" in str(wandering)  # of few chains, too
    momenta = {"p": {"value": 1e9, "error": 1e9, "freedom": 3.0, "expected": 1.0, "kick": 0.0}}
    calm = torch.randn(4, 2000, 1, generator=torch.Generator().manual_seed(0))
    report = Draws({"w": calm}, info={"averages": {"kinetic_temperature": momenta}}).report()
    assert report.ok is None and not report and not report.wrong
    assert (
        report.verdict.startswith("1 of 5 answers not known") and "kinetic temperature of p is 1e+09" in report.verdict
    )


def test_a_finding_says_which_errors_it_may_not_see():
    finding = banded("heat", "", Average(0.0, 0.01, 1e6), 0.0, 0.1, 0.05, "")
    assert finding.power == "; errors below 0.13 may pass"  # 0.1 + (1.96 + 1.28) 0.01


def test_gradients_are_taken_at_five_percent_of_the_run(monkeypatch):
    taken = []
    monkeypatch.setattr(PairedRun, "slopes", lambda self, draws: taken.append(draws["theta"].shape) or "no matter")
    draws = sampled(SGLD, GAUSSIAN, step_size=0.3, steps=4000, chains=2)
    draws.report()
    draws.report(evaluations=32)
    assert [chains * number for chains, number, _ in taken] == [2 * 192, 2 * 32]  # whole sixteens of 200


def test_an_average_has_the_error_of_its_sample_size():
    x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).repeat_interleave(5, 1)
    average = average_of(x)
    assert average.error == pytest.approx(1 / math.sqrt(4000), rel=0.1)
    assert average.half_width(0.01) == pytest.approx(2.58 * average.error, rel=0.02)
    assert average_of(torch.ones(2, 9)).half_width(0.01) == 0


def test_r_hat_is_beyond_its_band_as_often_as_it_is_said():
    # at a rate of 0.02 a statistic, two of them in an R-hat: 0.04 of 500, 20 +- 4.4; a wrong band has 50 or more
    z = torch.randn(4, 500, 500, generator=torch.Generator().manual_seed(0))
    for t in range(1, 500):
        z[:, t] += 0.8 * z[:, t - 1]
    found = [agreement.r_hat > agreement.most(0.02) for agreement in agreements_of(z[:, 50:])]
    assert sum(found) < 50


def test_a_finding_is_a_sentence_and_a_report_of_nothing_vouches_for_nothing():
    assert str(Finding("sample size", "w", 12.0, None, 400, math.inf, "More.")).endswith("is 12, below 400. More.")
    assert "no number" in str(Finding("R-hat", "w", math.nan, None, 0, 1, "More."))
    assert str(Finding("R-hat", "w", 1.01004, None, 0, 1.01, "More.")) == "R-hat of w is 1.01004, above 1.01. More."
    by_chance = Finding("R-hat", "w", 1.0100000001, None, 0, 1.01, "More.", chance=1.1)
    assert by_chance.answer.startswith("1.0100000001, not known: chance leaves more than 1.01 in")
    assert Finding("sample size", "w", 399.96, None, 400, math.inf, "More.").answer == "399.96, below 400"
    report = Report((), ("R-hat: of one chain",))
    assert not report.ok and report.scalars() == {"ok": 0.0}
    assert str(report) == "Nothing was asked: R-hat: of one chain."


# ---- loops


def loop(recipe, *, data=MANY, batch_size=50, steps=1500, noise=None, **settings):
    """A training loop on the mean of data, of 100 weights that each see batches of their own."""
    weights = torch.nn.Parameter(torch.full((100,), float(data.mean())))
    optimizer = samplers.Optimizer([weights], recipe, num_data=len(data), **settings)
    generator = torch.Generator().manual_seed(1)
    spread = float(data.std()) / batch_size**0.5 if noise is None else noise
    for _ in range(steps):
        weights.grad = weights.detach() - data.mean() + spread * torch.randn(100, generator=generator)
        optimizer.step()
    return optimizer


def test_a_good_loop_has_nothing_against_it_and_logs_scalars():
    report = loop(SGHMC, data=MANY - MANY.mean(), lr=0.05, momentum=0.9, noise=0.0, steps=4000).report()
    assert report and len(report.findings) == 5, report
    scalars = report.scalars()
    assert {"heat_of_the_minibatches_over_t.group_0", "kinetic_temperature_over_t.p,group_0"} < set(scalars)
    assert all(type(x) is float for x in scalars.values())


@pytest.mark.parametrize("backend", [slow("torch"), "auto"])
def test_a_loop_that_minibatches_heat_says_so_first(backend):
    report = loop(SGHMC, lr=0.05, momentum=0.9, steps=600, backend=backend).report()
    assert report.wrong[0].question == "heat of the minibatches over T" and len(report.wrong) > 1
    V_g = len(MANY) ** 2 * float(MANY.var()) / 50
    h, C = (0.05 / len(MANY)) ** 0.5, 0.1 * (len(MANY) / 0.05) ** 0.5  # of the words of SGHMC, up to a factor near 1
    assert report.wrong[0].value == pytest.approx(h * V_g / (2 * C), rel=0.3)


def test_a_loop_that_has_not_been_looked_at_says_that():
    short = loop(SGLD, lr=0.05, steps=30).report()
    assert (
        short.verdict.startswith("Nothing was asked: ")
        and not short.findings
        and any("it takes" in reason for reason in short.unasked)
    )
    cold = loop(SGHMC, lr=0.05, momentum=0.9, temperature=0.0, steps=300).report()
    assert not cold.findings
    with pytest.raises(RecipeError, match="report: alpha"):
        loop(SGLD, lr=0.05, steps=1).report(alpha=2)


def test_looks_do_not_change_a_loop():
    one = loop(SGNHT, lr=0.05, momentum=0.9, steps=40)
    one.report()
    two = loop(SGNHT, lr=0.05, momentum=0.9, steps=40)
    assert torch.equal(one.param_groups[0]["params"][0], two.param_groups[0]["params"][0])


def test_a_parameter_without_numbers_has_no_findings():
    init = {"x": torch.zeros(2), "empty": torch.zeros(0)}
    draws = samplers.sample(HMC, lambda v: (v["x"] ** 2).sum() / 2, init=init, steps=50, step_size=0.5, progress=False)
    assert draws["empty"].shape == (4, 50, 0)
    assert "empty" not in str(draws.report())
