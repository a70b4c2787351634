"""What the draws of a run predict together, one draw after another, and scores of such predictions."""

from dataclasses import dataclass

import numpy as np
import torch

from recipe.errors import RecipeError


class _Means:
    """Weighted means of tensors over draws that are seen once, with the number of draws and their total weight."""

    _names: tuple[str, ...] = ()  # the first has the shape that all draws share

    def __init__(self):
        self.draws, self._weight = 0, 0.0
        self._means = dict.fromkeys(self._names, torch.zeros((), dtype=torch.float64))

    def __repr__(self) -> str:
        shape = f" for {' x '.join(map(str, self._shape))}" if self.draws else ""
        return f"{type(self).__name__} of {self.draws} draws{shape}"

    @property
    def _shape(self):
        return tuple(self._means[self._names[0]].shape)

    def state_dict(self) -> dict:
        """All there is to save: `draws`, `weight` and the means by name, copies in float64."""
        return {"draws": self.draws, "weight": self._weight, **{name: x.clone() for name, x in self._means.items()}}

    def load_state_dict(self, state: dict) -> None:
        """Go on from what `state_dict` gave, bit for bit. Raises RecipeError for the state of something else."""
        if set(state) != {"draws", "weight", *self._names}:
            raise RecipeError(self._where("load_state_dict"), f"the state has the entries {sorted(state)}",
                              do=f"Pass what state_dict() of a {type(self).__name__} returned.")
        self._means = {name: state[name].to(torch.float64, copy=True) for name in self._names}
        self.draws, self._weight = int(state["draws"]), float(state["weight"])

    def _where(self, what):
        return f"{type(self).__name__}, {what}"

    def _mean(self, name):
        if not self.draws:
            raise RecipeError(type(self).__name__, "there are no draws yet", do="Call add first.")
        return self._means[name].clone()

    def _weights(self, what, weight, leading, device):
        """The weights `(draws,)` of a call, with sum 1, and their sum."""
        w = _tensor(self._where(what), "weights", weight).to(device, torch.float64)
        try:
            w = w.expand(leading).reshape(-1)
        except RuntimeError as error:
            told = f"the weights have the shape {tuple(w.shape)}, the draws {tuple(leading)}"
            raise RecipeError(self._where(what), told, do="Pass one number, or one per draw.") from error
        total = float(w.sum())
        if not (w > 0).all() or total == float("inf"):
            raise RecipeError(self._where(what), "a weight is not a number > 0", do="Pass step sizes, or none.")
        return w / total, total

    def _check(self, what, shape):
        if self.draws and tuple(shape) != self._shape:
            told = f"the draw has the shape {tuple(shape)}, those before it {self._shape}"
            raise RecipeError(self._where(what), told, do="Predict the same data with every draw.")

    def _add(self, draws, total, means):
        """Move each mean to that of all draws; returns the share of the new ones, and how they differ, by name."""
        share = total / (self._weight + total)
        # Means rather than sums: equal draws stay what they are, to the last bit.
        gaps = {name: new - self._means[name].to(new.device) for name, new in means.items()}
        self._means = {name: self._means[name].to(gap.device) + share * gap for name, gap in gaps.items()}
        self.draws, self._weight = self.draws + draws, self._weight + total
        return share, gaps


