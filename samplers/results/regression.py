"""Scores of a regression's predictions: each draw predicts a normal law, all draws their mixture."""

import math
from typing import Any

import torch

from recipe.arguments import number
from recipe.errors import RecipeError

from .arguments import checked, noise_variances

AT_ONCE = 2**22  # pairs of draws that are compared together


def rmse(predictions: Any, y: Any) -> float:
    """The root of the mean square of y less the mean prediction, over data and outputs.

    `predictions` (..., data, outputs) of the draws, or of their mean; `y` (data, outputs). Raises RecipeError for other
    shapes, and for numbers that are not finite.

    >>> rmse(torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[5.0]]))
    3.0
    """
    f, target, _ = _mixture("rmse", predictions, y, 0.0)
    return math.sqrt(float((f.mean(0) - target).square().mean()))


def log_predictive_density(predictions: Any, y: Any, *, noise_variance: Any) -> torch.Tensor:
    """log of the mean over draws of the density N(y; prediction, noise variance), of each datum: `(data,)`.

    Outputs are independent given a draw. `predictions` (..., data, outputs) of the draws, `y` (data, outputs);
    `noise_variance` > 0 broadcasts to the predictions. Take the mean for one number, or `paired` with another model's.
    Raises RecipeError as `rmse` does, and for noise variances that are not > 0.

    >>> log_predictive_density(torch.zeros(2, 1, 1), torch.zeros(1, 1), noise_variance=1.0)
    tensor([-0.9189], dtype=torch.float64)
    """
    f, target, variance = _mixture("log_predictive_density", predictions, y, noise_variance)
    if not (variance > 0).all():
        raise RecipeError(
            "log_predictive_density", "a noise variance is not > 0", do="A density needs noise: pass sigma**2."
        )
    log_densities = -((target - f).square() / variance + variance.log() + math.log(2 * math.pi)) / 2
    return log_densities.sum(2).logsumexp(0) - math.log(len(f))


def crps(predictions: Any, y: Any, *, noise_variance: Any = 0.0) -> torch.Tensor:
    """The continuous ranked probability score of each datum, `(data,)`, a mean over outputs: 0 is the best.

    CRPS = E|Y - y| - E|Y - Y'|/2 for independent Y, Y' of the mixture, in closed form by that of a normal number,
    E|N(m, s^2)| = 2 s phi(m/s) + m (2 Phi(m/s) - 1), over all pairs of draws. Shapes and errors are as for
    `rmse`; noise variances are >= 0.

    Sources: Gneiting & Raftery 2007, eq. (21); Grimit, Gneiting, Berrocal & Johnson 2006, eq. (3).

    >>> crps(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[1.0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    f, target, variance = _mixture("crps", predictions, y, noise_variance)
    draws = len(f)
    score = _absolute(target - f, variance).mean(0)
    rows = max(1, AT_ONCE // (draws * max(f[0].numel(), 1)))
    spread = torch.zeros_like(score)
    for some in torch.arange(draws, device=f.device).split(rows):
        spread += _absolute(f[some, None] - f, variance[some, None] + variance).sum((0, 1))
    return (score - spread / (2 * draws**2)).mean(1)


def coverage(predictions: Any, y: Any, *, noise_variance: Any = 0.0, level: float = 0.9) -> float:
    """The share of data and outputs inside of the central interval of the mixture of probability `level`.

    y is inside where the mean over draws of Phi((y - f)/sigma) is between (1 -+ level)/2. Shapes and errors are as for
    `rmse`; RecipeError also for levels outside of (0, 1).

    >>> coverage(torch.zeros(1, 2, 1), torch.tensor([[0.0], [9.0]]), noise_variance=1.0)
    0.5
    """
    number("coverage", "level", level, above=0, below=1, do="Take 0.9, say.")
    f, target, variance = _mixture("coverage", predictions, y, noise_variance)
    gap = target - f
    standard = torch.where(variance > 0, gap / variance.sqrt().clamp(min=1e-300), gap.sign() * math.inf)
    standard = torch.where((variance == 0) & (gap == 0), 0.0, standard)
    below = torch.special.ndtr(standard).mean(0)
    return float(((below >= (1 - level) / 2) & (below <= (1 + level) / 2)).double().mean())


def _absolute(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """E|x| of x ~ N(mean, variance)."""
    sd = variance.sqrt()
    ratio = mean / sd.clamp(min=1e-300)
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    return torch.where(sd > 0, 2 * sd * density + mean * torch.erf(ratio / math.sqrt(2)), mean.abs())


def _mixture(where: str, predictions: Any, y: Any, noise: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predictions and variances `(draws, data, outputs)`, and targets `(data, outputs)`, in float64."""
    f = checked(where, "predictions", predictions, last="outputs").to(torch.float64)
    target = checked(where, "targets", y, last="outputs").to(f.device, torch.float64)
    if target.shape != f.shape[-2:]:
        raise RecipeError(
            where,
            f"the predictions have the shape {tuple(f.shape)}, the targets {tuple(target.shape)}",
            do="Pass (..., data, outputs) and (data, outputs).",
        )
    variance = noise_variances(where, noise, f)
    return f.reshape(-1, *target.shape), target, variance.reshape(-1, *target.shape)
