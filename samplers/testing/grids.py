"""The law of a group of coupled blocks as points and weights, on a grid that is refined until integrals converge.

A grid is Gauss-Legendre in the t of a chart, in panels between the kinks of Max, Abs and Piecewise; a binary block has
the points 0 and 1.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import logit
from sympy import Abs, Expr, Float, Heaviside, Max, Min, Mul, lambdify, sign
from sympy.core.relational import Relational

from recipe import RecipeError
from recipe.arrays import of_arrays, whole_power
from recipe.certificate import tails
from recipe.domains import Domain
from recipe.formulas import formula
from recipe.symbols import Block

from .quadrature import grid, legendre

LEAST = 1e-17  # the share of mass and moments that is left out
FINENESS = {1: 2001, 2: 301, 3: 61}  # of the grid on which the range is looked for, by the number of coupled blocks
PANEL = 12.0  # the greatest length of a panel, in t
NODES = (12, 16, 20, 26, 32, 40, 50, 64, 80, 100, 130, 160, 200, 250, 320, 400)
POINTS = 3_000_000

Points = dict[Block, np.ndarray]


class Unresolved(RecipeError):
    """No grid resolves the law: too many coordinates are coupled, or their scales are too far apart."""


def law_of(
    H: Expr,
    blocks: Sequence[Block],
    temperature: float,
    formulas: Sequence[Expr] = (),
    nodes: int | None = None,
    degree: int = 4,
) -> tuple[Points, np.ndarray, np.ndarray]:
    """Points by block, weights, and the distance of each point from the centre, in units of the law's width.

    `formulas`: integrands beside H. `nodes`, `degree` and errors are those of `density`; raises Unresolved where more
    than three blocks are coupled, or no grid resolves the law.
    """
    group = BlockGroup(blocks, H, temperature)
    moving = group.moving
    if len(moving) > 3:
        what = f"it couples {len(moving)} blocks: {', '.join(map(str, moving))}"
        raise Unresolved("density, H", what, do="At most three can be integrated over.")
    if not moving:
        e = group.energy()
        w = np.exp(e.min() - e)
        return dict(zip(group.latent, group.choices)), w / w.sum(), np.ones(len(w))
    integrands = [group.integrand(e) for e in formulas if e.free_symbols & set(blocks)]
    scaled, ranges = _charts_and_ranges(lambda *z: group.energy(*z).min(-1), moving, degree)
    edges = [_edges([H, *formulas], b, chart, *ends) for b, chart, ends in zip(moving, scaled, ranges)]
    before = None
    for n in [nodes] if nodes else NODES:
        axes = [_panels(e, n) for e in edges]
        if math.prod(len(t) for t, _ in axes) * group.choices.shape[1] > POINTS:
            break
        z, weights = _on_grid(group, scaled, axes)
        units = [(x - chart.centre) / chart.scale for chart, x in zip(scaled, z)]
        now, tolerances = (0, 0) if nodes else _statistics(z, units, weights, degree, integrands)
        if nodes or before is not None and np.all(abs(now - before) <= tolerances):
            points = {b: np.repeat(x, weights.shape[1]) for b, x in zip(moving, z)}
            points |= {b: np.tile(c, len(weights)) for b, c in zip(group.latent, group.choices)}
            return points, weights.ravel(), np.repeat(1 + np.max(np.abs(units), 0), weights.shape[1])
        before = now
    what = f"a grid of {POINTS:,} points does not resolve exp(-H) over {', '.join(map(str, blocks))}"
    raise Unresolved("density", what, do="Give values= at which its scales are closer.")


class BlockGroup:
    """The blocks of a group: `moving` ones, to be integrated over, and `latent` categories, to be summed over."""

    def __init__(self, blocks: Sequence[Block], H: Expr, temperature: Any):
        self.moving = [b for b in blocks if not b.domain.is_discrete]
        self.latent = [b for b in blocks if b.domain.is_discrete]
        values = [np.arange(b.domain.categories, dtype=float) for b in self.latent]
        self.choices = np.array(list(product(*values))).T
        self.level = self._function(H / formula(temperature, "density, temperature"))

    def _function(self, e):
        """A formula as a function of the moving blocks, (..., choices), with a value for each choice of categories."""
        f = of_arrays([[*self.moving, *self.latent]], e)

        def at(*z):
            points = [np.expand_dims(x, -1) for x in np.broadcast_arrays(*z)]
            shape = np.broadcast_shapes(*(x.shape for x in points), self.choices.shape[1:])
            return np.broadcast_to(f([*points, *self.choices]), shape)

        return at

    def energy(self, *z: np.ndarray) -> np.ndarray:
        """H/T at the moving blocks, (..., choices); infinite where it is no number."""
        with np.errstate(all="ignore"):
            values = self.level(*z)
        return np.where(np.isnan(values), np.inf, values)

    def integrand(self, e: Expr) -> Callable[..., np.ndarray]:
        """A formula as a function of the moving blocks, (..., choices); blocks of other groups are at 0.7."""
        return self._function(e.xreplace({b: Float(0.7) for b in e.free_symbols - {*self.moving, *self.latent}}))


def _on_grid(group, scaled, axes):
    """Points of the moving blocks, and weights by point and choice of categories."""
    t, measure = grid(axes)
    z = [chart.point(x) for chart, x in zip(scaled, t)]
    log_measure = np.log(measure) + sum(chart.log_slope(x) for chart, x in zip(scaled, t))
    e = group.energy(*z) - log_measure[:, None]
    weights = np.exp(e.min() - e)
    return z, weights / weights.sum()


def _statistics(z, units, weights, degree, integrands):
    """The moments and the means of the integrands, and their tolerances."""
    by_point = weights.sum(1)
    means = [(whole_power(u, k), by_point, 1e-11) for u in units for k in range(1, degree + 1)]
    means += [(f(*z), weights, 1e-9) for f in integrands]
    return np.array([[(x * w).sum(), tolerance * (abs(x) * w).sum()] for x, w, tolerance in means]).T


# ---- panels between kinks


def _edges(formulas, block, chart, low, high):
    """The ends of the panels of t: the ends of the range, and the kinks of formulas of this block alone inside."""
    arguments = set()
    for e in formulas:
        arguments |= {a - b for f in e.atoms(Max, Min) for a, b in combinations(f.args, 2)}
        arguments |= {f.args[0] for f in e.atoms(Abs, sign, Heaviside)}
        arguments |= {c.lhs - c.rhs for c in e.atoms(Relational)}
    kinks = {x for a in arguments for e in Mul.make_args(a) if e.free_symbols == {block} for x in _roots(e, block)}
    return sorted({low, high} | {t for t in map(chart.inverse, kinks) if low < t < high})


def _panels(edges, nodes):
    """Gauss-Legendre points and weights of all panels."""
    x, w = legendre(nodes)
    parts = [np.linspace(a, b, math.ceil((b - a) / PANEL), endpoint=False) for a, b in zip(edges, edges[1:])]
    ends = np.concatenate([*parts, edges[-1:]])
    low, high = ends[:-1, None], ends[1:, None]
    return ((low + high) / 2 + (high - low) / 2 * x).ravel(), ((high - low) / 2 * w).ravel()


def _roots(e, block):
    """The points where a formula of one block changes its sign, by Brent's method."""
    chart = Chart(block.domain)
    f = lambdify([block], e, "numpy")
    low, high = _window(block.domain)
    t = np.linspace(low, high, 8000)  # an even number, so that 0 is not among them
    with np.errstate(all="ignore"):
        signs = np.sign(np.broadcast_to(f(chart.point(t)), t.shape))
    changes = np.flatnonzero(signs[1:] * signs[:-1] < 0)
    crossings = [brentq(lambda s: float(f(chart.point(s))), t[k], t[k + 1], xtol=1e-14) for k in changes]
    zeros = [t[k] for k in range(1, len(t) - 1) if signs[k] == 0 and signs[k - 1] * signs[k + 1] < 0]
    return {float(chart.point(x)) for x in crossings + zeros}


