"""Chains whose sites are spread over processes: numbers, totals and starts are those of chains that are whole."""

from dataclasses import replace

import pytest
import torch

import integrators
import samplers
from integrators import noise
from integrators.initial_state import complete_state
from integrators.kernels.sweep import Sweep
from integrators.noise import Key, Places
from integrators.optimizer_form import of_the_loss, optimizer_form
from integrators.processes import SiteRun, Spread

F64 = torch.float64


@pytest.mark.parametrize("sites", [1, 2, 3, 11, 4100])
@pytest.mark.parametrize("kind", noise.KINDS)
def test_numbers_at_places_are_those_of_the_whole_chain(kind, sites):
    runs = [(sites // 2, sites - sites // 2), (0, sites // 3), (sites // 4, 0)]
    at = torch.cat([torch.arange(first, first + n) for first, n in runs])
    for step in (0, 5, range(3)):
        whole = noise.KINDS[kind](7, step, 3, 2, (sites,), dtype=F64)
        some = noise.KINDS[kind](7, step, 3, 2, (len(at),), dtype=F64, places=Places(sites, tuple(runs)))
        assert torch.equal(some, whole[..., at])


def halves(step, runs, sites, add):
    """The step of a process that has some sites."""
    return replace(step, spread=Spread(sites, tuple(runs), add, add))


@pytest.mark.parametrize("name", ["sgnht", "msgnht", "santa", "psgld-same-step"])
def test_a_process_with_all_sites_in_two_runs_steps_as_one_without_a_spread(name):
    """What no other process has to add to: the torch text and its start."""
    step = integrators.compile(samplers.catalogue[name], backend="torch")
    theta = torch.linspace(-1, 1, 11, dtype=F64)[None].repeat(2, 1)
    here = halves(step, [SiteRun(4, 7), SiteRun(0, 4)], 11, lambda x: None)
    order = torch.cat([torch.arange(4, 11), torch.arange(4)])
    parameters = {s.name: s.default if s.default is not None else 0.5 for s in step.recipe.parameters}

    def moved(of, theta):
        gradient = lambda theta: theta**3 - theta  # noqa: E731
        whole = complete_state(of, {"theta": theta}, seed=3, gradient=gradient, parameters=parameters)
        return of(whole, 0.1, gradient=gradient, noise=Key(3, 0), **parameters)

    alone, spread = moved(step, theta), moved(here, theta[:, order])
    for b in step.recipe.entries:
        expected = alone[b.name][:, order] if b.is_vector else alone[b.name]
        assert torch.allclose(spread[b.name], expected, rtol=1e-12, atol=1e-14), b


@pytest.mark.parametrize("counted, times", [((True, True), 1.0), ((True, False), 0.5)])
def test_totals_are_of_what_is_counted_here_and_of_what_others_add(counted, times):
    runs = [SiteRun(0, 4, counted[0]), SiteRun(4, 4, counted[1])]
    spread = Spread(8, tuple(runs), lambda x: x.add_(100.0), lambda x: None)
    assert torch.equal(spread.total(torch.ones(2, 8)), torch.full((2,), 8 * times + 100))


def test_a_kernel_draws_at_the_sites_of_its_runs_and_waits_for_the_totals_of_others():
    """Two processes in one: each adds what the other has, as a table of the sums of both."""
    recipe = samplers.SGNHT
    compiled = integrators.compile(recipe)
    program = of_the_loss(optimizer_form(recipe, compiled.scheme, compiled.flows), prior=False)
    parameters = {s.name: s.default if s.default is not None else 0.5 for s in recipe.parameters}
    theta = torch.linspace(-1, 1, 4 * 700, dtype=F64)[None]

    def sweep(parts, spread=None):
        state = {name: [x.clone() for x in parts] for name in ("theta", "p")} | {"xi": torch.zeros(1, dtype=F64)}
        return Sweep(program, state, "cpp", spread).bind(state), state

    def move(sweep, parts):
        gradients = [(x**3).contiguous() for x in parts]
        sweep.step(0.05, Key(3, 0), [g.data_ptr() for g in gradients], {}, num_data=10, **parameters)

    whole, state = sweep([theta])
    move(whole, [theta])
    runs = [SiteRun(1300, 1500), SiteRun(0, 1300)]
    parts = [theta[:, run.first : run.first + run.sites].contiguous() for run in runs]
    sums = []
    cut, own = sweep(parts, Spread(2800, tuple(runs), sums.append, sums.append))
    move(cut, parts)
    assert torch.allclose(own["xi"], state["xi"], rtol=1e-12) and sums and all(x.numel() == 1 for x in sums)
    for run, x in zip(runs, own["theta"]):
        assert torch.allclose(x, state["theta"][0][:, run.first : run.first + run.sites], rtol=1e-12)
    copies = [SiteRun(1300, 1500, False), SiteRun(0, 1300)]
    other, _ = sweep(parts, Spread(2800, tuple(copies), (seen := []).append, seen.append))
    move(other, parts)
    assert float(seen[0]) < float(sums[0])
