"""The settings that all groups of an optimizer share: the step of the recipe, and its noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import integrators
from integrators.optimizer_form import optimizer_form
from integrators.requirements import check_one_vector
from integrators.step import Step
from recipe import Recipe

from .stacked import members_of


@dataclass(frozen=True, eq=False)
class Sampler:
    """Settings of all groups of an optimizer; `where` begins messages, `step` begins right after its gradient."""

    where: str
    step: Step
    seed: int
    chain: int
    backend: str
    capturable: bool

    @property
    def recipe(self) -> Recipe:
        """The recipe of the step."""
        return self.step.recipe

    def identity(self, params: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The identity of a group's state: recipe, scheme, seed, chain, frozen blocks and members."""
        members = members_of(params)
        return {
            "recipe": self.recipe.name,
            "scheme": str(self.step.program.scheme),
            "seed": self.seed,
            "chain": self.chain,
            "frozen": list(self.step.frozen),
            **({"members": [members.start, members.stop]} if members else {}),
        }


def compiled(where: str, recipe: Recipe, freeze: Any, how: Mapping[str, Any]) -> Step:
    """The step that leaves blocks and adapted quantities of these names unchanged; it begins after its gradient."""
    step = integrators.compile(recipe, freeze=freeze, **how)
    check_one_vector(
        recipe,
        where,
        several="and a loop moves one set of weights",
        ends="and weights have none",
        do="Take a recipe of one real vector, or samplers.sample; an Ensemble has chains.",
    )
    adapt = recipe.updates_except(step.frozen)
    program = optimizer_form(recipe, step.scheme, step.flows, adapt, value=True)
    return Step(recipe, program.scheme, step.flows, program, frozen=step.frozen)
