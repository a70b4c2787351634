"""A training loop that is begun anew from its checkpoint ends with the weights of one that was never interrupted."""

import math
import os
import warnings
from functools import cache

import pytest
import torch
from covering import slow
from crashes import trained
from torch.optim import lr_scheduler

import samplers
from recipe import RecipeError
from samplers import Checkpoint, Minibatches, Predictive
from samplers.files import storage
from samplers.training import checkpoint as checkpoints


class Stop(Exception):
    pass


@cache
def undisturbed():
    return trained(steps=60)


@pytest.mark.parametrize("saves", [slow(1), 7, slow(40)])
def test_a_loop_goes_on_bit_for_bit_wherever_it_was_broken_off(saves, tmp_path, monkeypatch):
    """In the midst of an epoch too, with dropout, a schedule and predictions that are being averaged."""
    whole, write = undisturbed(), Checkpoint.save

    def until(self, *, now=False, **message):
        write(self, now=True, **message)
        if message["step"] == saves:
            raise Stop

    monkeypatch.setattr(Checkpoint, "save", until)
    with pytest.raises(Stop):
        trained(tmp_path, steps=60)
    monkeypatch.setattr(Checkpoint, "save", write)
    resumed = trained(tmp_path, steps=60)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("kind", ["sghmc", "psgld-same-step", "sgnht", "santa", "torch.optim.Adam"])
def test_any_optimizer_comes_back_as_it_was(kind, tmp_path):
    def begun():
        torch.manual_seed(1)
        w = torch.nn.Parameter(torch.randn(3, 5))
        if kind == "torch.optim.Adam":
            return w, torch.optim.Adam([w], lr=0.1, betas=(0.8, 0.9))
        return w, samplers.Optimizer([w], samplers.catalogue[kind], lr=1e-3, num_data=100)

    def moved(w, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            ((w - 1) ** 2).sum().backward()
            optimizer.step()

    w, optimizer = begun()
    moved(w, optimizer, 5)
    Checkpoint(tmp_path, w=torch.nn.ParameterList([w]), optimizer=optimizer).save()
    moved(w, optimizer, 5)
    again, other = begun()
    Checkpoint(tmp_path, w=torch.nn.ParameterList([again]), optimizer=other).load()
    moved(again, other, 5)
    assert torch.equal(w, again)


SCHEDULES = {
    "StepLR": dict(step_size=3),
    "MultiStepLR": dict(milestones=[2, 2, 5]),
    "ExponentialLR": dict(gamma=0.9),
    "CosineAnnealingLR": dict(T_max=7),
    "CosineAnnealingWarmRestarts": dict(T_0=3),
    "PolynomialLR": dict(total_iters=9),
    "LinearLR": {},
    "ConstantLR": {},
    "OneCycleLR": dict(max_lr=0.2, total_steps=20, cycle_momentum=False),
    "CyclicLR": dict(base_lr=0.1, max_lr=0.3, cycle_momentum=False),
    "ReduceLROnPlateau": dict(patience=1),
    "LambdaLR": dict(lr_lambda=lambda k: 0.9**k),
}


@pytest.mark.parametrize("name", [*SCHEDULES, "SequentialLR"])
def test_schedulers_come_back_as_they_were(name, tmp_path):
    def begun():
        optimizer = samplers.Optimizer([torch.nn.Parameter(torch.ones(2))], samplers.SGLD, lr=0.1, num_data=10)
        if name == "SequentialLR":
            return optimizer, lr_scheduler.SequentialLR(
                optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.StepLR(optimizer, 2)], [3]
            )
        return optimizer, getattr(lr_scheduler, name)(optimizer, **SCHEDULES[name])

    def moved(scheduler, steps):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the optimizer has made no step
            for _ in range(steps):
                scheduler.step(*[1.0] * (name == "ReduceLROnPlateau"))
        return scheduler.optimizer.param_groups[0]["lr"]

    optimizer, scheduler = begun()
    moved(scheduler, 4)
    Checkpoint(tmp_path, optimizer=optimizer, scheduler=scheduler).save()
    other, again = begun()
    Checkpoint(tmp_path, optimizer=other, scheduler=again).load()
    assert [moved(scheduler, 1) for _ in range(6)] == [moved(again, 1) for _ in range(6)]


