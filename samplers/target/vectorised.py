"""Functions of one chain applied to all chains, by vmap, or one chain after another where vmap fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from recipe.errors import RecipeError, first_line, in_short

BY_TORCH = ("vmap", "functorch", "numpy()", "in-place", "data pointer", "Batching rule")  # words of torch's errors
IN_TURN = (  # words of errors that do not occur for one chain alone
    "item()",
    "control flow",
    "dynamic shape",
    "inplace arithmetic",
    "data pointer",
    "Batching rule not implemented",
)
OF_STATES = (ValueError, ArithmeticError, RuntimeError, AssertionError)  # raised by a function at some states
PASSED_ON = (RecipeError, NotImplementedError, torch.OutOfMemoryError)


def takes(function: Callable, number: int) -> bool | None:
    """Whether a function may be called with so many arguments; None for one without a signature."""
    try:
        signature(function).bind(*range(number))
    except TypeError:
        return False
    except ValueError:
        return None
    return True


class Vectorised:
    """`function(theta, *batch)` of one chain as a function of all chains, with the axis of chains first.

    Chains are evaluated in turn where torch cannot vectorise the function, or if `in_turn`. If `faults` is a list, the
    value of a chain is nan where the function raises an error, as torch.distributions do for a scale of 0; the list
    gets the first message of each kind of error.

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
        chains = len(tree_leaves(theta)[0])
        if chains > 1 and not self.in_turn:
            try:
                return vmap(self.function, in_dims=axes(batch, per_chain))(theta, *batch)
            except OF_STATES as error:
                if isinstance(error, PASSED_ON) or (_is_of_torch(error) and not is_fine_in_turn(error)):
                    raise
        batches = zip(*map(by_chain, batch)) if batch and per_chain else chains * [batch]
        values = [self._number(point, rows, faults) for point, rows in zip(by_chain(theta), batches)]
        known = [value for value in values if value is not None]
        if chains > 1 and len(known) == chains:
            self.in_turn = True  # the error was vmap's
        like = known[0] if known else None
        numbers = [_not_a_number(of_chain(theta, i), like) if x is None else x for i, x in enumerate(values)]
        return tree_map(lambda *parts: torch.stack(parts), *numbers)

    def of_one(self, theta: Any, *batch: Any, faults: list[str] | None = None) -> torch.Tensor:
        """The value of one chain; `theta` and `batch` have no axis of chains."""
        value = self._number(theta, batch, faults)
        return _not_a_number(theta, None) if value is None else value

    def _number(self, theta: Any, batch: tuple, faults: list[str] | None) -> torch.Tensor | None:
        """The value of one chain; None where the function raises an error that `faults` take."""
        try:
            return self.function(theta, *batch)
        except OF_STATES as error:
            if faults is None or isinstance(error, PASSED_ON) or _is_of_torch(error):
                raise
            note(faults, error)
            return None


def axes(batch: tuple, per_chain: bool) -> tuple:
    """The `in_dims` of vmap for theta and each part of a batch: 0, or None for a batch shared by all chains."""
    return 0, *(0 if per_chain else None for _ in batch)


def note(faults: list[str], error: Exception) -> None:
    """Add the message of an error to the faults, unless one of its type is there."""
    if not any(fault.startswith(f"{type(error).__name__}: ") for fault in faults):
        faults.append(in_short(error))


def is_fine_in_turn(error: Exception) -> bool:
    """Whether an error is vmap's and does not occur for one chain alone, as that of a branch on a value."""
    return _is_of_torch(error) and any(word in str(error) for word in IN_TURN)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turns errors of torch at an energy that cannot be differentiated or vectorised into a RecipeError."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        line = first_line(error)
        mixes_numpy = isinstance(error, TypeError) and "numpy.ndarray" in line and "Tensor" in line
        if not _is_of_torch(error) and not mixes_numpy:
            raise
        raise RecipeError(
            where,
            f"it cannot be differentiated for many chains at once ({line})",
            do="Avoid .item(), numpy, random numbers and in-place changes inside the energy, and write "
            "branches on values with torch.where; an energy of numpy takes gradient= beside it.",
        ) from error


def by_chain(x: Any) -> list:
    """A list with the part of each chain, of a tensor, a tuple or a dict of tensors.

    >>> by_chain({"a": torch.arange(2), "b": torch.ones(2, 3)})
    [{'a': tensor(0), 'b': tensor([1., 1., 1.])}, {'a': tensor(1), 'b': tensor([1., 1., 1.])}]
    """
    leaves, form = tree_flatten(x)
    return [tree_unflatten(parts, form) for parts in zip(*(leaf.unbind(0) for leaf in leaves))]  # one backward for all


def of_chain(x: Any, i: int) -> Any:
    """The part of chain i, of a tensor, a tuple or a dict of tensors.

    >>> of_chain((torch.arange(3), torch.ones(3, 2)), 1)
    (tensor(1), tensor([1., 1.]))
    """
    return tree_map(lambda part: part.select(0, i), x)


def _is_of_torch(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and any(word in first_line(error) for word in BY_TORCH)


def _not_a_number(theta: Any, like: torch.Tensor | None) -> torch.Tensor:
    """Nan with nan derivatives by theta, in the shape and dtype of `like`."""
    number = torch.stack([x.sum() for x in tree_leaves(theta)]).sum() * torch.nan
    return number if like is None else number.expand(like.shape).to(like.dtype)
