"""The phases of a run: burn-in, exploration, refinement, as data."""

from collections.abc import Callable
from dataclasses import dataclass

from recipe.errors import RecipeError


@dataclass(frozen=True)
class Phase:
    """Some steps under settings of their own; what is None is as in the rest of the run.

    `temperature` and `step_size` are numbers or functions of the step number, counted from the start of the run; `freeze`
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
        given = (self.freeze,) if not isinstance(self.freeze, (tuple, list)) else self.freeze
        object.__setattr__(self, "freeze", tuple(map(str, given)))
