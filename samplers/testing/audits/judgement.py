"""The judgement of an audit's biases: whether they vanish with the step size, and of which order they are."""

from dataclasses import dataclass
from math import hypot, log2
from typing import NamedTuple

import numpy as np

from ..results import Result
from .biases import limits, order
from .experiment import Experiment
from .first_look import Halves
from .verdicts import Cell

RESOLVED = 0.6  # a bias whose order may be higher may vanish
SEEN = 1.28  # standard errors above the threshold, at which an effect is seen nine times in ten
LIMIT = "E phi(theta_n) -> E phi as h -> 0"


class Series(NamedTuple):
    """Biases and their standard errors over the step sizes, (3, statistics)."""

    subject: str
    labels: list[str]
    bias: np.ndarray
    error: np.ndarray


class Bias(NamedTuple):
    """The bias of one statistic over the step sizes, its largest distance from 0 in standard errors, and its text."""

    bias: np.ndarray
    error: np.ndarray
    score: float
    text: str


@dataclass(frozen=True)
class Biases:
    """The biases that do not vanish, as scores and texts, and the most certain of all biases; true if there is any."""

    series: list[Series]
    wrong: list[tuple[float, str]]
    surest: Bias | None
    results: list[Result]

    def __bool__(self) -> bool:
        return bool(self.wrong or self.surest)


def biases_of(cells: list[Cell], threshold: float) -> Biases:
    """The biases of all cells beyond the threshold, in standard errors."""
    wrong: list[tuple[float, str]] = []
    surest: Bias | None = None
    results = []
    series = _series(cells)
    for subject, labels, bias, error in series:
        limit, limit_error, scores = limits(bias, error)
        for k, label in enumerate(labels):
            text = (
                f"{label}, {subject}: {', '.join(f'{b:+.3f}' for b in bias[:, k])} at h, h/2, h/4; limit "
                f"{limit[k]:+.3f} +- {limit_error[k]:.3f}"
            )
            if scores[k] > threshold:
                wrong.append((scores[k], text))
            z = abs(bias[:, k] / error[:, k]).max()
            if z > (surest.score if surest else threshold):
                surest = Bias(bias[:, k], error[:, k], z, text)
        k = int(scores.argmax())
        statistic = f"bias of the {labels[k]} that is left as h -> 0, in standard errors"
        results.append(Result("limit", statistic, scores[k], threshold, LIMIT, subject))
    return Biases(series, wrong, surest, results)


def _series(cells):
    """Biases by target and temperature; then biases of the temperature, pooled over targets, and over everything."""
    settings = dict.fromkeys((cell.law.name, cell.temperature) for cell in cells)
    series: list[Series] = []
    pooled: dict[str, list] = {}
    for name, T in settings:
        group = [cell for cell in cells if (cell.law.name, cell.temperature) == (name, T)]
        bias, error = np.stack([c.bias for c in group]), np.stack([c.error for c in group])
        series.append(Series(f"{name}, T = {T:g}", group[0].law.labels, bias, error))
        for key in (f"T = {T:g}", "every T"):
            pooled.setdefault(key, []).append((bias[:, -1:], error[:, -1:]))
    for key in sorted(pooled, key=lambda key: key == "every T"):
        series.append(Series(f"all targets, {key}", ["temperature"], *_pooled(pooled[key])))
    return series


def _pooled(temperatures):
    """The mean of biases and its standard errors, with the same weights at every step size, as the limit needs."""
    weights = [1 / (error**2).mean() for _, error in temperatures]
    bias = sum(w * b for w, (b, _) in zip(weights, temperatures)) / sum(weights)
    variance = sum((w * e) ** 2 for w, (_, e) in zip(weights, temperatures))
    return bias, np.sqrt(variance) / sum(weights)


# ---- the judgement


def judge(experiment: Experiment, cells: list[Cell], biases: Biases, halves: Halves) -> None:
    """Concludes the verdict from the limits of biases, or else from the order of the most certain bias."""
    comparisons = experiment.comparisons
    threshold = experiment.plan.threshold
    comparisons.results.append(
        Result("stability", "chains that leave the finite numbers", 0.0, 0.0, "theta stays finite")
    )
    _judge_coordinates(experiment, cells)
    _judge_temperature(experiment, biases.series)
    if biases.wrong:
        _judge_reuse(experiment, *halves)
        for text in _most_telling(biases.wrong):
            comparisons.conclude("bias does not vanish", text)
        return
    if biases.surest and not _vanishes(experiment, biases.surest):
        return
    error = biases.series[-1].error
    at_h = error[0, 0]
    in_the_limit = 2 * hypot(1.5 * error[2, 0], error[1, 0])
    seen = (threshold + SEEN) * np.array([at_h, in_the_limit])
    seen = np.where(seen < 1, seen / np.maximum(1 - seen, 1e-9), np.inf)  # errors grow with the temperature
    comparisons.findings.append(
        "resolution: nine times in ten an audit of this size finds a temperature {:.1%} off at h, or "
        "{:.1%} off as h -> 0".format(*seen)
    )


