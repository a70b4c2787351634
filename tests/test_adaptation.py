"""Adapted quantities: frozen inside a step, and moved between steps from the first gradient of the step.

By the order of the recipe they move after the step and see its new blocks ("lagged"), or before their gradient is used
("same_step"), or are taken for the functions of theta that they are ("differentiated").
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from covering import covering
from statements import interpret
from sympy import Piecewise, Symbol, exp, sqrt

import samplers
from integrators import compile
from integrators.backends.loading import load
from integrators.initial_state import adaptation_start
from recipe import (
    Recipe,
    RecipeError,
    adapted,
    fraction,
    grad,
    num_data,
    observe,
    positive,
    potential,
    refresh,
    step_number,
    step_size,
    total,
    vector,
)
from samplers import PSGLD, SANTA, SGNHT, Phase, PSGLDGamma
from samplers.running.schedules import Polynomial
from samplers.testing.cases import CASES
from samplers.testing.interpreter import flow_by_flow
from samplers.testing.random_calls import asked, by_oracle, called, gradient, inputs, own_step_size, tensors, worst

theta, p, other = vector("theta"), vector("p"), vector("v")
U, n = potential(theta), total(1)
alpha, c = fraction("alpha", default=0.8), positive("c", default=1.3)
V = adapted("V", like=theta, start=grad(U) ** 2, domain="nonnegative")
W = adapted("W", like=theta, start=0.5, domain="nonnegative")
s = adapted("s", start=total(grad(U) ** 2) / n, domain="nonnegative")
KEPT = alpha * V + (1 - alpha) * grad(U) ** 2


def langevin(**more):
    """A friction that follows the gradient, with some of the declaration changed."""
    given = dict(
        name="adaptive",
        state=(theta, p),
        target=theta,
        H=U + total(p**2) / 2,
        D={p: c + sqrt(V)},
        Q={(theta, p): -1},
        adapt={V: KEPT},
        scheme="B A O A B",
    )
    return Recipe(**given | more)


def everything():
    """What an adaptation may read: old values, the gradient, blocks, totals, parameters, the run, the step."""
    new = {
        V: KEPT + step_size * theta**2 + total(p**2) / (n * c),
        W: V + exp(-W) * abs(p),
        s: total(W * grad(U) ** 2) / num_data + s / (1 + step_number),
    }
    return langevin(name="everything", D={p: c + sqrt(V) + W + s}, adapt=new)


def of_every_level():
    """New values that are plain numbers, numbers per site or per chain alone."""
    return langevin(name="of-every-level", D={p: c + V + W + s}, adapt={V: s, W: positive("m", per=theta), s: c})


def exchanged():
    """Two quantities that take each other's place."""
    return langevin(name="exchanged", D={p: c + V + 2 * W}, adapt={V: W, W: V})


def observing():
    """Statistics per site and per chain, the first by a choice."""
    a, b = observe("a", like=theta), observe("b")
    new = {W: Piecewise((a**2, a > theta), (W, True)), s: s / 2 + b**2}
    return langevin(name="observing", D={p: c + W + s}, adapt=new)


def refused(at):
    """An observation that raises an error without a message."""
    raise AssertionError


def without_a_gradient():
    """A target that is wholly symbolic."""
    return Recipe(
        name="symbolic",
        state=(theta, p),
        H=total(theta**4) / 4 + total(p**2) / 2,
        D={p: c + W},
        Q={(theta, p): -1},
        adapt={W: W / 2 + theta**2},
    )


OWN = [langevin, everything, of_every_level, exchanged, observing, without_a_gradient]
WORDS = ["Euler", "B A O A B", "A B O B A", "O B A B O", "F A", "A F", "F A F"]
OBSERVE = {"a": lambda theta: theta**2 - 0.1, "b": lambda theta: theta.reshape(len(theta), -1).sum(1)}


EVERY_WAY = [*product(OWN, WORDS, ["lagged", "same_step"], [True, False])]


@pytest.mark.parametrize("make, word, order, reuse", covering(EVERY_WAY, EVERY_WAY[::10]))
def test_the_emitted_adaptation_equals_the_oracle(make, word, order, reuse):
    step = compile(replace(make(), order=order), word, reuse_gradient=reuse)
    state, drawn, parameters = inputs(step, 4, (3,))
    out = step(tensors(state), 0.13, gradient=gradient, noise=tensors(drawn), observe=OBSERVE, **parameters)
    for oracle in (interpret, flow_by_flow):
        expected = oracle(step, state, 0.13, gradient=gradient, noise=drawn, observe=OBSERVE, **parameters)
        assert worst(out, expected) <= 1e-12


