"""Steps as compiled kernels: many steps of many chains on a symbolic energy, or one step of many tensors."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from recipe.errors import RecipeError
from recipe.symbols import num_data, step_number

from .backends.cpp import sites_of, trajectory_source
from .backends.cpp_sweep import sweep_text
from .backends.torch import constants_source
from .backends.torch_expressions import python_names
from .native import library
from .noise import Key
from .passes import Unsupported, inputs
from .program import Gradient, Program
from .step import Step, load

__all__ = ["Sweep", "Trajectory", "Unsupported"]

NUMBER_TYPES = {torch.float32: "float", torch.float64: "double"}
LANES = (16, 64)  # chains of a lane block: the smallest that holds all of them, else the largest
RUN = 16384  # sites of one item of a sweep: a multiple of its blocks


def _at(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


class Constants:
    """What a kernel asks for of a step size, a temperature, parameters and a step number: `wanted`, in float64.

    `shape` is that of the sites of one chain; a value per site comes as a tensor of this shape.
    """

    def __init__(self, program: Program, wanted, shape):
        self.wanted, self.names, self.shape = wanted, python_names(program), shape
        self.like = torch.empty((1, 1), dtype=torch.float64).expand(1, *shape) if shape else torch.empty(1, dtype=torch.float64)
        source = constants_source(program, wanted)
        self.function = load(source, f"<sde-recipe {program.recipe.name} constants>")["constants"]
        self.changes = program.reads(step_number)

    def __call__(self, h, temperature, number, parameters) -> list:
        """The values in the order of `wanted`."""
        given = {s.name: parameters[s.name] for s in (num_data,) if s.name in parameters}
        given |= {self.names[name]: v for name, v in parameters.items() if name not in given}
        return self.function(h, self.like, temperature=temperature, step_number=number, **given)


@dataclass
class Trajectory:
    """Chains of a compiled step on a symbolic energy: `run(steps, ...)` moves them, in place, and returns kept states.

    `state`: dict of tensors by block, float32 or float64 on the CPU. The noise is that of `integrators.noise` under the
    seed: the numbers agree with the torch step up to rounding. Chains that leave the finite numbers or a domain stay at
    their last state; `died` has the step at which they did, -1 for all others. Raises RecipeError where the Program has
    no C++ form, or there is no compiler.
    """

    step: Step
    state: dict[str, torch.Tensor]
    seed: int
    parameters: dict = field(default_factory=dict)
    first_chain: int = 0

    def __post_init__(self):
        program, recipe = self.step.program, self.step.recipe
        like = self.state[recipe.targets[0].name]
        _check_numbers(recipe.name, like)
        vector = next((self.state[b.name] for b in recipe.entries if b.is_vector), like[:, None])
        self.like, self.sites, self.chains = vector, vector[0].numel(), len(like)
        self.source = trajectory_source(program, self.sites)
        width = next((w for w in LANES if self.chains <= w), LANES[-1])
        self.padded = -(-self.chains // width) * width
        self.library = library(self.source, (f"REAL={NUMBER_TYPES[like.dtype]}", f"WIDTH={width}"))
        entries = [(b, i) for b in recipe.entries for i in sites_of(b, self.sites)]
        self.rows = {name: [r for r, (b, _) in enumerate(entries) if b.name == name] for name in self.state if name != "gradient"}
        extra = sum(len(sites_of(b, self.sites)) for b in recipe.targets) if program.carries_gradient else 0
        self.numbers = torch.empty((len(entries) + extra, self.padded), dtype=like.dtype)
        for name, rows in self.rows.items():
            self.numbers[rows, :self.chains] = self.state[name].reshape(self.chains, len(rows)).T
        self.numbers[:, self.chains:] = self.numbers[:, :1]
        self.died = torch.full((self.padded,), -1, dtype=torch.int64)
        if program.carries_gradient:
            self._gradient()

    def _gradient(self):
        given = self.state.get("gradient")
        if given is None:
            self.library.gradient(_at(self.numbers), ctypes.c_int64(self.padded))
            return
        parts = [given[b.name] for b in self.step.recipe.targets] if isinstance(given, dict) else [given]
        rows = torch.cat([g.reshape(self.chains, -1).T for g in parts])
        self.numbers[-len(rows):, :self.chains] = rows

    @cached_property
    def _constants(self):
        return Constants(self.step.program, inputs(self.step.program), self.like.shape[1:])

    def _row(self, h, temperature, number):
        """The constants of one step, each spread over its sites, in one tensor."""
        values = zip(self._constants.wanted, self._constants(h, temperature, number, self.parameters))
        spread = lambda s, v: v.expand(self.like.shape[1:]).reshape(-1) if getattr(s, "is_vector", False) else v.reshape(1)
        row = [spread(s, torch.as_tensor(v, dtype=torch.float64)) for s, v in values]
        return torch.cat(row) if row else torch.zeros(1, dtype=torch.float64)

    def run(self, first_step: int, settings, *, thin: int = 1, first_kept: int = 0, keep=()) -> torch.Tensor:
        """Move by a step for each pair (step size, temperature); returns kept states (draws, numbers, chains).

        Of the steps every `thin`-th is kept, from number `first_kept` on; `keep`: names of blocks, in whose order the
        numbers of a draw are.
        """
        rows, last = [], None
        for k, setting in enumerate(settings):
            if self._constants.changes or setting != last:
                row = self._row(*setting, first_step + k)
            rows.append(row)
            last = setting
        steps, same = len(rows), all(r is rows[0] for r in rows)
        table = rows[0] if same else torch.stack(rows)
        kept = torch.tensor([r for name in keep for r in self.rows[name]], dtype=torch.int64)
        number = max(0, -(-(steps - first_kept) // thin))
        draws = torch.empty((number, len(kept), self.padded), dtype=self.numbers.dtype)
        integer = ctypes.c_int64
        self.library.run(_at(self.numbers), _at(draws), _at(table), integer(0 if same else table.shape[1]), integer(self.padded),
                         integer(self.first_chain), integer(steps), integer(first_step), ctypes.c_uint64(self.seed), integer(thin),
                         integer(first_kept), _at(kept), integer(len(kept)), _at(self.died))
        return draws[..., :self.chains]

    def block(self, name: str) -> torch.Tensor:
        """The values of a block as they stand, of its shape."""
        return self.numbers[self.rows[name], :self.chains].T.reshape(self.state[name].shape).contiguous()


class _Given(ctypes.Structure):
    """The struct Sweep of the C++ text."""

    _fields_ = [(name, ctypes.c_int64) for name in ("chains", "parts", "items")]
    _fields_ += [(name, ctypes.c_void_p) for name in ("part", "first", "count", "sites", "offset", "array_in", "array_out",
                                                      "number_in", "number_out", "drawn", "per_site", "constants", "sums")]
    _fields_ += [("seed", ctypes.c_uint64), ("step", ctypes.c_uint64), ("first_chain", ctypes.c_int64)]


class Sweep:
    """Steps of a Program over lists of tensors: the parts of the target, one after another, with their sites in order.

    Made for the dtype and shapes of a state: every vector block, and every gradient, is a list of contiguous tensors
    `(chains, *shape)`, one for each part; a scalar block is a tensor `(chains,)`. `bind` says which tensors, a call makes a
    step. Raises RecipeError where the Program has no C++ form, there is no compiler, or tensors do not fit.
    """

    def __init__(self, program: Program, state: Mapping):
        self.program, self.recipe, self.text = program, program.recipe, sweep_text(program).layout
        self.vectors = [b.name for b in self.recipe.entries if b.is_vector]
        first = state[self.vectors[0]] if self.vectors else [state[self.recipe.targets[0].name]]
        _check_numbers(self.recipe.name, first[0])
        self.dtype, self.chains = first[0].dtype, len(first[0])
        self.shapes = [t.shape for t in first] if self.vectors else []
        sites = [shape.numel() // self.chains for shape in self.shapes]
        self.library = library(sweep_text(program).source, (f"REAL={NUMBER_TYPES[self.dtype]}",))
        self.constants = Constants(program, self.text.constants, self.shapes[0][1:] if len(sites) == 1 else (sum(sites),))
        self._sites = np.array(sites, np.int64)
        self._offset = np.concatenate([[0], np.cumsum(self._sites)])[:-1].astype(np.int64)
        self._items = np.array([(k, at, min(RUN, n - at)) for k, n in enumerate(sites) for at in range(0, n, RUN)],
                               np.int64).reshape(-1, 3).T.copy()
        self._sums = np.empty(max(1, self.chains * self._items.shape[1] * self.text.totals))
        parts, text = len(sites), self.text
        table = lambda n: np.zeros((max(1, n), max(1, parts)), np.uint64)
        self._array_in, self._array_out = table(len(text.arrays)), table(len(text.arrays))
        self._number_in, self._number_out = (np.zeros(max(1, len(text.numbers)), np.uint64) for _ in range(2))
        self._drawn, self._per_site = table(len(program.draws)), table(len(text.constants))
        self._own, self._setting = {}, None
        for k, s in enumerate(text.arrays):
            if s not in self.recipe.entries and not text.is_supplied(s):
                self._own[s] = [torch.empty(shape, dtype=self.dtype) for shape in self.shapes]
                self._array_out[k] = [t.data_ptr() for t in self._own[s]]
        for k, s in enumerate(text.numbers):
            if s not in self.recipe.entries:
                self._own[s] = torch.empty(self.chains, dtype=self.dtype)
                self._number_out[k] = self._own[s].data_ptr()
        address = lambda a: a.ctypes.data
        part, first, count = self._items
        self._given = _Given(self.chains, parts, len(part), *map(address, (
            part, first, count, self._sites, self._offset, self._array_in, self._array_out, self._number_in, self._number_out,
            self._drawn, self._per_site)), 0, address(self._sums))

    def bind(self, state: Mapping, out: Mapping | None = None) -> "Sweep":
        """Read the blocks from `state` and write them to `out`, which is the state itself if left out."""
        out = state if out is None else out
        for name in self.vectors:
            for what, parts in ((f"state[{name!r}]", state[name]), (f"out[{name!r}]", out[name])):
                for t, shape in zip(parts, self.shapes, strict=True):
                    self._check(what, t, shape)
        for k, s in enumerate(self.text.arrays):
            if s in self.recipe.entries:
                self._array_in[k], self._array_out[k] = ([t.data_ptr() for t in side[s.name]] for side in (state, out))
        for k, s in enumerate(self.text.numbers):
            if s in self.recipe.entries:
                self._number_in[k], self._number_out[k] = state[s.name].data_ptr(), out[s.name].data_ptr()
        named = [(f"{name}[{k}]", t) for side in (state, out) for name in self.vectors for k, t in enumerate(side[name])]
        self._names, self._tensors = [name for name, _ in named], [t for _, t in named]
        self._addresses = [t.data_ptr() for t in self._tensors]
        _check_apart(self.recipe.name, {(name, t.data_ptr()): (name, t) for name, t in named}.values())
        return self

    def _check(self, what, t, shape):
        """Refuse a tensor that a kernel cannot go over."""
        where = f"{self.recipe.name}, {what}"
        if t.dtype != self.dtype or t.device.type != "cpu":
            raise RecipeError(where, f"it is {t.dtype} on {t.device}, the others {self.dtype} on the CPU", do="Convert one.")
        if t.shape != shape:
            raise RecipeError(where, f"its shape is {tuple(t.shape)}, not {tuple(shape)}", do="Every block has the target's shapes.")
        if not t.is_contiguous():
            raise RecipeError(where, f"its memory has holes or another order, strides {t.stride()}", do="Pass t.contiguous().")

    def __call__(self, h: float, *, noise, temperature: float = 1.0, given: Callable | None = None, step_number: int = 0,
                 **parameters) -> None:
        """One step. `noise`: a Key, or tensors by name; `given(segment)`: what the caller supplies before a segment, the parts of
        each array."""
        addresses = [t.data_ptr() for t in self._tensors]
        if addresses != self._addresses:
            name = next(n for n, a, b in zip(self._names, addresses, self._addresses) if a != b)
            raise RecipeError(f"{self.recipe.name}, {name}", "the tensor has moved since it was bound", do="Bind it again.")
        self._set_constants(h, temperature, step_number if self.constants.changes else 0, parameters)
        call, held, keyed = self._given, [], isinstance(noise, Key)
        if keyed:
            call.seed, call.step, call.first_chain = noise.seed, noise.step, noise.first_chain
        self._drawn[:] = 0
        for k, d in enumerate(() if keyed else self.program.draws):
            parts = noise[d.name] if isinstance(noise[d.name], (list, tuple)) else [noise[d.name]]
            parts = [p.to(self.dtype).contiguous() for p in parts]
            held.append(parts)
            self._drawn[k, :len(parts)] = [p.data_ptr() for p in parts]
        for k, segment in enumerate(self.text.segments):
            if segment.before is not None:
                held.append(self._take(segment.before, given(segment)))
            getattr(self.library, f"segment_{k}")(ctypes.byref(call))

    def _set_constants(self, *setting):
        """Compute the constants of a step, unless they are those of the last one."""
        if self._setting is not None and all(map(_is_same, setting[:3], self._setting[:3])) and \
                setting[3].keys() == self._setting[3].keys() and all(_is_same(v, self._setting[3][k]) for k, v in setting[3].items()):
            return
        values = self.constants(*setting)
        per_site = [getattr(s, "is_vector", False) for s in self.text.constants]
        numbers = np.array([0.0 if per else float(v) for v, per in zip(values, per_site)] or [0.0])
        self._setting, self._values = setting, (numbers, [self._spread(j, v) for j, (v, per) in enumerate(zip(values, per_site)) if per])
        self._given.constants = numbers.ctypes.data

    def _take(self, statement, values):
        """Put the addresses of what the caller supplies where the kernel looks for them."""
        names = [g for _, g in statement.names] if isinstance(statement, Gradient) else [statement.name]
        held = []
        for s, parts in zip(names, values, strict=True):
            if s in self.text.arrays:
                if [t.shape for t in parts] != self.shapes or {t.dtype for t in parts} != {self.dtype} or not all(t.is_cpu for t in parts):
                    for t, shape in zip(parts, self.shapes, strict=True):
                        self._check(f"{s}", t.contiguous(), shape)
                if not all([t.is_contiguous() for t in parts]):
                    parts = [t.contiguous() for t in parts]
                self._array_out[self.text.arrays.index(s)] = [t.data_ptr() for t in parts]
            else:
                parts = parts.to(self.dtype).contiguous()
                self._number_out[self.text.numbers.index(s)] = parts.data_ptr()
            held.append(parts)
        return held

    def _spread(self, j, value):
        """A constant per site, cut into the parts."""
        value = torch.as_tensor(value, dtype=self.dtype).expand(self.constants.shape).reshape(-1)
        parts = [value[at:at + n].contiguous() for at, n in zip(self._offset, self._sites)]
        self._per_site[j] = [p.data_ptr() for p in parts]
        return parts


def _is_same(a, b):
    """Whether two parameters are the same number, or the same tensor, which could have been changed in place."""
    return not torch.is_tensor(a) and not torch.is_tensor(b) and a == b


def _check_apart(name, tensors):
    """Refuse tensors that share memory: one would be moved twice."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), what) for what, t in tensors)
    for (_, end, one), (start, _, other) in zip(spans, spans[1:]):
        if start < end:
            raise RecipeError(f"{name}, {one}", f"it and {other} share memory", do="Give every block memory of its own.")


