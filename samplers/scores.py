"""Scores of predictions: of classes, of numbers, and for the detection of data unlike the training data.

Predictions of a regression are normal laws, one for each draw, and together their mixture.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from recipe.arguments import integer, number
from recipe.errors import RecipeError

from .results.tensor_checks import checked, distributions, noise_variances, package, tensor_of

__all__ = [
    "accuracy",
    "negative_log_likelihood",
    "brier",
    "Reliability",
    "reliability",
    "expected_calibration_error",
    "rmse",
    "log_predictive_density",
    "crps",
    "coverage",
    "Difference",
    "paired",
    "roc",
    "roc_auc",
]

AT_ONCE = 2**22  # pairs of draws that are compared together


def accuracy(probabilities: Any, labels: Any) -> float:
    """The fraction of data whose label is the most probable class; the first of equals.

    `probabilities` (data, classes), `labels` (data,) integers below classes; RecipeError for others.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), [0, 1])
    0.5
    """
    p, y = _labelled("accuracy", probabilities, labels)
    return float((p.argmax(-1) == y).double().mean())


@dataclass(frozen=True)
class Difference:
    """The mean of a difference over the data, and its standard error.

    >>> Difference(value=-0.2, error=0.1).in_errors
    -2.0
    """

    value: float
    error: float

    @property
    def in_errors(self) -> float:
        """The difference in standard errors; beyond 3 it is hardly due to the choice of the data."""
        if not self.error:
            return math.copysign(math.inf, self.value) if self.value else 0.0
        return self.value / self.error


def paired(one: Any, other: Any) -> Difference:
    """The difference of the scores of two predictives on the same data, with the error of a paired comparison.

    `one`, `other`: a proper score of each datum, `(data,)`, such as `log_predictive_density`, `crps`, or
    `negative_log_likelihood(..., each=True)`. The error is that of the choice of the data, sd of the differences over
    sqrt(data): the difficulty of a datum cancels. Raises RecipeError for other shapes, fewer than 2 data, and scores
    that are not finite. Source: Vehtari, Gelman & Gabry 2017, eq. (24).

    >>> paired([0.5, 1.5, 1.0], [0.4, 1.2, 1.0]).value                                  # doctest: +ELLIPSIS
    0.133...
    """
    a, b = (tensor_of("paired", "the scores", x).to("cpu", torch.float64) for x in (one, other))
    if a.dim() != 1 or a.shape != b.shape or len(a) < 2:
        what = f"the scores have the shapes {tuple(a.shape)} and {tuple(b.shape)}"
        raise RecipeError("paired", what, do="Pass one number per datum of each, for the same data.")
    if not (a.isfinite() & b.isfinite()).all():
        raise RecipeError("paired", "a score is not finite", do="Leave out what was not predicted.")
    gaps = a - b
    return Difference(float(gaps.mean()), float(gaps.std()) / len(gaps) ** 0.5)


def negative_log_likelihood(probabilities: Any, labels: Any, *, each: bool = False) -> Any:
    """The mean of -log p(label) in nats, where p is at least the smallest normal number: at most 708.4.

    With `each` that of each datum, `(data,)`. Shapes and errors as for `accuracy`.

    >>> negative_log_likelihood(torch.tensor([[1.0, 0.0]]), [0])
    0.0
    """
    p, y = _labelled("negative_log_likelihood", probabilities, labels)
    of_label = p.gather(-1, y[:, None]).clamp(min=torch.finfo(p.dtype).tiny)
    if each:
        return 0.0 - of_label.log()[:, 0]
    return 0.0 - float(of_label.log().mean())  # not -0.0


def brier(probabilities: Any, labels: Any, *, each: bool = False) -> Any:
    """The mean over data of sum_c (p_c - [c is the label])^2, from 0 to 2; with `each` that of each datum, `(data,)`.

    Shapes and errors as for `accuracy`. Source: Brier 1950.

    >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), [0, 0])
    1.25
    """
    p, y = _labelled("brier", probabilities, labels)
    scores = (p - torch.nn.functional.one_hot(y, p.shape[-1])).square().sum(-1)
    return scores if each else float(scores.mean())


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: of each bin the mean confidence, the accuracy, and the count of data, all `(bins,)`.

    Confidence and accuracy of an empty bin are nan.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), [0, 0], bins=2).count
    tensor([0, 2])
    """

    confidence: torch.Tensor
    accuracy: torch.Tensor
    count: torch.Tensor

    def plot(self, ax: Any = None) -> Any:
        """Bars of the accuracy beside the diagonal, on matplotlib axes `ax` or new ones, which are returned.

        Raises RecipeError where no axes are given and matplotlib is missing.
        """
        if ax is None:
            ax = package("Reliability, plot", "matplotlib.pyplot").subplots()[1]
        full = (self.count > 0).cpu()
        bins = len(self.count)
        centre = (torch.arange(bins, dtype=torch.float64, device="cpu") + 0.5) / bins
        ax.bar(
            centre[full].numpy(), self.accuracy.cpu()[full].numpy(), width=1 / bins, edgecolor="white", label="accuracy"
        )
        ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="calibrated")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        ax.legend()
        return ax


