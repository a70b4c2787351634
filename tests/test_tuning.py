"""`samplers.tune`: from an energy alone to settings whose exact draws are right; what it cannot know it refuses."""

import math
import os
import re
import signal
from dataclasses import replace
from functools import cache

import pytest
import torch
from covering import covering, slow
from error_budget import CLAIMS, standard_score
from sympy import exp, symbols
from torch.distributions import HalfNormal, Normal

import samplers
from recipe import Energy, Recipe, RecipeError, copies, kick, positive, potential, total, vector
from samplers import HMC, SGLD, Metropolis, PreconditionedSGLD, Start, UnderdampedLangevin, sample, tune
from samplers.results import bar
from samplers.results.statistics import sample_size_of_mean
from samplers.running.schedules import Jittered
from samplers.target import tape
from samplers.target.targets import TARGETS
from samplers.tuning import gradient_noise, pilot

F64 = torch.float64
SCALES = torch.logspace(0, 2, 6, dtype=F64)  # curvatures from 1 to 1e4
x, y = symbols("x y", real=True)
FUNNEL = Energy((x, y), U=x**2 / 2 + x / 2 + exp(-x) * y**2 / 2)  # x ~ N(0, 1), y ~ N(0, e^x)


def gaussian(theta):
    return ((theta / SCALES) ** 2).sum() / 2


# Energy, one chain's start, and statistics of theta with their means, by integration.
CASES = {
    "a condition of 1e4": (
        gaussian,
        SCALES.clone(),
        {
            **{f"theta[{i}]": (lambda t, i=i: t[..., i] / SCALES[i], 0.0) for i in (0, 5)},
            **{f"theta[{i}]^2": (lambda t, i=i: (t[..., i] / SCALES[i]) ** 2, 1.0) for i in (0, 5)},
        },
    ),
    "banana": (
        TARGETS["banana"],
        torch.ones(2, dtype=F64),
        {
            "x": (lambda t: t[..., 0], 0.0),
            "x^2": (lambda t: t[..., 0] ** 2, 1.0),
            "y": (lambda t: t[..., 1], 1.0),
            "(y - x^2)^2": (lambda t: (t[..., 1] - t[..., 0] ** 2) ** 2, 0.1),
        },
    ),
    "funnel": (
        FUNNEL,
        torch.zeros(2, dtype=F64),
        {
            "x": (lambda t: t[..., 0], 0.0),
            "x^2": (lambda t: t[..., 0] ** 2, 1.0),
            "y": (lambda t: t[..., 1], 0.0),
            "y^2 e^-x": (lambda t: t[..., 1] ** 2 * (-t[..., 0]).exp(), 1.0),
            "y^2, to 20": (lambda t: (t[..., 1] ** 2).clamp(max=20), None),
        },
    ),
}


def truncated_square(most):
    """E min(y^2, most) of the funnel, by a sum over x."""
    grid = torch.linspace(-9, 9, 4001, dtype=F64)
    sd = (grid / 2).exp()
    c = math.sqrt(most) / sd
    inside = torch.erf(c / math.sqrt(2))
    square = inside - 2 * c * (-(c**2) / 2).exp() / math.sqrt(2 * math.pi)
    weights = torch.softmax(-(grid**2) / 2, 0)
    return float((weights * (sd**2 * square + most * (1 - inside))).sum())


RUNS = [
    ("a condition of 1e4", PreconditionedSGLD, {}),
    slow(("banana", UnderdampedLangevin, {"metropolis": Metropolis(repeat=4)})),
    *(slow((name, recipe, {})) for name in CASES for recipe in (UnderdampedLangevin, HMC)),
]


@pytest.mark.filterwarnings("ignore:.*have accepted none", "ignore:.*have not met")
@pytest.mark.parametrize("name, recipe, given", RUNS)
def test_tuned_exact_chains_have_the_moments_of_the_target(name, recipe, given):
    """No number is given by hand. Chains are the replicates; they begin where those of the pilot ended."""
    energy, init, statistics = CASES[name]
    settings = tune(recipe, energy, init=init, chains=200, seed=1, **given)
    draws = sample(recipe, energy, warmup=100, steps=150, seed=2, progress=False, **settings.arguments)["theta"]
    scores = {}
    for what, (function, mean) in statistics.items():
        mean = truncated_square(20) if mean is None else mean
        scores[what] = standard_score(function(draws).mean(1) - mean)
    assert CLAIMS["tuned"].failures(scores) == {}
    assert all(abs(score) < 4 for score in scores.values()), scores


