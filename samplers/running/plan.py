"""The plan of a run: its phases, each with a compiled step and settings, as immutable data."""

import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from integrators.step import Step
from recipe import Recipe
from recipe.arguments import is_number
from recipe.errors import RecipeError

from .phases import Phase
from .schedules import in_closed_form

PROBES = 10_000  # values of a schedule that are checked before the first step
MANY = 1_000_000  # values of a schedule in the fingerprint of a run, at most

Value = float | Callable[[int], float]


@dataclass(frozen=True)
class Setting:
    """The step size or the temperature of a phase, as a function of the step number k within it: value(origin + k).

    `what`: "step size" or "temperature"; `value`: a number, or a function of the step number; `origin`: the number of
    the phase's first step in the count of the function. Raises RecipeError where the function fails, or returns no
    number > 0, or >= 0 for a temperature.

    >>> Setting("step size", lambda k: 1/k, origin=10, where="sgld, sample")(0)
    0.1
    """

    what: str
    value: Value
    origin: int
    where: str

    def __call__(self, k: int) -> float:
        """The value at step k of the phase."""
        if type(self.value) is float:  # checked by the step; long runs call often
            return self.value
        if not callable(self.value):
            return self._checked(self.value, k)
        here = self.origin + k
        return self._checked(self._answers(self.value, range(here, here + 1))[0], k)

    def over(self, some: range) -> np.ndarray:
        """The values at the steps `some` of the phase, `(steps,)` in float64."""
        if not callable(self.value):
            return np.full(len(some), self(0))
        asked = range(self.origin + some.start, self.origin + some.stop, some.step)
        values = in_closed_form(self.value, asked)
        answers = self._answers(self.value, asked) if values is None else values.tolist()
        if self._are_fine(answers):
            return np.array(answers, dtype=np.float64)
        return np.array([self._checked(value, k) for value, k in zip(answers, some)])

    def _are_fine(self, answers: list) -> bool:
        """Whether the answers are floats in the range of the setting; False leaves each to `_checked`."""
        if not set(map(type, answers)) <= {float} or not answers:
            return False
        least = min(answers)
        return math.isfinite(sum(answers)) and (least > 0 or (least == 0 and self.what == "temperature"))

    def _answers(self, schedule: Callable[[int], float], asked: range) -> list:
        """The values of the function at the steps `asked`."""
        answers: list = []
        try:
            for k in asked:
                answers.append(schedule(k))
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise RecipeError(
                self.where,
                f"the schedule of the {self.what} fails at step {asked[len(answers)] - self.origin}: {error}",
                do="It is a function of k.",
            ) from error
        return answers

    def _checked(self, value: Any, k: int) -> float:
        """The value at step k as a float; refused outside of the range of the setting."""
        zero = self.what == "temperature"
        if not is_number(value, numbers.Real) or value < 0 or (value == 0 and not zero):
            raise RecipeError(
                self.where,
                f"the schedule gives the {self.what} {value!r} at step {k}",
                do=f"Return a number {'>= 0' if zero else '> 0'}.",
            )
        return float(value)