def reliability(probabilities: Any, labels: Any, bins: int = 15) -> Reliability:
    """Confidence, the largest probability, and accuracy in `bins` intervals ((m - 1)/bins, m/bins] of confidence.

    Shapes and errors as for `accuracy`; RecipeError also unless bins is an integer >= 1.
    Source: Guo, Pleiss, Sun & Weinberger 2017, section 2.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]), [0, 0, 1], bins=2).accuracy
    tensor([   nan, 0.6667], dtype=torch.float64)
    """
    return _binned("reliability", probabilities, labels, bins)


def expected_calibration_error(probabilities: Any, labels: Any, bins: int = 15) -> float:
    """ECE = sum_m (n_m/n) |accuracy_m - confidence_m| over the bins of `reliability`, whose errors it shares.

    It is biased: of calibrated predictions it is not 0, but of the order of sqrt(bins/n).
    Source: Guo, Pleiss, Sun & Weinberger 2017, eq. (3).

    >>> expected_calibration_error(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), [0, 0])
    0.25
    """
    diagram = _binned("expected_calibration_error", probabilities, labels, bins)
    gaps = (diagram.accuracy - diagram.confidence).abs()
    return float((gaps * diagram.count / diagram.count.sum()).nansum())


def roc(inside: Any, outside: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The rates of false and true alarms of "score >= t is outside", for t from above all scores to the smallest.

    `inside` and `outside` are scores `(data,)`, such as entropies, of data like the training data and of others. Both
    rates are `(thresholds,)` in float64, from 0 to 1. Raises RecipeError for other shapes, no scores, and nan.

    >>> false, true = roc([0.1, 0.2], [0.2, 0.3])
    >>> false.tolist(), true.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    return _rates("roc", inside, outside)


def roc_auc(inside: Any, outside: Any) -> float:
    """The area under `roc`: the chance that a score outside exceeds one inside, where ties count half.

    Scores and errors as for `roc`. Source: Hanley & McNeil 1982.

    >>> roc_auc([0.1, 0.2], [0.2, 0.3])
    0.875
    """
    return float(torch.trapezoid(*reversed(_rates("roc_auc", inside, outside))))


# ---- of a regression


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
        what = "a noise variance is not > 0"
        raise RecipeError("log_predictive_density", what, do="A density needs noise: pass sigma**2.")
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
    for index in torch.arange(draws, device=f.device).split(rows):
        spread += _absolute(f[index, None] - f, variance[index, None] + variance).sum((0, 1))
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


# ---- checks and sums


def _binned(where: str, probabilities: Any, labels: Any, bins: int) -> Reliability:
    bins = integer(where, "bins", bins, least=1, do="Choose 15 if unsure.")
    p, y = _labelled(where, probabilities, labels)
    confidence, prediction = p.max(-1)
    # k/bins by division: the edges that the decimals of a user round to, as 0.6 does for 3/5.
    index = torch.bucketize(confidence, torch.arange(1, bins, dtype=p.dtype, device=p.device) / bins)
    count = torch.bincount(index, minlength=bins)
    sums = p.new_zeros(2, bins).index_add_(1, index, torch.stack([confidence, (prediction == y).to(p.dtype)]))
    confidence, accuracy = sums / count
    return Reliability(confidence, accuracy, count)


def _labelled(where: str, probabilities: Any, labels: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The probabilities `(data, classes)` in float64, and the labels `(data,)` beside them."""
    p = distributions(where, probabilities)
    y = tensor_of(where, "the labels", labels)
    if y.dtype == torch.bool or y.is_floating_point() or y.is_complex():
        raise RecipeError(where, f"the labels are {y.dtype}", do="Pass integers: labels.long().")
    if p.dim() != 2 or y.shape != p.shape[:1]:
        what = f"the probabilities have the shape {tuple(p.shape)}, the labels {tuple(y.shape)}"
        raise RecipeError(where, what, do="Pass (data, classes) and (data,).")
    y = y.to(p.device, torch.int64)
    if y.min() < 0 or y.max() >= p.shape[-1]:
        what = f"the labels go from {int(y.min())} to {int(y.max())}, for {p.shape[-1]} classes"
        raise RecipeError(where, what, do="Count the classes from 0.")
    return p, y


def _rates(where: str, inside: Any, outside: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The rates of alarms inside and outside, from the largest threshold to the smallest."""
    both = [tensor_of(where, "the scores", x) for x in (inside, outside)]
    for name, x in zip(("inside", "outside"), both):
        if x.dim() != 1 or not len(x):
            what = f"the scores {name} have the shape {tuple(x.shape)}"
            raise RecipeError(where, what, do="Pass one number per datum, and at least one.")
        if x.isnan().any():
            raise RecipeError(where, f"a score {name} is nan", do="Leave out what was not predicted.")
    both = [x.to(both[0].device).double() for x in both]
    thresholds = torch.cat(both).unique().flip(0)
    alarms = [len(x) - torch.searchsorted(x.sort().values, thresholds) for x in both]
    one, other = (torch.cat([n.new_zeros(1), n]).double() / len(x) for n, x in zip(alarms, both))
    return one, other


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
        what = f"the predictions have the shape {tuple(f.shape)}, the targets {tuple(target.shape)}"
        raise RecipeError(where, what, do="Pass (..., data, outputs) and (data, outputs).")
    variance = noise_variances(where, noise, f)
    return f.reshape(-1, *target.shape), target, variance.reshape(-1, *target.shape)
