"""Proposals of steps that are accepted or rejected: divergent ones with their draws, and how U varies in each chain."""

from collections.abc import Mapping
from typing import Any

import torch

from integrators.metropolis import MetropolisedStep
from integrators.program import DERIVATIVES
from integrators.work import WORK

from ..results.geometry import DIVERGENT, PLACES
from .drive import Moves
from .plan import Plan

AT_ONCE = 256  # draws that are looked at together

VALUE = DERIVATIVES[0]


class Proposals:
    """The work of the proposals before the kept states, and U there where steps carry it.

    `like`: a block of the chains, `(chains, *shape)`; `momenta`: the number of Gaussian momenta of a chain. A proposal
    whose work is above `DIVERGENT` T is divergent; it is rejected, so that its draw is where it began.
    """

    def __init__(self, plan: Plan, like: torch.Tensor, momenta: int) -> None:
        step = plan.step
        self.temperature = plan.kept_temperature
        accepts = isinstance(step, MetropolisedStep) and step.accepts and self.temperature > 0
        self.blocks = [WORK.name, VALUE] if accepts else []
        self.momenta = momenta
        self.waiting: list[tuple[int, dict[str, torch.Tensor]]] = []
        zero = torch.zeros(len(like), dtype=torch.float64, device="cpu")
        self.seen = {name: zero.clone() for name in ("number", "divergent", "values", "mean", "squares")}
        self.places = torch.zeros((0, 2), dtype=torch.int64, device="cpu")

    def take(self, moves: Moves, begin: int) -> None:
        """Add the kept states of `moves`, which follow `begin` earlier ones."""
        some = {name: x for name, x in moves.kept.items() if name in self.blocks and torch.is_tensor(x)}
        if some and some[WORK.name].shape[1]:
            self.waiting.append((begin, some))
            if begin + len(moves.step_sizes) - self.waiting[0][0] >= AT_ONCE:
                self._look()

    def _look(self) -> None:
        """Counts the states that wait; means and sums of squares are merged as by Chan, Golub & LeVeque 1979."""
        if not self.waiting:
            return
        begin = self.waiting[0][0]
        parts = [some for _, some in self.waiting]
        self.waiting = []
        kept = {name: torch.cat([p[name] for p in parts], 1).to("cpu", torch.float64) for name in parts[0]}
        divergent = kept[WORK.name] > DIVERGENT * self.temperature
        self.seen["number"] += divergent.shape[1]
        self.seen["divergent"] += divergent.sum(1)
        places = (divergent.T.nonzero() + torch.tensor([begin, 0], device="cpu")).flip(1)  # in the order of draws
        self.places = torch.cat([self.places, places])[:PLACES]
        if VALUE in kept:
            values, before = kept[VALUE], self.seen["values"]
            number = values.shape[1]
            away = values.mean(1) - self.seen["mean"]
            self.seen["squares"] += values.var(1, correction=0) * number + away**2 * before * number / (before + number)
            self.seen["mean"] += away * number / (before + number)
            self.seen["values"] += number

    def snapshot(self) -> dict[str, torch.Tensor]:
        """The counts so far, from which `restore` continues."""
        self._look()
        return {name: x.clone() for name, x in self.seen.items()} | {"places": self.places.clone()}

    def restore(self, seen: Mapping[str, torch.Tensor]) -> None:
        """Continue from a snapshot."""
        self.seen = {name: seen[name].clone() for name in self.seen}
        self.places = seen["places"].clone()

    def account(self) -> dict[str, Any]:
        """`divergences`: the proposals looked at, divergent ones of each chain, and the chain and draw of the first.

        `e_bfmi`, where U is at hand: Var[H | theta] / Var[H] of each chain, times two as Betancourt does, so that it is
        1 for a Gaussian; with d momenta, d T^2 / (d T^2/2 + Var[U]).
        """
        self._look()
        account: dict[str, Any] = {}
        if self.seen["number"].any():
            account["divergences"] = {
                "proposals": int(self.seen["number"].sum()),
                "of_chains": self.seen["divergent"].long().tolist(),
                "places": self.places.tolist(),
            }
        if self.momenta and bool((self.seen["values"] > 1).all()):
            fresh = self.momenta * self.temperature**2
            variance = self.seen["squares"] / (self.seen["values"] - 1)
            account["e_bfmi"] = (fresh / (fresh / 2 + variance)).nan_to_num(0.0).tolist()
        return account