def tuned(progress=False):
    return tune(SGLD, TARGETS["double-well"], init=torch.ones(1, dtype=F64), seed=7, progress=progress)


once = cache(tuned)


def test_the_same_arguments_give_the_same_settings_and_an_account_of_them(capsys):
    """A bar shows what is spent; where chains have met no longer window follows, which would cost 28,864 gradients."""
    first = once()
    assert not capsys.readouterr().err
    second = tuned(progress=True)
    shown = capsys.readouterr().err
    spent = int(re.findall(r"sgld, tune: .* (\d+)/200000 .* trials: effective draws a gradient", shown)[-1])
    assert 0.9 < spent / second.reasons["gradients"] <= 1 and second.reasons["gradients"] < 25_000
    assert first.arguments["step_size"] == second.arguments["step_size"]
    assert torch.equal(first.arguments["init"].point["theta"], second.arguments["init"].point["theta"])
    assert first.arguments["init"].point["theta"].shape == (4, 1) and first.arguments["metropolis"].repeat == 1
    assert str(first) == str(second)
    for word in ("57 % are asked", "no parameter that is a unit", "pilot runs of 32 chains"):
        assert word in str(first)


def test_what_is_given_stays_and_chains_of_named_tensors_start_apart(brief):
    def energy(theta, batch):
        return ((batch - theta["w"]) ** 2).sum() / 2 + (theta["c"] ** 2).sum() / 2

    data = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64)
    init = {"w": torch.zeros(2, dtype=F64), "c": torch.ones(1, dtype=F64)}
    settings = tune(
        UnderdampedLangevin, energy, data=data, init=init, gamma=0.7, metropolis=Metropolis(repeat=1), temperature=2.0
    )
    arguments = settings.arguments
    assert arguments["gamma"] == 0.7 and arguments["metropolis"].repeat == 1 and "gamma" not in settings.reasons
    starts = arguments["init"].point
    assert starts["w"].shape == (4, 2) and starts["c"].shape == (4, 1) and len(starts["w"].unique(dim=0)) == 4
    away = (starts["w"] - torch.tensor([2.0, 3.0], dtype=F64)).abs()
    assert (away < 6.5).all()  # standard deviations
    # one over the variance at T = 1, of curvatures 2, 2 and 1
    assert torch.allclose(arguments["m"], torch.tensor([2.0, 2.0, 1.0], dtype=F64), rtol=0.4)
    draws = sample(UnderdampedLangevin, energy, steps=5, progress=False, **arguments)
    assert draws["w"].shape == (4, 5, 2)


TARGET = torch.tensor([1.0, 0.0])
ROWS = torch.tensor([[1.0, 1.0], [1.0, -2.0]])


def separated(theta):
    """Logistic regression without a prior, of classes that a plane separates."""
    logits = ROWS @ theta
    return torch.nn.functional.softplus(logits).sum() - logits @ TARGET


ZERO = torch.zeros(2)
REFUSED = {
    "a slope": (dict(energy=lambda t: t.sum(), init=ZERO), ["tune", "no finite mode", "prior"]),
    "a hilltop": (dict(energy=lambda t: -(t**2).sum(), init=ZERO + 1), ["no finite mode"]),
    "a plane": (dict(energy=lambda t: 0 * t.sum(), init=ZERO), ["no finite mode", "does not rise"]),
    "separable classes": (dict(energy=separated, init=ZERO), ["no finite mode", "does not rise"]),
    "a valley": (dict(energy=lambda t: (t[0] - t[1]) ** 2, init=ZERO), ["no finite mode", "does not rise"]),
    "no energy": (dict(energy=None, init=ZERO), ["U is opaque"]),
    "no parameter": (dict(energy=gaussian, init=SCALES, friction=1.0), ["'friction' is not a parameter"]),
    "a step size": (dict(energy=gaussian, init=SCALES, step_size=1.0), ["'step_size' is not a parameter"]),
    "T of 0": (dict(energy=gaussian, init=SCALES, temperature=0.0), ["temperature", "> 0"]),
    "no chains": (dict(energy=gaussian, init=SCALES, chains=0), ["chains"]),
    "ends": (dict(recipe=samplers.SGRLDCIR, energy=None, init=ZERO + 1), ["has ends"]),
    "adaptations": (dict(recipe=samplers.PSGLD, energy=gaussian, init=SCALES), ["psgld", "adapt"]),
}


