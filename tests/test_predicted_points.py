"""Flows that take gradients at points they predict: Heun, the randomised midpoint, stochastic Runge-Kutta.

The step is compared with two interpreters, one of which knows the flow's formula alone, its order is read off one-step
defects, and steps that take the wrong noise or the wrong gradient are found.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from covering import covering
from orders import slopes
from sympy import symbols

import integrators
import samplers
from integrators import compile
from integrators.linear_law import linear_chain
from integrators.predicted import At
from integrators.program import Draw, Gradient, Let, verify
from integrators.variates import Normal
from recipe import Energy, Recipe, RecipeError, numerical, positive, potential, scalar, total, vector
from samplers import UnderdampedLangevin
from samplers.testing.properties import emitted_equals_interpreted, pieces_sum_to_the_sde
from samplers.testing.quadrature import gaussian

theta, p = vector("theta"), vector("p")
x, y = scalar("x"), scalar("y")
METHODS = {"heun": 2, "randomised midpoint": 2, "stochastic runge-kutta": 3}  # with the gradients of a step

Langevin = Recipe(name="langevin", state=(theta,), H=potential(theta), D={theta: 1})
Turned = Recipe(
    name="turned",
    state=(x, y),
    target=(x, y),
    H=potential(x, y),
    D={x: 1, y: 0.5},
    Q={(x, y): positive("q", default=1)},
)
Kinetic = replace(UnderdampedLangevin, name="kinetic", scheme=None, schemes={})


def stepped(recipe, method, **options):
    return compile(recipe, "X", pieces={"X": numerical(recipe.state, method)}, **options)


def quartic():
    """exp(-theta^4/4 - theta^2/4), and its gradient."""
    points = np.linspace(-6, 6, 1201)
    weights = np.exp(-(points**4) / 4 - points**2 / 4)
    kept = weights > 1e-16
    return (points[kept], weights[kept] / weights.sum()), lambda theta: theta**3 + theta / 2


def defect_slope(step, h=0.02):
    law, gradient = quartic()
    return slopes(step, {"theta": law}, gradient, hs=(h, h / 2), draw_nodes=12)[0]


# ---- the step


WAYS = [*product([Langevin, Turned, Kinetic], METHODS)]
DEAR = [(Turned, "randomised midpoint"), (Turned, "stochastic runge-kutta")]  # a second or two


@pytest.mark.parametrize("recipe, method", covering(WAYS, [way for way in WAYS if way not in DEAR]))
def test_text_program_and_formula_are_one_step(recipe, method):
    step = stepped(recipe, method)
    emitted_equals_interpreted(step)
    pieces_sum_to_the_sde(step)
    assert f"[{method}, not exact]" in str(step) and not step.exact


@pytest.mark.parametrize("method", METHODS)
def test_the_gradients_of_a_step_are_counted_and_each_is_at_a_point_of_its_own(method):
    step, at = stepped(Langevin, method), []

    def gradient(theta):
        at.append(theta.clone())
        return theta

    state = {"theta": torch.ones(2, 3)}
    noise = {name: torch.full((2,) if kind == "uniform" else (2, 3), 0.3) for name, kind in step.draws.items()}
    step(state, 0.1, gradient=gradient, noise=noise)
    assert step.program.gradients_per_step == len(at) == METHODS[method]
    assert len({float(theta[0, 0]) for theta in at}) == METHODS[method]
    assert f"{METHODS[method]} gradient(s) per step" in str(step)


@pytest.mark.parametrize("method", METHODS)
def test_kernels_of_a_step_and_of_many_steps_make_the_same_numbers(method):
    generator = torch.Generator().manual_seed(1)
    by_torch, by_cpp = (stepped(Langevin, method, backend=backend) for backend in ("torch", "cpp"))
    state = {"theta": torch.randn(3, 5, dtype=torch.float64, generator=generator)}
    noise = {
        name: torch.rand(*(3,) if kind == "uniform" else (3, 5), dtype=torch.float64, generator=generator)
        for name, kind in by_torch.draws.items()
    }
    one, other = (s(state, 0.1, gradient=torch.sin, noise=noise)["theta"] for s in (by_torch, by_cpp))
    assert torch.allclose(one, other, rtol=1e-13, atol=1e-13)

    u, v = symbols("u v", real=True)
    banana = Energy((u, v), U=u**2 / 2 + (v - u**2) ** 2 / 2)
    recipe = replace(Langevin, pieces={"X": numerical(theta, method)})
    settings = dict(scheme="X", init=torch.zeros(2), chains=4, steps=50)
    runs = [
        samplers.sample(recipe, banana, step_size=0.05, backend=backend, progress=False, **settings)
        for backend in ("torch", "cpp")
    ]
    assert torch.allclose(runs[0]["theta"], runs[1]["theta"], atol=2e-5)


# ---- its order


@pytest.mark.parametrize("method", METHODS)
def test_the_defect_of_a_step_falls_with_the_third_power_of_h(method):
    step = stepped(Langevin, method)
    assert step.order == step.marginal_order == 2
    assert defect_slope(step, 0.01) > 2.7


@pytest.mark.parametrize("method", METHODS)
def test_so_it_does_for_position_and_momentum_together(method):
    law, gradient = quartic()
    some = slice(None, None, 10)
    start = {"theta": (law[0][some], law[1][some] / law[1][some].sum()), "p": gaussian(0, 1, 10)}
    assert slopes(stepped(Kinetic, method), start, gradient, hs=(0.05, 0.025), draw_nodes=5)[0] > 2.7


def with_other_points(step, change):
    """The step whose formulas are changed at the predicted points alone."""
    flow = step.flows["X"]
    updates = {}
    for block, e in flow.updates.items():
        changed = {there: At(there.value, there.args[1], change(there.args[2])) for there in e.atoms(At)}
        updates[block] = e.xreplace(changed)
    flows = {"X": replace(flow, updates=updates)}
    program = integrators.lower.lower(step.recipe, step.scheme, flows)
    return replace(step, flows=flows, program=program)


def test_heun_with_the_noise_of_the_corrector_drawn_anew_has_order_1():
    """x' = x + t (f(x) + f(x + t f(x) + w))/2 + v, v independent of w."""
    step = stepped(Langevin, "heun")
    anew = Normal(theta, "anew")
    flow = step.flows["X"]
    (kept,) = flow.draws
    doubled = {"X": replace(flow, draws=(kept, anew))}
    mutant = with_other_points(replace(step, flows=doubled), lambda point: point.xreplace({kept: anew}))
    assert defect_slope(mutant, 0.01) < 2.3


