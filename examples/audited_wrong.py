"""A sampler that looks right, and samples too hot at every step size.

`recipe audit examples/audited_wrong.py:refreshed` says so.
"""

from collections.abc import Callable

import torch
from torch import Tensor

L = 10  # steps between two refreshments


def refreshed(
    potential: Callable, init: Tensor, *, steps: int, step_size: float, temperature: float, seed: int
) -> Tensor:
    """Hamiltonian steps with a new momentum every L of them; theta moves first, so the last of L kicks is lost.

    theta moves L times between refreshments and feels L - 1 kicks: as h -> 0 its temperature is T L/(L - 1).
    """
    generator = torch.Generator().manual_seed(seed)
    theta = init
    for k in range(steps):
        if k % L == 0:
            p = temperature**0.5 * torch.randn(theta.shape, generator=generator)
        theta = theta + step_size * p
        p = p - step_size * gradient(potential, theta)
    return theta


def gradient(potential: Callable, theta: Tensor) -> Tensor:
    """grad U of every chain."""
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(potential(theta).sum(), theta)[0]
