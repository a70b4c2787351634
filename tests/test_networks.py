"""Functions of a recipe that torch modules compute: formulas hold them unexpanded, Gamma has torch's derivatives."""

import time

import numpy as np
import pytest
import torch
from error_budget import CLAIMS
from torch import nn

import samplers
from integrators import compile, metropolised
from integrators.networks import derivative_of, network
from recipe import Energy, Recipe, RecipeError, function, potential, total, vector
from samplers.testing.one_step import slopes
from samplers.testing.properties import emitted_equals_interpreted, pieces_sum_to_the_sde
from samplers.testing.quadrature import gaussian

theta, p = vector("theta"), vector("p")
f, g = function("f", theta, p, sign="positive"), function("g", theta, p)
Learned = Recipe(
    name="learned",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2) / 2,
    D={p: f},
    Q={(theta, p): -g},
    scheme="Euler",
)


def net(units=16, seed=1, positive=False, inputs=2):
    generator = torch.Generator().manual_seed(seed)
    end = [nn.Softplus()] if positive else []
    module = nn.Sequential(nn.Linear(inputs, units), nn.Tanh(), nn.Linear(units, 1), *end).double()
    for weights in module.parameters():
        weights.data = 0.6 * torch.randn(weights.shape, generator=generator, dtype=torch.float64)
    return module


def bound(units=16):
    return Learned.bind(f=network(net(units, 1, True), name="f", sign="positive"), g=network(net(units, 2), name="g"))


# ---- the formulas and the step


def test_the_proof_holds_for_the_networks_and_nothing_is_expanded():
    begun = time.process_time()
    recipe = bound(units=64)
    step = compile(recipe)
    assert recipe.residual() == 0 and recipe.check().ok
    assert str(recipe.gamma) == str(Learned.gamma)
    assert time.process_time() - begun < 10 and len(step.source) < 3000


def test_text_program_and_formulas_are_one_step():
    step = compile(bound())
    emitted_equals_interpreted(step)
    pieces_sum_to_the_sde(step)


def test_the_step_is_that_of_the_same_function_as_a_formula():
    """f = log(1 + exp(theta/2 - p/3)), g = tanh(theta + p/2): derivatives by sympy and by torch."""
    from sympy import exp, log, tanh

    class F(nn.Module):
        def forward(self, x):
            return torch.log(1 + torch.exp(x[:, 0] / 2 - x[:, 1] / 3))

    class G(nn.Module):
        def forward(self, x):
            return torch.tanh(x[:, 0] + x[:, 1] / 2)

    by_torch = Learned.bind(f=network(F(), name="f", sign="positive"), g=network(G(), name="g"))
    by_sympy = Learned.bind(f=lambda a, b: log(1 + exp(a / 2 - b / 3)), g=lambda a, b: tanh(a + b / 2))
    generator = torch.Generator().manual_seed(3)
    state = {name: torch.randn(4, 3, dtype=torch.float64, generator=generator) for name in ("theta", "p")}
    noise = {"p": torch.randn(4, 3, dtype=torch.float64, generator=generator)}
    one, other = (compile(r)(state, 0.1, gradient=torch.sin, noise=noise) for r in (by_torch, by_sympy))
    assert all(torch.allclose(one[name], other[name], rtol=1e-12, atol=1e-12) for name in one)


@pytest.mark.parametrize(
    "orders, expected", [((0, 0), 12.0), ((1, 0), 12.0), ((1, 1), 4.0), ((3, 0), 0.0), ((0, 3), 0.0)]
)
def test_derivatives_of_any_order(orders, expected):
    """x^2 y at (2, 3), with a third derivative that is 0."""
    square = nn.Sequential()
    square.forward = lambda x: x[:, 0] ** 2 * x[:, 1]
    at = torch.tensor([2.0]), torch.tensor([3.0])
    assert derivative_of(square, orders, *at).tolist() == [expected]


# ---- its law


def start():
    points = np.linspace(-4.5, 4.5, 61)
    weights = np.exp(-(points**2) / 2 - points**4 / 16)
    return {"theta": (points, weights / weights.sum()), "p": gaussian(0, 1, 24)}


def slope(theta):
    return theta + theta**3 / 4


def test_exp_of_minus_H_is_invariant_with_gamma_and_not_without():
    """The one-step defect falls as h^2; where the derivatives of the networks are 0 it falls as h."""
    recipe = bound(units=8)
    assert slopes(compile(recipe), start(), slope, hs=(0.01, 0.005), draw_nodes=7)[0] > 1.9
    step = compile(recipe)
    for name in step.namespace["_functions"]:
        if not name.endswith("_00"):
            step.namespace["_functions"][name] = lambda *values: torch.zeros_like(values[0])
    assert slopes(step, start(), slope, hs=(0.01, 0.005), draw_nodes=7)[0] < 1.2


