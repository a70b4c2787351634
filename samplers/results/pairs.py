"""Pairs of chains with common starts and noise, and by how much the mean and the variance of one exceed the other's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from .divergence import Divergence


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

    def less(self, other: "Moments") -> tuple["Excess", "Excess"]:
        """By how much mean and variance exceed those of chains that these are paired with.

        Var - Var' is the mean of s - s' - (m + m') (f - f'), with f, s the averages of a chain and m the mean of f.

        >>> one = Moments(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 10.0]))
        >>> [float(excess.value) for excess in one.less(Moments(torch.zeros(2), torch.ones(2)))]
        [2.0, 1.0]
        """
        shift = self.first - other.first
        spread = self.second - other.second - (self.mean + other.mean) * shift
        return Excess(shift.mean(0), _error(shift)), Excess(spread.mean(0), _error(spread))


@dataclass(frozen=True)
class Excess:
    """By how much a statistic exceeds another, with the standard error."""

    value: torch.Tensor
    error: torch.Tensor


def halfway(one: Moments, other: Moments) -> Moments:
    """The averages of chains that have the same law and the same start."""
    return Moments((one.first + other.first) / 2, (one.second + other.second) / 2)


def _error(of_chains: torch.Tensor) -> torch.Tensor:
    return of_chains.std(0) / len(of_chains) ** 0.5


@dataclass(frozen=True)
class Pairs:
    """Moments of chains that share their start and their noise, `number` of each kind, over `steps` after `warmup`.

    `moments`: by kind and by name, about the `centre`. Of kinds, "coarse" is of the run's step size and "fine" of half
    of it, with the mean of two minibatches in a step of the coarse; "one" and "other" are of the run's step size, with
    one of the two each. What a run has no bias of is not there. `settled`: whether both halves of the steps agree;
    `lost`: pairs of which a chain left the finite numbers.
    """

    number: int
    lost: int
    warmup: int
    steps: int
    settled: bool
    centre: Mapping[str, torch.Tensor]
    moments: Mapping[str, Mapping[str, Moments]]

    def to_dict(self) -> dict[str, int]:
        """How many chains moved, and for how long."""
        return {name: getattr(self, name) for name in ("number", "lost", "warmup", "steps")}

    def of_run(self, name: str) -> Moments:
        """The moments of the law of the run itself."""
        if "one" in self.moments:
            return halfway(self.moments["one"][name], self.moments["other"][name])
        return self.moments["coarse"][name]

    def biases(self, name: str, order: int | None) -> dict[str, tuple[Moments, Excess, Excess]]:
        """The biases of mean and variance of the step, and of the minibatches, with the moments that have them.

        (E_h - E_{h/2}) 2^p/(2^p - 1) for a step of order p, and 2 (E_V - E_{V/2}) for a gradient of covariance V.
        """
        biases = {}
        coarse = self.moments["coarse"][name]
        if "fine" in self.moments and order is not None:
            share = 2**order / (2**order - 1)
            biases["step"] = (coarse, *_scaled(share, coarse.less(self.moments["fine"][name])))
        if "one" in self.moments:
            biases["minibatches"] = (self.of_run(name), *_scaled(2.0, self.of_run(name).less(coarse)))
        return biases


def _scaled(share: float, both: tuple[Excess, Excess]) -> tuple[Excess, Excess]:
    mean, variance = both
    return Excess(share * mean.value, share * mean.error), Excess(share * variance.value, share * variance.error)


Slopes = dict[str, tuple[torch.Tensor, list[torch.Tensor]]]  # by name: theta, and grad U on independent batches


class Again(Protocol):
    """A run that can be run again in pairs, and whose gradient can be taken at its draws."""

    @property
    def order(self) -> int | None:
        """The order of the step's bias for the target, None where the step is exact."""

    @property
    def has_batches(self) -> bool:
        """Whether gradients are of minibatches."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the target in the draws."""

    @property
    def has_other_energy(self) -> bool:
        """Whether the law of the target is of more than U."""

    @property
    def thin(self) -> int:
        """The steps between two draws."""

    @property
    def temperature(self) -> float:
        """The temperature of the draws; nan where it changes."""

    def slopes(self, draws: Mapping[str, torch.Tensor]) -> Slopes | str:
        """Grad U at these draws, on a batch each, and on another; or why there is none.

        All are `(chains, draws, *shape)`; there is one gradient where it is of all data.
        """

    def heat(self, variance: float) -> float | str:
        """What gradients of this variance add to the temperature, less what is taken as supplied; or why it is not
        known.
        """

    def check(self) -> None:
        """Refuse a run whose law changes as it goes."""

    def advice(self) -> dict[str, str]:
        """What makes the bias of the step, and that of the minibatches, smaller."""

    def divergence(
        self,
        draws: Mapping[str, torch.Tensor],
        chain: torch.Tensor,
        draw: torch.Tensor,
        *,
        steps: int,
        most: int,
        progress: bool = False,
    ) -> Divergence:
        """The KL of the law of the draws, in stretches of at least so many steps that start at these draws."""

    def pairs(
        self,
        draws: Mapping[str, torch.Tensor],
        chain: torch.Tensor,
        draw: torch.Tensor,
        *,
        warmup: int,
        steps: int,
        most: int,
        progress: bool = False,
    ) -> Pairs:
        """Pairs of chains that start at these draws of these chains, longer than asked if they have not settled."""