# ---- the three orders, by hand

ALPHA = 0.8


def overdamped(order):
    """dtheta = -grad(U)/(1 + V) dt + ..., by Euler."""
    return Recipe(name="overdamped", state=(theta,), H=U, D={theta: 1 / (1 + V)}, adapt={V: KEPT + theta}, order=order)


@pytest.mark.parametrize("order", ["lagged", "same_step"])
def test_an_order_says_which_value_the_step_uses_and_where_the_update_looks(order):
    """V' = alpha V + (1 - alpha) g^2 + theta, with g at the old theta, and theta the new one if lagged."""
    step, at, V, h = compile(overdamped(order)), 0.6, 2.0, 0.1
    given = {"theta": torch.tensor([[at]], dtype=torch.float64), "V": torch.tensor([[V]], dtype=torch.float64)}
    out = step(given, h, gradient=lambda x: x**3, noise={"theta": torch.zeros(1, 1)}, alpha=ALPHA)
    mean = ALPHA * V + (1 - ALPHA) * at**6
    used = V if order == "lagged" else mean + at
    moved = at - h * at**3 / (1 + used)
    assert out["theta"].item() == pytest.approx(moved, rel=1e-14)
    assert out["V"].item() == pytest.approx(mean + moved if order == "lagged" else mean + at, rel=1e-14)


def test_differentiated_takes_v_for_the_function_of_theta_that_its_update_makes_of_it():
    """D = 1/(1 + V'(theta)) and Gamma = D'(theta), with the old V; then V moves as if lagged."""
    recipe = replace(overdamped("lagged"), adapt={V: KEPT}, order="differentiated")
    new = alpha * V + (1 - alpha) * grad(U) ** 2
    assert (recipe.D[0] - 1 / (1 + new)).simplify() == 0
    assert (recipe.gamma[0] + 2 * (1 - alpha) * grad(U) * grad(U).diff(theta) / (1 + new) ** 2).simplify() == 0
    step, at, old, h = compile(recipe), 0.6, 2.0, 0.1
    given = {"theta": torch.tensor([[at]], dtype=torch.float64), "V": torch.tensor([[old]], dtype=torch.float64)}
    out = step(
        given, h, gradient=lambda x: x**3, curvature=lambda x: 3 * x**2, noise={"theta": torch.zeros(1, 1)}, alpha=ALPHA
    )
    g, bend, mean = at**3, 3 * at**2, ALPHA * old + (1 - ALPHA) * at**6
    drift = -g / (1 + mean) - 2 * (1 - ALPHA) * g * bend / (1 + mean) ** 2
    assert out["theta"].item() == pytest.approx(at + h * drift, rel=1e-14)
    assert out["V"].item() == pytest.approx(mean, rel=1e-14)


@pytest.mark.parametrize("change", [{}, {"doc": "the same"}, {"scheme": None}, {"name": "other"}])
def test_a_differentiated_recipe_is_differentiated_once(change):
    again = replace(PSGLDGamma, **change)
    assert again.D == PSGLDGamma.D and again.gamma == PSGLDGamma.gamma and again.adapt == PSGLDGamma.adapt


FIRST = {  # values of what stock samplers adapt
    "psgld": lambda g, at: {"V": (g / at["num_data"]) ** 2},
    "psgld-same-step": lambda g, at: {"V": (g / at["num_data"]) ** 2},
    "psgld-gamma": lambda g, at: {"V": (g / at["num_data"]) ** 2},
    "santa": lambda g, at: {"V": (g / at["num_data"]) ** 2, "V_last": (g / at["num_data"]) ** 2},
    "sghmc-adaptive": lambda g, at: {"V": g**2, "gbar": g, "tau": 1.0},
    "isgd": lambda g, at: {"b": g**2 / 2, "lam": (g**2 / 2).sum(1)},
    "sgfs": lambda g, at: {"I1": 0.0},
    **{
        name: lambda g, at: {"rho": 0.5, "kappa": at["kappa0"], "sigma": at["sigma0"], "delta": at["delta0"]}
        for name in ("sgld-sa", "sghmc-sa", "sgld-sa-classification", "sghmc-sa-classification")
    },
}
SAME_STEP = {"psgld-same-step", "sgfs", "santa"}


