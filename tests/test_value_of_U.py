"""Recipes whose formulas read U itself: the value is taken with the gradient, and its estimates are no secret."""

import numpy as np
import pytest
import torch
from error_budget import CLAIMS
from orders import slopes
from same_step import all_ways_agree
from sympy import Max, log, symbols
from zoo import CONTOUR

import integrators
import samplers
from integrators import compile
from integrators.flow import reads_U
from recipe import Energy, Recipe, RecipeError, adapted, numerical, potential, scalar, total, vector
from samplers.testing.properties import emitted_equals_interpreted, pieces_sum_to_the_sde

theta, p, xi = vector("theta"), vector("p"), scalar("xi")
U = potential(theta)
level = adapted("level")

Tempered = Recipe(
    name="tempered", state=(theta, xi), H=U / (1 + xi**2) + xi**2 / 2, D={theta: 1, xi: 1}, scheme="Euler"
)
Heated = Recipe(  # a thermostat that is coupled where U is above 0
    name="heated",
    state=(theta, p, xi),
    H=U + total(p**2) / 2 + xi**2 / 2,
    D={p: 1},
    Q={(theta, p): -1, (p, xi): p * Max(0, U)},
)
Levelled = Recipe(
    name="levelled",
    state=(theta,),
    H=U,
    D={theta: 1 / (1 + level**2)},
    adapt={level: 0.9 * level + 0.1 * U},
    scheme="Euler",
)


def well(theta):
    return (theta**2).sum(-1) / 2 + (theta**4).sum(-1) / 4


def slope(theta):
    return theta + theta**3


# ---- the step


@pytest.mark.parametrize("recipe", [CONTOUR, Tempered, Heated, Levelled], ids=lambda recipe: recipe.name)
def test_text_program_and_formulas_are_one_step(recipe):
    step = compile(recipe)
    emitted_equals_interpreted(step)
    pieces_sum_to_the_sde(step)
    assert "value(theta) -> U, (chains,)" in step.source


def test_value_and_gradient_at_predicted_points_are_those_of_the_points():
    """dtheta = -(1 + zeta/(1 + U)) grad U dt + ...: Heun asks for both at the predicted point."""
    step = compile(CONTOUR, "X", pieces={"X": numerical(theta, "heun")})
    emitted_equals_interpreted(step)
    assert step.source.count("value(theta)\n") == step.source.count("gradient(theta)\n") == 2


def test_kernels_make_the_same_numbers():
    x, y = symbols("x y", real=True)
    energy = Energy((x, y), U=x**2 / 2 + (y - x**2) ** 2 / 2)
    settings = dict(init=torch.zeros(2), chains=4, steps=50, step_size=0.02, progress=False)
    by_torch, by_cpp = (samplers.sample(Tempered, energy, backend=b, **settings)["theta"] for b in ("torch", "cpp"))
    in_torch = samplers.sample(
        Tempered, lambda z: z[0] ** 2 / 2 + (z[1] - z[0] ** 2) ** 2 / 2, backend="torch", **settings
    )
    assert torch.allclose(by_torch, by_cpp, atol=2e-5) and torch.allclose(by_torch, in_torch["theta"], atol=2e-5)


# ---- its law


def law_of_contour():
    """exp(-U)/(1 + U)^zeta on a grid."""
    points = np.linspace(-5, 5, 801)
    value = well(points[:, None])
    weights = np.exp(-value) / (1 + value) ** 0.5
    return {"theta": (points, weights / weights.sum())}


@pytest.mark.parametrize("value, order", [(well, 2), (lambda theta: 0 * well(theta), 1)], ids=["U", "no U"])
def test_the_law_is_that_of_the_energy_with_its_function(value, order):
    """The defect falls as h^2; with another value of U it falls as h."""
    found = slopes(compile(CONTOUR, "Euler"), law_of_contour(), slope, hs=(0.01, 0.005), value=value)[0]
    assert abs(found - order) < 0.3


