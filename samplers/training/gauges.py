"""Monitored numbers of a training loop: temperatures, thermostats and the noise of gradients, every tenth step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors

from integrators.auxiliary import masses
from integrators.processes import Spread
from integrators.transfers import Arrivals, norms
from recipe import Recipe

from ..results.temperatures import Temperature, temperature_of
from .rates import Setting
from .shards import counted, is_sharded, local
from .stacked import labels, of_member, states_of_member
from .tensors import flat, precise

EVERY = 10  # steps from one look to the next, at first
OFTEN = 1000  # steps; the interval doubles each time their number has doubled
SITES = 4096  # of a group, at which the noise of gradients is measured; also the most of a small tensor
NOISE_SITES = "sites of noise"  # entry of a row: the number of sites that its noise is a sum over

Row = dict[str, float]


def is_looked_at(step: int) -> bool:
    """Whether a loop is looked at before this step: every tenth up to 2000, every twentieth up to 4000, and so on.

    >>> [step for step in range(1990, 2050) if is_looked_at(step)]
    [1990, 2000, 2020, 2040]
    """
    return step % (EVERY << max(0, (step // OFTEN).bit_length() - 1)) == 0


class Gauges:
    """Rows of numbers by chain of the parameter groups, taken before some of the steps: means over sites.

    "kinetic.p": p^2/(m T). "kick.p": (h/2)^2 g^2/(m T) for the gradient g of U, the rise of "kinetic.p" by half a kick.
    "configurational": theta g/T. "noise": (g - g')^2/2 for the gradient g' one step later, the variance of minibatches
    and a part from the move between the steps. Thermostats by their names. Where sites are spread over ranks, rows
    hold this rank's part of each mean, and `late` adds up the parts.
    """

    def __init__(self, recipe: Recipe, arrivals: Arrivals) -> None:
        self.recipe = recipe
        self.arrivals = arrivals
        self.rows: dict[str, list[Row]] = {}  # by the label of the chain
        self._before: dict[str, torch.Tensor] = {}  # gradients at some sites
        self._noise: dict[str, list[tuple[float, float]]] = {}  # since the last look: sums over sites, and their number

    def looks_on(self, step: int) -> bool:
        """Whether a group may be looked at before this step."""
        return bool(self._before) or is_looked_at(step)

    @torch.no_grad()
    def see(
        self,
        index: int,
        group: Mapping[str, Any],
        gradients: Sequence[torch.Tensor],
        states: Sequence[Mapping[str, torch.Tensor]],
        setting: Setting,
        spread: Spread | None = None,
    ) -> None:
        """Records a row for each chain of a group, at the steps that are looked at.

        `gradients`: of the mean loss; `states`: of each parameter. With a `spread`, `gradients` are the part on this
        rank, parameters and states the whole tensors.
        """
        looks = is_looked_at(group["step_number"]) and setting.temperature > 0
        if not looks and not self._before:
            return
        params = group["params"]
        names = labels(index, params)
        if spread is not None:
            params, gradients, states = _counted_here(spread, params, gradients, states)
        for k, label in enumerate(names):
            own = of_member(params, k, gradients)
            if label in self._before:
                self._see_noise(label, group, own)
            if looks:
                weights = of_member(params, k, params)
                self._see(label, group, weights, own, states_of_member(params, k, states), setting, spread)

    def _see(
        self,
        label: str,
        group: Mapping[str, Any],
        params: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        states: Sequence[Mapping[str, torch.Tensor]],
        setting: Setting,
        spread: Spread | None,
    ) -> None:
        """Records a row for a chain."""
        gradients = bundled(gradients)
        params = bundled(params)
        self._before[label] = _some(gradients)
        sites = sum(p.numel() for p in params) if spread is None else spread.sites
        T = setting.temperature
        N = group["num_data"]
        size = _squares(gradients) * N**2
        numbers = {}
        if not self.recipe.has_other_energy:
            numbers["configurational"] = _virial(params, gradients, N, group["weight_decay"]) / (sites * T)
        for block, mass in masses(self.recipe, setting.parameters).items():
            momenta = bundled([state[block] for state in states])
            numbers[f"kinetic.{block}"] = _squares(momenta) / (mass * sites * T)
            numbers[f"kick.{block}"] = size * setting.step_size**2 / (4 * mass * sites * T)
        for b in self.recipe.thermostats:
            own = torch.cat(bundled([state[b.name] for state in states if b.name in state]))
            numbers[b.name] = own.sum() / (sites if b.is_vector else 1)
        names = list(numbers)
        start = {"step": group["step_number"]}

        def read(values: list[float]) -> None:
            row = start | dict(zip(names, values))
            noise = self._noise.pop(label, [])
            if noise:
                row["noise"], row[NOISE_SITES] = noise[-1]
            if spread is not None or all(map(math.isfinite, values)):
                self.rows.setdefault(label, []).append(row)

        like = params[0]
        looked_at = [x.to(like.dtype).reshape(()) for x in numbers.values()]
        self.arrivals.send(torch.stack(looked_at) if looked_at else like.new_zeros(0), read)

    def late(self, label: str, spread: Spread | None = None) -> dict[str, torch.Tensor]:
        """Series by name over the later half of a chain's steps; with a `spread` all ranks call this together."""
        rows = self.rows.get(label, [])
        if spread is not None:
            rows = self._over_ranks(rows, spread)
        late = [row for row in rows if 2 * row["step"] >= rows[-1]["step"]]
        names = [name for name in (late[0] if late else ()) if name not in ("step", NOISE_SITES)]
        series = {
            name: torch.tensor([row[name] for row in late if name in row], dtype=torch.float64, device="cpu")
            for name in (*names, NOISE_SITES)
        }
        sites = series.pop(NOISE_SITES)
        if "noise" in series:
            series["noise"] /= sites
        return series

    def _over_ranks(self, rows: list[Row], spread: Spread) -> list[Row]:
        """The finite rows, with the parts of all ranks added up."""
        names = sorted({name for row in rows for name in row} - {"step"})
        numbers = [[row.get(name, 0.0) for name in names] + [1.0] for row in rows]
        sums = torch.tensor(numbers, dtype=torch.float64, device="cpu").reshape(len(rows), len(names) + 1)
        spread.add(sums)
        of_chain = {b.name for b in self.recipe.thermostats if not b.is_vector}  # scalars, the same on every rank
        whole = []
        for row, (*values, ranks) in zip(rows, sums.tolist()):
            means = {name: x / ranks if name in of_chain else x for name, x in zip(names, values) if name in row}
            if all(map(math.isfinite, values)):
                whole.append({"step": row["step"]} | means)
        return whole

    def _see_noise(self, label: str, group: Mapping[str, Any], gradients: Sequence[torch.Tensor]) -> None:
        before = self._before.pop(label)
        now = _some(bundled(gradients))
        if before.shape != now.shape:
            return
        total = (now - before).square().sum().reshape(1) * (group["num_data"] ** 2 / 2)
        sites = float(now.numel())
        self.arrivals.send(total, lambda values: self._noise.setdefault(label, []).append((values[0], sites)))


def bundled(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Flat tensors in the type in which steps compute, with the small ones concatenated into one at the end.

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


def _counted_here(
    spread: Spread,
    params: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    states: Sequence[Mapping[str, torch.Tensor]],
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """The parts of parameters, gradients and states on this rank; empty for copies that another rank counts."""
    ours = counted(spread, params)

    def here(t: torch.Tensor, is_ours: bool) -> torch.Tensor:
        return local(t) if is_ours or not is_sharded(t) else flat(t)[:0]

    of_params = [{name: here(t, is_ours) for name, t in state.items()} for state, is_ours in zip(states, ours)]
    kept = [g if is_ours else flat(g)[:0] for g, is_ours in zip(gradients, ours)]
    return [here(p, is_ours) for p, is_ours in zip(params, ours)], kept, of_params


def temperatures_over_ranks(
    momenta: Sequence[torch.Tensor], mass: Any, temperature: float, spread: Spread
) -> list[Temperature]:
    """The kinetic temperature of each tensor of momenta, sharded over ranks; all ranks call this together."""
    parts = [local(p) for p in momenta]
    ours = torch.tensor(counted(spread, parts), device=parts[0].device)
    squares = torch.stack([p.double().square().sum() for p in parts]) * ours
    spread.add(squares)
    pairs = zip(momenta, (squares / float(mass)).tolist())
    return [temperature_of(square / p.numel(), p.numel(), temperature) for p, square in pairs]


def _some(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Gradients at evenly spaced sites of all tensors, about SITES of them, flat."""
    every = -(-sum(g.numel() for g in gradients) // SITES)
    return torch.cat([g[:: max(every, 1)] for g in gradients])


def _squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of squares over all sites."""
    return norms(tensors).square().sum()


def _virial(
    params: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], num_data: int, weight_decay: float
) -> torch.Tensor:
    """The sum of theta dU/dtheta over all sites, for U = num_data (loss + weight_decay theta^2/2)."""
    products = torch.stack([torch.dot(p, g) for p, g in zip(params, gradients)]).sum() * num_data
    if weight_decay:
        products = products + _squares(params) * (num_data * weight_decay)
    return products
