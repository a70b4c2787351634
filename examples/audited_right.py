"""Langevin dynamics by kicks, drifts and an exact Ornstein-Uhlenbeck step.

To be judged by `recipe audit examples/audited_right.py:langevin`.
"""

from collections.abc import Callable
from math import exp

import torch
from torch import Tensor


def langevin(
    potential: Callable, init: Tensor, *, steps: int, step_size: float, temperature: float, seed: int
) -> Tensor:
    """BAOAB with friction 1: a bias of order h^2, none on Gaussian targets."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(init.shape, generator=generator)

    h, kept = step_size, exp(-step_size)
    theta = init
    p = temperature**0.5 * normal()
    force = gradient(potential, theta)
    for _ in range(steps):
        p = p - h / 2 * force
        theta = theta + h / 2 * p
        p = kept * p + ((1 - kept**2) * temperature) ** 0.5 * normal()
        theta = theta + h / 2 * p
        force = gradient(potential, theta)
        p = p - h / 2 * force
    return theta


def gradient(potential: Callable, theta: Tensor) -> Tensor:
    """grad U of every chain."""
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(potential(theta).sum(), theta)[0]
