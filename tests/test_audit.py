"""The audit of black boxes: right samplers pass, every wrong one is named, and false alarms are as declared."""

import json
import math
import random
import re
import signal
from collections import Counter
from contextlib import nullcontext
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from unittest.mock import Mock

import false_alarms
import numpy as np
import pytest
import torch
from black_boxes import (
    LATER,
    RIGHT,
    by_autograd,
    by_chain,
    exact_draws,
    ghmc,
    gradient,
    heated,
    heavy,
    hidden,
    in_numpy,
    mala,
    preconditioned,
    refreshed,
    reseeded,
    resting,
    splitting,
    thermostat,
    ula,
    unseen,
)
from covering import covering, slow
from scipy import stats
from scipy.integrate import quad

import samplers
from recipe.errors import RecipeError
from samplers import cli
from samplers.cli import lookup
from samplers.testing import audits
from samplers.testing.audits import VERDICTS, audit
from samplers.testing.audits.experiment import Experiment
from samplers.testing.audits.judgement import extrapolated
from samplers.testing.audits.known_laws import LAWS
from samplers.testing.audits.response import Unseen, responses

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = dict(chains=2500, time=4.0, progress=False)  # alpha: 1e-4, and less where the sampler is right
COARSE = dict(step_size=0.2)


FOURTH = [0, 1, 2, 0]
WRONG = {  # black box, settings, verdict, a figure in the findings
    "temperature ignored": (
        ula(noise=lambda h, T: (2 * h) ** 0.5),
        dict(chains=1250),
        "temperature used wrongly",
        "it is ignored",
    ),
    "tau as standard deviation": (
        ula(noise=lambda h, T: (2 * h) ** 0.5 * T),
        dict(chains=1000),
        "temperature used wrongly",
        "used as a standard deviation",
    ),
    "noise sqrt(h)": (ula(noise=lambda h, T: (h * T) ** 0.5), COARSE, "bias does not vanish", -0.5),
    "a temperature 8 % too high": (
        heated(lambda h, t: 0.08),
        dict(chains=10_000, time=1.0),
        "bias does not vanish",
        "% too high as h -> 0",
    ),
    "heavy tails": (heavy, {}, "bias does not vanish", "P("),
    "a law that heats up": (
        heated(lambda h, t: t / 5),
        dict(chains=1000),
        "start not forgotten",
        "the law still changes",
    ),
    "a coordinate that rests": (resting, COARSE, "start not forgotten", "never moves"),
    "noise shared across chains": (
        ula(normals=by_chain(lambda n, draw: draw(1).expand(n, -1))),
        {},
        "noise shared across chains",
        "standard errors apart",
    ),
    "noise in pairs": (
        ula(normals=by_chain(lambda n, draw: draw(n // 2).repeat(2, 1))),
        {},
        "noise shared across chains",
        "1250 apart have the correlation 1.00",
    ),
    "noise in fives": (
        ula(normals=by_chain(lambda n, draw: draw(n // 5).repeat_interleave(5, 0))),
        {},
        "noise shared across chains",
        "1 apart have the correlation",
    ),
    "noise antithetic": (
        ula(normals=by_chain(lambda n, draw: torch.stack([z := draw(n // 2), -z], 1).flatten(0, 1))),
        {},
        "noise shared across chains",
        "1 apart have the correlation -0.5",
    ),
    "noise shared across coordinates": (
        ula(normals=lambda shape, generator: torch.randn(shape[0], 1, generator=generator).expand(shape)),
        dict(chains=1000),
        "noise shared across coordinates",
        "a correlation of at least",
    ),
    "the fourth coordinate has the noise of the first": (
        ula(normals=lambda shape, generator: torch.randn(shape[0], 3, generator=generator)[:, FOURTH[: shape[1]]]),
        dict(chains=1000),
        "bias does not vanish",
        "correlation of theta1 and theta4 (double well",
    ),
    "noise reused": (reseeded, dict(chains=1250), "noise reused", "correlation 1.00 over the second half"),
    "no noise": (ula(noise=lambda h, T: 0.0), {}, "seed ignored", "there is no noise"),
    "seed ignored": (
        lambda *args, seed, **options: ula()(*args, seed=0, **options),
        {},
        "seed ignored",
        "100% of the chains are the same for two seeds",
    ),
    "still": (lambda potential, init, **options: init, {}, "does not move", "100% of the chains"),
    "diverging": (ula(drift=30.0), {}, "diverges", "stay finite for 4 units of time at 0.0125"),
    "diverging everywhere": (ula(drift=-1.0), {}, "diverges", "h/8"),
}


# Samplers that take seconds; or, where they are wrong, one whose mistake is found as that of another is.
SLOW_AND_RIGHT = {
    "ula",
    "baoab",
    "explicit euler sghmc",
    "mala",
    "slow",
    "sgnht",
    "momenta that start cold and forget slowly",
    "obabo, long steps",
    "preconditioned, with Gamma",
    "sghmc",
}
SLOW_AND_WRONG = {
    "thermostat p^2 - 1": (thermostat(target=lambda T: 1.0), LATER, "temperature used wrongly", "it is ignored"),
    "friction times noise": (splitting("BAOAB", 2.0, heat=lambda C, T: C * T), LATER, "bias does not vanish", 1.0),
    "psgld": (preconditioned(0.9), {}, "bias does not vanish", "limit"),
    "noise without the root": (ula(noise=lambda h, T: 2 * h * T**0.5), {}, "bias does not vanish", -1.0),
    "momentum refreshed out of turn": (refreshed(3), dict(step_size=0.25), "bias does not vanish", 0.5),
    "noise sqrt(4h)": (ula(noise=lambda h, T: (4 * h * T) ** 0.5), {}, "bias does not vanish", 1.0),
    "gradient doubled": (ula(drift=2.0), {}, "bias does not vanish", -0.5),
    "Gamma dropped": (preconditioned(0), {}, "bias does not vanish", "limit"),
    "noise a fifth too strong": (ula(noise=lambda h, T: 1.2 * (2 * h * T) ** 0.5), {}, "bias does not vanish", 0.44),
}


def run_of(families, name, **more):
    run, settings, *expected = families[name]
    return audit(run, **SMALL | settings | more), *expected


@pytest.mark.parametrize("name", covering(RIGHT, but=SLOW_AND_RIGHT))
def test_right_samplers_pass_and_the_order_of_their_bias_is_found(name):
    result, verdict, p = run_of(RIGHT, name, alpha=1e-9)
    assert result.ok and result.report.ok, str(result)
    assert verdict in (result.verdict, None), str(result)
    if p:
        said = re.search(r"order h\^(\S+) \(95 %: (\S+) to (\S+)\)", result.findings[0])
        order, low, high = map(float, said.groups())
        margin = 0.2  # roundings of the figures printed
        assert order - 2 * (order - low) - margin <= p <= order + 2 * (high - order) + margin, result.findings  # 4 sd


@pytest.mark.parametrize("name", covering(WRONG | SLOW_AND_WRONG, WRONG))
def test_every_wrong_sampler_is_found_and_named(name):
    result, verdict, figure = run_of(WRONG | SLOW_AND_WRONG, name)
    assert result.verdict == verdict and not result.ok and not result.report.ok, str(result)
    if isinstance(figure, str):
        assert any(figure in text for text in result.findings), result.findings
        return
    limits = [list(map(float, re.search(r"limit (\S+) \+- (\S+)", text).groups())) for text in result.findings]
    assert all(abs(limit - figure) < 5 * error for limit, error in limits), result.findings


@pytest.mark.slow
def test_the_verdict_holds_at_other_temperatures():
    other = SMALL | dict(step_size=0.15, alpha=1e-9, temperatures=(1.0, 0.4), seed=3)
    assert audit(ula(), **other).ok
    assert audit(ula(noise=lambda h, T: (2 * h) ** 0.5), **other).verdict == "temperature used wrongly"


# ---- false alarms


def exceedances(seeds, **options):
    """How many |z| of right samplers are beyond 2, 3 and 4, of how many; the verdicts."""
    audits = [audit(hidden(exact_draws), seed=seed, progress=False, **options) for seed in seeds]
    z = abs(np.concatenate([cell.z for result in audits for cell in result.cells if cell.step_size == 0.1]))
    return [int((z > bound).sum()) for bound in (2, 3, 4)], len(z), Counter(result.verdict for result in audits)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_declared_and_scores_are_standard_normal():
    """300 audits at alpha = .05, of which 15 may fail; |z| > 2: 4.55 % are expected, and 3.5 to 5.5 % allowed."""
    (beyond2, beyond3, beyond4), number, verdicts = exceedances(range(300), chains=800, time=1.0, alpha=0.05)
    assert verdicts["unbiased"] >= 300 - stats.binom.ppf(1 - 1e-6, 300, 0.05), verdicts
    assert 0.035 < beyond2 / number < 0.055 and beyond3 / number < 0.006 and beyond4 < 1e-3 * number


@pytest.mark.slow
def test_right_samplers_of_all_kinds_raise_no_alarm():
    """A cheap part of `false_alarms.py`: at alpha = 1e-4 none of these may fail."""
    assert not [row for row in false_alarms.audited(seeds=1, chains=1500) if row.ok is False]


# ---- power


@pytest.mark.slow
@pytest.mark.parametrize("at", ["h", "the limit"])
def test_effects_are_seen_nine_times_in_ten_as_stated(at):
    """Of 30 audits 27 are expected to see it, and at least 18 must: the binomial probability of fewer is 2e-6."""
    options = dict(chains=1000, step_size=0.2, time=1.0, progress=False)
    figures = re.findall(r"(\S+)% off", audit(hidden(exact_draws), **options).findings[-1])
    effect = float(figures[at == "the limit"]) / 100
    run = hidden(heated(lambda h, t: effect * (at == "the limit" or h > 0.15)))
    seen = [audit(run, seed=seed, **options).verdict for seed in range(30)]
    if at == "h":
        assert seen.count("unbiased") <= 12 and "bias does not vanish" not in seen
    else:
        assert seen.count("bias does not vanish") + seen.count("temperature used wrongly") >= 18


def with_errors(word=None, noise=0.0, drift=0.0):
    """Unadjusted Langevin, or a splitting, with noise of a variance and with forces that are too large by shares."""
    if word == "numpy":
        return in_numpy(noise)
    if word:
        return splitting(word, heat=lambda friction, T: (1 + noise) * T, drift=1 + drift)
    return ula(drift=1 + drift, noise=lambda h, T: (2 * h * T * (1 + noise)) ** 0.5)


@pytest.mark.parametrize(
    "word, error",
    [
        (None, dict(noise=0.01)),
        slow((None, dict(noise=-0.01))),
        slow((None, dict(drift=0.01))),
        *map(slow, product(["BAOAB"], [dict(noise=0.01), dict(noise=-0.01), dict(drift=0.01)])),
        ("numpy", dict(noise=0.01)),
    ],
)
def test_an_error_of_one_percent_is_found_and_measured(word, error):
    steps = dict(step_size=0.2) if word == "BAOAB" else {}
    result = audit(with_errors(word, **error), **SMALL | dict(chains=400) | steps)
    (share,) = [*error.values()]
    excess = share if "noise" in error else 1 / (1 + share) - 1
    assert result.verdict == "bias does not vanish" and not result.report.ok
    said = re.search(r"is (\S+) % \+- \S+ % too (high|low)", result.findings[-1])
    assert float(said[1]) == pytest.approx(100 * abs(excess), abs=0.03) and (said[2] == "high") == (excess > 0)


@pytest.mark.slow
def test_noise_that_is_not_followed_is_judged_by_the_limit_of_its_bias():
    """Unadjusted Langevin with 4 % too much noise of numpy, at the default size; its first-order bias is 13 % at h."""
    run = ula(noise=lambda h, T: (2 * h * T * 1.04) ** 0.5, normals=unseen)
    assert [audit(run, seed=seed, progress=False).verdict for seed in range(2)] == ["bias does not vanish"] * 2


@pytest.mark.slow
def test_a_bias_at_every_step_size_is_not_called_vanishing():
    """8 % too much noise, with the first-order bias of unadjusted Langevin on top."""
    run = ula(noise=lambda h, T: (2 * h * T * 1.08) ** 0.5, normals=unseen)
    assert audit(run, **SMALL).verdict in ("bias, limit unresolved", "bias does not vanish")


@pytest.mark.slow
def test_many_chains_resolve_a_bias_of_hidden_noise():
    assert audit(hidden(heated(lambda h, t: 0.08)), chains=40000, time=1.0).verdict == "bias does not vanish"


# ---- exactness


UNADJUSTED = ula()
EXACT = {
    "mala": (mala(), True),
    "ghmc": (ghmc(), True),
    "exact draws": (exact_draws, True),
    "momenta that are not turned": (ghmc(flips=False), False),
    "accepted too often": (ghmc(shift=0.1), False),
    "accepted a little too often": (ghmc(shift=0.05), False),
    "unadjusted": (UNADJUSTED, False),
    "a first-order splitting": (splitting("OBA"), False),
}


SLOW = {
    "mala",
    "a first-order splitting",
    "accepted a little too often",
    "ghmc",
    "momenta that are not turned",
    "unadjusted",
}  # chains of either verdict are fast


@pytest.mark.parametrize("name", covering(EXACT, but=SLOW))
def test_exactness_is_judged_at_every_step_size(name):
    run, ok = EXACT[name]
    settings = dict(
        chains=6000 if name == "accepted a little too often" else 2500,
        exact=True,
        alpha=1e-9 if ok else 1e-4,
        step_size=0.02 if run is UNADJUSTED else 0.1,
    )
    result = audit(run, **SMALL | settings)
    assert result.ok is ok and result.report.ok is ok, str(result)
    if not ok:
        assert result.verdict == "not exact"
        assert re.search(r"the .* \(.*\) is .* at h = 0\.(4|2|1|0)", result.findings[-1])


# ---- the parts


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("T", [0.5, 1.5])
def test_draws_have_the_moments_of_the_law(law, T):
    y = law.statistics(law.draw(200_000, T, torch.Generator().manual_seed(0)), T)
    assert abs((y.mean(0) - law.exact(T)) / (y.std(0) / len(y) ** 0.5)).max() < 5


def test_separable_moments_are_those_of_scipy():
    def u(x):
        return x**4 / 8 + x**2 / 4 - 2 * x / 5

    def mean(f):
        return quad(lambda x: f(x) * math.exp(-u(x) / 0.5), -8, 8)[0] / quad(lambda x: math.exp(-u(x) / 0.5), -8, 8)[0]

    m = mean(lambda x: x)
    sd = mean(lambda x: (x - m) ** 2) ** 0.5
    within = quad(lambda x: math.exp(-u(x) / 0.5), m - sd, m + sd)[0] / quad(lambda x: math.exp(-u(x) / 0.5), -8, 8)[0]
    assert [float(x[0]) for x in LAWS[1].moments(0.5)[:3]] == pytest.approx([m, sd, within], rel=1e-6)


def test_potentials_serve_vmap_and_single_chains():
    for law in LAWS:
        theta = torch.randn(5, law.dim, generator=torch.Generator().manual_seed(0))
        force = torch.func.vmap(torch.func.grad(law.potential))(theta)
        assert torch.allclose(force, by_autograd(law.potential, theta))
        assert torch.allclose(force, gradient(law.potential, theta), atol=1e-6)


def test_limits_are_exact_to_second_order_and_vanishing_biases_score_nothing():
    h, covariance = np.array([1.0, 0.5, 0.25]), np.eye(3) * 1e-6
    constant = extrapolated("", "", 0.3 + 0.2 * h - 0.1 * h**2, covariance)
    assert constant.limit == pytest.approx(0.3) and constant.left > 50
    hidden_by_first_order = extrapolated("", "", 0.1 + 0.5 * h, covariance)
    assert hidden_by_first_order.limit == pytest.approx(0.1) and hidden_by_first_order.left > 20
    for p in (1, 1.5, 2, 4):
        for c in (-0.3, 0.3):
            assert extrapolated("", "", c * h**p, covariance).left < 1
    assert extrapolated("", "", 0.1 * h / (1 - 0.8 * h), covariance).left == 0  # near the edge of stability


def of_step_sizes(uniform):
    """A right sampler: Langevin with step sizes between h/2 and 3h/2 by `uniform(seed)()`, the same for all chains."""

    def run(potential, init, *, steps, step_size, temperature, seed):
        generator, draw, x = torch.Generator().manual_seed(seed), uniform(seed), init
        for _ in range(steps):
            h = step_size * (0.5 + draw())
            noise = torch.randn(x.shape, generator=generator)
            x = x - h * gradient(potential, x) + (2 * h * temperature) ** 0.5 * noise
        return x

    return run


@pytest.mark.parametrize(
    "uniform, reason",
    [
        (lambda seed: np.random.default_rng(seed).random, "it draws by random of numpy"),
        (lambda seed: partial(np.random.default_rng(seed).choice, [0.2, 0.8]), "it draws by choice of numpy"),
        (lambda seed: np.random.Generator(np.random.PCG64(seed)).random, "the same for every seed"),
        (lambda seed: np.random.RandomState(seed).random_sample, "the same for every seed"),
        (lambda seed: np.random.random_sample, "the same for every seed"),
        (lambda seed: random.Random(seed).random, "the same for every seed"),
        (lambda seed: lambda: torch.rand(()).item(), "it draws by rand of torch"),
    ],
)
def test_the_response_to_noise_is_left_out_where_other_numbers_are_drawn(uniform, reason):
    experiment = Experiment(of_step_sizes(uniform), "", 0.1, 4.0, 400, (0.5, 1.5), 1e-4, 0, None, False, bar=Mock())
    experiment.bar.total = 0
    with pytest.raises(Unseen, match=reason):
        responses(experiment)


def test_an_audit_says_why_the_response_to_noise_is_not_known():
    run = of_step_sizes(lambda seed: np.random.default_rng(seed).random)
    result = audit(run, **SMALL | dict(chains=400, alpha=1e-9))
    assert result.ok and "is not known, since it draws by random of numpy" in result.findings[-1], str(result)


# ---- what may be returned, and what is refused


def test_draws_of_all_steps_and_numpy_are_accepted():
    def all_draws(potential, init, **options):
        last = ula()(potential, init, **options)
        return torch.stack([init, last], 1).numpy()

    few = SMALL | COARSE | dict(chains=500, temperatures=(0.5, 0.4), alpha=1e-9)
    result, plain = (audit(run, **few) for run in (all_draws, ula()))
    assert [c.square for c in result.cells] == [c.square for c in plain.cells]


def test_the_global_generators_are_restored_and_their_use_is_noted():
    def careless(potential, init, *, seed, **options):
        return ula(normals=lambda shape, generator: torch.randn(shape))(potential, init, seed=seed, **options)

    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    small = SMALL | dict(step_size=0.15, chains=500)
    result = audit(careless, **small, alpha=1e-9)
    assert result.ok and result.findings[0].startswith("not reproducible")
    assert torch.equal(before[0], torch.get_rng_state()) and (before[1] == np.random.get_state()[1]).all()
    assert str(result).split("\n")[:-1] == str(audit(careless, **small, alpha=1e-9)).split("\n")[:-1]


def metropolis(potential, init, *, steps, step_size, temperature, seed):
    """A random walk in double precision, accepted by its energy: no gradient."""
    generator, x, sd = torch.Generator().manual_seed(seed), init.double(), (2 * step_size * temperature) ** 0.5
    for _ in range(steps):
        y = x + sd * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        fall = (potential(x) - potential(y)) / temperature
        x = torch.where((torch.rand(len(x), generator=generator).log() < fall)[:, None], y, x)
    return x


@pytest.mark.parametrize("within, around", [(torch.inference_mode, nullcontext), (nullcontext, torch.no_grad)])
def test_code_without_gradients_is_audited(within, around):
    """In inference mode itself, or where an import has turned gradients off."""

    def run(potential, init, **options):
        with within():
            return metropolis(potential, init, **options)

    with around():
        assert audit(run, **SMALL | dict(chains=400), exact=True, alpha=1e-9).ok


def bad(answer):
    return lambda potential, init, *, steps, step_size, temperature, seed: answer(init)


@pytest.mark.parametrize(
    "run, settings, message",
    [
        (3, {}, "is not a function"),
        (lambda potential, init: init, {}, "cannot be called"),
        (lambda potential, init, steps, size, temperature, seed: init, {}, "cannot be called"),
        (bad(lambda init: None), {}, "returned NoneType, not a tensor"),
        (bad(lambda init: init.tolist()), {}, "returned list"),
        (bad(lambda init: init[0]), {}, "returned the shape (3,) for init (2500, 3)"),
        (bad(lambda init: init.T), {}, "returned the shape (3, 2500)"),
        (bad(lambda init: init[:, None].expand(-1, 0, -1)), {}, "the shape (2500, 0, 3)"),
        (bad(lambda init: init.long()), {}, "returned torch.int64"),
        (ula(), dict(step_size=0), "step_size"),
        (ula(), dict(step_size="0.1"), "step_size"),
        (ula(), dict(step_size=float("nan")), "step_size"),
        (ula(), dict(time=0.01), "time"),
        (ula(), dict(chains=10), "chains"),
        (ula(), dict(chains=1e4), "chains"),
        (ula(), dict(seed=-1), "seed"),
        (ula(), dict(seed=None), "seed"),
        (ula(), dict(temperatures=(1.0, 1.0)), "temperatures"),
        (ula(), dict(temperatures=1.0), "temperatures"),
        (ula(), dict(alpha=0.0), "alpha"),
        (ula(), dict(alpha=2), "alpha"),
        (ula(), dict(limit=0), "limit"),
    ],
)
def test_what_is_not_a_sampler_is_refused(run, settings, message):
    with pytest.raises(RecipeError, match=re.escape(message)) as error:
        audit(run, **SMALL | settings)
    assert error.value.do


def test_an_audit_that_runs_out_of_time_says_what_it_has():
    result = audit(ula(), **SMALL, limit=1e-6)
    assert result.verdict == "not finished" and not result.ok and "1 runs of 24 or more" in result.findings[-1]


def test_errors_of_the_black_box_are_its_own():
    with pytest.raises(ZeroDivisionError):
        audit(bad(lambda init: 1 / 0), **SMALL)


def test_ctrl_c_within_a_run_of_samplers_ends_the_audit():
    """By itself samplers.sample returns the draws so far, which would be judged as all."""
    calls = count()

    def by_samplers(potential, init, *, steps, step_size, temperature, seed):
        def pressed(theta):
            if next(calls) == 30:  # after the energy has been looked at
                signal.raise_signal(signal.SIGINT)
            return potential(theta)

        settings = dict(steps=steps, step_size=step_size, temperature=temperature, seed=seed, progress=False)
        return samplers.sample(
            "sgld", pressed, init=samplers.Start(init, per_chain=True), chains=len(init), **settings
        )["theta"]

    with pytest.raises(KeyboardInterrupt):
        audit(by_samplers, **SMALL)


# ---- on the command line


SHORT = ["--chains", "1000", "--time", "4", "--step-size", "0.25", "--alpha", "1e-9"]


def in_json(capsys, file, function, code):
    """The answer of the command about an example, after checks of what every answer has."""
    assert cli.main(["audit", f"{EXAMPLES / file}:{function}", *SHORT, "--json"]) == code
    result = json.loads(capsys.readouterr().out)
    assert (result["name"], result["ok"]) == (function, code == 0)
    assert len(result["cells"]) == 18 and result["report"]["ok"] == result["ok"]
    return result


@pytest.mark.slow
def test_the_wrong_example_is_named(monkeypatch, capsys):
    monkeypatch.setitem(lookup.run_file(str(EXAMPLES / "audited_wrong.py")), "L", 3)  # variance 3/2, for 1000 chains
    assert in_json(capsys, "audited_wrong.py", "refreshed", 1)["verdict"] == "bias does not vanish"


def test_one_audit_of_the_right_example_is_a_table_and_json(monkeypatch, capsys):
    monkeypatch.setattr(audits, "audit", cache(audit))
    assert cli.main(["audit", f"{EXAMPLES / 'audited_right.py'}:langevin", *SHORT]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[0] == "audit of langevin: unbiased"
    assert re.search(r"on the gaussian, T = 0\.5, by its response to noise, \S+% off as h -> 0", text[1]), text[1]
    rows = [line for line in text if line.startswith(("  gaussian", "  quartic", "  double well"))]
    assert len(rows) == 18 and rows[0].split()[:4] == ["gaussian", "3", "0.5", "0.25"]
    assert in_json(capsys, "audited_right.py", "langevin", 0)["verdict"] == "unbiased"
    assert audits.audit.cache_info().misses == 1


def test_the_command_judges_exactness(capsys):
    arguments = [f"{EXAMPLES / 'audited_right.py'}:langevin", "--chains", "1500", "--time", "4", "--step-size", "0.15"]
    assert cli.main(["audit", *arguments, "--exact"]) == 1
    text = capsys.readouterr().out.splitlines()
    assert text[0] == "audit of langevin: not exact"
    assert "% too high at h = 0.6" in text[1] and "temperature" in text[1]


MINE = """
import torch
def broken(potential, init, **options):
    return potential(init, 3)
def short(potential, init):
    return init
number = 3
"""


@pytest.mark.parametrize(
    "name, message",
    [
        ("sghmc", "it is not a function of a Python file. Write FILE.py:FUNCTION"),
        ("nowhere.py:f", "there is no such file"),
        ("mine.py:brokn", "Did you mean 'broken'?"),
        ("mine.py:number", "there is no function of this name"),
        ("mine.py", "it does not define one function, write FILE:NAME"),
        ("mine.py:short", "cannot be called"),
        ("mine.py:broken", "mine.py, line 4: TypeError"),
    ],
)
def test_bad_input_of_the_command(name, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["audit", name]) == 2
    assert message in capsys.readouterr().err


def test_every_verdict_is_met():
    met = {verdict for *_, verdict, _ in [*RIGHT.values(), *WRONG.values()]}
    assert set(VERDICTS) - met == {"bias, limit unresolved", "not exact", "not finished"}  # met above