def test_numbers_lists_and_tensors_that_the_loop_tells_come_back(tmp_path):
    message = dict(
        history=[{"epoch": 1, "nll": float("inf"), "seen": (1, 2)}],
        best=torch.arange(3),
        by={1: "a", (2, 3): None},
        done=True,
    )
    generator = torch.Generator().manual_seed(3)
    Checkpoint(tmp_path, generator=generator).save(**message)
    expected = torch.rand(3, generator=generator)
    result = Checkpoint(tmp_path, generator=(again := torch.Generator())).load()
    assert torch.equal(result.pop("best"), message.pop("best")) and result == message
    assert torch.equal(torch.rand(3, generator=again), expected)


def test_weights_that_are_tied_or_no_float32_come_back(tmp_path):
    def begun():
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to(
            torch.bfloat16
        )
        net[1].weight = net[0].weight
        return net

    one, other = begun(), begun()
    Checkpoint(tmp_path, model=one).save()
    Checkpoint(tmp_path, model=other).load()
    assert all(torch.equal(x, y) for x, y in zip(one.state_dict().values(), other.state_dict().values()))
    assert other[1].weight is other[0].weight


def test_modules_are_told_the_version_of_their_state(tmp_path):
    class Versioned(torch.nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state, prefix, metadata, *more):
            assert metadata["version"] == 2
            super()._load_from_state_dict(state, prefix, metadata, *more)

    Checkpoint(tmp_path, model=Versioned(2, 1)).save()
    Checkpoint(tmp_path, model=Versioned(2, 1)).load()


def test_odd_names_and_complex_numbers_come_back(tmp_path):
    parts = {
        name: torch.Generator().manual_seed(k)
        for k, name in enumerate(["__metadata__", "torch", "states", "a b\u00e9\n"])
    }
    message = {"z": torch.tensor([1 + 2j, 3j], dtype=torch.complex128), "a.b": 1, "a": {"b": torch.tensor(2)}}
    Checkpoint(tmp_path, settings={"rate": math.nan}, **parts).save(**message)
    result = Checkpoint(tmp_path, settings={"rate": math.nan}, **parts).load()
    assert torch.equal(result["z"], message["z"]) and result["a.b"] == 1 and result["a"]["b"] == 2


def test_a_checkpoint_is_written_no_more_often_than_it_should_be(tmp_path):
    checkpoint = Checkpoint(tmp_path, every=1000, predictive=Predictive())
    for k in range(3):
        checkpoint.save(k=k)
    assert checkpoint.load() == {"k": 0}
    checkpoint.save(k=9, now=True)
    assert checkpoint.load() == {"k": 9}


# ---- folders of others, harmed files


def linear(*shape):
    return torch.nn.Linear(*shape)


@pytest.mark.parametrize(
    "make, message",
    [
        (dict(model=linear(2, 1)), "holds the states of model, batches, torch's generators, here are model"),
        (dict(model=linear(3, 1), batches=Minibatches(torch.ones(6), 2)), "model: the state does not fit"),
        (
            dict(model=linear(2, 1), batches=Minibatches(torch.ones(6), 2, seed=4)),
            "it is a place where seed = 0, here it is 4",
        ),
        (
            dict(model=linear(2, 1), batches=Minibatches(torch.ones(6), 2), settings={"lr": 0.2}),
            "a run of lr = 0.1, this one has 0.2",
        ),
        (
            dict(model=linear(2, 1), batches=Minibatches(torch.ones(6), 2), settings={}),
            "a run of lr = 0.1, this one has None",
        ),
    ],
)
def test_the_state_of_another_loop_is_refused(make, message, tmp_path):
    Checkpoint(tmp_path, settings={"lr": 0.1}, model=linear(2, 1), batches=Minibatches(torch.ones(6), 2)).save()
    with pytest.raises(RecipeError, match=message):
        Checkpoint(tmp_path, **{"settings": {"lr": 0.1}} | make).load()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda at: Checkpoint(at), "there is nothing to save"),
        (
            lambda at: Checkpoint(at, loader=torch.utils.data.DataLoader([1, 2])),
            "loader, a DataLoader, has no state_dict .*as_sampler",
        ),
        (lambda at: Checkpoint(at, epoch=3, model=linear(1, 1)), r"epoch, a int, .* save\(epoch="),
        (lambda at: Checkpoint(at, every=-1.0, model=linear(1, 1)), "every = -1.0"),
        (lambda at: Checkpoint(at, settings={"f": linear}, model=linear(1, 1)), "settings: .*function"),
        (lambda at: Checkpoint(at, settings=linear(1, 1)), "settings: "),
        (lambda at: Checkpoint(at, model=torch.nn.Linear), "model, a type, has no state_dict"),
        (lambda at: Checkpoint(at, model=linear(1, 1)).save(now="2026"), "now = '2026'"),
        (
            lambda at: Checkpoint(at, model=linear(1, 1)).save(x=torch.ones(2).to_sparse()),
            "Checkpoint, x: a Tensor cannot be saved. Keep dense",
        ),
        (lambda at: Checkpoint(at, model=linear(1, 1)).save(x=torch.ones(2, device="meta")), "cannot be written"),
        (
            lambda at: Checkpoint(at, model=linear(1, 1)).save(x={torch.ones(2): 1}),
            "Checkpoint, x: a Tensor cannot be saved",
        ),
        (lambda at: Checkpoint("a\0b", model=linear(1, 1)), "cannot be written"),
        (lambda at: Checkpoint(at / ("x" * 300), model=linear(1, 1)), "cannot be written"),
        (lambda at: Checkpoint(None, model=linear(1, 1)), "cannot be written"),
        (lambda at: Checkpoint(at, model=linear(1, 1)).save(f=linear), "Checkpoint, f: a function cannot be saved"),
        (lambda at: Checkpoint(at / "file" / "run", model=linear(1, 1)), "cannot be written"),
    ],
)
def test_what_cannot_be_saved_is_refused(make, message, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match=message):
        make(tmp_path)