@pytest.mark.parametrize("case", covering(REFUSED, {*REFUSED} - {"a plane", "separable classes", "a hilltop"}))
def test_what_it_cannot_know_is_refused(case, brief):
    arguments, words = REFUSED[case]
    with pytest.raises(RecipeError) as refusal:
        tune(**{"recipe": UnderdampedLangevin} | arguments)
    for word in words:
        assert word in str(refusal.value)


# ---- without a mode

SEEN, NOISE = torch.linspace(-1.5, 1.5, 12, dtype=F64), 0.5


def hierarchical():
    """Levels of 12 groups, centred, whose scale has a half-normal prior: U is unbounded where the scale goes to 0."""
    zero, two = torch.tensor([0.0, 2.0], dtype=F64)
    priors = {
        "mu": Normal(zero, two),
        "scale": HalfNormal(two),
        "level": lambda v: Normal(v["mu"].expand(12), v["scale"]),
    }
    return samplers.model(priors, lambda v: Normal(v["level"], NOISE).log_prob(SEEN))


def moments_of_scale():
    """The means of the scale and of its square, by sums over a grid; levels and mu are integrated out by hand."""
    grid = torch.linspace(1e-4, 8, 40_000, dtype=F64)
    spread = grid.square() + NOISE**2  # of what is seen, about mu
    logs = -(grid.square() / 4 + SEEN.square().sum() / spread + 12 * spread.log() + (12 / spread + 1 / 4).log()) / 2
    weights = torch.softmax(logs, 0)  # the seen numbers sum up to 0
    return float((weights * grid).sum()), float((weights * grid.square()).sum())


def test_a_hierarchical_model_without_a_mode_is_tuned_and_its_exact_draws_are_right():
    energy = hierarchical()
    settings = tune(HMC, energy, chains=64, seed=1, budget=80_000)
    assert settings.reasons["r_hat"] < 1.5 and 2e4 < settings.reasons["gradients"] < 1.2e5
    scale = sample(HMC, energy, warmup=20, steps=100, seed=2, progress=False, **settings.arguments)["scale"]
    first, second = moments_of_scale()
    scores = {"scale": scale.mean(1) - first, "scale^2": scale.square().mean(1) - second}
    scores = {name: standard_score(of_chain) for name, of_chain in scores.items()}
    assert CLAIMS["tuned"].failures(scores) == {}
    assert all(abs(score) < 4 for score in scores.values()), scores


def test_chains_that_do_not_meet_are_said_with_numbers(brief):
    """Two modes, 100 standard deviations from each other: draws of the prior are in both, and no chain crosses."""
    wide = Normal(*torch.tensor([0.0, 50.0], dtype=F64))
    energy = samplers.model({"x": wide}, lambda v: torch.logaddexp(-((v["x"] - 50) ** 2), -((v["x"] + 50) ** 2)) / 2)
    numbers = (
        r"32 pilot chains have not met after \d+ gradients, their R-hat is [\d.]+, their scales are in a ratio of 1,"
    )
    with pytest.warns(RuntimeWarning, match=numbers):
        settings = tune(HMC, energy, budget=20_000)
    assert settings.reasons["r_hat"] > 1.5 and 20_000 <= settings.reasons["gradients"] < 40_000


def two_modes():
    """Modes of two sites, between which no chain crosses."""

    def modes(v):
        return torch.logaddexp(*(-(v["x"] - m).square().sum() / 2 for m in (50, -50)))

    return samplers.model({"x": Normal(torch.zeros(2, dtype=F64), 50.0)}, modes)


@pytest.mark.slow
def test_the_budget_ends_dense_coordinates_too(brief):
    """Chains meet in no window of dense coordinates, of which there are three without a budget."""
    with pytest.warns(RuntimeWarning, match="have not met"):
        spent = tune(HMC, two_modes(), budget=55_000).reasons["gradients"]
    assert 55_000 <= spent < 90_000  # 103,744 where dense coordinates have all of their windows