def test_a_run_keeps_weights_and_randomness_as_they_are():
    recipe, energy = bound(units=4), Energy(theta, U=total(theta**2) / 2)
    settings = dict(init=torch.zeros(2), chains=3, steps=20, step_size=0.05, progress=False)
    one, other = (samplers.sample(recipe, e, **settings)["theta"] for e in (energy, lambda z: (z**2).sum() / 2))
    assert torch.allclose(one, other, atol=1e-5) and one.isfinite().all()


# ---- what is refused, before the first step


class Mixing(nn.Module):
    def forward(self, x):
        return x[:, :1] - x.mean()


class Detached(nn.Module):
    def forward(self, x):
        return x.detach()[:, :1]


class Unbounded(nn.Module):
    def forward(self, x):
        return 1 / (x[:, :1] - x[:, :1])


@pytest.mark.parametrize(
    "module, options, message",
    [
        (nn.Linear(3, 1), {}, "calling it with the shape .64, 2. failed"),
        (nn.Linear(2, 2), {}, r"of the shape \(64, 2\) it makes \(64, 2\)"),
        (Detached(), {}, "no derivative by its inputs"),
        (Mixing(), {}, "its rows are not apart"),
        (nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)), {}, "other values when it is called again"),
        (Unbounded(), {}, "not finite"),
        (net(seed=4), {"sign": "positive"}, "not positive"),
    ],
    ids=["inputs", "outputs", "detached", "mixing", "dropout", "infinite", "negative"],
)
def test_a_module_that_is_no_function_of_a_site_is_refused(module, options, message):
    with pytest.raises(RecipeError, match=message):
        Learned.bind(g=network(module, name="g", **options))


def test_what_is_no_module_or_no_sign_is_refused():
    with pytest.raises(RecipeError, match="no torch.nn.Module"):
        network(lambda x: x)
    with pytest.raises(RecipeError, match="sign='negative'"):
        network(net(), sign="negative")


def test_a_network_has_no_text():
    recipe = bound(units=4)
    with pytest.raises(RecipeError, match="standalone.*'f' is no text"):
        compile(recipe).standalone()
    with pytest.raises(RecipeError, match="'f' is bound to a network"):
        samplers.Optimizer([nn.Parameter(torch.zeros(3))], recipe, lr=1e-3, num_data=10)


def test_a_kernel_is_refused_where_it_is_asked_for():
    with pytest.raises(RecipeError, match="no C.. form of bound_"):
        state = {name: torch.zeros(1, 2, dtype=torch.float64) for name in ("theta", "p")}
        compile(bound(units=4), backend="cpp")(state, 0.1, gradient=torch.sin, noise={"p": state["p"]})


def test_a_step_of_networks_is_accepted_by_its_work():
    """Gaussian noise of a spread that a network has, exact at a large step size: E exp(-W) = 1."""
    overdamped = Recipe(name="o", state=(theta,), H=potential(theta), D={theta: function("f", theta, sign="positive")})
    recipe = overdamped.bind(f=network(net(4, positive=True, inputs=1), name="f", sign="positive"))
    step = metropolised(recipe, "Euler", accept=False)
    generator = torch.Generator().manual_seed(3)
    points, weights = start()["theta"]
    at = torch.multinomial(torch.as_tensor(weights), 100_000, True, generator=generator)
    state = {"theta": torch.as_tensor(points)[at, None]}
    state |= {a.name: torch.ones(len(at), dtype=torch.float64) for a in step.recipe.adapted}
    state["work"] = torch.zeros(len(at), dtype=torch.float64)
    noise = {name: torch.randn(len(at), 1, dtype=torch.float64, generator=generator) for name in step.draws}

    def value(theta):
        return (theta**2 / 2 + theta**4 / 16).sum(-1)

    factor = torch.exp(-step(state, 0.1, gradient=slope, value=value, noise=noise)["work"])
    error = float(factor.std()) / len(at) ** 0.5
    assert error < 0.003 and not CLAIMS["work of values and networks"].failures({"D": float(factor.mean() - 1) / error})


def test_a_run_goes_on_with_the_networks_that_it_began_with(tmp_path):
    def drawn(seed, steps):
        learned = Learned.bind(
            f=network(net(seed=seed, positive=True), name="f", sign="positive"), g=network(net(seed=2), name="g")
        )
        run = dict(init=torch.zeros(1, dtype=torch.float64), step_size=0.01, steps=steps, progress=False)
        return samplers.sample(learned, lambda x: x.square().sum() / 2, checkpoint=tmp_path, **run)

    first = drawn(1, 5)
    assert torch.equal(drawn(1, 5)["theta"], first["theta"])
    with pytest.raises(RecipeError, match="networks"):
        drawn(3, 5)
