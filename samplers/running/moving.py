"""What moves chains through the stages of a run: the steps that it makes, and the states that it hands on."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch

from .chains import Chains
from .plan import Plan, Stage


@dataclass(frozen=True)
class Moves:
    """So many steps; of the states that are kept, the step sizes, and the values by block, `(chains, kept, *shape)`."""

    steps: int
    step_sizes: list[float] = field(default_factory=list)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)


class Mover(Protocol):
    """What moves chains, by a `backend`: "torch", "cpp" or "triton"."""

    backend: str

    def move(self, chains: Chains, stage: Stage, done: int) -> Iterator[Moves]:
        """Make the steps of a stage from number `done` of it on; raises Diverged where all chains are lost."""


def moves_of(plan: Plan, chains: Chains, mover: Mover) -> Iterator[Moves]:
    """The moves through the stages of a run, from where the chains are."""
    for stage in plan.stages:
        done = max(chains.moved - stage.first, 0)
        if not done:
            chains.begin()
        if done < stage.steps:
            yield from mover.move(chains, stage, done)
