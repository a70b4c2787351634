"""The work of a step: its exponential averages to 1 from an exact start, and a step that is accepted by it is exact.

Both hold at every step size, in every word and at every temperature; the plain step is visibly wrong at these sizes.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle, product

import pytest
import sympy
import torch
from certificates import ACCEPTED, NOT_ACCEPTED, p, turned
from covering import covering, slow
from mutation import altered, with_mistake, wrong_texts
from same_step import accepted_ways_agree
from sympy import Matrix, S
from zoo import NOSE_HOOVER, QUARTIC, compiled

import integrators
from integrators import metropolis, noise
from integrators.direction import DIRECTION
from recipe import Energy, Recipe, RecipeError, data_total, datum, positive, potential, scalar, total, vector
from recipe.algebra import at_one_site
from samplers import (
    ATMC,
    GHMC,
    HMC,
    MALA,
    PSGLD,
    SGHMC,
    SGLD,
    SGNHT,
    SGRHMC,
    SGRLD,
    Metropolis,
    Phase,
    RandomisedHMC,
    RelativisticSGHMC,
    UnderdampedLangevin,
    sample,
)
from samplers.testing.cases import CASES as CASES_OF_STOCK
from samplers.testing.layers import LAYERS
from samplers.testing.subject import subject_of

FLOATS = torch.float32, torch.float64
CHAINS, STEPS, TEMPERATURE, MASS = 4000, 60, 0.8, 1.7
theta, xi = vector("theta"), scalar("xi")
n = total(1)

METRIC = SGRLD.bind(inverse_metric=lambda theta: 1 / (1 + theta**2) + S(1) / 4)

# recipe, word, step size, parameters, words in a proposal
CASES = {
    "MALA": (SGLD, "Euler", 0.4, {}, 1),
    "MALA in a metric": (METRIC, "Euler", 0.3, {}, 1),
    "GHMC": (UnderdampedLangevin, "B A O A B", 0.9, {"m": MASS}, 1),
    "Langevin, no palindrome": (UnderdampedLangevin, "A B O", 0.7, {"m": MASS}, 1),
    "Langevin, friction inside and outside": (UnderdampedLangevin, "O B A O A B O", 0.7, {"m": MASS}, 1),
    "Langevin, force with friction": (UnderdampedLangevin, "F A", 0.5, {"m": MASS}, 1),
    "SGHMC, force with friction by Euler": (SGHMC, "A G", 0.5, {"C": 1.0, "m": MASS}, 1),
    "HMC, randomised": (RandomisedHMC, None, 0.9, {"m": MASS}, 1),
    "HMC": (HMC, None, 0.6, {"m": MASS}, 4),
    "SGNHT": (SGNHT, "B A' O A' B", 0.8, {"A": 1.0}, 1),
    "SGNHT, no palindrome": (SGNHT, "A' O B", 0.5, {"A": 1.0}, 1),
    "Nose-Hoover": (NOSE_HOOVER, None, 0.6, {}, 1),
    "ATMC": (ATMC, "A' F A'", 0.4, {}, 1),
}


def exact_start(step, parameters, chains=CHAINS, sites=1):
    """The state of chains from exp(-H/T), half of them in each direction."""
    draw = torch.Generator().manual_seed(7)
    x = torch.linspace(-6, 6, 20_001, dtype=torch.float64)
    law = torch.exp(-(x**4) / 4 / TEMPERATURE).cumsum(0)
    at = torch.searchsorted(law / law[-1], torch.rand(chains, sites, generator=draw, dtype=torch.float64))
    state = {"theta": x[at.clamp(max=20_000)]}
    for b in step.recipe.entries:
        shape = (chains, sites) if b.is_vector else (chains,)
        normal = TEMPERATURE**0.5 * torch.randn(shape, generator=draw, dtype=torch.float64)
        match b.name:
            case "p":
                state["p"] = normal * parameters.get("m", 1.0) ** 0.5
            case "xi":
                state["xi"] = normal + parameters.get("A", 0.0)
            case "direction":
                state["direction"] = torch.where(torch.rand(shape, generator=draw) < 0.5, 1.0, -1.0).double()
            case "work" | "accepted":
                state[b.name] = torch.zeros(shape, dtype=torch.float64)
    return state


@dataclass(frozen=True)
class Account:
    """The mean of exp(-W/T) with its standard error, and how many standard errors E theta^2 or E theta^4 is off."""

    identity: float
    error: float
    off: float
    accepted: float

    @property
    def is_exact(self):
        """Whether the moments are right."""
        return self.off < 4

    @property
    def averages_to_one(self):
        """Whether exp(-W/T) does."""
        return abs(self.identity - 1) < 5 * self.error


def account(step, state, h, parameters, steps=STEPS):
    """What some steps from an exact start say."""
    weights, powers = [], {2: [], 4: []}
    chains = len(state["theta"])
    for k in range(steps):
        state = step(state, h, noise=noise.Key(3, k), temperature=TEMPERATURE, **parameters)
        weights.append(torch.exp(-state.get("work", torch.zeros(chains)) / TEMPERATURE))
        for power, values in powers.items():
            values.append(state["theta"][:, 0] ** power)
    x = torch.linspace(-6, 6, 20_001, dtype=torch.float64)
    density = torch.exp(-(x**4) / 4 / TEMPERATURE)
    off = []
    for power, values in powers.items():
        of_chain = torch.stack(values[steps // 4 :]).mean(0)
        true = (density * x**power).sum() / density.sum()
        off.append(float(abs(of_chain.mean() - true) / (of_chain.std() / chains**0.5)))
    weight = torch.stack(weights).mean(0)
    accepted = float(state.get("accepted", torch.zeros(chains)).mean()) / steps
    # NaN, where chains have run away, is far off
    worst = max(x if x == x else float("inf") for x in off)
    return Account(float(weight.mean()), float(weight.std()) / chains**0.5, worst, accepted)


def made(name):
    """The accepted step of a case."""
    recipe, word, _, _, repeat = CASES[name]
    return integrators.metropolised(recipe, word, energy=QUARTIC, repeat=repeat)


right = cache(made)


def accounts(name, step, share=1.0):
    """The account of an accepted step of a case, at a share of its step size."""
    _, _, h, parameters, _ = CASES[name]
    return account(step, exact_start(step, parameters), share * h, parameters)


# cases that always run, each in one of two tests
EXACT = "MALA in a metric", "GHMC"
AVERAGED = "Langevin, force with friction", "SGNHT, no palindrome"


@pytest.mark.parametrize("name", covering(CASES, EXACT))
def test_the_accepted_step_is_exact_at_a_step_size_at_which_the_plain_one_is_far_off(name):
    recipe, word, h, parameters, repeat = CASES[name]
    exact = accounts(name, right(name))
    assert exact.is_exact and 0.4 < exact.accepted < 1
    plain = compiled(recipe.bind(U=QUARTIC), word)
    assert repeat > 1 or account(plain, exact_start(plain, parameters), h, parameters, 2 * STEPS).off > 8


@pytest.mark.parametrize("name", covering(CASES, AVERAGED))
def test_the_exponential_of_the_work_averages_to_one_from_an_exact_start(name):
    exact = accounts(name, right(name), share=0.5)
    assert exact.averages_to_one and exact.error < 0.01


@pytest.mark.slow
def test_momenta_that_an_operator_turns_are_exact_in_both_directions_of_time():
    step = integrators.metropolised(turned(total(p**2) / 2), energy=QUARTIC)
    parameters = {"J": torch.tensor([[0.0, 2.0], [-2.0, 0.0]]).double()}
    exact = account(step, exact_start(step, parameters, sites=2), 0.6, parameters)
    assert exact.is_exact and exact.averages_to_one and 0.4 < exact.accepted < 0.9


PLACES, KICKS = 400, 401  # of a rule of midpoints that errs by less than 1e-4, where paths are reflected too


def all_steps(name, accept):
    """Where a step of the size of the domain begins and ends, the work over T, and the probabilities by a rule."""
    recipe = ACCEPTED[name]()
    (block,) = recipe.state
    width = float(block.domain.width) if block.domain.is_compact else 8
    x = float(block.domain.low) + width * torch.arange(0.5, PLACES).double() / PLACES
    kick = torch.linspace(-7, 7, KICKS).double()
    law = torch.exp(-sympy.lambdify(block, at_one_site(recipe.H), "torch")(x) / TEMPERATURE)
    shares = torch.outer(law / law.sum(), torch.softmax(-(kick**2) / 2, 0)).flatten()
    zero, x = 0 * shares, x.repeat_interleave(KICKS)
    state = {block.name: x[:, None], "direction": zero + 1, "work": zero, "accepted": zero}
    state["direction"][::2] = -1
    normal = {block.name: kick.repeat(PLACES)[:, None], "accept": zero + accept}
    after = integrators.metropolised(recipe)(state, 0.3, noise=normal, temperature=TEMPERATURE)
    return x, after[block.name][:, 0], after["work"] / TEMPERATURE, shares


@pytest.mark.parametrize("name", covering(ACCEPTED, ["MALA on a half line", "MALA on an angle, noise that varies"]))
def test_a_path_that_is_led_back_into_its_domain_is_exact(name):
    """Means of functions of the block stay, and exp(-W/T) is 1 on average, by the means of bounded functions alone.

    With W as with -W weighted by exp(-W/T): 2 tanh(W/2T)/(1 + exp(W/T)) has the mean 0.
    """
    x, proposed, work, shares = all_steps(name, accept=0)
    move = shares * torch.exp(-work).clamp(max=1)
    assert 0.2 < move.sum() < 0.95
    for f in (torch.cos, torch.sin, torch.square):
        assert abs((move * (f(proposed) - f(x))).sum()) < 1e-4
    assert abs((shares * 2 * torch.tanh(work / 2) / (1 + torch.exp(work))).sum()) < 1e-4
    assert torch.equal(all_steps(name, accept=0.5)[1], torch.where(torch.exp(-work) > 0.5, proposed, x))


@pytest.mark.parametrize("name", ["MALA in a metric", "Langevin, no palindrome", slow("SGNHT"), slow("Nose-Hoover")])
def test_a_step_in_cpp_is_that_in_torch(name):
    recipe, word, h, parameters, _ = CASES[name]
    state = exact_start(integrators.metropolised(recipe, word, energy=QUARTIC), parameters, chains=64)
    accepted_ways_agree(recipe, state, h, word=word, energy=QUARTIC, temperature=TEMPERATURE, **parameters)


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_tensors_that_the_caller_returns_stay_as_they_are(backend):
    step = integrators.metropolised(GHMC, backend=backend)
    state = exact_start(step, {}, chains=16)
    answers = []

    def gradient(at):
        answers.append((at, at.clone()))
        return at  # of U = theta^2/2

    def value(at):
        answers.append((half := (at**2 / 2).sum(1), half.clone()))
        return half

    for k in range(5):
        before = {name: x.clone() for name, x in state.items()}
        new = step(state, 1.5, gradient=gradient, value=value, noise=noise.Key(3, k))
        assert all(torch.equal(x, before[name]) for name, x in state.items())
        state = new
    assert all(torch.equal(now, then) for now, then in answers) and 0 < state["accepted"].sum() < 80


def test_a_total_of_a_parameter_per_site_and_a_chain_value_is_over_all_sites_also_where_the_parameter_is_a_number():
    m = positive("m", per=theta)
    recipe = Recipe(name="noisy", state=(theta, xi), H=potential(theta) + n * xi**2 / 2,
                    D={theta: (m - xi) ** 2 + 1, xi: 1})  # fmt: skip
    works = []
    for backend in ("torch", "cpp"):
        step = integrators.metropolised(recipe, energy=QUARTIC, backend=backend)
        start = exact_start(step, {}, chains=4)
        start["theta"] = start["theta"] * torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
        for value in (0.6, torch.full((3,), 0.6)):
            works.append(step(start, 0.1, noise=noise.Key(3, 0), m=value)["work"])
    for other in works[1:]:
        torch.testing.assert_close(other, works[0], rtol=1e-6, atol=1e-6)


BOWL = Energy(theta, U=total(theta**2) / 2)


def works_at_large_H(recipe, backend, dtype, word=None, energy=BOWL, sites=10**6, device="cpu", **functions):
    """W of two steps of a chain that has the law of a bowl, where H is as large as the number of sites."""
    step = integrators.metropolised(recipe, word, energy=energy, backend=backend)
    normal = torch.randn(2, 1, sites, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    chain = torch.ones(1, dtype=dtype, device=device)
    state = {"theta": normal[0], "p": normal[1], "direction": chain, "work": chain, "accepted": chain}
    works = []
    for k in range(2):
        state = step(state, 2e-3, noise=noise.Key(3, k), **functions)
        works.append(state["work"].double().cpu())
    return torch.stack(works)


SUMMED_IN_FLOAT64 = dict(energy=None, gradient=lambda x: x, value=lambda x: (x**2).sum(1, dtype=torch.float64) / 2)
MANY_SITES = {
    "HMC": dict(recipe=HMC),
    "H is wholly symbolic": dict(recipe=HMC.bind(U=BOWL), energy=None),
    "U is a function": dict(recipe=HMC, **SUMMED_IN_FLOAT64),
    "friction within the proposal": dict(recipe=UnderdampedLangevin, word="B A O A B"),
    "MALA, whose moves are rounded, too": dict(recipe=MALA, sites=10**5),
}


EACH_ONCE = [*zip(MANY_SITES, cycle(["torch", "cpp"]))][1:]  # but HMC itself, which the next two move, too


@pytest.mark.parametrize("name, backend", covering(product(MANY_SITES, ["torch", "cpp"]), EACH_ONCE))
def test_the_work_of_many_sites_is_exact_in_float32(name, backend):
    """H itself is rounded to .06, with MALA to .008."""
    single, double = (works_at_large_H(**MANY_SITES[name], backend=backend, dtype=d) for d in FLOATS)
    assert (single - double).abs().max() < 1e-3


# ---- mistakes


def changed(monkeypatch, change):
    """Let every letter have its work changed."""
    works = metropolis.works
    monkeypatch.setattr(
        metropolis, "works", lambda *a: {letter: change(letter, one) for letter, one in works(*a).items()}
    )


MISTAKES = {
    "no heat of MALA": ("MALA", lambda letter, one: replace(one, heat=S.Zero, returned=S.Zero)),
    "no determinant": ("Nose-Hoover", lambda letter, one: replace(one, heat=S.Zero)),
    "determinant of the other sign": ("Nose-Hoover", lambda letter, one: replace(one, heat=-one.heat)),
    "friction of a thermostat called balanced": (
        "SGNHT",
        lambda letter, one: replace(one, balanced=one.balanced or letter == "O"),
    ),
    "a force with friction called balanced": (
        "Langevin, force with friction",
        lambda letter, one: replace(one, balanced=one.balanced or letter == "F"),
    ),
    "friction without its own change of H": (
        "GHMC",
        lambda letter, one: replace(one, balanced=one.balanced and letter != "O"),
    ),
    "the way back in the direction of the step": (
        "SGNHT, no palindrome",
        lambda letter, one: replace(one, returned=one.returned.xreplace({DIRECTION: -DIRECTION})),
    ),
    "no logarithm of the metric": (
        "MALA in a metric",
        lambda letter, one: replace(one, heat=one.heat.replace(lambda e: e.func.__name__ == "log", lambda e: S.Zero)),
    ),
}


# a determinant, and what is called balanced, is wrong in other cases, which always run
SLOW = {
    "determinant of the other sign",
    "friction of a thermostat called balanced",
    "friction without its own change of H",
}


@pytest.mark.parametrize("mistake", covering(MISTAKES, but=SLOW))
def test_a_wrong_work_breaks_the_identity_or_the_law(mistake, monkeypatch):
    name, change = MISTAKES[mistake]
    changed(monkeypatch, change)
    step = made(name)
    assert not accounts(name, step).is_exact or not accounts(name, step, share=0.5).averages_to_one


# what somebody may write and still have the law: another proposal, as long as it is the one that is judged
HARMLESS = (
    "the mass forgotten: drift_",  # which keeps volumes and has a reverse, for any mass
    "a gradient that counts twice",
    "a gradient from the start of the step",
    "no limit of a flow",
    "noise shared by the chains",  # of who is accepted: each chain has its law, together they have not
    "noise shared by the sites",
    "a term of the wrong sign",  # of a noise, which is symmetric
    "a motion left out",  # of a momentum's noise, and the guard of a work that overflows
)


@pytest.mark.parametrize("name, whole", [("mala", False), *(slow((name, True)) for name in ("mala", "ghmc", "hmc"))])
def test_the_layer_of_the_work_kills_what_breaks_the_law_of_an_accepted_step(name, whole):
    """Mistakes of every kind at every place, or each kind once."""
    subject = subject_of(CASES_OF_STOCK[name].recipe, None)
    mistakes = list(wrong_texts(subject.accepted))
    if not whole:
        mistakes = list({mistake.partition(":")[0]: (mistake, change) for mistake, change in mistakes}.values())
    alive = []
    for mistake, change in mistakes:
        mutant = with_mistake(subject, alter_accepted=partial(altered, change=change))
        if all(r.ok for r in LAYERS["work"](mutant)):
            alive.append(mistake)
    assert len(alive) < len(mistakes) / 3
    assert [mistake for mistake in alive if not mistake.startswith(HARMLESS)] == []


def test_a_word_that_is_not_reversed_breaks_the_law(monkeypatch):
    monkeypatch.setattr(type(integrators.compile(SGLD).scheme), "is_palindrome", True)
    name = "SGNHT, no palindrome"
    assert not accounts(name, made(name), share=0.3).averages_to_one  # at larger steps by rare weights


def test_chains_that_all_start_forwards_do_not_have_the_law():
    recipe, word, _, parameters, _ = CASES["SGNHT, no palindrome"]
    step = integrators.metropolised(recipe, word, energy=QUARTIC)
    state = exact_start(step, parameters, chains=80_000)
    even = account(step, state, 0.7, parameters, steps=4)
    forwards = account(step, state | {"direction": torch.ones_like(state["direction"])}, 0.7, parameters, steps=4)
    assert even.is_exact and forwards.off > 5


# ---- energies that are functions


def quartic(theta):
    return (theta**4).sum() / 4


EVERY_WAY = [(energy, backend) for energy in (QUARTIC, quartic) for backend in ("torch", "cpp")]
FUNCTION_CPP = EVERY_WAY[3]


@pytest.mark.parametrize(
    "name, ways",
    [
        ("MALA", EVERY_WAY),
        ("GHMC", [FUNCTION_CPP]),
        *(slow((name, EVERY_WAY)) for name in ("GHMC", "HMC", "SGNHT, no palindrome")),
    ],
)
def test_a_function_and_a_symbolic_energy_have_the_same_draws_on_every_backend(name, ways):
    recipe, word, h, parameters, repeat = CASES[name]
    start = torch.linspace(-1, 1, 3, dtype=torch.float64)
    settings = dict(chains=5, steps=30, step_size=h, metropolis=Metropolis(repeat=repeat), progress=False, **parameters)
    draws, *others = (
        sample(recipe, energy, scheme=word, init=start, backend=backend, **settings)
        for energy, backend in [(quartic, "torch"), *ways]
    )
    for other in others:
        torch.testing.assert_close(other["theta"], draws["theta"], rtol=1e-9, atol=1e-9)
        assert other.info["acceptance"] == draws.info["acceptance"]
    assert 0.2 < sum(draws.info["acceptance"]) / 5 < 1


def counting(energy):
    def counted(theta):
        counted.calls += 1
        return energy(theta)

    counted.calls = 0
    return counted


@pytest.mark.parametrize("recipe", [MALA, slow(GHMC), HMC], ids=["mala", "ghmc", "hmc"])
def test_a_recipe_that_is_meant_to_be_accepted_or_rejected_is(recipe):
    def bowl(theta):
        return (theta**2).sum() / 2

    settings = dict(init=torch.ones(2), steps=20, step_size=0.5, progress=False)
    draws, asked, plain = (
        sample(recipe, bowl, **settings, **how) for how in ({}, {"metropolis": True}, {"metropolis": False})
    )
    assert torch.equal(draws["theta"], asked["theta"]) and draws.info["acceptance"] == asked.info["acceptance"]
    assert "acceptance" not in plain.info and "acceptance" not in sample(SGLD, bowl, **settings).info
    assert "accept  or reject each step by its work" in str(recipe) and "accept  or" not in str(SGLD)


def test_minibatches_of_a_recipe_that_is_meant_to_be_accepted_are_refused():
    with pytest.raises(RecipeError, match="of which a minibatch has an estimate alone.*pass metropolis=False"):
        sample(HMC, lambda t, x: quartic(t), init=torch.ones(2), data=torch.ones(9), batch_size=3, step_size=0.1)
    with pytest.raises(RecipeError, match="metropolis is True or False, got 1"):
        replace(HMC, metropolis=1)


@pytest.mark.parametrize("recipe", [MALA, slow(GHMC), HMC], ids=["mala", "ghmc", "hmc"])
def test_a_step_evaluates_energy_and_gradient_together_once(recipe):
    calls = []
    for steps in (5, 15):  # fewer calls than a tape is made after
        energy = counting(quartic)
        sample(recipe, energy, init=torch.ones(2), steps=steps, step_size=0.2, metropolis=True, progress=False)
        calls.append(energy.calls)
    assert calls[1] - calls[0] == 10


@pytest.mark.slow
def test_energies_of_several_coordinates_and_of_data_are_exact_too():
    x, y = sympy.symbols("x y", real=True)
    gaussian = Energy((x, y), U=(x**2 + (y - x / 2) ** 2 * 4) / 2)
    rows = torch.tensor([[1.0, 2.0], [0.5, -1.0], [-1.0, 0.3]], dtype=torch.float64)
    a, b = datum("a"), datum("b")
    of_data = Energy((x, y), U=(x**2 + y**2) / 2 + data_total((a * x + b - y) ** 2) / 2, data=(a, b))
    columns = (rows[:, 0].clone(), rows[:, 1].clone())
    settings = dict(metropolis=Metropolis(repeat=4), progress=False, step_size=0.5)
    start = torch.zeros(2, dtype=torch.float64)
    design = torch.stack([-columns[0], torch.ones(3, dtype=torch.float64)], 1)
    for energy, data, precision in (
        (gaussian, None, torch.tensor([[2.0, -2.0], [-2.0, 4.0]], dtype=torch.float64)),
        (of_data, columns, torch.eye(2, dtype=torch.float64) + design.T @ design),
    ):
        in_torch, in_cpp = (
            sample(HMC, energy, data=data, init=start, backend=backend, chains=chains, steps=60, **settings)["theta"]
            for backend, chains in (("torch", 2), ("cpp", 400))
        )
        torch.testing.assert_close(in_torch, in_cpp[:2], rtol=1e-9, atol=1e-9)
        mean = torch.linalg.inv(precision) @ (design.T @ columns[1] if data else start)
        apart = in_cpp[:, 20:] - mean
        covariance = torch.einsum("cni,cnj->cij", apart, apart) / apart.shape[1]
        error = covariance.std(0) / 400**0.5
        assert ((covariance.mean(0) - torch.linalg.inv(precision)).abs() < 5 * error).all()


def test_the_step_size_is_the_time_of_a_word_whether_words_or_groups_are_repeated():
    """Eight leapfrogs of .3 are 8 words of h = .3, or a word of h = 2.4; the first form stands where it is printed."""
    settings = dict(init=torch.ones(2, dtype=torch.float64), steps=20, progress=False)
    words = sample("hmc", quartic, step_size=0.3, metropolis=Metropolis(repeat=8), **settings)
    group = sample("hmc", quartic, step_size=2.4, scheme="R (B A B)*8", **settings)
    torch.testing.assert_close(words["theta"], group["theta"])
    assert (words.info["repeat"], group.info["repeat"]) == (8, 1)
    assert str(words).startswith("hmc, R B A B, repeat 8: 4 chains x 20 draws")
    assert str(group).startswith("hmc, R (B A B)*8: 4 chains x 20 draws")
    assert "a proposal is 8 words of h each" in str(integrators.metropolised(HMC, repeat=8))


@pytest.mark.parametrize("energy, backend", [(QUARTIC, "torch"), (quartic, "cpp"), slow((QUARTIC, "cpp"))])
def test_a_phase_may_hold_still_what_reads_the_gradient(energy, backend):
    """Of U the phase asks for the value alone; the share of accepted steps is that of the last phase."""
    phases = [Phase(10), Phase(5, freeze="p", keep=False), Phase(20, step_size=0.8)]
    settings = dict(phases=phases, step_size=3.0, metropolis=True, progress=False, keep="accepted")
    settings["init"] = torch.linspace(-1, 1, 3, dtype=torch.float64)
    draws = [sample(GHMC, u, backend=where, **settings) for u, where in ((quartic, "torch"), (energy, backend))]
    torch.testing.assert_close(draws[0]["theta"], draws[1]["theta"], rtol=1e-9, atol=1e-9)
    assert draws[0].info["acceptance"] == (draws[0]["accepted"][:, -1] / 20).tolist()


def test_adapted_quantities_may_be_held_still():
    draws = sample(
        PSGLD,
        QUARTIC,
        init={"theta": torch.ones(2), "V": torch.ones(2)},
        phases=[Phase(20, freeze="V")],
        metropolis=True,
        step_size=0.1,
        progress=False,
    )
    assert 0 < sum(draws.info["acceptance"])


@pytest.mark.filterwarnings("ignore:.*have accepted none")
def test_a_proposal_that_leaves_a_domain_or_the_numbers_is_rejected():
    """A chain of an unadjusted sampler would be lost."""
    positive = vector("theta", domain="positive")
    gamma = Recipe(name="gamma", state=(positive,), H=total(positive - sympy.log(positive)), D={positive: 1})
    draws = sample(gamma, init=torch.ones(1, dtype=torch.float64), chains=500, steps=300, warmup=100, step_size=0.5,
                   metropolis=True, progress=False)  # fmt: skip
    of_chain = draws["theta"][..., 0].mean(1)
    assert not draws.diverged and (draws["theta"] > 0).all()
    assert abs(of_chain.mean() - 2) < 5 * of_chain.std() / 500**0.5
    wild = sample(GHMC, quartic, init=torch.full((2,), 3.0), steps=20, step_size=30.0, metropolis=True, progress=False)
    assert not wild.diverged and max(wild.info["acceptance"]) == 0


WARNED = {
    "a step size that is far too large": (
        dict(step_size=30.0), "4 of 4 chains .* have accepted none of 20 steps.* a smaller step size"),
    "a word that is no palindrome": (dict(step_size=30.0, scheme="A O B"), "a symmetric word, 'A O B O A' say"),
    "a word that is symmetric after its noise": (
        dict(step_size=30.0, scheme="O B A B"), "accepted none of 20 steps.* Take a smaller step size, or start"),
    "a chain that is where no step leads on": (
        dict(energy=lambda theta: torch.where(theta > 2, 100 * theta, theta).square().sum(), steps=120, step_size=0.3,
             init=torch.tensor([[0.0], [3.0]])), r"1 of 2 chains \(chain 1\) have accepted none of 120 steps"),
    "a large energy in float32": (dict(energy=lambda theta: quartic(theta) + 1e7), "rounded to 1 in float32"),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_chains_that_stay_where_they_are_and_energies_whose_differences_are_rounded_are_warned_of(case):
    changes, message = WARNED[case]
    init = changes.get("init", torch.ones(2))
    settings = dict(energy=quartic, init=init, chains=len(init) if init.dim() > 1 else 4, steps=20, step_size=0.2)
    with pytest.warns(RuntimeWarning, match=message):
        sample(GHMC, metropolis=True, progress=False, **settings | changes)


@pytest.mark.filterwarnings("ignore:.*rounded to 1 in float32")
@pytest.mark.parametrize("dtype, is_rounded", [(torch.float32, True), (torch.float64, False)])
def test_a_report_has_the_rounding_of_an_energy_by_which_steps_are_accepted(dtype, is_rounded):
    run = dict(init=torch.ones(2, dtype=dtype), chains=4, steps=40, step_size=0.2, metropolis=True, progress=False)
    report = sample(GHMC, lambda theta: quartic(theta) + 1e7, **run).report()
    rows = [f for f in report.findings if f.title.startswith("rounding error of U")]
    assert len(rows) == is_rounded and not any(f.ok for f in rows)


def in_float64(theta):
    return quartic(theta.double()) + 1e7


@pytest.mark.parametrize(
    "energy, backend",
    covering(product((quartic, in_float64), ("torch", "cpp")), zip((quartic, in_float64), ("torch", "cpp"))),
)
def test_a_run_in_which_steps_are_accepted_warns_of_nothing(energy, backend):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(
            GHMC, energy, backend=backend, init=torch.ones(2), steps=120, step_size=0.4, metropolis=True, progress=False
        )


@pytest.mark.parametrize("backend", covering(["torch", "cpp"], ["torch"]))
def test_a_pole_of_the_energy_is_not_stepped_into(backend):
    """From U = -inf no step leads on: a chain would be there for ever."""

    def pole(theta):
        return quartic(theta) - torch.where(theta > 1, torch.inf, 0.0).sum()

    settings = dict(init=torch.zeros(1), chains=50, steps=80, step_size=0.4, metropolis=True, progress=False)
    draws = sample(MALA, pole, backend=backend, **settings)
    assert not draws.diverged and draws["theta"].max() <= 1 and min(draws.info["acceptance"]) > 0.2


REFUSED = {
    "minibatches": (dict(data=torch.ones(10), batch_size=2), "a minibatch has an estimate alone.*Leave batch_size out"),
    "adaptations": (dict(recipe=PSGLD), r"its steps adapt V to the path.*freeze=\('V',\)"),
    "a path that does not lead back": (dict(recipe=RelativisticSGHMC), "work of 'R'.*no path leads back"),
    "a scope": (dict(scope="tensor"), "accepted as a whole"),
    "no direction": (dict(init={"theta": torch.ones(2), "direction": torch.tensor(0.5)}), "is 1 or -1"),
    "no truth value": (dict(metropolis="yes"), "True or False"),
    "temperature 0": (dict(temperature=0.0), "temperature 0"),
    "a start of infinite energy": (dict(energy=lambda theta: torch.log(theta).sum().exp().sum() * 0 - torch.where(
        theta > 2, theta, torch.inf).sum() * 0 + theta.sum()), "not finite"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exact_is_refused_before_the_first_step(case):
    changes, message = REFUSED[case]
    energy = (lambda theta, batch: (theta**2).sum()) if "data" in changes else quartic
    settings = dict(recipe=UnderdampedLangevin, energy=energy, init=torch.ones(2), metropolis=True) | changes
    with pytest.raises(RecipeError, match=message):
        sample(steps=10, step_size=0.1, progress=False, **settings)


WITHIN = [("accept", "is_accepted", "coldness"), ("g", "g_before", "g_left")]


@pytest.mark.parametrize("names, backend", covering(product(WITHIN, ["torch", "cpp"]), zip(WITHIN, ["cpp", "torch"])))
def test_a_block_may_bear_the_name_of_what_a_step_has_within_itself(names, backend):
    def draws(names, backend):
        first, second, third = (vector(name) for name in names)
        H = potential(first) + total(second**4 + third**4) / 4
        recipe = Recipe(name="named", state=(first, second, third), H=H, D={first: 1, second: 1, third: 1})
        init = {name: torch.full((2,), 0.5 + k, dtype=torch.float64) for k, name in enumerate(names)}
        settings = dict(steps=20, step_size=0.1, metropolis=True, progress=False, backend=backend, keep=names)
        run = sample(recipe, Energy(first, U=total(first**4) / 4), init=init, **settings)
        return [run[name] for name in names]

    plain = draws(("theta", "p", "q"), "torch")
    torch.testing.assert_close(draws(names, backend), plain, rtol=1e-12, atol=1e-12)


def test_names_that_an_accepted_step_needs_are_refused():
    named = Recipe(name="named", state=(theta,), H=potential(theta), D={theta: positive("work")})
    with pytest.raises(RecipeError, match="'work' is a name in the state of an accepted step.*Rename"):
        integrators.metropolised(named)


# ---- what is said, and what is refused

x, y = scalar("x"), scalar("y")
ONE_NOISE = Recipe(
    name="one-noise", state=(x, y), target=(x, y), H=potential(x, y), D=Matrix([[1, 1], [1, 1]]), scheme="Euler"
)


def test_a_step_says_which_flows_carry_work():
    text = str(integrators.metropolised(UnderdampedLangevin, energy=QUARTIC))
    assert "exact at every step size" in text
    assert "B: dp = -direction*grad(U) dt  [shift, work dH]" in text
    assert "[Ornstein-Uhlenbeck, no work]" in text
    assert "[Ornstein-Uhlenbeck, no work]" in str(integrators.metropolised(GHMC, energy=QUARTIC))
    assert "work dH + heat" in str(integrators.metropolised(SGNHT, energy=QUARTIC))


@pytest.mark.parametrize(
    "recipe, settings, message",
    [
        (PSGLD, {}, "its steps adapt V to the path.*Freeze"),
        (UnderdampedLangevin, {"scheme": "Euler"}, "work of 'Euler'.*no density.*noise of its own"),
        (
            SGRHMC.bind(inverse_metric=lambda theta: 1 / (1 + theta**2)),
            {},
            "'heun' is not reversed by -Q.*exact pieces",
        ),
        *((declare(), {"energy": None}, "no density that is known") for declare in NOT_ACCEPTED.values()),
        (RelativisticSGHMC, {}, "work of 'R'.*friction without the noise that goes with it.*one piece"),
        (ONE_NOISE, {"energy": None}, "work of 'Euler'.*fewer directions than blocks.*full rank"),
        (SGLD, {"repeat": 0}, "repeat"),
        (SGLD, {"repeat": 1.5}, "repeat"),
    ],
    ids=[
        "adaptive",
        "noiseless block",
        "heun",
        *NOT_ACCEPTED,
        "friction apart",
        "one noise of two blocks",
        "no repetition",
        "half a repetition",
    ],
)
def test_a_step_whose_path_does_not_lead_back_is_refused(recipe, settings, message):
    with pytest.raises(RecipeError, match=message):
        integrators.metropolised(recipe, **{"energy": QUARTIC} | settings)


def test_a_temperature_of_0_is_refused():
    step = integrators.metropolised(SGLD, energy=QUARTIC)
    state = exact_start(step, {}, chains=2)
    with pytest.raises(RecipeError, match="temperature"):
        step(state, 0.1, noise=noise.Key(3, 0), temperature=0.0)
