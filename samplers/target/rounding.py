"""The rounding of U, whose differences decide over proposals, swaps and weights."""

import torch

ROUNDED = 0.05  # times T: a larger rounding error of U changes the law


def rounding_of(U: torch.Tensor, dtype: torch.dtype, temperature: float) -> str:
    """The largest of the values U and its rounding in words, where this is more than a share of T; else empty.

    >>> rounding_of(torch.tensor([1e7]), torch.float32, 1.0)
    'U is 1e+07, and rounded to 1 in float32'
    """
    largest = float(U.abs().max())
    rounding = largest * torch.finfo(dtype).eps
    if rounding <= ROUNDED * temperature:
        return ""
    return f"U is {largest:.3g}, and rounded to {rounding:.1g} in {str(dtype).removeprefix('torch.')}"
