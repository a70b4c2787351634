"""Triton kernels of many steps on a symbolic energy: the torch step's numbers, and what C++ keeps of a run."""

import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from covering import covering, slow
from devices import TRITON
from test_data_energies import ENERGIES, columns
from test_data_energies import start as begin
from test_trajectories import COUPLED, ON_KERNELS, errors

import integrators
import samplers
from integrators.kernels import fallback
from integrators.kernels.trajectory import Trajectory, TrajectoryOnGPU
from integrators.passes import Unsupported
from recipe import Energy, RecipeError
from samplers.running import choice, launches
from samplers.target.targets import TARGETS
from samplers.testing.cases import CASES

IN_CI = [("coordinates", 1), ("a total of the chain", None)]
ALWAYS = {"sgld", "psgld-gamma", "hmc-randomised"}
SETTINGS = {"chains": 9, "step_size": 0.02, "seed": 3, "progress": False}


def start():
    return torch.zeros(2, dtype=torch.float64, device=TRITON)


def targets_of(recipe):
    """An energy and the number of its sites."""
    if len(recipe.targets) == 2:
        return TARGETS["banana"], 2
    return (COUPLED, 5) if recipe.target_is_vector else (TARGETS["quartic"], 1)


@pytest.mark.filterwarnings("ignore:.*encountered in (divide|multiply):RuntimeWarning:triton")
@pytest.mark.parametrize("name", covering(ON_KERNELS, ALWAYS))
def test_a_kernel_makes_the_steps_of_the_torch_text(name):
    case = CASES[name]
    energy, sites = targets_of(case.recipe)
    how = {"steps": 3, "kind": TrajectoryOnGPU, "device": TRITON}
    found = errors(case.recipe, energy, sites, torch.float64, **how, **case.parameters)
    assert max(found.values()) <= 1e-12, found


@pytest.mark.parametrize("chains, sites", [slow((1, 1)), (33, 3), slow((3, 9))])
def test_any_number_of_chains_and_sites_in_float32(chains, sites):
    how = {"chains": chains, "steps": 3, "kind": TrajectoryOnGPU, "device": TRITON, "A": 1.0, "mu": 1.0}
    assert max(errors(samplers.SGNHT, COUPLED, sites, torch.float32, **how).values()) < 1e-5


