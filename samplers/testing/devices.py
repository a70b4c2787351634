"""Devices of a step: the layers compute on the CPU, Triton's kernels run on a GPU."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from integrators.step import Step


def device_of(backend: str) -> str:
    """The device of a backend's kernels: "cuda" for Triton where there is a GPU, else "cpu".

    >>> device_of("cpp")
    'cpu'
    """
    return "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"


def stepped(
    step: Step,
    state: dict[str, Any],
    h: float,
    /,
    *,
    gradient: Callable,
    noise: Any,
    curvature: Callable | None = None,
    observe: Mapping[str, Callable] | None = None,
    value: Callable | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Calls a step on its backend's device, with tensors and functions of the CPU, and returns the state on the CPU.

    >>> import integrators
    >>> from samplers import SGLD
    >>> start, noise = {"theta": torch.ones(1, 2)}, {"theta": torch.zeros(1, 2)}
    >>> stepped(integrators.compile(SGLD), start, 0.1, gradient=lambda theta: theta, noise=noise)["theta"]
    tensor([[0.9000, 0.9000]])
    """
    device = device_of(step.backend)
    functions: dict[str, Any] = {"gradient": gradient, "curvature": curvature, "value": value, "observe": observe}
    if device == "cpu":
        return step(state, h, noise=noise, **functions, **parameters)

    def there(function):
        return None if function is None else lambda at: _moved(function(_moved(at, "cpu")), device)

    functions = {
        "gradient": there(gradient),
        "curvature": there(curvature),
        "value": there(value),
        "observe": {name: there(f) for name, f in (observe or {}).items()},
    }
    new = step(_moved(state, device), h, noise=_moved(noise, device), **functions, **_moved(parameters, device))
    return _moved(new, "cpu")


def _moved(values: Any, device: str) -> Any:
    """Moves tensors, and dicts of them, to a device; other values are returned unchanged."""
    if isinstance(values, Mapping):
        return {name: _moved(x, device) for name, x in values.items()}
    return values.to(device) if torch.is_tensor(values) else values
