"""The plan of an audit: its settings, checked before the first run, and the bounds that follow from the settings."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from recipe.arguments import integer, is_number, number
from recipe.errors import RecipeError

from .laws import LAWS

FORM = "run(potential, init, *, steps, step_size, temperature, seed) -> theta"
WHERE = "audit"


@dataclass(frozen=True)
class Plan:
    """The settings of an audit: chains for a time, in steps of h, h/2 and h/4, at two temperatures.

    `alpha`: the rate of false alarms. Raises RecipeError for settings that are out of their range.
    """

    step_size: float
    time: float
    chains: int
    temperatures: tuple[float, float]
    alpha: float
    seed: int
    limit: float | None

    def __post_init__(self) -> None:
        number(WHERE, "step_size", self.step_size, above=0, do="Pass step_size=0.1.")
        what = f"time is a number >= step_size, got {self.time!r}"
        number(WHERE, "time", self.time, above=0, least=self.step_size, what=what, do="Pass time=10.0.")
        integer(WHERE, "chains", self.chains, least=400, do="Pass chains=32768.")
        _check_temperatures(self.temperatures)
        what = f"alpha is a probability, got {self.alpha!r}"
        number(WHERE, "alpha", self.alpha, above=0, below=1, what=what, do="Pass alpha=1e-4.")
        if self.limit is not None:
            what = f"the limit is a number of seconds > 0, got {self.limit!r}"
            number(WHERE, "limit", self.limit, above=0, what=what, do="Pass limit=600.")
        integer(WHERE, "the seed", self.seed, least=0, do="Pass seed=0.")

    @property
    def step_sizes(self) -> list[float]:
        """h, h/2 and h/4."""
        return [self.step_size / 2**i for i in range(3)]

    @property
    def threshold(self) -> float:
        """The standard errors beyond which a statistic counts; all statistics together have half of alpha.

        The statistics are those of each target and temperature, and the pooled ones, at three step sizes and in the
        limit; the mean of each coordinate for two seeds; the correlation of coordinates; the exponent of T.
        """
        return self._bound(4 * (sum(len(law.labels) for law in LAWS) * 2 + 3) + LAWS[0].dim + 2)

    @property
    def likeness(self) -> float:
        """The standard errors beyond which a correlation of chains counts; all lags have half of alpha together."""
        return self._bound(LAWS[0].dim * self.chains // 2)

    def _bound(self, comparisons):
        return NormalDist().inv_cdf(1 - self.alpha / 4 / comparisons)


def _check_temperatures(temperatures):
    """Refuses anything but a pair of different temperatures."""
    pair = isinstance(temperatures, (tuple, list)) and len(temperatures) == 2
    if not (pair and all(is_number(T) and T > 0 for T in temperatures) and temperatures[0] != temperatures[1]):
        what = f"temperatures are two numbers > 0, got {temperatures!r}"
        raise RecipeError(WHERE, what, do="Pass temperatures=(0.5, 1.5).")


def check_function(run: Callable) -> None:
    """Refuses anything but a function of the form that an audit calls."""
    if not callable(run):
        raise RecipeError(WHERE, f"{run!r} is not a function", do=f"Pass {FORM}.")
    try:
        inspect.signature(run).bind(None, None, steps=1, step_size=0.1, temperature=1.0, seed=0)
    except TypeError as error:
        raise RecipeError(WHERE, f"the function cannot be called: {error}", do=f"Write {FORM}.") from error
    except ValueError:  # a builtin without a signature
        pass
