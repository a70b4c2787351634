"""Langevin dynamics by kicks, drifts and an exact Ornstein-Uhlenbeck step: `recipe audit examples/audited_right.py:langevin`."""

from math import exp

import torch


def langevin(potential, init, *, steps, step_size, temperature, seed):
    """BAOAB with friction 1: a bias of order h^2, none on Gaussian targets."""
    generator, h, theta = torch.Generator().manual_seed(seed), step_size, init
    normal = lambda: torch.randn(theta.shape, generator=generator)
    kept = exp(-h)
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


def gradient(potential, theta):
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(potential(theta).sum(), theta)[0]
