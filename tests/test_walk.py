"""Steps over many tensors find them in one look of C++, and move what they would without it, wherever tensors go."""

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import samplers
from integrators.kernels import walk
from integrators.kernels.walk import FEW, Walk
from samplers import Optimizer

MANY = FEW + 4
SETTINGS = {"num_data": 50, "step_size": 1e-2, "seed": 3}


def tensors():
    """Parameters of several shapes and layouts, with gradients."""
    random = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(3, k + 1, generator=random).T) for k in range(MANY)]
    renew(params, 0)
    return params


def renew(params, k):
    """Gradients in new memory, that depend on the step."""
    for p in params:
        p.grad = (p.detach() + k) / 50


@pytest.fixture
def found():
    """The walk over parameters, which are kept."""
    params = tensors()
    w = walk.walk(params)
    assert w(params)
    assert w.gradients.tolist() == [p.grad.data_ptr() for p in params]
    return w, params


def swapped(p):
    """Another tensor stands behind the object, where the first one was."""
    other = torch.nn.Parameter(p.data)
    other.grad = p.grad
    torch.utils.swap_tensors(p, other)


def shared_until_written(p):
    shared.append(torch._lazy_clone(p.detach()))


shared = []
CHANGES = {
    "no gradient": lambda p: setattr(p, "grad", None),
    "a gradient that is sparse": lambda p: setattr(p, "grad", p.grad.to_sparse()),
    "a gradient in another order": lambda p: setattr(p, "grad", p.grad.contiguous()),
    "a lazy negative": lambda p: setattr(p, "grad", torch._neg_view(p.grad)),
    "a gradient under its other shape": lambda p: p.grad.t_(),
    "other memory": lambda p: setattr(p, "data", p.data.clone()),
    "another type": lambda p: setattr(p, "data", p.data.double()),
    "another tensor in the same memory": swapped,
    "memory that is shared until it is written": shared_until_written,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_not_found(found, change):
    w, params = found
    change(params[1])
    assert not w(params)


def test_other_parameters_are_not_found(found):
    w, params = found
    assert not w(params[:-1])
    assert not w([*params[1:], params[0]])
    assert w(params)


def test_gradients_that_are_new_are_found_where_they_are(found):
    w, params = found
    before = [p.grad for p in params]
    renew(params, 1)
    assert w(params)
    assert w.gradients.tolist() == [p.grad.data_ptr() for p in params] != [g.data_ptr() for g in before]


def moved(steps, change=None):
    """The weights after some steps of an optimizer, of which one comes after a change."""
    params = tensors()
    optimizer = Optimizer(params, samplers.SGNHT, **SETTINGS)
    for k in range(steps):
        renew(params, k)
        if change is not None and k == steps - 3:
            change(params[1])
        optimizer.step()
    return [p.detach().clone() for p in params]


HARMLESS = ["a gradient in another order", "a lazy negative", "other memory", "another tensor in the same memory"]
HARMLESS.append("memory that is shared until it is written")


@pytest.mark.parametrize("name", HARMLESS)
def test_steps_after_a_change_are_those_without_a_walk(name, monkeypatch):
    change = CHANGES[name] if name != "a lazy negative" else negative_of_negative
    steps = 33  # beyond those whose gradients are watched
    shared.clear()
    with_walk = moved(steps, change)
    values = [x.clone() for x in shared]
    monkeypatch.setattr(walk, "_functions", lambda: None)
    assert all(map(torch.equal, with_walk, moved(steps)))
    assert not values or not torch.equal(values[0], with_walk[1])  # the share keeps what it had


def negative_of_negative(p):
    """The same numbers, as the lazy negative of their negatives."""
    p.grad = torch._neg_view(-p.grad)


def test_most_steps_take_one_look(monkeypatch):
    answers = []

    def counted(self, params, ask=Walk.__call__):
        answers.append(ask(self, params))
        return answers[-1]

    monkeypatch.setattr(Walk, "__call__", counted)
    moved(100)
    assert answers.count(True) > 55  # of 76, but for those at which monitors look
    assert answers.count(False) == 0


def test_a_backward_pass_notices_that_weights_were_written(monkeypatch):
    params = tensors()
    optimizer = Optimizer(params, samplers.SGHMC, **SETTINGS)
    for k in range(32):
        renew(params, k)
        optimizer.step()
    loss = params[1].square().sum()
    before = params[1]._version
    monkeypatch.setattr(optimizer._group(0), "_checked_gradients", None)  # this step takes the look of C++
    optimizer.step()
    assert params[1]._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_hooks_are_called_and_profilers_see_the_step():
    params = tensors()
    optimizer = Optimizer(params, samplers.SGHMC, **SETTINGS)
    calls = []
    before = optimizer.register_step_pre_hook(lambda o, args, kwargs: calls.append("before"))
    after = optimizer.register_step_post_hook(lambda o, args, kwargs: calls.append("after"))
    optimizer.step()
    assert calls == ["before", "after"]
    before.remove()
    after.remove()
    everywhere = register_optimizer_step_post_hook(lambda o, args, kwargs: calls.append("all"))
    optimizer.step()
    everywhere.remove()
    with torch.profiler.profile() as profile:
        optimizer.step()
    optimizer.step()
    assert calls == ["before", "after", "all"]
    assert "Optimizer.step#Optimizer.step" in {event.key for event in profile.key_averages()}
