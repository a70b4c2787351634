"""Energies between a reference and a target, U_b = (1 - b) R + b U, and chains that are annealed along them.

A chain from exp(-R), moved by steps that keep exp(-U_b), b = b_0, b_1, ... in turn, has the weight
exp(-sum_k (b_{k+1} - b_k) (U - R)(z_k)), whose mean over chains is the ratio of the integrals of exp(-U) and exp(-R).

Source: Neal (2001), "Annealed importance sampling"; Jarzynski (1997), "Nonequilibrium equality for free energy
differences".
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from integrators import noise
from integrators.step import State, Step
from integrators.streams import JITTER
from recipe.errors import RecipeError

from ..target.layout import position_of
from ..target.potential import SLOPE, VALUE, Jet, Position
from ..target.target import Target
from .references import Reference

ACCEPTED = (0.6, 0.9)  # the range of the acceptance that a step size is chosen for
TRIES = 12  # of step sizes, for an acceptance in that range
APART = 0.25  # relative variance of the weights between two bridges of a pilot
SHORTEST = 1e-9  # the least distance of two bridges of a pilot
BOTH = VALUE | SLOPE


@dataclass(frozen=True)
class Place:
    """A point z of all chains, with U of the target, R of the reference and their gradients there."""

    z: Position
    U: Jet
    R: Jet

    def value(self, b: float) -> torch.Tensor:
        """U_b of all chains, `(chains,)`."""
        return (1 - b) * self.R.value + b * self.U.value if b else self.R.value

    def gradient(self, b: float) -> Position:
        """grad U_b of all chains, in the form of z."""
        return tree_map(lambda r, u: (1 - b) * r + b * u, self.R.slope, self.U.slope) if b else self.R.slope


@dataclass(frozen=True)
class Endpoints:
    """U of the target and R of the reference; `other`: R of a reference that is not Gaussian."""

    reference: Reference
    target: Target
    other: Target | None = None

    def at(self, z: Position) -> Place:
        """U, with the volume of the coordinates, R and their gradients at z."""
        law = self.reference
        U = self.target.at(law.target(z), orders=BOTH)
        U = Jet(U.value - law.log_volume, law.pulled(U.slope))
        if self.other is not None:
            return Place(z, U, self.other.at(z, orders=BOTH))
        assert torch.is_tensor(z)
        R = z.reshape(len(z), -1).square().sum(1) / 2 + law.sites * math.log(2 * math.pi) / 2
        return Place(z, U, Jet(R, z))


@dataclass
class Annealing:
    """Chains under annealing, with `moves` proposals at every bridge, by an accept-reject step."""

    step: Step
    energies: Endpoints
    parameters: Mapping[str, Any]
    moves: int
    seed: int
    first_chain: int
    state: State
    steps: int = 0
    place: Place | None = None

    def gap(self) -> torch.Tensor:
        """U - R of every chain, `(chains,)`, in float64."""
        place = self._at(position_of(self.step.recipe, self.state))
        return place.U.value.double() - place.R.value.double()

    @torch.no_grad()
    def move(self, b: float, h: float) -> float:
        """Makes the proposals of a bridge, of step sizes from h/2 to h, and returns the share of accepted ones."""
        blocks = [block.name for block in self.step.recipe.entries]
        state = {name: self.state[name] for name in blocks}
        before = state["accepted"]
        for _ in range(self.moves):
            key = noise.Key(self.seed, self.steps, self.first_chain)
            u = key.uniforms(JITTER, torch.empty(1, dtype=torch.float64, device="cpu"))
            state = self.step(
                state,
                h * (1 + float(u[0])) / 2,
                gradient=lambda z: self._at(z).gradient(b),
                value=lambda z: self._at(z).value(b),
                noise=key,
                temperature=1.0,
                **self.parameters,
            )
            self.steps += 1
        self.state = state
        return float((state["accepted"] - before).mean()) / self.moves

    def _at(self, z: Position) -> Place:
        """The energies at z, evaluated only at a new z: of other tensor objects, which no step changes in place."""
        place = self.place
        if place is None or any(x is not y for x, y in zip(tree_leaves(place.z), tree_leaves(z), strict=True)):
            place = self.place = self.energies.at(z)
        return place


@dataclass(frozen=True)
class AnnealingPath:
    """Bridges from 0 to 1 with a step size for each; `length` is the distance of reference and target.

    The distance is the sum, over bridges close to each other, of the standard deviations of log weights.
    """

    bridges: tuple[float, ...]
    step_sizes: tuple[float, ...]
    length: float

    def cut(self, number: int) -> "AnnealingPath":
        """The schedule with `number` bridges, interpolated at equal distances.

        >>> AnnealingPath((0.0, 0.25, 1.0), (1.0, 0.5, 0.25), 2.0).cut(4).bridges
        (0.0, 0.125, 0.25, 0.625, 1.0)
        """
        places = [k * (len(self.bridges) - 1) / number for k in range(number + 1)]
        logs = [math.log(h) for h in self.step_sizes]
        bridges = [_between(self.bridges, x) for x in places]
        sizes = tuple(math.exp(_between(logs, x)) for x in places)
        return AnnealingPath((*bridges[:-1], 1.0), sizes, self.length)


def _between(values: Sequence[float], x: float) -> float:
    k = min(int(x), len(values) - 2)
    return values[k] + (x - k) * (values[k + 1] - values[k])


def pilot(
    annealing: Annealing, h: float, where: str, *, most: int, tell: Callable[[float, float], None]
) -> AnnealingPath:
    """Anneals chains to find a schedule: bridges at equal distances, with step sizes of acceptance in ACCEPTED.

    `tell` is called with each bridge and the share of accepted proposals there. Raises RecipeError where more than
    `most` bridges are needed.
    """
    bridges = [0.0]
    sizes = []
    length = 0.0
    while True:
        h, share = _accepted(annealing, bridges[-1], h)
        tell(bridges[-1], share)
        sizes.append(h)
        if bridges[-1] == 1.0:
            return AnnealingPath(tuple(bridges), tuple(sizes), length)
        gap = annealing.gap()
        finite = gap[gap.isfinite()]
        ahead, sd = _next(finite, 1 - bridges[-1]) if len(finite) > 1 else (0.0, 0.0)
        if ahead < SHORTEST or len(bridges) > most:
            what = f"the reference is too far from the energy: {len(bridges)} bridges lead from 0 to {bridges[-1]:.3g}"
            raise RecipeError(where, what, do="Give a reference nearer to exp(-U), or one with lighter tails.")
        length += sd
        bridges.append(1.0 if ahead >= 1 - bridges[-1] else bridges[-1] + ahead)


def _accepted(annealing: Annealing, b: float, h: float) -> tuple[float, float]:
    """A step size near h at which the acceptance of proposals at b is in ACCEPTED, and the last acceptance."""
    low, high = ACCEPTED
    for _ in range(TRIES):
        share = annealing.move(b, h)
        if low <= share <= high:
            break
        h *= 0.5 if share < 0.1 else math.exp(share - (low + high) / 2) ** 1.5
    return h, share


def _next(gap: torch.Tensor, most: float) -> tuple[float, float]:
    """The distance in b to the next bridge, and the standard deviation of the log weight over this distance."""
    low, high = 0.0, most
    if spread_of(gap, most) > APART:
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if spread_of(gap, middle) > APART else (middle, high)
    else:
        low = most
    return low, math.sqrt(math.log1p(max(0.0, spread_of(gap, low))))  # rounding may lead below 0


def spread_of(gap: torch.Tensor, ahead: float) -> float:
    """The relative variance of exp(-ahead gap).

    >>> round(spread_of(torch.tensor([0.0, 1.0], dtype=torch.float64), 1.0), 3)
    0.214
    """
    weights = (-ahead * (gap - gap.min())).exp()
    return float(weights.square().mean() / weights.mean() ** 2 - 1)


def annealed(annealing: Annealing, schedule: AnnealingPath) -> Iterator[tuple[torch.Tensor, float]]:
    """Anneals chains along a schedule; yields U - R of every chain and the share of accepted proposals, by bridge."""
    for b, h in zip(schedule.bridges, schedule.step_sizes):
        share = annealing.move(b, h) if b else 1.0
        yield annealing.gap(), share