def _most_telling(wrong):
    """Texts of biases that do not vanish: of all targets together, and the surest one of a single target."""
    pooled = [text for _, text in wrong if "all targets" in text]
    single = [(score, text) for score, text in wrong if text not in pooled]
    return pooled[:2] + ([max(single)[1]] if single else [])


def _vanishes(experiment, surest):
    """Whether the surest bias may vanish, by its order in h."""
    comparisons = experiment.comparisons
    p, low, high = order(surest.bias, surest.error)
    highest = order(surest.bias, surest.error, width=experiment.plan.threshold)[2]
    verdict, advice = "bias does not vanish", ""
    if high > RESOLVED:
        verdict = "vanishing bias"
    elif highest > RESOLVED:
        verdict, advice = "bias, limit unresolved", "; pass more chains"
    comparisons.conclude(verdict, f"of apparent order h^{p:.1f} (95 %: {low:.1f} to {high:.1f}); {surest.text}{advice}")
    if verdict != "bias does not vanish":
        return True
    statistic = "order of the surest bias in h, at most"
    comparisons.results.append(Result("limit", statistic, highest, RESOLVED, LIMIT, least=True))
    return False


def _judge_reuse(experiment, before, after):
    """Checks that the second half of a run does not repeat the noise of the first.

    Asked only of a wrong law: a right sampler, of exact draws, may end at one point after any time.
    """
    experiment.comparisons.keeps(
        "noise",
        "correlation over the second half of a run, less that over the first",
        after - before,
        0.5,
        "corr(theta_n, theta_2n) = corr(theta_0, theta_n)",
        "noise reused",
        f"theta has the correlation "
        f"{after:.2f} over the second half of a run, {before:.2f} over the first: is the noise of every step "
        "that of the first?",
    )


def _judge_coordinates(experiment, cells):
    """Checks that coordinates of separable targets are independent."""
    threshold = experiment.plan.threshold
    smallest = experiment.plan.step_sizes[-1]
    separable = [cell for cell in cells if cell.law.separable and cell.step_size == smallest]
    biases, errors = [], []
    for cell in separable:
        chosen = [k for k, label in enumerate(cell.law.labels) if label.startswith("correlation")]
        biases.append(abs(cell.bias[chosen]).min())
        errors.append(cell.error[chosen].max())
    r, error = min(biases), max(errors)
    r = r if r <= 1 + threshold * error else 0.0  # about the exact means; beyond 1 the means of draws are off
    experiment.comparisons.keeps(
        "coordinates",
        "correlation of neighbours on separable targets",
        r,
        max(0.1, threshold * error),
        "coordinates are independent",
        "noise shared across coordinates",
        f"neighbouring coordinates of separable targets have a correlation of at least {r:.2f}, exactly 0",
    )


def _judge_temperature(experiment, series):
    """Checks that the temperature of the draws is the first power of the temperature asked for."""
    asked = experiment.plan.temperatures
    threshold = experiment.plan.threshold
    one, other = (limits(s.bias, s.error)[:2] for s in series[-3:-1])
    t, u = (max(1e-9, 1 + limit.item()) for limit, _ in (one, other))
    octaves = log2(asked[1] / asked[0])
    power = 1 + log2(u / t) / octaves
    error = hypot(one[1].item() / t, other[1].item() / u) * 1.443 / abs(octaves)
    meanings = {0: "it is ignored", 2: "it is used as a standard deviation"}
    near = (text for p, text in meanings.items() if abs(power - p) < max(0.2, 4 * error))
    experiment.comparisons.keeps(
        "temperature",
        "exponent of T in the temperature of the draws, less 1",
        abs(power - 1),
        max(0.4, threshold * error),
        "theta . grad U / dim = T",
        "temperature used wrongly",
        f"asked for T = {asked[0]:g} and {asked[1]:g}, as h -> 0 the draws have {asked[0] * t:.3f} and "
        f"{asked[1] * u:.3f}, T^{power:.2f}: {next(near, 'it is used wrongly')}",
    )
