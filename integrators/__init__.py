"""Cut the SDE of a recipe into pieces, solve each, and compose them by a splitting word into a step."""

# a package of sde-recipe
import recipe.neighbours  # noqa: F401, refuses a recipe whose own first file is not ours
from recipe import __version__ as __version__

from .compiler import compile
from .metropolis import metropolised
from .step import Step

__all__ = ["Step", "compile", "metropolised"]
