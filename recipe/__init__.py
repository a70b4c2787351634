"""Declaration of samplers by H, D and Q; sympy derives the SDE and proves the stationary law, without torch."""

# a package of sde-recipe
from . import neighbours as neighbours
from .converse import Recovery, recover
from .data_totals import data_total, datum
from .declaration import Recipe
from .declared import (
    fraction,
    nonnegative,
    num_data,
    observe,
    positive,
    real,
    scalar,
    step_number,
    step_size,
    temperature,
    vector,
)
from .energy import Energy
from .ensembles import outer, particles
from .errors import RecipeError
from .involutions import flip, involution, reflect
from .laws import by_category
from .maps import mapped
from .operators import logdet, operator
from .pieces import euler, force, friction, gibbs, kick, noise, numerical, propose, refresh, spring
from .results import Certificate
from .spheres import project
from .swaps import swap
from .symbols import adapted, copies, function, grad, potential, total

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "Energy",
    "Recipe",
    "RecipeError",
    "Recovery",
    "adapted",
    "by_category",
    "data_total",
    "datum",
    "euler",
    "flip",
    "force",
    "fraction",
    "friction",
    "gibbs",
    "function",
    "involution",
    "grad",
    "kick",
    "mapped",
    "noise",
    "nonnegative",
    "num_data",
    "numerical",
    "observe",
    "logdet",
    "operator",
    "outer",
    "particles",
    "positive",
    "copies",
    "potential",
    "project",
    "propose",
    "real",
    "reflect",
    "recover",
    "refresh",
    "scalar",
    "spring",
    "step_number",
    "step_size",
    "swap",
    "temperature",
    "total",
    "vector",
]