class Predictive(_Means):
    """The posterior predictive of a classifier, from the logits of one draw after another; none is kept.

    p = sum_k w_k softmax(logits_k) / sum_k w_k, whose entropy H[p] is the mean entropy of the draws plus the mutual
    information of label and parameters. Sums are in float64, on the device of the logits.
    Sources: Welling & Teh 2011 (weights); Houlsby, Huszar, Ghahramani & Lengyel 2011, eq. (2), and Depeweg,
    Hernandez-Lobato, Doshi-Velez & Udluft 2018 (entropies).

    >>> predictive = Predictive()
    >>> for logits in torch.tensor([[[0.0, 0.0], [50.0, 0.0]], [[0.0, 0.0], [0.0, 50.0]]]):
    ...     predictive.add(logits)
    >>> predictive
    Predictive of 2 draws for 2 x 2
    >>> predictive.probabilities
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    >>> predictive.mutual_information                  # the draws agree on the first datum, not on the second
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """

    _names = ("probabilities", "expected_entropy")

    def add(self, logits, *, weight=1.0) -> None:
        """Take the logits `(data, classes)` of a draw into account, or `(..., data, classes)` of several.

        `weight`, such as the step size, is a number > 0, or one per draw: it broadcasts to `(...)`. Raises RecipeError,
        and keeps all as it was, for another shape than before, one class, logits or weights that are not finite.

        >>> predictive = Predictive()
        >>> predictive.add(torch.randn(4, 100, 20, 3), weight=torch.linspace(0.2, 0.1, 100))   # chains, draws
        >>> predictive.draws, predictive.probabilities.shape
        (400, torch.Size([20, 3]))
        """
        logits = _predictions(self._where("add"), "logits", logits, last="classes")
        self._take("add", logits.to(torch.float64).softmax(-1), weight)

    def add_probabilities(self, probabilities, *, weight=1.0) -> None:
        """Like `add`, of probabilities `(..., data, classes)`; RecipeError also where they do not sum to 1."""
        self._take("add_probabilities", _distributions(self._where("add_probabilities"), probabilities), weight)

    def _take(self, what, p, weight):
        self._check(what, p.shape[-2:])
        w, total = self._weights(what, weight, p.shape[:-2], p.device)
        p = p.reshape(-1, *p.shape[-2:])
        self._add(len(p), total, {"probabilities": torch.tensordot(w, p, 1),
                                  "expected_entropy": torch.tensordot(w, _entropy(p), 1)})

    @property
    def probabilities(self) -> torch.Tensor:
        """The mean of the probabilities of the draws, `(data, classes)` in float64."""
        return self._mean("probabilities").clamp(max=1)  # rounding

    @property
    def entropy(self) -> torch.Tensor:
        """The entropy H[p] of the mean probabilities p in nats, `(data,)`: all uncertainty of the label."""
        return _entropy(self.probabilities)

    @property
    def expected_entropy(self) -> torch.Tensor:
        """The mean over draws of the entropy of their probabilities, `(data,)`: the noise of the label (aleatoric)."""
        return self._mean("expected_entropy")

    @property
    def mutual_information(self) -> torch.Tensor:
        """H[p] less the expected entropy, `(data,)`: how the draws disagree (epistemic), never below 0."""
        return (self.entropy - self.expected_entropy).clamp(min=0)


class PredictiveMoments(_Means):
    """The mean and variance of a regression's posterior predictive, from one draw after another; none is kept.

    Var[y] = E[noise variance] + Var[f], the law of total variance, where Var[f] is the mean square deviation and the
    weights are those of `Predictive`. Sums are in float64, on the device of the predictions.
    Sources: Chan, Golub & LeVeque 1979 (updates); Depeweg et al. 2018 (the two parts).

    >>> moments = PredictiveMoments()
    >>> for f in (torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [2.0]])):
    ...     moments.add(f, noise_variance=0.5)
    >>> moments.mean.T, moments.variance.T
    (tensor([[2., 2.]], dtype=torch.float64), tensor([[1.5000, 0.5000]], dtype=torch.float64))
    """

    _names = ("mean", "variance_of_mean", "expected_variance")

    def add(self, predictions, *, noise_variance=0.0, weight=1.0) -> None:
        """Take the predictions `(data, outputs)` of a draw into account, or `(..., data, outputs)` of several.

        `noise_variance` >= 0 broadcasts to the predictions, `weight` > 0 to `(...)`. Raises RecipeError, and keeps all
        as it was, for another shape than before, and for what is not finite.
        """
        where = self._where("add")
        f = _predictions(where, "predictions", predictions, last="outputs").to(torch.float64)
        self._check("add", f.shape[-2:])
        w, total = self._weights("add", weight, f.shape[:-2], f.device)
        noise = _tensor(where, "noise variances", noise_variance).to(f.device, torch.float64)
        if not ((noise >= 0) & noise.isfinite()).all():
            raise RecipeError(where, "a noise variance is not a number >= 0", do="Pass sigma**2, not its logarithm.")
        try:
            noise = noise.expand(f.shape)
        except RuntimeError as error:
            raise RecipeError(where, f"the noise variances have the shape {tuple(noise.shape)}, the predictions "
                              f"{tuple(f.shape)}", do="Pass one number, or one per prediction.") from error
        f, noise = (x.reshape(-1, *f.shape[-2:]) for x in (f, noise))
        mean = torch.tensordot(w, f, 1)
        # Around the means: a mean of squares less the square of the mean would cancel far from 0.
        share, gaps = self._add(len(f), total, {"mean": mean, "variance_of_mean": torch.tensordot(w, (f - mean)**2, 1),
                                                "expected_variance": torch.tensordot(w, noise, 1)})
        self._means["variance_of_mean"] += share * (1 - share) * gaps["mean"]**2

    @property
    def mean(self) -> torch.Tensor:
        """The mean of the predictions, `(data, outputs)` in float64."""
        return self._mean("mean")

    @property
    def variance(self) -> torch.Tensor:
        """The variance of an observation, `(data, outputs)`: the sum of the two below."""
        return self.expected_variance + self.variance_of_mean

    @property
    def expected_variance(self) -> torch.Tensor:
        """The mean over draws of the noise variance, `(data, outputs)` (aleatoric)."""
        return self._mean("expected_variance")

    @property
    def variance_of_mean(self) -> torch.Tensor:
        """The variance over draws of the prediction, `(data, outputs)` (epistemic), never below 0."""
        return self._mean("variance_of_mean")


