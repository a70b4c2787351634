"""Step sizes and temperatures as functions of the step number k = 0, 1, ..., written as data.

samplers.sample(..., step_size=Polynomial(a=0.1, b=100, gamma=0.55))
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from recipe.arguments import integer, number
from recipe.errors import RecipeError

from .phases import Phase

if TYPE_CHECKING:
    import numpy as np  # imported at the first call of a schedule

GOLDEN = (5**0.5 - 1) / 2  # whose multiples, modulo 1, are spread most evenly
SELDOM, SHORT = 16, 1 / 4  # one of so many jittered step sizes, and its share of the others


class Schedule:
    """A schedule in closed form: `over` gives its values at many steps, bit for bit those of single calls."""

    def over(self, steps: range) -> "np.ndarray":
        """h_k at the `steps`, `(steps,)` in float64."""
        raise NotImplementedError

    def __call__(self, k: int) -> float:
        """h_k."""
        return float(self.over(range(k, k + 1))[0])


def in_closed_form(schedule: Any, steps: range) -> "np.ndarray | None":
    """The values of a schedule at the `steps`, `(steps,)`; None for a function without a closed form.

    >>> in_closed_form(Polynomial(a=1.0, b=4, gamma=0.5), range(0, 10, 5))
    array([0.5       , 0.33333333])
    """
    if isinstance(schedule, Later):
        return in_closed_form(schedule.schedule, range(steps.start + schedule.by, steps.stop + schedule.by, steps.step))
    return schedule.over(steps) if isinstance(schedule, Schedule) else None


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Polynomial decay from a b^-gamma: h_k = a (b + k)^-gamma.

    `a` has the units of the step size, b and gamma are numbers. SGLD needs sum h_k = inf and sum h_k^2 < inf, which is
    1/2 < gamma <= 1; this is not enforced. Raises RecipeError unless a, b and gamma are positive.
    Source: Welling & Teh 2011.

    >>> h = Polynomial(a=1.0, b=4, gamma=0.5)
    >>> h(0), h(5)
    (0.5, 0.3333333333333333)
    """

    a: float
    b: float
    gamma: float

    def __post_init__(self) -> None:
        _check_positive(self, "a", "b", "gamma")

    def over(self, steps: range) -> "np.ndarray":
        """h_k at the `steps`, `(steps,)` in float64."""
        import numpy as np

        return self.a * np.power(self.b + _numbers(steps), -self.gamma)


