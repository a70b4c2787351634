"""A comparison of the functions of two runs by their values at states, up to rounding."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from recipe import Recipe

from ..target.layout import position_of
from ..target.potential import ROUNDING, SLOPE, Blocks, Position
from ..target.several import argument
from ..target.target import Target
from .inputs import Inputs

NEAR = (0.0, 1e-3, -1e-3)  # shifts s of a state x: the probe evaluates functions at x (1 + s) + |s|/3
FAR = (0.1, -0.2)
CHAINS = 64  # chains that are probed, at most
NUMBERS = 2**22  # sites of the probed chains together, at most, unless one chain has more
GRADIENT = "its gradient"  # among the names of functions, beside those of observations
BUCKETS = 64  # numbers in a sketch of a value


class Probe:
    """Sketches of a torch energy's gradient and of observations, at states and near them, on the batches of a step.

    A sketch is the sum of the sites, with random signs, in 64 buckets: its squared length is that of the value in the
    mean, and exactly for up to 64 sites. `start`: the blocks of all chains, `(chains, *shape)`; `chains`: the indices
    of the probed ones.
    """

    def __init__(self, recipe: Recipe, inputs: Inputs, start: Blocks) -> None:
        self.recipe = recipe
        self.inputs = inputs
        self.start = start
        blocks = [start[b.name] for b in recipe.targets]
        sites = sum(x[0].numel() for x in blocks)
        self.total = len(blocks[0])
        number = max(1, min(self.total, CHAINS, NUMBERS // sites))
        self.chains = torch.linspace(0, self.total - 1, number, device="cpu").round().long()
        self.tolerance = ROUNDING[blocks[0].dtype]

    def at(self, state: Blocks, number: int) -> Blocks:
        """The sketches by function, `(points, chains, buckets)` in float64, on the batches of step `number`."""
        targets = {b.name: state[b.name][self.chains] for b in self.recipe.targets}
        values: dict[str, list[torch.Tensor]] = {}
        for shift in (*NEAR, *FAR):
            point = {b: x * (1 + shift) + abs(shift) / 3 for b, x in targets.items()}
            for name, function in self._functions(number).items():
                with torch.no_grad():
                    value = function(position_of(self.recipe, point))
                values.setdefault(name, []).append(sketch(value))
        return {name: torch.stack(sketches) for name, sketches in values.items()}

    def farthest(self, mine: torch.Tensor, other: torch.Tensor) -> tuple[int, float]:
        """The chain with the largest difference of two sketches, and the difference."""
        differences = difference(mine, other)
        place = int(differences.argmax())
        return int(self.chains[place]), float(differences[place])

    def _functions(self, number: int) -> dict[str, Callable]:
        """Observations, and the gradient of a torch energy, by name, as functions of the probed chains' position."""
        evaluations = self.inputs.evaluations(number, self.total, self.chains)
        functions = dict(evaluations.functions()["observe"])
        target = self.inputs.target
        if not target.is_symbolic:
            functions |= self._slopes(target.eager, evaluations.first[0])
        return functions

    def _slopes(self, target: Target, rows: torch.Tensor | None) -> dict[str, Callable]:
        """The gradient of U, or of each of several potentials by name: their sum may be that of others."""
        if not target.is_by_name:
            return {GRADIENT: lambda at: target.at(at, rows).slope}

        def slope(at: Position, U: Any) -> Any:
            part, theta = target.parts[U.key], argument(U, self.recipe, at)
            batch = target.batch(rows) if part.reads_data else ()
            return target.jet(part, theta, batch, orders=SLOPE, per_chain=target.is_minibatched).slope

        first = {U.key: U for U in reversed(self.recipe.potentials)}
        return {f"{GRADIENT} by {key}": partial(slope, U=U) for key, U in first.items()}


def difference(mine: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The relative difference of two functions by their sketches, `(points, chains, buckets)`, for each chain.

    The larger of the median over the three near points and the minimum over the two far points: at a single point the
    function may have a corner, and rounding may decide on the side.

    >>> x = torch.ones(5, 1, 2, dtype=torch.float64)
    >>> difference(x * 1.0005, x)
    tensor([0.0005], dtype=torch.float64)
    """
    distance = (mine - other).norm(dim=-1)
    lengths = other.norm(dim=-1)
    near = lengths[: len(NEAR)]
    far = lengths[len(NEAR) :]
    # At a mode large terms of the gradient cancel; their size is seen at the other points.
    local = torch.maximum(_finite(near).max(0).values, _finite(far).min(0).values)
    relative = torch.where(distance == 0, 0.0, distance / torch.cat([local.expand_as(near), far]))
    finite = [x.isfinite().all(-1) for x in (mine, other)]
    relative[finite[0] != finite[1]] = torch.inf
    relative[~finite[0] & ~finite[1]] = 0.0
    return torch.maximum(relative[: len(NEAR)].median(0).values, relative[len(NEAR) :].min(0).values)


def _finite(lengths: torch.Tensor) -> torch.Tensor:
    return lengths.nan_to_num(0.0, posinf=0.0)


def sketch(value: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The sketch of a value of each chain, `(chains, buckets)` in float64 on the CPU."""
    blocks = list(value.values()) if isinstance(value, Mapping) else [value]
    flat = torch.cat([x.reshape(len(x), -1) for x in blocks], 1)
    generator = torch.Generator("cpu").manual_seed(0)
    signs = torch.randint(0, 2, flat.shape[1:], generator=generator, dtype=torch.int8, device="cpu")
    signs = signs.to(flat) * 2 - 1
    padded = torch.nn.functional.pad(flat * signs, (0, -flat.shape[1] % BUCKETS))
    return padded.reshape(len(flat), -1, BUCKETS).sum(1, dtype=torch.float64).cpu()
