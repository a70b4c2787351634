"""Kernels of one step: over lists of tensors, in C++ on the CPU and in Triton on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from recipe.errors import RecipeError

from ..noise import Key
from ..passes import Segment, plan
from ..program import Gradient, Observe, Program
from .constants import Constants, check_numbers
from .launchers import LAUNCHERS
from .tables import NamedTensors, Parts, Tables, addresses, check_apart


def _nothing(segment: Segment) -> Sequence:
    """What is supplied before a segment of a Program without gradient and observations."""
    return ()


class Sweep:
    """Steps of a Program over lists of tensors: the parts of the target, one after another, with their sites in order.

    Made for the dtype and shapes of a state: every vector block, and every gradient, is a list of contiguous tensors
    `(chains, *shape)`, one for each part; a scalar block is a tensor `(chains,)`. `bind` says which tensors, a call
    makes a step. Raises RecipeError where the Program has no C++ form, there is no compiler, or tensors do not fit.
    """

    def __init__(self, program: Program, state: Mapping, backend: str = "cpp"):
        self.program, self.recipe = program, program.recipe
        self.plan = plan(program)
        self.parts = Parts.of(self.recipe, state)
        launcher = LAUNCHERS[backend]
        check_numbers(f"{self.recipe.name}, {backend}", self.parts.dtype, self.parts.device, launcher.devices())
        self.constants = Constants(program, self.plan.constants, self.parts.shape_of_chain)
        self.tables = Tables(self.plan, len(self.parts.sites))
        self._own = self._allocate()
        self._setting: tuple | None = None
        self._held_constants: list = []
        self._bound: NamedTensors = []
        self._addresses: list[int] = []
        self._launch = launcher(program, self.plan, self.parts, self.tables)

    def _allocate(self):
        """Memory for what is neither in the state nor supplied by the caller."""
        own: list = []
        for k, s in enumerate(self.plan.arrays):
            if s not in self.recipe.entries and s not in self.plan.supplied:
                own.append(self.parts.empty())
                self.tables.array_out[k] = addresses(own[-1])
        for k, s in enumerate(self.plan.numbers):
            if s not in self.recipe.entries:
                own.append(torch.empty(self.parts.chains, dtype=self.parts.dtype, device=self.parts.device))
                self.tables.number_out[k] = own[-1].data_ptr()
        return own

    def bind(self, state: Mapping, out: Mapping | None = None) -> "Sweep":
        """Read the blocks from `state` and write them to `out`, which is the state itself if left out."""
        out = state if out is None else out
        for b in self.recipe.entries:
            check = self.parts.check_parts if b.is_vector else self.parts.check_number
            check(f"state[{b.name!r}]", state[b.name])
            check(f"out[{b.name!r}]", out[b.name])
        for k, s in enumerate(self.plan.arrays):
            if s in self.recipe.entries:
                self.tables.array_in[k] = addresses(state[s.name])
                self.tables.array_out[k] = addresses(out[s.name])
        for k, s in enumerate(self.plan.numbers):
            if s in self.recipe.entries:
                self.tables.number_in[k] = state[s.name].data_ptr()
                self.tables.number_out[k] = out[s.name].data_ptr()
        read = [] if out is state else self._named(state)
        written = self._named(out)
        check_apart(self.recipe.name, read, written)
        self._bound = read + written
        self._addresses = addresses(t for _, t in self._bound)
        return self

    def _named(self, state: Mapping) -> NamedTensors:
        """The tensors of a state by name."""
        vectors = [b.name for b in self.recipe.entries if b.is_vector]
        parts = [(f"{name}[{k}]", t) for name in vectors for k, t in enumerate(state[name])]
        return parts + [(b.name, state[b.name]) for b in self.recipe.entries if not b.is_vector]

    def release(self) -> None:
        """Forget the tensors of the last call, those bound and the parameters; `bind` comes before the next one."""
        self._bound, self._addresses = [], []
        if self._setting is None:
            self._held_constants = []

    def __call__(
        self,
        h: float,
        supply: Callable[[Segment], Sequence] = _nothing,
        /,
        *,
        noise: Key | Mapping | None,
        temperature: float = 1.0,
        step_number: int = 0,
        **parameters: Any,
    ) -> None:
        """One step.

        `noise`: a Key, or tensors by name; `supply(segment)`: what the caller gives before a segment, the parts of each
        array.
        """
        self._check_unmoved()
        self._set_constants(h, temperature, step_number, parameters)
        key = noise if isinstance(noise, Key) else None
        if key is not None:
            key.check(self.parts.chains)
        self.tables.drawn[:] = 0
        held = [] if key is not None else self._place_noise(noise)
        for k, segment in enumerate(self.plan.segments):
            if segment.before is not None:
                held.append(self._place(segment.before, supply(segment)))
            self._launch(k, key)

    def step(
        self,
        h: float,
        key: Key,
        gradient: Sequence[torch.Tensor],
        observe: Mapping,
        /,
        *,
        temperature: float = 1.0,
        step_number: int = 0,
        **parameters: Any,
    ) -> None:
        """One step of an optimizer form, whose bound tensors have not moved.

        `gradient`: a dense tensor for each part, laid out as the part is; `observe`: the observations by name.
        """
        self._set_constants(h, temperature, step_number, parameters)
        self.tables.drawn[:] = 0
        held = []
        for k, segment in enumerate(self.plan.segments):
            match segment.before:
                case Gradient(((_, g),), _):
                    self.tables.array_out[self.plan.arrays.index(g)] = addresses(gradient)
                case Observe(name, observed) as statement:
                    value = observe[observed.name]
                    held.append(self._place(statement, [self._in_shapes(value) if name.is_vector else value]))
            self._launch(k, key)

    def _in_shapes(self, value):
        """A value at every site, as tensors of the shapes of the parts."""
        parts = value.reshape(-1).split(self.parts.sites.tolist())
        return [x.reshape(shape) for x, shape in zip(parts, self.parts.shapes)]

    def _check_unmoved(self):
        """Refuse bound tensors whose memory is another by now."""
        for (name, t), address in zip(self._bound, self._addresses):
            if t.data_ptr() != address:
                raise RecipeError(
                    f"{self.recipe.name}, {name}", "the tensor has moved since it was bound", do="Bind it again."
                )

    def _set_constants(self, h, temperature, step_number, parameters):
        """Compute the constants of a step, unless they are those of the last one."""
        numbers = {"h": h, "T": temperature, "step": step_number if self.constants.changes else 0}
        setting = (numbers, parameters)
        if self._setting is not None and all(map(_are_same, setting, self._setting)):
            return
        values = self.constants(h, temperature, numbers["step"], parameters)
        self._held_constants = []
        for j, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                parts = self.parts.cut(value)
                self.tables.per_site[j] = addresses(parts)
                self._held_constants.append(parts)
        self._launch.set_constants(np.array([0.0 if isinstance(v, torch.Tensor) else v for v in values] or [0.0]))
        has_tensors = any(isinstance(v, torch.Tensor) for v in parameters.values())
        self._setting = None if has_tensors else setting

    def _place_noise(self, noise):
        """Put the addresses of random numbers into the table; returns the tensors that are there."""
        held = []
        for k, d in enumerate(self.program.draws):
            tensors = noise[d.name] if isinstance(noise[d.name], (list, tuple)) else [noise[d.name]]
            parts = [t.to(self.parts.dtype).contiguous() for t in tensors]
            if d.is_vector:
                self.parts.check_parts(f"noise[{d.name!r}]", parts)
            else:
                (number,) = parts
                self.parts.check_number(f"noise[{d.name!r}]", number)
            held.append(parts)
            self.tables.drawn[k, : len(parts)] = addresses(parts)
        return held

    def _place(self, statement, values):
        """Put the addresses of what the caller supplies into the tables; returns the tensors that are there."""
        names = [g for _, g in statement.names] if isinstance(statement, Gradient) else [statement.name]
        return [self._place_one(s, value) for s, value in zip(names, values, strict=True)]

    def _place_one(self, s, value):
        if s in self.plan.numbers:
            number = value.to(self.parts.dtype).contiguous()
            self.parts.check_number(s.name, number)
            self.tables.number_out[self.plan.numbers.index(s)] = number.data_ptr()
            return number
        parts = [t.contiguous() for t in value]
        self.parts.check_parts(s.name, parts)
        self.tables.array_out[self.plan.arrays.index(s)] = addresses(parts)
        return parts


def _are_same(some: Mapping, others: Mapping) -> bool:
    """Whether two sets of parameters are the same numbers; a tensor could have been changed in place."""
    return some.keys() == others.keys() and all(
        isinstance(v, (int, float)) and isinstance(others[k], (int, float)) and v == others[k] for k, v in some.items()
    )