def test_one_pass_of_a_torch_energy_gives_value_and_gradient():
    calls = []

    def energy(theta):
        calls.append(1)
        return well(theta)

    settings = dict(init=torch.zeros(2), chains=3, step_size=0.01, progress=False)
    samplers.sample(CONTOUR, energy, steps=5, **settings)
    few = len(calls)
    samplers.sample(CONTOUR, energy, steps=15, **settings)
    assert len(calls) - few - few == 10


# ---- what is said of it


def test_the_certificate_names_it_and_is_exact_on_all_data():
    finding = CONTOUR.check()["value"]
    assert finding.verdict == "proved" and "of an estimate on a minibatch they make another law" in finding.answer
    assert CONTOUR.check().exact and not any(f.topic == "value" for f in samplers.SGLD.check().findings)


def of_batch(theta, batch):
    return 10 * ((batch[0] - theta) ** 2).sum(-1).mean()


def test_a_run_on_minibatches_says_that_its_law_is_another_one():
    settings = dict(init=torch.zeros(2), chains=2, steps=5, step_size=1e-3, progress=False, data=(torch.ones(20, 2),))
    with pytest.warns(RuntimeWarning, match="read U itself, of which a minibatch has an estimate"):
        samplers.sample(CONTOUR, of_batch, batch_size=5, **settings)
    samplers.sample(CONTOUR, of_batch, **settings)


def test_steps_are_not_accepted_by_a_minibatch():
    settings = dict(init=torch.zeros(2), steps=5, step_size=1e-3, progress=False, data=(torch.ones(20, 2),))
    with pytest.raises(RecipeError, match="of which a minibatch has an estimate alone"):
        samplers.sample(samplers.MALA, of_batch, batch_size=5, metropolis=True, **settings)


def test_accepted_steps_read_it_too():
    """exp(-W) is 1 on average, from exp(-H), whatever the step size."""
    step = integrators.metropolised(CONTOUR, "Euler", accept=False)
    generator = torch.Generator().manual_seed(3)
    points, weights = law_of_contour()["theta"]
    at = torch.multinomial(torch.as_tensor(weights), 200_000, True, generator=generator)
    start = torch.as_tensor(points)[at, None]
    state = {"theta": start} | {a.name: torch.ones(len(at), dtype=torch.float64) for a in step.recipe.adapted}
    state |= {"work": torch.zeros(len(at), dtype=torch.float64)}
    noise = {name: torch.randn(len(at), 1, dtype=torch.float64, generator=generator) for name in step.draws}
    work = step(state, 0.1, gradient=slope, value=well, noise=noise)["work"]
    factor = torch.exp(-work)
    error = float(factor.std()) / len(at) ** 0.5
    assert error < 0.003 and not CLAIMS["work of values and networks"].failures({"U": float(factor.mean() - 1) / error})


def test_a_step_without_the_value_is_refused():
    state = {"theta": torch.zeros(1, 2)}
    with pytest.raises(RecipeError, match="value is missing"):
        compile(CONTOUR)(state, 0.1, gradient=slope, noise={"theta": torch.zeros(1, 2)})


def test_a_gradient_without_its_value_is_refused():
    with pytest.raises(RecipeError, match="value"):
        samplers.sample(CONTOUR, gradient=lambda z: z, init=torch.zeros(2), steps=5, step_size=0.01, progress=False)


def test_no_stock_sampler_reads_it():
    assert not any(reads_U(recipe.drift, 0) for recipe in samplers.catalogue.values())


def test_of_several_potentials_each_has_a_value():
    fast, slow = potential(theta, name="fast"), potential(theta, name="slow")
    recipe = Recipe(name="two", state=(theta,), H=fast + slow + log(1 + slow), D={theta: 1}, scheme="Euler")
    assert 'value["slow"](theta) -> U_slow, (chains,)' in compile(recipe).source
    values = {"fast": well, "slow": lambda at: (at**2).sum(1)}
    all_ways_agree(recipe, {"fast": slope, "slow": lambda at: 2 * at}, value=values)
