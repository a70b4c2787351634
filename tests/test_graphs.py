"""Steps of the optimizer in CUDA graphs, as far as that can be said without a GPU: what a replay launches is a step.

A graph is played by the launches of one step, which are made again and again; the clock counts on its own.
"""

import copy

import pytest
import torch
from devices import TRITON

import samplers
from integrators.kernels import gpu
from integrators.kernels.gpu import Launch
from recipe import RecipeError


def training(recipe, **settings):
    """An optimizer after a step, and its parameters."""
    params = [torch.nn.Parameter(torch.linspace(-1, 1, n, device=TRITON)) for n in (5, 7)]
    for p in params:
        p.grad = torch.full_like(p, 0.3)
    optimizer = samplers.Optimizer(params, recipe, num_data=10, step_size=0.01, backend="triton", **settings)
    optimizer.step()
    return optimizer, params


@pytest.fixture
def graph(monkeypatch):
    """Begins to write launches down, without making them; a call makes them again."""
    launch, written = Launch.__call__, []

    def begin():
        monkeypatch.setattr(gpu, "is_capturing", lambda: True)
        monkeypatch.setattr(Launch, "__call__", lambda launch: written.append(launch))

    def replay():
        monkeypatch.setattr(gpu, "is_capturing", lambda: False)
        monkeypatch.setattr(Launch, "__call__", launch)
        for one in written:
            one()

    return begin, replay


@pytest.mark.parametrize(
    "recipe", [samplers.SGHMC, pytest.param(samplers.SGNHT, marks=pytest.mark.slow)], ids=["one launch", "four"]
)
def test_replays_are_the_steps_that_would_have_been_made(recipe, graph):
    """Noise, momenta and thermostat, and the number of the step in what is saved."""
    begin, replay = graph
    expected, of_steps = training(recipe)
    for _ in range(3):
        expected.step()
    optimizer, params = training(recipe, capturable=True)
    clock = optimizer._group(0).clock
    begin()
    optimizer.step()
    clock -= 1  # nothing has run
    for _ in range(2):
        replay()
        clock += 1
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["param_groups"][0]["step_number"] == 3
    optimizer.step()
    for p, other in zip(params, of_steps):
        assert torch.equal(p, other)
        assert all(torch.equal(x, expected.state[other][name]) for name, x in optimizer.state[p].items())
    expected.load_state_dict(saved)
    assert expected.param_groups[0]["step_number"] == 3


def test_what_a_graph_cannot_repeat_is_refused(graph):
    begin, replay = graph
    optimizer, params = training(samplers.SGHMC)
    fresh = samplers.Optimizer(params, samplers.SGHMC, num_data=10, step_size=0.01, capturable=True)
    other, (first, _) = training(samplers.SGHMC, capturable=True)
    begin()
    with pytest.raises(RecipeError, match="repeat its noise.*capturable=True"):
        optimizer.step()
    with pytest.raises(RecipeError, match="cannot begin a state.*some steps first"):
        fresh.step()
    first.grad = first.grad.clone()
    with pytest.raises(RecipeError, match="no step before has found them.*set_to_none=False"):
        other.step()
    with pytest.raises(RecipeError, match="a graph has Triton kernels alone"):
        samplers.Optimizer(params, samplers.SGHMC, num_data=10, step_size=0.01, capturable=True, backend="torch")


def test_constants_of_the_step_number_are_in_no_graph():
    with pytest.raises(RecipeError, match="reads the number of the step"):
        training(samplers.catalogue["isgd"], capturable=True)
