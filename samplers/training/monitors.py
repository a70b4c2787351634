"""Monitored numbers of a training loop: temperatures, thermostats, the noise of gradients, and signs of clipping.

Numbers are read when they have arrived from the device, which is not waited for.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from integrators.auxiliary import masses
from integrators.kernels.addresses import starts
from integrators.transfers import Arrivals, largest, norms
from recipe import Recipe
from recipe.errors import warn

from ..results.heat import Heating, heating_of
from . import minibatches
from .kernels import Text
from .rates import Setting
from .shards import Shards
from .stacked import count
from .tensors import by_chain

EVERY = 10  # steps from one look to the next, at first
OFTEN = 1000  # steps; the interval doubles each time their number has doubled
SITES, FEWEST = 1024, 32  # of a group at which its numbers are taken, and of each of many chains
TENSORS, RUN = 32, 16  # of a group that these sites are in, and of neighbours in memory, which are read together
LOOKS = 24  # first steps of a training loop that are all looked at for clipping; later ones now and then
ALIKE = 4  # of LOOKS steps in a row that were looked at, of one norm or one largest entry: no accident
SAME = 1e-5  # relative: sizes that differ by less are one
NOISE, SQUARES, SOME = "noise", "squares", "sites"  # in a row: sums over so many sites
PLACE = "weights and slopes"  # in a row: at the sites, on the device
HEATING, SUPPLIED, SETTING = "heating", "supplied", "setting"  # temperatures over T; in use at a row

Tensors = Sequence[torch.Tensor]
Numbers = dict[str, np.ndarray]  # by name, of each chain


def is_looked_at(step: int) -> bool:
    """Whether a loop is looked at before this step: every tenth up to 2000, every twentieth up to 4000, and so on.

    >>> [step for step in range(1990, 2050) if is_looked_at(step)]
    [1990, 2000, 2020, 2040]
    """
    return step % (EVERY << max(0, (step // OFTEN).bit_length() - 1)) == 0


class Clipping:
    """Warns once if gradients keep one norm or one largest entry, and the other of the two changes.

    Clipping changes the law that is sampled. `where` begins the warning. `seen`: "norm", or "largest entry", which a
    loss of bounded slope keeps as well; of gradients in half precision, whose entries are rounded, norms alone tell.
    """

    def __init__(self, where: str, arrivals: Arrivals):
        self.where = where
        self.arrivals = arrivals
        self.looks = 0
        self.sizes: deque[tuple[float, float]] = deque(maxlen=LOOKS)  # norm and largest entry of gradients of a step
        self.rounding = 0.0  # of gradients, relative
        self.seen = ""

    @property
    def looks_on(self) -> bool:
        """Whether the gradients of the next step, one of the first, are looked at."""
        return self.looks < LOOKS

    def see(self, gradients: Tensors, shards: Shards | None = None) -> None:
        """Measures the gradients of a step; sharded ones are the parts on this rank, and sizes are of all ranks."""
        if self.seen and shards is None:  # ranks do not see it at one time, and measure together
            return
        self.looks += 1
        self.rounding = max(torch.finfo(g.dtype).eps for g in gradients)
        of_each, biggest = norms(gradients), largest(gradients).amax().reshape(1)
        if shards is not None:
            of_each = shards.add(of_each.square()).sqrt()
            shards.spread.maximise(biggest)
        self.arrivals.send(torch.cat([of_each, biggest]), self._read)

    def _read(self, sizes: list[float]) -> None:
        """Compares the sizes of a step's gradients with the sizes of earlier steps."""
        *of_each, biggest = sizes
        norm = math.hypot(*of_each)
        apart = max(1e-3, 4 * self.rounding)
        one_norm = sum(_same(norm, n) and abs(biggest - b) > apart * biggest for n, b in self.sizes)
        one_largest = sum(_same(biggest, b) and abs(norm - n) > apart * norm for n, b in self.sizes)
        if self.rounding > SAME:
            one_largest = 0
        if not self.seen and biggest and max(one_norm, one_largest) >= ALIKE - 1:
            self.seen = "norm" if one_norm >= ALIKE - 1 else "largest entry"
            bounded = "" if self.seen == "norm" else " A loss of bounded slope, such as L1, has such gradients too."
            warn(
                f"{self.where}: gradients of one {self.seen}, as if they were clipped. A step that depends on the "
                "gradient's size needs a correction: the law is not the posterior's. Clip the loss, or take a smaller "
                f"lr.{bounded}"
            )
        self.sizes.append((norm, biggest))


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * a < math.inf  # norms of a loop that blows up overflow


