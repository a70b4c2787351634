"""Refusals of network layers that make an energy random, or couple the examples of a batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

from recipe.errors import RecipeError

EVAL = "Call eval() on it: gradients stay on."


def fault_of(module: torch.nn.Module) -> tuple[str, str]:
    """The fault of a layer in an energy, and the advice; two empty strings for a layer without fault.

    >>> fault_of(torch.nn.Dropout(0.5))
    ('is random in training mode', 'Call eval() on it: gradients stay on.')
    >>> fault_of(torch.nn.Dropout(0.5).eval())
    ('', '')
    """
    if isinstance(module, _BatchNorm):
        if module.running_mean is None:
            return "couples the examples of a batch", "Give it running statistics, and call eval() on it."
        if module.training:
            return "couples the examples of a batch", EVAL
    if module.training and is_random(module):
        return "is random in training mode", EVAL
    return "", ""


@contextmanager
def of_an_energy(where: str) -> Iterator[None]:
    """Raises RecipeError when a layer with a fault is called inside of the context."""

    def refuse(module: torch.nn.Module, inputs: Any) -> None:
        fault, advice = fault_of(module)
        if fault:
            raise RecipeError(where, f"a {type(module).__name__} in its network {fault}", do=advice)

    hook = register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


def is_random(module: torch.nn.Module) -> bool:
    """Whether a layer draws random numbers in training mode, as dropout does."""
    if isinstance(module, torch.nn.RReLU):
        return True
    rate = getattr(module, "p", 1.0) if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
    return isinstance(rate, (int, float)) and rate > 0