def accuracy(probabilities, labels) -> float:
    """The fraction of data whose label is the most probable class; the first of equals.

    `probabilities` (data, classes), `labels` (data,) integers below classes; RecipeError for others.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), [0, 1])
    0.5
    """
    p, y = _labelled("accuracy", probabilities, labels)
    return float((p.argmax(-1) == y).double().mean())


def negative_log_likelihood(probabilities, labels) -> float:
    """The mean of -log p(label) in nats, where p is at least the smallest normal number: at most 708.4.

    Shapes and errors as for `accuracy`.

    >>> negative_log_likelihood(torch.tensor([[1.0, 0.0]]), [0])
    0.0
    """
    p, y = _labelled("negative_log_likelihood", probabilities, labels)
    of_label = p.gather(-1, y[:, None]).clamp(min=torch.finfo(p.dtype).tiny)
    return 0.0 - float(of_label.log().mean())  # not -0.0


def brier(probabilities, labels) -> float:
    """The mean over data of sum_c (p_c - [c is the label])^2, from 0 to 2.

    Shapes and errors as for `accuracy`. Source: Brier 1950.

    >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), [0, 0])
    1.25
    """
    p, y = _labelled("brier", probabilities, labels)
    return float((p - torch.nn.functional.one_hot(y, p.shape[-1])).square().sum(-1).mean())


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: of each bin the mean confidence, the accuracy, and the count of data, all `(bins,)`.

    Confidence and accuracy of an empty bin are nan.
    """

    confidence: torch.Tensor
    accuracy: torch.Tensor
    count: torch.Tensor

    def plot(self, ax=None):
        """Bars of the accuracy beside the diagonal, on matplotlib axes `ax` or new ones, which are returned.

        Raises RecipeError where no axes are given and matplotlib is missing.
        """
        if ax is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                raise RecipeError("Reliability, plot", f"matplotlib cannot be imported ({error})",
                                  do="pip install matplotlib, or draw confidence and accuracy otherwise.") from error
            ax = pyplot.subplots()[1]
        full, bins = (self.count > 0).cpu(), len(self.count)
        centre = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
        heights = self.accuracy.cpu()[full]
        ax.bar(centre[full].numpy(), heights.numpy(), width=1/bins, edgecolor="white", label="accuracy")
        ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="calibrated")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        ax.legend()
        return ax


def reliability(probabilities, labels, bins: int = 15) -> Reliability:
    """Confidence, the largest probability, and accuracy in `bins` intervals ((m - 1)/bins, m/bins] of confidence.

    Shapes and errors as for `accuracy`; RecipeError also unless bins is an integer >= 1.
    Source: Guo, Pleiss, Sun & Weinberger 2017, section 2.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]), [0, 0, 1], bins=2).accuracy
    tensor([   nan, 0.6667], dtype=torch.float64)
    """
    return _binned("reliability", probabilities, labels, bins)


def expected_calibration_error(probabilities, labels, bins: int = 15) -> float:
    """ECE = sum_m (n_m/n) |accuracy_m - confidence_m| over the bins of `reliability`, whose errors it shares.

    It is biased: of calibrated predictions it is not 0, but of the order of sqrt(bins/n).
    Source: Guo, Pleiss, Sun & Weinberger 2017, eq. (3).

    >>> expected_calibration_error(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), [0, 0])
    0.25
    """
    diagram = _binned("expected_calibration_error", probabilities, labels, bins)
    gaps = (diagram.accuracy - diagram.confidence).abs()
    return float((gaps * diagram.count / diagram.count.sum()).nansum())


def roc(inside, outside) -> tuple[torch.Tensor, torch.Tensor]:
    """The rates of false and true alarms of "score >= t is outside", for t from above all scores to the smallest.

    `inside` and `outside` are scores `(data,)`, such as entropies, of data like the training data and of others. Both
    rates are `(thresholds,)` in float64, from 0 to 1. Raises RecipeError for other shapes, no scores, and nan.

    >>> false, true = roc([0.1, 0.2], [0.2, 0.3])
    >>> false.tolist(), true.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    inside, outside = _scores("roc", inside, outside)
    thresholds = torch.cat([inside, outside]).unique().flip(0)

    def rate(scores):
        alarms = len(scores) - torch.searchsorted(scores.sort().values, thresholds)
        return torch.cat([alarms.new_zeros(1), alarms]).double() / len(scores)

    return rate(inside), rate(outside)


