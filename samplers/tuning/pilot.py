"""Pilot runs: short exact runs of many chains, each from the last states of the run before; trials of step sizes."""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from integrators.streams import seed_of
from recipe import Recipe

from ..results.bar import Bar
from ..results.statistics import sample_size_of_moves
from ..running.interrupts import ended_by_interrupt
from ..running.phases import Phase
from ..running.sampling import Metropolis, sample
from ..running.schedules import Jittered, Schedule
from ..target.coordinates import Affine

STUCK = 0.02  # the least acceptance of a chain in the harmonic mean
TRIAL = 80  # words of a trial
LEAST_DRAWS = 16
EXPECTED = (  # warnings of trial step sizes, and of starts that pilots are to leave
    "accepted none of",
    "the energy raised an error",
    "at the start U is",
    "the energy falls without bound",
)
SITES = 64  # whose sample size is estimated


@dataclass
class Spent:
    """What pilots have spent together: `runs`, `gradients`, and `states` that chains have left for those of others.

    Values of U without a gradient are not counted.
    """

    runs: int = 0
    gradients: int = 0
    states: int = 0


@dataclass
class Pilot:
    """Chains that are moved by short Metropolised runs, whose law is exp(-H/T) at every step size.

    `fixed`: arguments of `samplers.sample` for all runs; `theta`: the last states, `(chains, *shape)`, in `coordinates`
    if given; `spent`: by all runs, a gradient for each word of a chain, and by the caller; `bar`: shows gradients;
    `end`: when the pilot is late, by `time.monotonic`.
    """

    recipe: Recipe
    energy: Any
    fixed: Mapping[str, Any]
    seed: int
    theta: torch.Tensor
    parameters: dict[str, Any] = field(default_factory=dict)
    coordinates: Affine | None = None
    spent: Spent = field(default_factory=Spent)
    bar: Bar = field(default_factory=lambda: Bar("pilot", 0, shown=False))
    end: float = math.inf

    @property
    def is_late(self) -> bool:
        """Whether the time of the pilot is over."""
        return time.monotonic() > self.end

    def run(self, step_sizes: Sequence[float | Schedule], steps: int, repeat: int = 1) -> dict[str, torch.Tensor]:
        """Runs `steps` steps at each of the step sizes, and returns the draws of theta and the work of each step.

        Ctrl-C raises KeyboardInterrupt, since settings chosen from a part of a run would not be reproducible.
        """
        self.spent.runs += 1
        self.spent.gradients += len(step_sizes) * steps * repeat * len(self.theta)
        target = self.recipe.targets[0].name
        with warnings.catch_warnings(), ended_by_interrupt():
            for what in EXPECTED:
                warnings.filterwarnings("ignore", f".*{what}", RuntimeWarning)
            draws = sample(
                self.recipe,
                self.energy,
                init={target: self.theta},
                chains=len(self.theta),
                phases=[Phase(steps, step_size=h) for h in step_sizes],
                step_size=step_sizes[0],
                seed=seed_of(self.seed, self.spent.runs),
                metropolis=Metropolis(repeat),
                keep="work",
                progress=False,
                **self.fixed,
                **self.parameters,
            )
        results = {name: draws[name].to(self.theta.device) for name in (target, "work")}
        self.theta = _freed(results[target], self.theta)
        self.bar.update(len(step_sizes) * steps * repeat * len(self.theta))
        return results

    def leave(self, kept: torch.Tensor) -> None:
        """Has chains that are not `kept`, `(chains,)`, go on from the states of those that are."""
        self.theta = taken_over(self.theta, kept)
        self.spent.states += int((~kept).sum())

    def flat(self, theta: torch.Tensor) -> torch.Tensor:
        """Draws mapped out of the coordinates, `(chains, draws, sites)` in float64."""
        outside = theta if self.coordinates is None else self.coordinates(theta)
        return outside.flatten(2).to(torch.float64)

    def works(self, step_sizes: Sequence[float], steps: int, repeat: int = 1) -> torch.Tensor:
        """The work over T of every proposal at each of the step sizes, `(step sizes, chains steps)`."""
        return self.by_size(self.run(step_sizes, steps, repeat)["work"], len(step_sizes))

    def by_size(self, work: torch.Tensor, sizes: int) -> torch.Tensor:
        """The work over T of a run at several step sizes, `(chains, steps)`, as `(sizes, chains steps / sizes)`."""
        over_T = work.to(torch.float64) / float(self.fixed["temperature"])
        return over_T.unflatten(1, (sizes, -1)).transpose(0, 1).flatten(1)


