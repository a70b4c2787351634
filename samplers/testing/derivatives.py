"""The derivatives of an Energy as functions, in the form of a Step's arguments."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypedDict

import numpy as np
import torch
from sympy import Rational

import integrators
from integrators.backends.loading import load
from integrators.backends.torch import value_module
from recipe import Energy, Recipe, grad, potential, total, vector
from recipe.symbols import Block

theta = vector("theta")
n = total(1)


def quartic(coordinates: Sequence[Block]) -> Energy:
    """The energy sum_i [x_i^4/16 + x_i^2/4 - .4 x_i] + (sum_i x_i)^2/(10 n) of a recipe's targets."""
    over, size = (total, n) if coordinates[0].is_vector else (lambda e: e, len(coordinates))
    well = sum(over(x**4 / 16 + x**2 / 4 - Rational(2, 5) * x) for x in coordinates)
    return Energy(tuple(coordinates), U=well + sum(map(over, coordinates)) ** 2 / (10 * size))


class Derivatives(TypedDict):
    """Functions dU/dx_i, d2U/dx_i2 and U of arrays or tensors, or of dicts of arrays or tensors by block."""

    gradient: Callable[[Any], Any]
    curvature: Callable[[Any], Any]
    value: Callable[[Any], Any]


@cache
def derivatives(energy: Energy) -> Derivatives:
    """The derivatives of U, as arguments of a step.

    >>> derivatives(Energy(theta, U=total(theta**4)))["gradient"](np.array([[1.0, 2.0]]))
    array([[ 4., 32.]])
    """
    blocks = energy.coordinates if all(isinstance(b, Block) for b in energy.coordinates) else (theta,)
    U = potential(*blocks)
    reader = Recipe(
        name="reader",
        state=blocks,
        target=blocks if len(blocks) > 1 else blocks[0],
        H=U,
        D={b: 1 / (1 + grad(U, b) ** 2) for b in blocks},
    )
    step = integrators.compile(reader, "Euler", energy=energy)
    emitted = step.namespace
    return {
        "gradient": _on_arrays_too(emitted["gradient"]),
        "curvature": _on_arrays_too(emitted["curvature"]),
        "value": _on_arrays_too(load(value_module(step.program), "<U>")["value"]),
    }


def _on_arrays_too(function):
    """Wraps a function of tensors, or of a dict of them, so that arrays give arrays."""

    def answer(at):
        if torch.is_tensor(at):
            return function(at)
        if not isinstance(at, dict):
            return function(torch.as_tensor(np.array(at))).numpy()
        result = function({k: v if torch.is_tensor(v) else torch.as_tensor(np.array(v)) for k, v in at.items()})
        if torch.is_tensor(result):
            return result.numpy() if any(isinstance(v, np.ndarray) for v in at.values()) else result
        if any(isinstance(v, np.ndarray) for v in at.values()):
            return {k: v.numpy() for k, v in result.items()}
        return result

    return answer
