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

    @property
    def variances(self) -> torch.Tensor:
        """Contribution of each chain to the variance, up to a constant, `(chains, *shape)`: s - 2 m f, as in `less`."""
        return self.second - 2 * self.mean * self.first

    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The standard errors of mean and variance."""
        return _error(self.first), _error(self.variances)

    def less(self, other: "Moments") -> tuple[torch.Tensor, torch.Tensor]:
        """Differences to paired chains, `(chains, *shape)`, whose means are those of the mean and of the variance.

        Var - Var' is the mean of s - s' - (m + m') (f - f'), with f, s the averages of a chain and m the mean of f.

        >>> one = Moments(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 10.0]))
        >>> [float(x.mean()) for x in one.less(Moments(torch.zeros(2), torch.ones(2)))]
        [2.0, 1.0]
        """
        shift = self.first - other.first
        return shift, self.second - other.second - (self.mean + other.mean) * shift


@dataclass(frozen=True)
class Excess:
    """The bias of a statistic, the mean of `differences`, `(chains, *shape)`; `beyond`: its error by extrapolation."""

    differences: torch.Tensor
    beyond: torch.Tensor | float = 0.0

    @property
    def value(self) -> torch.Tensor:
        """The bias, `(*shape)`."""
        return self.differences.mean(0)

    @property
    def error(self) -> torch.Tensor:
        """Its standard error, with what is beyond it."""
        return (_error(self.differences).square() + self.beyond**2).sqrt()

    @classmethod
    def of(cls, differences: torch.Tensor, other: torch.Tensor) -> "Excess":
        """The mean of differences, beyond whose error is one uniform within the distance d from an `other` estimate.

        Its variance is d^2/3, where the square of d is less its noise (GUM, JCGM 100:2008, 4.3.7).
        """
        d = differences - other
        distance = (d.mean(0).square() - _error(d).square()).clamp(min=0)
        return cls(differences, (distance / 3).sqrt())

    def of_sd(self, moments: Moments) -> "Excess":
        """The bias s = sqrt v - sqrt(v - b) of the sd, from this one b of the variance v of `moments`.

        Its differences have the influence of each chain on b and on v, whose errors are not independent. A variance of
        the target is a hundredth of v at least.

        >>> one = Moments(torch.zeros(2), torch.tensor([3.0, 5.0]))
        >>> half = Excess(0.75 * one.second).of_sd(one)                                          # sd 2 +- 0.25, and 1
        >>> float(half.value), float(half.error)
        (1.0, 0.125)
        """
        v, of_chains = moments.variance, moments.variances
        sd, target = v.sqrt(), (v - self.value).clamp(min=v / 100).sqrt()
        influence = (self.differences - self.value) / target - (1 / target - 1 / sd) * (of_chains - of_chains.mean(0))
        return Excess(sd - target + influence / 2, self.beyond / (2 * target))


def _error(of_chains: torch.Tensor) -> torch.Tensor:
    return of_chains.std(0) / len(of_chains) ** 0.5


@dataclass(frozen=True)
class Pairs:
    """Moments of chains that share their start and their noise, `number` of each kind, over `steps` after `warmup`.

    `moments`: by kind and by name, about the `centre`. Chains of the kind "coarse" have the run's step size, "fine"
    ones half of it, "finest" ones a quarter; a step of "coarse" takes the mean of two minibatches, where "one" and
    "other" take one of them each. Kinds for biases that a run does not have are absent. `settled`: whether both halves
    of the steps agree; `lost`: the number of pairs with a chain that left the finite numbers.
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

        With c = 2^p/(2^p - 1) for a step of order p, b' = c (E_h - E_{h/2}), or where there is a "finest" the once and
        twice extrapolated b = E_h - E_{h/2} + c (E_{h/2} - E_{h/4}) and b + (b - b')/(4^p - 1), whose error has the
        distance from b in it: the order after p is 2p, as symmetric steps have even ones alone. For a gradient of
        covariance V, 2 (E_V - E_{V/2}).
        """
        biases = {}
        coarse = self.moments["coarse"][name]
        if "fine" in self.moments and order is not None:
            c = 2**order / (2**order - 1)
            fine = self.moments["fine"][name]
            first = coarse.less(fine)
            mean, variance = (Excess(c * x) for x in first)
            if "finest" in self.moments:
                second = fine.less(self.moments["finest"][name])
                once = [x + c * y for x, y in zip(first, second)]
                mean, variance = (Excess.of(b + (b - c * x) / (4**order - 1), b) for b, x in zip(once, first))
            biases["step"] = coarse, mean, variance
        if "one" in self.moments:
            law = self.of_run(name)
            mean, variance = (Excess(2 * x) for x in law.less(coarse))
            biases["minibatches"] = law, mean, variance
        return biases


Slopes = dict[str, tuple[torch.Tensor, list[torch.Tensor]]]  # by name: theta, and grad U on independent batches
