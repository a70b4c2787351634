"""Trials of a step: how many independent draws of the slowest statistic a gradient is worth."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..results.statistics import sample_size_of_mean
from .pilot import Pilot, acceptance

WORDS = 320  # of a trial
LEAST_DRAWS = 40
SITES = 64  # whose sample size is looked at


@dataclass(frozen=True)
class Trial:
    """What a step size and a number of words are worth: `efficiency` is effective draws a gradient, of the worst."""

    step_size: float
    repeat: int
    acceptance: float
    efficiency: float


def trial(pilot: Pilot, step_size: float, repeat: int, axes: torch.Tensor) -> Trial:
    """A run at a step size: the sample size of sites, of directions `axes`, `(n, sites)`, and of their squares."""
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
    """What each of several trials was worth.

    >>> in_words([Trial(0.5, 1, 0.9, 0.11), Trial(0.7, 2, 0.8, 0.2)])
    'effective draws a gradient, of the worst statistic, are 0.11 at 1, 0.2 at 2'
    """
    worth = ", ".join(f"{t.efficiency:.2g} at {t.repeat}" for t in trials)
    return f"effective draws a gradient, of the worst statistic, are {worth}"