@pytest.mark.parametrize("keep", [slow(["theta"]), ["xi", "p"]])
def test_launches_of_any_length_keep_what_one_in_cpp_keeps(keep):
    """Step sizes that change, a gradient that is carried, chains that count from elsewhere."""
    program = integrators.compile(samplers.SGNHT, energy=TARGETS["banana"]).program
    shapes = {"theta": (5, 2), "p": (5, 2), "xi": (5,)}
    state = {name: torch.linspace(-1, 1, 5)[:, None].expand(5, 2).double() for name in shapes}
    state["xi"] = state["xi"][:, 0]
    how = {"parameters": {"A": 1.0, "mu": 1.0}, "first_chain": 2**31 + 7}
    settings = [(0.01 * (1 + k % 3), 1.25) for k in range(5)]
    whole = Trajectory(program, {b: v.clone() for b, v in state.items()}, 2**63 + 1, **how)
    expected = whole.run(2**32 - 3, settings, thin=3, first_kept=1, keep=keep)
    parts = TrajectoryOnGPU(program, {b: v.clone().to(TRITON) for b, v in state.items()}, 2**63 + 1, **how)
    kept = [
        parts.run(2**32 - 3 + at, settings[at:end], thin=3, first_kept=first, keep=keep)
        for at, end, first in ((0, 1, 1), (1, 4, 0), (4, 5, 0))
    ]
    torch.testing.assert_close(torch.cat(kept).cpu(), expected, rtol=1e-12, atol=1e-12)
    for name, value in whole.state_now().items():
        torch.testing.assert_close(parts.state_now()[name].cpu(), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name, size", covering(product(ENERGIES, (None, 1, 2, 9)), IN_CI))
def test_sums_over_batches_of_data_are_those_of_cpp(name, size):
    """Also where a gradient of the step before is of another batch."""
    energy = ENERGIES[name][0]
    step, data = integrators.compile(samplers.UnderdampedLangevin, energy=energy), columns(energy, 5)
    numbers = []
    for kind, device in ((Trajectory, "cpu"), (TrajectoryOnGPU, TRITON)):
        state = {b: begin(energy, 4).to(device) for b in ("theta", "p")}
        there = tuple(t.to(device) for t in data)
        chains = kind(step.program, state, 3, {"num_data": 40}, data=there, batch_size=size)
        for first, steps in ((5, 2), (7, 1)):
            chains.run(first, [(1e-2, 1.0)] * steps)
        numbers.append(chains.numbers.cpu())
    torch.testing.assert_close(numbers[1], numbers[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "recipe, word", [slow((samplers.MALA, None)), (samplers.GHMC, None), slow((samplers.SGNHT, "A' O B"))]
)
def test_accepted_steps_are_those_of_cpp(recipe, word):
    how = {"scheme": word, "steps": 3, "metropolis": samplers.Metropolis(repeat=2)} | SETTINGS | {"step_size": 0.25}
    runs = []
    for backend, device in (("cpp", "cpu"), ("triton", TRITON)):
        run = samplers.sample(recipe, TARGETS["banana"], init=start().to(device), backend=backend, **how)
        assert run.info["backend"] == backend
        runs.append(run)
    torch.testing.assert_close(runs[1]["theta"].cpu(), runs[0]["theta"], rtol=1e-12, atol=1e-12)
    assert runs[0].info["acceptance"] == runs[1].info["acceptance"]
    assert 0 < sum(runs[0].info["acceptance"]) < 9


def test_a_run_with_phases_and_lost_chains_is_that_of_cpp():
    phases = [samplers.Phase(4, keep=False, temperature=2.0), samplers.Phase(8)]
    how = {"phases": phases, "thin": 2, "step_size": lambda k: 0.2 / (1 + k) ** 0.5, "chains": 20}
    runs = []
    for backend, device in (("cpp", "cpu"), ("triton", TRITON)):
        with np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="not finite. Take a smaller step size"):
            run = samplers.sample(
                samplers.SGLD, TARGETS["banana"], init=start().to(device), backend=backend, **SETTINGS | how
            )
        runs.append(run)
    assert 0 < len(runs[0].diverged) < 20 and runs[0].diverged == runs[1].diverged
    torch.testing.assert_close(runs[1]["theta"].cpu(), runs[0]["theta"], rtol=1e-6, atol=1e-6)


def test_the_launch_that_compiles_says_nothing_of_how_long_launches_take(monkeypatch):
    began_and_ended = iter([0, 60, 60, 60.1, 60.1, 60.2])
    monkeypatch.setattr(launches, "time", SimpleNamespace(perf_counter=lambda: next(began_and_ended)))
    sizes, run = [], TrajectoryOnGPU.run
    monkeypatch.setattr(TrajectoryOnGPU, "run", lambda *a, **how: sizes.append(len(a[2])) or run(*a, **how))
    samplers.sample(samplers.SGLD, TARGETS["banana"], init=start(), steps=200, backend="triton", **SETTINGS)
    assert sizes == [64, 64, 72]


def test_what_has_no_kernel_of_many_steps_has_one_of_one_step():
    energy = Energy(samplers.SGLD.targets[0], U=COUPLED.U)
    init = torch.full((70,), 0.1, dtype=torch.float64, device=TRITON)
    runs = [
        samplers.sample(samplers.SGLD, energy, init=init, steps=4, backend=backend, **SETTINGS | {"step_size": 1e-3})
        for backend in ("torch", "triton")
    ]
    assert runs[1].info["backend"] == "triton"
    torch.testing.assert_close(runs[1]["theta"], runs[0]["theta"], rtol=1e-12, atol=1e-12)
    step = integrators.compile(samplers.SGLD, energy=energy)
    with pytest.raises(Unsupported, match="At most 64 sites"):
        TrajectoryOnGPU(step.program, {"theta": init[None]}, 0)


# ---- without being asked


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Runs choose the kernels that they would choose there."""
    monkeypatch.setitem(fallback.BY_DEVICE, "cpu", "triton")
    monkeypatch.setattr(choice, "too_short", lambda *_: "")
    fallback._say_once.cache_clear()


@pytest.mark.parametrize("energy", [TARGETS["banana"], slow(lambda at: (at**4).sum())], ids=["symbolic", "function"])
def test_a_run_on_a_gpu_is_by_triton_without_being_asked(energy, as_on_a_gpu):
    how = {"init": start(), "steps": 5} | SETTINGS
    runs = [samplers.sample(samplers.SGNHT, energy, **how, **backend) for backend in ({}, {"backend": "torch"})]
    assert [run.info["backend"] for run in runs] == ["triton", "torch"]
    torch.testing.assert_close(runs[0]["theta"], runs[1]["theta"], rtol=1e-10, atol=1e-10)


def test_without_triton_it_is_by_torch_and_says_why(as_on_a_gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.language", None)
    how = {"init": start(), "steps": 5} | SETTINGS
    with pytest.warns(RuntimeWarning, match="steps run in torch: sgld, triton: Triton is not installed"):
        run = samplers.sample(samplers.SGLD, TARGETS["banana"], **how)
    assert run.info["backend"] == "torch"
    with pytest.raises(RecipeError, match="Triton is not installed"):
        samplers.sample(samplers.SGLD, TARGETS["banana"], backend="triton", **how)


def test_a_long_run_on_a_gpu_is_worth_a_compilation():
    plan = type("Plan", (), {"length": choice.STEPS_ON_GPU})
    there = type("Tensor", (), {"device": torch.device("cuda"), "numel": lambda self: 6})()
    assert not choice.too_short(plan, {"theta": there}, False)
    assert choice.too_short(plan, {"theta": torch.zeros(6)}, True)
