"""Chains that move step by step, in torch or by a kernel of one step, as energies that are torch functions need it."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from integrators.step import Step

from .chains import Chains
from .inputs import Evaluations, Inputs, OfStep
from .moving import Moves
from .plan import Stage


class Stepwise:
    """Chains moved one step at a time: by the text of the step in torch, or by a kernel of one step, "cpp" or "triton".

    `inputs`: what steps read beside the state; `keep`: the names of the blocks whose values are handed on.
    """

    def __init__(self, inputs: Inputs, keep: Sequence[str], backend: str = "torch") -> None:
        self.inputs = inputs
        self.keep = keep
        self.backend = backend

    def move(self, chains: Chains, stage: Stage, done: int) -> Iterator[Moves]:
        """Make the steps of a stage from number `done` of it on, each of them handed on as it is made."""
        target = chains.state[chains.recipe.targets[0].name]
        numbers = range(stage.first + done, stage.first + stage.steps)
        for of_step in self.inputs.of_steps(stage.step, numbers, target, keyed=self.backend != "torch"):
            k = of_step.number - stage.first
            h = stage.step_size(k)
            carried = chains.rows if stage.step.program.carries_gradient else None
            evaluations = Evaluations(self.inputs.derivatives, of_step.rows_of, carried)
            new = self._stepped(stage.step, chains.state, of_step, evaluations, h, stage.temperature(k))
            chains.advance(new, rows=evaluations.latest)
            if stage.until_kept(k):
                yield Moves(1)
            else:
                yield Moves(1, [h], {name: chains.state[name][:, None] for name in self.keep})

    @torch.no_grad()
    def _stepped(
        self, step: Step, state: dict, of_step: OfStep, evaluations: Evaluations, h: float, T: float
    ) -> dict[str, Any]:
        """The state after a step, lost chains and all."""
        functions = evaluations.functions()
        settings = {"temperature": T, "step_number": of_step.number, **self.inputs.constants}
        if self.backend != "torch":
            return step.swept(state, h, noise=self.inputs.key(of_step.number), **functions, **settings)
        arguments = step.arguments(noise=of_step.noise, sizes=self.inputs.layout.sizes, **functions)
        return step.function(state, h, **arguments, **step.spelled(settings))