def test_every_stock_sampler_that_adapts_is_here():
    orders = {name: case.recipe.order for name, case in CASES.items() if case.recipe.adapt}
    assert orders == {name: "same_step" if name in SAME_STEP else "lagged" for name in FIRST}


@pytest.mark.parametrize("name", FIRST)
def test_adaptations_ask_for_no_gradient_of_their_own(name):
    """One evaluation per step, two for the first of B A O A B, adapted or not."""
    step = compile(CASES[name].recipe)
    bare = compile(CASES[name].recipe, freeze=CASES[name].recipe.adapted)
    assert step.program.gradients_per_step == bare.program.gradients_per_step


# ---- a gradient that is carried over


def adapted_by(step, carried):
    """The new adapted values, and the gradients that the step was given: the carried one, if any, and its own."""
    state, drawn, parameters = inputs(step, 2, (3,))
    seen, state = [], tensors(state)

    def marked(at):
        seen.append(gradient(at.detach()).requires_grad_())
        return seen[-1]

    if carried:
        state["gradient"] = marked(state["theta"])
    out = step(state, own_step_size(step), gradient=marked, noise=tensors(drawn), **asked(step), **tensors(parameters))
    return [out[a.name] for a in step.recipe.adapt], seen, out.get("gradient")


def reads(values, gradient):
    """Whether any of the values depends on a gradient directly, and not by the theta that it has moved."""
    values = [v.sum() for v in values if v.requires_grad]
    slopes = torch.autograd.grad(sum(values), gradient, allow_unused=True) if values else (None,)
    return slopes[0] is not None and bool((slopes[0] != 0).any())


@pytest.mark.parametrize("name", [name for name in FIRST if name not in SAME_STEP])
def test_what_is_lagged_never_depends_on_a_gradient_that_the_next_kick_uses(name):
    """Else preconditioner and gradient noise are dependent, and E[G g] is not E[G] E[g]."""
    for word in CASES[name].all_words:
        step = compile(CASES[name].recipe, word)
        recipe_reads = any(e.has(grad(step.recipe.potential)) for e in step.recipe.adapt.values())
        for carried in {False, step.program.carries_gradient}:
            new, seen, left = adapted_by(step, carried)
            if left is not None:
                assert left is seen[-1] and not reads(new, left)
            if recipe_reads:
                assert reads(new, seen[0])


# ---- where it starts


def started(name, shape=(3,)):
    """The first values of the adapted quantities of a stock recipe, and what they are made of."""
    recipe = CASES[name].recipe
    start = adaptation_start(recipe)
    state, _, parameters = inputs(start, 4, shape)
    out = start(tensors(state), 1.0, gradient=gradient, **tensors(parameters))
    result = {a.name: torch.as_tensor(out[a.name], dtype=torch.float64) for a in recipe.adapted}
    return result, gradient(torch.tensor(state["theta"])), parameters


@pytest.mark.parametrize("name", FIRST)
def test_the_first_gradient_starts_the_running_moments(name):
    result, g, parameters = started(name)
    expected = FIRST[name](g, parameters)
    assert result.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(result[key], torch.as_tensor(value, dtype=torch.float64).expand_as(result[key]))


def run(recipe, energy=lambda theta: (theta**4).sum() / 4, **more):
    """A short run of 2 chains from a point where the gradient is not 0."""
    given = {
        "init": torch.tensor([0.5, -1.5], dtype=torch.float64),
        "chains": 2,
        "steps": 6,
        "step_size": 1e-9,
        "progress": False,
    }
    return samplers.sample(recipe, energy, **given | more)


def test_a_run_starts_from_the_first_gradient_and_so_the_first_move_is_a_finite_one():
    """V = g^2 at the start, so that V stays where theta does."""
    V = run(PSGLD, keep="V")["V"]
    torch.testing.assert_close(
        V, torch.tensor([0.5, -1.5], dtype=torch.float64).expand(2, 6, 2) ** 6, rtol=1e-3, atol=0
    )


