"""How the chains of a run move: step by step in torch, by a kernel of one step, or by one of many."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from integrators.kernels.choice import BY_DEVICE, kernel_or_none
from integrators.kernels.sweep import Sweep
from integrators.step import Step

from .inputs import Inputs
from .launches import Launches, kernel_of
from .moving import Mover
from .plan import Plan
from .stepwise import Stepwise

STEPS = 10_000  # what a run has at least to be worth a compilation, in steps
UPDATES = 2e7  # or in steps times chains and sites
STEPS_ON_GPU = 2_000  # there: a step in torch is some hundred launches, whatever its size
SIZE = 2_000  # numbers of a block, below which a step in torch costs less than the call of a kernel


def mover_of(plan: Plan, state: dict[str, Any], inputs: Inputs, keep: Sequence[str], backend: str) -> Mover:
    """The mover that `backend` asks for; with "auto" a kernel where the run is long enough, and every step has one.

    `state`: where the chains start; `keep`: the names of the blocks whose values are handed on. Raises RecipeError
    where there is no kernel that is asked for by name.
    """
    symbolic = inputs.target.is_symbolic
    entries = plan.step.recipe.entries
    language = BY_DEVICE.get(state[entries[0].name].device.type) if backend == "auto" else backend
    if language in (None, "torch") or (backend == "auto" and not pays(plan, state, symbolic)):
        return Stepwise(inputs, keep)
    by_steps = language == "triton" or not symbolic  # C++ makes either one step or many

    def of_many(step: Step) -> object:
        return kernel_or_none(backend, partial(kernel_of, step, state, inputs, language), others=by_steps)

    if symbolic and all(of_many(s) is not None for s in plan.steps):
        return Launches(inputs, keep, language)
    blocks = {b.name: [state[b.name]] if b.is_vector else state[b.name] for b in entries}

    def of_one(step: Step) -> object:
        return kernel_or_none(backend, partial(Sweep, step.program, blocks, language))

    if by_steps and all(of_one(s) is not None for s in plan.steps):
        return Stepwise(inputs, keep, language)
    return Stepwise(inputs, keep)


def pays(plan: Plan, state: dict[str, torch.Tensor], symbolic: bool) -> bool:
    """Whether a run is worth a compilation: it is long, and where a kernel makes one step alone, a step is large."""
    some = next(iter(state.values()))
    if some.device.type == "cuda":
        return plan.length >= STEPS_ON_GPU
    size = max(x.numel() for x in state.values())
    long = plan.length >= STEPS or plan.length * size >= UPDATES
    return long and (symbolic or size >= SIZE)
