"""What is watched of a training loop: temperatures, thermostats and the noise of gradients, every tenth step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors

from integrators.auxiliary import masses
from integrators.late import Arrivals, norms
from recipe import Recipe

from .rates import Setting
from .stacked import labels, of_member, states_of_member
from .tensors import flat, precise

EVERY = 10  # steps from one look to the next, at first
OFTEN = 1000  # steps from which on it is twice as many at each doubling
SITES = 4096  # of a group, at which the noise of gradients is looked at; of a tensor that is small

Row = dict[str, float]


def is_looked_at(step: int) -> bool:
    """Whether a loop is looked at before this step: every tenth of 2000, every twentieth of as many again, and so on.

    >>> [step for step in range(1990, 2050) if is_looked_at(step)]
    [1990, 2000, 2020, 2040]
    """
    return step % (EVERY << max(0, (step // OFTEN).bit_length() - 1)) == 0


class Gauges:
    """Of each chain of a parameter group, before some of its steps, what a row of numbers says: means over its sites.

    "kinetic.p": p^2/(m T); "kick.p": (h/2)^2 g^2/(m T) for the gradient g of U, what half a kick adds to that;
    "configurational": theta g/T; "noise": (g - g')^2/2, for the gradient g' of the step after, which is the variance of
    minibatches and some of the way between the steps; thermostats by their names.
    """

    def __init__(self, recipe: Recipe, arrivals: Arrivals) -> None:
        self.recipe = recipe
        self.arrivals = arrivals
        self.rows: dict[str, list[Row]] = {}  # by the label of the chain
        self._before: dict[str, torch.Tensor] = {}  # gradients at some sites
        self._noise: dict[str, list[float]] = {}  # variances that were seen since the last look

    def looks_on(self, step: int) -> bool:
        """Whether it may look at a group before this step."""
        return bool(self._before) or is_looked_at(step)

    @torch.no_grad()
    def see(
        self,
        index: int,
        group: Mapping[str, Any],
        gradients: Sequence[torch.Tensor],
        states: Sequence[Mapping[str, torch.Tensor]],
        setting: Setting,
    ) -> None:
        """Look at a group, if it is time to; `gradients`: of the mean loss, `states`: of each parameter."""
        looks = is_looked_at(group["step_number"]) and setting.temperature > 0
        if not looks and not self._before:
            return
        params = group["params"]
        for k, label in enumerate(labels(index, params)):
            own = of_member(params, k, gradients)
            if label in self._before:
                self._see_noise(label, group, own)
            if looks:
                weights = of_member(params, k, params)
                self._see(label, group, weights, own, states_of_member(params, k, states), setting)

    def _see(
        self,
        label: str,
        group: Mapping[str, Any],
        params: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        states: Sequence[Mapping[str, torch.Tensor]],
        setting: Setting,
    ) -> None:
        """Look at a chain."""
        gradients = bundled(gradients)
        params = bundled(params)
        self._before[label] = _some(gradients)
        sites = sum(p.numel() for p in params)
        T = setting.temperature
        N = group["num_data"]
        size = norms(gradients).square().sum() * N**2
        numbers = {}
        if not self.recipe.has_other_energy:
            numbers["configurational"] = _virial(params, gradients, N, group["weight_decay"]) / (sites * T)
        for block, mass in masses(self.recipe, setting.parameters).items():
            momenta = bundled([state[block] for state in states])
            numbers[f"kinetic.{block}"] = norms(momenta).square().sum() / (mass * sites * T)
            numbers[f"kick.{block}"] = size * setting.step_size**2 / (4 * mass * sites * T)
        for b in self.recipe.thermostats:
            own = [state[b.name] for state in states if b.name in state]
            numbers[b.name] = torch.cat(bundled(own)).mean()
        names = list(numbers)
        start = {"step": group["step_number"]}

        def read(values: list[float]) -> None:
            row = start | dict(zip(names, values))
            noise = self._noise.pop(label, [])
            if noise:
                row["noise"] = noise[-1]
            if all(map(math.isfinite, values)):
                self.rows.setdefault(label, []).append(row)

        like = params[0]
        seen = [x.to(like.dtype).reshape(()) for x in numbers.values()]
        self.arrivals.send(torch.stack(seen) if seen else like.new_zeros(0), read)

    def late(self, label: str) -> dict[str, torch.Tensor]:
        """The numbers by name over the later half of the steps of a chain."""
        rows = self.rows.get(label, [])
        late = [row for row in rows if 2 * row["step"] >= rows[-1]["step"]]
        names = [name for name in (late[0] if late else ()) if name != "step"]
        return {
            name: torch.tensor([row[name] for row in late if name in row], dtype=torch.float64, device="cpu")
            for name in names
        }

    def _see_noise(self, label: str, group: Mapping[str, Any], gradients: Sequence[torch.Tensor]) -> None:
        before = self._before.pop(label)
        now = _some(bundled(gradients))
        if before.shape != now.shape:
            return
        variance = (now - before).square().mean().reshape(1) * (group["num_data"] ** 2 / 2)
        self.arrivals.send(variance, lambda values: self._noise.setdefault(label, []).append(values[0]))


def bundled(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors as fewer, of one axis and in the type in which they are moved: the small ones are one, end to end.

    >>> bundled([torch.ones(2, 2), torch.zeros(9000), torch.ones(3)])[1]
    tensor([1., 1., 1., 1., 1., 1., 1.])
    """
    small: list[torch.Tensor] = []
    bundles: list[torch.Tensor] = []
    for t in tensors:
        if t.numel() <= SITES:
            small.append(t)
        else:
            bundles.append(flat(t))
    if small:
        bundles.append(_flatten_dense_tensors(small))
    return [t.to(precise(t.dtype)) for t in bundles]


def _some(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Gradients at some sites of all tensors."""
    every = -(-sum(g.numel() for g in gradients) // SITES)
    return torch.cat([g[:: max(every, 1)] for g in gradients])


def _virial(
    params: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], num_data: int, weight_decay: float
) -> torch.Tensor:
    """The sum of theta dU/dtheta over all sites, for U = num_data (loss + weight_decay theta^2/2)."""
    products = torch.stack([torch.dot(p, g) for p, g in zip(params, gradients)]).sum() * num_data
    if weight_decay:
        products = products + norms(params).square().sum() * (num_data * weight_decay)
    return products
