"""The report of a training loop as a sampler: findings in the order in which faults are to be mended."""

import math
from collections.abc import Mapping

import torch

from recipe import Recipe

from ..results.averages import Agreement, Average, agreements_of, average_of
from ..results.findings import WIDEST, Finding, Report, banded, r_hat_finding
from ..results.heat import heat_of
from ..results.statistics import LEAST
from .gauges import EVERY, NOISE
from .rates import Setting

SEGMENTS = 2  # stretches of the later half of a loop, each cut in two for a thermostat's R-hat
FAR = 10.0  # over T: numbers beyond are seldom of noise
HEAT = "Take larger batches or a smaller lr, no dropout, SVRG, or a recipe with a thermostat; or supply the noise."
RELAXING = "It is still relaxing: train on, or take a smaller thermostat mass."
CONFIGURATIONAL = "Weights are not of the law yet, or the step is too large: train on, or take a smaller lr."
HOT = "Momenta are too hot: take a smaller lr or larger batches, or train on."
COLD = "Momenta are too cold: train on, or look for what takes their noise, such as clipping."
SCALE = (
    "Is the gradient that of the mean loss of num_data data? A forgotten zero_grad, a loss that is a sum, or a step at "
    "its limit of stability heats so. "
)
WEIGHTS = "R-hat and sample size of weights: compare the predictions of several chains, as of an Ensemble's members"

Series = Mapping[str, torch.Tensor]  # by name, over the later half of the loop


def report_of_loop(
    recipe: Recipe, chains: Mapping[str, tuple[Series, Setting]], *, alpha: float, tolerance: float
) -> Report:
    """The report of `Optimizer.report`, from the recorded series and the setting of each chain, by label."""
    findings: list[list[Finding]] = [[], [], [], []]
    unasked = [WEIGHTS]
    short = [of for of, (series, _) in chains.items() if len(next(iter(series.values()), ())) < 2 * LEAST * SEGMENTS]
    if short:
        others = f", and {len(short) - 1} more" if len(short) > 1 else ""
        unasked.append(f"{short[0]}{others}: it takes {4 * LEAST * SEGMENTS * EVERY} steps at a temperature > 0")
    share = alpha / max(1, 4 * len(chains))
    for of, (series, setting) in chains.items():
        if of in short:
            continue
        heat = _heat(recipe, series, setting, of, share, tolerance)
        if isinstance(heat, Finding):
            findings[0].append(heat)
        else:
            unasked.append(f"heat of the minibatches of {of}: {heat}")
        findings[1] += [_relaxing(series[b.name], f"{b.name}, {of}", share) for b in recipe.thermostats]
        for name, x in series.items():
            kind, _, block = name.partition(".")
            if kind not in ("configurational", "kinetic"):
                continue
            average = average_of(x[None])
            kick = float(series[f"kick.{block}"].mean()) if block else 0.0
            cure = (HOT if average.value > 1 else COLD) if block else CONFIGURATIONAL
            of_block, slack = f"{block}, {of}" if block else of, 2 * tolerance + kick
            cure = _cure(average, cure)
            temperature = banded(f"{kind} temperature over T", of_block, average, 1.0, slack, share, cure, WIDEST)
            findings[3 if block else 2].append(temperature)
    return Report(tuple(f for some in findings for f in some), tuple(unasked))


def _heat(recipe: Recipe, series: Series, setting: Setting, of: str, alpha: float, tolerance: float) -> Finding | str:
    """The finding on the temperature that the noise of minibatches adds, over T; as text, why it is unknown."""
    if NOISE not in series:
        return "no two steps followed each other"
    variance = average_of(series[NOISE][None])
    heat, T = heat_of(recipe, setting.parameters, setting.step_size, variance), setting.temperature
    if isinstance(heat, str):
        return heat
    cure = HEAT if heat.value > 0 else "Give less noise as supplied: minibatches bring less."
    over_T = Average(heat.value / T, heat.error / T, heat.freedom)
    cure = _cure(over_T, cure)
    return banded("heat of the minibatches over T", of, over_T, 0.0, 2 * tolerance, alpha, cure, WIDEST)


def _cure(over_T: Average, cure: str) -> str:
    """The cure of a temperature, after the mistakes that make a number far beyond T."""
    return SCALE + cure if abs(over_T.value) > FAR else cure


def _relaxing(series: torch.Tensor, of: str, alpha: float) -> Finding:
    length = len(series) // SEGMENTS
    (agreement,) = agreements_of(series[-SEGMENTS * length :].reshape(SEGMENTS, length)[:, :, None])
    if math.isnan(agreement.r_hat):
        agreement = Agreement(math.inf, 1.0, 2 * SEGMENTS)
    return r_hat_finding(of, agreement, alpha, RELAXING)
