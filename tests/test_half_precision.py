"""Weights in bfloat16 and float16: copies in float32 are what moves, so that noise below their last digit stays."""

import copy

import pytest
import torch
import triton.language as tl
from devices import TRITON
from triton.runtime import interpreter

import samplers
from recipe import RecipeError
from samplers.training import group
from samplers.training.kernels import COPY, Compiled

HALVES = [torch.bfloat16, torch.float16]
NUM_DATA, H = (
    10_000,
    5e-7,
)  # posterior sd 1/100 about 1.5; a step has noise of sd 1/1000, an eighth of a last digit of bfloat16


def posterior(dtype, backend="auto", recipe=samplers.SGLD, **settings):
    """An optimizer of weights near 1.5 whose loss is (theta - 1.5)^2/2, and its weights."""
    how = {"dtype": dtype, "device": TRITON if backend == "triton" else "cpu"}
    weights = [torch.nn.Parameter(torch.full(shape, 1.5, **how)) for shape in ((300,), (7, 5))]
    return samplers.Optimizer(weights, recipe, num_data=NUM_DATA, step_size=H, backend=backend, **settings), weights


def train(optimizer, weights, steps):
    for _ in range(steps):
        for p in weights:
            p.grad = p.detach() - 1.5
        optimizer.step()


@pytest.fixture
def rounding(monkeypatch):
    """Conversions of Triton's interpreter to bfloat16 round as those of a GPU do, and cut no digits off."""
    cut = interpreter._convert_float

    def converted(x, given, wanted, mode):
        if wanted != tl.bfloat16:
            return cut(x, given, wanted, mode)
        return torch.from_numpy(x).bfloat16().view(torch.uint16).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", converted)


def flat(tensors):
    return torch.cat([t.detach().float().flatten() for t in tensors])


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_noise_below_the_last_digit_is_kept(dtype, backend):
    """The copies stay within a last digit of weights in float32 on the same noise."""
    expected, precise = posterior(torch.float32)
    optimizer, weights = posterior(dtype, backend)
    train(expected, precise, 300)
    train(optimizer, weights, 300)
    copies = [optimizer.state[p][COPY] for p in weights]
    assert (flat(copies) - flat(precise)).abs().max() < torch.finfo(dtype).eps
    assert all(torch.equal(p, x.to(dtype)) for p, x in zip(weights, copies))
    assert flat(precise).std() > 0.008 and flat(copies).std() > 0.008


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name, error", [("sghmc", 0), ("sgnht", 1e-5)])
def test_a_kernel_rounds_copies_in_its_pass(name, error, dtype, monkeypatch, rounding):
    """As passes over copies do, where a GPU may add up in another order; one of ten gradients is its weight."""
    runs = []
    for by_kernel in (True, False):
        if not by_kernel:
            monkeypatch.setattr(group, "Compiled", lambda *how: Compiled(*how[:-1], ()))
        weights = [torch.nn.Parameter(torch.linspace(1, 2, 10 + k, dtype=dtype, device=TRITON)) for k in range(10)]
        optimizer = samplers.Optimizer(
            weights, samplers.catalogue[name], num_data=NUM_DATA, step_size=H, backend="triton"
        )
        for k in range(3):
            for p in weights:
                p.grad = p.detach() - 1.5 if k or p is not weights[3] else p.detach()
            before = [p._version for p in weights]
            optimizer.step()
            assert all(p._version > version for p, version in zip(weights, before))
        assert all(torch.equal(p, optimizer.state[p][COPY].to(dtype)) for p in weights)
        runs.append(flat(optimizer.state[p][block] for p in weights for block in (COPY, "p")))
        assert optimizer._groups[0]._binding.copies.by_kernel == by_kernel
    assert (runs[0] - runs[1]).abs().max() <= error


@pytest.mark.filterwarnings("ignore:.*clipped")  # gradients of rounded weights repeat
def test_steps_that_are_rounded_go_nowhere():
    """What the copies are for."""
    optimizer, weights = posterior(torch.float32)
    for _ in range(300):
        train(optimizer, weights, 1)
        for p in weights:
            p.data.copy_(p.data.bfloat16())
    assert flat(weights).std() < 0.002


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_state_of_copies_is_saved_and_taken_up_whole(dtype):
    """torch rounds what it loads to the type of the weights."""
    optimizer, weights = posterior(dtype, recipe=samplers.SGHMC)
    train(optimizer, weights, 3)
    saved = copy.deepcopy((optimizer.state_dict(), [p.detach().clone() for p in weights]))
    train(optimizer, weights, 3)
    again, others = posterior(dtype, recipe=samplers.SGHMC)
    with torch.no_grad():
        for p, x in zip(others, saved[1]):
            p.copy_(x)
    again.load_state_dict(saved[0])
    train(again, others, 3)
    for p, q in zip(weights, others):
        assert all(torch.equal(x, again.state[q][name]) for name, x in optimizer.state[p].items())
        assert torch.equal(p, q) and optimizer.state[p]["p"].dtype == torch.float32


@pytest.mark.parametrize("backend, view", [("cpp", "detach"), ("cpp", "data"), ("triton", "detach")])
def test_weights_that_somebody_else_has_written_are_copied_anew(backend, view, rounding):
    """Through `.data` too, which counts nothing, on the CPU."""
    optimizer, weights = posterior(torch.bfloat16, backend)
    train(optimizer, weights, 2)
    (weights[0].data if view == "data" else weights[0].detach()).fill_(3.0)
    train(optimizer, weights, 1)
    assert 2.9 < optimizer.state[weights[0]][COPY].mean() < 3.1
    assert (optimizer.state[weights[1]][COPY] != weights[1]).any()  # those that nobody wrote are not


def test_a_loop_is_watched_in_the_precision_in_which_it_moves():
    """The norm of a gradient of float16 is beyond its numbers."""
    optimizer, weights = posterior(torch.float16, recipe=samplers.SGHMC)
    for k in range(11):
        for p in weights:
            p.grad = torch.full_like(p, 60000.0 - 100 * k)
        optimizer.step()
    rows = optimizer._monitors.of(0).rows
    assert [row.step for row in rows] == [0, 10] and rows[0].sums["kick.p"][0] > 0


def test_weights_of_two_types_are_still_refused():
    weights = [torch.nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)]
    with pytest.raises(RecipeError, match="the first torch.bfloat16"):
        samplers.Optimizer(weights, samplers.SGLD, num_data=5, lr=0.1)
