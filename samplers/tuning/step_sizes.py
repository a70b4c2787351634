"""The step size from pilot runs, by the acceptance of proposals, or by their work."""

import math
from collections.abc import Sequence

import torch

from recipe.errors import RecipeError

from .pilot import Pilot, acceptance

COARSE = [2.0**k for k in range(-40, 21)]
FINE = [2.0 ** (k / 3) for k in range(-4, 4)]
PROPOSALS = 10  # of one word, at each step size
FEWEST = 3
SMALLEST = 3  # step sizes from which the work is extrapolated


def coarse(pilot: Pilot, target: float, where: str) -> float:
    """The step size of a target acceptance, to some ten per cent, for an energy of any scale."""
    rates = acceptance(pilot.works(COARSE, 3)).tolist()
    h = where_it_falls(COARSE, rates, target)
    if h is None:
        what = f"not even steps of {COARSE[0]:.0e} are accepted, but {100 * rates[0]:.0f} % of them"
        raise RecipeError(where, what, do="Is the energy smooth? Try float64, and a word that is exact as h goes to 0.")
    return h


def fine(pilot: Pilot, around: float, target: float, repeat: int) -> float:
    """The step size of a target acceptance, from one run at eight step sizes around a first guess."""
    sizes = [around * factor for factor in FINE]
    works = pilot.works(sizes, max(FEWEST, PROPOSALS // repeat), repeat)
    h = where_it_falls(sizes, acceptance(works).tolist(), target)
    return sizes[0] if h is None else h


def where_it_falls(sizes: Sequence[float], rates: Sequence[float], target: float) -> float | None:
    """The first size at which the rate falls below a target, interpolated over log h; None if the first rate is below.

    >>> round(where_it_falls([1.0, 2.0, 4.0], [1.0, 0.9, 0.1], 0.5), 6)
    2.828427
    """
    if rates[0] < target:
        return None
    for (h, rate), (next_h, next_rate) in zip(zip(sizes, rates), zip(sizes[1:], rates[1:])):
        if next_rate < target:
            share = (rate - target) / (rate - next_rate)
            return math.exp((1 - share) * math.log(h) + share * math.log(next_h))
    return sizes[-1]


def of_work(sizes: Sequence[float], works: torch.Tensor, wanted: float, power: int) -> float | None:
    """The step size at which the mean work, which goes as h^power, is `wanted`.

    The work is extrapolated from the three smallest step sizes at which its mean is three standard errors above 0, and
    below 1; None where there are fewer.

    >>> sizes = [0.1, 0.2, 0.4, 0.8]
    >>> round(of_work(sizes, torch.tensor([[h**4] * 9 for h in sizes], dtype=torch.float64), 1e-4, 4), 6)
    0.1
    """
    mean = works.mean(1)
    error = works.std(1) / works.shape[1] ** 0.5
    clear = torch.nonzero((mean > 3 * error) & (mean < 1)).flatten().tolist()[:SMALLEST]
    if len(clear) < SMALLEST:
        return None
    levels = [math.log(float(mean[k])) - power * math.log(sizes[k]) for k in clear]
    return math.exp((math.log(wanted) - sum(levels) / len(levels)) / power)
