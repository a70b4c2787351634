"""The scope "tensor": totals, n and scalar blocks are per tensor of the target, as if each tensor were a target alone.

theta is (chains, sites), the tensors end to end; a scalar block is (chains, tensors).
"""

import numpy as np
import pytest
import torch
from covering import EVERY_MECHANISM, covering
from statements import interpret
from sympy import Symbol, sqrt

import samplers
from integrators import compile
from integrators.backends.loading import load
from integrators.initial_state import stationary_start
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    adapted,
    grad,
    observe,
    positive,
    potential,
    refresh,
    scalar,
    total,
    vector,
)
from samplers import ISGD, PSGLD, SGNHT, RandomisedHMC, SGRLDDense
from samplers.testing.cases import CASES
from samplers.testing.interpreter import flow_by_flow
from samplers.testing.random_calls import by_oracle, inputs, own_step_size, tensors, worst

SIZES = [2, 1, 4]
SITES, CHAINS = sum(SIZES), 5
PARTS = [slice(end - size, end) for size, end in zip(SIZES, np.cumsum(SIZES))]

theta, p, xi = vector("theta"), vector("p"), scalar("xi")
c, m = positive("c", default=1.3), positive("m", default=1.7, per=theta)
U, n = potential(theta), total(1)
s = adapted("s", start=total(grad(U) ** 2) / n, domain="nonnegative")


def sitewise(at):
    """The gradient of an energy without any coupling, so that tensors are independent."""
    return at**3 / 4 + at / 2 - 0.4


def totals_of_totals():
    """n, totals within functions and of parameters, a friction, an adapted number and a statistic per tensor."""
    H = U + total(p**2 / m) / 2 + n * (xi - c) ** 2 / 2
    new = {s: s / 2 + total(p**2) / n + observe("t") ** 2}
    return Recipe(
        name="totals",
        state=(theta, p, xi),
        H=H,
        D={p: m * (c + s / (1 + total(m) * n))},
        Q={(theta, p): -1, (p, xi): p / n, (theta, xi): sqrt(1 + total(theta) ** 2 / n)},
        adapt=new,
        scheme="Euler",
    )


def jumping():
    """Each tensor jumps by itself."""
    return Recipe(
        name="jumping",
        state=(theta, p, xi),
        H=U + total(p**2 / m) / 2 + n * (xi - c) ** 2 / 2,
        D={p: m},
        Q={(theta, p): -1, (p, xi): p / n},
        scheme="R B A' Z O A' B",
        jumps={"R": refresh(p, rate=c), "Z": refresh(xi)},
    )


OBSERVE = {"t": lambda theta: torch.stack([theta[:, part].sum(1) for part in PARTS], 1)}
SEPARATE = {"t": lambda theta: theta.sum(1)}
OWN = {"totals": totals_of_totals, "jumping": jumping}
STOCK = {
    name: case
    for name, case in CASES.items()
    if case.recipe.target_is_vector and "squared_residuals" not in case.observe
}
RECIPES = {**{name: case.recipe for name, case in STOCK.items()}, **{name: make() for name, make in OWN.items()}}


def observing(name, table):
    return table if name == "totals" else STOCK[name].observe if name in STOCK else {}


def stepped(step, state, noise, parameters, observe, **more):
    """Two steps, the second from where the first has ended."""
    curved = {"curvature": lambda at: 0.3 + at**2 / 2} if step.program.needs_curvature else {}
    for _ in range(2):
        state = step(
            state, own_step_size(step), gradient=sitewise, noise=noise, observe=observe, **curved, **more, **parameters
        )
    return state


@pytest.mark.parametrize("name", covering(RECIPES, {*EVERY_MECHANISM, *OWN} & set(RECIPES)))
def test_a_step_over_tensors_is_a_step_of_every_tensor_by_itself(name):
    whole, alone = compile(RECIPES[name], scope="tensor"), compile(RECIPES[name])
    state, drawn, parameters = map(tensors, inputs(whole, CHAINS, (SITES,), sizes=SIZES))
    together = stepped(whole, state, drawn, parameters, observing(name, OBSERVE), sizes=SIZES)
    for k, part in enumerate(PARTS):

        def of_one(values):
            return {
                key: v
                if not torch.is_tensor(v)
                else v[part]
                if v.dim() == 1
                else v[:, k]
                if v.shape[-1] == len(SIZES)
                else v[:, part]
                for key, v in values.items()
            }

        apart = stepped(alone, of_one(state), of_one(drawn), of_one(parameters), observing(name, SEPARATE))
        for block in RECIPES[name].entries:
            result = together[block.name][:, part if block.is_vector else k]
            assert result.shape == apart[block.name].shape, block
            assert torch.allclose(result, apart[block.name], rtol=1e-12, atol=1e-13), block


