"""Monitored numbers of a training loop: temperatures, thermostats, the noise of gradients, and signs of clipping.

Numbers are read when they have arrived from the device, which is not waited for.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from integrators.auxiliary import masses
from integrators.transfers import Arrivals, largest, norms
from recipe import Recipe
from recipe.errors import warn

from .rates import Setting
from .shards import Shards
from .stacked import count
from .tensors import by_chain, precise

EVERY = 10  # steps from one look to the next, at first
OFTEN = 1000  # steps; the interval doubles each time their number has doubled
SITES = 4096  # of a group, at which the noise of gradients is measured; also the most of a small tensor
LOOKS = 24  # first steps of a training loop, whose gradients may show that they are clipped
ALIKE = 4  # steps of one norm, or one largest entry, that are no accident
NOISE, NOISE_SITES = "noise", "sites of noise"  # in a row: a sum over so many sites

Tensors = Sequence[torch.Tensor]


def is_looked_at(step: int) -> bool:
    """Whether a loop is looked at before this step: every tenth up to 2000, every twentieth up to 4000, and so on.

    >>> [step for step in range(1990, 2050) if is_looked_at(step)]
    [1990, 2000, 2020, 2040]
    """
    return step % (EVERY << max(0, (step // OFTEN).bit_length() - 1)) == 0


class Clipping:
    """Warns once if gradients of the first steps keep one norm or one largest entry, and the other of the two changes.

    Clipping changes the law that is sampled. `where` begins the warning.
    """

    def __init__(self, where: str, arrivals: Arrivals):
        self.where = where
        self.arrivals = arrivals
        self.looks = 0
        self.sizes: list[tuple[float, float]] = []  # norm and largest entry of the gradients of each step

    @property
    def looks_on(self) -> bool:
        """Whether the gradients of the next step are looked at."""
        return self.looks < LOOKS

    def see(self, gradients: Tensors, shards: Shards | None = None) -> None:
        """Measures the gradients of a step; sharded ones are the parts on this rank, and sizes are of all ranks."""
        if not self.looks_on:
            return
        self.looks += 1
        of_each, biggest = norms(gradients), largest(gradients).amax().reshape(1)
        if shards is not None:
            of_each = shards.add(of_each.square()).sqrt()
            shards.spread.maximise(biggest)
        self.arrivals.send(torch.cat([of_each, biggest]), self._read)

    def _read(self, sizes: list[float]) -> None:
        """Compares the sizes of a step's gradients with the sizes of earlier steps."""
        *of_each, biggest = sizes
        norm = math.hypot(*of_each)
        one_norm = sum(_same(norm, n) and _apart(biggest, b) for n, b in self.sizes)
        one_largest = sum(_same(biggest, b) and _apart(norm, n) for n, b in self.sizes)
        if len(self.sizes) < LOOKS and biggest and max(one_norm, one_largest) >= ALIKE - 1:
            warn(
                f"{self.where}: gradients of one norm, or of one largest entry, as if they were clipped. A step that "
                "depends on the gradient's size needs a correction: the law is not the posterior's. Clip the loss, or "
                "take a smaller lr."
            )
            self.looks = LOOKS
            self.sizes += LOOKS * [(0.0, 0.0)]  # no more warnings
        self.sizes.append((norm, biggest))


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-5 * a


def _apart(a: float, b: float) -> bool:
    return abs(a - b) > 1e-3 * a


