"""Launches of Triton kernels: the launch, its device, copies to the device, and CUDA graphs."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from recipe.errors import RecipeError

CALLS_BEFORE = 2  # calls of a function before its graph is captured


@dataclass(frozen=True)
class Launch:
    """A Triton kernel by name, its grid of programs, and its arguments."""

    name: str
    kernel: Any
    programs: tuple[int, ...]
    arguments: tuple
    constants: dict[str, Any]

    def __call__(self) -> None:
        self.kernel[self.programs](*self.arguments, **self.constants)


def devices_of_triton() -> list[str]:
    """The device types of Triton kernels: "cuda", and "cpu" under Triton's interpreter."""
    return ["cuda", "cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else ["cuda"]


def language(where: str) -> ModuleType:
    """The module triton.language; raises RecipeError, with `where` in its message, if Triton is not installed."""
    try:
        import triton.language
    except ImportError as error:
        raise RecipeError(where, "Triton is not installed", do="pip install triton.") from error
    return triton.language


def real_of(where: str, dtype: torch.dtype) -> Any:
    """Triton's dtype for a dtype of torch."""
    tl: Any = language(where)
    return {torch.float32: tl.float32, torch.float64: tl.float64}[dtype]


def on(device: torch.device) -> AbstractContextManager:
    """A context in which the device is current, so that Triton launches there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def sent(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of the host's numbers on a device, made asynchronously."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)


def is_capturing() -> bool:
    """Whether launches are captured into a CUDA graph instead of run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def has_graphs(device: torch.device) -> bool:
    """Whether launches on a device can be captured into a CUDA graph."""
    return device.type == "cuda"


class Graph:
    """A function of tensors, in dicts and lists, as a CUDA graph: the first call captures it, every call replays it.

    The graph has memory of its own: a call copies its arguments there, and returns copies of the results. Tensors of
    `fixed` are read in place. A function that reads numbers of the device on the host has no graph: the first call
    raises torch's error, and does not change the stream.
    """

    def __init__(self, function: Callable[..., Any], fixed: Sequence[torch.Tensor] = ()) -> None:
        self.function = function
        self.fixed = set(map(id, fixed))
        self.kept = tuple(fixed)  # keeps their ids from being reused
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The function's result for the arguments."""
        read = tree_leaves(arguments)
        if self.graph is None:
            with on(read[0].device):
                self._capture(arguments)
        moving = [(to, x) for to, x in zip(self.read, read) if to is not x]
        if moving:
            torch._foreach_copy_([to for to, _ in moving], [x for _, x in moving])
        assert self.graph is not None
        self.graph.replay()
        return tree_map(torch.clone, self.result)

    def _capture(self, given: tuple) -> None:
        """Capture the graph, after calls that do one-time work."""
        read, form = tree_flatten(given)
        self.read = [x if id(x) in self.fixed else x.clone() for x in read]
        arguments = tree_unflatten(self.read, form)
        before = torch.cuda.current_stream(self.read[0].device)
        beside = torch.cuda.Stream(self.read[0].device)
        beside.wait_stream(before)
        with torch.cuda.stream(beside):
            for _ in range(CALLS_BEFORE):
                self.function(*arguments)
        before.wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(before), torch.cuda.graph(graph):
            self.result = self.function(*arguments)
        self.graph = graph


def signed(x: int) -> int:
    """The int64 of the bits of a uint64."""
    return x - 2**64 if x >= 2**63 else x