@pytest.mark.parametrize("oracle", [interpret, flow_by_flow])
@pytest.mark.parametrize("name", covering(RECIPES, {*EVERY_MECHANISM, *OWN} & set(RECIPES)))
def test_the_emitted_step_over_tensors_equals_the_oracle(name, oracle):
    step = compile(RECIPES[name], scope="tensor")
    state, drawn, parameters = inputs(step, CHAINS, (SITES,), sizes=SIZES)
    observe = observing(name, {"t": lambda theta: np.stack([np.asarray(theta)[:, part].sum(1) for part in PARTS], 1)})
    curved = {"curvature": lambda at: 0.3 + at**2 / 2} if step.program.needs_curvature else {}
    tensor = {key: lambda theta, f=f: torch.as_tensor(f(theta)) for key, f in observe.items()}
    out = step(
        tensors(state),
        own_step_size(step),
        gradient=sitewise,
        noise=tensors(drawn),
        observe=tensor,
        sizes=SIZES,
        **curved,
        **tensors(parameters),
    )
    expected = by_oracle(
        oracle, step, state, drawn, parameters, gradient=sitewise, observe=observe, sizes=SIZES, **curved
    )
    assert worst(out, expected) <= 1e-12


def test_without_totals_and_scalars_the_scope_makes_no_difference():
    step, plain = compile(PSGLD, scope="tensor"), compile(PSGLD)
    state, drawn, parameters = map(tensors, inputs(plain, CHAINS, (SITES,)))
    given = dict(gradient=sitewise, noise=drawn, **parameters)
    assert all(torch.equal(v, plain(state, 0.1, **given)[k]) for k, v in step(state, 0.1, sizes=SIZES, **given).items())


def test_thermostats_start_from_the_law_of_their_own_tensor():
    """xi ~ N(A, T/(n mu)), with n the size of its tensor."""
    start = stationary_start(SGNHT, "tensor")
    state = {b.name: torch.zeros(CHAINS, SITES if b.is_vector else len(SIZES)).double() for b in SGNHT.state}
    noise = {name: torch.ones_like(state[name]) for name in start.draws}
    xi = start(state, 1.0, noise=noise, sizes=SIZES, temperature=0.8, A=0.7, mu=1.6)["xi"]
    expected = 0.7 + (0.8 / (1.6 * torch.tensor(SIZES, dtype=torch.float64))).sqrt()
    torch.testing.assert_close(xi, expected.expand(CHAINS, -1))


# ---- a run

LAYERS = {"weight": torch.full((2, 2), 0.5, dtype=torch.float64), "bias": torch.full((3,), 2.0, dtype=torch.float64)}


def layered(at):
    """An energy whose tensors have nothing to do with each other."""
    return (at["weight"] ** 2).sum() / 2 + (at["bias"] ** 4).sum() / 4


def run(recipe, chains=3, **more):
    given = {"init": LAYERS, "steps": 4, "step_size": 0.01, "scope": "tensor", "progress": False}
    return samplers.sample(recipe, layered, chains=chains, **given | more)


@pytest.mark.parametrize("chains", [1, 2, 3])
def test_scalar_blocks_are_drawn_by_chain_draw_and_tensor(chains):
    draws = run(SGNHT, chains, keep=["xi", "p"])
    assert {name: tuple(v.shape) for name, v in draws.items()} == {
        "weight": (chains, 4, 2, 2),
        "bias": (chains, 4, 3),
        "xi": (chains, 4, 2),
        "p": (chains, 4, 7),
    }
    assert run(RandomisedHMC, chains, step_size=0.3)["weight"].shape == (chains, 4, 2, 2)


