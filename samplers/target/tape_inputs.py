"""Inputs of a tape: whether what a function of Python reads beside its arguments is what it was."""

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import sympy as sp
import torch

from integrators.kernels.addresses import starts
from recipe.neighbours import PACKAGES

OBJECTS = 5000  # of a watch, at most: they are compared at each call
BYTES = 2**14  # of arrays of numpy, at most
CONSTANT = (bool, int, float, complex, str, bytes, CodeType, ModuleType, sp.Basic)
INSTALLED = {"site-packages", "dist-packages"}  # folders of libraries
EMPTY = (dict, OrderedDict, set)  # of hooks of torch's modules, a dozen each
Read = Callable[[], Iterable[Any]]


class Watch:
    """The objects that a function reaches by its closure, by globals that it names, by attributes and by items.

    Tensors may be changed in place: another tensor, or other memory of the same one, is a change. Libraries are taken
    to stay as they are. `refusal`: the reason why a function cannot be watched, empty if it can.

    >>> scales = [2.0]
    >>> watch = Watch(partial(lambda scales, x: x * scales[0], scales))
    >>> watch.change
    ''
    >>> scales[0] = 3.0
    >>> watch.change
    'list'
    """

    def __init__(self, function: Callable) -> None:
        self.places: list[tuple[Any, Read, list[Any], list[int]]] = []
        self.arrays: list[np.ndarray] = []
        self.tensors: list[torch.Tensor] = []
        self.refusal = ""
        reached: dict[int, Any] = {}
        stack: list[Any] = [function]
        while stack:
            one = stack.pop()
            if isinstance(one, CONSTANT) or id(one) in reached:
                continue
            reached[id(one)] = one
            if isinstance(one, torch.Tensor) and one.layout is torch.strided:
                self.tensors.append(one)
            elif isinstance(one, np.ndarray):
                self.arrays.append(one)
            stack += _fixed(one)
            for reader in _reads(one):
                objects = list(reader())
                self.places.append((one, reader, objects, [*map(id, objects)]))
                stack += objects
            if len(stack) + len(reached) > OBJECTS:
                self.refusal = f"it reaches more than {OBJECTS} objects of Python"
                return
        if sum(array.nbytes for array in self.arrays) > BYTES:
            self.refusal = f"it reads arrays of numpy of more than {BYTES} bytes, which may change unseen"
        self.numbers, self.memory = self._numbers(), self._memory()

    @property
    def change(self) -> str:
        """The type of an object that holds others than at the start, or is another array; empty if there is none."""
        for one, reader, objects, ids in self.places:
            try:
                is_changed = [*map(id, reader())] != ids and not _are_equal([*reader()], objects)
            except Exception:  # raised by a variable that is gone, or a container that another thread changes
                is_changed = True
            if is_changed:
                return type(one).__name__
        if self._memory() != self.memory:
            return "Tensor"
        return "ndarray" if self._numbers() != self.numbers else ""

    def _memory(self) -> list[Any]:
        """Where tensors are, and their shapes."""
        return [*starts(self.tensors), *(one.shape for one in self.tensors)]

    def _numbers(self) -> list[Any]:
        """The numbers of arrays."""
        return [(one.shape, one.tobytes()) for one in self.arrays]


def _are_equal(one: list[Any], other: list[Any]) -> bool:
    """Whether objects are the same ones, or equal constants."""
    return len(one) == len(other) and all(
        x is y or (type(x) is type(y) and isinstance(x, CONSTANT) and x == y) for x, y in zip(one, other)
    )


def _fixed(one: Any) -> Iterable[Any]:
    """The objects of which an object is made for good."""
    if isinstance(one, (tuple, frozenset)):
        yield from one
    elif isinstance(one, MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, BuiltinMethodType):
        yield one.__self__
    elif isinstance(one, partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, property):
        yield one.fget
    elif isinstance(one, (classmethod, staticmethod)):
        yield one.__func__
    elif isinstance(one, type):
        yield from () if _is_library(one.__module__) else one.__bases__
    elif not _is_library(type(one).__module__):
        yield type(one)


def _reads(one: Any) -> Iterator[Read]:
    """Functions that list what an object holds and may exchange: its items, attributes and variables."""
    if isinstance(one, FunctionType):
        yield from _variables(one)
    elif isinstance(one, (dict, MappingProxyType)):
        yield one.values
    elif isinstance(one, (list, set, deque)):
        yield one.__iter__
    if isinstance(one, torch.Tensor) or isinstance(one, type) and _is_library(one.__module__):
        return
    if isinstance(one, torch.nn.Module):
        yield lambda: [x for x in vars(one).values() if type(x) not in EMPTY or x]
    elif hasattr(one, "__dict__") and (vars(one) or not _is_library(type(one).__module__)):
        yield vars(one).values
    if not isinstance(one, type):
        kinds = [kind for kind in type(one).__mro__ if not _is_library(kind.__module__)]
        slots = [slot for kind in kinds for slot in vars(kind).values() if isinstance(slot, MemberDescriptorType)]
        if slots:
            yield lambda: [_content(slot, one) for slot in slots]


def _content(slot: MemberDescriptorType, one: Any) -> Any:
    """Returns the content of a slot, None where the slot is empty."""
    try:
        return slot.__get__(one)
    except AttributeError:
        return None


def _variables(function: FunctionType) -> Iterator[Read]:
    """Lists of the variables that a function reads: those of its closure, defaults, and globals that it names."""
    cells = [cell for cell in function.__closure__ or () if not _is_empty(cell)]
    if cells:
        yield lambda: [cell.cell_contents for cell in cells]
    if function.__defaults__ or function.__kwdefaults__:
        yield lambda: (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    spaces = [function.__globals__]
    named = _names(function.__code__)
    for space in spaces if not _is_library(function.__module__) else ():
        names = [name for name in named if name in space]
        modules = [space[name] for name in names if isinstance(space[name], ModuleType)]
        spaces += [vars(m) for m in modules if not _is_library(m.__name__) and all(vars(m) is not s for s in spaces)]
        if names:
            yield partial(map, space.get, names)


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return True
    return False


def _names(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function, and in the functions inside of it."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


@cache
def _is_library(module: str | None) -> bool:
    """Whether a module is of Python, an installed package or our own."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__" or top in PACKAGES:
        return True
    package = sys.modules.get(top)
    file = getattr(package, "__file__", None) or next(iter(getattr(package, "__path__", ())), "")
    return not INSTALLED.isdisjoint(Path(file).parts)
