"""Functions of a recipe that torch modules compute: formulas hold them unexpanded, Gamma has torch's derivatives."""

import time
import warnings

import numpy as np
import pytest
import torch
from covering import slow
from error_budget import CLAIMS
from orders import slopes
from torch import nn

import samplers
from integrators import compile, metropolised
from integrators.networks import derivative_of, network
from recipe import Energy, Recipe, RecipeError, function, grad, potential, total, vector
from samplers.testing.properties import emitted_equals_interpreted, pieces_sum_to_the_sde
from samplers.testing.quadrature import gaussian

theta, p = vector("theta"), vector("p")
f, g = function("f", theta, p, sign="positive"), function("g", theta, p)
Learned = Recipe(
    name="learned", state=(theta, p), H=potential(theta) + total(p**2) / 2, D={p: f}, Q={(theta, p): -g}, scheme="Euler"
)


def net(units=16, seed=1, positive=False, inputs=2):
    generator = torch.Generator().manual_seed(seed)
    end = [nn.Softplus()] if positive else []
    module = nn.Sequential(nn.Linear(inputs, units), nn.Tanh(), nn.Linear(units, 1), *end).double()
    for weights in module.parameters():
        weights.data = 0.6 * torch.randn(weights.shape, generator=generator, dtype=torch.float64)
    return module


def bound(units=16, seed=1):
    f = network(net(units, seed, True), name="f", sign="positive")
    return Learned.bind(f=f, g=network(net(units, 2), name="g"))


overdamped = Recipe(name="o", state=(theta,), H=potential(theta), D={theta: function("f", theta, sign="positive")})


def bound_friction(units=4, seed=1):
    return overdamped.bind(f=network(net(units, seed, positive=True, inputs=1), name="f", sign="positive"))


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


@pytest.mark.parametrize("recipe", [bound_friction(), slow(bound(units=4))], ids=["D", "D and Q"])
def test_a_run_keeps_weights_and_randomness_as_they_are(recipe):
    energy = Energy(theta, U=total(theta**2) / 2)
    settings = dict(init=torch.zeros(2), chains=3, steps=20, step_size=0.05, progress=False)
    one, other = (samplers.sample(recipe, e, **settings)["theta"] for e in (energy, lambda z: (z**2).sum() / 2))
    assert torch.allclose(one, other, atol=1e-5) and one.isfinite().all()


# ---- networks of U and of its gradient: friction and coupling of Gong, Li & Hernandez-Lobato 2019


def of_energy_and_gradient(q, d):
    """Q = q(U, p) and D = q(U, p)^2/2 + d(U, p, grad U), of functions that take formulas."""
    U = potential(theta)
    coupling = q(U, p)
    return Recipe(
        name="meta",
        state=(theta, p),
        H=U + total(p**2) / 2,
        D={p: coupling**2 / 2 + d(U, p, grad(U))},
        Q={(theta, p): -coupling},
        scheme="Euler",
    )


def meta(units=8):
    q = network(net(units, 1), name="q")
    return of_energy_and_gradient(q, network(net(units, 2, True, inputs=3), name="d", sign="positive"))


def value(z):
    return (z**2 / 2 + z**4 / 16).sum(-1)


def test_gamma_follows_U_into_a_network():
    """d q(U(theta), p)/dtheta is the network's derivative by its first input, times grad U."""
    recipe = meta()
    assert recipe.residual() == 0 and recipe.check().exact
    assert "Derivative(q(U(theta), p), U(theta))*grad(U)" in str(recipe.gamma)
    assert r"\frac{\partial}{\partial {U(\theta)}} q{\left({U(\theta)},p \right)}" in recipe.latex()
    step = compile(recipe)
    emitted_equals_interpreted(step)
    pieces_sum_to_the_sde(step)


def test_networks_of_U_are_the_same_functions_as_formulas():
    from sympy import exp, log, sin, tanh

    class Friction(nn.Module):
        def forward(self, x):
            return torch.log(1 + torch.exp(x[:, 0] / 9 - x[:, 1] / 3 + torch.sin(x[:, 2])))

    class Coupling(nn.Module):
        def forward(self, x):
            return torch.tanh(x[:, 0] / 4 + x[:, 1] / 2)

    by_torch = of_energy_and_gradient(network(Coupling(), name="q"), network(Friction(), name="d", sign="positive"))
    by_sympy = of_energy_and_gradient(
        lambda u, p: tanh(u / 4 + p / 2), lambda u, p, g: log(1 + exp(u / 9 - p / 3 + sin(g)))
    )
    generator = torch.Generator().manual_seed(3)
    state = {name: torch.randn(4, 3, dtype=torch.float64, generator=generator) for name in ("theta", "p")}
    noise = {"p": torch.randn(4, 3, dtype=torch.float64, generator=generator)}
    one, other = (compile(r)(state, 0.1, gradient=slope, value=value, noise=noise) for r in (by_torch, by_sympy))
    assert all(torch.allclose(one[name], other[name], rtol=1e-12, atol=1e-12) for name in one)


