"""A function of one chain applied to all: vectorised by torch, or one chain after another where torch cannot."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_map

from recipe.errors import RecipeError

BY_TORCH = ("vmap", "functorch", "numpy()", "in-place", "data pointer", "Batching rule")  # in torch's messages
IN_TURN = (  # allowed to one chain alone
    "item()",
    "control flow",
    "dynamic shape",
    "inplace arithmetic",
    "data pointer",
    "Batching rule not implemented",
)
OF_STATES = (ValueError, ArithmeticError, RuntimeError, AssertionError)  # raised by a function at some states
PASSED_ON = (RecipeError, NotImplementedError, torch.OutOfMemoryError)


class Vectorised:
    """`function(theta, *batch)` of one chain as a function of all, a tensor with the chains first.

    Chains are taken in turn where torch cannot vectorise the function, or `in_turn` says so. Where `faults` are
    collected, a chain at whose state the function raises an error, as torch.distributions do for a scale of 0, has nan
    there; the faults hold the first message of each kind of error.

    >>> def root(theta):
    ...     if theta < 0:
    ...         raise ValueError("a root of a negative number")
    ...     return theta.sqrt()
    >>> faults = []
    >>> Vectorised(root)(torch.tensor([4.0, -1.0]), faults=faults), faults
    (tensor([2., nan]), ['ValueError: a root of a negative number'])
    """

    def __init__(self, function: Callable, *, in_turn: bool = False) -> None:
        self.function = function
        self.in_turn = in_turn

    def __call__(
        self, theta: Any, *batch: Any, per_chain: bool = False, faults: list[str] | None = None
    ) -> torch.Tensor:
        """The values of all chains, `(chains, ...)`; `per_chain`: whether the batch has an axis of chains."""
        chains = len(next(iter(theta.values())) if isinstance(theta, Mapping) else theta)
        if chains > 1 and not self.in_turn:
            try:
                return vmap(self.function, in_dims=axes(batch, per_chain))(theta, *batch)
            except OF_STATES as error:
                if isinstance(error, PASSED_ON) or (_is_of_torch(error) and not is_fine_in_turn(error)):
                    raise
        batches = zip(*map(by_chain, batch)) if batch and per_chain else chains * [batch]
        values = [self._number(own, its, faults) for own, its in zip(by_chain(theta), batches)]
        if chains > 1 and all(value is not None for value in values):
            self.in_turn = True  # the error was of torch
        like = next((value for value in values if value is not None), None)
        numbers = [_not_a_number(of_chain(theta, i), like) if x is None else x for i, x in enumerate(values)]
        return tree_map(lambda *parts: torch.stack(parts), *numbers)

    def of_one(self, theta: Any, *batch: Any, faults: list[str] | None = None) -> torch.Tensor:
        """The value of one chain, without the axis of chains."""
        value = self._number(theta, batch, faults)
        return _not_a_number(theta, None) if value is None else value

    def _number(self, theta: Any, batch: tuple, faults: list[str] | None) -> torch.Tensor | None:
        """The value of one chain, or None where the function raises an error there."""
        try:
            return self.function(theta, *batch)
        except OF_STATES as error:
            if faults is None or isinstance(error, PASSED_ON) or _is_of_torch(error):
                raise
            note(faults, error)
            return None


def axes(batch: tuple, per_chain: bool) -> tuple:
    """The axis of chains in theta, and in each part of a batch, None for one batch of all chains."""
    return 0, *(0 if per_chain else None for _ in batch)


def note(faults: list[str], error: Exception) -> None:
    """Add an error of a function at some state to the faults, the first of each kind."""
    kind = f"{type(error).__name__}: "
    if not any(fault.startswith(kind) for fault in faults):
        faults.append(kind + _first_line(error))


def is_fine_in_turn(error: Exception) -> bool:
    """Whether an error of torch's vectorising is of something allowed to one chain alone, as a branch on a value."""
    return _is_of_torch(error) and any(word in str(error) for word in IN_TURN)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turns an error of torch, at an energy without derivatives or without a vectorised form, into advice."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        if not _is_of_torch(error) and not _mixes_numpy(error):
            raise
        raise RecipeError(
            where,
            f"it cannot be differentiated for many chains at once ({_first_line(error)})",
            do="Avoid .item(), numpy, random numbers and in-place changes inside the energy, and write "
            "branches on values with torch.where; an energy of numpy takes gradient= beside it.",
        ) from error


def by_chain(x: Any) -> list:
    """The parts of each chain, of a tensor or of several.

    >>> by_chain({"a": torch.arange(2), "b": torch.ones(2, 3)})
    [{'a': tensor(0), 'b': tensor([1., 1., 1.])}, {'a': tensor(1), 'b': tensor([1., 1., 1.])}]
    """
    if isinstance(x, Mapping):  # by unbind, whose one gradient is of all parts
        return [dict(zip(x, parts)) for parts in zip(*(part.unbind(0) for part in x.values()))]
    return list(x.unbind(0) if torch.is_tensor(x) else zip(*(part.unbind(0) for part in x)))


def of_chain(x: Any, i: int) -> Any:
    """The part of chain i, of a tensor or of several.

    >>> of_chain((torch.arange(3), torch.ones(3, 2)), 1)
    (tensor(1), tensor([1., 1.]))
    """
    if isinstance(x, Mapping):
        return {name: part.select(0, i) for name, part in x.items()}
    return x.select(0, i) if torch.is_tensor(x) else tuple(part.select(0, i) for part in x)


def _is_of_torch(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and any(word in _first_line(error) for word in BY_TORCH)


def _mixes_numpy(error: Exception) -> bool:
    return isinstance(error, TypeError) and all(kind in _first_line(error) for kind in ("numpy.ndarray", "Tensor"))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _not_a_number(theta: Any, like: torch.Tensor | None) -> torch.Tensor:
    """Nan, whose derivatives by theta are nan, of the shape of another value."""
    blocks = list(theta.values()) if isinstance(theta, Mapping) else [theta]
    number = torch.stack([x.sum() for x in blocks]).sum() * torch.nan
    return number if like is None else number.expand(like.shape).to(like.dtype)
