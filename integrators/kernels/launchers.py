"""Launchers of the kernels of one step: the segments of a plan in order, on the addresses in their tables."""

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from recipe.errors import RecipeError

from ..backends.cpp_sweep import sweep_source
from ..backends.loading import load
from ..noise import Key, steps_of_block
from ..passes import LoopPlan
from . import gpu
from .addresses import address
from .constants import NUMBER_TYPES
from .gpu import Launch, on, real_of, sent, signed
from .native import library
from .tables import Parts, Tables

SMALL = 1024  # number of sums up to which an idle kernel keeps their memory
SITES_OF_ITEM = 16384  # most sites of an item in C++: a multiple of its blocks
GROUPS_OF_BLOCK = 512  # groups of four sites per block in Triton
FEW_NUMBERS = 4  # numbers per site, read, drawn and written, up to which four warps serve a block
ROUND = 8192  # most sums of a chain that a program reads at once: eight a thread, which wait for memory together
ROWS = 65_535  # most rows of a grid of programs
WORTH = 4096  # even items up to which one launch for all items is faster than two, one of which moves four numbers
TABLES_KEPT = 128  # number of address tables kept on a GPU
ALIGNMENT = 16  # bytes of the widest access of a GPU
CAPTURED: list[tuple] = []  # memory that captured graphs name


