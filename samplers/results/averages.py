"""Averages over time with their errors, and R-hat, each with its band of chance."""

import math
from dataclasses import dataclass

import torch

from .statistics import moments, sample_size_of_mean, sample_size_within, split_r_hat


@dataclass(frozen=True)
class Average:
    """A mean over time and chains, its standard error, and the degrees of freedom that this has."""

    value: float
    error: float
    freedom: float

    def half_width(self, alpha: float) -> float:
        """Student's t times the standard error: the average is off by more with probability alpha."""
        from scipy.special import stdtrit  # scipy is slow to import

        return float(stdtrit(self.freedom, 1 - alpha / 2)) * self.error


def average_of(each: torch.Tensor, weights: torch.Tensor | None = None) -> Average:
    """The mean of numbers `(chains, times)`, by their effective sample size; the error is 0 where all are equal.

    `weights`: of mean 1, `(chains, times)`.

    >>> average_of(torch.tensor([[1.0, 2.0, 2.0, 1.0]])).value
    1.5
    """
    x = each.to("cpu", torch.float64)
    ess = float(sample_size_of_mean(x, weights))
    mean, sd = (float(moment) for moment in moments(x, weights))
    if math.isnan(ess):
        return Average(mean, 0.0, 1.0)
    ess = max(2.0, min(ess, x.numel()))  # an estimate beyond the draws is mostly its noise
    return Average(mean, sd / math.sqrt(ess), ess - 1)


@dataclass(frozen=True)
class Agreement:
    """The R-hat of numbers `(chains, times)`, with its law where chains agree.

    `within`: their effective sample size by the autocorrelation inside of half chains, of which there are `halves`.
    """

    r_hat: float
    within: float
    halves: int

    def most(self, alpha: float) -> float:
        """The bound that R-hat exceeds by chance with probability alpha: sqrt(1 + F/(L - 1)).

        The means of m halves, each of L independent numbers among more, have a variance F W/L, where F is of Fisher's
        law with m - 1 and m (L - 1) degrees of freedom, and W (1 - 1/L) is the variance inside of the halves.
        """
        from scipy.special import fdtri  # scipy is slow to import

        freedom = max(self.within / self.halves - 1, 0.5)
        return math.sqrt(1 + float(fdtri(self.halves - 1, self.halves * freedom, 1 - alpha)) / freedom)


def agreements_of(values: torch.Tensor) -> list[Agreement]:
    """The agreement of every component of `(chains, draws, *shape)`; nan where there is none.

    >>> agreements_of(torch.arange(40.0).reshape(2, 20, 1))[0].r_hat > 2
    True
    """
    sizes = sample_size_within(values).flatten().tolist()
    return [Agreement(r, size, 2 * len(values)) for r, size in zip(split_r_hat(values).flatten().tolist(), sizes)]
