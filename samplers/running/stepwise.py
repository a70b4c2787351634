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
            T = stage.temperature(k)
            functions = evaluations.functions()
            new = stepped(stage.step, chains.state, of_step, functions, h, T, self.inputs, self.backend)
            chains.advance(new, rows=evaluations.latest)
            if stage.until_kept(k):
                yield Moves(1)
            else:
                yield Moves(1, [h], {name: chains.state[name][:, None] for name in self.keep})


@torch.no_grad()
def stepped(
    step: Step,
    state: dict,
    of_step: OfStep,
    functions: dict[str, Any],
    h: float,
    T: float,
    inputs: Inputs,
    backend: str = "torch",
) -> dict[str, Any]:
    """The state after a step, lost chains and all; `functions`: gradient, curvature and observations."""
    settings = {"temperature": T, "step_number": of_step.number, **inputs.constants}
    if backend != "torch":
        return step.swept(state, h, noise=inputs.key(of_step.number), **functions, **settings)
    arguments = step.arguments(noise=of_step.noise, sizes=inputs.layout.sizes, **functions)
    return step.function(state, h, **arguments, **step.spelled(settings))
