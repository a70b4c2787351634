"""Kinetic temperatures and thermostats of a run, averaged over its kept states, and its proposals."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from integrators.auxiliary import masses
from integrators.direction import WORK
from integrators.metropolis import ENDLESS, MetropolisedStep
from integrators.program import DERIVATIVES

from ..results.averages import agreements_of, average_of
from ..results.geometry import DIVERGENT, PLACES
from ..results.statistics import LEAST
from .chains import Chains
from .drive import Moves
from .plan import Plan

LOOKS = 256  # kept states that are averaged, at most
NUMBERS = 2**20  # averages of all chains together, at most
PROPOSALS = "proposals."  # before the names of what is kept of proposals

Series = dict[str, torch.Tensor]  # by block, `(chains, looks)`
ROUNDING = 1e-6  # relative, of float32
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
        self.sums = {name: zero.clone() for name in ("number", "divergent", "endless", "values", "mean", "squares")}
        self.places = {name: torch.zeros((0, 2), dtype=torch.int64, device="cpu") for name in ("divergent", "endless")}

    def take(self, moves: Moves, begin: int) -> None:
        """Add the kept states of `moves`, which follow `begin` earlier ones."""
        part = {name: x for name, x in moves.kept.items() if name in self.blocks and torch.is_tensor(x)}
        if part and part[WORK.name].shape[1]:
            self.waiting.append((begin, part))
            if begin + len(moves.step_sizes) - self.waiting[0][0] >= AT_ONCE:
                self._look()

    def _look(self) -> None:
        """Counts the states that wait; means and sums of squares are merged as by Chan, Golub & LeVeque 1979."""
        if not self.waiting:
            return
        begin = self.waiting[0][0]
        parts = [part for _, part in self.waiting]
        self.waiting = []
        kept = {name: torch.cat([p[name] for p in parts], 1).to("cpu", torch.float64) for name in parts[0]}
        work = kept[WORK.name]
        self.sums["number"] += work.shape[1]
        endless = work > (1 - ROUNDING) * ENDLESS
        far = {"divergent": (work > DIVERGENT * self.temperature) & ~endless, "endless": endless}
        for name, proposals in far.items():
            self.sums[name] += proposals.sum(1)
            places = (proposals.T.nonzero() + torch.tensor([begin, 0], device="cpu")).flip(1)  # in the order of draws
            self.places[name] = torch.cat([self.places[name], places])[:PLACES]
        if VALUE in kept:
            values, before = kept[VALUE], self.sums["values"]
            number = values.shape[1]
            away = values.mean(1) - self.sums["mean"]
            self.sums["squares"] += values.var(1, correction=0) * number + away**2 * before * number / (before + number)
            self.sums["mean"] += away * number / (before + number)
            self.sums["values"] += number

    def snapshot(self) -> dict[str, torch.Tensor]:
        """The counts so far, from which `restore` continues."""
        self._look()
        places = {f"places.{name}": x.clone() for name, x in self.places.items()}
        return {name: x.clone() for name, x in self.sums.items()} | places

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue from a snapshot."""
        self.sums = {name: tensors[name].clone() for name in self.sums}
        self.places = {name: tensors[f"places.{name}"].clone() for name in self.places}

    def endless(self) -> list[list[int]]:
        """The chain and draw of the first proposals whose work is infinite or no number."""
        self._look()
        return self.places["endless"].tolist()

    def account(self, edge: float | None = None) -> dict[str, Any]:
        """`divergences`: the proposals looked at, divergent ones of each chain, and the chain and draw of the first.

        `edge`: the same of those whose work is infinite, with `height`, where they went past an edge of this height.
        `e_bfmi`, where U is at hand: Var[H | theta] / Var[H] of each chain, times two as Betancourt does, so that it is
        1 for a Gaussian; with d momenta, d T^2 / (d T^2/2 + Var[U]).
        """
        self._look()
        account: dict[str, Any] = {}
        if self.sums["number"].any():
            names = ["divergent"] if edge is not None else ["divergent", "endless"]
            account["divergences"] = {"proposals": int(self.sums["number"].sum())} | self._of(*names)
        if edge is not None:
            account["edge"] = self._of("endless") | {"height": edge}
        if self.momenta and bool((self.sums["values"] > 1).all()):
            fresh = self.momenta * self.temperature**2
            variance = self.sums["squares"] / (self.sums["values"] - 1)
            account["e_bfmi"] = (fresh / (fresh / 2 + variance)).nan_to_num(0.0).tolist()
        return account

    def _of(self, *names: str) -> dict[str, Any]:
        """The proposals of some kinds by chain, and the first places of these."""
        number = torch.stack([self.sums[name] for name in names]).sum(0).long().tolist()
        places = sorted(
            [place for name in names for place in self.places[name].tolist()], key=lambda place: place[::-1]
        )
        return {"of_chains": number, "places": places[:PLACES]}