def test_progress_that_is_no_bool_is_refused():
    with pytest.raises(RecipeError, match="mala, tune: progress is True or False, got 'yes'. Pass progress=False"):
        tune("mala", TARGETS["double-well"], init=torch.ones(1), progress="yes")


def test_seconds_end_tuning(brief):
    with pytest.warns(RuntimeWarning, match="have not met"):
        late = tune(HMC, two_modes(), seconds=1e-3).reasons
    assert late["gradients"] < 55_000 / 2 and late["seconds"] > 0


def test_a_chain_whose_start_has_no_energy_starts_where_another_one_does(brief):
    def walled(theta):
        return torch.where(theta > 3, torch.inf, theta**2 / 2).sum()

    init = torch.tensor([[9.0], [0.5], [1.0], [-1.0]], dtype=F64)
    draws = sample(SGLD, walled, init=init, step_size="auto", metropolis=True, steps=50, progress=False)
    assert (draws["theta"] < 3).all() and len(draws["theta"][:, -1].unique()) == 4
    with pytest.raises(RecipeError, match="not finite at the start of each of 4 chains"):
        tune(SGLD, walled, init=init[0])


# ---- several potentials

theta, p = vector("theta"), vector("p")
gamma, m = positive("gamma", default=1.0), positive("m", default=1.0, per=theta)
RESPA = Recipe(
    name="respa",
    state=(theta, p),
    H=potential(theta, name="fast") + potential(theta, name="slow") + total(p**2 / m) / 2,
    D={p: gamma * m},
    Q={(theta, p): -1},
    pieces={"F": kick("fast"), "S": kick("slow")},
    scheme="S (F A O A F)*2 S",
)
STIFF = torch.tensor([39.0, 3.0], dtype=F64)
PARTS = {"fast": Energy((x, y), U=(39 * x**2 + 3 * y**2) / 2), "slow": Energy((x, y), U=(x**2 + y**2) / 2)}


def test_of_several_potentials_it_is_their_sum_that_is_tuned(brief):
    """Where both kick together, the settings are those of the one energy."""
    parts = {"fast": lambda t: (t**4).sum() / 4, "slow": lambda t: 3 * (t**2).sum() / 2}
    how = dict(init=torch.ones(1, dtype=F64), seed=1, scheme="B A O A B", metropolis=Metropolis(repeat=2))
    together = tune(UnderdampedLangevin, lambda t: parts["fast"](t) + parts["slow"](t), **how)
    apart = tune(replace(RESPA, pieces={}, scheme="B A O A B"), parts, **how)
    h = [s.arguments["step_size"].step_size for s in (apart, together)]
    assert h[0] == pytest.approx(h[1], rel=1e-9)
    for name in ("m", "gamma"):
        assert torch.allclose(*(torch.as_tensor(s.arguments[name], dtype=F64) for s in (apart, together)), rtol=1e-9)


@pytest.mark.slow
def test_multiple_time_steps_are_tuned_and_their_exact_draws_are_right(brief):
    arguments = tune(
        RESPA, PARTS, init=torch.ones(2, dtype=F64), chains=200, seed=1, metropolis=Metropolis(repeat=1)
    ).arguments
    assert "coordinates" not in arguments and torch.allclose(arguments["m"], STIFF + 1, rtol=0.4)
    draws = sample(RESPA, PARTS, warmup=30, steps=150, seed=2, progress=False, **arguments)["theta"]
    squares = {f"theta[{i}]^2": standard_score(((STIFF[i] + 1) * draws[..., i] ** 2 - 1).mean(1)) for i in range(2)}
    assert CLAIMS["tuned"].failures(squares) == {}


X, Y = vector("x"), vector("y")
ON_BATCH = {"fast": gaussian, "slow": lambda t, batch: (t**2).sum() * batch.mean()}


