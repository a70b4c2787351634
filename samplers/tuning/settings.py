"""The settings that tuning chose, with reasons."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe.results import aligned


@dataclass(frozen=True)
class Settings:
    """Arguments of `samplers.sample` that `tune` chose, with a reason for each, printed by `print`.

    `arguments` are for `sample(recipe, energy, **settings.arguments)`; `reasons` are by name of the argument, chosen or
    not.

    >>> print(Settings({"step_size": 0.5}, "sgld", {"step_size": "0.5: 57 % are accepted"}))
    sgld, tuned
      step_size  0.5: 57 % are accepted
    """

    arguments: Mapping[str, Any]
    recipe: str
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join([f"{self.recipe}, tuned", *(f"  {line}" for line in aligned(self.reasons.items()))])

    __repr__ = __str__