class _SweepInCpp(ctypes.Structure):
    """The struct Sweep of the C++ text."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("chains", "parts", "items", "of_chain")),
        *((name, ctypes.c_void_p) for name in ("part", "first", "count", "sites", "offset")),
        *((name, ctypes.c_void_p) for name in ("array_in", "array_out", "number_in", "number_out")),
        *((name, ctypes.c_void_p) for name in ("drawn", "per_site", "constants", "sums")),
        *((name, ctypes.c_uint64) for name in ("seed", "step")),
        ("first_chain", ctypes.c_int64),
    ]


class Launcher(ABC):
    """Launches of the segments of a plan, over the parts of a target, on the addresses in tables.

    A backend of kernels is such a class in the table LAUNCHERS. It compiles the text of the plan when it is made, as
    `Backend(plan, parts, tables)`, and raises Unsupported for what the text cannot say. Before each step the caller
    sets the constants, and before each segment the addresses, which may all have changed. What the tables mean:

    * a constant is a number, in the order of `plan.constants`; where `tables.per_site` has its address it is an array;
    * `tables.array_in` and `array_out` are by row of `plan.arrays` and part, `number_in` and `number_out` by row of
      `plan.numbers`; symbols of `program.in_float64` have double numbers there;
    * a draw is the number of its place in `program.draws`, from the key, or from `tables.drawn` where there is none;
    * open sums of a segment are written by item, `part_of_item` has the part of each, and later segments read them.
    """

    def __init__(self, plan: LoopPlan, parts: Parts, tables: Tables, part_of_item: np.ndarray):
        self.plan = plan
        self.parts = parts
        self.tables = tables
        self.part_of_item = part_of_item
        self.items = len(part_of_item)
        self.sums: torch.Tensor | None = None

    def _sums(self):
        """Memory of the sums of all items, allocated where it is used first."""
        if self.sums is None:
            room = max(1, self.parts.chains * self.items * self.plan.most_sums)
            self.sums = torch.empty(room, dtype=torch.float64, device=self.parts.device)
        return self.sums

    @abstractmethod
    def set_constants(self, numbers: np.ndarray) -> None:
        """Set the constants of the next steps."""

    @abstractmethod
    def __call__(self, segment: int, key: Key | None) -> None:
        """Launch a segment, with the noise of the key, or of the tables if the key is None."""

    def sums_of_items(self, count: int) -> torch.Tensor:
        """The open sums of a segment, `(chains, items, count)`, as a view."""
        shape = self.parts.chains, self.items, count
        return self._sums()[: math.prod(shape)].view(shape)

    def release(self) -> None:
        """Free the memory of sums, which grows with the chains."""
        self.sums = None


class CppLauncher(Launcher):
    """The segments of a plan as functions of a compiled library; an item is a run of sites of one part."""

    def __init__(self, plan: LoopPlan, parts: Parts, tables: Tables):
        self.library = library(sweep_source(plan), (f"REAL={NUMBER_TYPES[parts.dtype]}",))
        runs = [
            (part, at, min(SITES_OF_ITEM, sites - at))
            for part, sites in enumerate(parts.sites.tolist())
            for at in range(0, sites, SITES_OF_ITEM)
        ]
        if parts.spread is not None and not runs:
            runs = [(0, 0, 0)]  # an item for the sums of other processes
        self.segments = [getattr(self.library, f"segment_{k}") for k in range(len(plan.segments))]
        items = np.array(runs, np.int64).reshape(-1, 3).T.copy()
        super().__init__(plan, parts, tables, items[0])
        self.arrays = (*items, parts.sites, parts.offset, *tables.all())  # the struct has their addresses
        pointers = [a.ctypes.data for a in self.arrays]
        self.sweep = _SweepInCpp(parts.chains, len(parts.sites), len(runs), parts.of_chain, *pointers)

    def set_constants(self, numbers: np.ndarray) -> None:
        """Set the constants of the next steps."""
        self.numbers = numbers
        self.sweep.constants = numbers.ctypes.data

    def release(self) -> None:
        """Free the memory of sums if it is large."""
        if self.sums is not None and len(self.sums) > SMALL:
            self.sums = None

    def __call__(self, segment: int, key: Key | None) -> None:
        """Launch a segment, with the noise of the key, or of the tables if the key is None."""
        if self.sums is None:
            self.sweep.sums = address("sums", self._sums())
        if key is not None:
            self.sweep.seed, self.sweep.step, self.sweep.first_chain = key.seed, key.step, key.first_chain
        self.segments[segment](ctypes.byref(self.sweep))


class TritonLauncher(Launcher):
    """The passes of a plan as Triton kernels; seed, step, constants and tables of addresses are arguments.

    Blocks are cut from the global sites at groups of four; an item is the intersection of a block and a part. Items of
    whole groups at multiples of 16 bytes go first, in a launch that moves four numbers at a time. Chains shorter than
    half a block share a block.
    """

    def __init__(self, plan: LoopPlan, parts: Parts, tables: Tables):
        program = plan.program
        where = f"{program.recipe.name}, triton"
        self.real = real_of(where, parts.dtype)
        gpu.check_launches(where, parts.device)
        from ..backends.triton_sweep import triton_source

        source = triton_source(plan, self.real.name, str(parts.half or "").removeprefix("torch."))
        self.kernels = load(source, f"<sde-recipe {program.recipe.name} {program.scheme} {self.real.name} triton>")
        self.width = _width(parts)
        blocks, self.even = _blocks(parts)
        if parts.spread is not None and not len(blocks):
            blocks = np.zeros((1, 2), np.int64)  # an item for the sums of other processes
        super().__init__(plan, parts, tables, blocks[:, 0])
        self.places = [self._on_device(a) for a in (*blocks.T, parts.sites, parts.offset)]
        self.sent: dict[bytes, _Sent] = {}
        self.latest = b"", _Sent((), False, gpu.Moment())  # what was sent for the step before
        self.forms: dict[tuple, list[Launch]] = {}  # of a segment, with counts for arguments
        self.spare: torch.Tensor | None = None  # pinned memory for the tables of a captured step, which its graph owns
        self.clock: torch.Tensor | None = None  # on the device, added to the number of every step

    def _on_device(self, array):
        """An asynchronous copy of an array on the device."""
        return sent(torch.from_numpy(np.ascontiguousarray(array).copy()), self.parts.device)

    def set_constants(self, numbers: np.ndarray) -> None:
        """Set the constants of the next steps."""
        self.numbers = numbers[: len(self.plan.constants)].tolist()
        self.by_site = sum(1 << k for k, addresses in enumerate(self.tables.per_site) if addresses.any())

    def _tables(self):
        """The tables of addresses on the device; recent ones are cached, because allocators reuse memory."""
        key, captured = self.tables.memory.tobytes(), gpu.is_capturing()
        if key != self.latest[0]:  # bytes are compared faster than hashed
            if key not in self.sent:
                together = torch.from_numpy(self.tables.memory.copy())
                if captured:
                    return self._keep(self._on_graph(together))
                if len(self.sent) >= TABLES_KEPT:
                    self.sent.pop(next(iter(self.sent)))
                copy = sent(together, self.parts.device)
                self.sent[key] = self._cut(copy, gpu.Moment.now(copy.device))
            self.latest = key, self.sent[key]
        there = self.latest[1]
        if captured:
            return self._keep(there)
        if self.clock is not None and self.spare is None:
            self.spare = gpu.pinned(torch.from_numpy(self.tables.memory))
        there.moment.use(there.tables)
        return there

    def _cut(self, together: torch.Tensor, moment: gpu.Moment) -> "_Sent":
        """The tables on the device, cut from one tensor of all of them."""
        by_part = [t for t in self.tables.all() if t.ndim > 1]
        is_aligned = not any((t % ALIGNMENT).any() for t in by_part)
        return _Sent(together.split([t.size for t in self.tables.all()]), is_aligned, moment)

    def _on_graph(self, together: torch.Tensor) -> "_Sent":
        """Tables that each replay of the captured graph copies to the device, from memory of its own."""
        if self.spare is None:
            what = "a graph is captured, and tensors lie where no step before has found them"
            do = "Make a step before each capture, and one step of the optimizer in it."
            raise RecipeError(f"{self.plan.program.recipe.name}, triton", what, do=do)
        memory, self.spare = self.spare.copy_(together), None
        CAPTURED.append((memory,))
        return self._cut(memory.to(self.parts.device, non_blocking=True, copy=True), gpu.Moment())

    def _keep(self, there: "_Sent") -> "_Sent":
        """Keep what a captured launch names, longer than this kernel: one made anew replaces it, and graphs go on."""
        CAPTURED.append((there, self.tables.kept(), self._sums(), self.places, self.clock))
        return there

    def __call__(self, segment: int, key: Key | None) -> None:
        """Launch the passes of a segment, with the noise of the key, or of the tables if the key is None."""
        with on(self.parts.device):
            for launch in self.launches(segment, key):
                launch()

    def launches(self, segment: int, key: Key | None) -> Iterator[Launch]:
        """The launches of a segment in their order."""
        there = self._tables()
        clock = self.places[0] if self.clock is None else self.clock
        memory = (*self.places, *there.tables, self._sums(), clock)
        of_key = (0, 0, 0) if key is None else (key.first_chain, signed(key.seed), signed(key.step))
        case = segment, there.aligned, key is None, self.clock is not None, self.by_site
        if case not in self.forms:
            self.forms[case] = list(self._forms(*case))
        for name, kernel, programs, counts, constants in self.forms[case]:
            yield Launch(name, kernel, programs, (*memory, *counts, *of_key, *self.numbers), constants)

    def _forms(self, segment, aligned, from_table, clocked, by_site):
        """The launches of a segment, whose arguments are counts alone; `by_site`: bits of the constants in memory."""
        sites = self.parts.of_chain
        for kind, j, first_item, first_row, programs, whole in self._grids(segment, aligned):
            name = f"{kind}_{segment}_{j}"
            if name in self.kernels and all(programs):
                counts = (len(self.parts.sites), self.parts.chains, self.items, first_item, first_row, sites)
                constants = {"R": self.real, "GROUPS": GROUPS_OF_BLOCK, "WIDTH": self.width, "ALIGNED": whole}
                constants |= {"FEW": sites if steps_of_block(sites) > 1 else 0, "GIVEN": from_table, "CLOCKED": clocked}
                sweeps = {"ROUND": 1, "num_warps": self._warps(segment, j, by_site)}
                constants |= sweeps if kind == "sites" else self._round()
                constants |= {"BY_SITE": by_site, "enable_fp_fusion": True}
                yield Launch(name, self.kernels[name], programs, counts, constants)

    def _warps(self, segment, j, by_site):
        """The warps of a block: fewer, with more sites per thread, if a site takes few registers."""
        loop = self.plan.segments[segment].passes[j].sites
        constants = [s for s in loop.constants if by_site >> self.plan.constants.index(s) & 1]
        return 4 if len((*loop.loads, *loop.stores, *loop.draws, *constants)) <= FEW_NUMBERS else 8

    def _round(self):
        """How many sums of a chain a program reads at once, and its warps: a round waits for memory once."""
        sums = gpu.power_of_two(self.items, ROUND)
        most = 16 if torch.version.hip else 32  # a program has 1024 threads at most, of which a warp has 64 there
        return {"ROUND": sums, "num_warps": min(most, max(8, sums // 128))}

    def _grids(self, segment, aligned):
        """Kind and pass of each kernel, its first item and chain, its grid, and whether its items are aligned."""
        chains = self.parts.chains
        shared = -(-chains * self.width // GROUPS_OF_BLOCK)  # blocks of whole chains
        even = self.even if aligned else 0
        for j, _ in enumerate(self.plan.segments[segment].passes):
            if self.width < GROUPS_OF_BLOCK:
                yield "sites", j, 0, 0, (shared * self.items,), even > 0
            else:
                for row in range(0, chains, ROWS):
                    rows = min(ROWS, chains - row)
                    yield "sites", j, 0, row, (even, rows), True
                    yield "sites", j, even, row, (self.items - even, rows), False
            yield "chain", j, 0, 0, (shared,), False


@dataclass(frozen=True)
class _Sent:
    """Tables on the device, sent at a `moment`; `aligned`: whether all parts begin at multiples of 16 bytes."""

    tables: tuple[torch.Tensor, ...]
    aligned: bool
    moment: gpu.Moment


LAUNCHERS: dict[str, Callable[[LoopPlan, Parts, Tables], Launcher]] = {"cpp": CppLauncher, "triton": TritonLauncher}


def _width(parts: Parts) -> int:
    """The groups of a chain in a block: a power of two; the whole block if no other chain fits in."""
    if len(parts.shapes) > 1 or parts.spread is not None:
        return GROUPS_OF_BLOCK
    groups = -(-int(parts.sites.sum()) // 4)
    return gpu.power_of_two(groups, GROUPS_OF_BLOCK)


def _blocks(parts: Parts) -> tuple[np.ndarray, int]:
    """Items as rows (part, first site of the block among all sites), even items first; and how many of those go apart.

    An even item consists of whole groups of four sites of its part, aligned with the groups of four in memory. Where
    there are others, a few even items go with them, in one launch.
    """
    block = 4 * GROUPS_OF_BLOCK
    even: list[tuple[int, int]] = []
    odd: list[tuple[int, int]] = []
    for part, (first, sites) in enumerate(zip(parts.offset.tolist(), parts.sites.tolist())):
        fits = first % 4 == 0 and (parts.chains == 1 or sites % 4 == 0)
        for at in range(first // block * block, first + sites, block):
            whole = at + block <= first + sites or sites % 4 == 0
            (even if fits and whole else odd).append((part, at))
    items = np.array(even + odd, np.int64).reshape(-1, 2)
    return items, 0 if odd and len(even) * parts.chains <= WORTH else len(even)