@pytest.mark.parametrize("poisoned", ["weight", "gradient", "state"])
def test_what_is_not_finite_is_not_saved_and_seen_within_50_steps(poisoned, tmp_path):
    """One entry of a network that saturates: its loss stays finite."""
    model = torch.nn.Sequential(linear(3, 4), torch.nn.Tanh(), linear(4, 1))
    optimizer = samplers.Optimizer(model.parameters(), "sghmc", lr=1e-4, momentum=0.9, num_data=10)
    saved = Checkpoint(tmp_path, model=model, optimizer=optimizer)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        if poisoned == "gradient" and len(seen) == 3:
            weight.grad[2, 1] = math.inf
        optimizer.step()
        seen.append(1)

    weight, seen = model[0].weight, []
    for k in range(5):
        step()
        if k < 2:
            saved.save(step=k)
        if k == 3 and poisoned != "gradient":
            with torch.no_grad():
                (weight if poisoned == "weight" else optimizer.state[weight]["p"])[2, 1] = math.inf
    with pytest.raises(RecipeError, match="of group 0 is not finite.*go back to a checkpoint"):
        saved.save(step=5)
    with pytest.raises(RecipeError, match="of group 0 is not finite at step 50.*go back to a checkpoint"):
        for _ in range(50):
            step()
    assert saved.load() == {"step": 1} and weight.isfinite().all()


@pytest.mark.parametrize(
    "parts",
    [
        lambda: dict(model=linear(2, 1), more=linear(1, 1)),
        lambda: dict(model=linear(2, 1), batches=Minibatches(torch.ones(6), 3)),
    ],
)
def test_a_load_that_is_refused_leaves_parts_and_folder_as_they_were(parts, tmp_path):
    Checkpoint(tmp_path, model=linear(2, 1), batches=Minibatches(torch.ones(6), 2)).save(epoch=5)
    parts = parts()
    before, checkpoint = parts["model"].weight.clone(), Checkpoint(tmp_path, **parts)
    with pytest.raises(RecipeError):
        checkpoint.load()
    with pytest.raises(RecipeError, match="has not been loaded"):
        checkpoint.save(epoch=1)
    assert torch.equal(parts["model"].weight, before) and checkpoints.read(tmp_path)[1] == {"epoch": 5}


FORGED = {
    "what": [None, 3, "sampling run"],
    "generation": [None, "1", [0], 0.5, True, math.nan],
    "settings": [None, [], 3, {"lr": 1}],
    "states": [
        None,
        3,
        [],
        {},
        {"dict": 3},
        {"dict": [1]},
        {"dict": [[{"list": []}, 1]]},
        {"list": [], "dict": []},
        {"exec": "1"},
        {"tensor": "no such"},
        {"dict": [["model", 3]]},
        {"dict": [["model", {"dict": []}]]},
        {"module": [[["model", 1]], 3]},
    ],
    "told": [None, 7, [1], {"tensor": "states.model.weight"}],
}


