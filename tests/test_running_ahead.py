"""The host runs ahead of a device: a steady step copies nothing to it and reads nothing from it.

The device is played by the CPU: its numbers come when the test says so, and everything that reads one at once counts.
"""

import warnings
from collections import Counter

import pytest
import torch
from covering import covering
from devices import TRITON

import samplers
from integrators import transfers
from integrators.kernels.launchers import Launch, TritonLauncher
from recipe import RecipeError
from samplers.running import recording

READS = ("__bool__", "__float__", "__int__", "__index__", "item", "tolist", "nonzero", "numpy", "equal", "cpu")


@pytest.fixture
def device(monkeypatch):
    """What is done with a far device: what is sent, read at once, launched, on its way; that comes if `come`."""
    done = Counter(come=1)
    send, launches = TritonLauncher._on_device, TritonLauncher.launches

    def on_device(launcher, array):
        done["copies"] += 1
        return send(launcher, array)

    def launched(launcher, segment, key):
        for launch in launches(launcher, segment, key):
            done["launches"] += 1
            yield launch

    def on_the_way(numbers):
        done["on the way"] += 1
        return numbers.clone(), lambda: bool(done["come"]), lambda: None

    monkeypatch.setattr(TritonLauncher, "_on_device", on_device)
    monkeypatch.setattr(TritonLauncher, "launches", launched)

    def counted(name):
        read = getattr(torch.Tensor, name)

        def reads(*arguments, **options):
            done["reads"] += 1
            return read(*arguments, **options)

        return reads

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    monkeypatch.setattr(transfers, "_on_the_way", on_the_way)
    monkeypatch.setattr(transfers, "IS_NEAR", set())
    monkeypatch.setattr(Launch, "run", Launch.__call__, raising=False)
    monkeypatch.setattr(Launch, "__call__", lambda launch: None)
    return done


def optimizer_of(recipe, **settings):
    params = [torch.nn.Parameter(torch.full(shape, 0.1, device=TRITON)) for shape in ((3, 5), (7,), (64,))]
    for p in params:
        p.grad = torch.full_like(p, 0.3)
    return samplers.Optimizer(params, recipe, num_data=10, backend="triton", **settings), params


@pytest.mark.parametrize("name, launches", [("sghmc", 1), ("sgnht", 4), ("psgld", 1)])
def test_a_steady_step_of_the_optimizer_copies_nothing_and_reads_nothing(name, launches, device):
    """Also where a schedule moves the rate, gradients come back in other memory, and their numbers are checked.

    What a report asks is on the way from steps 30, 40 and 50, and the variance of gradients from the step after each.
    """
    optimizer, params = optimizer_of(samplers.catalogue[name], lr=1e-3)
    own, other = [p.grad for p in params], [p.grad.clone() for p in params]

    def steps(count):
        for k in range(count):
            optimizer.param_groups[0]["lr"] *= 0.999
            for p, g in zip(params, own if k % 2 else other):
                p.grad = g
            optimizer.step()

    steps(26)  # of which 24 look for clipping
    before = Counter(device)
    steps(26)  # step 50 checks the gradients, and looks for clipping
    device.subtract(before)
    assert device["copies"] == 0 and device["launches"] == 26 * launches and device["on the way"] == 2 + 2 * 3
    assert device["reads"] <= device["on the way"]  # of what has come


def test_gradients_that_are_not_finite_are_refused_when_the_verdict_has_come(device):
    optimizer, params = optimizer_of(samplers.SGHMC, lr=1e-3, momentum=0.9)
    device["come"] = 0
    params[1].grad[2] = float("inf")
    optimizer.step()
    params[1].grad[2] = 0.0
    for _ in range(3):
        optimizer.step()
    device["come"] = 1
    with pytest.raises(RecipeError, match="gradient of parameter 1 of group 0 is not finite at step 0"):
        optimizer.step()


def test_finite_gradients_are_not_refused_for_a_sum_beyond_all_numbers(device):
    optimizer, params = optimizer_of(samplers.SGHMC, lr=1e-3, momentum=0.9)
    params[1].grad[:2] = 3e38
    optimizer.step()


