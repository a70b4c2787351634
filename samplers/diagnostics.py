"""Diagnostics of draws: sample size, mixing, discrepancy, temperatures.

Source of the sample size and of R-hat: Vehtari, Gelman, Simpson, Carpenter & Buerkner 2021, "Rank-normalization,
folding, and localization"; sums of autocorrelations end where Geyer 1992 ends them.
"""

import math
from dataclasses import dataclass

import torch

from recipe.arguments import integer, number
from recipe.errors import RecipeError

from .results import statistics
from .results.draws import Draws
from .results.temperatures import Temperature, configurational_temperature, kinetic_temperature
from .results.tensor_checks import FINITE

__all__ = [
    "effective_sample_size",
    "autocorrelation_time",
    "r_hat",
    "Discrepancy",
    "kernel_stein_discrepancy",
    "Temperature",
    "kinetic_temperature",
    "configurational_temperature",
]

KSD = "kernel_stein_discrepancy"


def effective_sample_size(draws: Draws, name: str) -> torch.Tensor:
    """The number of independent draws of equal precision in the bulk: chains draws/tau of the rank-normalised values.

    Returns `(*shape)` of the block, in float64; nan for fewer than 4 draws, and where all values are equal. Draws weigh
    equally, or by their weights; chains that diverged are left out, with a warning. Raises RecipeError for an unknown
    name, or where no chain is left.

    >>> draws = Draws({"theta": torch.randn(4, 1000, 2, generator=torch.Generator().manual_seed(0))}, info={})
    >>> effective_sample_size(draws, "theta") > 3500
    tensor([True, True])
    """
    sound = draws.sound_chains("effective_sample_size")
    return statistics.sample_size_of_ranks(draws[name][sound], draws.weights_of(sound))


def autocorrelation_time(draws: Draws, name: str) -> torch.Tensor:
    """The integrated autocorrelation time: tau = 1 + 2 sum_t rho_t = chains draws/ESS of the mean, in draws.

    Steps between draws, `thin` of them, multiply it. Returns, and raises, as `effective_sample_size` does.

    >>> steps = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0))
    >>> autocorrelation_time(Draws({"theta": steps.repeat_interleave(5, dim=1)}, info={}), "theta").round()
    tensor(5., dtype=torch.float64)
    """
    sound = draws.sound_chains("autocorrelation_time")
    return statistics.autocorrelation_time(draws[name][sound], draws.weights_of(sound))


def r_hat(draws: Draws, name: str) -> torch.Tensor:
    """The rank-normalised split R-hat, sqrt(var+/W): 1 where halves of chains agree, above 1.01 where they do not yet.

    Returns, and raises, as `effective_sample_size` does; nan also for one chain. Weights of draws do not count: it is
    of the law that the chains have.

    >>> draws = Draws({"theta": torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))}, info={})
    >>> r_hat(draws, "theta") < 1.01
    tensor(True)
    """
    return statistics.split_r_hat(draws[name][draws.sound_chains("r_hat")])


@dataclass(frozen=True)
class Discrepancy:
    """Estimates of KSD^2: `u`, without bias, and `v` >= 0, with the diagonal.

    `error` is the standard error of `u` for independent points of the exact law (for correlated points it is larger).

    >>> Discrepancy(u=0.01, v=0.04, error=0.02).ksd
    0.2
    """

    u: float
    v: float
    error: float

    @property
    def ksd(self) -> float:
        """The kernel Stein discrepancy of the points as they are, sqrt(v)."""
        return math.sqrt(max(0.0, self.v))


def kernel_stein_discrepancy(
    points: torch.Tensor, scores: torch.Tensor, *, c: float = 1.0, beta: float = -0.5, block: int = 512
) -> Discrepancy:
    """The distance of points to a target by its score s = grad log density = -grad U/T.

    The kernel k(x, y) = (c^2 + |x - y|^2)^beta sees points that drift away.

    KSD^2 = E k_0(x, y), k_0 = s(x).s(y) k + s(x).grad_y k + s(y).grad_x k + div_x grad_y k: the mean over pairs of
    different points is the U-statistic, over all pairs the V-statistic. `points` and `scores` are (n, dim), in units of
    c and 1/c: scale coordinates that are not of order 1. Computed in float64, for `block` points at a time with as many
    others. Raises RecipeError for other shapes, fewer than two points, numbers that are not finite, and kernels other
    than c > 0, -1 < beta < 0.

    Source: Gorham & Mackey 2017, Proposition 2 and Theorem 8; Liu, Lee & Jordan 2016, Theorem 3.6.

    >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    >>> exact, wide = (kernel_stein_discrepancy(s*x, -s*x) for s in (1.0, 1.2))
    >>> abs(exact.u) < 3*exact.error, abs(wide.u) < 3*wide.error
    (True, False)
    """
    x, s = _checked(points, scores)
    number(KSD, "c", c, above=0)
    number(KSD, "beta", beta, above=-1, below=0)
    block = integer(KSD, "block", block, least=1)
    n = len(x)
    diagonal = pairs = squares = 0.0
    for i in range(0, n, block):
        for j in range(i, n, block):
            k0 = _stein_kernel(x[i : i + block], x[j : j + block], s[i : i + block], s[j : j + block], c, beta)
            if i == j:
                diagonal += float(k0.diagonal().sum())
                k0.fill_diagonal_(0)
            times = 1 if i == j else 2  # k_0 is symmetric
            pairs += times * float(k0.sum())
            squares += times * float(k0.square_().sum())
    # Under the exact law E k_0(x, .) = 0, and Var u = 2 E k_0^2/(n(n - 1)).
    return Discrepancy(
        u=pairs / (n * (n - 1)),
        v=(pairs + diagonal) / n**2,
        error=math.sqrt(2 * squares) / (n * (n - 1)),
    )


def _checked(points: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """At least two points and their scores in float64, all finite."""
    tensors = torch.is_tensor(points) and torch.is_tensor(scores)
    if not tensors or points.dim() != 2 or points.shape != scores.shape:
        kinds = [str(tuple(x.shape)) if torch.is_tensor(x) else type(x).__name__ for x in (points, scores)]
        what = f"points and scores are both (n, dim), got {' and '.join(kinds)}"
        raise RecipeError(KSD, what, do="Flatten chains and draws: draws['theta'].reshape(-1, dim).")
    n, dim = points.shape
    if n < 2 or dim < 1:
        raise RecipeError(KSD, f"there are {n} points of {dim} coordinates", do="Give at least two points.")
    x = points.detach().to(torch.float64)
    s = scores.detach().to(points.device, torch.float64)
    bad = (~(x.isfinite() & s.isfinite()).all(1)).nonzero()
    if len(bad):
        raise RecipeError(KSD, f"point {int(bad[0])} or its score is not finite", do=FINITE)
    return x, s


def _stein_kernel(
    x: torch.Tensor, y: torch.Tensor, s_x: torch.Tensor, s_y: torch.Tensor, c: float, beta: float
) -> torch.Tensor:
    """k_0 of every x with every y."""
    squared = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square_()
    r = squared + c**2
    k = r**beta
    along = (s_x * x).sum(1)[:, None] - s_x @ y.T - x @ s_y.T + (s_y * y).sum(1)  # (s_x - s_y).(x - y)
    bend = along + x.shape[1] + 2 * (beta - 1) * squared / r
    return k * (s_x @ s_y.T - 2 * beta * bend / r)
