"""A function of one chain applied to all: vectorised by torch, or one chain after another where torch cannot."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_map

from recipe.errors import RecipeError

BY_TORCH = ("vmap", "functorch", "numpy()", "in-place", "data pointer", "Batching rule")  # in what it says of such
IN_TURN = (  # of one chain it is fine
    "item()",
    "control flow",
    "dynamic shape",
    "inplace arithmetic",
    "data pointer",
    "Batching rule not implemented",
)
OF_STATES = (ValueError, ArithmeticError, RuntimeError, AssertionError)  # what a function may raise at some states
PASSED_ON = (RecipeError, NotImplementedError, torch.OutOfMemoryError)


class InTurn:
    """An energy of one chain that torch cannot vectorise, and that has been seen to be differentiable: as it is.

    >>> InTurn(lambda theta: theta**2)(3.0)
    9.0
    """

    def __init__(self, energy: Callable) -> None:
        self.energy = energy

    def __call__(self, theta: Any, *batch: Any) -> torch.Tensor:
        """U of one chain."""
        return self.energy(theta, *batch)


@dataclass(frozen=True)
class OfChains:
    """An energy of all chains at once, by functions that torch does not see into: only their gradient is known.

    `of_all(theta, *batch, per_chain, complaints, is_valued)` is U of all chains, `(chains,)`, for autograd: `per_chain`
    says whether a batch has the axis of chains, `is_valued` whether U is asked for, or its slope alone; `complaints`
    are as for OverChains. `has_value`: whether U is known at all, else it is nan.

    >>> squares = OfChains(lambda theta, **how: theta.square().sum(1))
    >>> squares(torch.tensor([3.0, 4.0]))
    tensor(25.)
    """

    of_all: Callable
    has_value: bool = True

    def __call__(self, theta: Any, *batch: Any) -> torch.Tensor:
        """U of one chain."""
        alone = {name: x[None] for name, x in theta.items()} if isinstance(theta, Mapping) else theta[None]
        return self.of_all(alone, *batch)[0]

    def seen_as(self, changed: Callable[[Callable], Callable]) -> "OfChains":
        """The same as an energy of other numbers, of which a function of all chains is `changed` into another."""
        return replace(self, of_all=changed(self.of_all))

    def asked(self, **how: Any) -> Callable:
        """The function of all chains that is asked so."""
        return partial(self.of_all, **how)

    def check_value(self, where: str, what: str) -> None:
        """Refuse an energy that has no value, for `what` needs one."""
        if not self.has_value:
            advice = "Pass the energy too, sample(recipe, U, gradient=g), or return (value, gradient)."
            raise RecipeError(where, f"{what}, and gradient= brings none", do=advice)


class OverChains:
    """`function(theta, *batch)` of one chain as a function of all, a tensor with the chains first.

    `axes`: that of the chains in theta, 0, and in a batch, None where it is the same for all. Where torch cannot
    vectorise the function, or `in_turn` says so, chains are taken in turn. Where `complaints` are collected, a chain at
    whose state the function raises, as torch.distributions do for a scale that has come to 0, has no number there: nan.
    They hold what it said, the first time of each kind.

    >>> def root(theta):
    ...     if theta < 0:
    ...         raise ValueError("a root of a negative number")
    ...     return theta.sqrt()
    >>> complaints = []
    >>> OverChains(root, (0,), complaints)(torch.tensor([4.0, -1.0])), complaints
    (tensor([2., nan]), ['ValueError: a root of a negative number'])
    """

    def __init__(
        self, function: Callable, axes: tuple, complaints: list[str] | None = None, *, in_turn: bool = False
    ) -> None:
        self.function = function
        self.axes = axes
        self.complaints = complaints
        self.at_once = None if in_turn else vmap(function, in_dims=axes)

    def __call__(self, theta: Any, *batch: Any) -> torch.Tensor:
        """The values of all chains, `(chains, ...)`."""
        chains = len(next(iter(theta.values())) if isinstance(theta, Mapping) else theta)
        if chains > 1 and self.at_once is not None:
            try:
                return self.at_once(theta, *batch)
            except OF_STATES as error:
                if isinstance(error, PASSED_ON) or (_is_of_torch(error) and not is_fine_in_turn(error)):
                    raise
        values = self._in_turn(theta, batch)
        if chains > 1 and all(value is not None for value in values):
            self.at_once = None  # it was torch that could not
        like = next((value for value in values if value is not None), None)
        numbers = [_not_a_number(of_chain(theta, i), like) if x is None else x for i, x in enumerate(values)]
        return tree_map(lambda *parts: torch.stack(parts), *numbers)

    def _in_turn(self, theta: Any, batch: tuple) -> list[torch.Tensor | None]:
        """The value of each chain, or None where the function raises at its state."""
        chains = by_chain(theta)
        has_own = bool(batch) and self.axes[-1] is not None
        batches = zip(*map(by_chain, batch)) if has_own else len(chains) * [batch]
        return [self._number(own, its) for own, its in zip(chains, batches)]

    def of_one(self, theta: Any, *batch: Any) -> torch.Tensor:
        """The value of one chain, without the axis of chains."""
        value = self._number(theta, batch)
        return _not_a_number(theta, None) if value is None else value

    def _number(self, theta: Any, batch: tuple) -> torch.Tensor | None:
        """The value of one chain, or None where the function raises there."""
        try:
            return self.function(theta, *batch)
        except OF_STATES as error:
            if self.complaints is None or isinstance(error, PASSED_ON) or _is_of_torch(error):
                raise
            complain(self.complaints, error)
            return None


def complain(complaints: list[str], error: Exception) -> None:
    """Keep what a function has raised at some state, the first time of each kind."""
    kind = f"{type(error).__name__}: "
    if not any(complaint.startswith(kind) for complaint in complaints):
        complaints.append(kind + _first_line(error))


def is_fine_in_turn(error: Exception) -> bool:
    """Whether what torch could not vectorise is something that one chain alone may do, as branch on a value."""
    return _is_of_torch(error) and any(word in str(error) for word in IN_TURN)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn what torch says of an energy that cannot be differentiated or vectorised into advice."""
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


