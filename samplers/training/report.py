"""The report of a training loop as a sampler: findings in the order in which faults are to be mended."""

import math
from collections.abc import Mapping, Sequence

import torch

from recipe import Recipe

from ..results.averages import Agreement, Average, agreements_of, average_of
from ..results.findings import Finding, Report, banded, r_hat_finding
from ..results.heat import heat_of
from ..results.statistics import LEAST
from .gauges import EVERY
from .rates import Setting

SEGMENTS = 2  # stretches of the later half of a loop, each cut in two for a thermostat's R-hat
HEAT = "Take larger batches or a smaller lr, SVRG, or a recipe with a thermostat; or supply the noise."
RELAXING = "It is still relaxing: train on, or take a smaller thermostat mass."
CONFIGURATIONAL = "Weights are not of the law yet, or the step is too large: train on, or take a smaller lr."
HOT = "Momenta are too hot: take a smaller lr or larger batches, or train on."
COLD = "Momenta are too cold: train on, or look for what takes their noise, such as clipping."
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
        unasked.append(f"{_together(short)}: it takes {4 * LEAST * SEGMENTS * EVERY} steps at a temperature > 0")
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
        if "configurational" in series:
            virial = series["configurational"]
            findings[2].append(_temperature("configurational", virial, 0.0, of, share, tolerance))
        for name in series:
            if name.startswith("kinetic."):
                block = name.removeprefix("kinetic.")
                kick = float(series[f"kick.{block}"].mean())
                findings[3].append(_temperature("kinetic", series[name], kick, f"{block}, {of}", share, tolerance))
    return Report(tuple(f for some in findings for f in some), tuple(unasked))


def _together(labels: Sequence[str]) -> str:
    """The first label, and the number of the others."""
    return labels[0] if len(labels) == 1 else f"{labels[0]}, and {len(labels) - 1} more"


def _heat(recipe: Recipe, series: Series, setting: Setting, of: str, alpha: float, tolerance: float) -> Finding | str:
    """The finding on the temperature that the noise of minibatches adds, over T; as text, why it is unknown."""
    if "noise" not in series:
        return "no two steps followed each other"
    variance = average_of(series["noise"][None])
    heat = heat_of(recipe, setting.parameters, setting.step_size, variance)
    if isinstance(heat, str):
        return heat
    T = setting.temperature
    cure = HEAT if heat.value > 0 else "Give less noise as supplied: minibatches bring less."
    over_T = Average(heat.value / T, heat.error / T, heat.freedom)
    return banded("heat of the minibatches over T", of, over_T, 0.0, 2 * tolerance, alpha, cure)


def _relaxing(series: torch.Tensor, of: str, alpha: float) -> Finding:
    length = len(series) // SEGMENTS
    (agreement,) = agreements_of(series[-SEGMENTS * length :].reshape(SEGMENTS, length)[:, :, None])
    if math.isnan(agreement.r_hat):
        agreement = Agreement(math.inf, 1.0, 2 * SEGMENTS)
    return r_hat_finding(of, agreement, alpha, RELAXING)


def _temperature(kind: str, series: torch.Tensor, kick: float, of: str, alpha: float, tolerance: float) -> Finding:
    average = average_of(series[None])
    cure = HOT if average.value > 1 else COLD
    if kind == "configurational":
        cure = CONFIGURATIONAL
    return banded(f"{kind} temperature over T", of, average, 1.0, 2 * tolerance + kick, alpha, cure)
