"""The problem of tuning: an energy, in coordinates that tuning may change, and the step that reads it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import integrators
from integrators.step import Step
from recipe import Energy, Recipe

from ..target.coordinates import Affine, Mapped
from ..target.data import Data
from ..target.foreign import Foreign
from ..target.layout import Layout
from ..target.potential import VALUE
from ..target.several import Energies
from ..target.target import Target, target_of
from ..target.traced import Traced


@dataclass(frozen=True)
class Problem:
    """An energy of a recipe's target z, which `layout` maps to the arguments of the energy.

    `rows`: all data; `scheme`: as in `integrators.compile`.
    """

    recipe: Recipe
    energy: Energy | Traced | Foreign
    layout: Layout
    rows: Data | None
    scheme: Any = None

    def step(self) -> Step:
        """The compiled step, with the energy if it is symbolic."""
        symbolic = self.energy if isinstance(self.energy, Energy) else None
        return integrators.compile(self.recipe, self.scheme, energy=symbolic)

    def target(self, data: Data | None) -> Target:
        """The energy at z, `(chains, *shape)`, on these data."""
        steps = [self.step()] if isinstance(self.energy, Energy) else []
        return target_of(self.energy, steps, None, self.layout, data)

    def value(self, data: Data | None) -> Callable:
        """The differentiable function from z, `(chains, *shape)`, to U on these data, `(chains,)`.

        U of a mapped recipe has the volume of the map, as in H.
        """
        target = self.target(data)
        of_recipe = self.layout.coordinates
        volumes = torch.func.vmap(lambda z: of_recipe.with_volume(z)[1]) if isinstance(of_recipe, Mapped) else None

        def value(z: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
            U = target.at(z, rows, VALUE).value
            return U if volumes is None else U - self.layout.temperature * volumes(z)

        return value

    def of_target(self) -> Energy | Traced | Foreign | dict[str, Callable]:
        """The energy as a function of the tensor z; the energies of several potentials by name."""
        if isinstance(self.energy, Energy):
            return self.energy
        if isinstance(self.energy, Traced) and isinstance(self.energy.function, Energies):
            return {key: self.layout.energy(function) for key, function in self.energy.function.functions.items()}
        return self.energy.within(self.layout)

    def within(self, coordinates: Affine, where: str) -> "Problem":
        """The problem in affine coordinates of z."""
        energy = coordinates.of_symbols(self.energy, where) if isinstance(self.energy, Energy) else self.energy
        return replace(self, energy=energy, layout=self.layout.within(coordinates))
