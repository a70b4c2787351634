"""What is tuned: an energy, in coordinates that tuning may change, with the step that reads it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

import integrators
from integrators.step import Step
from recipe import Energy, Recipe

from ..energies.coordinates import Affine, Sitewise
from ..energies.data import Data
from ..energies.layout import Layout
from ..energies.several import Energies
from ..energies.values import differentiable_value


@dataclass(frozen=True)
class Problem:
    """An energy of a recipe's target z, which its `layout` maps to what the energy sees.

    `rows`: all data. `scheme` and `pieces` as in `integrators.compile`.
    """

    recipe: Recipe
    energy: Energy | Callable
    layout: Layout
    rows: Data | None
    scheme: Any = None
    pieces: Mapping | None = None

    def step(self) -> Step:
        """The step, with the energy where that is symbolic."""
        symbolic = self.energy if isinstance(self.energy, Energy) else None
        return integrators.compile(self.recipe, self.scheme, pieces=self.pieces, energy=symbolic)

    def value(self, data: Data | None) -> Callable:
        """U of many z, `(chains,)`, for autograd, on these data; of a mapped recipe with the volume, as in H."""
        step = self.step() if isinstance(self.energy, Energy) else None
        value = differentiable_value(self.energy, step, self.layout, data)
        of_recipe = self.layout.coordinates
        if not isinstance(of_recipe, Sitewise):
            return value
        volumes = torch.func.vmap(lambda z: of_recipe.with_volume(z)[1])

        def with_volume(z: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
            return value(z, rows) - self.layout.temperature * volumes(z)

        return with_volume

    def of_target(self) -> Energy | Callable | dict[str, Callable]:
        """The energy as one of the tensor z, those of several potentials by name."""
        if isinstance(self.energy, Energies):
            return {key: self.layout.energy(function) for key, function in self.energy.functions.items()}
        return self.energy if isinstance(self.energy, Energy) else self.layout.energy(self.energy)

    def within(self, coordinates: Affine, where: str) -> "Problem":
        """The same in coordinates of z."""
        energy = coordinates.of_symbols(self.energy, where) if isinstance(self.energy, Energy) else self.energy
        return replace(self, energy=energy, layout=self.layout.within(coordinates))
