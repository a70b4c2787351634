"""Trials of a step: the effective draws per gradient of the slowest statistic."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..results.statistics import sample_size_of_mean
from .pilot import Pilot, acceptance

WORDS = 320  # of a trial
LEAST_DRAWS = 40
SITES = 64  # whose sample size is estimated


@dataclass(frozen=True)
class Trial:
    """A step size and number of words with their `efficiency`, effective draws a gradient of the worst statistic."""

    step_size: float
    repeat: int
    acceptance: float
    efficiency: float


def trial(pilot: Pilot, step_size: float, repeat: int, axes: torch.Tensor) -> Trial:
    """The trial of a run at a step size, by the sample sizes of sites, directions `axes`, `(n, sites)`, and squares."""
    steps = max(LEAST_DRAWS, WORDS // repeat)
    draws = pilot.run([step_size], steps, repeat)
    theta = pilot.flat(draws[pilot.recipe.targets[0].name])
    some = theta[..., :: max(1, theta.shape[-1] // SITES)]
    values = torch.cat([some, theta @ axes.to(theta).T], -1)
    values = values - values.mean((0, 1))
    sizes = sample_size_of_mean(torch.cat([values, values.square()], -1)).nan_to_num(nan=0.0)
    accepted = acceptance(draws["work"].flatten() / float(pilot.fixed["temperature"]))
    return Trial(step_size, repeat, float(accepted), float(sizes.min()) / (len(theta) * steps * repeat))


def in_words(trials: Sequence[Trial]) -> str:
    """Text of the efficiencies of several trials.

    >>> in_words([Trial(0.5, 1, 0.9, 0.11), Trial(0.7, 2, 0.8, 0.2)])
    'effective draws a gradient, of the worst statistic, are 0.11 at 1, 0.2 at 2'
    """
    worth = ", ".join(f"{t.efficiency:.2g} at {t.repeat}" for t in trials)
    return f"effective draws a gradient, of the worst statistic, are {worth}"
