"""Kernels of one step: over lists of tensors, in C++ on the CPU and in Triton on a GPU."""

import ctypes
import os
from collections.abc import Callable, Mapping

import numpy as np
import torch

from recipe.errors import RecipeError

from ..backends.cpp_sweep import sweep_source
from ..backends.loading import load
from ..noise import Key
from ..passes import plan
from ..program import Gradient, Observe, Program
from .native import library
from .trajectory import NUMBER_TYPES, Constants, check_numbers

RUN = 16384  # sites of one item of a C++ kernel: a multiple of its blocks
GROUPS = 256  # of four sites, in a block of a Triton kernel


class Sweep:
    """Steps of a Program over lists of tensors: the parts of the target, one after another, with their sites in order.

    Made for the dtype and shapes of a state: every vector block, and every gradient, is a list of contiguous tensors
    `(chains, *shape)`, one for each part; a scalar block is a tensor `(chains,)`. `bind` says which tensors, a call makes a
    step. Raises RecipeError where the Program has no C++ form, there is no compiler, or tensors do not fit.
    """

    def __init__(self, program: Program, state: Mapping, backend: str = "cpp"):
        self.program, self.recipe, self.plan = program, program.recipe, plan(program)
        self.vectors = [b.name for b in self.recipe.entries if b.is_vector]
        first = state[self.vectors[0]] if self.vectors else [state[self.recipe.targets[0].name]]
        self.dtype, self.device, self.chains = first[0].dtype, first[0].device, len(first[0])
        self.shapes = [t.shape for t in first] if self.vectors else []
        launch = LAUNCHERS[backend]
        check_numbers(f"{self.recipe.name}, {backend}", first[0], launch.devices())
        self.sites = np.array(
            [shape.numel() // self.chains for shape in self.shapes] or [0], np.int64
        )  # [0]: numbers alone
        self.offset = np.concatenate([[0], np.cumsum(self.sites)])[:-1].astype(np.int64)
        of_one_chain = self.shapes[0][1:] if len(self.shapes) == 1 else (int(self.sites.sum()),)
        self.constants = Constants(program, self.plan.constants, of_one_chain)
        self.array_in, self.array_out = (self._table(len(self.plan.arrays)) for _ in range(2))
        self.drawn, self.per_site = self._table(len(program.draws)), self._table(len(self.plan.constants))
        self.number_in, self.number_out = (np.zeros(max(1, len(self.plan.numbers)), np.int64) for _ in range(2))
        self._own, self._setting = {}, None
        for k, s in enumerate(self.plan.arrays):
            if s not in self.recipe.entries and s not in self.plan.supplied:
                self._own[s] = [torch.empty(shape, dtype=self.dtype, device=self.device) for shape in self.shapes]
                self.array_out[k] = [t.data_ptr() for t in self._own[s]]
        for k, s in enumerate(self.plan.numbers):
            if s not in self.recipe.entries:
                self._own[s] = torch.empty(self.chains, dtype=self.dtype, device=self.device)
                self.number_out[k] = self._own[s].data_ptr()
        self._launch = launch(self)

    def _table(self, rows):
        """Addresses by row and part."""
        return np.zeros((max(1, rows), len(self.sites)), np.int64)

    def bind(self, state: Mapping, out: Mapping | None = None) -> "Sweep":
        """Read the blocks from `state` and write them to `out`, which is the state itself if left out."""
        out = state if out is None else out
        for name in self.vectors:
            for what, parts in ((f"state[{name!r}]", state[name]), (f"out[{name!r}]", out[name])):
                for t, shape in zip(parts, self.shapes, strict=True):
                    self._check(what, t, shape)
        for k, s in enumerate(self.plan.arrays):
            if s in self.recipe.entries:
                self.array_in[k], self.array_out[k] = ([t.data_ptr() for t in side[s.name]] for side in (state, out))
        for k, s in enumerate(self.plan.numbers):
            if s in self.recipe.entries:
                for what, t in ((f"state[{s.name!r}]", state[s.name]), (f"out[{s.name!r}]", out[s.name])):
                    self._check(what, t, (self.chains,))
                self.number_in[k], self.number_out[k] = state[s.name].data_ptr(), out[s.name].data_ptr()
        named = lambda side: (
            [(f"{name}[{k}]", t) for name in self.vectors for k, t in enumerate(side[name])]
            + [(b.name, side[b.name]) for b in self.recipe.entries if not b.is_vector]
        )
        read, written = ([] if out is state else named(state)), named(out)
        self._names, self._tensors = [name for name, _ in read + written], [t for _, t in read + written]
        self._addresses = [t.data_ptr() for t in self._tensors]
        _check_apart(self.recipe.name, read, written)
        return self

    def release(self) -> None:
        """Forget the tensors of the last call, those bound and the parameters; `bind` comes before the next one."""
        self._names, self._tensors, self._addresses = [], [], []
        if self._setting is not None and any(map(torch.is_tensor, self._setting[3].values())):
            self._setting, self.values = None, None

    def _check(self, what, t, shape):
        """Refuse a tensor that a kernel cannot go over."""
        where = f"{self.recipe.name}, {what}"
        if t.dtype != self.dtype or t.device != self.device:
            raise RecipeError(
                where, f"it is {t.dtype} on {t.device}, the others {self.dtype} on {self.device}", do="Convert one."
            )
        if t.shape != shape:
            raise RecipeError(
                where,
                f"its shape is {tuple(t.shape)}, not {tuple(shape)}",
                do="A vector has the target's shapes, a scalar one value per chain.",
            )
        if not t.is_contiguous():
            raise RecipeError(
                where, f"its memory has holes or another order, strides {t.stride()}", do="Pass t.contiguous()."
            )

    def __call__(
        self,
        h: float,
        *,
        noise,
        temperature: float = 1.0,
        given: Callable | None = None,
        step_number: int = 0,
        **parameters,
    ) -> None:
        """One step.

        `noise`: a Key, or tensors by name; `given(segment)`: what the caller supplies before a segment, the parts of each array.
        """
        addresses = [t.data_ptr() for t in self._tensors]
        if addresses != self._addresses:
            name = next(n for n, a, b in zip(self._names, addresses, self._addresses) if a != b)
            raise RecipeError(
                f"{self.recipe.name}, {name}", "the tensor has moved since it was bound", do="Bind it again."
            )
        self._set_constants(h, temperature, step_number if self.constants.changes else 0, parameters)
        held, keyed = [], isinstance(noise, Key)
        if keyed:
            noise.check(self.chains)
        self.drawn[:] = 0
        for k, d in enumerate(() if keyed else self.program.draws):
            parts = noise[d.name] if isinstance(noise[d.name], (list, tuple)) else [noise[d.name]]
            parts = [p.to(self.dtype).contiguous() for p in parts]
            for p, shape in zip(parts, self.shapes if d.is_vector else [(self.chains,)], strict=True):
                self._check(f"noise[{d.name!r}]", p, shape)
            held.append(parts)
            self.drawn[k, : len(parts)] = [p.data_ptr() for p in parts]
        for k, segment in enumerate(self.plan.segments):
            if segment.before is not None:
                held.append(self._take(segment.before, given(segment)))
            self._launch(k, noise if keyed else None)

    def step(
        self, h: float, key: Key, gradient, observe, *, temperature: float = 1.0, step_number: int = 0, **parameters
    ) -> None:
        """One step of an optimizer form, whose bound tensors have not moved: a dense gradient for each part, the observations by name."""
        self._set_constants(h, temperature, step_number if self.constants.changes else 0, parameters)
        self.drawn[:], held = 0, []
        for k, segment in enumerate(self.plan.segments):
            match segment.before:
                case Gradient(((_, g),), _):
                    self.array_out[self.plan.arrays.index(g)] = [t.data_ptr() for t in gradient]
                case Observe(_, observed) as statement:
                    value = observe[observed.name]
                    cut = lambda: [
                        x.reshape(shape) for x, shape in zip(value.reshape(-1).split(self.sites.tolist()), self.shapes)
                    ]
                    held.append(self._take(statement, [cut() if statement.name.is_vector else value]))
            self._launch(k, key)

    def _set_constants(self, *setting):
        """Compute the constants of a step, unless they are those of the last one."""
        if (
            self._setting is not None
            and all(map(_is_same, setting[:3], self._setting[:3]))
            and setting[3].keys() == self._setting[3].keys()
            and all(_is_same(v, self._setting[3][k]) for k, v in setting[3].items())
        ):
            return
        values = self.constants(*setting)
        numbers = np.array([0.0 if torch.is_tensor(v) else v for v in values] or [0.0])
        held = [self._cut(j, v) for j, v in enumerate(values) if torch.is_tensor(v)]
        self._setting, self.values = setting, (numbers, held)
        self._launch.constants(numbers)

    def _take(self, statement, values):
        """Put the addresses of what the caller supplies where the kernel looks for them."""
        names = [g for _, g in statement.names] if isinstance(statement, Gradient) else [statement.name]
        held = []
        for s, parts in zip(names, values, strict=True):
            if s in self.plan.arrays:
                kinds = {(t.dtype, t.device) for t in parts}
                if [t.shape for t in parts] != self.shapes or kinds != {(self.dtype, self.device)}:
                    for t, shape in zip(parts, self.shapes, strict=True):
                        self._check(f"{s}", t.contiguous(), shape)
                parts = [t.contiguous() for t in parts]
                self.array_out[self.plan.arrays.index(s)] = [t.data_ptr() for t in parts]
            else:
                parts = parts.to(self.dtype).contiguous()
                self._check(f"{s}", parts, (self.chains,))
                self.number_out[self.plan.numbers.index(s)] = parts.data_ptr()
            held.append(parts)
        return held

    def _cut(self, j, value):
        """A constant per site, cut into the parts."""
        value = value.to(dtype=self.dtype, device=self.device).reshape(-1)
        parts = [value[at : at + n].contiguous() for at, n in zip(self.offset, self.sites)]
        self.per_site[j] = [p.data_ptr() for p in parts]
        return parts


class InCpp:
    """The segments of a sweep as functions of a compiled library."""

    class Given(ctypes.Structure):
        """The struct Sweep of the C++ text."""

        _fields_ = [(name, ctypes.c_int64) for name in ("chains", "parts", "items")]
        _fields_ += [
            (name, ctypes.c_void_p)
            for name in (
                "part",
                "first",
                "count",
                "sites",
                "offset",
                "array_in",
                "array_out",
                "number_in",
                "number_out",
                "drawn",
                "per_site",
                "constants",
                "sums",
            )
        ]
        _fields_ += [("seed", ctypes.c_uint64), ("step", ctypes.c_uint64), ("first_chain", ctypes.c_int64)]

    @staticmethod
    def devices():
        """Where it runs."""
        return ["cpu"]

    def __init__(self, sweep: Sweep):
        self.library = library(sweep_source(sweep.plan), (f"REAL={NUMBER_TYPES[sweep.dtype]}",))
        runs = [(k, at, min(RUN, n - at)) for k, n in enumerate(sweep.sites.tolist()) for at in range(0, n, RUN)]
        self.items = np.array(runs, np.int64).reshape(-1, 3).T.copy()
        self.sums = np.empty(max(1, sweep.chains * len(runs) * sweep.plan.most_sums))
        tables = (
            *self.items,
            sweep.sites,
            sweep.offset,
            sweep.array_in,
            sweep.array_out,
            sweep.number_in,
            sweep.number_out,
            sweep.drawn,
            sweep.per_site,
        )
        self.given = self.Given(
            sweep.chains, len(sweep.sites), len(runs), *(t.ctypes.data for t in tables), 0, self.sums.ctypes.data
        )

    def constants(self, numbers):
        """Take the constants of the steps to come."""
        self.given.constants = numbers.ctypes.data

    def __call__(self, segment: int, key: Key | None):
        if key is not None:
            self.given.seed, self.given.step, self.given.first_chain = key.seed, key.step, key.first_chain
        getattr(self.library, f"segment_{segment}")(ctypes.byref(self.given))


class InTriton:
    """The passes of a sweep as Triton kernels; the seed and the step are read from the device."""

    @staticmethod
    def devices():
        """Where it runs: on the CPU too under Triton's interpreter."""
        return ["cuda"] + ["cpu"] * (os.environ.get("TRITON_INTERPRET") == "1")

    def __init__(self, sweep: Sweep):
        try:
            import triton.language as tl

            from ..backends.triton import triton_source
        except ImportError as error:
            raise RecipeError(
                f"{sweep.recipe.name}, triton", "Triton is not installed", do="pip install triton."
            ) from error
        self.sweep, program = sweep, sweep.program
        self.kernels = load(triton_source(sweep.plan), f"<sde-recipe {program.recipe.name} {program.scheme} triton>")
        block = 4 * GROUPS
        blocks = [
            (k, at)
            for k, (o, n) in enumerate(zip(sweep.offset.tolist(), sweep.sites.tolist()))
            for at in range(o // block * block, o + n, block)
        ]
        self.items = len(blocks)
        on = lambda a: torch.from_numpy(np.ascontiguousarray(a, np.int64)).to(sweep.device)
        part, first = np.array(blocks, np.int64).reshape(-1, 2).T
        self.places = [on(part), on(first), on(sweep.sites), on(sweep.offset)]
        self.sums = torch.empty(
            max(1, sweep.chains * len(blocks) * sweep.plan.most_sums), dtype=torch.float64, device=sweep.device
        )
        self.key = torch.zeros(2, dtype=torch.int64, device=sweep.device)
        self.real = {torch.float32: tl.float32, torch.float64: tl.float64}[sweep.dtype]
        self.sent = None

    def constants(self, numbers):
        """Take the constants of the steps to come."""
        self.numbers = torch.from_numpy(numbers.copy()).to(self.sweep.device)

    def _tables(self):
        """The tables of addresses on the device, sent again where they have changed."""
        s = self.sweep
        tables = [s.array_in, s.array_out, s.number_in, s.number_out, s.drawn, s.per_site]
        together = np.concatenate([t.ravel() for t in tables])
        if self.sent is None or not np.array_equal(together, self.sent):
            self.sent, flat = together, torch.from_numpy(together.copy()).to(s.device)
            self.on_device = flat.split([t.size for t in tables])
        return self.on_device

    def __call__(self, segment: int, key: Key | None):
        if key is not None:
            signed = lambda x: x - 2**64 if x >= 2**63 else x
            self.key.copy_(torch.tensor([signed(key.seed), signed(key.step)]))
        sweep, sites = self.sweep, int(self.sweep.sites.sum())
        given = (
            *self.places,
            *self._tables(),
            self.numbers,
            self.sums,
            self.key,
            len(sweep.sites),
            self.items,
            0 if key is None else key.first_chain,
            sites,
        )
        how = dict(R=self.real, GROUPS=GROUPS, GIVEN=key is None)
        for j, _ in enumerate(sweep.plan.segments[segment].passes):
            for name, programs in (
                (f"sites_{segment}_{j}", self.items * sweep.chains),
                (f"chain_{segment}_{j}", sweep.chains),
            ):
                if name in self.kernels and programs:
                    self.kernels[name][(programs,)](*given, **how)


LAUNCHERS = {"cpp": InCpp, "triton": InTriton}


def _is_same(a, b):
    """Whether two parameters are the same number, or the same tensor, which could have been changed in place."""
    return isinstance(a, (int, float)) and isinstance(b, (int, float)) and a == b


def _check_apart(name, read, written):
    """Refuse memory that is written under two names, or written under one and read under another."""
    spans = sorted(
        (t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), what, is_out)
        for is_out, tensors in ((False, read), (True, written))
        for what, t in tensors
        if t.numel()
    )
    end, owner = -1, None
    for start, stop, what, is_out in spans:
        if start < end and owner[0] != what and (is_out or owner[1]):
            raise RecipeError(
                f"{name}, {owner[0]}", f"it and {what} share memory", do="Give every block memory of its own."
            )
        if stop > end:
            end, owner = stop, (what, is_out)