def _freed(draws: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """The last of draws `(chains, n, *shape)`, where a chain that never left its start takes over another chain's.

    If fewer than half of the chains have moved, the step size is to blame, and all keep their own.
    """
    moving = (draws != start[:, None]).flatten(1).any(1)
    return draws[:, -1] if 2 * moving.sum() < len(moving) else taken_over(draws[:, -1], moving)


def taken_over(states: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """States `(chains, *shape)`, where a chain that is not `kept`, `(chains,)`, takes over that of one that is.

    >>> taken_over(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))
    tensor([1., 3., 3.])
    """
    sources = kept.nonzero().flatten()
    chains = torch.arange(len(kept), device=kept.device)
    return states[torch.where(kept, chains, sources[chains % len(sources)])]


def acceptance(works: torch.Tensor) -> torch.Tensor:
    """E min(1, exp(-W/T)) of works over T, along the last axis.

    >>> acceptance(torch.tensor([0.0, -1.0])), acceptance(torch.tensor([1e30, 0.0]))
    (tensor(1.), tensor(0.5000))
    """
    return (-works).exp().clamp(max=1).mean(-1)


@dataclass(frozen=True)
class Trial:
    """A step size and number of words with their `efficiency`, effective draws a gradient of the worst statistic.

    `acceptance`: the harmonic mean of that of the chains.
    """

    step_size: float
    repeat: int
    acceptance: float
    efficiency: float


def jittered(step_size: float, repeat: int) -> float | Jittered:
    """The step size of proposals of `repeat` words, jittered where these are several.

    >>> jittered(0.1, repeat=1), jittered(0.1, repeat=2)
    (0.1, Jittered(step_size=0.1, width=0.3333333333333333))
    """
    return step_size if repeat == 1 else Jittered(step_size)


def trial(pilot: Pilot, step_size: float, repeat: int, axes: torch.Tensor) -> Trial:
    """The trial of a run at a step size, by the least of the sample sizes of sites and of directions `axes`.

    That of a value x is the lesser one of x and of |x - median|; `axes`: `(n, sites)`.
    """
    run = pilot.run([jittered(step_size, repeat)], max(LEAST_DRAWS, TRIAL // repeat), repeat)
    theta, work = pilot.flat(run[pilot.recipe.targets[0].name]), run["work"]
    values = torch.cat([theta[..., :: max(1, theta.shape[-1] // SITES)], theta @ axes.to(theta).T], -1)
    folded = (values - values.flatten(0, 1).median(0).values).abs()
    sizes = sample_size_of_moves(torch.cat([values, folded], -1))
    by_chain = acceptance(work.to(torch.float64) / float(pilot.fixed["temperature"]))
    accepted = 1 / by_chain.clamp(min=STUCK).reciprocal().mean()  # a chain that stands still counts as many that move
    return Trial(step_size, repeat, float(accepted), float(sizes.nan_to_num(nan=0.0).min()) / (work.numel() * repeat))


def in_words(trials: Sequence[Trial]) -> str:
    """Text of the efficiencies of several trials.

    >>> in_words([Trial(0.5, 1, 0.9, 0.11), Trial(0.7, 2, 0.8, 0.2)])
    'effective draws a gradient, of the worst statistic, are 0.11 at 1, 0.2 at 2'
    """
    worth = ", ".join(f"{t.efficiency:.2g} at {t.repeat}" for t in trials)
    return f"effective draws a gradient, of the worst statistic, are {worth}"
