"""Several steps in one graph of torch.compile: the run of single steps, whatever is asked of it."""

from functools import partial

import pytest
import torch
from covering import slow

import samplers
from samplers.running import choice
from samplers.running.graphs import Graphs, Inputs

ROWS, FEATURES = 40, 3
RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, FEATURES, dtype=torch.float64, generator=RANDOM)
Y = (torch.rand(ROWS, generator=RANDOM) < 0.5).double()


def energy(theta, batch):
    z = batch[0] @ theta
    return ROWS / 5 * (torch.nn.functional.softplus(z) - batch[1] * z).sum() + (theta**2).sum() / 2


def run(recipe="sgld", energy=energy, **given):
    own = dict(
        init=torch.zeros(FEATURES, dtype=torch.float64),
        chains=2,
        data=(X, Y),
        batch_size=5,
        steps=45,
        step_size=1e-2,
        progress=False,
    )
    return samplers.sample(samplers.catalogue[recipe], energy, **(own | given))


@pytest.fixture
def graphs(monkeypatch):
    """Every function that torch is to compile, which stays as it is; runs of 20 steps are worth it."""
    seen = []
    monkeypatch.setattr(choice, "STEPS_OF_GRAPHS", 20)
    monkeypatch.setattr(torch, "compile", lambda f, **_: seen.append(f) or f)
    return seen


def same(one, other):
    """Up to rounding, which grows as fast as chains that are lost: a single one is vectorised in a graph alone."""
    return all(torch.allclose(one[name], other[name], rtol=1e-10, atol=1e-12) for name in one)


@pytest.mark.parametrize(
    "given",
    [
        dict(),
        dict(recipe="sghmc", keep="p", thin=3, warmup=21),
        slow(dict(recipe="sgnht", chains=1, keep=["p", "xi"], thin=2)),
        dict(recipe="psgld", steps=64),
        slow(dict(temperature=0.5, thin=20)),
        dict(init={"w": torch.zeros(FEATURES, dtype=torch.float64)}, energy=lambda at, batch: energy(at["w"], batch)),
        slow(dict(data=None, batch_size=None, energy=lambda theta: (theta**4).sum())),
    ],
    ids=["minibatch", "carried", "one chain", "adapted", "sparse", "named", "full"],
)
def test_a_run_by_graphs_is_that_of_single_steps(graphs, given):
    by_graphs = run(**given)
    assert len({id(graph.__code__) for graph in graphs}) == 1 + ("warmup" in given)
    assert same(by_graphs, run(backend="torch", **given))


def test_torch_counts_the_compilations_of_each_run_apart(graphs):
    """Beyond eight of one code it gives up."""
    for _ in range(3):
        run()
    assert len({id(graph.__code__) for graph in graphs}) == 3


@pytest.mark.parametrize(
    "given",
    [
        dict(step_size=lambda k: 1e-2 / (1 + k)),
        dict(temperature=lambda k: 1.0),
        dict(recipe="sgld", metropolis=True, batch_size=None, energy=energy),
        dict(steps=19),
    ],
    ids=["schedule", "temperature", "metropolis", "short"],
)
def test_steps_that_are_no_function_of_state_noise_and_batch_are_made_one_by_one(graphs, monkeypatch, given):
    monkeypatch.setattr(Graphs, "advance", None)
    run(**given)


@pytest.mark.parametrize("recipe", ["sgld", slow("sghmc")])
def test_a_lost_chain_is_lost_at_the_same_step(graphs, recipe):
    def steep(theta, batch):
        return energy(theta, batch) + 40 * (theta**4).sum()

    start = torch.zeros(3, FEATURES, dtype=torch.float64)
    start[1] = 2.0
    start[1] *= 50 if recipe == "sghmc" else 1
    given = dict(recipe=recipe, energy=steep, init=start, chains=3, steps=60, step_size=5e-3)
    with pytest.warns(RuntimeWarning, match="are lost"):
        by_graphs = run(**given)
    with pytest.warns(RuntimeWarning, match="are lost"):
        by_steps = run(backend="torch", **given)
    assert bool(graphs) == (recipe == "sgld")  # the others are lost before the first graph
    assert 1 in by_graphs.diverged and by_graphs.diverged == by_steps.diverged
    assert same(by_graphs, by_steps)


def test_a_run_goes_on_where_it_was_interrupted(graphs, tmp_path):
    """Steps of a graph begin at multiples of their number, whether a run begins before them or there."""
    counts = {"left": 10**6}

    def fragile(theta, batch):
        counts["left"] -= 1
        if counts["left"] == 0:
            raise KeyboardInterrupt
        return energy(theta, batch)

    whole = run("sghmc", fragile)
    counts["left"] = 40
    given = dict(recipe="sghmc", energy=fragile, checkpoint=samplers.checkpoints.Folder(tmp_path, every=0))
    with pytest.raises(KeyboardInterrupt):
        run(**given)
    assert torch.equal(run(**given)["theta"], whole["theta"])


def test_what_torch_cannot_compile_is_made_step_by_step(graphs, monkeypatch):
    def compile(function, **_):
        return lambda *given: 1 / 0

    monkeypatch.setattr(torch, "compile", compile)
    with pytest.warns(RuntimeWarning, match="torch.compile of the gradient failed"):
        draws = run()
    assert same(draws, run(backend="torch"))


@pytest.mark.parametrize("backend", ["eager", slow("inductor")])
def test_steps_that_torch_compiles_are_those_that_it_does_not(monkeypatch, backend):
    """Its front end sees through the text of a step and the derivatives of its energy, with no call left outside."""
    from torch._dynamo.backends.registry import lookup_backend

    monkeypatch.setattr(choice, "STEPS_OF_GRAPHS", 20)
    monkeypatch.setattr("samplers.running.graphs.AT_ONCE", 2)
    calls = []

    def counted(graph, inputs):
        compiled = lookup_backend(backend)(graph, inputs)
        return lambda *given: calls.append(graph) or compiled(*given)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    plain = run("sghmc", chains=1, backend="torch")
    assert not calls
    monkeypatch.setattr(Inputs, "compiled", None)  # what runs where there is no graph
    compiled = run("sghmc", chains=1)
    torch._dynamo.reset()  # it keeps tensors of its trace
    assert same(compiled, plain)
    assert len(calls) == 2 + 43 // 2 and len(set(calls)) == 1  # two trials, and all steps but the first two
