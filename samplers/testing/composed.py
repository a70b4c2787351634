"""The law exp(-H/T) in any number of coordinates, composed of known laws.

A coordinate in which H is quadratic is normal given the others, and is integrated out by its formula. The other
coordinates fall into groups between which H is a sum: one to three coordinates have a grid; larger groups, and groups
that no grid resolves, are drawn by a long Metropolis chain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sympy import Expr

from recipe import RecipeError
from recipe.arrays import of_arrays
from recipe.marginal import Gaussian, eliminate_gaussians
from recipe.symbols import Block, formula
from recipe.symbols import temperature as T

from .densities import separate
from .grids import Group, Unresolved, law_of
from .metropolis import metropolis
from .quadrature import Rule, gauss, gaussian

Points = dict[Block, np.ndarray]

LEAST = 1e-14  # the least weight of a point that is kept
FINE = 1000  # nodes of a panel, between which draws are interpolated


@dataclass(frozen=True)
class Tabulated:
    """Blocks independent of all others, on a grid that resolves their law; `finer`: the grid of a single coordinate."""

    points: Points
    weights: np.ndarray
    finer: Rule | None = None

    def rule(self, nodes: int) -> tuple[Points, np.ndarray]:
        """Points and weights: Gauss points, `nodes` of them, for a single coordinate, else the grid."""
        (block, x), *others = self.points.items()
        if others or block.domain.is_discrete:
            kept = self.weights > LEAST
            return {b: x[kept] for b, x in self.points.items()}, self.weights[kept]
        x, w = gauss(x, self.weights, nodes)
        return {block: x}, w

    def draw(self, size: int, random: np.random.Generator) -> Points:
        """Independent draws: of one coordinate by its distribution function, of several on the grid."""
        if self.finer is not None:
            (block,) = self.points
            x, weights = self.finer
            return {block: np.interp(random.random(size), np.cumsum(weights) - weights / 2, x)}
        pick = random.choice(len(self.weights), size=size, p=self.weights / self.weights.sum())
        return {b: x[pick] for b, x in self.points.items()}


class Walked:
    """Blocks independent of all others, drawn by a Metropolis chain from their energy."""

    def __init__(self, blocks: tuple[Block, ...], energy: Callable):
        self.blocks = blocks
        self.energy = energy
        self.known: Points = {}

    def draw(self, size: int, random: np.random.Generator) -> Points:
        """Draws without replacement from the walkers of a Metropolis chain, which is run once, since it takes long."""
        number = len(next(iter(self.known.values()))) if self.known else 0
        if number < size:
            self.known = metropolis(self.energy, self.blocks, size, int(random.integers(2**31)))
        pick = random.permutation(max(number, size))[:size]
        return {b: x[pick] for b, x in self.known.items()}


@dataclass(frozen=True)
class Normal:
    """A block that is normal given the blocks before it."""

    block: Block
    mean: Callable
    deviation: Callable

    def given(self, at: Points, z: np.ndarray) -> np.ndarray:
        """The block at standard normal numbers z, given the blocks `at`."""
        return self.mean(at) + self.deviation(at) * z


class Composition:
    """Draws and a quadrature of exp(-H/T), for an H of numbers and coordinates alone.

    `degree`: of the moments that must be finite. Raises RecipeError where a moment is infinite.

    >>> from recipe import scalar
    >>> x, y = scalar("x"), scalar("y")
    >>> banana = Composition(x**2 / 2 + 5 * (y - x**2) ** 2, (x, y))
    >>> points, weights = banana.rule(8)
    >>> len(weights), round(float(weights @ points[y]), 10)
    (64, 1.0)
    """

    def __init__(self, H: Expr, coordinates: Sequence[Block], *, temperature: float = 1.0, degree: int = 4):
        self.coordinates = tuple(coordinates)
        self.degree = degree
        self.temperature = formula(temperature, "density, temperature")
        self.gaussians, rest = eliminate_gaussians(H, self.coordinates)
        self.rest = rest.xreplace({T: self.temperature})

    @cached_property
    def groups(self) -> list[Tabulated | Walked]:
        """The coordinates that are not normal given the rest, in independent groups."""
        eliminated = {g.block for g in self.gaussians}
        left = [b for b in self.coordinates if b not in eliminated]
        return [self._group(e, blocks) for e, blocks in separate(self.rest, left)]

    def _group(self, energy, blocks):
        try:
            points, weights, _ = law_of(energy, blocks, float(self.temperature), [energy], None, self.degree)
        except Unresolved:
            if any(b.domain.is_discrete for b in blocks):
                raise
            at = Group(blocks).energy(energy / self.temperature)
            return Walked(blocks, lambda *z: at(*z)[..., 0])
        if len(blocks) > 1 or blocks[0].domain.is_discrete:
            return Tabulated(points, weights)
        (block,) = blocks
        axes, w, _ = law_of(energy, blocks, float(self.temperature), [energy], FINE, self.degree)
        order = np.argsort(axes[block])
        return Tabulated(points, weights, (axes[block][order], w[order] / w.sum()))

    @cached_property
    def conditionals(self) -> list[Normal]:
        """The normal coordinates, each after the coordinates in its condition."""
        return [self._normal(g) for g in reversed(self.gaussians)]

    def _normal(self, gaussian: Gaussian) -> Normal:
        mean, variance = (self._function(e) for e in (gaussian.mean, T / gaussian.precision))

        def deviation(at):
            spread = np.asarray(variance(at), float)
            if not np.all(spread > 0):
                raise RecipeError(
                    "density, H",
                    f"exp(-H) has no finite integral over {gaussian.block}: its precision is {gaussian.precision}",
                    do=f"Give {gaussian.block} a confining energy.",
                )
            return np.sqrt(spread)

        return Normal(gaussian.block, mean, deviation)

    def _function(self, e: Expr) -> Callable[[Points], np.ndarray]:
        e = e.xreplace({T: self.temperature})
        read = sorted(e.free_symbols, key=lambda b: b.name)
        f = of_arrays([read], e)
        return lambda at: f([at[b] for b in read])

    @property
    def has_rule(self) -> bool:
        """Whether all groups have a quadrature, so that none has to be drawn."""
        return all(isinstance(g, Tabulated) for g in self.groups)

    def rule(self, nodes: int, most: int | None = None) -> tuple[Points, np.ndarray] | None:
        """Points by coordinate and weights, with about `nodes` a coordinate; None without a rule of `most` points."""
        points: Points = {}
        weights = np.ones(1)
        for k, group in enumerate(self.groups):
            if not isinstance(group, Tabulated):
                return None
            own, w = group.rule(nodes + k % 3)  # other nodes at each site, since a mean field may vanish at equal ones
            if most is not None and len(weights) * len(w) > most:
                return None
            points, weights = _product(points, weights, own, w)
        for normal in self.conditionals:
            if most is not None and len(weights) * nodes > most:
                return None
            z, w = gaussian(0, 1, nodes)
            points, weights = _product(points, weights, {normal.block: z}, w)
            points[normal.block] = normal.given(points, points[normal.block])
        return {b: points[b] for b in self.coordinates}, weights / weights.sum()

    def draws(self, size: int, seed: int) -> Points:
        """Independent draws by coordinate, (size,) each."""
        random = np.random.default_rng(seed)
        points: Points = {}
        for group in self.groups:
            points |= group.draw(size, random)
        for normal in self.conditionals:
            points[normal.block] = normal.given(points, random.normal(size=size))
        return {b: points[b] for b in self.coordinates}


def _product(points, weights, others, w):
    """The product of two rules, without points of negligible weight."""
    points = {b: np.repeat(x, len(w)) for b, x in points.items()}
    points |= {b: np.tile(x, len(weights)) for b, x in others.items()}
    weights = np.multiply.outer(weights, w).ravel()
    kept = weights > LEAST
    return {b: x[kept] for b, x in points.items()}, weights[kept]
