"""Laws and constraints of each number of a tensor, without the axes that make several numbers one event."""

from typing import Any

from torch.distributions import Independent
from torch.distributions.constraints import independent


def law_of_each(law: Any) -> Any:
    """The law of each number, of a law that is `Independent`; any other law unchanged.

    >>> import torch
    >>> law_of_each(Independent(torch.distributions.Normal(torch.zeros(3), 1.0), 1)).event_shape
    torch.Size([])
    """
    while isinstance(law, Independent):
        law = law.base_dist
    return law


def constraint_of_each(constraint: Any) -> Any:
    """The constraint of each number, of a constraint that is `independent`; any other constraint unchanged.

    >>> import torch
    >>> constraint_of_each(torch.distributions.constraints.real_vector)
    Real()
    """
    while isinstance(constraint, independent):
        constraint = constraint.base_constraint
    return constraint
