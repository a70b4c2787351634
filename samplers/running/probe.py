"""What tells the functions of two runs apart, which have no text: their values at states, compared up to rounding."""

from collections.abc import Callable, Mapping

import torch

from recipe import Recipe

from ..energies.layout import position_of
from .inputs import Inputs

Blocks = Mapping[str, torch.Tensor]  # `(chains, *shape)`

NEAR = (0.0, 1e-3, -1e-3)  # how far from a state a probe looks, in parts of it, and a third of that beside
FAR = (0.1, -0.2)
CHAINS = 64  # that are looked at, at most
NUMBERS = 2**22  # of the states of these chains together, at most, but for one chain
GRADIENT = "its gradient"  # among the names of functions, beside those of observations
BUCKETS = 64  # numbers that are kept of the value of a function
# Other threads, other widths of vmap and other orders of sums move the gradients of networks by up to 2e-6 of their
# length in float32, and 2e-15 in float64 (tests/rounding.py). What differs by more than this is another function; the
# margin is wide where a posterior that differs so little is none that draws could tell.
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-10}


class Probe:
    """The gradient of a torch energy, and the observations, at states and beside them, on the batches of a step.

    Of each value a sketch is kept: its sites with random signs, summed in 64 buckets, whose squares sum to those of the
    value in the mean, and are those of the value where it has at most 64 sites. `start`: the target and other blocks of
    all chains, of which some are looked at.
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
        self.tolerance = TOLERANCE[blocks[0].dtype]

    def at(self, state: Blocks, number: int) -> dict[str, torch.Tensor]:
        """The sketches by function, `(points, chains, buckets)` in float64; `number` is that of the step."""
        some = {b.name: state[b.name][self.chains] for b in self.recipe.targets}
        values: dict[str, list[torch.Tensor]] = {}
        for shift in (*NEAR, *FAR):
            there = {b: x * (1 + shift) + abs(shift) / 3 for b, x in some.items()}
            for name, function in self._functions(number).items():
                with torch.no_grad():
                    value = function(position_of(self.recipe, there))
                values.setdefault(name, []).append(sketch(value))
        return {name: torch.stack(sketches) for name, sketches in values.items()}

    def at_start(self) -> dict[str, torch.Tensor]:
        """The sketches where the chains start, on the batches of the first step."""
        return self.at(self.start, 0)

    def farthest(self, mine: torch.Tensor, other: torch.Tensor) -> tuple[int, float]:
        """The chain at which two functions are farthest apart by their sketches, and how far."""
        apart = difference(mine, other)
        place = int(apart.argmax())
        return int(self.chains[place]), float(apart[place])

    def _functions(self, number: int) -> dict[str, Callable]:
        """The functions of the target of the chosen chains that the caller wrote."""
        evaluations = self.inputs.evaluations(number, self.total, self.chains)
        functions = dict(evaluations.functions()["observe"])
        target = self.inputs.target
        if not target.is_symbolic:
            functions[GRADIENT] = lambda at: target.eager.at(at, evaluations.first[0]).slope
        return functions


def difference(mine: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How far two functions are apart by their sketches, in relation to their length, for each chain.

    Next to the state it is the median of three points, far from it the lesser of two: a single point may be a corner of
    the function, which rounding leads to either side of.

    >>> x = torch.ones(5, 1, 2, dtype=torch.float64)
    >>> difference(x * 1.0005, x)
    tensor([0.0005], dtype=torch.float64)
    """
    apart = (mine - other).norm(dim=-1)
    lengths = other.norm(dim=-1)
    near = lengths[: len(NEAR)]
    far = lengths[len(NEAR) :]
    # At a mode the gradient is the rest of large terms, whose size is seen beside it.
    local = torch.maximum(_finite(near).max(0).values, _finite(far).min(0).values)
    relative = torch.where(apart == 0, 0.0, apart / torch.cat([local.expand_as(near), far]))
    finite = [x.isfinite().all(-1) for x in (mine, other)]
    relative[finite[0] != finite[1]] = torch.inf
    relative[~finite[0] & ~finite[1]] = 0.0
    return torch.maximum(relative[: len(NEAR)].median(0).values, relative[len(NEAR) :].min(0).values)


def _finite(lengths: torch.Tensor) -> torch.Tensor:
    return lengths.nan_to_num(0.0, posinf=0.0)


def sketch(value: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A few numbers of the value of each chain, `(chains, buckets)`."""
    blocks = list(value.values()) if isinstance(value, Mapping) else [value]
    flat = torch.cat([x.reshape(len(x), -1) for x in blocks], 1)
    generator = torch.Generator("cpu").manual_seed(0)
    signs = torch.randint(0, 2, flat.shape[1:], generator=generator, dtype=torch.int8, device="cpu")
    signs = signs.to(flat) * 2 - 1
    padded = torch.nn.functional.pad(flat * signs, (0, -flat.shape[1] % BUCKETS))
    return padded.reshape(len(flat), -1, BUCKETS).sum(1, dtype=torch.float64).cpu()
