"""Kernels of one call: a step as a pure function of its state, each block one tensor."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from recipe import Recipe
from recipe.errors import RecipeError

from ..noise import Key
from ..passes import LoopPlan, Segment
from ..program import DERIVATIVES, Gradient, Observe, Program
from .addresses import check_graph, readable
from .sweep import Sweep

IDLE = 8  # number of idle kernels kept for later calls


class Pool:
    """Idle kernels, the latest last; a call takes its kernel out, because its gradient may step another kernel.

    With `keep_constants`, as within one run, kernels keep constants computed from parameters per site.
    """

    def __init__(self, size: int, *, keep_constants: bool = False):
        self.size = size
        self.keep_constants = keep_constants
        self.idle: list[tuple[tuple, Sweep]] = []
        self.lock = threading.Lock()

    def take(self, key: tuple, make: Callable[[], Sweep]) -> Sweep:
        """An idle kernel with the given key, or a new one."""
        with self.lock:
            for place in reversed(range(len(self.idle))):
                if self.idle[place][0] == key:
                    return self.idle.pop(place)[1]
        return make()

    def put_back(self, key: tuple, kernel: Sweep) -> None:
        """Keep a kernel without the tensors of its call; beyond `size` the kernel idle longest is dropped."""
        kernel.release(keep_constants=self.keep_constants)
        with self.lock:
            self.idle.append((key, kernel))
            del self.idle[: -self.size]


_pool = Pool(IDLE)


def step_by_kernel(
    program: Program,
    state: Mapping,
    h: float,
    backend: str = "cpp",
    /,
    *,
    gradient: Any = None,
    curvature: Callable | None = None,
    value: Callable | None = None,
    noise: Key | Mapping | None = None,
    observe: Mapping | None = None,
    pool: Pool | None = None,
    **parameters: Any,
) -> dict:
    """The state a time `h` later, by one step of a Program in C++ ("cpp") or Triton ("triton").

    `gradient`, `curvature` and `value`: functions of the target, also for a symbolic energy; for a Program with a given
    gradient, `gradient` is a tensor. `noise`: a Key, or tensors by name. `pool`: the kernels of a run; by default the
    pool of all steps. Raises RecipeError as `Sweep` does, and for a gradient of the wrong kind.
    """
    recipe = program.recipe
    entries = recipe.entries
    for name, parameter in parameters.items():
        if torch.is_tensor(parameter):
            check_graph(f"{recipe.name}, parameter '{name}'", parameter)
    before = {b.name: readable(f"{recipe.name}, state[{b.name!r}]", state[b.name]) for b in entries}
    # the id of a Program is not reused while a kernel of it is in the pool: the kernel keeps the Program alive
    key = (id(program), backend, threading.get_ident(), *((x.dtype, x.device, x.shape) for x in before.values()))
    pool = pool or _pool
    kernel = pool.take(key, lambda: Sweep(program, in_parts(recipe, before), backend))
    after = {b.name: torch.empty_like(before[b.name]) if b in kernel.plan.written else before[b.name] for b in entries}
    functions = {"gradient": gradient, "curvature": curvature, "value": value}
    carried = {name: state[name] for name in functions if name in state}
    caller = _Caller(program, kernel.plan, before, after, functions, observe or {}, carried)
    kernel.bind(in_parts(recipe, before), in_parts(recipe, after))
    kernel(h, caller.supply, noise=noise, **parameters)
    pool.put_back(key, kernel)
    return after | {DERIVATIVES[order]: caller.carried(order) for order in program.carries}


def in_parts(recipe: Recipe, state: Mapping) -> dict[str, Any]:
    """A state of one tensor per block in the form of a Sweep: vector blocks as lists of one part."""
    return {b.name: [state[b.name]] if b.is_vector else state[b.name] for b in recipe.entries}


@dataclass
class _Caller:
    """Values that the caller supplies in a step; `latest`: latest derivatives of U, `begun`: those carried in."""

    program: Program
    plan: LoopPlan
    before: dict
    after: dict
    functions: Mapping[str, Any]
    observe: Mapping
    begun: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.latest = dict(self.begun)

    def supply(self, segment: Segment) -> list:
        """The values supplied before a segment, at the present target."""
        match segment.before:
            case Observe(_, observed):
                return [self.observe[observed.name](self._target(segment))]
            case Gradient(names, _, order) as statement:
                value = self._derivative(segment, statement)
                if order == 0 and self.program.in_float64 and torch.is_tensor(value):
                    value = value.double()
                if order in self.program.reset_orders:  # else the step may overwrite the caller's tensor
                    value = {b: x.clone() for b, x in value.items()} if isinstance(value, Mapping) else value.clone()
                values = [value[b.name] for b, _ in names] if isinstance(value, dict) else [value]
                if not all(map(torch.is_tensor, values)):
                    do = "It is a function of theta, to a tensor of its shape, or a dict by block."
                    raise RecipeError(f"{self.program.recipe.name}, gradient", f"it is {type(value).__name__}", do=do)
                if self.program.recipe.has_several_potentials:
                    slopes = {self.program.places[g]: x for (_, g), x in zip(names, values)}
                    value = self.latest.get(DERIVATIVES[order], {}) | slopes
                self.latest[DERIVATIVES[order]] = value
                return values
        return []

    def carried(self, order: int) -> Any:
        """The derivatives of U of one order that the next step takes over."""
        latest = self.latest[DERIVATIVES[order]]
        if not self.program.recipe.has_several_potentials:
            return latest
        return {self.program.places[g]: latest[self.program.places[g]] for _, g in self.program.carried_of(order)}

    def _target(self, segment, blocks=()):
        """The target before a segment; a copy of blocks that move later, because the caller may keep the tensor."""
        moves_on = self.plan.written_from(segment)
        at = {}
        for b in blocks or self.program.recipe.targets:
            if b not in segment.written:
                at[b.name] = self.before[b.name]
            else:
                at[b.name] = self.after[b.name].clone() if b in moves_on else self.after[b.name]
        return _alone(at)

    def _derivative(self, segment, statement):
        what = DERIVATIVES[statement.order]
        U = statement.potential
        function = self.functions[what]
        if statement.source == "given":
            return function
        if statement.source == "carried" and self.begun.get(what) is not None:
            carried = self.begun[what]
            return (
                carried if U is None else _alone({b.name: carried[self.program.places[g]] for b, g in statement.names})
            )
        if self.program.recipe.is_by_name and isinstance(function, Mapping):
            function = function.get(U.key)
        if not callable(function):
            where = f"{self.program.recipe.name}, step"
            raise RecipeError(where, f"the {what} is {function!r}, no function", do=f"Pass {what}=...")
        return function(self._target(segment, statement.blocks))


def _alone(values: dict) -> Any:
    """The values by block, or the value of the only block."""
    return values if len(values) > 1 else next(iter(values.values()))