def test_clipping_is_seen_late_too(device):
    optimizer, params = optimizer_of(samplers.SGHMC, lr=1e-3, momentum=0.9)
    device["come"] = 0
    for k in range(6):
        for p in params:
            p.grad = torch.rand(p.shape, generator=torch.Generator().manual_seed(k))
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    device["come"] = 1
    with pytest.warns(RuntimeWarning, match="as if they were clipped"):
        optimizer.step()


# ---- sample


def sampled(steps, energy=lambda theta: (theta**2).sum() / 2, **settings):
    how = {"init": torch.full((64,), 0.1, device=TRITON), "chains": 3, "step_size": 0.1, "progress": False, "thin": 10}
    return samplers.sample(samplers.SGHMC, energy, steps=steps, seed=3, **how | settings)


def diverging(theta):
    """A bowl that is a cliff beyond 3.4: some chains are lost, some stay."""
    return (theta**2).sum() / 2 - torch.exp(60 * torch.relu(theta - 3.4) ** 2).sum() + 64


@pytest.mark.parametrize("slow", covering([0, 1], [1]), ids=["prompt", "late"])
def test_a_run_that_is_ahead_of_its_verdicts_is_the_run_that_is_not(slow, monkeypatch):
    for energy, backend in ((lambda theta: (theta**2).sum() / 2, "torch"), (diverging, "torch")):
        how = {"energy": energy, "backend": backend, "chains": 8, "step_size": 0.3}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = sampled(100, **how)
            with monkeypatch.context() as patch:
                patch.setattr(transfers, "IS_NEAR", set())
                asked = Counter()

                def on_the_way(numbers, asked=asked):
                    asked["verdicts"] += 1
                    come = []
                    return numbers.clone(), lambda: not slow or bool(come), lambda: come.append(1)

                patch.setattr(transfers, "_on_the_way", on_the_way)
                result = sampled(100, **how)
        assert torch.equal(result["theta"], expected["theta"]) and asked["verdicts"] >= 100
        assert result.info["diverged"] == expected.info["diverged"]
    assert 0 < len(result.info["diverged"]) < 8


def test_a_steady_step_of_sample_waits_for_nothing(device, monkeypatch):
    """Three steps more launch three times the kernels of one, and send three verdicts on their way."""
    monkeypatch.setattr(Launch, "__call__", Launch.run)
    tallies = []
    for steps in (8, 11):
        before = Counter(device)
        sampled(steps, backend="triton", thin=steps)
        tallies.append(Counter(device))
        tallies[-1].subtract(before)
    tallies[1].subtract(tallies[0])
    assert tallies[1]["on the way"] == 3 and tallies[1]["launches"] == 6
    assert tallies[1]["reads"] == 3  # of verdicts that have come, in the host's memory


@pytest.mark.parametrize("slow", covering([0, 1], [1]), ids=["prompt", "late"])
def test_draws_leave_a_device_in_chunks_while_it_goes_on(slow, monkeypatch, tmp_path):
    """Of eight states, four of each block; at most four chunks are under way."""
    how = {"backend": "torch", "thin": 1, "keep": "p"}
    expected = sampled(50, **how)
    monkeypatch.setattr(transfers, "IS_NEAR", set())
    monkeypatch.setattr(recording, "STATES", 8)
    sizes, coming = [], []

    def on_the_way(numbers):
        if numbers.dim() == 1:  # a verdict
            return numbers.clone(), lambda: True, lambda: None
        sizes.append(tuple(numbers.shape))
        mark = object()
        coming.append(mark)
        assert len(coming) <= recording.UNDER_WAY + 2  # two blocks at once

        def come():
            if mark in coming:
                coming.remove(mark)
            return True

        return numbers.clone(), lambda: not slow and come(), come

    monkeypatch.setattr(transfers, "_on_the_way", on_the_way)
    for folder in ({}, {"checkpoint": samplers.checkpoints.Folder(tmp_path / "run", every=0.0)}):
        result = sampled(50, **how, **folder)
        assert all(torch.equal(result[name], expected[name]) for name in ("theta", "p"))
        assert folder or sizes == [(3, 4, 64)] * 24 + [(3, 2, 64)] * 2
        assert not coming
