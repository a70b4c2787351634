"""Laws and constraints of each number of a tensor, without the axes that make several numbers one event."""

from typing import Any

from torch.distributions import Independent
from torch.distributions.constraints import independent


def of_each(law: Any) -> Any:
    """The law, or the constraint, of each number; one that is of single numbers unchanged.

    >>> import torch
    >>> of_each(Independent(torch.distributions.Normal(torch.zeros(3), 1.0), 1)).event_shape
    torch.Size([])
    >>> of_each(torch.distributions.constraints.real_vector)
    Real()
    """
    while isinstance(law, (Independent, independent)):
        law = law.base_dist if isinstance(law, Independent) else law.base_constraint
    return law
