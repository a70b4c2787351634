"""Domains of blocks as elementwise conditions on tensors."""

import operator
from typing import TYPE_CHECKING

from recipe.symbols import Block

if TYPE_CHECKING:  # in_domain uses the operators of tensors only
    from torch import Tensor

COMPARED = {">": operator.gt, ">=": operator.ge, "<=": operator.le}


def bounds(block: Block) -> list[tuple[str, float]]:
    """The inequalities of a domain, each as a comparison and an end; none for categories.

    >>> from recipe import vector
    >>> bounds(vector("v", domain="positive")), bounds(vector("x", domain=(1, 2)))
    ([('>', 0.0)], [('>=', 1.0), ('<=', 2.0)])
    """
    if block.domain.is_discrete:
        return []
    low, high = block.domain.low, block.domain.high
    above = [(">" if block.domain.name == "positive" else ">=", float(low))] if low.is_finite else []
    return above + ([("<=", float(high))] if high.is_finite else [])


def in_domain(block: Block, x: "Tensor") -> "Tensor":
    """Elementwise, whether values are in the domain of a block; for a real block, whether they are finite.

    >>> import torch
    >>> from recipe import vector
    >>> in_domain(vector("v", domain="positive"), torch.tensor([0.0, 2.0]))
    tensor([False,  True])
    """
    if block.domain.is_discrete:
        return (x >= 0) & (x < block.domain.categories) & (x == x.round())
    inside = x.isfinite() if block.domain.is_real else x == x
    for sign, end in bounds(block):
        inside &= COMPARED[sign](x, end)
    return inside
