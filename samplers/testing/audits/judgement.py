"""The judgement of an audit's biases: whether they vanish with the step size, and of which order they are."""

from dataclasses import dataclass
from math import hypot, log2

import numpy as np

from ..results import Result
from .experiment import Cell, Experiment

RESOLVED = 0.6  # a bias whose order may be higher may vanish
SEEN = 1.28  # standard errors above the threshold, at which an effect is seen nine times in ten
LIMIT = "E phi(theta_n) -> E phi as h -> 0"


# ---- biases over the step sizes h, h/2 and h/4


def limits(bias: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The limits of biases as h -> 0, their standard errors, and scores against vanishing, in standard errors.

    The limit is exact to second order in h. A bias does not vanish where b(h/4) is more than two thirds of b(h/2),
    unlike any bias of order h^.6 or higher, and the limit has the same sign.
    """
    coarse, middle, fine = bias
    limit = (coarse - 6 * middle + 8 * fine) / 3
    limit_error = np.sqrt(error[0] ** 2 + 36 * error[1] ** 2 + 64 * error[2] ** 2) / 3
    score = np.sign(fine) * (1.5 * fine - middle) / np.hypot(1.5 * error[2], error[1])
    return limit, limit_error, np.where(np.sign(fine) * limit > 2 * limit_error, score.clip(0), 0.0)


def order(bias: np.ndarray, error: np.ndarray, width: float = 2.0) -> tuple[float, float, float]:
    """The order p of b = c h^p by least squares, and its range within `width` standard errors.

    Where no power fits, as for c h + d h^2, the standard errors are scaled up to the misfit.
    """
    orders = np.linspace(-2, 6, 801)
    powers = 2.0 ** -np.outer(orders, range(3)) / error
    fitted = (powers @ (bias / error)) / (powers**2).sum(1)
    misfit = ((powers * fitted[:, None] - bias / error) ** 2).sum(1)
    within = orders[misfit < misfit.min() + width**2 * max(1.0, misfit.min())]
    return float(orders[misfit.argmin()]), float(within[0]), float(within[-1])


@dataclass(frozen=True)
class Bias:
    """The bias of one statistic at the step sizes h, h/2 and h/4, with standard errors, and its limit as h -> 0.

    `left`: standard errors by which the bias fails to vanish.
    """

    subject: str
    label: str
    bias: np.ndarray
    error: np.ndarray
    limit: float
    limit_error: float
    left: float

    @property
    def score(self) -> float:
        """The largest distance from 0, in standard errors."""
        return float(abs(self.bias / self.error).max())

    def __str__(self) -> str:
        sizes = ", ".join(f"{b:+.3f}" for b in self.bias)
        limit = f"{self.limit:+.3f} +- {self.limit_error:.3f}"
        return f"{self.label}, {self.subject}: {sizes} at h, h/2, h/4; limit {limit}"


class Biases:
    """The biases of all cells, the pooled ones of the temperature last: at both temperatures, and over everything."""

    def __init__(self, cells: list[Cell], threshold: float):
        self.all: list[Bias] = []
        pooled: dict[str, list] = {}
        for name, T in dict.fromkeys((cell.law.name, cell.temperature) for cell in cells):
            group = [cell for cell in cells if (cell.law.name, cell.temperature) == (name, T)]
            bias, error = np.stack([c.bias for c in group]), np.stack([c.error for c in group])
            self._add(f"{name}, T = {T:g}", group[0].law.labels, bias, error)
            for key in (f"T = {T:g}", "every T"):
                pooled.setdefault(key, []).append((bias[:, -1:], error[:, -1:]))
        for key in sorted(pooled, key=lambda key: key == "every T"):
            self._add(f"all targets, {key}", ["temperature"], *_pooled(pooled[key]))
        self.wrong = [b for b in self.all if b.left > threshold]
        surest = max(self.all, key=lambda b: b.score)
        self.surest = surest if surest.score > threshold else None
        self.results = []
        for subject in dict.fromkeys(b.subject for b in self.all):
            worst = max((b for b in self.all if b.subject == subject), key=lambda b: b.left)
            statistic = f"bias of the {worst.label} that is left as h -> 0, in standard errors"
            self.results.append(Result("limit", statistic, worst.left, threshold, LIMIT, subject))

    def _add(self, subject, labels, bias, error):
        columns = zip(bias.T, error.T, *(x.tolist() for x in limits(bias, error)))
        self.all += [Bias(subject, label, *column) for label, column in zip(labels, columns)]

    def __bool__(self) -> bool:
        return bool(self.wrong or self.surest)


def _pooled(temperatures):
    """The mean of biases and its standard errors, with the same weights at every step size, as the limit needs."""
    weights = [1 / (error**2).mean() for _, error in temperatures]
    bias = sum(w * b for w, (b, _) in zip(weights, temperatures)) / sum(weights)
    variance = sum((w * e) ** 2 for w, (_, e) in zip(weights, temperatures))
    return bias, np.sqrt(variance) / sum(weights)


# ---- the judgement


def judge(experiment: Experiment, biases: Biases, halves: tuple[float, float]) -> None:
    """Concludes the verdict from the limits of biases, or else from the order of the most certain bias.

    `halves`: the correlations of theta over the first half of a run and over the second.
    """
    experiment.results.append(
        Result("stability", "chains that leave the finite numbers", 0.0, 0.0, "theta stays finite")
    )
    _judge_coordinates(experiment)
    _judge_temperature(experiment, *biases.all[-3:-1])
    if biases.wrong:
        _judge_reuse(experiment, *halves)
        pooled = [b for b in biases.wrong if b.subject.startswith("all targets")]
        single = [b for b in biases.wrong if b not in pooled]
        for bias in pooled[:2] + ([max(single, key=lambda b: b.left)] if single else []):
            experiment.conclude("bias does not vanish", str(bias))
        return
    if biases.surest and not _vanishes(experiment, biases.surest):
        return
    at_h, middle, fine = biases.all[-1].error
    seen = (experiment.threshold + SEEN) * np.array([at_h, 2 * hypot(1.5 * fine, middle)])
    seen = np.where(seen < 1, seen / np.maximum(1 - seen, 1e-9), np.inf)  # errors grow with the temperature
    experiment.findings.append(
        "resolution: nine times in ten an audit of this size finds a temperature {:.1%} off at h, or "
        "{:.1%} off as h -> 0".format(*seen)
    )


def _vanishes(experiment, surest):
    """Whether the surest bias may vanish, by its order in h."""
    p, low, high = order(surest.bias, surest.error)
    highest = order(surest.bias, surest.error, width=experiment.threshold)[2]
    verdict, advice = "bias does not vanish", ""
    if high > RESOLVED:
        verdict = "vanishing bias"
    elif highest > RESOLVED:
        verdict, advice = "bias, limit unresolved", "; pass more chains"
    experiment.conclude(verdict, f"of apparent order h^{p:.1f} (95 %: {low:.1f} to {high:.1f}); {surest}{advice}")
    if verdict != "bias does not vanish":
        return True
    statistic = "order of the surest bias in h, at most"
    experiment.results.append(Result("limit", statistic, highest, RESOLVED, LIMIT, least=True))
    return False


def _judge_reuse(experiment, before, after):
    """Checks that the second half of a run does not repeat the noise of the first.

    Asked only of a wrong law: a right sampler, of exact draws, may end at one point after any time.
    """
    experiment.keeps(
        "noise",
        "correlation over the second half of a run, less that over the first",
        after - before,
        0.5,
        "corr(theta_n, theta_2n) = corr(theta_0, theta_n)",
        "noise reused",
        f"theta has the correlation {after:.2f} over the second half of a run, {before:.2f} over the first: "
        "is the noise of every step that of the first?",
    )


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
    experiment.keeps(
        "coordinates",
        "correlation of neighbours on separable targets",
        r,
        max(0.1, threshold * error),
        "coordinates are independent",
        "noise shared across coordinates",
        f"neighbouring coordinates of separable targets have a correlation of at least {r:.2f}, exactly 0",
    )


def _judge_temperature(experiment, one, other):
    """Checks that the temperature of the draws is the first power of the temperature asked for."""
    asked = experiment.temperatures
    t, u = (max(1e-9, 1 + b.limit) for b in (one, other))
    octaves = log2(asked[1] / asked[0])
    power = 1 + log2(u / t) / octaves
    error = hypot(one.limit_error / t, other.limit_error / u) * 1.443 / abs(octaves)
    meanings = {0: "it is ignored", 2: "it is used as a standard deviation"}
    near = (text for p, text in meanings.items() if abs(power - p) < max(0.2, 4 * error))
    experiment.keeps(
        "temperature",
        "exponent of T in the temperature of the draws, less 1",
        abs(power - 1),
        max(0.4, experiment.threshold * error),
        "theta . grad U / dim = T",
        "temperature used wrongly",
        f"asked for T = {asked[0]:g} and {asked[1]:g}, as h -> 0 the draws have {asked[0] * t:.3f} and "
        f"{asked[1] * u:.3f}, T^{power:.2f}: {next(near, 'it is used wrongly')}",
    )
