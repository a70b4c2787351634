"""The plan of a run: its phases, each with its compiled step and its settings, as data that nothing changes."""

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

PROBES = 10_000  # how many values of a schedule are looked at before the first step
MANY = 1_000_000  # how many by which the schedules of two runs are told apart

Value = float | Callable[[int], float]


@dataclass(frozen=True)
class Setting:
    """The step size or the temperature of a phase, as a function of the step number k within it: value(origin + k).

    `what`: which of them; `value`: a number, or a function of the step number; `origin`: the steps of the run before
    the phase, where the function counts those too. Raises RecipeError where the function fails, or gives no such
    number.

    >>> Setting("step size", lambda k: 1/k, origin=10, where="sgld, sample")(0)
    0.1
    """

    what: str
    value: Value
    origin: int
    where: str

    def __call__(self, k: int) -> float:
        """The value at step k of the phase."""
        if type(self.value) is float:  # the step has checked it, and a long run asks often
            return self.value
        if not callable(self.value):
            return self._checked(self.value, k)
        here = self.origin + k
        return self._checked(self._answers(self.value, range(here, here + 1))[0], k)

    def over(self, some: range) -> np.ndarray:
        """The values at some steps of the phase, `(steps,)`, in float64: of a function, its answers in their order."""
        if not callable(self.value):
            return np.full(len(some), self(0))
        asked = range(self.origin + some.start, self.origin + some.stop, some.step)
        values = in_closed_form(self.value, asked)
        answers = self._answers(self.value, asked) if values is None else values.tolist()
        if self._are_fine(answers):
            return np.array(answers, dtype=np.float64)
        return np.array([self._checked(value, k) for value, k in zip(answers, some)])

    def _are_fine(self, answers: list) -> bool:
        """Whether they are plainly numbers that the setting may have."""
        if not set(map(type, answers)) <= {float} or not answers:
            return False
        least = min(answers)
        return math.isfinite(sum(answers)) and (least > 0 or (least == 0 and self.what == "temperature"))

    def _answers(self, schedule: Callable[[int], float], asked: range) -> list:
        """What the function says of some steps."""
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
        """The value at step k, if it is such a number."""
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
    """A phase as it is run: by `step`, from number `first` of the run on, at a step size and a temperature of each k.

    k counts the steps within the phase. Of the states that are kept at all, `seen` before the phase, every `thin`-th
    is.
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
        """The number of steps, from step k on, before the next one whose state is kept; all of them where none is."""
        return -(self.seen + k + 1) % self.thin if self.phase.keep else self.steps

    def settings(self, some: range) -> np.ndarray:
        """The step size and the temperature of some steps, `(steps, 2)`."""
        return np.stack((self.step_size.over(some), self.temperature.over(some))).T

    def probes(self) -> tuple[list[float], list[float]]:
        """The step sizes and the temperatures of many of the steps."""
        sizes, temperatures = self.settings(range(0, self.steps, 1 + self.steps // PROBES)).T.tolist()
        return sizes, temperatures

    def temperatures(self) -> set[float]:
        """The temperatures of all steps."""
        if not callable(self.temperature.value):
            return {self.temperature(0)}
        blocks = (range(k, min(k + PROBES, self.steps)) for k in range(0, self.steps, PROBES))
        return {T for some in blocks for T in set(self.temperature.over(some).tolist())}


@dataclass(frozen=True)
class Plan:
    """The stages of a run, one after another."""

    stages: tuple[Stage, ...]
    varies: bool  # whether step sizes are other than the one of the run

    @property
    def step(self) -> Step:
        """The step of the first stage."""
        return self.stages[0].step

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all stages, each once."""
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
        """Of so many states one is kept."""
        return self.stages[0].thin

    @property
    def draws(self) -> int:
        """The number of states that are kept."""
        return sum(stage.steps for stage in self.stages if stage.phase.keep) // self.thin

    def stage(self, number: int) -> Stage:
        """The stage that makes a step of the run."""
        return next(stage for stage in reversed(self.stages) if stage.first <= number)

    def temperature(self, number: int) -> float:
        """The temperature at a step of the run."""
        stage = self.stage(number)
        return stage.temperature(number - stage.first)

    @property
    def kept_temperature(self) -> float:
        """The temperature of all states that are kept; nan where they have no one temperature."""
        values = {stage.temperature.value for stage in self.stages if stage.phase.keep}
        value = values.pop()
        return math.nan if values or callable(value) else float(value)

    def since_stage(self, moved: int) -> int:
        """How many of so many steps are of the stage that made the last one."""
        return moved - self.stage(max(moved - 1, 0)).first

    def every_setting(self) -> list[float]:
        """The step sizes and temperatures of all steps, of each stage no more than a million."""
        values: list[float] = []
        for stage in self.stages:
            some = range(0, stage.steps, 1 + stage.steps // MANY)
            for setting in (stage.step_size, stage.temperature):
                values.extend(setting.over(some if callable(setting.value) else some[:1]))
        return values

    def check(self, parameters: Mapping) -> None:
        """Refuse settings and parameters that a step cannot be made with, at the extremes of every stage."""
        for stage in self.stages:
            sizes, temperatures = stage.probes()
            for h, T in itertools.product({min(sizes), max(sizes)}, {min(temperatures), max(temperatures)}):
                stage.step.check(h, temperature=T, **parameters)
                stage.step.check_budget(h, T, **parameters)


@dataclass(frozen=True)
class Settings:
    """What holds in every phase that does not say otherwise, whose functions count the steps of all phases.

    `schedule` stands for `step_size`, in units of time, where there is one; `freeze` is of all phases. Raises
    RecipeError for a schedule that is no function.
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
    """The step that `make` compiles of a recipe: once for all runs of the same recipe with the same choices."""
    try:
        hash((recipe, *choices.values()))
    except TypeError:  # pieces are a dict, a word may be a list
        return make(recipe, **choices)
    return _step_of(make, recipe, **choices)


@lru_cache(maxsize=32, typed=True)
def _step_of(make: Callable[..., Step], recipe: Recipe, **choices: Any) -> Step:
    """`make(recipe, **choices)`, of the last that were asked for."""
    return make(recipe, **choices)


def plan_of(phases: Sequence[Phase], settings: Settings, compiled: Callable[..., Step], thin: int) -> Plan:
    """The plan of these phases; `compiled(freeze=names)` makes the step in which these blocks are held still."""
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
