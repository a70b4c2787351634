"""What launches of Triton kernels share: the launch itself, its device, and what is sent there."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from recipe.errors import RecipeError


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


def signed(x: int) -> int:
    """The int64 of the bits of a uint64."""
    return x - 2**64 if x >= 2**63 else x