def _is_of_torch(error: Exception) -> bool:
    """Whether torch speaks of what it cannot differentiate or vectorise."""
    return isinstance(error, RuntimeError) and any(word in _first_line(error) for word in BY_TORCH)


def _mixes_numpy(error: Exception) -> bool:
    """Whether an array of numpy has met a tensor."""
    return isinstance(error, TypeError) and all(kind in _first_line(error) for kind in ("numpy.ndarray", "Tensor"))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def by_chain(x: Any) -> list:
    """What each chain has of a tensor, or of several; one gradient for all of them comes back.

    >>> by_chain({"a": torch.arange(2), "b": torch.ones(2, 3)})
    [{'a': tensor(0), 'b': tensor([1., 1., 1.])}, {'a': tensor(1), 'b': tensor([1., 1., 1.])}]
    """
    if isinstance(x, Mapping):
        return [dict(zip(x, parts)) for parts in zip(*(part.unbind(0) for part in x.values()))]
    return list(x.unbind(0) if torch.is_tensor(x) else zip(*(part.unbind(0) for part in x)))


def of_chain(x: Any, i: int) -> Any:
    """What chain i has of a tensor, or of several.

    >>> of_chain((torch.arange(3), torch.ones(3, 2)), 1)
    (tensor(1), tensor([1., 1.]))
    """
    if isinstance(x, Mapping):
        return {name: part.select(0, i) for name, part in x.items()}
    return x.select(0, i) if torch.is_tensor(x) else tuple(part.select(0, i) for part in x)


def _not_a_number(theta: Any, like: torch.Tensor | None) -> torch.Tensor:
    """Nan, whose derivatives by theta are nan, of the shape of another value."""
    blocks = list(theta.values()) if isinstance(theta, Mapping) else [theta]
    number = torch.stack([x.sum() for x in blocks]).sum() * torch.nan
    return number if like is None else number.expand(like.shape).to(like.dtype)
