"""The step size from pilot runs: by the acceptance of proposals, or from a stated bias, by the work of the steps."""

import math
from collections.abc import Sequence

import torch
from scipy.special import ndtri

from recipe.errors import RecipeError

from .pilot import Pilot, acceptance

POWERS = (-20, 10), (-60, 60)  # the least and the largest power of 4 among step sizes, and where these do not do
SMALLEST = 3  # step sizes from which the work is extrapolated
WORDS = 16  # of a stretch, over which the work is summed
SIZES = [2.0 ** (k / 4) for k in range(-12, 4)]
STRETCHES = 320  # at each step size


def coarse(pilot: Pilot, target: float, where: str) -> float:
    """The step size of a target acceptance, to some ten per cent, for an energy of any scale: by halving powers."""
    rates: dict[int, float] = {}
    for least, most in POWERS:
        low, high = least - 1, most + 1
        while high - low > 1:
            k = (low + high) // 2
            if k not in rates:
                rates[k] = float(acceptance(pilot.works([4.0**k], 2)))
            low, high = (k, high) if rates[k] >= target else (low, k)
        if least <= low and high <= most:
            break
    if low < least:
        what = f"not even steps of {4.0**least:.0e} are accepted, but {100 * rates[least]:.0f} % of them"
        raise RecipeError(where, what, do="Is the energy smooth? Try float64, and a word that is exact as h goes to 0.")
    around = [k for k in (low, high) if k in rates]
    return where_it_falls([4.0**k for k in around], [rates[k] for k in around], target) or 4.0**low


def corrected(h: float, rate: float, target: float) -> float:
    """The step size of a target acceptance, from the acceptance at h, 2 Phi(-c h^2), by a factor 2 at most.

    Source: Beskos et al. 2013, theorem 3.6.

    >>> round(corrected(1.0, 0.5, 0.9), 3)
    0.5
    >>> corrected(1.0, 0.8, 0.8)
    1.0
    """
    reached, wanted = (-ndtri(min(max(x, 1e-3), 1 - 1e-3) / 2) for x in (rate, target))
    return h * min(2.0, max(0.5, float(wanted / reached) ** 0.5))


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


def step_size_of_bias(pilot: Pilot, around: float, bias: float, order: int, where: str) -> tuple[float, str]:
    """The step size at which chains without accept-reject steps have a given bias, and the reason in words.

    `bias`: the relative error b of every variance of a Gaussian, whose Kullback-Leibler divergence is b^2/4 per degree
    of freedom; `order`: of the scheme, in law, so that the divergence goes as h^(2 order). The divergence of all
    blocks, momenta included, is E W/(2T) over a stretch of 16 words from exp(-H/T), extrapolated from step sizes at
    which E W exceeds its error. Raises RecipeError where there are too few of these.

    Source: Sivak, Chodera & Crooks (2013).
    """
    sizes = [around * factor for factor in SIZES]
    works = pilot.works(sizes, max(1, STRETCHES // len(pilot.theta)), WORDS)
    sites = pilot.theta[0].numel()
    h = of_work(sizes, works / sites, bias**2 / 2, 2 * order)
    if h is None:
        what = "the work of steps is not seen beside its fluctuations, so their bias is not known"
        raise RecipeError(where, what, do="Pass metropolis=True, more chains, or the step size.")
    h = min(h, around)
    return h, f"{h:.3g}: the work of {WORDS} steps, as h^{2 * order}, is that of variances off by {100 * bias:.2g} %"
