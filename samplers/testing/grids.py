"""The law of a group of coupled blocks as points and weights, on a grid that is refined until integrals converge.

A grid is Gauss-Legendre in the t of a chart, in panels between the kinks of Max, Abs and Piecewise; a binary block has
the points 0 and 1.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations, product

import numpy as np
from sympy import Abs, Expr, Float, Heaviside, Max, Min, sign
from sympy.core.relational import Relational

from recipe import RecipeError
from recipe.arrays import of_arrays, whole_power
from recipe.symbols import Block, formula

from .charts import Chart, charts_and_ranges, roots
from .quadrature import Rule, legendre

PANEL = 12.0  # the greatest length of a panel, in t
NODES = (12, 16, 20, 26, 32, 40, 50, 64, 80, 100, 130, 160, 200, 250, 320, 400)
POINTS = 3_000_000


class Unresolved(RecipeError):
    """No grid resolves the law: too many coordinates are coupled, or their scales are too far apart."""


GroupLaw = tuple[dict[Block, np.ndarray], np.ndarray, np.ndarray]  # points by block, weights, sizes


def law_of(
    H: Expr, blocks: Sequence[Block], temperature: float, formulas: Sequence[Expr], nodes: int | None, degree: int
) -> GroupLaw:
    """Points by block, weights, and the distance of each point from the centre, in units of the law's width.

    `formulas`: H of all groups, then integrands. `nodes`, `degree` and errors are those of `density`; raises
    Unresolved where more than three blocks are coupled, or no grid resolves the law.
    """
    group = Group(blocks)
    moving = group.moving
    if len(moving) > 3:
        raise Unresolved(
            "density, H",
            f"it couples {len(moving)} blocks: {', '.join(map(str, moving))}",
            do="At most three can be integrated over.",
        )
    energy = group.energy(H / formula(temperature, "density, temperature"))
    if not moving:
        e = energy(np.zeros(()))
        w = np.exp(e.min() - e)
        return dict(zip(group.latent, group.choices)), w / w.sum(), np.ones(len(w))
    integrands = group.integrands(formulas[1:])
    charts, ranges = charts_and_ranges(lambda *z: energy(*z).min(-1), moving, degree)
    edges = [_edges(formulas, b, chart, *ends) for b, chart, ends in zip(moving, charts, ranges)]
    before = None
    for n in [nodes] if nodes else NODES:
        axes = [_panels(e, n) for e in edges]
        if math.prod(len(t) for t, _ in axes) * group.choices.shape[1] > POINTS:
            break
        grid = _Grid(group, energy, charts, axes)
        if nodes:
            return grid.law()
        now, tolerances = grid.statistics(degree, integrands)
        if before is not None and np.all(abs(now - before) <= tolerances):
            return grid.law()
        before = now
    raise Unresolved(
        "density",
        f"a grid of {POINTS:,} points does not resolve exp(-H) over {', '.join(map(str, blocks))}",
        do="Give values= at which its scales are closer.",
    )


def _edges(formulas, block, chart, low, high):
    """The ends of the panels of t: the ends of the range, and the kinks inside."""
    kinks = [chart.inverse(k) for k in _kinks(formulas, block)]
    return sorted({low, high} | {t for t in kinks if low < t < high})


def _panels(edges, nodes):
    """Gauss-Legendre points and weights of all panels."""
    x, w = legendre(nodes)
    parts = [np.linspace(a, b, math.ceil((b - a) / PANEL), endpoint=False) for a, b in zip(edges, edges[1:])]
    ends = np.concatenate([*parts, edges[-1:]])
    low, high = ends[:-1, None], ends[1:, None]
    return ((low + high) / 2 + (high - low) / 2 * x).ravel(), ((high - low) / 2 * w).ravel()


class Group:
    """The blocks of a group: `moving` ones, to be integrated over, and `latent` categories, to be summed over."""

    def __init__(self, blocks: Sequence[Block]):
        self.moving = [b for b in blocks if not b.domain.is_discrete]
        self.latent = [b for b in blocks if b.domain.is_discrete]
        values = [np.arange(b.domain.categories, dtype=float) for b in self.latent]
        self.choices = np.array(list(product(*values))).T

    def function(self, e: Expr) -> Callable[..., np.ndarray]:
        """A formula as a function of the moving blocks, (..., choices), with a value for each choice of categories."""
        f = of_arrays([[*self.moving, *self.latent]], e)

        def at(*z):
            points = [np.expand_dims(x, -1) for x in np.broadcast_arrays(*z)]
            shape = np.broadcast_shapes(*(x.shape for x in points), self.choices.shape[1:])
            return np.broadcast_to(f([*points, *self.choices]), shape)

        return at

    def energy(self, e: Expr) -> Callable[..., np.ndarray]:
        """An energy as a function of the moving blocks, as of `function`; infinite where the value is no number."""
        f = self.function(e)

        def at(*z):
            with np.errstate(all="ignore"):
                values = f(*z)
            return np.where(np.isnan(values), np.inf, values)

        return at

    def integrands(self, formulas: Sequence[Expr]) -> list[Callable[..., np.ndarray]]:
        """Formulas that read a block of the group, as functions, as of `function`; all other blocks are at 0.7."""
        own = {*self.moving, *self.latent}
        read = [e for e in formulas if e.free_symbols & own]
        return [self.function(e.xreplace({b: Float(0.7) for b in e.free_symbols - own})) for e in read]


class _Grid:
    """Points z of the moving blocks, weights by point and choice of categories, and z in units of the law's width."""

    def __init__(self, group: Group, energy: Callable, charts: Sequence[Chart], axes: Sequence[Rule]):
        t = [x.ravel() for x in np.meshgrid(*(t for t, _ in axes), indexing="ij")]
        self.group = group
        self.z = [chart.point(x) for chart, x in zip(charts, t)]
        self.units = [chart.units(x) for chart, x in zip(charts, self.z)]
        log_weights = np.zeros(())
        for _, w in axes:
            log_weights = np.add.outer(log_weights, np.log(w))
        log_measure = log_weights.ravel() + sum(chart.log_slope(x) for chart, x in zip(charts, t))
        e = energy(*self.z) - log_measure[:, None]
        weights = np.exp(e.min() - e)
        self.weights = weights / weights.sum()

    def statistics(self, degree: int, integrands: Sequence[Callable]) -> np.ndarray:
        """The moments and the means of the integrands, and their tolerances."""
        by_point = self.weights.sum(1)
        means = [(whole_power(u, k), by_point, 1e-11) for u in self.units for k in range(1, degree + 1)]
        means += [(f(*self.z), self.weights, 1e-9) for f in integrands]
        return np.array([[(x * w).sum(), tolerance * (abs(x) * w).sum()] for x, w, tolerance in means]).T

    def law(self) -> GroupLaw:
        """Points by block, weights, and 1 plus the distance of each point, in units of the law's width."""
        choices = self.group.choices
        points = {b: np.repeat(x, choices.shape[1]) for b, x in zip(self.group.moving, self.z)}
        points |= {b: np.tile(c, len(self.z[0])) for b, c in zip(self.group.latent, choices)}
        sizes = np.repeat(1 + np.max(np.abs(self.units), 0), choices.shape[1])
        return points, self.weights.ravel(), sizes


def _kinks(formulas, block):
    """The points where a formula of this block alone changes form: roots of arguments of Max, Min, Abs, Piecewise."""
    edges = set()
    for e in formulas:
        edges |= {a - b for f in e.atoms(Max, Min) for a, b in combinations(f.args, 2)}
        edges |= {f.args[0] for f in e.atoms(Abs, sign, Heaviside)}
        edges |= {c.lhs - c.rhs for c in e.atoms(Relational)}
    own = [edge for edge in edges if edge.free_symbols == {block}]
    return sorted({root for edge in own for root in roots(edge, block)})