@dataclass(frozen=True)
class BlockDecay(Schedule):
    """Constant on blocks of `every` steps, each lower than the last: h_k = start factor^floor(k/every).

    `start` has the units of the step size. Raises RecipeError unless start is positive, 0 < factor <= 1, and `every` is
    a positive integer.

    >>> h = BlockDecay(start=0.1, factor=0.5, every=1000)
    >>> h(999), h(1000)
    (0.1, 0.05)
    """

    start: float
    factor: float
    every: int

    def __post_init__(self) -> None:
        _check_positive(self, "start", "factor")
        object.__setattr__(self, "every", integer("BlockDecay", "every", self.every, least=1))
        if self.factor > 1:
            raise RecipeError("BlockDecay", f"factor is at most 1, got {self.factor!r}", do="Pass 0 < factor <= 1.")

    def over(self, steps: range) -> "np.ndarray":
        """h_k at the `steps`, `(steps,)` in float64."""
        import numpy as np

        return self.start * np.power(self.factor, _numbers(steps) // self.every)


@dataclass(frozen=True)
class Jittered(Schedule):
    """Step sizes of Hamiltonian proposals that vary: a direction comes back seldom, a steep place is left.

        h_k = step_size (1 + width (2 u_k - 1)) s_k,    u_k = frac((k + 1) (sqrt(5) - 1)/2),
        s_k = 1/4 where k = 15 mod 16, else 1

    Proposals of L words of one h take a direction of frequency w with L h w = 2 pi back to where this was, and leave a
    chain where U is too steep for h. `step_size` is the mean of the longer ones, `width` the share of it by which these
    are off at most. Raises RecipeError unless step_size is positive and 0 < width < 1. Source: Mackenzie 1989, "An
    improved hybrid Monte Carlo method"; Neal 2011, "MCMC using Hamiltonian dynamics", sections 3.2 and 4.2.

    >>> h = Jittered(step_size=0.1, width=0.5)
    >>> [round(h(k), 4) for k in (0, 1, 2, 3, 15)]
    [0.1118, 0.0736, 0.1354, 0.0972, 0.0347]
    """

    step_size: float
    width: float = 1 / 3

    def __post_init__(self) -> None:
        _check_positive(self, "step_size")
        number("Jittered", "width", self.width, above=0, below=1)

    def over(self, steps: range) -> "np.ndarray":
        """h_k at the `steps`, `(steps,)` in float64."""
        import numpy as np

        k = _numbers(steps)
        u = np.mod((k + 1) * GOLDEN, 1.0)
        return self.step_size * (1 + self.width * (2 * u - 1)) * np.where(k % SELDOM == SELDOM - 1, SHORT, 1.0)


@dataclass(frozen=True)
class Cyclical(Schedule):
    """Warm restarts: h_k = start/2 [1 + cos(pi r_k)] with r_k = mod(k, L)/L and L = ceil(steps/cycles).

    `start` has the units of the step size; `steps` counts all steps, warmup included. A step explores while r_k <
    explore, at temperature 0, and samples after that, in `sample(..., phases=schedule.phases)`; `step_size=` alone sets
    the step sizes without exploration. Raises RecipeError unless start is positive, cycles and steps are positive
    integers with cycles <= steps, explore is in [0, 1), and a full cycle has a step that samples. In a training loop
    `start` is in units of lr, and `setting(k)` applies to step k. Source: Zhang, Li, Zhang, Chen & Wilson 2020,
    "Cyclical stochastic gradient MCMC for Bayesian deep learning", eq. (1) and algorithm 1.

    >>> h = Cyclical(start=0.1, cycles=2, steps=8, explore=0.5)
    >>> [round(h(k), 4) for k in range(5)]
    [0.1, 0.0854, 0.05, 0.0146, 0.1]
    >>> [(phase.steps, phase.keep) for phase in h.phases]
    [(2, False), (2, True), (2, False), (2, True)]
    """

    start: float
    cycles: int
    steps: int
    explore: float = 0.0

    def __post_init__(self) -> None:
        _check_positive(self, "start")
        object.__setattr__(self, "cycles", integer("Cyclical", "cycles", self.cycles, least=1))
        object.__setattr__(self, "steps", integer("Cyclical", "steps", self.steps, least=1))
        if self.cycles > self.steps:
            what = f"{self.cycles} cycles do not fit in {self.steps} steps"
            raise RecipeError("Cyclical", what, do="Choose cycles <= steps.")
        what = f"explore is a fraction in [0, 1), got {self.explore!r}"
        do = "Pass the part of each cycle that explores."
        number("Cyclical", "explore", self.explore, least=0, below=1, what=what, do=do)
        if not self.sampling(self.length - 1):
            what = f"no step samples: cycles of {self.length} steps, explore = {self.explore!r}"
            raise RecipeError("Cyclical", what, do="Lower explore, or make fewer cycles.")

    def over(self, steps: range) -> "np.ndarray":
        """h_k at the `steps`, `(steps,)` in float64."""
        import numpy as np

        # start/2 (1 + cos 2x) = start cos(x)^2, which stays positive where the sum would cancel.
        return self.start * np.cos(np.pi / 2 * (_numbers(steps) % self.length / self.length)) ** 2

    @property
    def length(self) -> int:
        """L, the number of steps in a cycle; the last cycle may be shorter."""
        return -(-self.steps // self.cycles)

    def sampling(self, k: int) -> bool:
        """Whether step k samples; else step k explores."""
        return k % self.length / self.length >= self.explore

    def setting(self, k: int, temperature: float = 1.0) -> dict[str, float]:
        """lr and temperature of step k of a training loop, for a group of an Optimizer: T = 0 where step k explores.

        >>> import torch
        >>> from samplers import Optimizer, SGHMC
        >>> optimizer = Optimizer(torch.nn.Linear(3, 1).parameters(), SGHMC, lr=0.1, num_data=500)
        >>> cycle = Cyclical(start=0.1, cycles=2, steps=8, explore=0.5)
        >>> optimizer.param_groups[0].update(cycle.setting(0))
        >>> [cycle.setting(k)["temperature"] for k in range(5)]
        [0.0, 0.0, 1.0, 1.0, 0.0]
        """
        return {"lr": self(k), "temperature": temperature if self.sampling(k) else 0.0}

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the run: exploration at temperature 0 without draws, sampling with draws."""
        phases: list[Phase] = []
        first = 0
        for sampling, stretch in groupby(range(self.steps), self.sampling):
            steps = len(list(stretch))
            temperature = None if sampling else 0.0
            phases.append(Phase(steps, temperature, step_size=Later(self, first), keep=sampling))
            first += steps
        return tuple(phases)


@dataclass(frozen=True)
class Later:
    """A schedule from step `by` on: h_k = schedule(k + by).

    >>> Later(Polynomial(a=1.0, b=4, gamma=0.5), by=5)(0)
    0.3333333333333333
    """

    schedule: Callable[[int], float]
    by: int

    def __call__(self, k: int) -> float:
        return self.schedule(k + self.by)


def _numbers(steps: range) -> "np.ndarray":
    import numpy as np

    return np.arange(steps.start, steps.stop, steps.step).astype(np.float64)


def _check_positive(schedule: Any, *names: str) -> None:
    for name in names:
        number(type(schedule).__name__, name, getattr(schedule, name), above=0)
