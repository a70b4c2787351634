"""Replica exchange: a swap leaves the joint law of two temperatures as it is; runs cross what one chain does not."""

from dataclasses import replace
from functools import cached_property

import pytest
import torch
from error_budget import CLAIMS, Z, beyond, standard_score
from sympy import log

import samplers
from integrators import exchange, measured
from integrators.exchange import Exchange
from recipe import Energy, Recipe, RecipeError, data_total, datum, potential, temperature, total, vector
from samplers import PSGLD, SGLD, SGNHT, RelativisticSGHMC, UnderdampedLangevin
from samplers.target.targets import TARGETS
from samplers.testing.cases import CASES as STOCK

PAIRS, LOW, HIGH = 40_000, 1.0, 2.5
theta, p = vector("theta"), vector("p")
metric = 1 + theta**2

# p ~ N(0, T metric), and at every temperature the marginal is exp(-U/T)
METRIC = Recipe(
    name="metric",
    state=(theta, p),
    H=potential(theta) + total(p**2 / metric + temperature * log(metric)) / 2,
    D={p: 1},
    Q={(theta, p): -1},
)


def drawn(density, size, generator):
    """Draws of a density on the line, float64."""
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    law = density(x).cumsum(0)
    return x[torch.searchsorted(law / law[-1], torch.rand(size, generator=generator, dtype=torch.float64))]


def normal(size, generator):
    return torch.randn(size, generator=generator, dtype=torch.float64)


def U(state):
    return (state["theta"] ** 4 / 4 + state["theta"]).sum(1)


def auxiliary(name, x, T, generator):
    """Blocks beside the target from exp(-H/T) given it."""
    size = (len(x), 1)
    match name:
        case "none":
            return {}
        case "momentum":
            return {"p": (1.7 * T) ** 0.5 * normal(size, generator)}
        case "thermostat":
            return {"p": T**0.5 * normal(size, generator), "xi": 1 + (T / 2) ** 0.5 * normal(len(x), generator)}
        case "relativistic":
            return {"p": drawn(lambda p: torch.exp(-((1 + p**2).sqrt() - 1) / T), size, generator)}
        case "metric":
            return {"p": (T * (1 + x**2)) ** 0.5 * normal(size, generator)}


CASES = {
    "none": (SGLD, {}),
    "momentum": (UnderdampedLangevin, {"m": 1.7, "gamma": 1.0}),
    "thermostat": (SGNHT, {"A": 1.0, "mu": 2.0}),
    "relativistic": (RelativisticSGHMC, {"C": 1.0, "m": 1.0, "c": 1.0, "B": 0.0}),
    "metric": (METRIC, {}),
}


def from_the_law(name, T, seed):
    generator = torch.Generator().manual_seed(seed)
    x = drawn(lambda x: torch.exp(-(x**4 / 4 + x) / T), (PAIRS, 1), generator)
    return {"theta": x} | auxiliary(name, x, T, generator)


