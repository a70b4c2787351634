"""Launching the kernels of one step: a segment of a Plan after the other, on the addresses in its tables."""

import ctypes
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from recipe.errors import RecipeError

from ..backends.cpp_sweep import sweep_source
from ..backends.loading import load
from ..noise import Key
from ..passes import Plan
from ..program import Program
from .constants import NUMBER_TYPES
from .native import library
from .tables import Parts, Tables

SITES_OF_ITEM = 16384  # at most, in C++: a multiple of its blocks
GROUPS_OF_BLOCK = 256  # in Triton, of four sites


class _SweepInCpp(ctypes.Structure):
    """The struct Sweep of the C++ text."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("chains", "parts", "items")),
        *((name, ctypes.c_void_p) for name in ("part", "first", "count", "sites", "offset")),
        *(
            (name, ctypes.c_void_p)
            for name in ("array_in", "array_out", "number_in", "number_out", "drawn", "per_site")
        ),
        *((name, ctypes.c_void_p) for name in ("constants", "sums")),
        *((name, ctypes.c_uint64) for name in ("seed", "step")),
        ("first_chain", ctypes.c_int64),
    ]


class CppLauncher:
    """The segments of a plan as functions of a compiled library; an item is a run of sites of one part."""

    @staticmethod
    def devices() -> list[str]:
        """Where it runs."""
        return ["cpu"]

    def __init__(self, program: Program, plan: Plan, parts: Parts, tables: Tables):
        self.library = library(sweep_source(plan), (f"REAL={NUMBER_TYPES[parts.dtype]}",))
        runs = [
            (part, at, min(SITES_OF_ITEM, sites - at))
            for part, sites in enumerate(parts.sites.tolist())
            for at in range(0, sites, SITES_OF_ITEM)
        ]
        self.items = np.array(runs, np.int64).reshape(-1, 3).T.copy()
        self.room = max(1, parts.chains * len(runs) * plan.most_sums)
        self.sums: np.ndarray | None = None
        self.arrays = (*self.items, parts.sites, parts.offset, *tables.all())  # whose addresses the struct has
        pointers = [a.ctypes.data for a in self.arrays]
        self.sweep = _SweepInCpp(parts.chains, len(parts.sites), len(runs), *pointers)

    def set_constants(self, numbers: np.ndarray) -> None:
        """Take the constants of the steps to come."""
        self.numbers = numbers
        self.sweep.constants = numbers.ctypes.data

    def release(self) -> None:
        """Forget the memory of sums, which grows with the chains."""
        self.sums = None

    def __call__(self, segment: int, key: Key | None) -> None:
        """Launch a segment; its noise is that of the key, or is in the tables."""
        if self.sums is None:
            self.sums = np.empty(self.room)
            self.sweep.sums = self.sums.ctypes.data
        if key is not None:
            self.sweep.seed, self.sweep.step, self.sweep.first_chain = key.seed, key.step, key.first_chain
        getattr(self.library, f"segment_{segment}")(ctypes.byref(self.sweep))


class TritonLauncher:
    """The passes of a plan as Triton kernels; the seed and the step are read from the device.

    Blocks are cut from the global sites, and begin where a group of four does.
    """

    @staticmethod
    def devices() -> list[str]:
        """Where it runs: on the CPU too under Triton's interpreter."""
        return ["cuda", "cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else ["cuda"]

    def __init__(self, program: Program, plan: Plan, parts: Parts, tables: Tables):
        try:
            import triton.language as tl

            from ..backends.triton import triton_source
        except ImportError as error:
            raise RecipeError(
                f"{program.recipe.name}, triton", "Triton is not installed", do="pip install triton."
            ) from error
        self.kernels = load(triton_source(plan), f"<sde-recipe {program.recipe.name} {program.scheme} triton>")
        self.plan, self.parts, self.tables = plan, parts, tables
        blocks = np.array(list(_blocks(parts)), np.int64).reshape(-1, 2)
        self.items = len(blocks)
        self.places = [self._on_device(a) for a in (*blocks.T, parts.sites, parts.offset)]
        self.room = max(1, parts.chains * self.items * plan.most_sums)
        self.sums: torch.Tensor | None = None
        self.key = torch.zeros(2, dtype=torch.int64, device=parts.device)
        self.real = {torch.float32: tl.float32, torch.float64: tl.float64}[parts.dtype]
        self.sent: np.ndarray | None = None
        self.sent_tables: tuple[torch.Tensor, ...] = ()

    def _on_device(self, array):
        return torch.from_numpy(np.ascontiguousarray(array).copy()).to(self.parts.device)

    def set_constants(self, numbers: np.ndarray) -> None:
        """Take the constants of the steps to come."""
        self.numbers = self._on_device(numbers)

    def release(self) -> None:
        """Forget the memory of sums, which grows with the chains."""
        self.sums = None

    def _send_tables(self):
        """The tables of addresses on the device, sent again where they have changed."""
        tables = self.tables.all()
        together = np.concatenate([t.ravel() for t in tables])
        if self.sent is None or not np.array_equal(together, self.sent):
            self.sent = together
            self.sent_tables = self._on_device(together).split([t.size for t in tables])
        return self.sent_tables

    def __call__(self, segment: int, key: Key | None) -> None:
        """Launch the passes of a segment; its noise is that of the key, or is in the tables."""
        if self.sums is None:
            self.sums = torch.empty(self.room, dtype=torch.float64, device=self.parts.device)
        if key is not None:
            self.key.copy_(torch.tensor([_signed(key.seed), _signed(key.step)], device="cpu"))
        arguments = (
            *self.places,
            *self._send_tables(),
            self.numbers,
            self.sums,
            self.key,
            len(self.parts.sites),
            self.items,
            0 if key is None else key.first_chain,
            int(self.parts.sites.sum()),
        )
        with self._device():
            for name, programs in self._launches(segment):
                if name in self.kernels and programs:
                    kernel = self.kernels[name][(programs,)]
                    kernel(*arguments, R=self.real, GROUPS=GROUPS_OF_BLOCK, GIVEN=key is None)

    def _device(self) -> AbstractContextManager:
        """Makes the device of the tensors the current one, on which Triton launches."""
        device = self.parts.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _launches(self, segment: int) -> Iterable[tuple[str, int]]:
        """The kernels of a segment in their order, each with how many programs it runs as."""
        chains = self.parts.chains
        for j, _ in enumerate(self.plan.segments[segment].passes):
            yield f"sites_{segment}_{j}", self.items * chains
            yield f"chain_{segment}_{j}", chains


LAUNCHERS: dict[str, type[CppLauncher] | type[TritonLauncher]] = {"cpp": CppLauncher, "triton": TritonLauncher}


def _blocks(parts: Parts) -> Iterable[tuple[int, int]]:
    """The number of a part, and where among all sites a block begins."""
    block = 4 * GROUPS_OF_BLOCK
    for part, (first, sites) in enumerate(zip(parts.offset.tolist(), parts.sites.tolist())):
        for at in range(first // block * block, first + sites, block):
            yield part, at


def _signed(x: int) -> int:
    """The int64 of the bits of a uint64."""
    return x - 2**64 if x >= 2**63 else x
