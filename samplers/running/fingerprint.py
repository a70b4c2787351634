"""The settings under which a checkpoint may be resumed, as plain data."""

from collections.abc import Mapping
from typing import Any

import torch

from integrators import networks, operator_checks, operators

from ..files import storage
from ..files.store import SHA256
from ..target.data import Data
from .inputs import Inputs
from .plan import Plan

SHOWN = 8  # numbers of a tensor, or of a schedule, that stand beside their digest


def fingerprint(plan: Plan, inputs: Inputs, start: Mapping, keep: list[str], backend: str, ladder: Any = None) -> dict:
    """The settings that determine the draws: tensors by type, shape and digest, schedules by values, functions by name.

    The text of the steps contains recipe, word, pieces, scope and symbolic energy. Energies and observations that are
    functions are compared by a Probe. Left out are the device and the number of threads (draws change by rounding), the
    frequency of checkpoints, progress and watch (draws do not change), and warmup (part of the phases).

    `start`: the blocks of `init`; `keep`: the names of the kept blocks; `ladder`: the temperatures side by side.
    """
    data: Data | None = inputs.target.data
    coordinates = inputs.layout.coordinates
    values = networks.values_of(plan.step.recipe)
    return _plain(
        {
            "recipe": str(plan.step.recipe),
            "scheme": str(plan.step.scheme),
            "scope": plan.step.program.scope,
            "energy": inputs.target.energy,
            "torch": torch.__version__,
            "phases": [{"steps": stage.steps, "kept": stage.phase.keep} for stage in plan.stages],
            "data": None if data is None else list(data.tensors),
            "batch_size": None if data is None else data.batch_size,
            "observe": list(inputs.target.observations),
            "frozen": [stage.step.frozen for stage in plan.stages],
            "thin": plan.thin,
            "seed": inputs.seed,
            "start": start,
            "tensors": inputs.layout.shapes,
            **({} if coordinates is None else {"coordinates": [str(coordinates), coordinates.account()]}),
            "keep": keep,
            "first_chain": inputs.first_chain,
            "backend": backend,
            "parameters": operator_checks.at_start(plan.step.recipe, inputs.parameters, start),
            "settings": plan.every_setting(),
            "formulas": "\n".join(step.source for step in plan.steps),
            **({"networks": values} if values else {}),
            **({"scheduled": [sorted(s.parameters) for s in plan.stages]} if plan.has_parameters else {}),
            **({} if ladder is None else {"temperatures": ladder.temperatures, "swap_every": ladder.swap_every}),
        }
    )


def _plain(x: Any) -> Any:
    """A value as plain JSON data; a function becomes the words "a function"."""
    if torch.is_tensor(x):
        few = {"numbers": x.tolist()} if x.is_floating_point() and x.numel() <= SHOWN else {}
        return {"type": str(x.dtype), "shape": list(x.shape), **few, SHA256: storage.digest(x)}
    if isinstance(x, operators.Operator):
        return [repr(x), *map(_plain, x.tensors)]
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)) and len(x) > SHOWN and all(isinstance(v, float) for v in x):  # of a schedule
        return _plain(torch.tensor(x, dtype=torch.float64, device="cpu"))
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    if x is None or isinstance(x, (int, float, str)):
        return x
    return "a function" if callable(x) else str(x)