@dataclass(frozen=True)
class Stage:
    """A phase with its compiled `step`, and its step size and temperature at each step k of the phase.

    `first`: the number of steps before the phase; `seen`: the number of steps before the phase in phases that keep
    draws; `thin`: the number of steps between two kept states.
    """

    phase: Phase
    step: Step
    step_size: Setting
    temperature: Setting
    first: int
    seen: int
    thin: int

    @property
    def steps(self) -> int:
        """The number of steps of the phase."""
        return self.phase.steps

    def until_kept(self, k: int) -> int:
        """The number of steps, from step k on, before a step whose state is kept; all steps where none is kept."""
        return -(self.seen + k + 1) % self.thin if self.phase.keep else self.steps

    def settings(self, some: range) -> np.ndarray:
        """The step size and the temperature at the steps `some`, `(steps, 2)`."""
        return np.stack((self.step_size.over(some), self.temperature.over(some))).T

    def probes(self) -> tuple[list[float], list[float]]:
        """The step sizes and the temperatures at up to `PROBES` steps, evenly spaced."""
        sizes, temperatures = self.settings(range(0, self.steps, 1 + self.steps // PROBES)).T.tolist()
        return sizes, temperatures

    def temperatures(self) -> set[float]:
        """The set of the temperatures of all steps."""
        if not callable(self.temperature.value):
            return {self.temperature(0)}
        blocks = (range(k, min(k + PROBES, self.steps)) for k in range(0, self.steps, PROBES))
        return {T for some in blocks for T in set(self.temperature.over(some).tolist())}


@dataclass(frozen=True)
class Plan:
    """The stages of a run, one after another."""

    stages: tuple[Stage, ...]
    varies: bool  # whether a schedule or a phase sets the step size

    @property
    def step(self) -> Step:
        """The step of the first stage."""
        return self.stages[0].step

    @property
    def steps(self) -> tuple[Step, ...]:
        """The distinct compiled steps of all stages."""
        return tuple({id(stage.step): stage.step for stage in self.stages}.values())

    @property
    def length(self) -> int:
        """The number of steps."""
        return sum(stage.steps for stage in self.stages)

    @property
    def warmup(self) -> int:
        """The number of steps before the first phase whose states are kept."""
        return next(stage.first for stage in self.stages if stage.phase.keep)

    @property
    def thin(self) -> int:
        """The number of steps between two kept states."""
        return self.stages[0].thin

    @property
    def draws(self) -> int:
        """The number of states that are kept."""
        return sum(stage.steps for stage in self.stages if stage.phase.keep) // self.thin

    def stage(self, number: int) -> Stage:
        """The stage that makes step `number` of the run."""
        return next(stage for stage in reversed(self.stages) if stage.first <= number)

    def temperature(self, number: int) -> float:
        """The temperature at step `number` of the run."""
        stage = self.stage(number)
        return stage.temperature(number - stage.first)

    @property
    def kept_temperature(self) -> float:
        """The temperature of the kept states; nan where the temperature of kept states changes."""
        values = {stage.temperature.value for stage in self.stages if stage.phase.keep}
        value = values.pop()
        return math.nan if values or callable(value) else float(value)

    def since_stage(self, moved: int) -> int:
        """The number of steps in the present stage, after the first `moved` steps of the run."""
        return moved - self.stage(max(moved - 1, 0)).first

    def every_setting(self) -> list[float]:
        """The step sizes and temperatures of all steps, at most `MANY` of each stage."""
        values: list[float] = []
        for stage in self.stages:
            some = range(0, stage.steps, 1 + stage.steps // MANY)
            for setting in (stage.step_size, stage.temperature):
                values.extend(setting.over(some if callable(setting.value) else some[:1]))
        return values

    def check(self, parameters: Mapping) -> None:
        """Refuse settings and parameters that a step refuses, at the extremes of every stage."""
        for stage in self.stages:
            sizes, temperatures = stage.probes()
            for h, T in itertools.product({min(sizes), max(sizes)}, {min(temperatures), max(temperatures)}):
                stage.step.check(h, temperature=T, **parameters)
                stage.step.check_budget(h, T, **parameters)


@dataclass(frozen=True)
class Settings:
    """The settings of phases without settings of their own; functions count the steps of the whole run.

    `schedule`, if given, replaces `step_size`, in units of time; `freeze` holds in all phases. Raises RecipeError for a
    schedule that is no function.
    """

    step_size: float
    schedule: Callable[[int], float] | None
    temperature: Value
    freeze: tuple[str, ...]
    where: str

    def __post_init__(self) -> None:
        if self.schedule is not None and not callable(self.schedule):
            raise RecipeError(
                self.where,
                f"schedule is a function of the step number, got {self.schedule!r}",
                do="Pass lambda k: ...",
            )

    def step_size_of(self, phase: Phase, first: int) -> Setting:
        """The step size of a phase that begins after `first` steps of the run."""
        if phase.step_size is not None:
            return Setting("step size", phase.step_size, 0, self.where)
        return Setting("step size", self.step_size if self.schedule is None else self.schedule, first, self.where)

    def temperature_of(self, phase: Phase, first: int) -> Setting:
        """The temperature of a phase that begins after `first` steps of the run."""
        if phase.temperature is not None:
            return Setting("temperature", phase.temperature, 0, self.where)
        return Setting("temperature", self.temperature, first, self.where)


def step_of(make: Callable[..., Step], recipe: Recipe, **choices: Any) -> Step:
    """The step `make(recipe, **choices)`, cached for recipes and choices with a hash."""
    try:
        hash((recipe, *choices.values()))
    except TypeError:  # a dict of pieces, or a word as a list
        return make(recipe, **choices)
    return _step_of(make, recipe, **choices)


@lru_cache(maxsize=32, typed=True)
def _step_of(make: Callable[..., Step], recipe: Recipe, **choices: Any) -> Step:
    """`make(recipe, **choices)`, the last 32 of them cached."""
    return make(recipe, **choices)


def plan_of(phases: Sequence[Phase], settings: Settings, compiled: Callable[..., Step], thin: int) -> Plan:
    """The plan of `phases`; `compiled(freeze=names)` compiles the step with the named blocks frozen."""
    frozen = [(*settings.freeze, *phase.freeze) for phase in phases]
    steps = {names: compiled(freeze=names) for names in dict.fromkeys(frozen)}
    stages: list[Stage] = []
    first = 0
    seen = 0
    for phase, names in zip(phases, frozen):
        step_size = settings.step_size_of(phase, first)
        temperature = settings.temperature_of(phase, first)
        stages.append(Stage(phase, steps[names], step_size, temperature, first, seen, thin))
        first += phase.steps
        seen += phase.steps if phase.keep else 0
    varies = settings.schedule is not None or any(phase.step_size is not None for phase in phases)
    return Plan(tuple(stages), varies)