@dataclass(frozen=True, eq=False)
class Sites:
    """Some sites of each chain of a group, in evenly spaced runs in the memory of at most TENSORS of its tensors.

    `chosen`: the numbers of these tensors; `weights`, and `states` by block: views `(chains, runs, sites)` of them.
    """

    chosen: Sequence[int]
    chains: int
    device: torch.device
    weights: Tensors
    states: Mapping[str, Tensors]
    scalars: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, whole: Tensors, kernel: Text, shards: Shards | None) -> "Sites":
        """The sites of parameters, in the tensors that their kernel moves: of sharded ones this rank's parts."""
        chains = count(whole)
        chosen = range(0, len(whole), -(-len(whole) // TENSORS))
        every = max(1, -(-sum(whole[k].numel() for k in chosen) // max(SITES, FEWEST * chains)))
        run = 1 if every == 1 else RUN
        counted = [k for k in chosen if shards is None or shards.counted[k]]
        own = [k for k in counted if kernel.params[k].numel() >= run * chains]

        def views(tensors: Tensors) -> Tensors:
            return [by_chain(tensors[k], chains).unfold(1, run, run * every) for k in own]

        states = {b: views(tensors) for b, tensors in kernel.vectors.items()}
        return cls(own, chains, whole[0].device, views(kernel.params), states, kernel.scalars)

    @cached_property
    def places(self) -> list[tuple[torch.Size, tuple[int, ...]]]:
        """Shape and strides of each view."""
        return [(x.shape, x.stride()) for x in self.weights]

    def count(self, skipped: Sequence[int]) -> int:
        """How many sites a step moves that skips tensors of these numbers."""
        return sum(shape[1] * shape[2] for k, (shape, _) in zip(self.chosen, self.places) if k not in skipped)

    def together(self, views: Tensors) -> torch.Tensor:
        """Views side by side in float64, `(chains, some)`."""
        if not views:
            return torch.zeros(self.chains, 0, dtype=torch.float64, device=self.device)
        return torch.cat(list(views), 1).double().flatten(1)

    def values(self, blocks: Sequence[str], skipped: Sequence[int]) -> torch.Tensor:
        """The numbers of the weights and of blocks, `(chains, 1 + blocks, some)`; blocks are 0 at skipped tensors."""
        lists = [self.weights, *(self.states[b] for b in blocks)]
        values = self.together([x for views in lists for x in views]).view(self.chains, len(lists), -1)
        if skipped:
            values[:, 1:] *= self.moved(skipped)
        return values

    def moved(self, skipped: Sequence[int]) -> torch.Tensor:
        """1 at the sites that a step moves and 0 at those of skipped tensors, of these numbers, `(chains, 1, some)`."""
        parts = [torch.full_like(x, float(k not in skipped)) for k, x in zip(self.chosen, self.weights)]
        return self.together(parts)[:, None]

    def slopes(self, gradients: Tensors) -> torch.Tensor:
        """The numbers of the chosen tensors' gradients, which lie in memory as the tensors do."""
        return self.together([g.as_strided(*place) for g, place in zip(gradients, self.places)])


class Monitors:
    """Rows of numbers of each parameter group, taken before some of the steps: sums over some sites of each chain.

    "kinetic.p": p^2/(m T). "kick.p": (h/2)^2 g^2/(m T) for the gradient g of U, the rise of "kinetic.p" by half a kick.
    "noise": (g - g')^2/2 for the gradient g' one step later, the variance of minibatches and a part from the move
    between the steps; "squares": (g^2 + g'^2)/2. Thermostats by their names. Weights and g/T are kept for the
    "configurational" temperature, (theta - E theta) g/T. Of sharded sites rows hold this rank's part of each sum.
    """

    def __init__(self, recipe: Recipe, clipping: Clipping) -> None:
        self.recipe = recipe
        self.clipping = clipping
        self.arrivals = clipping.arrivals
        self.rows: dict[int, list[dict[str, Any]]] = {}  # by group: "step", and numbers `(chains,)` by name
        self.beside: dict[int, set[minibatches.Beside | None]] = {}  # by group, of Minibatches between two steps
        self.added: dict[int, set[bool]] = {}  # by group, whether a gradient was added to, and not zeroed
        self.drawn: set[int] = set()  # groups for whose gradients numbers of torch's generators were drawn, perhaps
        self._before: dict[int, tuple[torch.Tensor, Any, Any, Any]] = {}  # by group, at the step before

    def looks_on(self, step: int) -> bool:
        """Whether a group may be looked at before this step; reads what has arrived."""
        self.arrivals.look()
        return bool(self._before) or is_looked_at(step)

    def see(
        self,
        index: int,
        group: Mapping[str, Any],
        gradients: Tensors,
        sites: Sites,
        setting: Setting,
        skipped: Sequence[int] = (),
    ) -> None:
        """Records a row of a group, at the steps that are looked at; `gradients`: those of the chosen tensors.

        `skipped`: the numbers of the tensors that this step leaves as they are, whose sites are not counted.
        """
        looks = is_looked_at(group["step_number"]) and setting.temperature > 0
        before = self._before.pop(index, None)
        if not looks and before is None:
            return
        slopes = sites.slopes(gradients) * group["num_data"]
        place, version = starts(gradients[:1]), gradients[0]._version if gradients else 0
        if before is not None and before[0].shape == slopes.shape:
            halves = torch.stack((slopes - before[0], slopes, before[0])).square().sum(2) / 2
            self._send(index, halves.flatten(), _of_pair)
            self.beside.setdefault(index, set()).add(minibatches.handed_out_since(before[1]))
            self.added.setdefault(index, set()).add(before[2] == (place, version - 1))
            if not torch.equal(before[3], drawn_by(slopes.device)):
                self.drawn.add(index)
        if looks:
            self._before[index] = slopes, minibatches.latest(), (place, version), drawn_by(slopes.device)
            self._look(index, group, slopes, sites, setting, skipped)

    def _look(
        self,
        index: int,
        group: Mapping[str, Any],
        slopes: torch.Tensor,
        sites: Sites,
        setting: Setting,
        skipped: Sequence[int],
    ) -> None:
        """Begins a row: sums over the sites that are moved, and weights with slopes, which stay on the device."""
        T, h = setting.temperature, setting.step_size
        of_momenta = masses_of(self.recipe, setting)
        names = [b.name for b in self.recipe.thermostats]
        blocks = [*of_momenta, *(name for name in names if name in sites.states)]
        scalars = [name for name in names if name not in sites.states]
        values = sites.values(blocks, skipped)
        own = torch.cat((values[:, 1:], slopes[:, None]), 1)
        sums = torch.stack((own, own.square())).sum(3)
        some = sites.count(skipped)

        def read(numbers: np.ndarray) -> Numbers:
            plain, squares = numbers[: sums.numel()].reshape(sums.shape)
            row = {SOME: np.full(sites.chains, float(some))}
            row |= {name: plain[:, k] for k, name in enumerate(blocks) if name not in of_momenta}
            for k, (block, mass) in enumerate(of_momenta.items()):
                row[f"kinetic.{block}"] = squares[:, k] / (mass * T)
                row[f"kick.{block}"] = squares[:, -1] * (h**2 / (4 * mass * T))
            of_chains = numbers[sums.numel() :].reshape(-1, sites.chains)
            return row | {name: some * number for name, number in zip(scalars, of_chains)}

        weights = values[:, 0]
        prior = weights * sites.moved(skipped)[:, 0] if skipped else weights
        slopes = torch.add(slopes, prior, alpha=group["num_data"] * group["weight_decay"])
        row = {"step": group["step_number"], PLACE: torch.stack((weights, slopes)), SETTING: setting}
        self._send(index, torch.cat([sums.flatten(), *(sites.scalars[name] for name in scalars)]), read, row)

    def _send(
        self, index: int, numbers: torch.Tensor, read: Callable[[np.ndarray], Numbers], row: dict | None = None
    ) -> None:
        """Adds what is read of numbers to the latest row of a group, once they come; with a `row`, begins with it."""
        rows = self.rows.setdefault(index, [])

        def take(here: list[float]) -> None:
            if row is not None:
                rows.append(row)
            rows[-1].update({name: of_chains.tolist() for name, of_chains in read(np.array(here)).items()})

        self.arrivals.send(numbers, take)

    def _late(self, index: int) -> list[dict[str, Any]]:
        """The rows of the later half of the steps of a group."""
        rows = self.rows.get(index, [])
        return [row for row in rows if 2 * row["step"] >= rows[-1]["step"]]

    def heatings(self, index: int) -> list[Heating | str]:
        """How gradient noise heats, over T, at the setting of each row of the later half; or why that is not known."""
        settings = [row[SETTING] for row in self._late(index)]
        known: dict[int, Heating | str] = {}
        for setting in settings:
            if id(setting) not in known:
                heating = heating_of(self.recipe, setting.parameters, setting.step_size)
                T = setting.temperature
                known[id(setting)] = heating if isinstance(heating, str) else Heating(*(x / T for x in heating))
        return [known[id(setting)] for setting in settings]

    def late(self, index: int, chains: int, shards: Shards | None = None) -> list[dict[str, torch.Tensor]]:
        """Series by name of each chain of a group, over the later half of its steps; of shards all ranks call this."""
        rows = self._late(index)
        if not rows:
            return [dict[str, torch.Tensor]() for _ in range(chains)]
        apart = ("step", PLACE, SETTING, SOME, NOISE, SQUARES)
        names = [name for name in rows[0] if name not in apart]
        missing = chains * [math.nan]
        order = (SOME, NOISE, SQUARES, *names)
        table = torch.tensor(
            [[row.get(name, missing) for name in order] for row in rows], dtype=torch.float64, device="cpu"
        )
        weights, slopes = torch.stack([row[PLACE] for row in rows], 1)
        virial = ((weights - weights.mean(0)) * slopes).sum(2).cpu()
        virial /= torch.tensor([[row[SETTING].temperature] for row in rows], dtype=torch.float64, device="cpu")
        table = torch.cat([table, virial[:, None]], 1)  # (rows, numbers, chains)
        if shards is not None:
            shards.spread.add(table)
        names += [] if self.recipe.has_other_energy else ["configurational"]
        steps = torch.tensor([float(row["step"]) for row in rows], device="cpu")
        unknown = Heating(math.nan, math.nan)
        known = [unknown if isinstance(heating, str) else heating for heating in self.heatings(index)]
        per_variance, supplied = torch.tensor(known, dtype=torch.float64, device="cpu").T
        return [_series(names, steps, own, per_variance, supplied) for own in table.unbind(2)]


def _of_pair(halves: np.ndarray) -> Numbers:
    """Variance and size of the gradients of two steps, of half their squares: of the difference and of each."""
    noise, own, before = halves.reshape(3, -1)
    return {NOISE: noise, SQUARES: own + before}


def drawn_by(device: torch.device) -> torch.Tensor:
    """The state of torch's generator of a device, which changes where a layer such as dropout draws from it.

    >>> before = drawn_by(torch.device("cpu"))
    >>> noise = torch.nn.functional.dropout(torch.ones(3))
    >>> torch.equal(before, drawn_by(torch.device("cpu")))
    False
    """
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _series(
    names: Sequence[str], steps: torch.Tensor, table: torch.Tensor, per_variance: torch.Tensor, supplied: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Series by name, means over sites, of the finite rows of `table`, `(rows, numbers)`; heats by row over T."""
    some, noise, squares, *sums = table.unbind(1)
    finite = torch.stack(sums).isfinite().all(0)
    series = {"step": steps[finite]} | {name: (x / some)[finite] for name, x in zip(names, sums)}
    pairs = noise.isfinite()
    if pairs.any():
        series[NOISE] = (noise / some)[pairs]
        series[SQUARES] = (squares / some)[pairs]
        heat = noise / some * per_variance - supplied
        known = heat.isfinite()
        if known.any():
            series |= {HEATING: heat[known], SUPPLIED: supplied[known]}
    return series


def masses_of(recipe: Recipe, setting: Setting) -> dict[str, float]:
    """The masses of Gaussian momenta by block, where all sites have the same."""
    values = masses(recipe, setting.parameters).items()
    return {block: float(mass) for block, mass in values if not torch.is_tensor(mass) or mass.numel() == 1}
