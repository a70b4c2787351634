"""Fast checks of hundreds of tensors, by C++ compiled with torch's headers: Python checks one tensor at a time."""

import ctypes
import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import increment_version

from recipe.errors import RecipeError

from ..backends.template import template
from .addresses import starts
from .native import library

FEW = 8  # number of tensors up to which Python is as fast


@cache
def _functions() -> tuple[Any, Any] | None:
    """The C++ functions that find gradients and that mark tensors as written; None if compilation fails."""
    folder = Path(torch.__file__).parent
    flags = (f"-DTORCH={torch.__version__}", "-std=c++20", f"-I{folder / 'include'}", f"-L{folder / 'lib'}", "-lc10")
    try:
        compiled = library(template("tensors.cpp"), flags=flags)
    except RecipeError:
        return None
    number, address = ctypes.c_int64, ctypes.c_void_p
    find = ctypes.PYFUNCTYPE(ctypes.c_int, number, *[address] * 5)(("find", compiled))  # holds the GIL
    written = ctypes.PYFUNCTYPE(None, number, address)(("written", compiled))
    return find, written


class Walk:
    """Check that parameters have not moved or changed form, with gradients of the same form.

    `gradients`: addresses of the gradients at the last successful call; the caller must keep the gradients alive.
    """

    def __init__(self, params: Sequence[torch.Tensor], find: Callable[..., int]):
        self.params = list(params)
        self.like = [p.detach() for p in params]
        self.gradients = np.zeros(len(params), np.int64)
        self._find = find
        rows = map(_place, self.params), map(_field, self.params), map(_place, self.like), starts(params)
        self._arrays = np.array([list(row) for row in rows], np.int64)
        self._arguments = len(params), *(row.ctypes.data for row in self._arrays), self.gradients.ctypes.data

    def __call__(self, params: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same parameter objects, unmoved, with usable gradients."""
        is_same = len(params) == len(self.params) and all(map(operator.is_, params, self.params))
        return is_same and bool(self._find(*self._arguments))


def walk(params: Sequence[torch.Tensor]) -> Walk | None:
    """A Walk over parameters; None for few parameters, without a compiler, or for an unexpected object layout."""
    functions = _functions() if len(params) > FEW else None
    if functions is None or any(ctypes.c_int64.from_address(_field(p)).value != _place(p) for p in params):
        return None
    return Walk(params, functions[0])


def written(tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """A function that marks tensors as written for autograd, and keeps the tensors alive."""
    functions = _functions() if len(tensors) > FEW else None
    if functions is None:
        return partial(increment_version, tensors)
    places = np.array([_place(t) for t in tensors], np.int64)

    def tell(kept: object = (tensors, places), where: int = places.ctypes.data) -> None:
        functions[1](len(places), where)

    return tell


def _place(t: torch.Tensor) -> int:
    """The address of the C++ tensor of a Python object."""
    return t._cdata


def _field(t: torch.Tensor) -> int:
    """The address of the field with the C++ tensor in a Python object, behind the object header."""
    return id(t) + object.__basicsize__
