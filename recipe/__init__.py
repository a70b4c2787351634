"""Declare a sampler by H, D and Q; sympy derives its SDE and proves its stationary law. Needs no torch."""

from .converse import Recovery, recover
from .declaration import Recipe
from .energy import Energy
from .errors import RecipeError
from .pieces import euler, force, friction, noise, numerical
from .proof import Certificate
from .symbols import function, grad, nonnegative, positive, potential, real, scalar, total, vector

__all__ = ["Certificate", "Energy", "Recipe", "RecipeError", "Recovery", "euler", "force", "friction", "function", "grad",
           "noise", "nonnegative", "numerical", "positive", "potential", "real", "recover", "scalar", "total", "vector"]