def scores(name):
    """How far moments are off after a swap of pairs from the joint law, in standard errors, and the rate of swaps."""
    recipe, parameters = CASES[name]
    low, high = from_the_law(name, LOW, 1), from_the_law(name, HIGH, 2)
    u = torch.rand(PAIRS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    after = Exchange(recipe)(low, high, (LOW, HIGH), U(low), U(high), u, **parameters)
    fresh = from_the_law(name, LOW, 4), from_the_law(name, HIGH, 5)
    result = {}
    for place, new, exact in zip(("low", "high"), after, fresh):
        for block, x in new.items():
            for power in (1, 2, 4):
                a, b = x.reshape(-1) ** power, exact[block].reshape(-1) ** power
                error = ((a.var() + b.var()) / PAIRS) ** 0.5
                result[f"{place} {block}^{power}"] = float((a.mean() - b.mean()) / error)
        if "p" in new:
            a, b = ((s["p"] ** 2 / (1 + s["theta"] ** 2))[:, 0] for s in (new, exact))
            result[f"{place} p^2 of theta"] = float((a.mean() - b.mean()) / ((a.var() + b.var()) / PAIRS) ** 0.5)
    squares = [s["theta"][:, 0] ** 2 for s in after[:2]]
    result["correlation"] = standard_score(torch.stack([x - x.mean() for x in squares]).prod(0))
    return result, float(after[2].double().mean())


@pytest.mark.parametrize("name", CASES)
def test_an_exchange_leaves_the_joint_law_of_two_temperatures_as_it_is(name):
    result, rate = scores(name)
    assert CLAIMS["exchange"].failures(result) == {} and 0.2 < rate < 0.9


def test_momenta_keep_their_standard_deviations_so_that_energies_alone_decide():
    recipe, parameters = CASES["thermostat"]
    low, high = from_the_law("thermostat", LOW, 1), from_the_law("thermostat", HIGH, 2)
    swap = Exchange(recipe)
    u = torch.rand(PAIRS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    first, _, swapped = swap(low, high, (LOW, HIGH), U(low), U(high), u, **parameters)
    assert torch.equal(swapped, u < torch.exp((1 / LOW - 1 / HIGH) * (U(low) - U(high))))
    torch.testing.assert_close(first["p"][swapped], high["p"][swapped] * (LOW / HIGH) ** 0.5)
    torch.testing.assert_close(first["xi"][swapped] - 1, (high["xi"][swapped] - 1) * (LOW / HIGH) ** 0.5)


# ---- mistakes


class WrongSign(Exchange):
    """Accepts what it must refuse."""

    def level(self, *arguments):
        return -super().level(*arguments)


class NotRescaled(Exchange):
    """Momenta go as they are, and U alone decides."""

    @cached_property
    def rescaled(self):
        return {}

    def level(self, state, U, temperature, parameters):
        return U / temperature


class RescaledBothWays(Exchange):
    """Both momenta grow: the Jacobian is not 1."""

    def _arrival(self, source, place, ratio, parameters):
        return super()._arrival(source, place, max(ratio, 1 / ratio), parameters)


class AtOneTemperature(Exchange):
    """H by the temperature of the first chain alone."""

    def level(self, state, U, temperature, parameters):
        return super().level(state, U, LOW, parameters)


class AboutZero(Exchange):
    """The thermostat is rescaled about 0, and U alone decides."""

    @cached_property
    def rescaled(self):
        b = next(b for b in self.recipe.state if b.name == "xi")
        return super().rescaled | {"xi": exchange.assignment(b, exchange.RATIO * b, "rescaled")}

    def level(self, state, U, temperature, parameters):
        return U / temperature


@pytest.mark.parametrize(
    "mistake, name",
    [
        (WrongSign, "none"),
        (NotRescaled, "momentum"),
        (NotRescaled, "metric"),
        (RescaledBothWays, "momentum"),
        (AtOneTemperature, "none"),
        (AboutZero, "thermostat"),
    ],
)
def test_a_wrong_exchange_breaks_the_law(mistake, name, monkeypatch):
    monkeypatch.setitem(globals(), "Exchange", mistake)
    assert any(abs(score) > Z for score in scores(name)[0].values())


def test_what_is_held_still_and_what_is_adapted_stays():
    assert Exchange(PSGLD).staying == ("V",) and Exchange(SGNHT, ("xi",)).staying == ("xi",)
    low, high = from_the_law("thermostat", LOW, 1), from_the_law("thermostat", HIGH, 2)
    u = torch.zeros(PAIRS, dtype=torch.float64)
    first, second, swapped = Exchange(SGNHT, ("xi",))(low, high, (LOW, HIGH), U(low), U(high), u, A=1.0, mu=2.0)
    assert swapped.all() and torch.equal(first["xi"], low["xi"]) and torch.equal(second["xi"], high["xi"])
    assert torch.equal(first["theta"], high["theta"])


# ---- runs

WELLS = Energy(theta, U=total(12 * (theta**2 - 1) ** 2 - theta / 2))
LEFT = dict(init=torch.full((1,), -1.0, dtype=torch.float64), gamma=1.0, step_size=0.04, progress=False)


@pytest.mark.slow
def test_wells_apart_by_twelve_temperatures_have_their_shares_where_a_single_chain_never_crosses():
    x = torch.linspace(-3, 3, 100_001, dtype=torch.float64)
    density = torch.exp(-12 * (x**2 - 1) ** 2 + x / 2)
    share = float(density[x > 0].sum() / density.sum())
    run = dict(LEFT, chains=256, steps=2000, warmup=1000, thin=10, backend="cpp")
    draws = samplers.sample(UnderdampedLangevin, WELLS, temperature=samplers.Ladder(1, 2, 4, 8, swap_every=10), **run)
    right = (draws["theta"][..., 0] > 0).double().mean(1)
    # a step of .04 shifts the share by less than 1 %
    assert CLAIMS["exchange"].failures({"share": beyond(right - share, 0.01)}) == {}
    assert right.std() / len(right) ** 0.5 < 0.02 and all(rate > 0.5 for rate in draws.info["swaps"])
    alone = samplers.sample(UnderdampedLangevin, WELLS, **dict(run, steps=1000))
    assert (alone["theta"] < 0).double().mean() > 0.99


@pytest.mark.slow
def test_exact_chains_exchange_and_stay_exact_at_a_step_size_at_which_plain_ones_are_lost():
    x = torch.linspace(-3, 3, 100_001, dtype=torch.float64)
    density = torch.exp(-12 * (x**2 - 1) ** 2 + x / 2)
    run = dict(LEFT, step_size=0.15, chains=256, steps=400, warmup=200, thin=5, backend="cpp", metropolis=True)
    draws = samplers.sample(UnderdampedLangevin, WELLS, temperature=samplers.Ladder(1, 2, 4, 8, swap_every=3), **run)
    theta = draws["theta"][..., 0]
    square = float((density * x**2).sum() / density.sum())
    share = float(density[x > 0].sum() / density.sum())
    off = {
        "share": standard_score((theta > 0).double().mean(1) - share),
        "square": standard_score((theta**2).mean(1) - square),
    }
    assert CLAIMS["exchange"].failures(off) == {} and len(draws.info["acceptance"]) == 256
    with pytest.raises(RecipeError, match="diverged"):
        samplers.sample(UnderdampedLangevin, WELLS, **run | {"temperature": 8.0, "metropolis": False})


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_chains_that_never_swap_are_those_of_a_run_without_temperatures(backend):
    run = dict(LEFT, chains=3, steps=40, temperature=1.0, backend=backend)
    alone = samplers.sample(UnderdampedLangevin, WELLS, **run)
    side = samplers.sample(UnderdampedLangevin, WELLS, **run | {"temperature": samplers.Ladder(1, 2, swap_every=41)})
    assert torch.equal(alone["theta"], side["theta"]) and side.info["swaps"] == [0.0]


def by_hand(theta):
    return (12 * (theta**2 - 1) ** 2 - theta / 2).sum()


def test_every_backend_and_form_of_the_energy_gives_the_same_draws():
    run = dict(LEFT, chains=8, steps=60, temperature=samplers.Ladder(1, 2, 4, swap_every=3))
    ways = [(WELLS, "torch"), (WELLS, "cpp"), (by_hand, "torch"), (by_hand, "cpp")]
    draws = [samplers.sample(UnderdampedLangevin, U, backend=backend, **run) for U, backend in ways]
    for other in draws[1:]:
        torch.testing.assert_close(draws[0]["theta"], other["theta"], rtol=1e-6, atol=1e-6)
        assert other.info["swaps"] == draws[0].info["swaps"] and min(other.info["swaps"]) > 0


def test_attempts_of_a_run_share_one_compiled_exchange(monkeypatch):
    compiled, seen = measured.of_flows, []
    for module in (exchange, measured):
        monkeypatch.setattr(module, "of_flows", lambda R, flows, own: seen.append([*flows]) or compiled(R, flows, own))
    run = dict(LEFT, steps=20, chains=2, temperature=samplers.Ladder(1, 2, 4, swap_every=1))
    samplers.sample(replace(UnderdampedLangevin, name="swapped"), WELLS, **run)
    assert seen == [["p"], ["value_of_formula"]]


def test_energies_on_all_data_and_those_of_explicit_coordinates_exchange():
    y = datum("y")
    x = torch.linspace(-1, 1, 10, dtype=torch.float64)
    on_data = Energy(theta, U=data_total((y - total(theta)) ** 2) + total(theta**2), data=(y,))
    run = dict(chains=4, steps=30, step_size=0.005, temperature=samplers.Ladder(1, 3, swap_every=2), progress=False)
    start = dict(init=torch.zeros(2, dtype=torch.float64), data=x)
    symbolic = samplers.sample(SGNHT, on_data, **start, **run)
    plain = samplers.sample(SGNHT, lambda w, x: ((x - w.sum()) ** 2).sum() + (w**2).sum(), **start, **run)
    torch.testing.assert_close(symbolic["theta"], plain["theta"])
    zero = torch.zeros((), dtype=torch.float64)
    draws = samplers.sample(STOCK["sgrld-dense"].recipe, TARGETS["banana"], init={"x": zero, "y": zero}, **run)
    assert draws.info["swaps"][0] > 0.2 and draws["x"].isfinite().all()


def test_chains_divided_over_processes_have_the_draws_of_one():
    run = dict(LEFT, steps=40, temperature=samplers.Ladder(1, 2, 4, swap_every=3))
    whole = samplers.sample(UnderdampedLangevin, WELLS, chains=5, **run)
    parts = [samplers.sample(UnderdampedLangevin, WELLS, chains=range(k, k + n), **run) for n, k in ((2, 0), (3, 2))]
    assert torch.equal(whole["theta"], torch.cat([part["theta"] for part in parts]))


def test_temperatures_that_are_too_far_apart_are_warned_of():
    with pytest.warns(RuntimeWarning, match="T = 1 and 1000 have exchanged in 0.0% .*put temperatures between"):
        draws = samplers.sample(
            SGLD,
            lambda x: (x**2).sum() / 2,
            init=torch.zeros(50),
            steps=200,
            step_size=0.1,
            temperature=[1, 1000],
            progress=False,
        )
    assert draws.info["temperatures"] == [1.0, 1000.0]


def test_a_large_energy_in_float32_is_warned_of_whose_differences_decide_over_swaps():
    with pytest.warns(RuntimeWarning, match="rounded to 1 in float32: proposals and swaps"):
        run = {"init": torch.zeros(2), "steps": 4, "step_size": 0.1, "temperature": [1.0, 2.0], "progress": False}
        samplers.sample(samplers.SGHMC, lambda x: (x**2).sum() / 2 + 1e7, **run)


def test_a_chain_that_is_lost_swaps_no_longer():
    def cliff(x):
        return (x**2 / 2 + 0 * (3 - x).sqrt()).sum()

    with pytest.warns(RuntimeWarning, match="temperature 4: .* chains are lost"):
        draws = samplers.sample(
            SGLD,
            cliff,
            init=torch.zeros(1),
            chains=64,
            steps=60,
            step_size=0.2,
            temperature=samplers.Ladder(0.2, 4, swap_every=1),
            progress=False,
        )
    assert draws["theta"].isfinite().all()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"temperature": [1, 4, 2]}, "are > 0 and rise, got .1, 4, 2"),
        ({"temperature": [1, 1]}, "are > 0 and rise"),
        ({"temperature": [0, 1]}, "are > 0 and rise"),
        ({"temperature": [-1, 1]}, "are > 0 and rise"),
        ({"temperature": [1, float("nan")]}, "two numbers or more"),
        ({"temperature": [1]}, "two numbers or more.*temperature=1.0 for one"),
        ({"temperature": ["1", "2"]}, "two numbers or more"),
        ({"temperature": [1, 2], "phases": [samplers.Phase(9, temperature=2.0)]}, "phase has a temperature"),
        ({"temperature": [1, 2], "data": torch.zeros(9), "batch_size": 3}, "minibatch has an estimate only.*Drop"),
        ({"temperature": [1, 2], "phases": [samplers.Phase(9, freeze="theta")]}, "theta is held still"),
        ({"temperature": [1, 2], "init": {"w": torch.zeros(2)}, "scope": "tensor"}, "Use scope='chain'"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(settings, message):
    energy = (lambda x, y: ((x - y.mean()) ** 2).sum()) if "data" in settings else (lambda x: (x**2).sum())
    if "scope" in settings:
        energy = lambda x: (x["w"] ** 2).sum()  # noqa: E731
    run = dict(init=torch.zeros(2), step_size=0.1, progress=False) | settings
    with pytest.raises(RecipeError, match=message):
        samplers.sample(SGLD, energy, **run)


def test_an_energy_that_is_improper_at_a_high_temperature_is_refused():
    run = dict(init=torch.zeros(1), step_size=0.1, progress=False)
    with pytest.raises(RecipeError, match="has not the law it claims"):
        samplers.sample(SGLD, TARGETS["student"], temperature=[1, 8], **run)
