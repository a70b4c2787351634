"""A function of theta in the place of the coordinates: its values at draws and at states of chains."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import vmap

from recipe.errors import RecipeError, of_the_caller

FUNCTION = "Pass a function of theta of one draw, in torch, that returns a real tensor."


@dataclass(frozen=True)
class Functional:
    """A function of theta of one draw: a tensor, or a dict by name, as energies take it.

    `by_name`: whether theta is a dict where it has one name, too.

    >>> Functional(lambda theta: theta.sum(), "doctest").at({"theta": torch.ones(2, 3)})
    {'f': tensor([3., 3.])}
    """

    function: Callable
    where: str
    by_name: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise RecipeError(self.where, f"of is {self.function!r}", do=FUNCTION)

    @property
    def name(self) -> str:
        """The name of the function, f where it has none."""
        name = getattr(self.function, "__name__", "f")
        return name if name.isidentifier() else "f"

    @torch.no_grad()
    def at(self, theta: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Its values at theta of all chains, `(chains, ...)`, by its name."""
        position: Any = theta if self.by_name or len(theta) > 1 else next(iter(theta.values()))
        with of_the_caller(self.where, f"{self.name} fails, called with theta", FUNCTION, (torch.OutOfMemoryError,)):
            values = vmap(self.function)(position)
        if not torch.is_tensor(values) or not values.is_floating_point():
            got = values.dtype if torch.is_tensor(values) else f"a {type(values).__name__}"
            raise RecipeError(self.where, f"{self.name} returns {got}", do=FUNCTION)
        return {self.name: values}

    def along(self, draws: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Its values at draws, `(chains, draws, ...)`; refused where one is not finite."""
        number = next(iter(draws.values())).shape[1]
        each = [self.at({name: x[:, k] for name, x in draws.items()})[self.name] for k in range(number)]
        values = torch.stack(each, 1)
        if not values.isfinite().all():
            what = f"{self.name} is not finite at {int((~values.isfinite()).sum())} of {values.numel()} values"
            raise RecipeError(self.where, what, do="Pass a function that is finite where the chains go.")
        return {self.name: values}