def test_init_may_give_an_adapted_quantity():
    start = {"theta": torch.zeros(2, dtype=torch.float64), "V": torch.tensor([4.0, 9.0], dtype=torch.float64)}
    V = run(PSGLD, init=start, keep="V", alpha=0.5)["V"]
    torch.testing.assert_close(V[0, :, 0], 4 * 0.5 ** torch.arange(1.0, 7.0, dtype=torch.float64))


# ---- what a run tells


def counting(**more):
    """A recipe that writes down the number of the step, of the data, and the step size."""
    k, N, h = (adapted(name) for name in ("k", "N", "size"))
    message = {k: step_number, N: num_data, h: step_size}
    recipe = Recipe(name="counting", state=(theta,), H=U, D={theta: 1}, adapt=message)
    return run(recipe, keep=["k", "N", "size"], **more)


def test_adaptations_see_the_step_number_from_the_start_of_the_run():
    draws = counting(steps=4, warmup=3)
    assert draws["k"].tolist() == [[3, 4, 5, 6]] * 2 and (draws["N"] == 1).all()
    draws = counting(steps=1000, phases=[Phase(2, keep=False), Phase(3), Phase(1)])
    assert draws["k"].tolist() == [[2, 3, 4, 5]] * 2


def test_adaptations_see_the_step_size_of_the_step_and_the_number_of_data():
    schedule = Polynomial(a=0.1, b=4, gamma=0.5)
    rows = torch.ones(7, 2, dtype=torch.float64)
    draws = counting(energy=lambda theta, rows: (theta * rows).sum(), data=rows, batch_size=3, step_size=schedule)
    assert draws["size"][0].tolist() == pytest.approx([schedule(k) for k in range(6)]) and (draws["N"] == 7).all()


ROWS = torch.arange(1000.0, dtype=torch.float64)[:, None]


def batches(order, word):
    """The rows that the first gradient of each step and its observation have seen; a row is its own number."""
    row, seen = observe("row", like=theta), adapted("seen", like=theta)
    first = adapted("first", like=theta, start=grad(U))
    recipe = langevin(name="rows", D={p: c}, adapt={seen: row, first: grad(U)}, order=order)
    draws = run(
        recipe,
        lambda theta, rows: (theta * rows).sum(),
        init=torch.zeros(1, dtype=torch.float64),
        scheme=word,
        data=ROWS,
        batch_size=1,
        observe={"row": lambda theta, rows: rows[0] + 0 * theta},
        keep=["first", "seen"],
    )
    return draws["first"][..., 0], draws["seen"][..., 0]


@pytest.mark.parametrize("order", ["lagged", "same_step"])
@pytest.mark.parametrize("word", ["Euler", "F A", "A F", "B A O A B", "A B O B A"])
def test_observations_see_the_batch_of_the_first_gradient_of_the_step(word, order):
    """And so, lagged, never that of the next kick."""
    first, seen = batches(order, word)
    assert torch.equal(first, seen)


# ---- what is frozen


@pytest.mark.parametrize("order", ["lagged", "same_step"])
@pytest.mark.parametrize("names", [["V"], ["W", "s"], ["V", "W", "s"]])
def test_a_frozen_quantity_keeps_its_value_and_the_others_move(names, order):
    recipe = replace(everything(), order=order)
    step, free = compile(recipe, freeze=names), compile(recipe)
    state, drawn, parameters = inputs(step, 4, (3,))
    out, expected = (called(one, state, drawn, parameters) for one in (step, free))
    for a in recipe.adapted:
        assert np.array_equal(out[a.name], state[a.name]) == (a.name in names)
        assert order == "same_step" or a.name in names or torch.equal(out[a.name], expected[a.name])
    assert worst(out, by_oracle(flow_by_flow, step, state, drawn, parameters)) <= 1e-12


def test_blocks_and_adapted_quantities_are_frozen_by_name_or_by_themselves():
    state, drawn, parameters = inputs(compile(SANTA), 4, (3,))
    xi, V = SANTA.state[2], SANTA.adapted[0]
    steps = [compile(SANTA, freeze=names) for names in (["xi", "V"], (xi, "V"), [V, xi])]
    outs = [called(step, state, drawn, parameters) for step in steps]
    assert all(torch.equal(outs[0][name], out[name]) for out in outs for name in out)
    assert np.array_equal(outs[0]["xi"], state["xi"]) and not np.array_equal(outs[0]["p"], state["p"])