@pytest.mark.parametrize(
    "recipe, how, message",
    [
        (RESPA, dict(energy=gaussian), "the potentials fast, slow, and the energy is function. Pass a dict by name"),
        (RESPA, dict(energy={"fast": gaussian}), "that of the potential 'slow' is missing"),
        (
            RESPA,
            dict(energy=ON_BATCH, data=torch.ones(9, dtype=F64), batch_size=3, metropolis=False),
            "what the noise of minibatches does is not known",
        ),
        (
            Recipe(name="copies", state=(X, Y), target=(X, Y), H=sum(copies(X, Y)), D={X: 1, Y: 1}),
            dict(energy=gaussian, init={"x": torch.ones(2), "y": torch.ones(2)}),
            "the target is the blocks x, y, whose scales and modes are apart. Give the step size",
        ),
    ],
    ids=["one energy", "one is missing", "minibatches", "copies"],
)
def test_what_it_cannot_know_of_several_is_refused(recipe, how, message):
    with pytest.raises(RecipeError, match=message):
        tune(recipe, **{"init": torch.ones(2, dtype=F64)} | how)


# ---- step_size="auto"


def run(**how):
    how = {"init": torch.ones(1, dtype=F64), "steps": 300, "seed": 7, "progress": False} | how
    return sample(how.pop("recipe", SGLD), how.pop("energy", TARGETS["double-well"]), step_size="auto", **how)


def test_a_run_that_tunes_itself_is_that_of_tune_and_says_so_and_goes_on_from_a_checkpoint(
    tmp_path, monkeypatch, capsys
):
    settings = once()
    whole = sample(SGLD, TARGETS["double-well"], steps=300, seed=7, progress=False, **settings.arguments)
    assert whole.info["tuned"] == settings.reasons
    changed = settings.arguments | {"step_size": 0.1}
    assert "tuned" not in sample(SGLD, TARGETS["double-well"], steps=300, progress=False, **changed).info
    monkeypatch.setattr(bar, "EVERY", 0.0)  # seconds between two looks

    def interrupt(scalars):
        monkeypatch.setattr(bar, "EVERY", 1e9)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(RuntimeWarning, match="stopped after"):
        half = run(metropolis=True, checkpoint=tmp_path / "run", progress=interrupt)
    assert 0 < half.draws < 300
    draws = run(metropolis=True, checkpoint=tmp_path / "run", progress=True)
    assert torch.equal(draws["theta"], whole["theta"])
    assert draws.info["tuned"] == settings.reasons and draws.info["step_size"] == settings.arguments["step_size"]
    assert str(settings) in capsys.readouterr().err
    chains, r_hat = (settings.reasons[name] for name in ("chains", "r_hat"))
    assert f"{chains} of the pilot: a run has its own number" in str(settings)
    assert f"{r_hat} in the last long window of the pilot, asked to come below 1.2; above 1.5 there" in str(settings)


@pytest.mark.parametrize("at", [1, 100, slow(300)])
def test_ctrl_c_ends_tuning_and_no_settings_are_made_of_a_part_of_a_pilot(at, monkeypatch):
    """At the mode's search, in the first pilot run, in a later one, whose U is called and not played from a tape."""
    monkeypatch.setattr(tape, "CALLS", 10**9)
    calls = []

    def energy(theta):
        calls.append(0)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return (theta**2).sum() / 2

    with pytest.raises(KeyboardInterrupt):
        tune(SGLD, energy, init=torch.ones(1, dtype=F64), seed=3)
    assert len(calls) <= at + 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


NOT_AUTOMATIC = {
    "a schedule": (dict(observe={"V": lambda theta: theta}), "observe="),
    "phases": (dict(phases=[samplers.Phase(10)], steps=1000), "phases="),
    "temperatures": (dict(temperature=[1, 2]), "temperature="),
    "a temperature that changes": (dict(temperature=lambda k: 1.0), "temperature="),
    "frozen blocks": (dict(recipe=UnderdampedLangevin, phases=[samplers.Phase(9, freeze="p")], steps=1000), "phases="),
    "no mode": (dict(energy=lambda t: t.sum()), "no finite mode"),
}


@pytest.mark.parametrize("case", NOT_AUTOMATIC)
def test_runs_that_cannot_tune_themselves_are_refused(case, brief):
    how, words = NOT_AUTOMATIC[case]
    with pytest.raises(RecipeError, match=words):
        run(metropolis=True, **how)


def test_a_word_for_the_step_size_is_refused():
    with pytest.raises(RecipeError, match="positive number or 'auto', got 'automatic'"):
        sample(SGLD, gaussian, init=SCALES, step_size="automatic")


# ---- plain chains, and minibatches


