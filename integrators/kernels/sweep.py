"""Kernels of one step: over lists of tensors, in C++ on the CPU and in Triton on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import increment_version

from recipe.errors import RecipeError

from ..gathered import gathered
from ..noise import Key
from ..passes import Segment, is_by_site, plan, supplied
from ..processes import Spread
from ..program import Gradient, Observe, Program
from ..transfers import is_near
from .addresses import NamedTensors, check_apart, readable, starts
from .constants import Constants, check_numbers, is_one_number
from .launchers import LAUNCHERS, TritonLauncher
from .tables import Parts, Tables, listed
from .walk import written


class Sweep:
    """Steps of a Program over lists of tensors: the parts of the target, with their sites in order.

    A Sweep is made for the dtype and shapes of a state: every vector block and every gradient is a list of contiguous
    tensors `(chains, *shape)`, one for each part; a scalar block is a tensor `(chains,)`. `bind` sets the tensors, a
    call makes a step. With a `spread` the parts are its runs, and totals are over all processes: one sum over processes
    for each pass with totals. `halves`: tensors in half precision into which Triton's `step` also rounds the target,
    from gradients in their precision. Raises RecipeError if the Program has no form in the backend, there is no
    compiler, or tensors do not fit.
    """

    def __init__(
        self,
        program: Program,
        state: Mapping,
        backend: str = "cpp",
        spread: Spread | None = None,
        halves: Sequence[torch.Tensor] = (),
    ):
        program = gathered(program) if backend == "triton" else program
        self.program = program
        self.recipe = program.recipe
        self.plan = plan(program) if spread is None else plan(program).cut_at_sums()
        self.halves = halves
        self.parts = replace(Parts.of(self.recipe, state, spread), half=halves[0].dtype if halves else None)
        launcher = LAUNCHERS[backend]
        check_numbers(self.recipe, backend, self.parts.dtype, self.parts.device)
        self.constants = Constants(program, self.plan.constants, self.parts.shape_of_chain)
        self.tables = Tables(self.plan, self.parts)
        self._setting: tuple | None = None
        self._bound: NamedTensors = []
        self._starts: list[int] = []
        self._targets: list[torch.Tensor] = []
        self._tell_written: Callable[[], None] | None = None
        self._has_room = False
        outside = {*self.recipe.entries, *filter(is_by_site, supplied(program))}
        self._inner = [s for s in self.tables.places["out"] if s not in outside]  # symbols in memory of the Sweep
        self._launch = launcher(self.plan, self.parts, self.tables)
        runs = () if spread is None else spread.runs
        copies = [k for k, part in enumerate(self._launch.part_of_item) if runs and not runs[part].counted]
        self._copies = copies  # items whose sums another process counts

    def bind(self, state: Mapping, out: Mapping | None = None) -> "Sweep":
        """Read the blocks from `state` and write them to `out`, by default to `state` itself."""
        out = state if out is None else out
        if not self._has_room:
            for s in self._inner:
                empty = self.parts.empty(s.is_vector, torch.float64 if s in self.program.in_float64 else None)
                self.tables.put(*self.tables.places["out"][s], s.name, empty)
            self._has_room = True
        for b in self.recipe.entries:
            self.tables.set("in", b, f"state[{b.name!r}]", state[b.name])
            self.tables.set("out", b, f"out[{b.name!r}]", out[b.name])
        read = [] if out is state else self._named(state)
        written = self._named(out)
        check_apart(self.recipe.name, read, written)
        self._bound = read + written
        self._starts = starts(t for _, t in self._bound)
        targets = [out[b.name] for b in self.recipe.targets if b in self.plan.written]
        self._tell_written = None
        self._targets = [*(t for value in targets for t in listed(value)), *self.halves]
        if self.halves:
            table = self.tables.array_out
            self.tables.put(table, len(table) - 1, "weights", self.halves)
        return self

    def _named(self, state: Mapping) -> NamedTensors:
        vectors = [b.name for b in self.recipe.entries if b.is_vector]
        parts = [(f"{name}[{k}]", t) for name in vectors for k, t in enumerate(state[name])]
        return parts + [(b.name, state[b.name]) for b in self.recipe.entries if not b.is_vector]

    def follow(self, clock: torch.Tensor) -> None:
        """Add the number in a device tensor, int64 `(1,)`, to the number of every step, for captured graphs.

        Raises RecipeError for kernels other than Triton's, and for constants that depend on the number of the step.
        """
        where = f"{self.recipe.name}, capturable"
        if not isinstance(self._launch, TritonLauncher):
            raise RecipeError(where, "a graph has Triton kernels alone", do="Use backend='triton', on a GPU.")
        if self.constants.changes:
            raise RecipeError(where, "the recipe reads the number of the step", do="Step without a graph.")
        self._launch.clock = clock

    def release(self, *, keep_constants: bool = False) -> None:
        """Release all tensors, of the last call and of the Sweep itself; `bind` again before the next call."""
        self._bound = []
        self._targets = []
        self._tell_written = None
        per_site = self.tables.per_site
        if not keep_constants and per_site.any():  # constants per site are released with their tensors
            self._setting = None
        self._has_room = False
        self.tables.forget(*(t for t in self.tables.all() if not (keep_constants and t is per_site)))
        self._launch.release()

    def __call__(
        self,
        h: float,
        supply: Callable[[Segment], Sequence],
        /,
        *,
        noise: Key | Mapping | None,
        temperature: float = 1.0,
        step_number: int = 0,
        **parameters: Any,
    ) -> None:
        """Make one step on the bound tensors.

        `noise`: a Key, or tensors by name; `supply(segment)`: the caller's values before a segment, as parts for each
        array.
        """
        for (name, _), now, before in zip(self._bound, starts(t for _, t in self._bound), self._starts):
            if now != before:
                where = f"{self.recipe.name}, {name}"
                raise RecipeError(where, "the tensor has moved since it was bound", do="Bind it again.")
        self._set_constants(h, temperature, step_number, parameters)
        self.tables.draw_inside()
        key = noise if isinstance(noise, Key) else None
        if isinstance(noise, Key):
            noise.check(self.parts.chains)
        else:
            self._place_noise(noise)
        tell_written = partial(increment_version, self._targets)
        self._run(key, lambda segment: self._place(segment.before, supply(segment)), tell_written)

    def step(
        self,
        h: float,
        key: Key,
        gradient: Sequence[int] | np.ndarray,
        observe: Mapping,
        value: torch.Tensor | None = None,
        /,
        *,
        temperature: float = 1.0,
        step_number: int = 0,
        **parameters: Any,
    ) -> None:
        """Make one step of an optimizer form; the caller ensures that bound tensors have not moved.

        `gradient`: addresses of one tensor per part, with the memory layout of the part; the caller keeps the tensors
        alive. `observe`: observations by name; `value`: U of each chain, `(chains,)`, if the step reads U.
        """

        def place(segment: Segment) -> None:
            match segment.before:
                case Gradient(_, _, 0) as statement:
                    self._place(statement, [value])
                case Gradient(((_, g),), _):
                    table, row = self.tables.places["out"][g]
                    table[row] = gradient
                case Observe(name, observed) as statement:
                    observation = observe[observed.name]
                    self._place(statement, [self._in_shapes(observation) if name.is_vector else observation])

        self._set_constants(h, temperature, step_number, parameters)
        self.tables.draw_inside()
        if self._tell_written is None:
            self._tell_written = written(self._targets)
        self._run(key, place, self._tell_written)

    def _run(self, key, place, tell_written):
        """Launch the segments; `place(segment)` puts the caller's values before a segment into the tables."""
        for k, segment in enumerate(self.plan.segments):
            if segment.before is not None:
                place(segment)
            tell_written()
            self._launch(k, key)
            self._add_elsewhere(segment)

    def _add_elsewhere(self, segment):
        """Replace the open sums of a segment by sums over all processes."""
        spread = self.parts.spread
        if spread is None or not segment.open_sums:
            return
        sums = self._launch.sums_of_items(len(segment.open_sums))
        if self._copies:
            sums[:, self._copies] = 0
        total = sums.sum(1)
        spread.add(total)
        sums.zero_()
        sums[:, 0] = total

    def _in_shapes(self, value):
        """A value per site, `(chains, sites)` in total, as tensors with the shapes of the parts."""
        parts = value.reshape(self.parts.chains, -1).split(self.parts.sites.tolist(), 1)
        return [x.reshape(shape) for x, shape in zip(parts, self.parts.shapes)]

    def _set_constants(self, h, temperature, step_number, parameters):
        """Compute the constants of a step, unless settings equal those of the last step."""
        number = step_number if self.constants.changes else 0
        setting = h, temperature, number, *parameters.items()
        are_numbers = all([isinstance(v, (int, float)) for v in (h, temperature, *parameters.values())])
        if are_numbers and setting == self._setting:
            return
        self.tables.forget(self.tables.per_site)
        values = self.constants(h, temperature, number, parameters)
        self._launch.set_constants(np.array([self._number(j, v) for j, v in enumerate(values)] or [0.0]))
        self._setting = setting if are_numbers else None  # tensors may change in place

    def _number(self, j, value):
        """The number of a constant, or 0 after putting the addresses of values per site into the tables."""
        if not isinstance(value, torch.Tensor):
            return value
        if is_near(value) and is_one_number(value):  # a number on a GPU would be waited for
            return float(value.flatten()[0])
        self.tables.put(self.tables.per_site, j, self.plan.constants[j].name, self.parts.cut(value))
        return 0.0

    def _place_noise(self, noise):
        for k, d in enumerate(self.program.draws):
            what = f"noise[{d.name!r}]"
            parts = [self._readable(what, t) for t in listed(noise[d.name])]
            self.parts.check(what, parts, d.is_vector)
            self.tables.put(self.tables.drawn, k, what, parts)

    def _place(self, statement, values):
        names = [g for _, g in statement.names] if isinstance(statement, Gradient) else [statement.name]
        wide = self.program.in_float64
        for s, value in zip(names, values, strict=True):
            dtype = torch.float64 if wide and s in wide else None
            self.tables.set("out", s, s.name, [self._readable(s.name, t) for t in listed(value)], dtype)

    def _readable(self, what, t):
        return readable(f"{self.recipe.name}, {what}", t)
