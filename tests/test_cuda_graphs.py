"""Several steps of a run in one CUDA graph, as far as that can be said without a GPU: a graph is played by a tape.

The tape has what torch does while a graph is captured, with the tensors that it does it on; a replay does that again
and writes into the same tensors. As on a GPU, a look at a number ends the capture, and what Python does is done once.
"""

import itertools
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from test_unrolled import FEATURES, energy, run, same
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from integrators import noise, transfers
from integrators.kernels import block_noise, gpu
from samplers.running import choice, graphs, inputs, recording
from samplers.running.graphs import AT_ONCE, Graphs
from samplers.target.data import Data

LOOKS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}


class Watch(TorchDispatchMode):
    """A look at a number is an error, as in torch's mode of errors."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in LOOKS:
            raise RuntimeError("called a synchronizing CUDA operation")
        return function(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    """What is done to tensors, in its order."""

    def __init__(self):
        super().__init__()
        self.entries = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in LOOKS:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = function(*args, **(kwargs or {}))
        self.entries.append((function, args, kwargs or {}, result))
        return result

    def replay(self):
        """Do it again, into the same tensors."""
        for function, args, kwargs, result in self.entries:
            for old, new in zip(tree_leaves(result), tree_leaves(function(*args, **kwargs))):
                if torch.is_tensor(old) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def tapes(monkeypatch):
    """The tapes of graphs that have been captured, with how often each was played; the CPU is taken for a GPU."""
    made = []

    class Graph:
        def __init__(self):
            self.tape = Tape()
            self.played = 0
            made.append(self)

        def replay(self):
            self.played += 1
            self.tape.replay()

    @contextmanager
    def captured(graph, stream, capture_error_mode):
        assert stream is beside and capture_error_mode == "thread_local"
        with graph.tape:
            yield

    def watch(mode):
        if mode == "error":
            watches.append(Watch())
            watches[-1].__enter__()
        else:
            watches.pop().__exit__(None, None, None)

    watches = []
    stream, beside = (SimpleNamespace(wait_stream=lambda other: None) for _ in range(2))
    for name, value in {
        "CUDAGraph": Graph,
        "graph": captured,
        "Stream": lambda device: beside,
        "current_stream": lambda device: stream,
        "stream": lambda stream: nullcontext(),
        "get_sync_debug_mode": lambda: "default",
        "set_sync_debug_mode": watch,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(gpu, "has_graphs", lambda device: True)
    monkeypatch.setattr(choice, "STEPS_ON_GPU", 20)
    monkeypatch.setattr(block_noise, "functions_on", lambda device: noise.FUNCTIONS)  # the interpreter is slow
    return made


@pytest.mark.parametrize(
    "given",
    [
        dict(),
        dict(recipe="sghmc", keep="p", thin=3, warmup=21),
        dict(recipe="sgnht", chains=1, keep=["p", "xi"], thin=2),
        dict(init={"w": torch.zeros(FEATURES, dtype=torch.float64)}, energy=lambda at, batch: energy(at["w"], batch)),
        dict(data=None, batch_size=None, energy=lambda theta: (theta**4).sum()),
        dict(batch_size=None),
    ],
    ids=["minibatch", "carried", "one chain", "named", "no data", "all data"],
)
def test_a_run_by_cuda_graphs_is_that_of_single_steps(tapes, given):
    by_graphs = run(**given)
    assert len(tapes) == 1 + ("warmup" in given) and tapes[-1].played > 2
    assert same(by_graphs, run(backend="torch", **given))


@pytest.mark.parametrize("given", [{}, {"backend": "torch"}, {"steps": 19}], ids=str)
def test_a_long_run_has_noise_and_rows_of_a_kernel(tapes, monkeypatch, given):
    drawn = []

    def counted(kind, *where, **how):
        drawn.append(kind)
        return noise.FUNCTIONS[kind](*where, **how)

    own = {kind: partial(counted, kind) for kind in noise.FUNCTIONS}
    monkeypatch.setattr(block_noise, "functions_on", lambda device: own)
    run(**given)
    assert {*drawn} == ({"normal", "integers"} if not given else set())


def test_steps_that_a_graph_does_not_repeat_are_made_one_by_one(tapes):
    calls = itertools.count()

    def counting(theta, batch):  # a replay makes no call
        return energy(theta, batch) * (1 + (next(calls) % 7 if tapes else 0))

    with pytest.warns(
        RuntimeWarning, match="no CUDA graph has several steps, they are made one by one: its numbers dif"
    ):
        run(energy=counting)
    assert [tape.played for tape in tapes] == [1]


def test_a_graph_that_repeats_its_first_result_is_not_trusted(tapes, monkeypatch):
    """As one that is captured on a stream of another device: it is empty."""
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)
    with pytest.warns(RuntimeWarning, match="no CUDA graph has several steps, they are made one by one: its numbers"):
        draws = run()
    assert same(draws, run(backend="torch"))


def test_no_capture_begins_of_steps_that_wait_for_the_device_and_it_is_said_in_one_line(tapes, monkeypatch):
    def several(self, stage, made=Graphs._several):
        function = made(self, stage)

        def with_a_look(*given):
            state, kept, total = function(*given)
            return state, kept, total + float(total) * 0

        return with_a_look

    monkeypatch.setattr(Graphs, "_several", several)
    with pytest.warns(RuntimeWarning) as told:
        draws = run()
    text = "no CUDA graph has several steps, they are made one by one: RuntimeError: called a synchronizing"
    assert sum(text in str(w.message) for w in told) == 1 and not tapes
    assert same(draws, run(backend="torch"))


@pytest.mark.parametrize("fails", [False, True], ids=["fused", "no compiler"])
@pytest.mark.parametrize("steps", [150, 151])
def test_launches_of_a_long_run_are_fused_before_they_are_captured(tapes, monkeypatch, steps, fails):
    """Where torch.compile fails the steps are captured as they are, and nothing is said."""
    calls = []

    def fused(several, **how):
        assert how["fullgraph"] and how["options"] == {"triton.cudagraphs": False}

        def call(*given):
            calls.append(len(tapes))
            if fails:
                raise RuntimeError("no C compiler")
            return several(*given)

        return call

    monkeypatch.setattr(torch, "compile", fused)
    monkeypatch.setattr(graphs, "STEPS_OF_GRAPHS", 151)
    draws = run(steps=steps)
    assert calls == ([] if steps < 151 else [0] if fails else [0, 0, 1])  # called twice, then captured
    assert len(tapes) == 1 and tapes[0].played > 2
    assert same(draws, run(steps=steps, backend="torch"))


def test_data_as_a_whole_is_read_where_it_is(monkeypatch, tapes):
    seen = []
    made = gpu.Graph.__init__
    monkeypatch.setattr(gpu.Graph, "__init__", lambda self, *given: seen.append(self) or made(self, *given))
    run(batch_size=None)
    (graph,) = seen
    assert len(graph.fixed) == 2 and sum(id(x) in graph.fixed for x in graph.read) == 2 * AT_ONCE


@pytest.mark.parametrize("slow", [False, True], ids=["prompt", "late"])
def test_graphs_are_replayed_ahead_of_their_verdicts(tapes, monkeypatch, slow):
    """Up to two beyond the one that is waited for; the draws are those of single steps."""
    ahead = []

    def on_the_way(numbers):
        if tapes:
            ahead.append(0)
        place, come = len(ahead) - 1, []

        def wait():
            come.append(1)
            if tapes:
                ahead[place] = len(ahead) - 1 - place

        return numbers.clone(), lambda: not slow or bool(come), wait

    expected = run(backend="torch", steps=64)
    monkeypatch.setattr(transfers, "IS_NEAR", set())
    monkeypatch.setattr(transfers, "_on_the_way", on_the_way)
    monkeypatch.setattr(recording, "STATES", 10**6)  # draws stay
    assert same(run(steps=64), expected)
    assert tapes[0].played >= 7 and max(ahead) == (2 if slow else 0)


def test_batches_of_a_graph_are_gathered_at_once(tapes, monkeypatch):
    """As two chains have few of them, one number is as many as the cache takes."""
    gathered, batches = [], Data.batches
    monkeypatch.setattr(Data, "batches", lambda data, rows: gathered.append(len(rows)) or batches(data, rows))
    monkeypatch.setattr(inputs, "GATHERED_AT_ONCE", 1)
    run(steps=32)
    assert set(gathered) == {1}
    gathered.clear()
    monkeypatch.setattr(transfers, "IS_NEAR", set())
    monkeypatch.setattr(transfers, "_on_the_way", lambda numbers: (numbers.clone(), lambda: True, lambda: None))
    run(steps=32)
    assert gathered == [32]


@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
def test_a_lost_chain_is_lost_at_the_same_step(tapes, monkeypatch, near):
    def steep(theta, batch):
        return energy(theta, batch) + 40 * (theta**4).sum()

    start = torch.zeros(3, FEATURES, dtype=torch.float64)
    start[1] = 2.0
    given = dict(recipe="sgld", energy=steep, init=start, chains=3, steps=60, step_size=5e-3)
    with pytest.warns(RuntimeWarning, match="are lost"):
        by_steps = run(backend="torch", **given)
    if not near:
        monkeypatch.setattr(transfers, "IS_NEAR", set())
        monkeypatch.setattr(transfers, "_on_the_way", lambda numbers: (numbers.clone(), lambda: False, lambda: None))
    with pytest.warns(RuntimeWarning, match="are lost"):
        by_graphs = run(**given)
    assert 1 in by_graphs.diverged and by_graphs.diverged == by_steps.diverged
    assert same(by_graphs, by_steps)
