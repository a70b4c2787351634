"""Monitored numbers of a training loop: temperatures, thermostats, and the noise of gradients.

Numbers are read when they have arrived from the device, which is not waited for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from integrators.auxiliary import masses
from integrators.kernels.addresses import starts
from integrators.transfers import Arrivals
from recipe import Recipe

from ..results.heat import Heating, heating_of
from .clipping import Clipping
from .minibatches import BatchSource, handed_out_since, latest
from .monitored_sites import MonitoredSites, Tensors
from .rates import Rates
from .shards import Shards

EVERY = 10  # steps from one look to the next, at first
OFTEN = 1000  # steps; the interval doubles each time their number has doubled
COUNT, NOISE, SQUARES = "sites", "noise", "squares"  # sums of a row that are of no block
HEATING, SUPPLIED = "heating", "supplied"  # series of temperatures over T

Series = dict[str, torch.Tensor]  # by name, a number for each row


def is_looked_at(step: int) -> bool:
    """Whether a loop is looked at before this step: every tenth up to 2000, every twentieth up to 4000, and so on.

    >>> [step for step in range(1990, 2050) if is_looked_at(step)]
    [1990, 2000, 2020, 2040]
    """
    return step % (EVERY << max(0, (step // OFTEN).bit_length() - 1)) == 0


@dataclass(eq=False)
class Reading:
    """Numbers of a parameter group before one of its steps, with the setting of that step.

    `weights` and `slopes`, the gradients of U, are those at the monitored sites, `(chains, sites)`, on the device.
    `sums` are over the sites that the step moves, a number for each chain, by name, once they have arrived:

    "sites": how many sites these are.
    "kinetic.p": p^2/(m T) for momenta p of mass m.
    "kick.p": (h/2)^2 g^2/(m T) for the gradient g of U without prior, the rise of "kinetic.p" by half a kick.
    The name of a thermostat: its values.
    "noise": (g - g')^2/2 for the gradient g' one step later, the variance of minibatches and a part from the move
    between the steps. Where there was no next step there is no such sum.
    "squares": (g^2 + g'^2)/2.

    Of sharded parameters all of these are the parts on this rank.
    """

    step: int
    setting: Rates
    weights: torch.Tensor
    slopes: torch.Tensor
    sums: dict[str, list[float]] = field(default_factory=dict)

    def add(self, sums: Mapping[str, np.ndarray]) -> None:
        """Adds sums `(chains,)` that have arrived."""
        for name, of_chains in sums.items():
            self.sums[name] = of_chains.tolist()


class Look(NamedTuple):
    """A parameter group before a step: torch's dict of it, the setting of the step, and the monitored sites.

    `gradients`: those of the tensors that the sites are in; `skipped`: the numbers of the tensors that the step leaves
    as they are.
    """

    group: Mapping[str, Any]
    setting: Rates
    sites: MonitoredSites
    gradients: Tensors
    skipped: Sequence[int]


class Trace(NamedTuple):
    """Slopes and marks of a step, which are compared with those of the next step.

    `slopes`: num_data times the gradients of the loss, `(chains, sites)`; `batch`: the place of the latest Minibatches;
    `address` and `version`: of the first gradient; `generator`: the state of torch's random numbers.
    """

    slopes: torch.Tensor
    batch: tuple
    address: list[int]
    version: int
    generator: torch.Tensor

    @classmethod
    def of(cls, look: Look) -> "Trace":
        """The trace of a step that is about to be made."""
        slopes = look.sites.of_gradients(look.gradients) * look.group["num_data"]
        first = look.gradients[:1]
        version = first[0]._version if first else 0
        return cls(slopes, latest(), starts(first), version, generator_state(slopes.device))


class Monitor:
    """Rows of numbers of one parameter group, taken before some of its steps, and how its gradients come about."""

    def __init__(self, recipe: Recipe, arrivals: Arrivals) -> None:
        self.recipe = recipe
        self.arrivals = arrivals
        self.rows: list[Reading] = []
        self.has_random_numbers = False  # whether torch's generators have moved from a step to the next, as by dropout
        self._data: set[BatchSource | None] = set()  # of Minibatches between two steps; None where these have changed
        self._sums_up: set[bool] = set()  # whether a gradient was added to the one before
        self._before: Trace | None = None  # of the step before, where that was looked at

    def looks_on(self, step: int) -> bool:
        """Whether the group may be looked at before this step; reads what has arrived."""
        self.arrivals.look()
        return self._before is not None or is_looked_at(step)

    def see(self, look: Look) -> None:
        """Begins a row at the steps that are looked at, and completes it at the next step."""
        begins = is_looked_at(look.group["step_number"]) and look.setting.temperature > 0
        before, self._before = self._before, None
        if not begins and before is None:
            return
        now = Trace.of(look)
        if before is not None and before.slopes.shape == now.slopes.shape:
            self._compare(before, now)
        if begins:
            self._before = now
            self._begin(look, now.slopes)

    def _compare(self, before: Trace, now: Trace) -> None:
        """Completes the latest row by the noise of gradients between its step and the next one."""
        row = self.rows[-1]
        halves = torch.stack((now.slopes - before.slopes, now.slopes, before.slopes)).square().sum(2) / 2

        def read(numbers: list[float]) -> None:
            noise, half, half_before = np.array(numbers).reshape(3, -1)
            row.add({NOISE: noise, SQUARES: half + half_before})

        self.arrivals.send(halves.flatten(), read)
        self._data.add(handed_out_since(before.batch))
        self._sums_up.add((before.address, before.version) == (now.address, now.version - 1))
        if not torch.equal(before.generator, now.generator):
            self.has_random_numbers = True

    def _begin(self, look: Look, slopes: torch.Tensor) -> None:
        """Begins a row: sums over the sites that are moved, and weights with slopes, which stay on the device."""
        sites, skipped, setting = look.sites, look.skipped, look.setting
        T, h = setting.temperature, setting.step_size
        momenta = masses_of(self.recipe, setting)
        thermostats = [b.name for b in self.recipe.thermostats]
        of_sites = [name for name in thermostats if name in sites.states]
        of_chains = [name for name in thermostats if name not in sites.states]
        blocks = [*momenta, *of_sites]
        values = sites.values(blocks, skipped)
        summands = torch.cat((values[:, 1:], slopes[:, None]), 1)  # blocks, and the gradient last
        sums = torch.stack((summands, summands.square())).sum(3)  # (2, chains, blocks + 1)
        weights = values[:, 0]
        prior = weights * sites.is_moved(skipped) if skipped else weights
        slopes = torch.add(slopes, prior, alpha=look.group["num_data"] * look.group["weight_decay"])
        row = Reading(look.group["step_number"], setting, weights.clone(), slopes)
        self.rows.append(row)
        count = sites.count(skipped)

        def read(numbers: list[float]) -> None:
            flat = np.array(numbers)
            scalars = flat[sums.numel() :].reshape(-1, sites.chains)
            plain, squares = flat[: sums.numel()].reshape(sums.shape)
            number_of_sites = np.full(sites.chains, float(count))
            row.add({COUNT: number_of_sites} | {name: plain[:, blocks.index(name)] for name in of_sites})
            for k, (p, mass) in enumerate(momenta.items()):
                kinetic = squares[:, k] / (mass * T)
                kick = squares[:, -1] * (h**2 / (4 * mass * T))
                row.add({f"kinetic.{p}": kinetic, f"kick.{p}": kick})
            row.add({name: count * x for name, x in zip(of_chains, scalars)})

        self.arrivals.send(torch.cat([sums.flatten(), *(sites.scalars[name] for name in of_chains)]), read)

    @property
    def minibatches(self) -> BatchSource | None:
        """The Minibatches that are read beside the loop, if they are the same ones in all of it."""
        sources = self._data - {None}
        return sources.pop() if len(sources) == 1 else None

    @property
    def sums_up(self) -> bool:
        """Whether each gradient was added to the one before, as without zero_grad()."""
        return self._sums_up == {True}

    def _late_rows(self) -> list[Reading]:
        """The rows of the later half of the steps."""
        return [row for row in self.rows if 2 * row.step >= self.rows[-1].step]

    def heatings(self) -> list[Heating | str]:
        """How gradient noise heats, over T, at the setting of each row of the later half; or why that is not known."""
        settings = [row.setting for row in self._late_rows()]
        heatings: dict[int, Heating | str] = {}
        for setting in settings:
            if id(setting) not in heatings:
                heating = heating_of(self.recipe, setting.parameters, setting.step_size)
                T = setting.temperature
                heatings[id(setting)] = heating if isinstance(heating, str) else Heating(*(x / T for x in heating))
        return [heatings[id(setting)] for setting in settings]

    def late(self, chains: int, shards: Shards | None = None) -> list[Series]:
        """Series by name of each chain, over the later half of the steps; of shards all ranks call this together.

        They are means over sites of the sums of a `Reading`, "configurational", (theta - E theta) g/T, and temperatures
        over T: "heating", what the noise of gradients adds less what is "supplied".
        """
        rows = self._late_rows()
        if not rows:
            return [Series() for _ in range(chains)]
        names = [COUNT, NOISE, SQUARES]
        names += [name for name in rows[0].sums if name not in names]
        missing = chains * [math.nan]
        sums = _of_rows([[row.sums.get(name, missing) for name in names] for row in rows])
        table = torch.cat([sums, _virial(rows)[:, None]], 1)  # (rows, names and virial, chains)
        if shards is not None:
            shards.spread.add(table)
        unknown = Heating(math.nan, math.nan)
        heatings = _of_rows([unknown if isinstance(heating, str) else heating for heating in self.heatings()])
        steps = torch.tensor([float(row.step) for row in rows], device="cpu")
        series = []
        for of_chain in table.unbind(2):
            columns = dict(zip((*names, "configurational"), of_chain.unbind(1)))
            series.append(_series(steps, columns, heatings))
            if self.recipe.has_other_energy:  # (theta - E theta) grad U is not T then
                del series[-1]["configurational"]
        return series


class Monitors:
    """The monitors of the groups of an optimizer, by number, which read what arrives in one queue."""

    def __init__(self, recipe: Recipe, clipping: Clipping) -> None:
        self.recipe = recipe
        self.clipping = clipping
        self.arrivals = clipping.arrivals
        self.of_groups: dict[int, Monitor] = {}

    def of(self, index: int) -> Monitor:
        """The monitor of the group of this number."""
        return self.of_groups.setdefault(index, Monitor(self.recipe, self.arrivals))


def generator_state(device: torch.device) -> torch.Tensor:
    """The state of torch's generator of a device, which changes where a layer such as dropout draws from it.

    >>> before = generator_state(torch.device("cpu"))
    >>> noise = torch.nn.functional.dropout(torch.ones(3))
    >>> torch.equal(before, generator_state(torch.device("cpu")))
    False
    """
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _of_rows(numbers: Sequence) -> torch.Tensor:
    """Numbers of each row as a float64 tensor on the CPU."""
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _virial(rows: Sequence[Reading]) -> torch.Tensor:
    """(theta - E theta) g/T of each row, summed over sites, `(rows, chains)`."""
    weights = torch.stack([row.weights for row in rows])
    slopes = torch.stack([row.slopes for row in rows])
    virial = ((weights - weights.mean(0)) * slopes).sum(2).cpu()
    return virial / _of_rows([[row.setting.temperature] for row in rows])


def _series(steps: torch.Tensor, columns: Series, heatings: torch.Tensor) -> Series:
    """Series of a chain by name, means over sites, of the rows whose sums are all finite.

    `columns`: sums by name, `(rows,)`; `heatings`: of each row the heat per variance, and what is supplied, over T.
    """
    count, noise, squares = (columns.pop(name) for name in (COUNT, NOISE, SQUARES))
    finite = torch.stack(list(columns.values())).isfinite().all(0)
    series = {"step": steps[finite]} | {name: (x / count)[finite] for name, x in columns.items()}
    has_next = noise.isfinite()
    if not has_next.any():
        return series
    series[NOISE] = (noise / count)[has_next]
    series[SQUARES] = (squares / count)[has_next]
    per_variance, supplied = heatings.T
    heat = noise / count * per_variance - supplied
    is_known = heat.isfinite()
    if is_known.any():
        series |= {HEATING: heat[is_known], SUPPLIED: supplied[is_known]}
    return series


def masses_of(recipe: Recipe, setting: Rates) -> dict[str, float]:
    """The masses of Gaussian momenta by block, where all sites have the same."""
    values = masses(recipe, setting.parameters).items()
    return {block: float(mass) for block, mass in values if not torch.is_tensor(mass) or mass.numel() == 1}
