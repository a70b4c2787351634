"""Parameters of several members of an ensemble, stacked: each member is a chain of its own."""

from collections.abc import Sequence
from typing import Any

import torch

from integrators.streams import GROUP
from recipe.arguments import integer
from recipe.errors import RecipeError


class Stacked(torch.nn.Parameter):
    """A parameter of several members, `(members, *shape)`; `first` is the number of the first member.

    To `Optimizer` each member is a chain, with noise, totals, thermostats and temperatures of its own.

    >>> members_of([Stacked(torch.zeros(4, 3), first=8)])
    range(8, 12)
    """

    first: int

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True, first: int = 0) -> "Stacked":
        """Makes a parameter with the number of its first member."""
        parameter = super().__new__(cls, data, requires_grad)
        parameter.first = first
        return parameter

    def __deepcopy__(self, memo: dict[int, Any]) -> "Stacked":
        if id(self) not in memo:
            data = self.data.clone(memory_format=torch.preserve_format)
            memo[id(self)] = type(self)(data, self.requires_grad, self.first)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return type(self), (self.data, self.requires_grad, self.first)


def numbers_of(where: str, members: Any) -> range:
    """The numbers of members as a range, 0, 1, ... for an integer; RecipeError for anything else."""
    if not isinstance(members, range):
        return range(integer(where, "members", members, least=1, most=GROUP))
    if not members or members.step != 1 or members.start < 0 or members.stop > GROUP:
        raise RecipeError(where, f"members = {members}", do="Pass a range of numbers from 0 on, one after another.")
    return members


def members_of(params: Sequence[torch.Tensor]) -> range | None:
    """The numbers of the members whose parameters a group holds; None for parameters that are not stacked."""
    first = params[0] if params else None
    return range(first.first, first.first + len(first)) if isinstance(first, Stacked) else None


def chains_of(params: Sequence[torch.Tensor]) -> range:
    """The numbers of the chains of a group: those of its members, or 0."""
    return members_of(params) or range(1)


def count(params: Sequence[torch.Tensor]) -> int:
    """The number of chains of a group: its members, or 1."""
    return len(chains_of(params))


def labels(index: int, params: Sequence[torch.Tensor]) -> list[str]:
    """The name of each chain of group `index`.

    >>> labels(0, [torch.zeros(3)]), labels(1, [Stacked(torch.zeros(2, 3))])
    (['group 0'], ['group 1, member 0', 'group 1, member 1'])
    """
    members = members_of(params)
    return [f"group {index}"] if members is None else [f"group {index}, member {k}" for k in members]
