"""Charts of the blocks, x as a function of t, and the ranges of t that hold the law exp(-H)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logit
from sympy import Expr, lambdify

from recipe import RecipeError
from recipe.domains import Domain
from recipe.symbols import Block

LEAST = 1e-17  # the share of mass and moments that is left out
FINENESS = {1: 2001, 2: 301, 3: 61}  # of the grid on which the range is looked for, by the number of coupled blocks

Range = tuple[float, float]


class Chart:
    """x as a function of t: c + s sinh(t) on the line, e^t on the half line, logistic between two ends."""

    def __init__(self, domain: Domain, centre: float = 0.0, scale: float = 1.0):
        self.on_line, self.bounded = domain.is_real, domain.is_compact
        self.low, self.width = (float(domain.low), float(domain.width)) if self.bounded else (0.0, 1.0)
        self.centre = centre if self.on_line else self.low
        self.scale = scale

    def point(self, t: Any) -> Any:
        """x at t."""
        if self.on_line:
            return self.centre + self.scale * np.sinh(t)
        return self.low + self.width * expit(t) if self.bounded else np.exp(t)

    def inverse(self, x: Any) -> Any:
        """t at x."""
        with np.errstate(all="ignore"):
            if self.on_line:
                return np.arcsinh((x - self.centre) / self.scale)
            return logit((x - self.low) / self.width) if self.bounded else np.log(x)

    def log_slope(self, t: Any) -> Any:
        """log dx/dt."""
        if self.on_line:
            return np.log(self.scale * np.cosh(t))
        return math.log(self.width) + log_expit(t) + log_expit(-t) if self.bounded else t

    def units(self, x: Any) -> Any:
        """x in units of the scale, from the centre."""
        return (x - self.centre) / self.scale


def window_of(domain: Domain) -> Range:
    """The range of t in which x is a floating-point number."""
    if domain.is_real:
        return -45.0, 45.0
    return -400.0, 400.0 if domain.is_compact else 45.0


def charts_and_ranges(energy: Callable, blocks: Sequence[Block], degree: int) -> tuple[list[Chart], list[Range]]:
    """The chart of each block, and the range of t outside of which mass and moments are negligible."""
    depth = -math.log(LEAST)

    def matters(level, t, chart):
        level = level - chart.log_slope(t)
        tilted = level - degree * np.log(1 + abs(chart.point(t)))
        return (level <= level.min() + depth) | (tilted <= tilted.min() + depth)

    def is_bulk(level, t, chart):
        if not chart.on_line:  # in t on a half line, where H may fall to -oo
            level = level - chart.log_slope(t)
        return level <= level.min() + 2

    charts, windows = [Chart(b.domain) for b in blocks], [window_of(b.domain) for b in blocks]
    ranges = _narrowed(energy, charts, windows, matters)
    for b, (low, high), window in zip(blocks, ranges, windows):
        if low == window[0] or high == window[1]:
            raise RecipeError(
                "density, H",
                f"exp(-H) |{b}|^{degree} has no finite integral",
                do=f"Give {b} a confining energy, or take a smaller degree=.",
            )
    bulk = _narrowed(energy, charts, ranges, is_bulk)
    ends = [chart.point(np.array(r)) for chart, r in zip(charts, bulk)]
    scaled = [Chart(b.domain, x.mean(), np.ptp(x) / 4) for b, x in zip(blocks, ends)]
    rescaled = [
        tuple(new.inverse(old.point(np.array(r)))) if new.on_line else r for new, old, r in zip(scaled, charts, ranges)
    ]
    return scaled, rescaled


def _narrowed(energy, charts, ranges, inside):
    """The ranges of t, one for each chart, narrowed to the points where `inside(energy along t, t, chart)` holds."""
    for _ in range(40):
        axes = [np.linspace(low, high, FINENESS[len(charts)]) for low, high in ranges]
        narrowed = []
        for i, (t, chart) in enumerate(zip(axes, charts)):
            level = _profile(energy, charts, axes, i)
            if not np.isfinite(level).any():
                raise RecipeError(
                    "density, H", "exp(-H) vanishes, or is no number, everywhere", do="Look at its signs."
                )
            kept = np.flatnonzero(inside(level, t, chart))
            narrowed.append((t[max(kept[0] - 1, 0)], t[min(kept[-1] + 1, len(t) - 1)]))
        settled = all(np.ptp(new) > 0.8 * np.ptp(old) for new, old in zip(narrowed, ranges))
        ranges = narrowed
        if settled:
            break
    return ranges


def _profile(energy, charts, axes, i):
    """The energy along axis i, minimised over the other blocks: on the grid, then around its best point."""
    others = [j for j in range(len(axes)) if j != i]

    def at(t):
        return energy(*(chart.point(x) for chart, x in zip(charts, t)))

    if not others:
        return at(axes)
    level = np.moveaxis(at(np.meshgrid(*axes, indexing="ij")), i, 0)
    flat = level.reshape(len(axes[i]), -1)
    best, where = flat.min(1), np.unravel_index(flat.argmin(1), level.shape[1:])
    middle = [axes[j][k] for j, k in zip(others, where)]
    width = [axes[j][1] - axes[j][0] for j in others]
    offsets = [o.ravel() for o in np.meshgrid(*[np.linspace(-1, 1, 9)] * len(others), indexing="ij")]
    for _ in range(14):
        t = [axes[i][:, None]] * len(axes)
        for j, m, w, o in zip(others, middle, width, offsets):
            t[j] = m[:, None] + w * o
        level = at(np.broadcast_arrays(*t))
        k = level.argmin(1)
        best = np.minimum(best, level.min(1))
        middle = [m + w * o[k] for m, w, o in zip(middle, width, offsets)]
        width = [w / 3 for w in width]
    return best


def roots(edge: Expr, block: Block) -> set[float]:
    """The points where a formula of one block changes its sign, by Brent's method."""
    chart = Chart(block.domain)
    f = lambdify([block], edge, "numpy")
    low, high = window_of(block.domain)
    t = np.linspace(low, high, 8000)  # an even number, so that 0 is not among them
    with np.errstate(all="ignore"):
        signs = np.sign(np.broadcast_to(f(chart.point(t)), t.shape))

    def height(s):
        return float(f(chart.point(s)))

    changes = np.flatnonzero(signs[1:] * signs[:-1] < 0)
    crossings = [brentq(height, t[k], t[k + 1], xtol=1e-14) for k in changes]
    zeros = [t[k] for k in range(1, len(t) - 1) if signs[k] == 0 and signs[k - 1] * signs[k + 1] < 0]
    return {float(chart.point(x)) for x in crossings + zeros}
