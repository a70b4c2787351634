"""The errors of draws: Monte Carlo error, bias of the step, bias of the noise of minibatches."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
import torch

from recipe.arguments import integer
from recipe.errors import RecipeError
from recipe.results import Findings, Row, aligned

from .findings import told_apart
from .functional import Functional
from .kl_divergence import KLDivergence
from .pairs import Pairs
from .statistics import LEAST, errors_of_moments, labels, sample_sizes_of_moments, split_r_hat

LEVEL = 0.05  # probability that a bias is seen where there is none, over all statistics of a table
PAIRS = 32, 1000  # the fewest and the most pairs of chains, where the caller does not say
STEPS = 10_000  # the most steps of a pair, where the caller does not say
STRETCHES = 100, 4000  # the fewest and the most chains of the KL, where the caller does not say
STRETCH = 3  # autocorrelation times that a stretch has at least
WARMUP, LENGTH = 5, 20  # autocorrelation times that the pairs run before they are looked at, and in all
SHOWN = 12  # rows of a printed table
AGREE = 1.05  # R-hat from which on chains do not agree
APART = 4.0  # standard errors between the draws and the pairs from which on the draws are of another law

SOURCES = {
    "monte_carlo": "Monte Carlo error",
    "step": "bias of the step",
    "minibatches": "bias of the minibatch noise",
}
MORE = "Take more steps, or more chains: it falls as one over the root of their number."


@dataclass(frozen=True)
class Figure:
    """The errors of the mean or the sd of one coordinate; `scale`: the sd of the target, of the draws less its biases.

    `monte_carlo` is a standard error. A bias is the difference of the law of the draws to the target, estimated, with
    its standard error; None where it vanishes by construction. `law`: the value in the pairs, with its error.
    """

    name: str
    statistic: str
    value: float
    scale: float
    monte_carlo: float
    step: float | None = None
    step_error: float | None = None
    minibatches: float | None = None
    minibatches_error: float | None = None
    law: float | None = None
    law_error: float = 0.0

    def in_sds(self, source: str) -> tuple[float, float]:
        """A bias and its standard error in standard deviations of the target; zeros where there is none."""
        bias, error = getattr(self, source), getattr(self, f"{source}_error")
        return (0.0, 0.0) if bias is None else (bias / self.scale, error / self.scale)

    @property
    def apart(self) -> float:
        """The distance of the draws from the law of the pairs, in standard errors."""
        return 0.0 if self.law is None else abs(self.value - self.law) / math.hypot(self.monte_carlo, self.law_error)

    def __str__(self) -> str:
        return f"{self.name} {self.statistic}"


@dataclass(frozen=True, repr=False)
class Accuracy(Findings):
    """The errors of draws, figures by statistic, and a verdict; `print` shows the worst of many.

    `ok` is True where the Monte Carlo error is the largest, False where a bias is, None where figures are doubted or a
    larger bias may be unseen. `pairs`: the chains behind the biases, None where there are no biases; `advice`: a
    cure by source; `divergence`: that of the law of the draws from exp(-H/T), of all blocks.

    >>> figure = Figure("theta", "mean", 1.0, scale=2.0, monte_carlo=0.1, step=0.5, step_error=0.01)
    >>> print(Accuracy((figure,), None, {"step": "Halve it."}, 1.0))
    statistic   value  Monte Carlo  bias of the step  bias of minibatches
    theta mean  1      0.1          0.5 +- 0.01       0
    The bias of the step is the largest: 0.25 standard deviations (theta mean). Halve it. Monte Carlo error: 0.05 sd.
    """

    figures: tuple[Figure, ...]
    pairs: Pairs | None
    advice: Mapping[str, str]
    r_hat: float
    divergence: KLDivergence | None = None
    STATED: ClassVar = ("ok", "verdict", "sizes", "rows")

    @property
    def threshold(self) -> float:
        """The number of standard errors from which on a bias is seen, by Bonferroni over all figures."""
        return NormalDist().inv_cdf(1 - LEVEL / (4 * len(self.figures)))

    def size(self, figure: Figure, source: str) -> float:
        """The size of an error in sd of the target, that of a bias only where it is beyond its own error."""
        if source == "monte_carlo":
            return figure.monte_carlo / figure.scale
        bias, error = figure.in_sds(source)
        return abs(bias) if abs(bias) > self.threshold * error else 0.0

    @property
    def sizes(self) -> dict[str, float]:
        """The largest Monte Carlo error, bias of the step and bias of the minibatches, in sd of the target."""
        return {source: max(self.size(f, source) for f in self.figures) for source in SOURCES}

    @property
    def resolution(self) -> float:
        """The size in sd of the target from which on a bias is seen in any of the figures."""
        return self.threshold * max(f.in_sds(source)[1] for f in self.figures for source in ("step", "minibatches"))

    @property
    def doubts(self) -> list[str]:
        """Reasons not to believe the figures."""
        doubts = []
        if self.r_hat > AGREE:
            doubts.append(
                f"The chains do not agree yet (R-hat {self.r_hat:.3g}): take more steps before you believe this."
            )
        f = max(self.figures, key=lambda f: f.apart)
        if f.law is not None and f.apart > max(APART, self.threshold + 1):
            value, law = told_apart(f.value, f.law)
            doubts.append(
                f"The draws are not of the law that their step comes to ({f}: {value}, where pairs of chains "
                f"come to {law} +- {f.law_error:.1g}): take a longer warmup."
            )
        if self.pairs is not None and self.pairs.lost:
            doubts.append(f"{self.pairs.lost} of the pairs of chains are lost: take a smaller step size.")
        if self.pairs is not None and not self.pairs.settled:
            doubts.append(f"The pairs have not settled after {self.pairs.warmup} steps: pass more steps.")
        return doubts + (self.divergence.doubts if self.divergence is not None else [])

    @property
    def rows(self) -> tuple[Row, ...]:
        """The largest error of each source, with its statistic and a cure."""
        sizes, cures = self.sizes, {"monte_carlo": MORE, **self.advice}
        unseen = self.resolution > max(sizes.values())
        rows = []
        for source, question in SOURCES.items():
            worst = max(self.figures, key=lambda f: self.size(f, source))
            verdict = "open" if unseen and source != "monte_carlo" else "checked"
            verdict = "open" if self.doubts else "failed" if sizes[source] > sizes["monte_carlo"] else verdict
            answer = f"{sizes[source]:.2g} standard deviations ({worst})"
            rows.append(Row(question, answer, verdict, cure=cures.get(source, "")))
        return tuple(rows)

    @property
    def title(self) -> str:
        """The largest of the three errors, its statistic, and what to change."""
        sizes = self.sizes
        source = max(sizes, key=lambda name: sizes[name])
        row = self.rows[list(SOURCES).index(source)]
        parts = [f"The {row.question} is the largest: {row.answer}. {row.cure}"]
        lesser = [f"{SOURCES[name]}: {size:.2g} sd." for name, size in sizes.items() if name != source and size]
        parts += [other[0].upper() + other[1:] for other in lesser]
        if self.resolution > sizes[source]:
            parts.append(f"Biases below {self.resolution:.2g} sd would be unseen: pass more chains or steps.")
        return " ".join(parts)

    @property
    def verdict(self) -> str:
        """The doubts, if there are any, and the title."""
        return "\n".join([*self.doubts, self.title])

    @property
    def notes(self) -> tuple[str, ...]:
        """The doubts, the divergence, and the chains behind the biases."""
        notes = self.doubts if self.divergence is None else [*self.doubts, str(self.divergence)]
        if (p := self.pairs) is not None:
            notes = [*notes, f"From {p.number} chains of each kind, {p.steps} steps after {p.warmup}."]
        return tuple(notes)

    def by_name(self) -> dict[tuple[str, str], Figure]:
        """The figures by coordinate and statistic."""
        return {(f.name, f.statistic): f for f in self.figures}

    def columns(self) -> dict[str, dict[str, float]]:
        """The biases by coordinate, in columns for a table: bias_step_mean, bias_step_sd, bias_minibatches_mean, ..."""
        table: dict[str, dict[str, float]] = {}
        for f in self.figures:
            for source in ("step", "minibatches"):
                bias = getattr(f, source)
                table.setdefault(f"bias_{source}_{f.statistic}", {})[f.name] = 0.0 if bias is None else bias
        return table

    def __str__(self) -> str:
        sizes = {f: max(self.size(f, source) for source in SOURCES) for f in self.figures}
        worst = set(sorted(self.figures, key=lambda f: -sizes[f])[:SHOWN])
        head = "statistic", "value", "Monte Carlo", "bias of the step", "bias of minibatches"
        lines = aligned([head, *(_row(f) for f in self.figures if f in worst)])
        if len(self.figures) > SHOWN:
            lines.append(f"the worst {SHOWN} of {len(self.figures)}")
        return "\n".join([*lines, self.title, *self.notes])


def _row(f: Figure) -> tuple[str, ...]:
    biases = [(f.step, f.step_error), (f.minibatches, f.minibatches_error)]
    words = ["0" if bias is None else f"{bias:.2g} +- {error:.1g}" for bias, error in biases]
    return (str(f), f"{f.value:.4g}", f"{f.monte_carlo:.2g}", *words)


def accuracy_of(
    draws: Mapping[str, torch.Tensor],
    sound: list[int],
    rerun: Any,
    *,
    of: Callable | None,
    chains: int | None,
    steps: int | None,
    progress: bool,
) -> Accuracy:
    """The errors of the draws of the `sound` chains of a run, or `of` a function. `Draws.accuracy` says more.

    `rerun`: the run, a `samplers.running.repeated.PairedRun`.
    """
    where = "draws, accuracy"
    for argument, count in (("chains", chains), ("steps", steps)):
        if count is not None:
            integer(where, argument, count, least=4)
    rerun.check()
    values = {name: draws[name][sound] for name in rerun.targets}
    number, kept = next(iter(values.values())).shape[:2]
    if kept < LEAST:
        raise RecipeError(where, f"there are {kept} draws of a chain", do=f"Keep {LEAST} at least.")
    functional = None if of is None else Functional(of, where, rerun.by_name)
    values = values if functional is None else functional.along(values)
    sizes = {name: sample_sizes_of_moments(x) for name, x in values.items()}
    tau = max(float((number * kept / size).nan_to_num(1.0).max()) for both in sizes.values() for size in both)
    tau = max(1.0, tau) * rerun.plan.thin  # in steps
    budget = number * kept * rerun.plan.thin  # the steps of all chains

    def start(count: int) -> dict[str, torch.Tensor]:
        """The states at so many draws, all over the run."""
        picked = torch.arange(count, device="cpu") * (number * kept) // count
        return rerun.start_at(draws, torch.tensor(sound, device="cpu")[picked // kept], picked % kept)

    pairs = None
    if rerun.order is not None or rerun.has_batches:  # pairs of 20 tau, with as many steps in all as the run had
        pair_length = LENGTH * tau
        count = chains or min(max(round(budget / pair_length), PAIRS[0]), PAIRS[1])
        length = steps or min(max(budget // count, math.ceil(pair_length)), STEPS)
        warmup = min(math.ceil(WARMUP * tau), length // 2)
        counts = {"warmup": warmup, "steps": length - warmup, "most": steps or max(STEPS, length)}
        pairs = rerun.pairs(start(count), **counts, of=functional, progress=progress)
    limit = steps or STEPS
    length = min(math.ceil(STRETCH * tau), limit // 2)  # of stretches, 3 tau at least
    count = chains or min(max(budget // (2 * length), STRETCHES[0]), STRETCHES[1])
    divergence = rerun.divergence(start(count), steps=length, most=limit, progress=progress)
    figures = [f for name, x in values.items() for f in _figures(name, x, sizes[name], pairs, rerun.order)]
    if not figures:
        what = f"no coordinate of {'the target' if functional is None else functional.name} varies"
        raise RecipeError(where, what, do="Sample with a larger step size, or longer.")
    r_hats = [x for name in values for x in split_r_hat(values[name]).flatten().tolist() if not math.isnan(x)]
    return Accuracy(tuple(figures), pairs, rerun.advice(), max(r_hats, default=math.nan), divergence)


def _figures(
    name: str, x: torch.Tensor, sizes: tuple[torch.Tensor, torch.Tensor], pairs: Pairs | None, order: int | None
) -> Iterable[Figure]:
    """The figures of every coordinate of a tensor of draws that is not constant."""
    x = x.to("cpu", torch.float64)
    sd = x.std((0, 1), correction=0)
    statistics = {"mean": x.mean((0, 1)), "sd": sd}
    errors = dict(zip(statistics, errors_of_moments(x, sizes)))
    biases = {} if pairs is None else _biases(name, pairs, order)
    scale = sd - sum(x for key, x in biases.get("sd", {}).items() if key in SOURCES)
    scale = scale.where(scale > 0, sd)
    for label, index in zip(labels(name, sd.shape), np.ndindex(sd.shape)):
        if not sd[index] > 0:
            continue
        for statistic, value in statistics.items():
            by_source = {key: float(numbers[index]) for key, numbers in biases.get(statistic, {}).items()}
            error = float(errors[statistic][index])
            yield Figure(label, statistic, float(value[index]), float(scale[index]), error, **by_source)


def _biases(name: str, pairs: Pairs, order: int | None) -> dict[str, dict[str, torch.Tensor]]:
    """The fields of a Figure that pairs estimate, for the mean and the sd of every coordinate."""
    law = pairs.of_run(name)
    error_of_mean, error_of_variance = law.errors()
    sd = law.variance.sqrt()
    means = {"law": law.mean + pairs.centre[name], "law_error": error_of_mean}
    sds = {"law": sd, "law_error": error_of_variance / (2 * sd)}
    for source, (moments, mean, variance) in pairs.biases(name, order).items():
        for fields, bias in ((means, mean), (sds, variance.of_sd(moments))):
            fields |= {source: bias.value, f"{source}_error": bias.error}
    return {statistic: {k: x.to("cpu") for k, x in of.items()} for statistic, of in (("mean", means), ("sd", sds))}
