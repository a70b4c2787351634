"""Means over all data in chunks of rows, and a check that a loss is a mean."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from recipe.errors import RecipeError

PROBED = 64  # rows on which a loss is checked, at most
APART = 0.01  # relative difference of unequal values, beyond rounding and mixed precision


def chunks(take: Callable[[torch.Tensor], Any], rows: int, size: int) -> Iterator[tuple[float, Any]]:
    """Yields (share of all rows, batch) for all data, `size` rows at a time; `take(rows)` makes a batch.

    >>> list(chunks(torch.arange(4.0).take, 4, 3))
    [(0.75, tensor([0., 1., 2.])), (0.25, tensor([3.]))]
    """
    for index in torch.arange(rows, device="cpu").split(size):
        yield len(index) / rows, take(index)


def check_mean(
    where: str, value: Callable[[Any], Any], take: Callable[[torch.Tensor], Any], rows: int, size: int, *, wanted: str
) -> None:
    """Refuse a function that is not affine in a mean over the batch: two halves must average to the whole.

    `value(batch)`: the function; `take(rows)` makes a batch of at most `size` rows out of `rows`; `wanted`: the right
    result, named in the RecipeError.

    >>> check_mean("doctest", torch.sum, torch.arange(4.0).take, 4, 4, wanted="the mean")
    Traceback (most recent call last):
    recipe.errors.RecipeError: doctest: on 4 rows it is 6, on the halves of them 1 and 5. Return the mean, nothing \
that couples rows or is random.
    """
    index = torch.arange(min(rows, size, PROBED), device="cpu")
    if len(index) < 2:
        return
    whole = float(value(take(index)))
    halves = [(len(half) / len(index), float(value(take(half)))) for half in index.tensor_split(2)]
    mean = sum(share * x for share, x in halves)
    (_, first), (_, second) = halves
    if abs(whole - mean) > APART * max(abs(whole), abs(first), abs(second)):
        what = f"on {len(index)} rows it is {whole:.6g}, on the halves of them {first:.6g} and {second:.6g}"
        raise RecipeError(where, what, do=f"Return {wanted}, nothing that couples rows or is random.")