def test_heun_whose_second_gradient_is_the_first_one_has_order_1():
    step = stepped(Langevin, "heun")
    mutant = with_other_points(step, lambda point: point.func(theta))
    assert defect_slope(mutant, 0.01) < 2.3


@pytest.mark.parametrize("method", ["randomised midpoint", "stochastic runge-kutta"])
def test_points_without_their_noise_are_found(method):
    step = stepped(Langevin, method)
    still = {d: 0 for d in step.flows["X"].draws if isinstance(d, Normal)}
    assert defect_slope(with_other_points(step, lambda point: point.xreplace(still)), 0.01) < 2.3


def test_a_program_that_keeps_the_gradient_of_the_start_is_refused():
    """The gradient is not refreshed at the predicted point: it is stale there."""
    program = stepped(Langevin, "heun").program
    first, last = program.stages
    forgetful = replace(last, statements=tuple(s for s in last.statements if not isinstance(s, Gradient)))
    with pytest.raises(RecipeError, match="the gradient g is stale"):
        verify(replace(program, stages=(first, forgetful)))


def test_a_program_that_draws_its_noise_twice_is_refused():
    program = stepped(Langevin, "heun").program
    first, last = program.stages
    (draw,) = [s for s in first.statements if isinstance(s, Draw)]
    (kept,) = [s for s in first.statements if isinstance(s, Let) and s.value == draw.name]
    again = replace(last, statements=(draw, kept, *last.statements))
    with pytest.raises(RecipeError, match="used twice"):
        verify(replace(program, stages=(first, again)))


# ---- what it meets elsewhere


def test_an_adaptation_sees_the_first_gradient_of_the_step():
    """V of the start, not of the predicted point; the flow is that of V as it was."""
    V = samplers.PSGLD.adapted[0]
    target = samplers.PSGLD.state[0]
    step = compile(samplers.PSGLD, "X", pieces={"X": numerical(target, "heun")})
    emitted_equals_interpreted(step)
    assert V.name in step.source


def test_the_force_may_be_symbolic_and_holds_no_gradient_function():
    quadratic = Recipe(name="quadratic", state=(theta,), H=total(theta**4) / 4, D={theta: 1})
    step = stepped(quadratic, "heun")
    assert step.program.gradients_per_step == 0 and step.order == 2


def test_a_step_of_a_uniform_time_has_no_matrices():
    with pytest.raises(RecipeError, match="the step draws uniform numbers: it is not affine"):
        linear_chain(stepped(Langevin, "randomised midpoint"), 0.1, [1.0])
    k, h = 2.0, 0.1
    decay, spread = 1 - k * h + (k * h) ** 2 / 2, 1 - k * h / 2
    variance = linear_chain(stepped(Langevin, "heun"), h, [k]).variance("theta")
    assert variance == pytest.approx([2 * h * spread**2 / (1 - decay**2)], rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_paths_that_have_no_density_are_not_accepted_or_rejected(method):
    with pytest.raises(RecipeError, match="no density"):
        integrators.metropolised(Langevin, "X", pieces={"X": numerical(theta, method)})


@pytest.mark.parametrize("method", METHODS)
def test_a_training_loop_has_one_gradient(method):
    weights = [torch.nn.Parameter(torch.zeros(3))]
    with pytest.raises(RecipeError, match="more than one gradient per step"):
        samplers.Optimizer(weights, Langevin, lr=1e-3, num_data=10, scheme="X", pieces={"X": numerical(theta, method)})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(D={theta: 1 + theta**2}), "its noise depends on the blocks it moves"),
        (dict(supplied={theta: 0.5}), "the noise that they supply is that of one"),
    ],
)
def test_noise_that_moves_or_is_supplied_is_refused(method, changes, message):
    with pytest.raises(RecipeError, match=message):
        stepped(replace(Langevin, name="other", **changes), method)
