"""Draws from exp(-energy) where no grid resolves it: a long Metropolis chain of many walkers."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import gammaln

from recipe.symbols import Block

from .grids import Chart, Points, Unresolved

SWEEPS, CHOICE = 300, 10  # moves of every walker, and candidates for each start
FREEDOM, WIDTH = 3.0, 2.0  # of the Student law of the starts
BOUND = 7.5  # standard errors between the middle and the end of the chain


def metropolis(energy: Callable, blocks: Sequence[Block], size: int, seed: int) -> Points:
    """Draws by block, (size,) each: walkers after SWEEPS moves by differences of other walkers.

    Half of the walkers moves at a time, by z' = z + g (a - b) + a little noise with a, b of the other half, which is
    affinely invariant; with g = 1, in a tenth of the moves, walkers go from mode to mode. Raises Unresolved where the
    moments of the walkers still change. Source: ter Braak, "A Markov chain Monte Carlo version of the genetic algorithm
    Differential Evolution" (2006), eq. (2).

    >>> from recipe import scalar
    >>> x, y = scalar("x"), scalar("y")
    >>> draws = metropolis(lambda x, y: (x**2 + y**2) / 2, (x, y), 4000, seed=0)
    >>> bool(abs((draws[x] ** 2).mean() - 1) < 0.1)
    True
    """
    random = np.random.default_rng(seed)
    charts = {k: Chart(b.domain) for k, b in enumerate(blocks) if not b.domain.is_real}

    def at(t):
        return [charts[k].point(x) if k in charts else x for k, x in enumerate(t)]

    def potential(t):
        slopes = sum(chart.log_slope(t[k]) for k, chart in charts.items())
        with np.errstate(all="ignore"):
            level = np.broadcast_to(energy(*at(t)), t[0].shape) - slopes
        return np.where(np.isfinite(level), level, np.inf)

    walkers = _start(potential, len(blocks), size + size % 2, random)
    levels = potential(walkers)
    for sweep in range(SWEEPS):
        _move_halves(potential, walkers, levels, random)
        if sweep == SWEEPS // 2:
            middle = walkers.copy()
    _check_settled(middle, walkers, blocks)
    return dict(zip(blocks, at(walkers[:, :size])))


def _start(potential, dimension, size, random):
    """Walkers drawn from a wide Student law by importance resampling."""
    number = CHOICE * size
    scale = np.sqrt(random.chisquare(FREEDOM, number) / FREEDOM)
    points = WIDTH * random.normal(size=(dimension, number)) / scale
    squares = (points**2).sum(0) / WIDTH**2
    log_law = gammaln((FREEDOM + dimension) / 2) - (FREEDOM + dimension) / 2 * np.log1p(squares / FREEDOM)
    exponents = -potential(points) - log_law
    weights = np.exp(exponents - exponents.max())
    return points[:, random.choice(number, size, p=weights / weights.sum())]


def _move_halves(potential, walkers, levels, random):
    """Moves every walker once, in place."""
    dimension, size = walkers.shape
    half = size // 2
    for own, other in ((slice(0, half), slice(half, size)), (slice(half, size), slice(0, half))):
        first, second = random.integers(half, size=(2, half))
        step = np.where(random.random(half) < 0.1, 1.0, 2.38 / np.sqrt(2 * dimension) * random.uniform(0.3, 1, half))
        ahead = walkers[:, own] + step * (walkers[:, other][:, first] - walkers[:, other][:, second])
        ahead += 1e-3 * random.normal(size=ahead.shape)
        level = potential(ahead)
        accepted = np.log(random.random(half)) < levels[own] - level
        walkers[:, own] = np.where(accepted, ahead, walkers[:, own])
        levels[own] = np.where(accepted, level, levels[own])


def _check_settled(middle, end, blocks):
    """Refuses walkers whose moments differ between the middle and the end of the chain."""
    for power in (1, 2):
        before, after = middle**power, end**power
        error = np.sqrt((before.var(1) + after.var(1)) / before.shape[1])
        if not np.all(abs(after.mean(1) - before.mean(1)) <= BOUND * error):
            raise Unresolved(
                "density",
                f"{SWEEPS} Metropolis moves do not reach exp(-H) over {', '.join(map(str, blocks))}",
                do="Give values= at which its scales are closer, or check a smaller model.",
            )