class Gauges:
    """Rows of numbers of each parameter group, taken before some of the steps: means over the sites of each chain.

    "kinetic.p": p^2/(m T). "kick.p": (h/2)^2 g^2/(m T) for the gradient g of U, the rise of "kinetic.p" by half a kick.
    "configurational": theta g/T. "noise": (g - g')^2/2 for the gradient g' one step later, the variance of minibatches
    and a part from the move between the steps. Thermostats by their names. Of sharded sites rows hold this rank's part
    of each mean, and `late` adds up the parts.
    """

    def __init__(self, recipe: Recipe, clipping: Clipping) -> None:
        self.recipe = recipe
        self.clipping = clipping
        self.arrivals = clipping.arrivals
        self.rows: dict[int, list[dict[str, Any]]] = {}  # by group: "step", and numbers `(chains,)` by name
        self._before: dict[int, torch.Tensor] = {}  # gradients at some sites, by group

    def looks_on(self, step: int) -> bool:
        """Whether a group may be looked at before this step; reads what has arrived."""
        self.arrivals.look()
        return self.clipping.looks_on or bool(self._before) or is_looked_at(step)

    @torch.no_grad()
    def see(
        self,
        index: int,
        group: Mapping[str, Any],
        gradients: Tensors,
        states: Sequence[Mapping[str, torch.Tensor]],
        setting: Setting,
        shards: Shards | None = None,
    ) -> None:
        """Records a row of a group, at the steps that are looked at.

        `gradients`: of the mean loss, of sharded parameters the part on this rank; `states`: of each parameter.
        """
        self.clipping.see(gradients, shards)
        looks = is_looked_at(group["step_number"]) and setting.temperature > 0
        before = self._before.pop(index, None)
        if not looks and before is None:
            return
        chains = count(group["params"])
        slopes = bundled(gradients if shards is None else shards.parts(gradients), chains)
        some = _some(slopes)
        if before is not None and before.shape == some.shape:
            squares = (some - before).square().sum(1) * (group["num_data"] ** 2 / 2)
            self._send(index, {NOISE: squares, NOISE_SITES: torch.full_like(squares, some.shape[1])})
        if looks:
            self._before[index] = some
            self._send(index, self._numbers(group, slopes, states, setting, shards), {"step": group["step_number"]})

    def _numbers(
        self,
        group: Mapping[str, Any],
        slopes: Tensors,
        states: Sequence[Mapping[str, torch.Tensor]],
        setting: Setting,
        shards: Shards | None,
    ) -> dict[str, torch.Tensor]:
        """The numbers of a row, `(chains,)` by name."""
        chains = count(group["params"])

        def own(tensors: Tensors) -> list[torch.Tensor]:
            return bundled(tensors if shards is None else shards.parts(tensors), chains)

        N, decay = group["num_data"], group["weight_decay"]
        sites = sum(p.numel() for p in group["params"]) // chains
        heat = sites * setting.temperature
        numbers = {}
        if not self.recipe.has_other_energy:
            weights = own(group["params"])
            virial = _dots(weights, slopes)
            numbers["configurational"] = (virial + decay * _dots(weights, weights) if decay else virial) * (N / heat)
        squares = _dots(slopes, slopes)
        for block, mass in masses_of(self.recipe, setting).items():
            momenta = own([state[block] for state in states])
            numbers[f"kinetic.{block}"] = _dots(momenta, momenta) / (mass * heat)
            numbers[f"kick.{block}"] = squares * ((N * setting.step_size) ** 2 / (4 * mass * heat))
        for b in self.recipe.thermostats:
            numbers[b.name] = states[0][b.name] / (1 if shards is None else shards.ranks)
            if b.is_vector:
                bundles = own([state[b.name] for state in states])
                numbers[b.name] = torch.stack([x.sum(1) for x in bundles]).sum(0) / sites
        return numbers

    def _send(self, index: int, numbers: dict[str, torch.Tensor], row: dict[str, Any] | None = None) -> None:
        """Adds numbers to the latest row of a group once they have arrived; with a `row`, begins with this one."""
        rows = self.rows.setdefault(index, [])

        def read(values: list[float]) -> None:
            if row is not None:
                rows.append(row)
            each = len(values) // max(1, len(numbers))
            rows[-1].update({name: values[k * each : (k + 1) * each] for k, name in enumerate(numbers)})

        self.arrivals.send(torch.cat(list(numbers.values())) if numbers else torch.zeros(0, device="cpu"), read)

    def late(self, index: int, chains: int, shards: Shards | None = None) -> list[dict[str, torch.Tensor]]:
        """Series by name of each chain of a group, over the later half of its steps; of shards all ranks call this."""
        rows = self.rows.get(index, [])
        names = [name for name in (rows[0] if rows else ()) if name not in ("step", NOISE, NOISE_SITES)]
        missing = chains * [math.nan]
        numbers = [[row.get(name, missing) for name in (*names, NOISE, NOISE_SITES)] for row in rows]
        table = torch.tensor(numbers, dtype=torch.float64, device="cpu").reshape(len(rows), len(names) + 2, chains)
        if shards is not None:
            shards.spread.add(table)
        steps = torch.tensor([row["step"] for row in rows], device="cpu")
        return [_later_half(names, steps, of_chain) for of_chain in table.unbind(2)]


def _later_half(names: Sequence[str], steps: torch.Tensor, table: torch.Tensor) -> dict[str, torch.Tensor]:
    """Series by name of the finite rows of `table`, `(rows, numbers)`, over the later half of the steps."""
    finite = table[:, : len(names)].isfinite().all(1)
    steps, table = steps[finite], table[finite]
    *numbers, noise, sites = table[2 * steps >= steps.max()].unbind(1) if len(steps) else table.unbind(1)
    series = dict(zip(names, numbers))
    noise = (noise / sites)[noise.isfinite()]
    return series | ({NOISE: noise} if len(noise) else {})


def masses_of(recipe: Recipe, setting: Setting) -> dict[str, float]:
    """The masses of Gaussian momenta by block, where all sites have the same."""
    values = masses(recipe, setting.parameters).items()
    return {block: float(mass) for block, mass in values if not torch.is_tensor(mass) or mass.numel() == 1}


def bundled(tensors: Tensors, chains: int) -> list[torch.Tensor]:
    """Tensors `(chains, sites)` in the type in which steps compute; small ones are concatenated into one at the end.

    >>> bundled([torch.ones(2, 2), torch.zeros(9000), torch.ones(3)], chains=1)[1]
    tensor([[1., 1., 1., 1., 1., 1., 1.]])
    """
    bundles = [by_chain(t, chains) for t in tensors if t.numel() > SITES]
    small = [t for t in tensors if t.numel() <= SITES]
    if small:
        bundles.append(torch.cat([t.reshape(chains, -1) for t in small], 1))
    return [t.to(precise(t.dtype)) for t in bundles]


def _some(gradients: Tensors) -> torch.Tensor:
    """Gradients at evenly spaced sites of all tensors, about SITES of each chain, `(chains, some)`."""
    every = -(-sum(g.shape[1] for g in gradients) // SITES)
    return torch.cat([g[:, :: max(every, 1)] for g in gradients], 1)


def _dots(tensors: Tensors, others: Tensors) -> torch.Tensor:
    """The inner products over all sites of each chain, `(chains,)`; torch.dot is the fastest for many sites."""
    dots = [torch.dot(a, b) for x, y in zip(tensors, others) for a, b in zip(x, y)]
    return torch.stack(dots).view(len(tensors), -1).sum(0)
