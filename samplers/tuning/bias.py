"""The step size of chains without accept-reject steps, from a stated bias, by the work of the steps."""

from recipe.errors import RecipeError

from .pilot import Pilot
from .step_sizes import of_work

WORDS = 16  # of a stretch, over which the work is summed
SIZES = [2.0 ** (k / 4) for k in range(-12, 4)]
STRETCHES = 320  # at each step size


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
