"""Chains of one kind among pairs: at one step size, with averages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from integrators.step import Step

from ..results.pairs import Moments
from ..target.potential import Blocks
from .chains import Chains
from .inputs import Evaluations, Inputs, OfStep
from .stepwise import StepCall


@dataclass(eq=False)
class Level:
    """Chains at one step size `h`, with moments of `statistics` of their state, and averages of all blocks.

    Moments are about the mean at the start, the `centre`.
    """

    step: Step
    h: float
    temperature: float
    inputs: Inputs
    chains: Chains
    statistics: Callable[[Blocks], Blocks]

    def __post_init__(self) -> None:
        self.centre = {name: x.to(torch.float64).mean(0) for name, x in self.statistics(self.chains.state).items()}
        self.evaluations = Evaluations(self.inputs.target)
        self.call = StepCall(self.step, self.evaluations.functions(), self.inputs)
        self.forget()

    def forget(self) -> None:
        """Reset the averages."""
        self.number = 0
        zeros = {name: c.expand(len(self.chains), *c.shape) * 0 for name, c in self.centre.items()}
        self.first = dict(zeros)
        self.second = dict(zeros)
        self.of_blocks: torch.Tensor | float = 0.0

    def move(self, number: int, noise: Mapping[str, Any], *sources: OfStep) -> None:
        """Make step `number` with `noise`; each gradient is the mean over the batches of `sources`."""
        carried = self.evaluations.latest if "gradient" in self.chains.state else None
        self.evaluations.begin(*sources, carried=carried)
        self.chains.advance(self.call(self.chains.state, number, noise, self.h, self.temperature))

    def look(self) -> None:
        """Add the present state to the averages."""
        self.number += 1
        for name, value in self.statistics(self.chains.state).items():
            x = value.to(torch.float64) - self.centre[name]
            self.first[name] = self.first[name] + x
            self.second[name] = self.second[name] + x.square()
        moving = [b.name for b in self.step.recipe.entries if b.name not in self.step.frozen]
        sites = [self.chains.state[name].to(torch.float64).reshape(len(self.chains), -1) for name in moving]
        self.of_blocks = self.of_blocks + torch.stack([m for x in sites for m in (x.mean(1), x.square().mean(1))], 1)

    def moments(self, chains: torch.Tensor, named: Callable[[Blocks], Blocks]) -> dict[str, Moments]:
        """The moments of the statistics of some `chains`, by the names of the figures; `named` renames blocks."""
        first, second = (
            named({name: x[chains] / self.number for name, x in sums.items()}) for sums in (self.first, self.second)
        )
        return {name: Moments(first[name], second[name]) for name in first}
