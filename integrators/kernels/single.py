"""Kernels of one call: a step as a pure function of its state, each block one tensor."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from recipe.errors import RecipeError

from ..noise import Key
from ..passes import Plan, Segment
from ..program import DERIVATIVES, Gradient, Observe, Program
from .addresses import check_graph, plain
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
    entries = program.recipe.entries
    _check_graphs(program, parameters)
    before = {b.name: _readable(program, f"state[{b.name!r}]", state[b.name]) for b in entries}
    # the id of a Program is not reused while a kernel of it is in the pool: the kernel keeps the Program alive
    key = (id(program), backend, threading.get_ident(), *((x.dtype, x.device, x.shape) for x in before.values()))
    pool = pool or _pool
    kernel = pool.take(key, lambda: Sweep(program, _in_parts(program, before), backend))
    after = {b.name: torch.empty_like(before[b.name]) if b in kernel.plan.written else before[b.name] for b in entries}
    functions = {"gradient": gradient, "curvature": curvature, "value": value}
    carried = {name: state[name] for name in functions if name in state}
    caller = _Caller(program, kernel.plan, before, after, functions, observe or {}, carried)
    kernel.bind(_in_parts(program, before), _in_parts(program, after))
    kernel(h, caller.supply, noise=noise, **parameters)
    pool.put_back(key, kernel)
    return after | {DERIVATIVES[order]: caller.carried(order) for order in program.carries}


@dataclass
class _Caller:
    """Values that the caller supplies in a step; `latest`: latest derivatives of U, `begun`: those carried in."""

    program: Program
    plan: Plan
    before: dict
    after: dict
    functions: Mapping[str, Any]
    observe: Mapping
    begun: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.latest = dict(self.begun)

    def supply(self, segment: Segment) -> list:
        """The values supplied before a segment, at the present target; lists of parts for values per site."""
        match segment.before:
            case Observe(name, observed):
                value = self.observe[observed.name](self._target(segment))
                return [[value] if name.is_vector else value]
            case Gradient(names, source, order):
                value = self._derivative(segment, source, segment.before)
                if order in self.program.reset_orders:  # else the step may overwrite the caller's tensor
                    value = _copied(value)
                parts = self._by_block(names, value)
                if self.program.recipe.has_several_potentials:
                    places = [self.program.places[g] for _, g in names]
                    own = {place: part[0] if isinstance(part, list) else part for place, part in zip(places, parts)}
                    value = self.latest.get(DERIVATIVES[order], {}) | own
                self.latest[DERIVATIVES[order]] = value
                return parts
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
        return at if len(at) > 1 else next(iter(at.values()))

    def _derivative(self, segment, source, statement):
        what = DERIVATIVES[statement.order]
        U = statement.potential
        if source == "given":
            return self.functions[what]
        if source == "carried" and self.begun.get(what) is not None:
            if U is None:
                return self.begun[what]
            own = {b.name: self.begun[what][self.program.places[g]] for b, g in statement.names}
            return own if len(own) > 1 else next(iter(own.values()))
        function = self.functions[what]
        if self.program.recipe.is_by_name and isinstance(function, Mapping):
            function = function.get(U.key)
        if not callable(function):
            where = f"{self.program.recipe.name}, step"
            raise RecipeError(where, f"the {what} is {function!r}, no function", do=f"Pass {what}=...")
        return function(self._target(segment, statement.blocks))

    def _by_block(self, names, value):
        values = [value[b.name] for b, _ in names] if isinstance(value, dict) else [value]
        if not all(map(torch.is_tensor, values)):
            raise RecipeError(
                f"{self.program.recipe.name}, gradient",
                f"it is {type(value).__name__}",
                do="It is a function of theta, to a tensor of its shape, or a dict by block.",
            )
        return [[v] if g.is_vector else v for v, (_, g) in zip(values, names)]


def _copied(value):
    """A copy of a derivative."""
    return {name: x.clone() for name, x in value.items()} if isinstance(value, Mapping) else value.clone()


def _readable(program, what, t):
    """The values of the caller's tensor, contiguous in memory."""
    where = f"{program.recipe.name}, {what}"
    check_graph(where, t)
    return plain(where, t)


def _check_graphs(program, parameters):
    for name, value in parameters.items():
        if torch.is_tensor(value):
            check_graph(f"{program.recipe.name}, parameter '{name}'", value)


def _in_parts(program, state):
    """A state of one tensor per block in the form of a Sweep: vector blocks as lists of one part."""
    return {b.name: [state[b.name]] if b.is_vector else state[b.name] for b in program.recipe.entries}