def _check_numbers(name, like):
    if like.device.type != "cpu" or like.dtype not in NUMBER_TYPES:
        raise RecipeError(f"{name}, cpp", f"the state is {like.dtype} on {like.device}",
                          do="Kernels run on float32 and float64 on the CPU: convert it, or use backend='torch'.")


def sweep(step: Step, state: Mapping, h: float, *, gradient=None, noise=None, curvature=None, observe=None, **parameters) -> dict:
    """One step by a kernel: the pure function that a Step is, each block one tensor."""
    recipe, program = step.recipe, step.program
    state = {k: v if k == "gradient" else v.contiguous() for k, v in state.items()}
    key = tuple((state[b.name].dtype, state[b.name].shape) for b in recipe.entries)
    parts = {b.name: [state[b.name]] if b.is_vector else state[b.name] for b in recipe.entries}
    if key not in step.kernels:
        step.kernels[key] = Sweep(program, parts)
    kernel = step.kernels[key]
    new = {b.name: torch.empty_like(state[b.name]) if b in kernel.text.written else state[b.name] for b in recipe.entries}
    kernel.bind(parts, {b.name: [new[b.name]] if b.is_vector else new[b.name] for b in recipe.entries})
    last = {}

    def given(segment):
        """What is asked for before a segment, at the target as it stands."""
        statement = segment.before
        at = {b.name: (new if b in segment.written else state)[b.name] for b in recipe.targets}
        at = at if len(at) > 1 else next(iter(at.values()))
        if not isinstance(statement, Gradient):
            return [[observe[statement.observed.name](at)]] if statement.name.is_vector else [observe[statement.observed.name](at)]
        if statement.source == "carried" and "gradient" in state:
            value = state["gradient"]
        elif statement.source == "given":
            value = gradient
        elif program.energy is not None and (gradient if statement.order == 1 else curvature) is None:
            value = step.namespace["gradient" if statement.order == 1 else "curvature"](at)
        else:
            value = (gradient if statement.order == 1 else curvature)(at)
        last["gradient"] = value if statement.order == 1 else last.get("gradient")
        values = [value[b.name] for b, _ in statement.names] if isinstance(value, dict) else [value]
        return [[v] if b.is_vector else v for v, (b, _) in zip(values, statement.names)]

    kernel(h, noise=noise, given=given, **parameters)
    return new | ({"gradient": last["gradient"]} if program.carries_gradient else {})
