"""What is watched of a run beside its draws: the temperatures of its momenta and its thermostats, through all of it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from integrators.auxiliary import masses

from ..results.averages import agreements_of, average_of
from ..results.statistics import LEAST
from .chains import Chains
from .drive import Moves
from .plan import Plan

LOOKS = 256  # states of a run that are looked at
NUMBERS = 2**20  # of all chains

Series = dict[str, torch.Tensor]  # by block, `(chains, looks)`


class Gauges:
    """Means over the sites, of some of the kept states: p^2/m of every block of momenta, and thermostats.

    `like`: a block of the chains, `(chains, *shape)`; `parameters`: values by name. Momenta are looked at where the run
    has one temperature > 0, and their law given the other blocks is N(0, m T).
    """

    def __init__(self, plan: Plan, like: torch.Tensor, parameters: Mapping[str, Any]) -> None:
        recipe = plan.step.recipe
        kept = [stage for stage in plan.stages if stage.phase.keep]
        still = {name for stage in kept for name in stage.step.frozen}
        self.temperature = plan.kept_temperature
        self.masses = masses(recipe, parameters, still) if self.temperature > 0 else {}
        self.thermostats = [b.name for b in recipe.thermostats if b.name not in still]
        self.step_size = kept[-1].step_size(kept[-1].steps - 1)
        looks = max(LEAST, min(LOOKS, NUMBERS // len(like)))
        self.every = max(1, -(-plan.draws // looks))
        self.looked = 0
        shape = len(like), -(-plan.draws // self.every)
        self.series: Series = {b: like.new_empty(shape, dtype=torch.float64) for b in self.blocks}

    @property
    def blocks(self) -> list[str]:
        """The blocks that are looked at."""
        return [*self.masses, *self.thermostats]

    def take(self, moves: Moves, begin: int) -> None:
        """Look at kept states, of which there were `begin` before."""
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
        """What `restore` needs."""
        return {name: x[:, : self.looked].cpu().clone() for name, x in self.series.items()}

    def restore(self, series: Mapping[str, torch.Tensor]) -> None:
        """Go on from a snapshot."""
        for name, x in self.series.items():
            x[:, : series[name].shape[1]] = series[name].to(x.device)
            self.looked = series[name].shape[1]

    def account(self, chains: Chains) -> dict[str, Any]:
        """Averages over the chains that are alive: plain data, by question and block."""
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
        """(h/2)^2 g^2/m: what half a kick, the last thing of a step that carries its gradient g, adds to p^2/m."""
        gradient = chains.state.get("gradient")
        if not torch.is_tensor(gradient):
            return 0.0
        kick = gradient[chains.alive].to(torch.float64).square() * (self.step_size**2 / 4)
        return float((kick / mass).mean())
