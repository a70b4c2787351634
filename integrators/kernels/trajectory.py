"""Kernels of many steps, in C++ and on a GPU in Triton: chains on a symbolic energy, moved in one call."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from sympy import Symbol

from recipe.errors import RecipeError

from ..backends.cpp_by_site import by_site_source
from ..backends.cpp_unrolled import unrolled_source
from ..backends.loading import load
from ..backends.unrolled import UNROLLED_SITES, sites_of
from ..noise import Key, steps_of_block
from ..passes import inputs
from ..program import DERIVATIVES, Program
from . import gpu
from .addresses import address, addresses, plain
from .constants import NUMBER_TYPES, Constants, check_numbers
from .native import library

LANES = (16, 64)  # chains of a lane block: the smallest that holds all chains, else the largest
TILES = (16, 64)  # sites of a tile of the data: of at most 64 sites, of more
TO_BE_TAKEN = -1  # gradient_step: carried derivatives are computed before the first step
OF_NO_STEP = -2  # gradient_step: carried derivatives are given, or there are none
P, I, U = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
ARGUMENTS = {"run": [P, P, P, I, I, I, I, I, U, I, I, P, I, P], "gradient": [P, I]}  # of C++, in their order
OF_DATA = {"run": [P, I], "gradient": [I, U, U, P]}  # further arguments where sites are looped over
LANES_ON_GPU = (32, 128)  # chains of a program: one warp, or four warps for more than MANY chains
MANY = 2**17  # number of chains that fill a GPU
WARP = 32


class _Data(ctypes.Structure):
    """Columns of the data for a kernel: their addresses, with columns padded by zeros to a multiple of its tiles."""

    _fields_ = [
        ("columns", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("drawn", ctypes.c_int64),
        ("num_data", ctypes.c_double),
    ]

    def __init__(self, tensors: Sequence[torch.Tensor], batch_size: int | None):
        columns = [plain("data", t) for t in tensors]
        self.tensors = [t if t.dim() == 1 else F.pad(t, (0, -t.shape[1] % TILES[t.shape[1] > 64])) for t in columns]
        self.pointers = (ctypes.c_void_p * len(tensors))(*addresses("data", self.tensors))
        rows = len(tensors[0]) if tensors else 0
        super().__init__(ctypes.addressof(self.pointers), rows, batch_size or rows, batch_size is not None, rows)


@dataclass
class Trajectory:
    """Chains of a Program on a symbolic energy: `run` moves the chains in place, and returns kept states.

    `state`: dict of tensors by block, float32 or float64 on the CPU. `data`: the columns of an energy that sums over
    data, `(rows,)` or `(rows, sites)`; a gradient reads all rows, or `batch_size` rows drawn by seed, step and chain.
    Noise is the noise of `integrators.noise` under the seed: results agree with the torch step up to rounding. Chains
    that leave the finite numbers or a domain stay at their last state; `died`: the step at which each chain did so, -1
    for all others. Raises RecipeError if the Program has no C++ form, or there is no compiler.

    >>> from integrators import compile
    >>> from samplers import SGLD
    >>> from samplers.target.targets import TARGETS
    >>> program = compile(SGLD, energy=TARGETS["gaussian"]).program
    >>> chains = Trajectory(program, {"theta": torch.zeros(5, 2)}, seed=0)
    >>> chains.run(0, [(0.1, 1.0)] * 6, thin=2, keep=["theta"]).shape
    torch.Size([3, 2, 5])
    """

    program: Program
    state: dict[str, torch.Tensor]
    seed: int
    parameters: dict = field(default_factory=dict)
    first_chain: int = 0
    data: tuple[torch.Tensor, ...] = ()
    batch_size: int | None = None

    backend: ClassVar[str] = "cpp"

    def __post_init__(self) -> None:
        recipe = self.program.recipe
        Key(self.seed, 0, self.first_chain)  # checks seed and first chain
        target = self.state[recipe.targets[0].name]
        self.where = f"{recipe.name}, {self.backend}"
        check_numbers(recipe, self.backend, target.dtype, target.device)
        vector = next((self.state[b.name] for b in recipe.entries if b.is_vector), target[:, None])
        self.shape = vector.shape[1:]
        self.chains = len(target)
        self.sites = self.shape.numel()
        self._check_coordinates()
        self._compile(target)
        self.rows = self._rows(recipe.entries, 0)
        self.carried_rows = self._rows([g for _, g in self.program.carried], _count(self.rows))
        self.place(self.state)

    def _compile(self, target):
        """Compile the kernel for the dtype of the target."""
        self.by_site = bool(self.data) or self.sites > UNROLLED_SITES
        self.width = 1 if self.by_site else next((w for w in LANES if self.chains <= w), LANES[-1])
        source = (by_site_source if self.by_site else unrolled_source)(self.program, self.sites)
        self.library = library(source, (f"REAL={NUMBER_TYPES[target.dtype]}", f"WIDTH={self.width}"))
        for name in ("run", "gradient") if self.program.carries else ("run",):
            getattr(self.library, name).argtypes = ARGUMENTS[name] + (OF_DATA[name] if self.by_site else [])
        self.rows_of_data = _Data(self.data, self.batch_size)

    def _check_coordinates(self):
        """Refuse an energy with another number of coordinates than the state, and an empty state."""
        recipe = self.program.recipe
        energy = self.program.energy
        coordinates = self.sites if recipe.target_is_vector else len(recipe.targets)
        fits = energy is None or energy.is_sitewise or len(energy.coordinates) == coordinates
        if not fits or not self.chains * self.sites:
            raise RecipeError(
                self.where,
                f"{coordinates} coordinates of {self.chains} chains for an energy of "
                f"{'any number' if energy is None else len(energy.coordinates)}",
                do="Give each coordinate a value.",
            )

    def _rows(self, symbols: Sequence[Symbol], first: int) -> dict[str, range]:
        """The rows of symbols by name, one row per site, from row `first` on."""
        rows = {}
        for s in symbols:
            rows[s.name] = range(first, first + len(sites_of(s, self.sites)))
            first = rows[s.name].stop
        return rows

    def place(self, state: Mapping) -> None:
        """Put the chains at a state of the same form, with its carried derivatives of U; no chain has died there."""
        self.state = {b.name: state[b.name] for b in self.program.recipe.entries}
        like = next(iter(self.state.values()))
        padded = -(-self.chains // self.width) * self.width  # whole lane blocks, filled by copies of the first chain
        rows = _count(self.rows) + _count(self.carried_rows)
        self.numbers = torch.empty((rows, padded), dtype=like.dtype, device=like.device)
        for name, places in self.rows.items():
            self._set(places, self.state[name])
        self.numbers[:, self.chains :] = self.numbers[:, :1]
        self.died = torch.full((padded,), -1, dtype=torch.int64, device=like.device)
        is_whole = all(DERIVATIVES[order] in state for order in self.program.carries)
        self.gradient_step = OF_NO_STEP if is_whole else TO_BE_TAKEN
        for order in self.program.carries if is_whole else ():
            derivative = state[DERIVATIVES[order]]
            for b, g in self.program.derivatives[order]:
                self._set(self.carried_rows[g.name], derivative[b.name] if isinstance(derivative, dict) else derivative)

    def _set(self, rows: range, values: torch.Tensor) -> None:
        self.numbers[rows.start : rows.stop, : self.chains] = values.reshape(self.chains, len(rows)).T

    def run(
        self,
        first_step: int,
        settings: Sequence[tuple[float, float]] | np.ndarray,
        *,
        thin: int = 1,
        first_kept: int = 0,
        keep: Sequence[str] = (),
    ) -> torch.Tensor:
        """Make one step for each pair (step size, temperature); returns kept states `(draws, numbers, chains)`.

        Settings are not checked here. Every `thin`-th step is kept, from number `first_kept` on; `keep`: names of
        blocks, in the order of the numbers of a draw.
        """
        steps = len(settings)
        if thin < 1 or first_kept < 0 or not steps:
            what = f"thin = {thin}, first_kept = {first_kept}, {steps} steps"
            raise RecipeError(f"{self.program.recipe.name}, run", what, do="Keep every thin-th of one step or more.")
        table, stride = self._table(first_step, np.asarray(settings, dtype=np.float64))
        kept = [r for name in keep for r in self.rows[name]]
        draws = max(0, -(-(steps - first_kept) // thin))
        drawn = self.numbers.new_empty((draws, len(kept), self.numbers.shape[1]))
        if self.gradient_step == TO_BE_TAKEN:
            self.gradient_step = first_step
            self._take_gradient()
        self._launch(steps, first_step, table, stride, drawn, kept, thin, first_kept)
        return drawn[..., : self.chains]

    def _launch(self, steps, first_step, table, stride, drawn, kept, thin, first_kept):
        """Move the chains, and write the rows `kept` of every `thin`-th step into `drawn`.

        `table`: constants of every step, in rows `stride` numbers apart.
        """
        table = table.to(self.numbers.dtype)
        rows = torch.tensor(kept, dtype=torch.int64, device="cpu")
        memory = [address("trajectory", t) for t in (self.numbers, drawn, table, rows, self.died)]
        of_chains = stride, self.numbers.shape[1], self.first_chain, steps, first_step, self.seed, thin, first_kept
        of_data = (ctypes.byref(self.rows_of_data), self.gradient_step) if self.by_site else ()
        self.library.run(*memory[:3], *of_chains, memory[3], len(kept), memory[4], *of_data)

    @cached_property
    def _constants(self):
        return Constants(self.program, inputs(self.program), self.shape)

    def _table(self, first_step, settings):
        """The constants, one row per step, and the stride between rows: 0 if one row serves all steps."""
        changed = np.append(True, (settings[1:] != settings[:-1]).any(1) | self._constants.changes)
        starts = np.flatnonzero(changed)
        rows = self._constants.rows(settings[starts], (first_step + starts).tolist(), self.parameters)
        if len(rows) == 1:
            return rows[0], 0
        return rows[np.cumsum(changed) - 1], rows.shape[1]

    def _take_gradient(self):
        """Compute the derivatives of U that the first step carries, at the present state."""
        of_data: tuple = ()
        if self.by_site:
            of_data = self.first_chain, self.gradient_step, self.seed, ctypes.byref(self.rows_of_data)
        self.library.gradient(address("trajectory", self.numbers), self.numbers.shape[1], *of_data)

    def block(self, name: str) -> torch.Tensor:
        """The present values of a block, in its shape."""
        return self._of_shape(self.rows[name], self.state[name].shape)

    def _of_shape(self, rows, shape):
        return self.numbers[list(rows), : self.chains].T.reshape(shape).contiguous()

    def state_now(self) -> dict:
        """The present blocks, and the derivatives of U that the next step takes over."""
        return {name: self.block(name) for name in self.rows} | self.carried()

    def carried(self) -> dict:
        """The derivatives of U at the present state that the next step takes over."""
        if self.gradient_step == TO_BE_TAKEN:
            return {}
        return {DERIVATIVES[order]: self._carried(self.program.derivatives[order]) for order in self.program.carries}

    def _carried(self, names):
        """A derivative: a tensor, or a dict of tensors by block."""
        shapes = {b.name: self.state[b.name].shape if g.is_vector else (self.chains,) for b, g in names}
        values = {b.name: self._of_shape(self.carried_rows[g.name], shapes[b.name]) for b, g in names}
        return values if len(values) > 1 else next(iter(values.values()))


def _count(rows: dict[str, range]) -> int:
    return sum(map(len, rows.values()))


class TrajectoryOnGPU(Trajectory):
    """A `Trajectory` by a Triton kernel on the device of its state, with the same numbers up to rounding.

    The state stays in registers for all steps of a launch. Raises RecipeError if the Program has no such kernel, or
    Triton is not installed.
    """

    backend = "triton"
    width = 1

    def _compile(self, target):
        self.real = gpu.real_of(self.where, target.dtype)
        gpu.check_launches(self.where, target.device)
        from ..backends.triton_unrolled import unrolled_kernels

        source = unrolled_kernels(self.program, self.sites)
        self.columns = [plain("data", t) for t in self.data]
        where = addresses("data", self.columns) or [0]
        self.where_columns = gpu.sent(torch.tensor(where, dtype=torch.int64, device="cpu"), target.device)
        self.kernels = load(source, f"<sde-recipe {self.program.recipe.name} {self.program.scheme} triton chains>")

    def _launch(self, steps, first_step, table, stride, drawn, kept, thin, first_kept):
        device = self.numbers.device
        places = torch.full((_count(self.rows),), -1, dtype=torch.int64, device="cpu")
        places[kept] = torch.arange(len(kept), device="cpu")
        memory = drawn, gpu.sent(places, device), gpu.sent(table, device), self.died
        numbers = self.gradient_step, steps, thin, first_kept, len(kept), stride
        self._start("run", first_step, *memory, *numbers, VARIES=bool(stride))

    def _take_gradient(self):
        self._start("gradient", self.gradient_step)

    def _start(self, name, step, *arguments, **constants):
        rows = len(self.columns[0]) if self.columns else 0
        batch = self.batch_size or rows
        of_chains = self.numbers, self.where_columns, self.chains, self.first_chain, step, gpu.signed(self.seed)
        lanes = LANES_ON_GPU[self.chains > MANY]
        constants |= {"DRAWN": self.batch_size is not None, "FEW": batch if steps_of_block(batch) > 1 else 0}
        constants |= {"R": self.real, "LANES": lanes, "enable_fp_fusion": True, "num_warps": lanes // WARP}
        programs = (-(-self.chains // lanes),)
        with gpu.on(self.numbers.device):
            gpu.Launch(name, self.kernels[name], programs, (*of_chains, rows, batch, *arguments), constants)()


TRAJECTORIES: dict[str, type[Trajectory]] = {kind.backend: kind for kind in (Trajectory, TrajectoryOnGPU)}