class Gauges:
    """Means over the sites, at some of the kept states, of p^2/m of every block of momenta, and of thermostats.

    `like`: a block of the chains, `(chains, *shape)`; `parameters`: values by name. Momenta are included where the run
    has one temperature > 0 and the law of p given the other blocks is N(0, m T).
    """

    def __init__(self, plan: Plan, like: torch.Tensor, parameters: Mapping[str, Any]) -> None:
        recipe = plan.step.recipe
        kept = plan.kept_stages
        still = {name for stage in kept for name in stage.step.frozen}
        self.temperature = plan.kept_temperature
        self.masses = masses(recipe, parameters, still) if self.temperature > 0 else {}
        self.thermostats = [b.name for b in recipe.thermostats if b.name not in still]
        self.is_exact = isinstance(plan.step, MetropolisedStep)
        self.step_size = kept[-1].step_size(kept[-1].steps - 1)
        looks = max(LEAST, min(LOOKS, NUMBERS // len(like)))
        self.every = max(1, -(-plan.draws // looks))
        self.looked = 0
        shape = len(like), -(-plan.draws // self.every)
        averaged = [*self.masses, *self.thermostats]
        self.series: Series = {b: like.new_empty(shape, dtype=torch.float64) for b in averaged}
        self.proposals = Proposals(plan, like, like[0].numel() * len(self.masses))

    @property
    def blocks(self) -> list[str]:
        """The names of the momenta and thermostats, and of what proposals are judged by."""
        return [*self.series, *self.proposals.blocks]

    def take(self, moves: Moves, begin: int) -> None:
        """Add the kept states of `moves`, which follow `begin` earlier ones."""
        self.proposals.take(moves, begin)
        chosen = range(-begin % self.every, len(moves.step_sizes), self.every)
        if not chosen:
            return
        end = self.looked + len(chosen)
        for name, series in self.series.items():
            x = moves.kept[name][:, chosen.start :: self.every]
            x = x.square() / self.masses[name] if name in self.masses else x
            series[:, self.looked : end] = x.flatten(2).mean(2) if x.dim() > 2 else x
        self.looked = end

    def snapshot(self) -> Series:
        """The series so far by block, `(chains, looks)`, and the proposals, from which `restore` continues."""
        of_proposals = {f"{PROPOSALS}{name}": x for name, x in self.proposals.snapshot().items()}
        return {name: x[:, : self.looked].cpu().clone() for name, x in self.series.items()} | of_proposals

    def restore(self, series: Mapping[str, torch.Tensor]) -> None:
        """Continue from a snapshot."""
        self.proposals.restore({name.removeprefix(PROPOSALS): x for name, x in series.items()})
        for name, x in self.series.items():
            x[:, : series[name].shape[1]] = series[name].to(x.device)
            self.looked = series[name].shape[1]

    def account(self, chains: Chains) -> dict[str, Any]:
        """Averages over the chains alive as plain data: `kinetic_temperature` and `thermostats`, each by block."""
        alive = chains.alive.cpu()
        account: dict[str, Any] = {}
        if self.looked < LEAST or not alive.any():
            return account
        series = {name: x[:, : self.looked].cpu()[alive] for name, x in self.series.items()}
        temperatures = {name: asdict(average_of(series[name])) for name in self.masses}
        for name, numbers in temperatures.items():
            numbers |= {"expected": self.temperature, "kick": self._kick(chains, self.masses[name])}
        if temperatures:
            account["kinetic_temperature"] = temperatures
        if self.thermostats and int(alive.sum()) > 1:
            account["thermostats"] = {name: asdict(agreements_of(series[name])[0]) for name in self.thermostats}
        return account

    def _kick(self, chains: Chains, mass: Any) -> float:
        """The mean of (h/2)^2 g^2/m, which the half kick at the end of a step with gradient g adds to p^2/m.

        Steps that are accepted or rejected leave the law of p as it is.
        """
        gradient = chains.state.get("gradient")
        if self.is_exact or not torch.is_tensor(gradient):
            return 0.0
        kick = gradient[chains.alive].to(torch.float64).square() * (self.step_size**2 / 4)
        return float((kick / mass).mean())
