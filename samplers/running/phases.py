"""The phases of a run: burn-in, exploration, refinement, as data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe.arguments import as_tuple, integer, is_number
from recipe.errors import RecipeError, of_known_arguments
from recipe.symbols import Block

STEPS = 1_000  # steps of a run whose length is not given


@dataclass(frozen=True)
class Phase:
    """Consecutive steps with settings of their own; None stands for the setting of the run.

    `temperature` and `step_size`, in units of time, are numbers or functions of the step number, counted from the start
    of the phase; `freeze` names the blocks and adapted quantities that do not move; draws are kept unless `keep` is
    False. `parameters`: numbers, or functions of the step number, in place of those of the run, by name; where draws
    are kept, of parameters that H does not read. Raises RecipeError for steps < 1, a negative temperature and a step
    size that is not positive.

    >>> Phase(steps=500, temperature=0.0, freeze=("xi",))
    Phase(steps=500, temperature=0.0, step_size=None, freeze=('xi',), keep=True, parameters={})
    """

    steps: int
    temperature: float | Callable[[int], float] | None = None
    step_size: float | Callable[[int], float] | None = None
    freeze: tuple = ()
    keep: bool = True
    parameters: Mapping[str, float | Callable[[int], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = integer("Phase", "steps", self.steps, least=1, do="Leave an empty phase out.")
        object.__setattr__(self, "steps", steps)
        _check_setting("Phase, temperature", self.temperature, zero=True)
        _check_setting("Phase, step_size", self.step_size, zero=False)
        if not isinstance(self.keep, bool):
            what = f"it is True or False, got {self.keep!r}"
            raise RecipeError("Phase, keep", what, do="Pass keep=False to drop the draws.")
        if not isinstance(self.parameters, Mapping):
            do = 'Write {"gamma": lambda k: 1 + k / 100}.'
            raise RecipeError("Phase, parameters", f"they are a dict by name, got {self.parameters!r}", do=do)
        for name, value in self.parameters.items():
            if not callable(value) and not is_number(value):
                what = f"it is a number or a function of the step number, got {value!r}"
                raise RecipeError(f"Phase, parameters[{name!r}]", what, do="Pass a float.")
        object.__setattr__(self, "freeze", names_of(self.freeze, "Phase, freeze"))


_of_phases = (
    "It has steps, temperature, step_size, freeze, keep and parameters={...}; other parameters are those of the run."
)
Phase.__init__ = of_known_arguments("Phase", _of_phases)(Phase.__init__)  # type: ignore[method-assign]


def phases_of(phases: Sequence[Phase] | None, *, warmup: int, steps: int, thin: int, where: str) -> tuple[Phase, ...]:
    """The phases of a run: those of the caller, or the warmup and the steps.

    >>> phases_of(None, warmup=0, steps=10, thin=1, where="sample")
    (Phase(steps=10, temperature=None, step_size=None, freeze=(), keep=True, parameters={}),)
    """
    if phases is None:
        if thin > steps:
            raise RecipeError(where, f"thin = {thin} keeps nothing of {steps} steps", do="Choose thin <= steps.")
        return (Phase(warmup, keep=False), Phase(steps)) if warmup else (Phase(steps),)
    if warmup or steps != STEPS:
        raise RecipeError(where, "phases stand for warmup and steps", do="Give one or the other.")
    if not isinstance(phases, (list, tuple)) or not phases or not all(isinstance(phase, Phase) for phase in phases):
        what = f"phases are a list of Phase, got {phases!r}"
        raise RecipeError(where, what, do="Write [Phase(steps=..., ...), ...].")
    if sum(phase.steps for phase in phases if phase.keep) < thin:
        raise RecipeError(where, f"thin = {thin} keeps nothing of the phases", do="Choose a smaller thin.")
    return tuple(phases)


def names_of(blocks: Any, where: str) -> tuple[str, ...]:
    """The names of one block or several, given as blocks or names; a set is sorted.

    >>> names_of({"xi", "V"}, "freeze")
    ('V', 'xi')
    """
    unordered = isinstance(blocks, (set, frozenset))
    entries = blocks if unordered else as_tuple(blocks)
    if not all(isinstance(b, (str, Block)) for b in entries):
        raise RecipeError(where, f"it names blocks and adapted quantities, got {blocks!r}", do='Write ("V", "xi").')
    names = map(str, entries)
    return tuple(sorted(names)) if unordered else tuple(names)


def _check_setting(where: str, value: Any, *, zero: bool) -> None:
    """Refuse a value that is neither None, a function, a number > 0, nor, if `zero`, 0."""
    if value is None or callable(value):
        return
    if not is_number(value) or value < 0 or (value == 0 and not zero):
        allowed = ">= 0" if zero else "> 0"
        what = f"it is a number {allowed} or a function of the step number, got {value!r}"
        raise RecipeError(where, what, do="Pass a float.")