@pytest.mark.parametrize("chains", [1, 2, 3])
def test_an_adapted_number_starts_and_moves_per_tensor(chains):
    """i-SGD's lam = total(b) per layer, b = g^2/2 at the start: 4 weights of g = 1/2, 3 of g = 8."""
    draws = run(ISGD, chains, keep="lam", step_size=1e-9, steps=1)
    expected = torch.tensor([4 / 8, 3 * 32], dtype=torch.float64).expand(chains, -1)
    torch.testing.assert_close(draws["lam"][:, 0], expected, rtol=1e-6, atol=0)
    still = run(ISGD, chains, keep="lam", step_size=1e-9, steps=1000, phases=[samplers.Phase(1, freeze="lam")])
    torch.testing.assert_close(still["lam"], draws["lam"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("chains", [2, 3])
def test_a_statistic_of_the_whole_target_is_one_number_for_all_tensors(chains):
    """s follows the statistic, plus a total over its own tensor."""
    recipe = Recipe(name="watching", state=(theta,), H=U, D={theta: 1 + s}, adapt={s: observe("t") + total(theta**2)})
    draws = run(recipe, chains, observe={"t": lambda at: 5 * (at["weight"] ** 2).sum()}, keep="s", steps=1)
    square = {name: (draws[name][:, 0] ** 2).reshape(chains, -1).sum(1) for name in LAYERS}
    expected = torch.stack([5 * square["weight"] + square[name] for name in LAYERS], 1)
    torch.testing.assert_close(draws["s"][:, 0], expected)


@pytest.mark.parametrize("name", ["sgld-sa", "sghmc-sa"])
def test_a_scalar_that_scales_the_energy_of_all_tensors_is_refused(name):
    """Per tensor, the force would be no gradient."""
    with pytest.raises(RecipeError, match="scope 'tensor'.*one sigma for every tensor, but U is one for all"):
        compile(CASES[name].recipe, scope="tensor")


def test_the_optimizer_of_a_standalone_file_keeps_the_scope():
    """Two parameter tensors, two thermostats: as two optimizers of one tensor each."""
    optimizer = load(compile(SGNHT, "F A'", scope="tensor").standalone(), "standalone")["Optimizer"]

    def trained(groups):
        weights = [torch.linspace(0, size, size, dtype=torch.float64, requires_grad=True) for size in (2, 3)]
        chosen = [[weights[k] for k in group] for group in groups]
        running = [optimizer(group, step_size=0.1, temperature=0.0) for group in chosen]
        for _ in range(5):
            for w in weights:
                w.grad = sitewise(w.detach())
            for one in running:
                one.step()
        return torch.cat([w.detach() for w in weights])

    torch.testing.assert_close(trained([[0, 1]]), trained([[0], [1]]), rtol=1e-13, atol=0)


# ---- what is refused

x_, y_ = Symbol("x", real=True), Symbol("y", real=True)
REFUSED = {
    "a scope that is none": (lambda: compile(SGNHT, scope="layer"), ["sgnht, scope 'layer'", "no such scope"]),
    "a symbolic energy": (
        lambda: compile(SGNHT, scope="tensor", energy=Energy((x_, y_), U=x_**2 + y_**2)),
        ["sgnht, scope 'tensor'", "the target is one tensor"],
    ),
    "explicit coordinates": (lambda: compile(SGRLDDense, scope="tensor"), ["the target is one tensor"]),
    "one tensor without a name": (lambda: run(SGNHT, init=torch.zeros(7)), ["needs the target's tensors by name"]),
    "a target by its block": (lambda: run(SGNHT, init={"theta": torch.zeros(7)}), ["the target's tensors by name"]),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_scope_that_does_not_fit_is_refused(mistake):
    make, words = REFUSED[mistake]
    with pytest.raises(RecipeError) as raised:
        make()
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize("sizes", [None, [], [2, 1], [2, 1, 4, 1]])
def test_a_step_refuses_sizes_that_are_not_those_of_the_target(sizes):
    step = compile(SGNHT, scope="tensor")
    state, drawn, parameters = map(tensors, inputs(step, CHAINS, (SITES,), sizes=SIZES))
    with pytest.raises(RecipeError, match="sgnht, step: .*sizes"):
        step(state, 0.1, gradient=sitewise, noise=drawn, sizes=sizes, **parameters)
