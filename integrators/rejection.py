"""Gamma and Poisson numbers from uniform numbers, by rejection, each from attempts of its own."""

import math
from collections.abc import Callable

import torch

# Four uniform numbers of an attempt for each of those numbers, by their indices (N,), that are still to be drawn
Uniforms = Callable[[torch.Tensor, int], tuple[torch.Tensor, ...]]
ATTEMPTS = 100  # more than any number takes: the probability of a refusal is below 1/4


def gamma_numbers(shape: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    """d v of the first accepted v = (1 + x/sqrt(9 d))^3, x normal, d = a - 1/3; below a = 1 of a + 1, times u^(1/a)."""
    numbers = torch.full_like(shape, math.nan).masked_fill(shape == 0, 0.0)
    rest = torch.arange(len(shape), device=shape.device)[(shape > 0) & shape.isfinite()]
    power = torch.ones_like(shape)
    for attempt in range(ATTEMPTS):
        if not len(rest):
            break
        u0, u1, u2, u3 = uniforms(rest, attempt)
        a = shape[rest]
        if attempt == 0:
            power[rest] = torch.where(a < 1, u3 ** (1 / a), 1.0)
        d = torch.where(a < 1, a + 1, a) - 1 / 3
        x = (-2 * u0.log()).sqrt() * (2 * math.pi * u1).cos()
        v = (1 + x / (9 * d).sqrt()) ** 3
        accepted = (v > 0) & (u2.log() < x**2 / 2 + d - d * v + d * v.clamp(min=1e-300).log())
        numbers[rest[accepted]] = (d * v)[accepted]
        rest = rest[~accepted]
    return numbers * power


def poisson_numbers(rate: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    """Inverted distribution function below a rate of 10, else the first accepted candidate of Hormann's PTRS."""
    numbers = torch.full_like(rate, math.nan)
    index = torch.arange(len(rate), device=rate.device)
    small = index[(rate >= 0) & (rate < 10)]
    if len(small):
        u0, u1, *_ = uniforms(small, 0)
        numbers[small] = _inverted(rate[small], u0 + (u1 - 0.5) * 2**-32)
    rest = index[(rate >= 10) & rate.isfinite()]
    for attempt in range(ATTEMPTS):
        if not len(rest):
            break
        u, v, *_ = uniforms(rest, attempt)
        mean = rate[rest]
        b = 0.931 + 2.53 * mean.sqrt()
        a = -0.059 + 0.02483 * b
        u = u - 0.5
        from_end = 0.5 - u.abs()
        k = ((2 * a / from_end + b) * u + mean + 0.43).floor()
        height = (v * (1.1239 + 1.1328 / (b - 3.4)) / (a / from_end**2 + b)).log()
        inside = (k >= 0) & ((from_end >= 0.013) | (v <= from_end))
        is_below = height <= k * mean.log() - mean - torch.lgamma(k.clamp(min=0) + 1)
        accepted = (from_end >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2)) | inside & is_below
        numbers[rest[accepted]] = k[accepted]
        rest = rest[~accepted]
    return numbers


def _inverted(rate: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The least k at which the distribution function of Poisson numbers exceeds u."""
    numbers = torch.zeros_like(rate)
    probability = (-rate).exp()
    below = probability.clone()
    for k in range(1, ATTEMPTS):
        above = u > below
        if not above.any():
            break
        numbers += above
        probability = probability * rate / k
        below = below + probability
    return numbers