def test_an_open_function_may_be_bound_to_a_network_of_U():
    U = potential(theta)
    q, d = (network(net(4, seed, True), name=name, sign="positive") for seed, name in ((1, "q"), (2, "d")))
    recipe = Learned.bind(f=lambda theta, p: d(U, p), g=lambda theta, p: q(U, p))
    assert recipe.check().exact and "q(U(theta), p)" in str(recipe.drift)


def test_an_open_function_of_U_says_how_to_bind_one():
    with pytest.raises(RecipeError, match="its arguments are blocks, got .U.theta., p.*bind.q=lambda theta, p: ..."):
        function("q", potential(theta), p)


def test_a_network_of_the_gradient_in_Q_asks_for_the_hessian_diagonal():
    U = potential(theta)
    q = network(net(4), name="q")
    recipe = Recipe(name="bent", state=(theta, p), H=U + total(p**2) / 2, D={p: 1}, Q={(theta, p): q(grad(U), p)})
    step = compile(recipe, "Euler")
    assert step.program.needs_curvature and recipe.residual() == 0
    emitted_equals_interpreted(step)


@pytest.mark.parametrize("name, index", [("d", 1), ("q", 0)])
def test_exp_of_minus_H_is_invariant_with_the_derivative_by_each_input(name, index):
    """The defect falls as h^2, and as h without the derivative of d by p, and without that of q by U."""
    recipe = meta(units=4)
    run = dict(draw_nodes=7, value=value)
    assert slopes(compile(recipe), start(), slope, hs=(0.01, 0.005), **run)[0] > 1.9
    step = compile(recipe)
    orders = "".join(str(int(k == index)) for k in range(3 if name == "d" else 2))
    assert f"bound_{name}_{orders}" in step.namespace["_functions"]
    step.namespace["_functions"][f"bound_{name}_{orders}"] = lambda *values: torch.zeros_like(values[1])
    assert slopes(step, start(), slope, hs=(5e-4, 2.5e-4), **run)[0] < 1.2  # where h^2 is small beside h


# ---- networks in a training loop


@pytest.mark.parametrize("recipe", [bound(units=4), slow(meta(units=4))], ids=["theta", "U"])
def test_a_loop_makes_the_numbers_of_a_run(recipe):
    at = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    run = dict(step_size=0.05, seed=3)
    expected = samplers.sample(recipe, value, init=at, steps=6, warmup=0, progress=False, **run)["theta"]
    weights = nn.Parameter(at.clone())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of U, of which a minibatch has an estimate
        optimizer = samplers.Optimizer([weights], recipe, num_data=10, **run)

    def closure():
        optimizer.zero_grad()
        loss = value(weights) / 10
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)
    assert torch.allclose(weights.detach(), expected[0, -1], rtol=1e-12, atol=1e-12)


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
        (nn.Sequential(nn.Linear(2, 1), nn.LogSigmoid()), {"sign": "positive"}, "not positive"),
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
    with pytest.raises(RecipeError, match="standalone.*'f' is no text"):
        compile(bound(units=4)).standalone()


def test_a_kernel_is_refused_where_it_is_asked_for():
    with pytest.raises(RecipeError, match="no C.. form of bound_"):
        state = {name: torch.zeros(1, 2, dtype=torch.float64) for name in ("theta", "p")}
        compile(bound(units=4), backend="cpp")(state, 0.1, gradient=torch.sin, noise={"p": state["p"]})


def test_a_step_of_networks_is_accepted_by_its_work():
    """Gaussian noise of a spread that a network has, exact at a large step size: E exp(-W) = 1."""
    step = metropolised(bound_friction(), "Euler", accept=False)
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


@pytest.mark.parametrize("networks", [bound_friction, slow(bound)], ids=["D", "D and Q"])
def test_a_run_goes_on_with_the_networks_that_it_began_with(networks, tmp_path):
    def drawn(seed, steps):
        run = dict(init=torch.zeros(1, dtype=torch.float64), step_size=0.01, steps=steps, progress=False)
        return samplers.sample(networks(4, seed), lambda x: x.square().sum() / 2, checkpoint=tmp_path, **run)

    first = drawn(1, 5)
    assert torch.equal(drawn(1, 5)["theta"], first["theta"])
    with pytest.raises(RecipeError, match="networks"):
        drawn(3, 5)


def test_a_network_that_is_negative_between_the_points_of_a_line_is_not_called_positive():
    with torch.random.fork_rng():
        torch.manual_seed(4)
        module = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    with pytest.raises(RecipeError, match="somewhere, not positive"):
        network(module, sign="positive")(theta, p)
