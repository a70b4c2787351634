"""The loop of a run: a kernel advances the chains from stop to stop, through the stages of a plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from .chains import Chains, Diverged
from .plan import Plan, Stage


@dataclass(frozen=True)
class Moves:
    """The number of steps made, and the step sizes and values by block, `(chains, kept, *shape)`, of kept states.

    `end`: the error to raise where the steps have lost the last chain.
    """

    steps: int
    step_sizes: list[float] = field(default_factory=list)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    end: Diverged | None = None


class Kernel(Protocol):
    """Makes the steps of a run; `backend`: "torch", or the language of its kernel."""

    backend: str

    def advance(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves:
        """Make at least one step of a stage, from its step `done` on and before its step `end`.

        Raises Diverged where all chains are lost.
        """


class Stop(Protocol):
    """An action between two steps of a run, such as a swap of temperatures."""

    def next(self, number: int) -> int:
        """The next number of steps, above `number`, after which the stop acts."""

    def act(self, chains: Chains, stage: Stage, number: int) -> None:
        """Act on chains that have made `number` steps of the run."""


def drive(plan: Plan, chains: Chains, kernel: Kernel, stops: Sequence[Stop] = ()) -> Iterator[Moves]:
    """Yields the moves through the stages of a plan, from the present state of the chains; raises Diverged."""
    for stage in plan.stages:
        done = max(chains.steps - stage.first, 0)
        if not done:
            chains.begin()
        while done < stage.steps:
            number = stage.first + done
            due = [stop.next(number) for stop in stops]
            moves = kernel.advance(chains, stage, done, min([stage.steps, *(k - stage.first for k in due)]))
            done += moves.steps
            for stop, k in zip(stops, due):
                if k == stage.first + done:
                    stop.act(chains, stage, k)
            yield moves
            if moves.end:
                raise moves.end
