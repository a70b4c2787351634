"""Launches of Triton kernels: the launch, its device, copies to the device, and CUDA graphs."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch

from recipe.errors import RecipeError, in_short

from ..backends.loading import load

PROBE = """import triton
import triton.language as tl


@triton.jit
def probe(out):
    tl.store(out, 1)
"""


class Launch(NamedTuple):
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


@cache
def check_launches(where: str, device: torch.device) -> None:
    """Launch a kernel that writes a number; raises RecipeError where Triton is installed and launches none.

    Triton compiles its launcher at the first launch, by a C compiler, with Python's headers, into a folder of its own.
    """
    language(where)
    out = torch.zeros(1, dtype=torch.int32, device=device)
    try:
        with on(device):
            Launch("probe", load(PROBE, "<sde-recipe probe>")["probe"], (1,), (out,), {})()
    except Exception as error:  # of the compiler, the driver, or the file system
        do = "Install a C compiler and Python's headers, set TRITON_CACHE_DIR to a folder of yours, or backend='torch'."
        raise RecipeError(where, f"Triton launches no kernel on {device}: {in_short(error)}", do=do) from error


def on(device: torch.device) -> AbstractContextManager:
    """A context in which the device is current, so that Triton launches there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def sent(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of the host's numbers on a device, made asynchronously."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)


def pinned(like: torch.Tensor) -> torch.Tensor:
    """Memory of the host for a copy of `like`, pinned where there is a GPU."""
    return torch.empty_like(like, device="cpu", pin_memory=torch.cuda.is_available())


@dataclass(frozen=True)
class Moment:
    """The stream on which tensors were sent to a device, and the event after that; None where there are no streams."""

    stream: Any = None
    event: Any = None

    @classmethod
    def now(cls, device: torch.device) -> "Moment":
        """What the current stream of a device has been asked so far."""
        if device.type != "cuda":
            return cls()
        stream = torch.cuda.current_stream(device)
        return cls(stream, stream.record_event())

    def use(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let the current stream wait for the event, if it is another one, and keep the memory until it is done."""
        if self.stream is None:
            return
        now = torch.cuda.current_stream(tensors[0].device)
        if now != self.stream:
            now.wait_event(self.event)
            for x in tensors:
                x.record_stream(now)


def is_capturing() -> bool:
    """Whether launches are captured into a CUDA graph instead of run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def has_graphs(device: torch.device) -> bool:
    """Whether launches on a device can be captured into a CUDA graph."""
    return device.type == "cuda"


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in dicts, lists and tuples, in their order, faster than by torch's trees.

    >>> leaves({"a": torch.tensor(1), "b": [torch.tensor(2), ()]})
    [tensor(1), tensor(2)]
    """
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for part in (value.values() if isinstance(value, dict) else value) for x in leaves(part)]


def mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The value with `function` applied to each tensor in its dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: mapped(function, part) for name, part in value.items()}
    return type(value)(mapped(function, part) for part in value)


class Graph:
    """A function of tensors in dicts, lists and tuples as a CUDA graph: the first call captures it, each replays it.

    The graph has memory of its own: a call copies its arguments there, and returns copies of the results. Tensors of
    `fixed` are read in place. A function that reads numbers of the device on the host has no graph: the first call
    raises torch's error before a capture begins, because a capture that fails leaves the allocator unusable.
    """

    def __init__(self, function: Callable[..., Any], fixed: Sequence[torch.Tensor] = ()) -> None:
        self.function = function
        self.fixed = set(map(id, fixed))
        self.kept = tuple(fixed)  # keeps their ids from being reused
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The function's result for the arguments."""
        read = leaves(arguments)
        if self.graph is None:
            with on(read[0].device):
                self._capture(arguments)
        moving = [(to, x) for to, x in zip(self.read, read) if to is not x]
        if moving:
            torch._foreach_copy_([to for to, _ in moving], [x for _, x in moving])
        assert self.graph is not None
        self.graph.replay()
        result = mapped(torch.empty_like, self.result)
        torch._foreach_copy_(leaves(result), self.results)
        return result

    def _capture(self, inputs: tuple) -> None:
        """Capture the graph on a stream of its device, after a call for one-time work and one that must not wait."""
        arguments = mapped(lambda x: x if id(x) in self.fixed else x.clone(), inputs)
        self.read = leaves(arguments)
        before = torch.cuda.current_stream(self.read[0].device)
        stream = torch.cuda.Stream(self.read[0].device)
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            self.function(*arguments)
            with waits_are_errors():
                self.function(*arguments)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.result = self.function(*arguments)
        self.results = leaves(self.result)
        before.wait_stream(stream)
        self.graph = graph


@contextmanager
def waits_are_errors() -> Iterator[None]:
    """A context in which a call of torch that waits for the device raises an error."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def power_of_two(n: int, most: int) -> int:
    """The least power of two from n on, at most `most`.

    >>> [power_of_two(n, most=8) for n in (0, 1, 3, 20)]
    [1, 1, 4, 8]
    """
    return min(most, 1 << max(0, n - 1).bit_length())


def signed(x: int) -> int:
    """The int64 of the bits of a uint64."""
    return x - 2**64 if x >= 2**63 else x
