"""Pairs of chains with common starts and noise, and the differences of their means and variances."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Moments:
    """Averages over time of x - c and (x - c)^2 in each chain, `(chains, *shape)`, about a fixed centre c.

    >>> one = Moments(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 10.0]))
    >>> float(one.mean), float(one.variance)
    (2.0, 2.0)
    """

    first: torch.Tensor
    second: torch.Tensor

    @property
    def mean(self) -> torch.Tensor:
        """The mean over time and chains, less the centre."""
        return self.first.mean(0)

    @property
    def variance(self) -> torch.Tensor:
        """The variance over time and chains."""
        return self.second.mean(0) - self.mean.square()

    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The standard errors of mean and variance."""
        return _error(self.first), _error(self.second - 2 * self.mean * self.first)

    def less(self, other: "Moments", factor: float = 1.0) -> tuple["Excess", "Excess"]:
        """The differences of mean and variance to those of paired chains, times a factor.

        Var - Var' is the mean of s - s' - (m + m') (f - f'), with f, s the averages of a chain and m the mean of f.

        >>> one = Moments(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 10.0]))
        >>> [float(excess.value) for excess in one.less(Moments(torch.zeros(2), torch.ones(2)))]
        [2.0, 1.0]
        """
        shift = self.first - other.first
        spread = self.second - other.second - (self.mean + other.mean) * shift
        mean, variance = (Excess(factor * x.mean(0), factor * _error(x)) for x in (shift, spread))
        return mean, variance


@dataclass(frozen=True)
class Excess:
    """The difference of a statistic to that of paired chains, with its standard error."""

    value: torch.Tensor
    error: torch.Tensor


def _error(of_chains: torch.Tensor) -> torch.Tensor:
    return of_chains.std(0) / len(of_chains) ** 0.5


@dataclass(frozen=True)
class Pairs:
    """Moments of chains that share their start and their noise, `number` of each kind, over `steps` after `warmup`.

    `moments`: by kind and by name, about the `centre`. Chains of the kind "coarse" have the run's step size, "fine"
    ones half of it; a step of "coarse" takes the mean of two minibatches, where "one" and "other" take one of them
    each. Kinds for biases that a run does not have are absent. `settled`: whether both halves of the steps agree;
    `lost`: the number of pairs with a chain that left the finite numbers.
    """

    number: int
    lost: int
    warmup: int
    steps: int
    settled: bool
    centre: Mapping[str, torch.Tensor]
    moments: Mapping[str, Mapping[str, Moments]]

    def to_dict(self) -> dict[str, int]:
        """The numbers of chains and of steps."""
        return {name: getattr(self, name) for name in ("number", "lost", "warmup", "steps")}

    def of_run(self, name: str) -> Moments:
        """The moments of the law of the run itself."""
        if "one" in self.moments:
            one, other = (self.moments[kind][name] for kind in ("one", "other"))
            return Moments((one.first + other.first) / 2, (one.second + other.second) / 2)
        return self.moments["coarse"][name]

    def biases(self, name: str, order: int | None) -> dict[str, tuple[Moments, Excess, Excess]]:
        """The biases of mean and variance of the step, and of the minibatches, with the moments that have them.

        (E_h - E_{h/2}) 2^p/(2^p - 1) for a step of order p, and 2 (E_V - E_{V/2}) for a gradient of covariance V.
        """
        biases = {}
        coarse = self.moments["coarse"][name]
        if "fine" in self.moments and order is not None:
            extrapolation = 2**order / (2**order - 1)
            biases["step"] = (coarse, *coarse.less(self.moments["fine"][name], extrapolation))
        if "one" in self.moments:
            biases["minibatches"] = (self.of_run(name), *self.of_run(name).less(coarse, 2.0))
        return biases


Slopes = dict[str, tuple[torch.Tensor, list[torch.Tensor]]]  # by name: theta, and grad U on independent batches
