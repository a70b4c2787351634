"""Targets whose law is known at every temperature: exact draws, exact expectations, and the statistics to compare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb, erf, sqrt

import numpy as np
import torch


@dataclass(frozen=True)
class KnownLaw:
    """exp(-U/T), with y = (theta - mean)/sd: `moments(T)` gives mean, sd, P(|y_i| < 1), and E y_i y_j for i < j.

    `potential(theta)`: U by chain, (..., dim) -> (...). `draw(chains, T, generator)`: (chains, dim), independent draws.
    `separable`: the coordinates are independent.

    >>> law = LAWS[0]
    >>> law.name, law.draw(5, 0.5, torch.Generator()).shape
    ('gaussian', torch.Size([5, 3]))
    """

    name: str
    dim: int
    potential: Callable
    draw: Callable
    moments: Callable
    separable: bool

    @property
    def labels(self) -> list[str]:
        """The names of the statistics."""
        each = range(1, self.dim + 1)
        return [
            *(f"mean of theta{i}" for i in each),
            *(f"variance of theta{i}" for i in each),
            *(f"P(|theta{i} - mean| < sd)" for i in each),
            *(f"correlation of theta{i} and theta{j}" for i, j in combinations(each, 2)),
            "E theta^2",
            "temperature",
        ]

    def exact(self, T: float) -> np.ndarray:
        """The exact means of the statistics."""
        _, _, within, correlations = self.moments(T)
        return np.array([0.0] * self.dim + [1.0] * self.dim + [*within] + [*correlations] + [1.0, 1.0])

    def square(self, T: float) -> float:
        """E theta^2, averaged over the coordinates."""
        mean, sd, *_ = self.moments(T)
        return float(np.mean(sd**2 + mean**2))

    def statistics(self, theta: torch.Tensor, T: float) -> np.ndarray:
        """One row per chain: y, y^2, |y| < 1, y_i y_j for i < j, theta^2 over its mean, theta . grad U / (dim T)."""
        mean, sd, *_ = self.moments(T)
        with torch.inference_mode(False), torch.enable_grad():  # a black box may have turned gradients off
            theta = theta.detach().double().requires_grad_()
            (force,) = torch.autograd.grad(self.potential(theta).sum(), theta)
        x = theta.detach().numpy()
        y = (x - mean) / sd
        i, j = np.triu_indices(self.dim, 1)
        return np.column_stack(
            [
                y,
                y**2,
                abs(y) < 1,
                y[:, i] * y[:, j],
                (x**2).mean(1) / self.square(T),
                (x * force.numpy()).mean(1) / T,
            ]
        )


def gaussian_law(name: str, sds: Sequence[float], correlation: float) -> KnownLaw:
    """N(0, T C) with C_ij = sd_i sd_j correlation^|i - j|.

    >>> gaussian_law("pair", (1, 2), 0.5).potential(torch.ones(2))
    tensor(0.5000)
    """
    sd = np.array(sds, float)
    index = np.arange(len(sds))
    covariance = np.outer(sd, sd) * correlation ** abs(index[:, None] - index)
    precision, root = torch.tensor(np.linalg.inv(covariance)), torch.tensor(np.linalg.cholesky(covariance))

    def potential(theta):
        return ((theta @ precision.to(theta)) * theta).sum(-1) / 2

    def draw(chains, T, generator):
        z = torch.randn(chains, len(sds), generator=generator, dtype=torch.float64)
        return (z @ root.T * sqrt(T)).to(torch.get_default_dtype())

    def moments(T):
        i, j = np.triu_indices(len(sds), 1)
        return np.zeros(len(sds)), sd * sqrt(T), np.full(len(sds), erf(sqrt(0.5))), correlation ** (j - i)

    return KnownLaw(name, len(sds), potential, draw, moments, separable=False)


def separable_law(name: str, u: Callable, dim: int) -> KnownLaw:
    """Independent coordinates of density exp(-u(x)/T), by quadrature and inverse distribution function on |x| < 8.

    >>> separable_law("normal", lambda x: x**2/2, 2).moments(0.25)[1].round(6)
    array([0.5, 0.5])
    """
    x = np.linspace(-8, 8, 2**15 + 1)

    def mean(values, T):
        density = np.exp(-(u(x) - u(x).min()) / T)
        return np.trapezoid(values * density, x) / np.trapezoid(density, x)

    @cache
    def distribution(T):
        density = np.exp(-(u(x) - u(x).min()) / T)
        mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
        return mass / mass[-1]

    def draw(chains, T, generator):
        uniform = torch.rand(chains, dim, generator=generator, dtype=torch.float64)
        return torch.tensor(np.interp(uniform.numpy(), distribution(T), x)).to(torch.get_default_dtype())

    @cache
    def moments(T):
        m = mean(x, T)
        sd = sqrt(mean((x - m) ** 2, T))
        low, high = np.interp([m - sd, m + sd], x, distribution(T))
        return np.full(dim, m), np.full(dim, sd), np.full(dim, high - low), np.zeros(comb(dim, 2))

    return KnownLaw(name, dim, lambda theta: u(theta).sum(-1), draw, moments, separable=True)


LAWS = (
    gaussian_law("gaussian", (1.0, 0.8, 0.6), correlation=0.4),  # curvatures from .8 to 3.4
    separable_law("quartic", lambda x: x**4 / 8 + x**2 / 4 - 2 * x / 5, dim=2),  # one tilted mode, light tails
    separable_law("double well", lambda x: (x**2 - 2) ** 2 / 8, dim=4),  # barrier 1/2, which ordinary samplers cross
)
