"""A check that tensors fit into memory, before their allocation."""

import math
import os
from collections.abc import Sequence

import torch

from recipe.errors import RecipeError

GIB = 2**30


def check_fits(where: str, what: str, shape: Sequence[int], like: torch.Tensor, *, do: str) -> None:
    """Refuse a tensor of `shape`, of the type of `like`, that exceeds the memory of the device of `like`.

    >>> check_fits("sgld, sample", "the draws of theta", (10**12, 3), torch.zeros(1), do="Keep fewer.")
    Traceback (most recent call last):
    recipe.errors.RecipeError: sgld, sample: the draws of theta, 1000000000000 x 3 numbers, take 11,176 GiB, ...
    """
    size = math.prod(shape) * like.element_size()
    memory = _memory(like.device)
    if size > memory:
        numbers = " x ".join(map(str, shape))
        what = f"{what}, {numbers} numbers, take {size / GIB:,.0f} GiB, and {like.device} has {memory / GIB:,.0f} GiB"
        raise RecipeError(where, what, do=do)


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf
