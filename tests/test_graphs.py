"""Steps on a GPU, in graphs and on streams, as far as that can be said without one: what a replay launches is a step.

A graph is played by the launches of one step, which are made again and again; the clock counts on its own.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from devices import TRITON
from torch.utils._pytree import tree_leaves

import samplers
from integrators import transfers
from integrators.kernels import fallback, gpu, launchers
from integrators.kernels.gpu import Launch
from recipe import RecipeError
from samplers.training import group


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
    other.step()
    first.grad = first.grad.clone()
    with pytest.raises(RecipeError, match="no step before has found them.*a step before each capture"):
        other.step()
    with pytest.raises(RecipeError, match="a graph has Triton kernels alone"):
        samplers.Optimizer(params, samplers.SGHMC, num_data=10, step_size=0.01, capturable=True, backend="torch")


def test_constants_of_the_step_number_are_in_no_graph():
    with pytest.raises(RecipeError, match="reads the number of the step"):
        training(samplers.catalogue["isgd"], capturable=True)


def test_gradients_that_a_graph_makes_anew_are_found_by_its_replays(graph):
    """As of a captured backward() whose gradients were None: each replay copies the addresses to the device."""
    begin, replay = graph
    optimizer, params = training(samplers.SGHMC, capturable=True)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.full_like(p, 0.3)
    kept = len(launchers.CAPTURED)
    begin()
    optimizer.step()
    assert all(torch.equal(p, x) for p, x in zip(params, before))
    optimizer._group(0).clock.sub_(1)  # nothing has run
    replay()
    expected, others = training(samplers.SGHMC)
    expected.step()
    assert all(torch.equal(p, x) for p, x in zip(params, others))
    assert len(launchers.CAPTURED) > kept


def test_memory_that_a_graph_names_outlives_the_kernel_that_was_captured(graph):
    """freeze() makes another kernel; what the launches read and write is still there."""
    begin, replay = graph
    optimizer, params = training(samplers.SGHMC, capturable=True)
    momenta = optimizer.state[params[0]]["p"].data_ptr()
    begin()
    optimizer.step()
    optimizer.state.clear()
    optimizer._groups.clear()
    kept = tree_leaves([tables for _, tables, *_ in (entry for entry in launchers.CAPTURED if len(entry) > 1)])
    assert momenta in {x.data_ptr() for x in kept}


def test_where_triton_launches_nothing_steps_are_made_in_torch_and_it_is_said_once(monkeypatch):
    """As without a C compiler or Python's headers, with which Triton builds its launcher at the first launch."""

    def fails(launch):
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(Launch, "__call__", fails)
    monkeypatch.setitem(group.BY_DEVICE, "cpu", "triton")
    gpu.check_launches.cache_clear()
    fallback._say_once.cache_clear()
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = samplers.Optimizer([p], samplers.SGLD, num_data=10, step_size=0.01)
    with pytest.warns(
        RuntimeWarning, match="steps run in torch.*launches no kernel.*Failed to find C compiler"
    ) as told:
        optimizer.step()
        optimizer.step()
    assert len(told) == 1 and not torch.equal(p, torch.ones(3))
    with pytest.raises(RecipeError, match="launches no kernel.*Install a C compiler"):
        samplers.Optimizer([p], samplers.SGLD, num_data=10, step_size=0.01, backend="triton").step()


def test_tables_that_another_stream_has_sent_are_waited_for_and_kept(monkeypatch):
    asked = []

    class Stream:
        def wait_event(self, event):
            asked.append(event)

    sender, other = Stream(), Stream()
    tables = (SimpleNamespace(device="cuda:0", record_stream=asked.append),)
    for now, expected in ((sender, []), (other, ["sent", other])):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, now=now: now)
        gpu.Moment(sender, "sent").use(tables)
        assert asked == expected


def test_numbers_of_devices_without_cuda_streams_are_read_at_once(monkeypatch):
    """As of MPS and XPU; the device "meta" stands for them, and a copy of its numbers for theirs."""
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: torch.ones(x.shape))
    seen = []
    arrivals = transfers.Arrivals()
    arrivals.send(torch.ones(2, device="meta"), seen.append)
    arrivals.wait()
    assert seen == [[1.0, 1.0]]


def test_the_device_of_a_rank_is_set_before_its_group_begins(monkeypatch):
    calls = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("device", str(device))))
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **more: calls.append((backend, *map(str, more.values())))
    )
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(samplers.distributed.atexit, "register", lambda end: None)
    assert samplers.distributed.begin("nccl") == (1, 2)
    assert calls == [("device", "cuda:1"), ("nccl", "cuda:1")]
