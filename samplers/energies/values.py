"""The value of U of many chains at once, where a run compares energies."""

from collections.abc import Callable

import torch

from integrators.backends.loading import load
from integrators.backends.torch import value_module
from integrators.step import Step
from recipe import Energy

from .data import Data
from .gradients import emitted, vectorised
from .layout import Layout, Target
from .over_chains import OfChains, explained


def value_of(
    energy: Energy | Callable, step: Step | None, layout: Layout, data: Data | None
) -> Callable[[Target], torch.Tensor]:
    """U of all chains, `(chains,)`, as a function of their target, on all data.

    `step`: one that was compiled with the energy, where it is symbolic.

    >>> import samplers, integrators
    >>> from samplers.energies.targets import TARGETS
    >>> step = integrators.compile(samplers.SGLD, energy=TARGETS["double-well"])
    >>> value_of(TARGETS["double-well"], step, Layout(), None)(torch.tensor([[0.0], [1.0]]))
    tensor([2., 0.])
    """
    if isinstance(energy, OfChains):
        energy.check_value("sample, energy", "the run compares values of U")
    function = differentiable_value(energy, step, layout, data)

    @torch.no_grad()
    def value(target: Target) -> torch.Tensor:
        with explained("sample, energy"):
            return function(target)

    return value


def differentiable_value(
    energy: Energy | Callable, step: Step | None, layout: Layout, data: Data | None
) -> Callable[..., torch.Tensor]:
    """As `value_of`, but autograd goes through it, and it takes the rows of the batch of each chain, if not all data.

    Nan where a torch energy raises, as one does of distributions that check their arguments.

    >>> import samplers, integrators
    >>> from samplers.energies.targets import TARGETS
    >>> step = integrators.compile(samplers.SGLD, energy=TARGETS["double-well"])
    >>> x = torch.tensor([[0.5]], requires_grad=True)
    >>> torch.autograd.grad(differentiable_value(TARGETS["double-well"], step, Layout(), None)(x).sum(), x)
    (tensor([[-3.]]),)
    """
    if isinstance(energy, Energy):
        assert step is not None
        function = _emitted(step, data)
    else:
        function = vectorised(layout.energy(energy), data, order=0, complaints=[])

    def value(target: Target, rows: torch.Tensor | None = None) -> torch.Tensor:
        return function(target, *(() if data is None else (data.batch(rows),)))

    return value


def _emitted(step: Step, data: Data | None) -> Callable:
    value = load(value_module(step.program), f"<sde-recipe {step.recipe.name}, U>")["value"]
    return value if data is None else emitted(value, data)
