"""What launches of Triton kernels share: the launch itself, its device, and what is sent there."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from recipe.errors import RecipeError

CALLS_BEFORE = 2  # of a function, before a graph is made of it


@dataclass(frozen=True)
class Launch:
    """A Triton kernel by its name, the programs that it runs as, and what it is called with."""

    name: str
    kernel: Any
    programs: tuple[int, ...]
    arguments: tuple
    constants: dict[str, Any]

    def __call__(self) -> None:
        """Run it on the current device."""
        self.kernel[self.programs](*self.arguments, **self.constants)


def devices_of_triton() -> list[str]:
    """Where Triton's kernels run: on the CPU too under its interpreter."""
    return ["cuda", "cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else ["cuda"]


def language(where: str) -> ModuleType:
    """Triton's language; `where` begins the message of the RecipeError where there is none."""
    try:
        import triton.language
    except ImportError as error:
        raise RecipeError(where, "Triton is not installed", do="pip install triton.") from error
    return triton.language


def real_of(where: str, dtype: torch.dtype) -> Any:
    """Triton's type of the numbers of a state."""
    tl: Any = language(where)
    return {torch.float32: tl.float32, torch.float64: tl.float64}[dtype]


def on(device: torch.device) -> AbstractContextManager:
    """Makes the device of tensors the current one, on which Triton launches."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def sent(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Numbers of the host on a device, where nobody waits for the copy to be made."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)


def is_capturing() -> bool:
    """Whether what is launched is written into a CUDA graph, and nothing runs."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def has_graphs(device: torch.device) -> bool:
    """Whether what is launched on a device can be written into a CUDA graph."""
    return device.type == "cuda"


class Graph:
    """A function of tensors, in dicts and lists, as a CUDA graph: the first call writes it down, calls launch it.

    A call copies what it is given to where the graph reads, and gives copies of what it has written: the graph has
    memory of its own. Tensors of `fixed` are read where they are. What looks at numbers of the device has no graph: the
    first call raises what torch does, and leaves the stream as it was.
    """

    def __init__(self, function: Callable[..., Any], fixed: Sequence[torch.Tensor] = ()) -> None:
        self.function = function
        self.fixed = set(map(id, fixed))
        self.kept = tuple(fixed)  # so that no other tensor comes to bear the identity of one
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """What the function makes of these."""
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
        """Write the graph down, after calls that make what is made once."""
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
