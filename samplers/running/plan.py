"""The plan of a run: its phases, each with a compiled step and settings, as immutable data."""

import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from integrators.step import Step
from recipe import Recipe
from recipe.arguments import is_number
from recipe.errors import RecipeError
from recipe.representative import representative

from .phases import Phase
from .schedules import in_closed_form

PROBES = 10_000  # values of a schedule that are checked before the first step
MANY = 1_000_000  # values of a schedule in the fingerprint of a run, at most

Value = float | Callable[[int], float]


@dataclass(frozen=True)
class Setting:
    """A setting of a phase, as a function of the step number k within it: value(origin + k).

    `what`: "step size", "temperature", or a parameter's name, of any number; `value`: a number, or a function of the
    step number; `origin`: the number of the phase's first step in the count of the function. Raises RecipeError where
    the function fails, or returns no number > 0, or >= 0 for a temperature.

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
        number = self.origin + k
        return self._checked(self._answers(self.value, range(number, number + 1))[0], k)

    def over(self, steps: range) -> np.ndarray:
        """The values at the `steps` of the phase, `(steps,)` in float64."""
        if not callable(self.value):
            return np.full(len(steps), self(0))
        numbers = range(self.origin + steps.start, self.origin + steps.stop, steps.step)
        values = in_closed_form(self.value, numbers)
        answers = self._answers(self.value, numbers) if values is None else values.tolist()
        if answers and set(map(type, answers)) <= {float} and math.isfinite(sum(answers)):  # long runs have many
            least = min(answers)
            if least > 0 or (least == 0 and self.what == "temperature") or self.is_parameter:
                return np.array(answers, dtype=np.float64)
        return np.array([self._checked(value, k) for value, k in zip(answers, steps)])

    def _answers(self, schedule: Callable[[int], float], numbers: range) -> list:
        answers: list = []
        try:
            for k in numbers:
                answers.append(schedule(k))
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            what = f"the schedule of the {self.what} fails at step {numbers[len(answers)] - self.origin}: {error}"
            raise RecipeError(self.where, what, do="It is a function of k.") from error
        return answers

    def _checked(self, value: Any, k: int) -> float:
        """The value at step k as a float; refused outside of the range of the setting."""
        zero = self.what == "temperature"
        if self.is_parameter and is_number(value, numbers.Real):
            return float(value)
        if not is_number(value, numbers.Real) or value < 0 or (value == 0 and not zero):
            what = f"the schedule gives the {self.what} {value!r} at step {k}"
            allowed = "" if self.is_parameter else " >= 0" if zero else " > 0"
            raise RecipeError(self.where, what, do=f"Return a number{allowed}.")
        return float(value)

    @property
    def is_parameter(self) -> bool:
        """Whether the setting is a parameter of the recipe: the step checks its range."""
        return self.what not in ("step size", "temperature")


@dataclass(frozen=True)
class Stage:
    """A phase with its compiled `step`, and its step size and temperature at each step k of the phase.

    `first`: the number of steps before the phase; `kept_before`: the number of those in phases that keep draws;
    `thin`: the number of steps between two kept states; `parameters`: those of the phase's own, by name.
    """

    phase: Phase
    step: Step
    step_size: Setting
    temperature: Setting
    first: int
    kept_before: int
    thin: int
    parameters: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """The number of steps of the phase."""
        return self.phase.steps

    def until_kept(self, k: int) -> int:
        """The number of steps, from step k on, before a step whose state is kept; all steps where none is kept."""
        return -(self.kept_before + k + 1) % self.thin if self.phase.keep else self.steps

    def settings(self, steps: range) -> np.ndarray:
        """The step size and the temperature at the `steps`, `(steps, 2)`."""
        return np.stack((self.step_size.over(steps), self.temperature.over(steps))).T

    def probes(self) -> tuple[list[float], list[float]]:
        """The step sizes and the temperatures at up to `PROBES` steps, evenly spaced."""
        sizes, temperatures = self.settings(range(0, self.steps, 1 + self.steps // PROBES)).T.tolist()
        return sizes, temperatures

    def values(self, k: int) -> dict[str, float]:
        """The phase's own parameters at step k."""
        return {name: setting(k) for name, setting in self.parameters.items()}

    def extremes(self) -> list[dict[str, float]]:
        """The least and the largest values of the phase's own parameters, at up to `PROBES` steps."""
        steps = range(0, self.steps, 1 + self.steps // PROBES)
        over = {name: setting.over(steps) for name, setting in self.parameters.items()}
        corners = [{name: float(end(x)) for name, x in over.items()} for end in (np.min, np.max)]
        return corners if over else [{}]

    def temperatures(self) -> set[float]:
        """The set of the temperatures of all steps."""
        if not callable(self.temperature.value):
            return {self.temperature(0)}
        blocks = (range(k, min(k + PROBES, self.steps)) for k in range(0, self.steps, PROBES))
        return {T for block in blocks for T in set(self.temperature.over(block).tolist())}


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
    def has_parameters(self) -> bool:
        """Whether a phase has parameters of its own."""
        return any(stage.parameters for stage in self.stages)

    @property
    def length(self) -> int:
        """The number of steps."""
        return sum(stage.steps for stage in self.stages)

    @property
    def kept_stages(self) -> list[Stage]:
        """The stages whose states are kept."""
        return [stage for stage in self.stages if stage.phase.keep]

    @property
    def warmup(self) -> int:
        """The number of steps before the first phase whose states are kept."""
        return self.kept_stages[0].first

    @property
    def thin(self) -> int:
        """The number of steps between two kept states."""
        return self.stages[0].thin

    @property
    def draws(self) -> int:
        """The number of states that are kept."""
        return sum(stage.steps for stage in self.kept_stages) // self.thin

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
        values = {stage.temperature.value for stage in self.kept_stages}
        value = values.pop()
        return math.nan if values or callable(value) else float(value)

    def since_stage(self, steps: int) -> int:
        """The number of steps in the present stage, after the first `steps` steps of the run."""
        return steps - self.stage(max(steps - 1, 0)).first

    def every_setting(self) -> list[dict[str, Any]]:
        """Step size, temperature and parameters of each stage by name: numbers, of schedules at most `MANY` values."""
        settings = []
        for stage in self.stages:
            steps = range(0, stage.steps, 1 + stage.steps // MANY)
            by_name = {"step_size": stage.step_size, "temperature": stage.temperature, **stage.parameters}
            settings.append(
                {name: x.over(steps) if callable(x.value) else x.over(steps[:1])[0] for name, x in by_name.items()}
            )
        return settings

    def check(self, parameters: Mapping) -> None:
        """Refuse settings and parameters that a step refuses, at the extremes of every stage."""
        for stage in self.stages:
            sizes, temperatures = stage.probes()
            ends = {min(sizes), max(sizes)}, {min(temperatures), max(temperatures)}
            for h, T, values in itertools.product(*ends, stage.extremes()):
                stage.step.check(h, temperature=T, **{**parameters, **values})
                stage.step.check_budget(h, T, **{**parameters, **values})


def step_of(make: Callable[..., Step], recipe: Recipe, **choices: Any) -> Step:
    """The step `make(recipe, **choices)`, cached for recipes and choices with a hash."""
    try:
        hash((recipe, *choices.values()))
    except TypeError:  # a dict of pieces, or a word as a list
        return make(recipe, **choices)
    return _step_of(make, representative(recipe), **choices)


@lru_cache(maxsize=32, typed=True)
def _step_of(make: Callable[..., Step], recipe: Recipe, **choices: Any) -> Step:
    return make(recipe, **choices)


def plan_of(phases: Sequence[Phase], compiled: Callable[..., Step], thin: int, where: str, **of_run: Any) -> Plan:
    """The plan of `phases`; `compiled(freeze=names)` compiles the step with the named blocks frozen.

    `of_run`: `step_size` and `temperature` of phases without their own; their functions count the steps of the run.
    """

    def setting(name: str, phase: Phase, first: int) -> Setting:
        of_phase = getattr(phase, name)
        value, origin = (of_run[name], first) if of_phase is None else (of_phase, 0)
        return Setting(name.replace("_", " "), value, origin, where)

    steps = {names: compiled(freeze=names) for names in dict.fromkeys(phase.freeze for phase in phases)}
    stages: list[Stage] = []
    first = 0
    kept = 0
    for phase in phases:
        h, T = setting("step_size", phase, first), setting("temperature", phase, first)
        parameters = {name: Setting(name, value, 0, where) for name, value in phase.parameters.items()}
        stages.append(Stage(phase, steps[phase.freeze], h, T, first, kept, thin, parameters))
        first += phase.steps
        kept += phase.steps if phase.keep else 0
    varies = callable(of_run["step_size"]) or any(phase.step_size is not None for phase in phases)
    return Plan(tuple(stages), varies)
