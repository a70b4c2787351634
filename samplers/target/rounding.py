"""The rounding of U, whose differences decide over proposals, swaps and weights."""

import torch

ROUNDED = 0.05  # times T: a larger rounding error of U changes the law


def rounding_of(U: torch.Tensor, dtype: torch.dtype, temperature: float) -> str:
    """The largest of the values U and its rounding in words, where this is more than a share of T; else empty.

    >>> rounding_of(torch.tensor([1e7]), torch.float32, 1.0)
    'U is 1e+07, and rounded to 1 in float32'
    """
    rounding = rounding_error(U, dtype)
    if rounding <= ROUNDED * temperature:
        return ""
    return f"U is {float(U.abs().max()):.3g}, and rounded to {rounding:.1g} in {str(dtype).removeprefix('torch.')}"


def rounding_error(U: torch.Tensor, dtype: torch.dtype) -> float:
    """The rounding error of the largest of the values U."""
    return float(U.abs().max()) * torch.finfo(dtype).eps
