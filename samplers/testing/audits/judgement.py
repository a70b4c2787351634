"""The judgement of an audit's biases: whether they vanish with the step size, and of which order they are."""

from dataclasses import dataclass
from math import hypot, log2

import numpy as np

from .experiment import Experiment
from .known_laws import LAWS
from .response import quadratic

RESOLVED = 0.6  # a bias whose order may be higher may vanish
SEEN = 1.28  # standard errors above the threshold, at which an effect is seen nine times in ten
ROUNDING = 2e-4  # of a limit that is known without errors of sampling
RESOLUTION = "resolution: nine times in ten an audit of this size finds a temperature"
SECOND_ORDER = np.array([1, -6, 8]) / 3  # of biases at h, h/2, h/4: exact for c + d h + e h^2
FIRST_ORDER = np.array([0, -1, 2])  # exact for c + d h


# ---- biases over the step sizes h, h/2 and h/4


@dataclass(frozen=True)
class Bias:
    """The bias of one statistic at the step sizes h, h/2 and h/4, with its covariance and its limit as h -> 0.

    `remainder`: what the extrapolation may be off by. `left`: standard errors by which the bias fails to vanish.
    """

    subject: str
    label: str
    bias: np.ndarray
    covariance: np.ndarray
    limit: float
    limit_error: float
    remainder: float

    @property
    def left(self) -> float:
        """The distance of the limit from 0, less the remainder, in standard errors."""
        return max(abs(self.limit) - self.remainder, 0) / self.limit_error

    @property
    def error(self) -> np.ndarray:
        """The standard errors at the step sizes."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def score(self) -> float:
        """The largest distance from 0, in standard errors."""
        return float(abs(self.bias / self.error).max())

    @property
    def excess(self) -> str:
        """The limit in words."""
        return self.in_words(self.limit, self.limit_error + self.remainder) + " as h -> 0"

    def in_words(self, bias: float, error: float) -> str:
        """The statistic and a bias of it in words, with its error."""
        where = f"the {self.label} ({self.subject}) is "
        digits = 1 if error > 1e-3 else 2
        if self.label.startswith(("mean", "P(", "correlation")):
            return where + f"off by {bias:+.{digits + 2}f} +- {error:.{digits + 2}f}"
        figure = f"{100 * abs(bias):.{digits}f} % +- {100 * error:.{digits}f} %"
        return where + f"{figure} too {'high' if bias > 0 else 'low'}"

    def __str__(self) -> str:
        sizes = ", ".join(f"{b:+.4f}" for b in self.bias)
        limit = f"{self.limit:+.4f} +- {self.limit_error + self.remainder:.4f}"
        return f"{sizes} at h, h/2, h/4; limit {limit}"


def extrapolated(subject: str, label: str, bias: np.ndarray, covariance: np.ndarray) -> Bias:
    """The bias with its limit to second order in h.

    The remainder is the difference from the limit to first order, where it is more than 2 standard errors.
    """
    change = SECOND_ORDER - FIRST_ORDER
    limit_error, change_error = (np.sqrt(w @ covariance @ w) for w in (SECOND_ORDER, change))
    remainder = max(abs(change @ bias) - 2 * change_error, 0.0)
    return Bias(subject, label, bias, covariance, float(SECOND_ORDER @ bias), float(limit_error), float(remainder))


def of_responses(experiment: Experiment, responses: np.ndarray) -> list[Bias]:
    """Biases without errors of sampling; the limit of h/2, h/4 and h/8 is off by half its change from the first."""
    subject = f"{LAWS[0].name}, T = {experiment.temperatures[0]:g}, by its response to noise"
    biases = []
    for k, bias in zip(quadratic(), responses.T):
        first, limit = SECOND_ORDER @ bias[:3], SECOND_ORDER @ bias[1:]
        error = float(abs(limit - first) / 2 + ROUNDING)
        biases.append(Bias(subject, LAWS[0].labels[k], bias[:3], np.zeros((3, 3)), float(limit), error, 0.0))
    return biases


def order(bias: np.ndarray, covariance: np.ndarray, width: float = 2.0) -> tuple[float, float, float]:
    """The order p of b = c h^p by least squares, and its range within `width` standard errors.

    Where no power fits, as for c h + d h^2, the standard errors are scaled up to the misfit.
    """
    orders = np.linspace(-2, 6, 801)
    whitened = np.linalg.inv(np.linalg.cholesky(covariance))
    values, powers = whitened @ bias, 2.0 ** -np.outer(orders, range(3)) @ whitened.T
    fitted = (powers @ values) / (powers**2).sum(1)
    misfit = ((powers * fitted[:, None] - values) ** 2).sum(1)
    within = orders[misfit < misfit.min() + width**2 * max(1.0, misfit.min())]
    return float(orders[misfit.argmin()]), float(within[0]), float(within[-1])


class Biases:
    """The biases of all cells, the pooled ones of the temperature last: at both temperatures, and over everything."""

    def __init__(self, experiment: Experiment, covariances: list[np.ndarray]):
        self.all: list[Bias] = []
        pooled: dict[str, list] = {}
        sizes = len(experiment.step_sizes)
        groups = [experiment.cells[i : i + sizes] for i in range(0, len(experiment.cells), sizes)]
        for group, covariance in zip(groups, covariances):
            law, T = group[0].law, group[0].temperature
            bias = np.stack([cell.bias for cell in group], 1)
            self._add(f"{law.name}, T = {T:g}", law.labels, bias, covariance)
            for key in (f"T = {T:g}", "every T"):
                pooled.setdefault(key, []).append((bias[-1], covariance[-1]))
        for key in sorted(pooled, key=lambda key: key == "every T"):
            weights = [1 / np.trace(covariance) for _, covariance in pooled[key]]
            bias = sum(w * b for w, (b, _) in zip(weights, pooled[key])) / sum(weights)
            covariance = sum(w**2 * c for w, (_, c) in zip(weights, pooled[key])) / sum(weights) ** 2
            self._add(f"all targets, {key}", ["temperature"], bias[None], covariance[None])
        self.wrong = [b for b in self.all if b.left > experiment.threshold]
        surest = max(self.all, key=lambda b: b.score)
        self.surest = surest if surest.score > experiment.threshold else None

    def _add(self, subject, labels, bias, covariance):
        self.all += [extrapolated(subject, *columns) for columns in zip(labels, bias, covariance)]


# ---- the judgement


def judge(experiment: Experiment, biases: Biases, responses: list[Bias], halves: tuple[float, float]) -> None:
    """Concludes the verdict from the limits of biases, or else from the order of the most certain bias.

    `responses`: the biases that are known without errors of sampling. `halves`: the correlations of theta over the
    first half of a run and over the second.
    """
    experiment.record("diverges", "chains that leave the finite numbers", 0.0, 0.0)
    judged = [*biases.all, *responses]
    for subject in dict.fromkeys(b.subject for b in judged):
        worst = max((b for b in judged if b.subject == subject), key=lambda b: b.left)
        statistic = f"limit of the bias of the {worst.label} as h -> 0, in standard errors"
        experiment.record("bias does not vanish", statistic, worst.left, experiment.threshold, subject)
    _judge_coordinates(experiment)
    _judge_temperature(experiment, *biases.all[-3:-1])
    wrong = biases.wrong + [b for b in responses if b.left > experiment.threshold]
    if wrong:
        _judge_reuse(experiment, *halves)
        pooled = [b for b in wrong if b.subject.startswith("all targets")]
        single = [b for b in wrong if b not in pooled]
        for bias in pooled[:2] + ([max(single, key=lambda b: b.left)] if single else []):
            experiment.conclude("bias does not vanish", f"{bias.excess}; {bias}")
        return
    if biases.surest:
        _judge_order(experiment, biases.surest)
    last = biases.all[-1]
    smallest = [(experiment.threshold + SEEN) * error for error in (last.error[0], last.limit_error)]
    at_h, limit = (_of_a_temperature(excess + remainder) for excess, remainder in zip(smallest, (0, last.remainder)))
    text = f"{RESOLUTION} {at_h:.1%} off at h, or {limit:.1%} off as h -> 0"
    if experiment.unseen:
        text += f"; its response to noise is not known, since {experiment.unseen}"
    if responses:
        exactly = experiment.threshold * max(b.limit_error for b in responses if b.label == "temperature")
        text += f"; on the {responses[0].subject}, {exactly:.2%} off as h -> 0"
    experiment.findings.append(text)


def judge_as_exact(experiment: Experiment, biases: Biases) -> None:
    """Concludes whether any bias counts at any step size."""
    experiment.record("diverges", "chains that leave the finite numbers", 0.0, 0.0)
    for subject in dict.fromkeys(b.subject for b in biases.all):
        worst = max((b for b in biases.all if b.subject == subject), key=lambda b: b.score)
        statistic = f"bias of the {worst.label} at the worst step size, in standard errors"
        experiment.record("not exact", statistic, worst.score, experiment.threshold, subject)
    if biases.surest:
        k = int(abs(biases.surest.bias / biases.surest.error).argmax())
        text = biases.surest.in_words(biases.surest.bias[k], biases.surest.error[k])
        experiment.conclude("not exact", f"{text} at h = {experiment.step_sizes[k]:g}")
        return
    excesses = (experiment.threshold + SEEN) * biases.all[-1].error
    sizes = ", ".join(f"{_of_a_temperature(s):.1%} off at {h:g}" for s, h in zip(excesses, experiment.step_sizes))
    experiment.findings.append(f"{RESOLUTION} {sizes}")


def _of_a_temperature(excess):
    """The smallest excess that is seen, whose own standard error grows with the temperature."""
    return excess / (1 - excess) if excess < 1 else np.inf


def _judge_order(experiment, surest):
    """Concludes whether the surest bias vanishes.

    An order of 1 or more must fit it, a constant must not, and the limit must be within 3 standard errors of 0. Where
    only lower orders than RESOLVED fit, it does not vanish.
    """
    p, low, high = order(surest.bias, surest.covariance)
    (*_, highest), (*_, farthest) = (order(surest.bias, surest.covariance, w) for w in (3.0, experiment.threshold))
    verdict, advice = "vanishing bias", ""
    if not (low > 0 and highest >= 1 and surest.left < 3):
        verdict, advice = "bias, limit unresolved", "; pass more chains"
    if farthest < RESOLVED and surest.left > 2:
        verdict, advice = "bias does not vanish", ""
        statistic = "order of the surest bias in h, at most"
        experiment.record(verdict, statistic, farthest, RESOLVED, least=True)
    at_h = surest.in_words(surest.bias[0], surest.error[0])
    text = f"{at_h} at h, of apparent order h^{p:.1f} (95 %: {low:.1f} to {high:.1f}); {surest}{advice}"
    experiment.conclude(verdict, text)


def _judge_reuse(experiment, before, after):
    """Checks that the second half of a run does not repeat the noise of the first.

    Asked only of a wrong law: a right sampler, of exact draws, may end at one point after any time.
    """
    text = f"theta has the correlation {after:.2f} over the second half of a run, {before:.2f} over the first: "
    text += "is the noise of every step that of the first?"
    statistic = "correlation over the second half of a run, less that over the first"
    experiment.keeps("noise reused", statistic, after - before, 0.5, text)


def _judge_coordinates(experiment):
    """Checks that coordinates of separable targets are independent."""
    threshold = experiment.threshold
    biases, errors = [], []
    for cell in experiment.cells:
        if cell.law.separable and cell.step_size == experiment.step_sizes[-1]:
            chosen = [k for k, label in enumerate(cell.law.labels) if label.startswith("correlation")]
            biases.append(abs(cell.bias[chosen]).min())
            errors.append(cell.error[chosen].max())
    r, error = min(biases), max(errors)
    r = r if r <= 1 + threshold * error else 0.0  # about the exact means; beyond 1 the means of draws are off
    text = f"coordinates of separable targets have a correlation of at least {r:.2f}, exactly 0"
    statistic = "correlation of coordinates on separable targets"
    experiment.keeps("noise shared across coordinates", statistic, r, max(0.1, threshold * error), text)


def _judge_temperature(experiment, one, other):
    """Checks that the temperature of the draws is the first power of the temperature asked for."""
    T = experiment.temperatures
    t, u = (max(1e-9, 1 + b.limit) for b in (one, other))
    octaves = log2(T[1] / T[0])
    power = 1 + log2(u / t) / octaves
    error = hypot(one.limit_error / t, other.limit_error / u) * 1.443 / abs(octaves)
    meanings = {0: "it is ignored", 2: "it is used as a standard deviation"}
    near = (text for p, text in meanings.items() if abs(power - p) < max(0.2, 4 * error))
    text = f"asked for T = {T[0]:g} and {T[1]:g}, as h -> 0 the draws have {T[0] * t:.3f} and "
    text += f"{T[1] * u:.3f}, T^{power:.2f}: {next(near, 'it is used wrongly')}"
    bound = max(0.4, experiment.threshold * error)
    statistic = "exponent of T in the temperature of the draws, less 1"
    experiment.keeps("temperature used wrongly", statistic, abs(power - 1), bound, text)
