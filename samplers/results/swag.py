"""A Gaussian fitted to the draws of a run: SWAG."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from integrators import noise, streams
from recipe.arguments import integer
from recipe.errors import RecipeError

from .tensor_checks import FINITE, STATE, check_tensors


class SWAG:
    """A Gaussian of diagonal plus low-rank covariance, fitted to draws that are added one by one.

    theta ~ N(mean, diag(variance)/2 + Dev Dev^T/(2(K - 1))), where the columns of Dev are the deviations of the last
    K <= rank draws, each from the mean that includes it. A draw is a tensor, or a dict of tensors by name, whose
    covariance is then joint. Sums are in float64, results in the dtype of the draws. Raises RecipeError unless rank is
    an integer >= 2.

    Source: Maddox, Garipov, Izmailov, Vetrov & Wilson 2019, "A simple baseline for Bayesian uncertainty in deep
    learning".

    >>> swag = SWAG(rank=2)
    >>> for theta in torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]):
    ...     swag.add(theta)
    >>> swag.mean
    tensor([2., 1.])
    >>> swag.variance
    tensor([2.6667, 0.0000])
    >>> swag.sample(5, seed=0).shape
    torch.Size([5, 2])
    """

    def __init__(self, rank: int = 20):
        self.rank = integer("SWAG", "rank", rank, least=2, do="Choose how many deviations to keep, 20 if unsure.")
        self.count = 0
        self._like: dict[str | None, torch.Tensor] = {}  # zeros like a draw, by name; the name of a lone tensor is None
        self._mean = torch.zeros((), dtype=torch.float64, device="cpu")
        self._variance = torch.zeros((), dtype=torch.float64, device="cpu")
        self._deviations: deque[torch.Tensor] = deque(maxlen=rank)

    @classmethod
    def of(cls, draws: torch.Tensor, rank: int = 20) -> "SWAG":
        """The fit to draws `(draws, *shape)`, in their order.

        >>> SWAG.of(torch.tensor([1.0, 3.0])).mean
        tensor(2.)
        """
        if not torch.is_tensor(draws) or draws.dim() == 0:
            raise RecipeError("SWAG, of", "there is no axis of draws", do="Pass a tensor (draws, *shape).")
        swag = cls(rank)
        for theta in draws:
            swag.add(theta)
        return swag

    def __repr__(self) -> str:
        return f"SWAG(rank={self.rank}) of {self.count} draws"

    def add(self, theta: torch.Tensor | Mapping[str, torch.Tensor]) -> None:
        """Add one draw.

        mean_n = mean + (theta - mean)/n, and variance_n the mean of (theta_i - mean_n)^2. Raises RecipeError, and keeps
        the fit as it was, for other shapes, dtypes, devices or names than before, and for values that are not finite.
        """
        flat = self._flat(theta)
        self.count += 1
        # Welford's form: a mean of squares less the square of the mean would cancel far from 0.
        change = flat - self._mean
        self._mean = self._mean + change / self.count
        deviation = flat - self._mean
        self._variance = self._variance + (change * deviation - self._variance) / self.count
        self._deviations.append(deviation)

    def _flat(self, theta: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The numbers of a draw in float64, its tensors end to end, like those of the first draw."""
        tensors: Mapping = theta if isinstance(theta, Mapping) else {None: theta}
        if not tensors or not all(torch.is_tensor(x) and x.is_floating_point() for x in tensors.values()):
            what = "a draw is a tensor of real numbers, or a dict of them by name"
            raise RecipeError("SWAG, add", what, do="Pass draws['theta'][chain, draw].")
        form = _in_words(tensors)
        if self.count and form != _in_words(self._like):
            what = f"the draw is {_shown(form)}, the draws before it {_shown(_in_words(self._like))}"
            raise RecipeError("SWAG, add", what, do="Add draws of one kind.")
        flat = torch.cat([tensors[name].detach().to(torch.float64).reshape(-1) for name in self._like or tensors])
        if not flat.isfinite().all():
            raise RecipeError("SWAG, add", f"draw {self.count} is not finite", do=FINITE)
        self._like = self._like or {
            name: torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape) for name, x in tensors.items()
        }
        return flat

    def state_dict(self) -> dict[str, Any]:
        """The state to save: `rank`, `count`, float64 sums, and for each tensor of a draw a tensor `like` it."""
        return {
            "rank": self.rank,
            "count": self.count,
            "like": dict(self._like),
            "mean": self._mean.clone(),
            "variance": self._variance.clone(),
            "deviations": [deviation.clone() for deviation in self._deviations],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit. Raises RecipeError for the state of something else."""
        where = "SWAG, load_state_dict"
        if set(state) != set(self.state_dict()):
            raise RecipeError(where, f"the state has the entries {sorted(state)}", do="Pass that of a SWAG.")
        if state["rank"] != self.rank:
            what = f"the state is of rank {state['rank']}, this of rank {self.rank}"
            raise RecipeError(where, what, do=f"Make SWAG(rank={state['rank']}).")
        count = integer(where, "count", state["count"], least=0, most=2**63 - 1)
        like, deviations = dict(state["like"]), list(state["deviations"])
        check_tensors(where, [*like.values(), *deviations, state["mean"], state["variance"]])
        if len(deviations) != min(count, self.rank):
            raise RecipeError(where, f"the state has {len(deviations)} deviations of {count} draws", do=STATE)
        self.count, self._like = count, like
        self._mean = state["mean"].clone()
        self._variance = state["variance"].clone()
        self._deviations = deque((deviation.clone() for deviation in state["deviations"]), maxlen=self.rank)

    @property
    def mean(self) -> Any:
        """The mean of the draws, of their form."""
        self._check("mean")
        return self._formed(self._mean)

    @property
    def variance(self) -> Any:
        """The variance of each coordinate, of the form of the draws: the mean square deviation, never below 0."""
        self._check("variance")
        return self._formed(self._variance)

    def sample(self, number: int, seed: int) -> Any:
        """Draw from the fit: theta = mean + sqrt(variance/2) z1 + Dev z2/sqrt(2(K - 1)).

        Returns `(number, *shape)`, or a dict of them by name. z1 and z2 are functions of (seed, number of the sample).
        Raises RecipeError for fewer than two draws, or a seed or number that is no integer >= 0.
        """
        self._check("sample")
        dev = torch.stack(list(self._deviations))
        z1 = noise.normal(seed, 0, streams.SWAG_DIAGONAL, number, (dev.shape[1],), dtype=dev.dtype, device=dev.device)
        z2 = noise.normal(seed, 0, streams.SWAG_LOW_RANK, number, (len(dev),), dtype=dev.dtype, device=dev.device)
        return self._formed(self._mean + (self._variance / 2).sqrt() * z1 + z2 @ dev / math.sqrt(2 * (len(dev) - 1)))

    def _formed(self, flat: torch.Tensor) -> Any:
        """The flat tensor `(*leading, coordinates)` in the form of the draws."""
        parts = flat.split([x.numel() for x in self._like.values()], -1)
        tensors = {
            name: part.reshape((*flat.shape[:-1], *x.shape)).to(x.dtype, copy=True)
            for (name, x), part in zip(self._like.items(), parts)
        }
        return tensors[None] if None in tensors else tensors

    def _check(self, method: str) -> None:
        if self.count < 2:
            raise RecipeError(f"SWAG, {method}", f"{self.count} of at least 2 draws", do="Add more draws.")


def _in_words(tensors: Mapping[str | None, torch.Tensor]) -> dict[str | None, str]:
    return {
        name: f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}" for name, x in tensors.items()
    }


def _shown(words: Mapping[str | None, str]) -> str:
    return words[None] if None in words else str(words)
