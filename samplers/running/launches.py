"""Launches of compiled kernels: many steps of many chains in one call, with a look at the chains after each."""

import time
from collections.abc import Iterator

import torch

from integrators.kernels.choice import kernel_or_none
from integrators.kernels.sweep import Sweep
from integrators.kernels.trajectory import Trajectory
from integrators.step import Step
from recipe.errors import RecipeError
from recipe.symbols import num_data

STEPS, UPDATES = (
    10_000,
    2e7,
)  # what a run has at least, in steps or in steps times chains and sites, to be worth a compilation
SIZE = 2_000  # numbers of a block, below which a step in torch costs less than the call of a kernel
SECONDS = 0.2  # of a launch


def pays(steps: int, state, inlined: bool) -> bool:
    """Whether a run is worth a compilation: it is long, and where a kernel makes one step alone, a step is large."""
    size = max(x.numel() for x in state.values())
    return (inlined or size >= SIZE) and (steps >= STEPS or steps * size >= UPDATES)


def trajectory(backend: str, run) -> Trajectory | None:
    """The kernel of many steps on a symbolic energy, from a run's state; None where there is none and the `backend` is "auto"."""
    columns, batch_size = ((), None) if run.data is None else (run.data.tensors, run.data.batch_size)
    return kernel_or_none(
        backend,
        lambda: Trajectory(run.step.program, run.state, run.seed, run.parameters, run.first, columns, batch_size),
    )


def sweep(backend: str, run) -> Sweep | None:
    """The kernel of one step, whose gradient is the caller's, for a run's state; None as for `trajectory`."""
    blocks = {b.name: [run.state[b.name]] if b.is_vector else run.state[b.name] for b in run.step.recipe.entries}
    return kernel_or_none(backend, lambda: Sweep(run.step.program, blocks, "triton" if backend == "triton" else "cpp"))


def check_settings(step: Step, settings: list[tuple[float, float]], parameters: dict) -> None:
    """Refuse a pair (step size, temperature) that the step has no form for."""
    own = {name: value for name, value in parameters.items() if name != num_data.name}
    for h, temperature in dict.fromkeys(settings):
        step.check(h, temperature=temperature, **own)


def launches(
    run, kernel: Trajectory, count: int, step_size, temperature, where: str, *, thin: int, first: int, keep
) -> Iterator[tuple[int, list[float], dict[str, torch.Tensor]]]:
    """Move by `count` steps; yields after every launch the steps made, and step sizes and values of the states kept.

    Of the steps every `thin`-th is kept, from number `first` on. `step_size` and `temperature` are functions of the step.
    """
    kernel.died[: run.chains][~run.alive] = 0  # lost in an earlier phase
    run.kernel, done, size, start = kernel, 0, 64, run.steps_done
    run.steps_done += count
    while done < count:
        steps = min(size, count - done)
        began, settings = time.perf_counter(), [(step_size(done + k), temperature(done + k)) for k in range(steps)]
        skip = (first - done) % thin if first < done else first - done
        check_settings(run.step, settings, run.parameters)
        drawn = kernel.run(start + done, settings, thin=thin, first_kept=min(skip, steps), keep=keep)
        try:
            over = run.lose(kernel, settings, start + done, where)
        except RecipeError as error:  # every chain is lost: their draws first
            over = error
        kept, at = {}, 0
        for name in keep:
            shape, rows = kernel.state[name].shape[1:], len(kernel.rows[name])
            kept[name] = drawn[:, at : at + rows].permute(2, 0, 1).reshape(kernel.chains, len(drawn), *shape)
            at += rows
        yield steps, [h for h, _ in settings[skip::thin]], kept
        if over:
            raise over
        done += steps
        passed = time.perf_counter() - began
        size = max(1, min(2 * size, int(size * SECONDS / max(passed, 1e-6)), 100_000))
    run.state, run.kernel = kernel.state_now(), None
