"""The law exp(-H/T) of a subject of checks over its coordinates: by quadrature where there is one, else by draws."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sympy import Expr

from recipe import Recipe

from .composed import Composition
from .densities import closed, density
from .features import Features, features_over
from .generator import BOUND, Generator, generator_at_one_site
from .grids import Unresolved
from .one_step import fitting_degree
from .sites import Sites

DEGREE = 4  # of the monomials whose moments are finite
ON_A_GRID = 3  # blocks, at most, of a tensor grid
NODES = (10, 8, 7, 6, 5)  # of a coordinate in a composed quadrature; the most that fit are taken
MOST_NODES, DRAWS = 200_000, 30_000  # points of a composed quadrature times those of the noise, at most; else draws
MOST_OF_THE_GENERATOR = 40_000  # points of the law alone
LEAST_WEIGHT = 1e-11  # of points that are kept, of more than 10 000


@dataclass(frozen=True, eq=False)
class Law:
    """exp(-H/T): points by coordinate and weights, of a quadrature or `drawn`.

    `coarser`: a composed quadrature with a node less for each coordinate, for an estimate of the error.
    """

    points: Mapping
    weights: np.ndarray
    drawn: bool
    composition: Composition | None = None
    coarser: "Law | None" = None

    def draws(self, size: tuple[int, ...], seed: int) -> dict[Any, np.ndarray]:
        """Independent draws of this shape, by coordinate."""
        if self.composition is not None:
            draws = self.composition.draws(int(np.prod(size)), seed)
            return {z: x.reshape(size) for z, x in draws.items()}
        pick = np.random.default_rng(seed).choice(len(self.weights), size=size, p=self.weights / self.weights.sum())
        return {z: np.asarray(x)[pick] for z, x in self.points.items()}


class Laws:
    """exp(-H/T) of one recipe over a number of sites, at a temperature, for any energy of its target.

    `values`: the number of each symbol but blocks.
    """

    def __init__(self, recipe: Recipe, sites: Sites, temperature: float, values: Mapping):
        self.recipe = recipe
        self.sites = sites
        self.temperature = temperature
        self.values = values
        self._without_grid: set[Expr] = set()
        self._laws: dict[Expr, Law] = {}
        self._compositions: dict[Expr, Composition] = {}

    @property
    def features(self) -> Features:
        """The functions of the coordinates whose monomials are test functions."""
        return features_over(self.recipe, self.sites)

    def closed(self, energy: Any) -> Callable[[Expr], Expr]:
        """The function that puts an energy and the numbers into a formula."""
        return closed(temperature=self.temperature, values=self.values, energy=energy)

    def law(self, energy: Any, noise_points: int) -> Law:
        """The law for an energy, on a grid or composed; `noise_points`, of a step's noise, limit the law's points."""
        H = self._closed_energy(energy)
        if H not in self._laws:
            self._laws[H] = self._grid_or_none(energy) or self._composed(self.composition(energy), noise_points)
        return self._laws[H]

    def _closed_energy(self, energy):
        return self.sites.at(self.closed(energy)(self.recipe.H))

    def _grid_or_none(self, energy):
        if self.sites.number > 1 or len(self.recipe.state) > ON_A_GRID:
            return None
        try:
            return self._on_a_grid(energy)
        except Unresolved:
            self._without_grid.add(self._closed_energy(energy))
            return None

    def _composed(self, composition, noise_points):
        most = MOST_NODES // noise_points
        for nodes in NODES:
            rule = composition.rule(nodes, most)
            if rule is not None:
                points, weights = rule
                fewer_points, fewer_weights = composition.rule(nodes - 1) or rule
                coarser = Law(fewer_points, fewer_weights, False, composition)
                return Law(points, weights, False, composition, coarser)
        return Law(composition.draws(DRAWS, 0), np.full(DRAWS, 1 / DRAWS), drawn=True, composition=composition)

    def _on_a_grid(self, energy):
        recipe = self.recipe
        points, weights = density(
            recipe.H,
            recipe.state,
            temperature=self.temperature,
            energy=energy,
            nodes={1: 300, 2: None}.get(len(recipe.state), 32),
            degree=DEGREE,
            values=self.values,
            integrands=(*recipe.drift, *recipe.D),
        )
        kept = weights > (LEAST_WEIGHT if len(weights) > 10_000 else 0)
        points = {b: v[kept] for b, v in points.items()}
        return Law(points, weights[kept] / weights[kept].sum(), drawn=False)

    def composition(self, energy: Any) -> Composition:
        """The law for an energy, composed of laws of independent groups."""
        H = self._closed_energy(energy)
        if H not in self._compositions:
            options: dict[str, Any] = {"temperature": self.temperature, "degree": DEGREE}
            self._compositions[H] = Composition(H, self.sites.coordinates, **options)
        return self._compositions[H]

    # ---- the generator of an SDE under the law

    def defects(self, sde: Recipe, energy: Any) -> dict[Expr, float]:
        """E[L phi] over its terms, by monomial phi: plus the quadrature's error, or the part of draws beyond chance."""
        if self.sites.number == 1 and len(self.recipe.state) <= ON_A_GRID and not self._is_unresolved(energy):
            try:
                return self._defects_on_a_grid(sde, energy)
            except Unresolved:
                self._without_grid.add(self._closed_energy(energy))
        composition = self.composition(energy)
        degree = fitting_degree(len(self.features), DEGREE)
        fine, coarse = (composition.rule(n, MOST_OF_THE_GENERATOR) for n in self._two_numbers_of_nodes(composition))
        if fine is not None and coarse is not None:
            defects, others = (
                self._generator(sde, energy, *rule).defects(degree, self.features) for rule in (fine, coarse)
            )
            errors = {phi: abs(x - others[phi]) for phi, x in defects.items()}
            if max(errors.values()) < max(BOUND, *map(abs, defects.values())) / 10:
                return {phi: abs(x) + errors[phi] for phi, x in defects.items()}
        draws = composition.draws(DRAWS, 0)
        return self._generator(sde, energy, draws, np.full(DRAWS, 1 / DRAWS), drawn=True).defects(degree, self.features)

    def _is_unresolved(self, energy):
        return self._closed_energy(energy) in self._without_grid

    def _two_numbers_of_nodes(self, composition):
        for nodes in NODES:
            if composition.rule(nodes, MOST_OF_THE_GENERATOR) is not None:
                return nodes, nodes - 1
        return NODES[-2:]

    def _defects_on_a_grid(self, sde, energy):
        recipe = self.recipe
        options = {"energy": energy, "values": self.values, "temperature": self.temperature}
        return generator_at_one_site(sde.tempered_drift, sde.D, recipe.H, recipe.state, **options).defects(
            features=self.features
        )

    def _generator(self, sde, energy, points, weights, drawn=False):
        number = self.closed(energy)
        sites = self.sites
        drift = sites.column([number(e) for e in sde.tempered_drift])
        D = sites.matrix(sde.D.applyfunc(number))
        return Generator(sites.coordinates, drift, D, points, weights, temperature=self.temperature, drawn=drawn)