# ---- charts, and the ranges of t that hold the law


class Chart:
    """x as a function of t: c + s sinh(t) on the line, e^t on the half line, logistic between two ends."""

    def __init__(self, domain: Domain, centre: float = 0.0, scale: float = 1.0):
        self.domain = domain
        self.on_line = domain.is_real
        self.centre = centre if self.on_line else float(domain.low) if domain.is_compact else 0.0
        self.scale = scale

    def point(self, t: Any) -> Any:
        """x at t."""
        x = tails.point(self.domain, t)
        return self.centre + self.scale * x if self.on_line else x

    def inverse(self, x: Any) -> Any:
        """t at x."""
        with np.errstate(all="ignore"):
            if self.on_line:
                return np.arcsinh((x - self.centre) / self.scale)
            return logit((x - self.centre) / float(self.domain.width)) if self.domain.is_compact else np.log(x)

    def log_slope(self, t: Any) -> Any:
        """log dx/dt."""
        return tails.log_slope(self.domain, t) + (math.log(self.scale) if self.on_line else 0.0)


def _window(domain):
    """The range of t in which x is a floating-point number."""
    if domain.is_real:
        return -45.0, 45.0
    return -400.0, 400.0 if domain.is_compact else 45.0


def _charts_and_ranges(energy, blocks, degree):
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

    plain, windows = [Chart(b.domain) for b in blocks], [_window(b.domain) for b in blocks]
    ranges = _narrowed(energy, plain, windows, matters)
    for b, (low, high), window in zip(blocks, ranges, windows):
        if low == window[0] or high == window[1]:
            what = f"exp(-H) |{b}|^{degree} has no finite integral"
            raise RecipeError("density, H", what, do=f"Give {b} a confining energy, or take a smaller degree=.")
    ends = [c.point(np.array(r)) for c, r in zip(plain, _narrowed(energy, plain, ranges, is_bulk))]
    scaled = [Chart(b.domain, x.mean(), np.ptp(x) / 4) for b, x in zip(blocks, ends)]
    rescaled = [
        tuple(new.inverse(old.point(np.array(r)))) if new.on_line else r for new, old, r in zip(scaled, plain, ranges)
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
                what = "exp(-H) vanishes, or is no number, everywhere"
                raise RecipeError("density, H", what, do="Look at its signs.")
            kept = np.flatnonzero(inside(level, t, chart))
            narrowed.append((t[max(kept[0] - 1, 0)], t[min(kept[-1] + 1, len(t) - 1)]))
        settled = all(np.ptp(new) > 0.8 * np.ptp(old) for new, old in zip(narrowed, ranges))
        ranges = narrowed
        if settled:
            break
    return ranges


def _profile(energy, charts, axes, i):
    """The energy along axis i, minimised over the other blocks: on the grid, then around its best point."""
    rest = [j for j in range(len(axes)) if j != i]

    def at(t):
        return energy(*(chart.point(x) for chart, x in zip(charts, t)))

    if not rest:
        return at(axes)
    level = np.moveaxis(at(np.meshgrid(*axes, indexing="ij")), i, 0)
    flat = level.reshape(len(axes[i]), -1)
    best, where = flat.min(1), np.unravel_index(flat.argmin(1), level.shape[1:])
    middle = [axes[j][k] for j, k in zip(rest, where)]
    width = [axes[j][1] - axes[j][0] for j in rest]
    offsets = [o.ravel() for o in np.meshgrid(*[np.linspace(-1, 1, 9)] * len(rest), indexing="ij")]
    for _ in range(14):
        t = [axes[i][:, None]] * len(axes)
        for j, m, w, o in zip(rest, middle, width, offsets):
            t[j] = m[:, None] + w * o
        level = at(np.broadcast_arrays(*t))
        k = level.argmin(1)
        best = np.minimum(best, level.min(1))
        middle = [m + w * o[k] for m, w, o in zip(middle, width, offsets)]
        width = [w / 3 for w in width]
    return best
