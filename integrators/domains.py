"""The domains of blocks, as questions that tensors answer entry by entry."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from recipe.symbols import Block

if TYPE_CHECKING:  # tensors answer by their own operators
    from torch import Tensor

CONDITIONS: dict[str, Callable[["Tensor"], "Tensor"]] = {
    "real": lambda x: x.isfinite(),
    "positive": lambda x: x > 0,
    "nonnegative": lambda x: x >= 0,
    "fraction": lambda x: (x >= 0) & (x <= 1),
    "binary": lambda x: (x == 0) | (x == 1),
}


def is_bounded(block: Block) -> bool:
    """Whether a block may not take every real value.

    >>> from recipe import vector
    >>> is_bounded(vector("p")), is_bounded(vector("v", domain="positive"))
    (False, True)
    """
    return block.domain != "real"


def in_domain(block: Block, x: "Tensor") -> "Tensor":
    """Entry by entry, whether values are in the domain of their block; those of a real block are if they are finite.

    >>> import torch
    >>> from recipe import vector
    >>> in_domain(vector("v", domain="positive"), torch.tensor([0.0, 2.0]))
    tensor([False,  True])
    """
    return CONDITIONS[block.domain](x)
