"""Swaps: copies of a target change places with the probability at which exp(-H/T) stays."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import covering, slow
from error_budget import CLAIMS
from same_step import all_ways_agree, noise_of, state_of

import integrators
import samplers
from integrators import noise
from integrators.backends.loading import load
from integrators.metropolis import metropolised
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    adapted,
    copies,
    grad,
    mapped,
    positive,
    potential,
    scalar,
    swap,
    total,
    vector,
)
from recipe.swaps import Swap
from samplers.testing import check

x, y, p, q = (vector(name) for name in "xypq")
tau, gamma = positive("tau", default=4.0), positive("gamma", default=1.0)
AT_X, AT_Y = copies(x, y)
REPLICAS = Recipe(
    name="replicas",
    state=(x, y),
    target=(x, y),
    H=AT_X + AT_Y / tau,
    D={x: 1, y: tau},
    jumps={"S": swap(x, y)},
    scheme="Euler S",
)
WITH_MOMENTA = Recipe(
    name="with-momenta",
    state=(x, y, p, q),
    target=(x, y),
    H=AT_X + AT_Y / tau + total(p**2) / 2 + total(q**2) / (2 * tau),
    D={p: gamma, q: gamma * tau},
    Q={(x, p): -1, (y, q): -tau},
    jumps={"S": swap((x, p), (y, q))},
    scheme="B A O A B S",
)
POSITIONS_ALONE = replace(WITH_MOMENTA, name="positions-alone", jumps={"S": swap(x, y)})
RARE = replace(REPLICAS, name="rare", jumps={"S": swap(x, y, rate=positive("nu", default=3.0))})


def slope(at):
    return at**3 + 1


def value(at):
    return (at**4 / 4 + at).sum(1)


# ---- declared, proved, printed


@pytest.mark.parametrize("recipe", [REPLICAS, WITH_MOMENTA, POSITIONS_ALONE, RARE], ids=lambda R: R.name)
def test_invariance_is_proved(recipe):
    certificate = recipe.check()
    assert certificate.exact, certificate
    assert certificate["swap"].verdict == "proved"
    assert certificate["swap"].question == f"{recipe.jumps['S']} leaves exp(-H/T) invariant"
    assert certificate["value"].verdict == "proved"  # which says of minibatches that they make another law


def test_swaps_are_printed_with_their_probability():
    ratio = "exp((U(x) - U(y) - U(x)/tau + U(y)/tau)/T)"
    assert f"jump S  swap(x, y)   (with the probability min(1, {ratio}))" in str(REPLICAS)
    assert str(WITH_MOMENTA.jumps["S"]) == "swap((x, p), (y, q))" and str(RARE.jumps["S"]) == "swap(x, y, rate=nu)"
    assert r"\left(x, y\right) &\leftarrow \left(y, x\right) \text{ with probability } \min" in REPLICAS.latex()
    assert r"\text{ at the rate } \nu" in RARE.latex()


def test_an_exchange_of_like_replicas_is_always_accepted():
    assert replace(REPLICAS, H=AT_X + AT_Y, D={x: 1, y: 1}).jumps["S"].ratio(AT_X + AT_Y) == 1


# ---- the step


WORDS = [
    (REPLICAS, "Euler S"),
    (REPLICAS, "S Euler S"),
    (RARE, "S Euler"),
    (WITH_MOMENTA, "S B A O A B S"),
    (WITH_MOMENTA, "B S A S O A B"),
    (POSITIONS_ALONE, "O A B S A B"),
]


REUSE = [(*case, True) for case in WORDS]


@pytest.mark.parametrize(
    ("recipe", "word", "reuse"),
    covering([*REUSE, *((*case, False) for case in WORDS)], [*REUSE, (WITH_MOMENTA, "B S A S O A B", False)]),
    ids=lambda x: getattr(x, "name", x),
)
def test_text_kernel_and_both_interpreters_make_the_same_step(recipe, word, reuse):
    all_ways_agree(recipe, slope, word, value=value, reuse_gradient=reuse, seeds=range(4))


def test_an_adaptation_reads_the_first_gradient_of_the_step_which_no_swap_changes():
    V = adapted("V", like=x)
    reading = replace(WITH_MOMENTA, D={p: gamma + V**2, q: gamma * tau}, adapt={V: grad(AT_X, x)}, claim="")
    step = integrators.compile(reading, "B S A O A B")
    state = state_of(reading) | {"V": torch.zeros(3, 2, dtype=torch.float64)}
    for seed in range(4):
        first = slope(state["x"])
        state = step(state, 0.1, gradient=slope, value=value, noise=noise_of(step, state, seed))
        assert torch.equal(state["V"], first)


def test_a_swap_exchanges_gradients_and_values_and_asks_for_none():
    calls = dict(gradient=0, value=0)

    def counted(name, function):
        def of(at):
            calls[name] += 1
            return function(at)

        return of

    functions = {"gradient": counted("gradient", slope), "value": counted("value", value)}
    for recipe, word in [(REPLICAS, "Euler S"), (WITH_MOMENTA, "B A O A B S"), (WITH_MOMENTA, "S B A O A B S")]:
        step, state = integrators.compile(recipe, word), state_of(recipe)
        state = step(state, 0.1, noise=noise_of(step, state), **functions)
        calls.update(gradient=0, value=0)
        for seed in range(5):
            state = step(state, 0.1, noise=noise_of(step, state, seed), **functions)
        assert calls == {"gradient": 10, "value": 10}, word  # one of each copy


def test_in_a_run_the_value_comes_with_the_gradient():
    calls = []

    def energy(at):
        calls.append(at)
        return (at**4 / 4 + at).sum()

    def number(steps):
        calls.clear()
        start = {"x": torch.ones(2), "y": torch.ones(2)}
        samplers.sample(REPLICAS, energy, init=start, chains=2, steps=steps, step_size=0.01, progress=False)
        return len(calls)

    assert number(30) - number(10) == 2 * 20  # one for each copy and step


def test_a_block_that_is_held_still_swaps_with_none():
    step = integrators.compile(REPLICAS, freeze=y)
    state = state_of(REPLICAS)
    after = step(state, 0.1, gradient=slope, noise=noise_of(step, state))
    assert torch.equal(after["y"], state["y"]) and step.flows["S"].rule == "frozen"


# ---- the defect of a swap alone, over a grid of states and of the uniform number


def defects(recipe, alter=lambda text: text, law=None):
    """The change of E z^k, k = 1, 2, of both coordinates by one swap, of exp(-H/T) with H = z^4/4 + z at T = 1.25."""
    alone = replace(recipe, D={}, Q={}, claim="", state=(x, y), scheme="S")
    step = integrators.compile(alone)
    text = alter(step.source)
    assert (text == step.source) == (alter.__name__ == "<lambda>")
    T, settings = 1.25, {s.name: s.default for s in alone.parameters}
    z, u = torch.linspace(-4, 3, 71, dtype=torch.float64), (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    a, b, c = (grid.reshape(-1, 1) for grid in torch.meshgrid(z, z, u, indexing="ij"))
    weights = torch.exp(-(value(a) + value(b) / settings["tau"]) / T)
    weights /= weights.sum()
    after = load(text, "<swap>")["step"]({"x": a, "y": b}, 0.4, value=value, noise={"x": c[:, 0]}, temperature=T)
    pairs = ((a, after["x"]), (b, after["y"]))
    return max(abs(float(weights @ (new**k - old**k))) for old, new in pairs for k in (1, 2))


@pytest.mark.parametrize("recipe", [REPLICAS, RARE], ids=lambda R: R.name)
def test_a_swap_alone_leaves_the_law(recipe):
    assert defects(recipe) < 2e-4


def the_wrong_sign(text):
    return text.replace("torch.exp(1/temperature*(", "torch.exp(-1/temperature*(")


def always_accepted(text):
    return text.replace('noise["x"] < ', 'noise["x"] - 1 < ')


def temperatures_mixed_up(text):
    return text.replace("1/tau*", "tau*")


def at_another_temperature(text):
    return text.replace("1/temperature*", "1/temperature**2*")


@pytest.mark.parametrize(
    "mutant",
    [the_wrong_sign, always_accepted, slow(temperatures_mixed_up), slow(at_another_temperature)],
    ids=lambda f: f.__name__,
)
def test_mutants_have_another_law(mutant):
    assert defects(REPLICAS, mutant) > 5e-3


def test_every_layer_of_checks_passes_with_a_symbolic_energy():
    a, b = scalar("x"), scalar("y")
    of_a, of_b = copies(a, b)
    recipe = Recipe(
        name="wells",
        state=(a, b),
        target=(a, b),
        H=of_a + of_b / tau,
        D={a: 1, b: tau},
        jumps={"S": swap(a, b)},
        scheme="Euler S",
    ).bind(U=lambda z: z**4 / 4 + z / 2)
    report = check(recipe)
    assert report.ok, report


# ---- steps that are accepted by their work, of which a swap has none


def replicas_of(recipe, chains, T=1.25):
    """A state from exp(-H/T) of recipes with z^4/4 + z, at tau = 4."""
    draw = np.random.default_rng(5)
    z = np.linspace(-5, 4, 4001)

    def position(heat):
        weights = np.exp(-(z**4 / 4 + z) / heat)
        return torch.as_tensor(draw.choice(z, size=(chains, 1), p=weights / weights.sum()))

    state = {"x": position(T), "y": position(4 * T)}
    if len(recipe.state) > 2:
        of_heat = {"p": T, "q": 4 * T}
        state |= {b: torch.as_tensor(draw.normal(0, heat**0.5, (chains, 1))) for b, heat in of_heat.items()}
    direction = torch.as_tensor(draw.choice([-1.0, 1.0], size=chains))
    return state | {
        "direction": direction,
        "work": torch.zeros_like(direction),
        "accepted": torch.zeros_like(direction),
    }


@pytest.mark.parametrize(
    ("recipe", "word", "h"),
    [(REPLICAS, "Euler S", 0.01), (RARE, "Euler S", 0.01), (WITH_MOMENTA, "S B A O A B S", 0.1)],
    ids=lambda x: getattr(x, "name", x),
)
def test_the_work_of_a_step_that_swaps_is_that_of_its_other_moves(recipe, word, h):
    chains, T = 20_000, 1.25
    state = replicas_of(recipe, chains)
    step = metropolised(recipe, word, accept=False)
    after = step(state, h, gradient=slope, value=value, noise=noise.Key(3, 0), temperature=T)
    ratio = torch.exp(-after["work"] / T)
    assert ratio.std() < 0.7
    score = max(abs(float(ratio.mean()) - 1) - 0.005, 0) / (float(ratio.std()) / chains**0.5)
    assert not CLAIMS["swaps accepted"].failures({recipe.name: score})


@pytest.mark.slow
def test_a_run_with_swaps_is_accepted_step_by_step():
    draws = samplers.sample(REPLICAS, wells, metropolis=True, chains=50, warmup=100, steps=20, **RUN)
    assert 0.5 < np.mean(draws.info["acceptance"]) < 1 and draws["x"].isfinite().all()


# ---- runs: two wells, of which a cold chain does not leave its own


def wells(at):
    return 12 * ((at**2 - 1) ** 2).sum() + at.sum() / 2


def share_left(temperature=1.0):
    """The probability of the left well, by quadrature."""
    z = np.linspace(-3, 3, 20_001)
    weights = np.exp(-(12 * (z**2 - 1) ** 2 + z / 2) / temperature)
    return weights[z < 0].sum() / weights.sum()


RUN = dict(init={"x": torch.ones(1), "y": torch.ones(1)}, step_size=0.004, progress=False, seed=4, tau=8.0)


@pytest.mark.slow
def test_with_swaps_the_cold_chain_visits_both_wells_with_their_probability():
    """Chains at their end against quadrature; without swaps all of them stay."""
    z = vector("z")
    bound = REPLICAS.bind(U=Energy(z, U=12 * total((z**2 - 1) ** 2) + total(z) / 2))
    run = dict(warmup=1500, steps=1, backend="cpp") | RUN
    draws = samplers.sample(bound, chains=5000, **run)
    scores = {}
    for name, temperature in (("x", 1.0), ("y", 8.0)):
        share, expected = float((draws[name] < 0).double().mean()), share_left(temperature)
        scores[name] = max(abs(share - expected) - 0.02, 0) / (expected * (1 - expected) / 5000) ** 0.5
    assert not CLAIMS["swaps"].failures(scores)
    alone = replace(bound, jumps={}, scheme="Euler")
    assert (samplers.sample(alone, chains=100, **run)["x"] > 0).all()


def test_a_run_by_kernels_has_the_numbers_of_torch():
    z = vector("z")
    bound = REPLICAS.bind(U=Energy(z, U=total(z**4) / 4 + total(z)))
    arguments = dict(chains=3, steps=60, step_size=0.05, progress=False, init=torch.ones(2))
    arguments["init"] = {"x": torch.ones(2, dtype=torch.float64), "y": -torch.ones(2, dtype=torch.float64)}
    by_torch, by_cpp = (samplers.sample(bound, backend=backend, **arguments) for backend in ("torch", "cpp"))
    opaque = samplers.sample(REPLICAS, lambda at: (at**4 / 4 + at).sum(), **arguments)
    for name in ("x", "y"):
        assert torch.allclose(by_torch[name], by_cpp[name], atol=1e-9)
        assert torch.allclose(by_torch[name], opaque[name], atol=1e-9)


# ---- refusals


def test_minibatches_are_refused():
    arguments = dict(data=torch.ones(10, 1), batch_size=2, init={"x": torch.ones(1), "y": torch.ones(1)}, step_size=0.1)
    with pytest.raises(RecipeError, match=r"swap\(x, y\) is accepted by the value of U, of which a minibatch"):
        samplers.sample(REPLICAS, lambda at, batch: (at**2).sum() * batch.sum(), **arguments)


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ((x, scalar("s")), "x is a vector, real, s is a scalar, real"),
        ((x, vector("r", domain="positive")), "one kind and one domain"),
        ((x, x), "it is of blocks, each of them once"),
        (((x, p), (y, x)), "it is of blocks, each of them once"),
        (((x, p), y), "2 blocks and 1 do not change places"),
        ((x, 3), "it is of blocks, each of them once"),
    ],
)
def test_sides_that_do_not_fit_are_refused(sides, message):
    with pytest.raises(RecipeError, match=message):
        swap(*sides)


def test_energies_that_are_no_copies_are_refused():
    with pytest.raises(RecipeError, match=r"swap\(x, y\) makes U_a\(y\) of U_a\(x\), which H does not have. .* copies"):
        replace(REPLICAS, H=potential(x, name="a") + potential(y, name="b"))


@pytest.mark.parametrize(
    ("jump", "message"),
    [
        (swap(x, p), "p is not in the state. Swap blocks of the state"),
        (swap(x, y, rate=total(x**2)), "reads x, and the jump would not keep the law"),
        (swap(x, y, rate=positive("r", per=x)), "a chain is swapped as a whole"),
        (3, r"Write refresh\(p, rate=nu\), or swap"),
    ],
)
def test_swaps_that_do_not_fit_are_refused(jump, message):
    with pytest.raises(RecipeError, match=message):
        replace(REPLICAS, jumps={"S": jump})


def test_a_word_without_the_swap_is_refused():
    with pytest.raises(RecipeError, match="leaves out the jump 'S'"):
        integrators.compile(REPLICAS, "Euler")


def test_a_swap_whose_way_back_has_another_ratio_is_refused(monkeypatch):
    monkeypatch.setattr(Swap, "excess", lambda self, H: H)
    with pytest.raises(RecipeError, match="the way back of swap"):
        replace(REPLICAS, name="other")


def test_a_swap_of_a_block_that_is_mapped_is_refused():
    one = Recipe(name="one", state=(x, p), H=total(x**2 + p**2), D={x: 1, p: 1}, jumps={"S": swap(x, p)})
    with pytest.raises(RecipeError, match="would be in other coordinates"):
        mapped(one, x=vector("z"), by=lambda z: 2 * z)