@pytest.mark.parametrize("entry, value", [(entry, value) for entry, values in FORGED.items() for value in values])
def test_a_forged_checkpoint_is_refused(entry, value, tmp_path):
    """Whoever forges a file can forge its SHA-256."""
    Checkpoint(tmp_path, model=linear(2, 1)).save(epoch=1)
    tensors, account = storage.read(tmp_path / "state-0.safetensors", "checkpoint")
    storage.write(tmp_path / "state-0.safetensors", "checkpoint", tensors, account | {entry: value})
    with pytest.raises(RecipeError):
        Checkpoint(tmp_path, model=linear(2, 1)).load()


def test_folders_of_sampling_runs_and_of_loops_are_told_apart(tmp_path):
    def sampled(at):
        return samplers.sample(
            samplers.SGLD,
            lambda t: (t**2).sum() / 2,
            init=torch.zeros(2),
            steps=5,
            step_size=0.1,
            progress=False,
            checkpoint=at,
        )

    sampled(tmp_path / "run")
    Checkpoint(tmp_path / "loop", model=linear(2, 1)).save()
    with pytest.raises(RecipeError, match="holds a sampling run, this is a training loop"):
        Checkpoint(tmp_path / "run", model=linear(2, 1)).load()
    with pytest.raises(RecipeError, match="holds a training loop, this is a sampling run"):
        sampled(tmp_path / "loop")


def test_checkpoints_that_are_removed_are_missed_once(tmp_path):
    checkpoint = Checkpoint(tmp_path / "run", model=linear(2, 1))
    checkpoint.save(epoch=1)
    (tmp_path / "run" / "state-0.safetensors").unlink()
    with pytest.raises(RecipeError, match="somebody removed them"):
        checkpoint.save(epoch=2)
    assert checkpoint.load() == {}
    checkpoint.save(epoch=1)
    assert checkpoint.load() == {"epoch": 1}


def test_a_run_that_is_there_is_not_overwritten(tmp_path):
    Checkpoint(tmp_path, model=linear(2, 1)).save(epoch=5)
    with pytest.raises(RecipeError, match="holds a run that has not been loaded"):
        Checkpoint(tmp_path, model=linear(2, 1)).save(epoch=1)
    assert Checkpoint(tmp_path, model=linear(2, 1)).load() == {"epoch": 5}


def test_a_second_writer_is_noticed(tmp_path):
    one, other = (Checkpoint(tmp_path, model=linear(2, 1)) for _ in range(2))
    one.load(), other.load()
    one.save(epoch=1)
    with pytest.raises(RecipeError, match="not been loaded|another run has written there"):
        other.save(epoch=1)
    other.load()
    other.save(epoch=2)
    with pytest.raises(RecipeError, match="another run has written there"):
        one.save(epoch=3)


def test_two_writers_at_once_do_not_meet(tmp_path, monkeypatch):
    one, other = (Checkpoint(tmp_path, model=linear(2, 1)) for _ in range(2))
    write = storage.write

    def slow(*given):
        with pytest.raises(RecipeError, match="another run writes there"):
            other.save(by="other")
        write(*given)

    monkeypatch.setattr(storage, "write", slow)
    one.save(by="one")
    assert one.load() == {"by": "one"}


def test_a_disk_that_fills_up_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path, model=linear(2, 1))
    checkpoint.save(epoch=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecipeError, match="No space left on device"):
        checkpoint.save(epoch=2)
    monkeypatch.undo()
    assert Checkpoint(tmp_path, model=linear(2, 1)).load() == {"epoch": 1}
    checkpoint.save(epoch=2)
    assert Checkpoint(tmp_path, model=linear(2, 1)).load() == {"epoch": 2}


def test_what_a_killed_writer_has_left_is_swept_away(tmp_path):
    (tmp_path / ".state-0.safetensors.0123abcd").write_bytes(b"half of it")
    Checkpoint(tmp_path, model=linear(2, 1)).save()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lock", "state-0.safetensors"]


def test_a_clock_that_jumps_back_saves_at_once(tmp_path, monkeypatch):
    now = iter([0.0, 1e6, 10.0, 11.0, 11.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    checkpoint = Checkpoint(tmp_path, every=60, model=torch.nn.Linear(1, 1))
    saved = []
    for k in range(3):
        checkpoint.save(k=k)
        saved.append(checkpoints.read(tmp_path)[1]["k"])
    assert saved == [0, 1, 1]
