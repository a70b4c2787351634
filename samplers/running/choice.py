"""The choice of a run's kernel: the step in torch, a compiled kernel of one or many steps, or a graph of several."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from integrators.kernels import block_noise, gpu
from integrators.kernels.fallback import BY_DEVICE, kernel_or_none
from integrators.kernels.single import in_parts
from integrators.kernels.sweep import Sweep
from integrators.step import Step

from .drive import Kernel
from .graphs import SIZE, STEPS_OF_GRAPHS, Graphs, is_unrolled
from .inputs import Inputs
from .launches import Launches, kernel_of
from .plan import Plan
from .stepwise import Stepwise

# The least run that is worth the compilation of a kernel:
STEPS = 10_000  # steps
UPDATES = 2e7  # or steps times chains and sites
STEPS_ON_GPU = 2_000  # steps on a GPU: a step in torch is some hundred launches, whatever its size

Choice = tuple[Kernel, str]  # a kernel, and the reason for it


def choose(
    plan: Plan, state: dict[str, Any], inputs: Inputs, keep: Sequence[str], backend: str, where: str
) -> tuple[Kernel, str, Inputs]:
    """The kernel of a run, the reason for the choice, and the inputs.

    In a long run torch compiles the gradient, and on a GPU Triton draws noise and rows for several steps at once.
    `state`: the start of the chains by block; `keep`: the names of the blocks whose values are handed on. Raises
    RecipeError where a backend is given by name and has no kernel for the step.
    """
    device = next(iter(state.values())).device
    on_gpu = gpu.has_graphs(device)  # where a graph is quick to make
    least = STEPS_ON_GPU if on_gpu else STEPS_OF_GRAPHS
    if on_gpu and backend == "auto" and plan.length >= least:
        inputs = replace(inputs, functions=block_noise.functions_on(device))
    has_graph = backend == "auto" and is_unrolled(plan, inputs, state, least)
    if has_graph and not on_gpu:
        return Graphs(inputs, keep, least, where), "several steps in one graph of torch.compile: a long run", inputs
    inputs = inputs if has_graph else with_compiled_gradient(plan, inputs, backend, where)
    kernel, reason = kernel_for(plan, state, inputs, keep, backend)
    if has_graph:
        reason = f"several steps in one CUDA graph; beside it {reason}"
        return Graphs(inputs, keep, least, where, kernel), reason, inputs
    return kernel, reason, inputs


def with_compiled_gradient(plan: Plan, inputs: Inputs, backend: str, where: str) -> Inputs:
    """The inputs, in a long run with a gradient that torch compiles."""
    return inputs.compiled(where) if backend != "torch" and plan.length >= STEPS_OF_GRAPHS else inputs


def kernel_for(plan: Plan, state: dict[str, Any], inputs: Inputs, keep: Sequence[str], backend: str) -> Choice:
    """A kernel of one step or of many by `backend`, and the reason; "auto" compiles for long runs only."""
    if plan.has_parameters:
        return Stepwise(inputs, keep), "a phase has parameters of its own: no kernel takes them"
    symbolic = inputs.target.is_symbolic and not inputs.target.accepts_by_all  # which has two kinds of batches
    entries = plan.step.recipe.entries
    device = state[entries[0].name].device.type
    language = BY_DEVICE.get(device) if backend == "auto" else backend
    if language in (None, "torch"):
        return Stepwise(inputs, keep), f"no kernels for the device {device}" if language is None else "asked for"
    if backend == "auto":
        reason = too_short(plan, state, symbolic)
        if reason:
            return Stepwise(inputs, keep), reason
    by_steps = not symbolic or language != "cpp"  # C++ makes either one step or many

    def of_many(step: Step) -> object:
        return kernel_or_none(backend, partial(kernel_of, step, state, inputs, language), others=by_steps)

    if symbolic and all(of_many(s) is not None for s in plan.steps):
        return Launches(inputs, keep, language), f"many steps in one call of {language}: all is in formulas"
    blocks = in_parts(plan.step.recipe, state)

    def of_one(step: Step) -> object:
        return kernel_or_none(backend, partial(Sweep, step.program, blocks, language))

    if by_steps and all(of_one(s) is not None for s in plan.steps):
        why = "no kernel makes many of them" if inputs.target.is_symbolic else "U is a torch function"
        return Stepwise(inputs, keep, language), f"each step in one call of {language}: {why}"
    return Stepwise(inputs, keep), f"the step has no kernel in {language}"


def too_short(plan: Plan, state: dict[str, torch.Tensor], symbolic: bool) -> str:
    """The reason why compilation does not pay, or "": a short run, or small blocks under a kernel of one step."""
    like = next(iter(state.values()))
    if like.device.type == "cuda":
        return "" if plan.length >= STEPS_ON_GPU else f"fewer than {STEPS_ON_GPU:,} steps"
    size = max(x.numel() for x in state.values())
    if plan.length < STEPS and plan.length * size < UPDATES:
        return f"fewer than {STEPS:,} steps, and {UPDATES / 1e6:g} million updates of numbers"
    if not symbolic and size < SIZE:
        return f"U is a torch function, and no block has {SIZE:,} numbers"
    return ""
