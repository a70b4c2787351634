"""The form in which energies see the target of a chain: one tensor, or tensors by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from recipe import Recipe

from .coordinates import Composed, Coordinates
from .potential import Blocks, Position


@dataclass(frozen=True)
class Layout:
    """The map from the target tensor z of a chain to theta in the form that energies take.

    `shapes`: by name, of the tensors that are concatenated in theta, in order; None where theta is one tensor.
    `coordinates`: the map theta = f(z), None for theta = z; `temperature`: T of exp(-U/T).

    >>> Layout({"w": (2, 2), "c": (1,)}).by_name(torch.arange(5))["w"]
    tensor([[0, 1],
            [2, 3]])
    """

    shapes: dict[str, tuple[int, ...]] | None = None
    coordinates: Coordinates | None = None
    temperature: float = 1.0

    @property
    def sizes(self) -> list[int]:
        """The number of sites of each tensor."""
        return [torch.Size(shape).numel() for shape in (self.shapes or {}).values()]

    def by_name(self, theta: torch.Tensor) -> Any:
        """theta `(*leading, sites)` as a dict of tensors by name; unchanged without `shapes`."""
        if self.shapes is None:
            return theta
        parts = zip(self.shapes.items(), theta.split(self.sizes, -1))
        return {name: part.reshape((*theta.shape[:-1], *shape)) for (name, shape), part in parts}

    def theta(self, z: torch.Tensor) -> torch.Tensor:
        """theta = f(z)."""
        return z if self.coordinates is None else self.coordinates(z)

    def z(self, theta: torch.Tensor) -> torch.Tensor:
        """z with f(z) = theta."""
        return theta if self.coordinates is None else self.coordinates.inverse(theta)

    def seen(self, z: Any) -> Any:
        """theta at z, `(*leading, *shape)`, in the form that energies take; explicit coordinates by block unchanged."""
        return z if isinstance(z, Mapping) else self.by_name(self.theta(z))

    def of_target(self, function: Callable) -> Callable:
        """A function of theta, and of a batch, as a function of z."""

        def of_z(z: Any, *batch: Any, **settings: Any) -> Any:
            return function(self.seen(z), *batch, **settings)

        return of_z

    def within(self, coordinates: Coordinates) -> "Layout":
        """The layout of a target z', with z = coordinates(z')."""
        outer = self.coordinates
        return replace(self, coordinates=coordinates if outer is None else Composed(outer, coordinates))

    def energy(self, U: Callable) -> Callable:
        """The energy of z for an energy U of theta: U(f(z)) - T log|det df/dz|."""
        if self.coordinates is None or not self.coordinates.adds_volume:
            return self.of_target(U)
        with_volume = self.coordinates.with_volume

        def of_z(z: torch.Tensor, *batch: Any, **settings: Any) -> torch.Tensor:
            theta, volume = with_volume(z)
            return U(self.by_name(theta), *batch, **settings) - self.temperature * volume

        return of_z


def position_of(recipe: Recipe, state: Mapping[str, Any]) -> Position:
    """The target of all chains: a tensor `(chains, *shape)`, or a dict by block for explicit coordinates."""
    if len(recipe.targets) == 1:
        return state[recipe.targets[0].name]
    return {b.name: state[b.name] for b in recipe.targets}


def by_block(recipe: Recipe, position: Position) -> Blocks:
    """A position, or a slope in its form, as a dict by block."""
    return position if isinstance(position, dict) else {recipe.targets[0].name: position}
