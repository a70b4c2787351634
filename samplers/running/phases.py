"""The phases of a run: burn-in, exploration, refinement, as data."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from recipe.errors import RecipeError
from recipe.symbols import Block


@dataclass(frozen=True)
class Phase:
    """Some steps under settings of their own; what is None is as in the rest of the run.

    `temperature` and `step_size` are numbers or functions of the step number, counted from the start of the phase; `freeze`
    names blocks and adapted quantities that stay as they are; draws are kept unless `keep` is False.

    >>> Phase(steps=500, temperature=0.0, freeze=("xi",))
    Phase(steps=500, temperature=0.0, step_size=None, freeze=('xi',), keep=True)
    """

    steps: int
    temperature: float | Callable[[int], float] | None = None
    step_size: float | Callable[[int], float] | None = None
    freeze: tuple = ()
    keep: bool = True

    def __post_init__(self):
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise RecipeError("Phase", f"steps is an integer >= 1, got {self.steps!r}", do="Leave an empty phase out.")
        for name, least in (("temperature", 0.0), ("step_size", 5e-324)):
            check_setting(getattr(self, name), least, f"Phase, {name}")
        if not isinstance(self.keep, bool):
            raise RecipeError(
                "Phase, keep", f"it is True or False, got {self.keep!r}", do="Pass keep=False to drop the draws."
            )
        object.__setattr__(self, "freeze", names_of(self.freeze, "Phase, freeze"))


def check_setting(value, least, where) -> None:
    """Refuse what is neither None, nor a function, nor a finite number of at least `least`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (value is None or callable(value) or number and least <= value < math.inf):
        allowed = ">= 0" if least == 0 else "> 0"
        raise RecipeError(
            where, f"it is a number {allowed} or a function of the step number, got {value!r}", do="Pass a float."
        )


def names_of(given, where) -> tuple[str, ...]:
    """The names of one block or of several."""
    many = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
    if not all(isinstance(b, (str, Block)) for b in many):
        raise RecipeError(where, f"it names blocks and adapted quantities, got {given!r}", do='Write ("V", "xi").')
    return tuple(sorted(map(str, many))) if isinstance(given, (set, frozenset)) else tuple(map(str, many))