@pytest.mark.parametrize("freeze", [{"xi"}, "xi", ("p", "xi"), "theta"])
def test_a_frozen_block_takes_no_drift_and_no_noise(freeze):
    """And the letters that would move it may be left out of the word."""
    names = {freeze} if isinstance(freeze, str) else set(freeze)
    step = compile(SGNHT, freeze=freeze)
    state, drawn, parameters = inputs(step, 4, (3,))
    out = called(step, state, drawn, parameters)
    for block in SGNHT.state:
        assert np.array_equal(out[block.name], state[block.name]) == (block.name in names)
    assert set(step.draws) == {"p"} - names
    if names == {"xi"}:
        assert worst(called(compile(SGNHT, "B A O A B", freeze="xi"), state, drawn, parameters), out) <= 1e-15
        with pytest.raises(RecipeError, match="no piece takes .* in the drift of xi"):
            compile(SGNHT, "B A O A B")


@pytest.mark.parametrize("freeze", [(), "V"])
def test_the_optimizer_of_a_standalone_file_keeps_what_is_frozen(freeze):
    weights = torch.tensor([0.5, -1.5], dtype=torch.float64, requires_grad=True)
    text = compile(PSGLD, freeze=freeze).standalone()
    optimizer = load(text, "standalone")["Optimizer"]([weights], step_size=0.1, temperature=0.0)
    seen = []
    for _ in range(3):
        weights.grad = 2 * weights.detach()
        optimizer.step()
        seen.append(optimizer.state[weights]["V"][0, 0].item())
    assert (len(set(seen)) == 1) == (freeze == "V")


def test_a_phase_freezes_for_its_time():
    V = run(PSGLD, phases=[Phase(3), Phase(2, freeze="V"), Phase(2)], steps=1000, step_size=0.1, keep="V")["V"][0, :, 0]
    moved = torch.diff(V) != 0
    assert moved.tolist() == [True, True, False, False, True, True]


# ---- what is refused

MANY, MOVING, LOW = (
    adapted("r", start=grad(U) ** 2),
    adapted("r", like=theta, start=theta**2),
    adapted("r", start=-1, domain="positive"),
)