def roc_auc(inside, outside) -> float:
    """The area under `roc`: the chance that a score outside exceeds one inside, where ties count half.

    Scores and errors as for `roc`. Source: Hanley & McNeil 1982.

    >>> roc_auc([0.1, 0.2], [0.2, 0.3])
    0.875
    """
    from scipy.stats import rankdata  # scipy.stats is slow to import

    inside, outside = _scores("roc_auc", inside, outside)
    n, m = len(inside), len(outside)
    ranks = rankdata(torch.cat([outside, inside]).cpu().numpy())[:m]
    return float((ranks.sum() - m * (m + 1) / 2) / (n * m))


def _entropy(p):
    return torch.special.entr(p).sum(-1)


def _binned(where, probabilities, labels, bins):
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise RecipeError(where, f"bins is an integer >= 1, got {bins!r}", do="Choose 15 if unsure.")
    p, y = _labelled(where, probabilities, labels)
    confidence, prediction = p.max(-1)
    # k/bins by division: the edges that the decimals of a user round to, as 0.6 does for 3/5.
    index = torch.bucketize(confidence, torch.arange(1, bins, dtype=p.dtype, device=p.device) / bins)
    count = torch.bincount(index, minlength=bins)
    sums = p.new_zeros(2, bins).index_add_(1, index, torch.stack([confidence, (prediction == y).to(p.dtype)]))
    return Reliability(*(sums / count), count)


def _tensor(where, name, value):
    try:  # by numpy, whose reals are float64: 0.1 in a list is not rounded to float32
        return (value if torch.is_tensor(value) else torch.from_numpy(np.array(value))).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(where, f"the {name} are no numbers ({error})", do="Pass a tensor.") from error


def _predictions(where, name, value, *, last):
    """Finite real numbers `(..., data, last)`."""
    x = _tensor(where, name, value)
    if not x.is_floating_point():
        raise RecipeError(where, f"the {name} are {x.dtype}", do="Pass real numbers.")
    if x.dim() < 2 or not x.numel():
        raise RecipeError(where, f"the {name} have the shape {tuple(x.shape)}", do=f"Pass (data, {last}).")
    if last == "classes" and x.shape[-1] == 1:
        raise RecipeError(where, f"the {name} {tuple(x.shape)} are of one class",
                          do="Give both classes a column: of a lone logit z, 0 and z; of a probability p, 1 - p and p.")
    if not x.isfinite().all():
        raise RecipeError(where, f"the {name} are not finite", do="Leave out chains that diverged.")
    return x


def _distributions(where, probabilities):
    """Probabilities `(..., data, classes)` in float64."""
    p = _predictions(where, "probabilities", probabilities, last="classes")
    rounding = max(1e-4, 4 * torch.finfo(p.dtype).eps)
    p = p.to(torch.float64)
    if (p < 0).any() or ((p.sum(-1) - 1).abs() > rounding).any():
        raise RecipeError(where, "the probabilities of a datum are below 0 or do not sum to 1",
                          do="Pass logits.softmax(-1), not logits or their logarithms.")
    return p.clamp(max=1)


def _labelled(where, probabilities, labels):
    """The probabilities `(data, classes)` in float64, and the labels `(data,)` beside them."""
    p, y = _distributions(where, probabilities), _tensor(where, "labels", labels)
    if y.dtype == torch.bool or y.is_floating_point() or y.is_complex():
        raise RecipeError(where, f"the labels are {y.dtype}", do="Pass integers: labels.long().")
    if p.dim() != 2 or y.shape != p.shape[:1]:
        raise RecipeError(where, f"the probabilities have the shape {tuple(p.shape)}, the labels {tuple(y.shape)}",
                          do="Pass (data, classes) and (data,).")
    y = y.to(p.device, torch.int64)
    if y.min() < 0 or y.max() >= p.shape[-1]:
        raise RecipeError(where, f"the labels go from {int(y.min())} to {int(y.max())}, for {p.shape[-1]} classes",
                          do="Count the classes from 0.")
    return p, y


def _scores(where, inside, outside):
    both = [_tensor(where, "scores", x) for x in (inside, outside)]
    for name, x in zip(("inside", "outside"), both):
        if x.dim() != 1 or not len(x):
            raise RecipeError(where, f"the scores {name} have the shape {tuple(x.shape)}",
                              do="Pass one number per datum, and at least one.")
        if x.isnan().any():
            raise RecipeError(where, f"a score {name} is nan", do="Leave out what was not predicted.")
    return both[0].double(), both[1].to(both[0].device).double()