@pytest.mark.parametrize("recipe", [PreconditionedSGLD, slow(UnderdampedLangevin)])
def test_the_variances_of_plain_chains_are_off_by_no_more_than_is_stated(recipe):
    """Of unit Gaussians, at a stated 10 %: Euler steps are off by that; BAOAB only in the momenta."""
    bowl = Energy(theta, U=total(theta**2) / 2)
    settings = tune(recipe, bowl, init=torch.zeros(3, dtype=F64), bias=0.1, metropolis=False)
    h = settings.arguments["step_size"]
    known = h / 2 if recipe is PreconditionedSGLD else h**2 / 4  # of a variance of theta, or of p
    assert 0.05 < known < 0.2
    assert settings.arguments.get("metropolis", False) is False and "variances off by 10 %" in str(settings)


def regression(rows=400):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(rows, 2, generator=generator, dtype=F64)
    y = X @ torch.tensor([1.0, -1.0], dtype=F64) + torch.randn(rows, generator=generator, dtype=F64)

    def loss(theta, batch):
        X, y = batch
        return (y - X @ theta) ** 2 / 2

    return samplers.posterior(loss, lambda theta: (theta**2).sum() / 2, num_data=rows), (X, y)


def test_the_budget_of_minibatches_is_the_variance_of_their_gradient(brief, monkeypatch):
    monkeypatch.setattr(gradient_noise, "BATCHES", 300)  # the relative sd of V is 0.02
    energy, (X, y) = regression()
    how = dict(data=(X, y), batch_size=20, init=torch.zeros(2, dtype=F64), metropolis=False)
    exact = torch.linalg.solve(X.T @ X + torch.eye(2, dtype=F64), X.T @ y)
    scores = (X @ exact - y)[:, None] * X
    V = len(X) ** 2 / 20 * scores.var(0)
    known = tune(PreconditionedSGLD, energy, **how)
    assert torch.allclose(known.arguments["V"], V, rtol=0.1)
    # h G^2 V/2 is at most half of G
    assert (known.arguments["step_size"] * known.arguments["G"] * known.arguments["V"]).max() < 1.001
    assert known.arguments["batch_size"] == 20 and "minibatch gradients" in str(known)
    draws = sample(PreconditionedSGLD, energy, steps=20, progress=False, **known.arguments)
    assert draws.info["batch_size"] == 20


@pytest.mark.slow
def test_a_budget_that_is_given_stays_and_without_one_the_noise_is_kept_small():
    energy, (X, y) = regression()
    how = dict(data=(X, y), batch_size=20, init=torch.zeros(2, dtype=F64), metropolis=False)
    mine = tune(PreconditionedSGLD, energy, V=1.0, **how)
    assert mine.arguments["V"] == 1.0 and "V" not in mine.reasons
    V = len(X) ** 2 / 20 * ((X @ torch.linalg.lstsq(X, y).solution - y)[:, None] * X).var(0)
    plain = tune(SGLD, energy, **how)  # has no budget: 2 % of the noise is the minibatches'
    assert plain.arguments["step_size"] * V.max() / 2 == pytest.approx(0.02, rel=0.1)


def test_minibatches_whose_noise_is_not_understood_are_refused():
    energy, data = regression()
    how = dict(data=data, batch_size=20, init=torch.zeros(2, dtype=F64))
    with pytest.raises(RecipeError, match="minibatch has an estimate alone"):
        tune(SGLD, energy, **how)
    with pytest.raises(RecipeError, match="noise of minibatches does is not known"):
        tune(HMC, energy, metropolis=False, **how)
    with pytest.raises(RecipeError, match="metropolis is True or False"):
        tune(SGLD, energy, data=data, init=torch.zeros(2), metropolis=1)


def test_proposals_of_a_given_length_are_no_resonance(brief):
    """A correlated plane with the frequency 1 in its dense coordinates: the squares come back after a time of pi."""
    plane = Energy((x, y), U=(x + y) ** 2 / 7.6 + (x - y) ** 2 / 0.4)
    settings = tune(HMC, plane, init=torch.zeros(2, dtype=F64), metropolis=Metropolis(repeat=4))
    h = settings.arguments["step_size"].step_size  # the mean of those that vary
    assert "coordinates" in settings.arguments and 1.1 < 4 * h < 2.2
    assert "a quarter period of the slowest direction" in settings.reasons["step_size"]
    assert settings.reasons["repeat"].startswith(f"4: words of h are a proposal, {4 * h:.3g} of time")