MISTAKES = {
    "an order that is none": (lambda: langevin(order="delayed"), ["adaptive, order 'delayed'", "lagged"]),
    "an update of a block": (lambda: langevin(adapt={p: p}), ["adaptive, adapt", "a dict over adapted quantities"]),
    "a list of updates": (lambda: langevin(adapt=[V]), ["adaptive, adapt", "a dict over adapted quantities"]),
    "an update in words": (lambda: langevin(adapt={V: "V/2"}), ["adapt[V]", "Text is never evaluated"]),
    "an update with a stray symbol": (lambda: langevin(adapt={V: V + Symbol("k")}), ["'k' is unbound"]),
    "an update with a stray block": (lambda: langevin(adapt={V: V + other**2}), ["'v' is used but is not in the"]),
    "one number from many": (
        lambda: langevin(D={p: c + s}, adapt={s: theta**2}),
        ["update of s", "has one value per site, but s is one number", "total()", "like=theta"],
    ),
    "one first number from many": (
        lambda: langevin(D={p: c + MANY}, adapt={MANY: c}),
        ["start of r", "one value per site"],
    ),
    "a quantity without an update": (
        lambda: langevin(D={p: c + W}, adapt={}),
        ["no update of W is given", "adapt={W: ...}"],
    ),
    "an observation in D": (
        lambda: langevin(D={p: 1 + observe("r") ** 2}),
        ["'r' is used in H, D, Q", "for a constant"],
    ),
    "the step number in D": (lambda: langevin(D={p: 1 + step_number}), ["read step_number", "Only adaptations may"]),
    "a start that reads the state": (
        lambda: langevin(D={p: c + MOVING}, adapt={MOVING: c}),
        ["start of r", "reads theta"],
    ),
    "a first gradient of 0": (
        lambda: run(PSGLD, init=torch.zeros(2, dtype=torch.float64)),
        ["V starts as grad(U)**2", "away from a stationary point", 'init={..., "V": ...}'],
    ),
    "a start outside of the domain": (
        lambda: run(langevin(D={p: c + LOW}, adapt={LOW: LOW})),
        ["outside of its domain"],
    ),
    "an update that leaves the domain": (
        lambda: run(langevin(D={p: c + W}, adapt={W: -W})),
        ["W has left its domain, nonnegative", "Look at the update of W"],
    ),
    "an observation that is not finite": (
        lambda: run(observing(), observe={"a": lambda at: at * float("nan"), "b": torch.sum}),
        ["the observation 'a' is not finite"],
    ),
    "an observation that fails": (
        lambda: run(observing(), observe={"a": lambda at: at.item(), "b": torch.sum}),
        ["observe['a']", "a function of theta"],
    ),
    "an observation that fails without a message": (
        lambda: run(observing(), observe={"a": refused, "b": torch.sum}),
        ["observe['a']: AssertionError", "a function of theta"],
    ),
    "observations that are no dict": (
        lambda: run(observing(), observe=[abs]),
        ["observe", "a dict of functions by name"],
    ),
    "a budget below 0": (lambda: langevin(supplied={p: -1}), ["supplied", "not positive semidefinite"]),
    "what cannot be required": (lambda: langevin(requires=(theta < 1,)), ["requires", "a relation between parameters"]),
    "a name twice": (lambda: langevin(D={p: c + adapted("p", like=theta) ** 2}), ["are named 'p'"]),
    "a name of a parameter": (lambda: langevin(D={p: c + adapted("c") ** 2}), ["are named 'c'"]),
    "an adapted block of the state": (lambda: langevin(state=(theta, p, V)), ["V"]),
    "a redraw": (lambda: langevin(jumps={"R": refresh(V)}), ["jumps['R']", "V is not in the state"]),
    "a shape like a name": (lambda: adapted("V", like="theta"), ["adapted 'V'", "like=theta is not a block"]),
    "a start in words": (lambda: adapted("V", start="0"), ["adapted 'V', start", "Text is never evaluated"]),
    "a domain that is none": (lambda: adapted("V", domain="unit"), ["domain 'unit'", "fraction"]),
    "a name that is taken": (lambda: adapted("step_number"), ["step_number", "this name is taken"]),
    "an observation like a name": (lambda: observe("r", like="theta"), ["observe 'r'", "is not a block"]),
    "a hostile observation": (lambda: observe("r; import os"), ["observation", "a letter followed by"]),
    "an observation named as a block": (lambda: langevin(adapt={V: observe("p")}), ["are named 'p'"]),
    "an unknown name to freeze": (lambda: compile(langevin(), freeze="W"), ["freeze", "there is no block 'W'", "V"]),
    "a stray name in a phase": (lambda: run(PSGLD, phases=[Phase(2, freeze="xi")], steps=1000), ["no block 'xi'"]),
    "no observation": (lambda: run(observing()), ["asks for the observation", "Pass observe="]),
    "an observation too many": (lambda: run(langevin(), observe={"z": abs}), ["there is no observation 'z'"]),
    "an observation that is none": (lambda: run(observing(), observe={"a": 1.0, "b": 2.0}), ["asks for the obs"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_adaptation_that_cannot_be_meant_is_refused(mistake):
    make, words = MISTAKES[mistake]
    with pytest.raises(RecipeError) as raised:
        make()
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize("missing", [{"observe": {}}, {"observe": None}, {"observe": {"a": abs}}])
def test_a_step_names_the_observation_that_is_missing(missing):
    step = compile(observing())
    state, drawn, parameters = inputs(step, 2, (3,))
    assert step.observations == ("a", "b")
    with pytest.raises(RecipeError, match=r"observe\['[ab]'\] is missing"):
        step(tensors(state), 0.1, gradient=gradient, noise=tensors(drawn), **missing, **parameters)


def test_an_update_may_ask_for_the_hessian_diagonal():
    step = compile(langevin(adapt={V: V / 2 + grad(U).diff(theta) ** 2}, order="same_step"))
    assert step.program.needs_curvature
    state, drawn, parameters = inputs(step, 4, (3,))
    for oracle in (interpret, flow_by_flow):
        assert worst(called(step, state, drawn, parameters), by_oracle(oracle, step, state, drawn, parameters)) <= 1e-12


def test_the_law_that_is_claimed_is_given_what_is_adapted():
    assert everything().claim == "given frozen V, W, s" and langevin(D={p: c}, adapt={}).claim == "exact"
    assert everything().check()["claim"].verdict in ("proved", "checked")
