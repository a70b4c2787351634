"""The law exp(-H/T) of a recipe over the coordinates of its sites: by quadrature where there is one, else by draws.

Where no grid resolves an energy, draws are those of a long Metropolis chain of many walkers.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import gammaln
from sympy import Expr

from recipe import Recipe, RecipeError
from recipe.arrays import of_arrays
from recipe.formulas import formula
from recipe.marginal import eliminate_gaussians
from recipe.sites import Sites
from recipe.symbols import Block
from recipe.symbols import temperature as T

from .densities import closed, density, separate
from .features import features_over
from .generator import BOUND, STANDARD_ERRORS, Generator
from .grids import BlockGroup, Chart, Points, Unresolved, law_of
from .one_step import fitting_degree
from .quadrature import gauss, gaussian

DEGREE = 4  # of the monomials whose moments are finite
ON_A_GRID = 3  # blocks, at most, of a tensor grid
NODES = (10, 8, 7, 6, 5)  # of a coordinate in a composed quadrature; the most that fit are taken
MOST_NODES, DRAWS = 200_000, 30_000  # points of a composed quadrature times those of the noise, at most; else draws
MOST_OF_THE_GENERATOR = 40_000  # points of the law alone
LEAST_WEIGHT = 1e-11  # of points that are kept, of more than 10 000
LEAST = 1e-14  # the least weight of a point of a composed quadrature that is kept
FINE = 1000  # nodes of a panel of a single coordinate, between which draws are interpolated

Weighted = tuple[Points, np.ndarray]  # points by coordinate, and weights
SWEEPS, CHOICE = 300, 10  # moves of every walker, and candidates for each start
FREEDOM, WIDTH = 3.0, 2.0  # of the Student law of the starts


class CanonicalLaw:
    """exp(-H/T) over coordinates, for one energy: a quadrature of points and weights, or draws if `drawn`.

    `values`: the number of each symbol but blocks; `noise_points`, of a step's noise, limit the points. `coarser`: a
    composed quadrature with a node less for each coordinate, for an estimate of the error. Raises RecipeError where a
    moment is infinite.
    """

    drawn = False
    coarser: Weighted | None = None

    def __init__(
        self, recipe: Recipe, sites: Sites, energy: Any, temperature: float, values: Mapping, noise_points: int = 1
    ):
        self.recipe = recipe
        self.sites = sites
        self.options: dict[str, Any] = {"temperature": temperature, "energy": energy, "values": values}
        self.has_grid = sites.number == 1 and len(recipe.state) <= ON_A_GRID
        self.weighted = self._on_a_grid() or self._composed(MOST_NODES // noise_points)

    @cached_property
    def composition(self) -> "ComposedLaw":
        """The law composed of laws of independent groups."""
        H = self.sites.at(closed(**self.options)(self.recipe.H))
        return ComposedLaw(H, self.sites.coordinates, temperature=self.options["temperature"], degree=DEGREE)

    def _on_a_grid(self):
        if not self.has_grid:
            return None
        recipe = self.recipe
        nodes = {1: 300, 2: None}.get(len(recipe.state), 32)
        integrands = (*recipe.drift, *recipe.D, *(jump.rate for jump in recipe.involutions))
        try:
            points, weights = density(
                recipe.H, recipe.state, nodes=nodes, degree=DEGREE, integrands=integrands, **self.options
            )
        except Unresolved:
            self.has_grid = False
            return None
        kept = weights > (LEAST_WEIGHT if len(weights) > 10_000 else 0)
        return {b: v[kept] for b, v in points.items()}, weights[kept] / weights[kept].sum()

    def _composed(self, limit):
        for nodes in NODES:
            rule = self.composition.rule(nodes, limit)
            if rule is not None:
                self.coarser = self.composition.rule(nodes - 1) or rule
                return rule
        self.drawn = True
        return self._draws()

    def _draws(self):
        return self.composition.draws(DRAWS, 0), np.full(DRAWS, 1 / DRAWS)

    def draws(self, size: tuple[int, ...], seed: int) -> Points:
        """Independent draws of this shape, by coordinate."""
        points, weights = self.weighted
        if not self.has_grid:
            draws = self.composition.draws(int(np.prod(size)), seed)
            return {z: x.reshape(size) for z, x in draws.items()}
        pick = np.random.default_rng(seed).choice(len(weights), size=size, p=weights / weights.sum())
        return {z: np.asarray(x)[pick] for z, x in points.items()}

    def defects(self, sde: Recipe) -> dict[Expr, float]:
        """E[L phi] over its terms, by monomial phi: plus the quadrature's error, or the part of draws beyond chance."""
        features = features_over(self.recipe, self.sites)
        if self.has_grid:
            return self._generator(sde, self.weighted).defects(DEGREE, features)
        degree = fitting_degree(len(features), DEGREE)
        limit = MOST_OF_THE_GENERATOR
        fits = (n for n in NODES if self.composition.rule(n, limit) is not None)
        nodes = next(fits, NODES[-1] + 1)
        fine, coarse = (self.composition.rule(n, limit) for n in (nodes, nodes - 1))
        if fine is not None and coarse is not None:
            defects, coarser = (self._generator(sde, rule).defects(degree, features) for rule in (fine, coarse))
            errors = {phi: abs(x - coarser[phi]) for phi, x in defects.items()}
            if max(errors.values()) < max(BOUND, *map(abs, defects.values())) / 10:
                return {phi: abs(x) + errors[phi] for phi, x in defects.items()}
        return self._generator(sde, self._draws(), drawn=True).defects(degree, features)

    def _generator(self, sde, weighted, drawn=False):
        number = closed(**self.options)
        drift = self.sites.column([number(e) for e in sde.tempered_drift])
        D = self.sites.matrix(sde.D.applyfunc(number))
        temperature = self.options["temperature"]
        jumps = [copy for jump in sde.involutions for copy in self.sites.jumps(jump.replaced(number))]
        options = dict(jumps=jumps, temperature=temperature, drawn=drawn)
        return Generator(self.sites.coordinates, drift, D, *weighted, **options)