def test_step_sizes_vary_so_that_no_direction_comes_back_with_every_proposal():
    """Proposals of a quarter period of one direction are a period of a direction of a quarter of its sd."""
    scales = torch.tensor([1.0, 0.25], dtype=F64)
    h = math.pi / 32
    sizes = {}
    for step_size in (h, pilot.jittered(h, repeat=16)):
        draws = sample(
            HMC,
            lambda theta: (theta / scales).square().sum() / 2,
            init=torch.zeros(2, dtype=F64),
            chains=16,
            steps=60,
            step_size=step_size,
            metropolis=Metropolis(repeat=16),
            progress=False,
        )
        sizes[step_size] = float(sample_size_of_mean(draws["theta"])[1])
    assert sizes[Jittered(h)] > 5 * sizes[h]


def test_a_chain_leaves_a_place_that_is_too_steep_for_its_step_size():
    """Beyond 5 the curvature is 401, and a step of 0.2 is unstable; one of a quarter of this is not."""

    def walled(theta):
        return (theta**2 / 2 + 200 * (theta - 5).clamp(min=0) ** 2).sum()

    run = dict(init=torch.full((1,), 6.0, dtype=F64), chains=32, steps=100, metropolis=Metropolis(16), progress=False)
    with pytest.warns(RuntimeWarning, match="32 of 32 chains .* have accepted none"):
        assert (sample(HMC, walled, step_size=0.2, **run)["theta"] == 6).all()
    assert (sample(HMC, walled, step_size=Jittered(0.2), **run)["theta"] < 5).any(1).all()


def test_settings_are_those_of_32_pilot_chains_whatever_a_run_has():
    """More chains start apart, too, those from the state of one pilot chain as well."""
    few, many = (tune(HMC, TARGETS["double-well"], init=torch.ones(1, dtype=F64), chains=n) for n in (4, 70))
    assert few.arguments["step_size"] == many.arguments["step_size"] and few.arguments["m"] == many.arguments["m"]
    start = many.arguments["init"].point["theta"]
    assert start.shape == (70, 1) and len(start.unique()) > 60
    assert abs(torch.corrcoef(torch.stack([start[:32, 0], start[32:64, 0]]))[0, 1]) < 0.85


def test_of_many_starts_some_of_all_parts_are_the_pilots(brief):
    """The first half of the chains is in one well, the second in another: some chains of a run start in each."""
    wells = torch.tensor([-30.0, 30.0], dtype=F64).repeat_interleave(32)[:, None]
    how = dict(init=Start(wells, per_chain=True), chains=64, metropolis=Metropolis(repeat=4))
    with pytest.warns(RuntimeWarning, match="have not met"):
        settings = tune(HMC, lambda theta: (theta.abs() - 30).square().sum() / 2, **how)
    assert 16 < (settings.arguments["init"].point["theta"] > 0).sum() < 48  # one that is held takes another's state


def test_a_pilot_chain_that_never_moves_goes_on_from_the_state_of_one_that_does():
    """A steep wall holds chain 0, as the tail of a banana does; where it holds most chains, the step is too long."""

    def walled(theta):
        return (theta**2 * torch.where(theta > 5, 1e4, 0.5)).sum()

    start = torch.tensor([[9.0], [0.5], [1.0], [-1.0]], dtype=torch.float64)
    chains = pilot.Pilot(samplers.MALA, walled, {"temperature": 1.0}, 3, start)
    chains.run([0.5], 20)
    assert chains.theta[0].abs() < 5 and chains.theta[0] == chains.theta[1]
    held = pilot.Pilot(samplers.MALA, walled, {"temperature": 1.0}, 3, start[[0, 0, 0, 1]])
    held.run([0.5], 20)
    assert (held.theta[:3] == 9).all()


@pytest.mark.parametrize("scale", [1e-8, 1e6])
def test_a_step_size_is_found_in_any_units(scale):
    start = torch.zeros(2, dtype=F64)
    settings = tune("sgld", lambda z: ((z / scale) ** 2).sum() / 2, init=start, chains=16, progress=False)
    assert 0.6 < settings.arguments["step_size"] / scale**2 < 2.4
