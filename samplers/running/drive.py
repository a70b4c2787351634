"""A run as it is driven: a kernel advances the chains from stop to stop, through the stages of a plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from .chains import Chains, Diverged
from .plan import Plan, Stage


@dataclass(frozen=True)
class Moves:
    """So many steps; of the states that are kept, the step sizes, and the values by block, `(chains, kept, *shape)`.

    `end`: the error to raise after these steps, which have lost the last chain.
    """

    steps: int
    step_sizes: list[float] = field(default_factory=list)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    end: Diverged | None = None


class Kernel(Protocol):
    """A way to make steps, by a `backend`: "torch", "cpp" or "triton"; `reason`: why a run has this one."""

    backend: str

    def advance(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves:
        """Make some steps of a stage, from number `done` of it on: one at least, and none from number `end` on.

        Raises Diverged where all chains are lost.
        """


class Stop(Protocol):
    """Something to be done between two steps of a run."""

    def next(self, number: int) -> int:
        """The number of steps, greater than this one, after which the stop acts."""

    def act(self, chains: Chains, stage: Stage, number: int) -> None:
        """Act on chains that have made this number of steps."""


def drive(plan: Plan, chains: Chains, kernel: Kernel, stops: Sequence[Stop] = ()) -> Iterator[Moves]:
    """The moves through the stages of a plan, from where the chains are."""
    for stage in plan.stages:
        done = max(chains.moved - stage.first, 0)
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