# ---- a law composed of known laws


class ComposedLaw:
    """Draws and a quadrature of exp(-H/T), for an H of numbers and coordinates alone.

    A coordinate in which H is quadratic is normal given the others, and is integrated out by its formula. The other
    coordinates fall into groups between which H is a sum: one to three coordinates have a grid; larger groups, and
    groups that no grid resolves, are drawn by a long Metropolis chain. `degree`: of the moments that must be finite.
    Raises RecipeError where a moment is infinite.

    >>> from recipe import scalar
    >>> x, y = scalar("x"), scalar("y")
    >>> banana = ComposedLaw(x**2 / 2 + 5 * (y - x**2) ** 2, (x, y))
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
    def groups(self) -> list["_Tabulated | _Walked"]:
        """The coordinates that are not normal given the rest, in independent groups."""
        coordinates = [b for b in self.coordinates if b not in {g.block for g in self.gaussians}]
        return [self._group(e, blocks) for e, blocks in separate(self.rest, coordinates)]

    def _group(self, energy, blocks):
        temperature = float(self.temperature)
        is_single = len(blocks) == 1 and not blocks[0].domain.is_discrete
        try:
            points, weights, _ = law_of(energy, blocks, temperature, (), FINE if is_single else None, self.degree)
        except Unresolved:
            if any(b.domain.is_discrete for b in blocks):
                raise
            return _Walked(blocks, BlockGroup(blocks, energy, temperature))
        order = np.argsort(points[blocks[0]]) if is_single else slice(None)
        return _Tabulated({b: x[order] for b, x in points.items()}, weights[order], is_single)

    @cached_property
    def conditionals(self) -> dict[Block, Callable[[Points, np.ndarray], np.ndarray]]:
        """The normal coordinates, each after those in its condition, as functions of these and of standard normals."""
        return {g.block: self._normal(g) for g in reversed(self.gaussians)}

    def _normal(self, gaussian):
        mean, variance = (self._function(e) for e in (gaussian.mean, T / gaussian.precision))

        def at(points, z):
            spread = np.asarray(variance(points), float)
            if not np.all(spread > 0):
                what = f"exp(-H) has no finite integral over {gaussian.block}: its precision is {gaussian.precision}"
                raise RecipeError("density, H", what, do=f"Give {gaussian.block} a confining energy.")
            return mean(points) + np.sqrt(spread) * z

        return at

    def _function(self, e):
        e = e.xreplace({T: self.temperature})
        symbols = sorted(e.free_symbols, key=lambda b: b.name)
        f = of_arrays([symbols], e)
        return lambda at: f([at[b] for b in symbols])

    def rule(self, nodes: int, limit: float = np.inf) -> Weighted | None:
        """Points by coordinate and weights, with about `nodes` a coordinate; None without a rule of `limit` points."""
        points: Points = {}
        weights = np.ones(1)
        for k, group in enumerate(self.groups):
            if isinstance(group, _Walked):
                return None
            axes, w = group.rule(nodes + k % 3)  # other nodes at each site, since a mean field may vanish at equal ones
            if len(weights) * len(w) > limit:
                return None
            points, weights = _product(points, weights, axes, w)
        for block, normal in self.conditionals.items():
            if len(weights) * nodes > limit:
                return None
            z, w = gaussian(0, 1, nodes)
            points, weights = _product(points, weights, {block: z}, w)
            points[block] = normal(points, points[block])
        return {b: points[b] for b in self.coordinates}, weights / weights.sum()

    def draws(self, size: int, seed: int) -> Points:
        """Independent draws by coordinate, (size,) each."""
        random = np.random.default_rng(seed)
        points: Points = {}
        for group in self.groups:
            points |= group.draw(size, random)
        for block, normal in self.conditionals.items():
            points[block] = normal(points, random.normal(size=size))
        return {b: points[b] for b in self.coordinates}


def _product(points, weights, axes, w):
    """The product of two rules, without points of negligible weight."""
    i, j = np.nonzero(np.multiply.outer(weights, w) > LEAST)
    return {b: x[i] for b, x in points.items()} | {b: x[j] for b, x in axes.items()}, weights[i] * w[j]


class _Tabulated:
    """Blocks independent of all others, on a grid that resolves their law; for a single coordinate it is a fine one."""

    def __init__(self, points, weights, is_single):
        self.points, self.weights, self.is_single = points, weights / weights.sum(), is_single

    def rule(self, nodes):
        """Points and weights: Gauss points, `nodes` of them, for a single coordinate, else the grid."""
        if not self.is_single:
            return _product(self.points, self.weights, {}, np.ones(1))
        ((block, x),) = self.points.items()
        x, w = gauss(x, self.weights, nodes)
        return {block: x}, w

    def draw(self, size, random):
        """Independent draws: of a single coordinate by its distribution function, else on the grid."""
        if self.is_single:
            ((block, x),) = self.points.items()
            return {block: np.interp(random.random(size), np.cumsum(self.weights) - self.weights / 2, x)}
        pick = random.choice(len(self.weights), size=size, p=self.weights)
        return {b: x[pick] for b, x in self.points.items()}


class _Walked:
    """Blocks independent of all others, drawn by a Metropolis chain from their energy."""

    def __init__(self, blocks, group):
        self.blocks, self.group = blocks, group
        self.known: Points = {}

    def draw(self, size, random):
        """Draws without replacement from the walkers of a Metropolis chain, which is run once, since it takes long."""
        number = len(next(iter(self.known.values()))) if self.known else 0
        if number < size:
            seed = int(random.integers(2**31))
            self.known = metropolis(lambda *z: self.group.energy(*z)[..., 0], self.blocks, size, seed)
        pick = random.permutation(max(number, size))[:size]
        return {b: x[pick] for b, x in self.known.items()}


# ---- draws where no grid resolves an energy


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
    for one, other in ((slice(0, half), slice(half, size)), (slice(half, size), slice(0, half))):
        first, second = random.integers(half, size=(2, half))
        step = np.where(random.random(half) < 0.1, 1.0, 2.38 / np.sqrt(2 * dimension) * random.uniform(0.3, 1, half))
        ahead = walkers[:, one] + step * (walkers[:, other][:, first] - walkers[:, other][:, second])
        ahead += 1e-3 * random.normal(size=ahead.shape)
        level = potential(ahead)
        accepted = np.log(random.random(half)) < levels[one] - level
        walkers[:, one] = np.where(accepted, ahead, walkers[:, one])
        levels[one] = np.where(accepted, level, levels[one])


def _check_settled(middle, end, blocks):
    """Refuses walkers whose moments differ between the middle and the end of the chain."""
    for power in (1, 2):
        before, after = middle**power, end**power
        error = np.sqrt((before.var(1) + after.var(1)) / before.shape[1])
        if not np.all(abs(after.mean(1) - before.mean(1)) <= STANDARD_ERRORS * error):
            what = f"{SWEEPS} Metropolis moves do not reach exp(-H) over {', '.join(map(str, blocks))}"
            do = "Give values= at which its scales are closer, or check a smaller model."
            raise Unresolved("density", what, do=do)
