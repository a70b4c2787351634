"""Potentials by formulas: value and derivatives are functions in the emitted texts of steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch.func import vmap

import integrators
from integrators.backends.loading import load
from integrators.backends.torch import value_module
from integrators.step import Step
from recipe import Energy, Recipe, potential
from recipe.symbols import Block

from .potential import Jet, Orders, differentiated
from .vectorised import axes


@dataclass(frozen=True)
class Symbolic:
    """The potential of a symbolic energy, by texts of `steps` compiled with it; `rows`: number of data, or None.

    >>> import samplers, integrators
    >>> from samplers.target.targets import TARGETS
    >>> step = integrators.compile(samplers.SGLD, energy=TARGETS["double-well"])
    >>> Symbolic([step]).jet(torch.tensor([[0.0], [1.0]]), orders={0}).value
    tensor([2., 0.])
    """

    steps: Sequence[Step]
    rows: int | None = None
    reads_data: ClassVar = True

    def jet(self, z: Any, *batch: Any, orders: Orders, per_chain: bool = False, faults: list[str] | None = None) -> Jet:
        """The derivatives of the given orders, of all chains."""
        value = self._of_chains(self._value, z, batch, per_chain) if 0 in orders else None
        slope = self._slope(z, batch, per_chain) if 1 in orders else None
        curvature = self._of_chains(self._text("curvature"), z, batch, per_chain) if 2 in orders else None
        return Jet(value, slope, curvature)

    @cached_property
    def _value(self) -> Callable:
        """The function U, loaded from a text of its own, as few steps contain U."""
        step = self.steps[0]
        return load(value_module(step.program), f"<sde-recipe {step.recipe.name}, U>")["value"]

    def _text(self, name: str) -> Callable | None:
        namespaces: list[Mapping[str, Any]] = [step.namespace for step in self.steps]
        return next((namespace[name] for namespace in namespaces if name in namespace), None)

    def _slope(self, z: Any, batch: tuple, per_chain: bool) -> Any:
        text = self._text("gradient")
        if text is None:
            return differentiated(lambda at: self._of_chains(self._value, at, batch, per_chain), z).slope
        return self._of_chains(text, z, batch, per_chain)

    def _of_chains(self, text: Callable | None, z: Any, batch: tuple, per_chain: bool) -> Any:
        """The function of a text at all chains; with data the function is of one chain, and vectorised."""
        assert text is not None
        if self.rows is None:
            return text(z)

        def of_one(theta: Any, batch: Any) -> torch.Tensor:
            return text(theta, batch, self.rows)

        return vmap(of_one, in_dims=axes(batch, per_chain))(z, *batch)


def energy_step(energy: Energy, blocks: Sequence[Block]) -> Step:
    """A step whose text has a symbolic energy of `blocks` and its derivatives."""
    target = tuple(blocks) if len(blocks) > 1 else blocks[0]
    recipe = Recipe(name="energy", state=tuple(blocks), target=target, H=potential(*blocks), D=dict.fromkeys(blocks, 1))
    return integrators.compile(recipe, "Euler", energy=energy)
