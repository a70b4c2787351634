"""The heat of gradient noise: by how much it raises the temperature."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sympy import Float

from recipe import Recipe
from recipe.symbols import step_size

from .averages import Average


class Heating(NamedTuple):
    """The temperature that gradients of U of variance 1 add, and the one that the supplied noise takes."""

    per_variance: float
    supplied: float


def heat_of(recipe: Recipe, parameters: Mapping[str, Any], h: float, variance: Average) -> Average | str:
    """The heat of gradients of U of this variance V_g, less what is supplied; as text, the reason why it is unknown.

    >>> from samplers import SGHMC, SGNHT
    >>> heat_of(SGHMC, {"C": 2.0}, 0.1, Average(60.0, 4.0, 9.0))
    Average(value=1.5, error=0.1, freedom=9.0)
    >>> heat_of(SGNHT, {}, 0.1, Average(60.0, 4.0, 9.0))
    'a thermostat takes it away'
    """
    heating = heating_of(recipe, parameters, h)
    if isinstance(heating, str):
        return heating
    value = heating.per_variance * variance.value - heating.supplied
    return Average(value, heating.per_variance * variance.error, variance.freedom)


def heating_of(recipe: Recipe, parameters: Mapping[str, Any], h: float) -> Heating | str:
    """How gradient noise heats a recipe at a step size h; as text, the reason why that is unknown.

    (h c^2 V_g/2 - supplied)/D, of the block in which the gradient enters by a coefficient c: in dx = -c grad U dt + ...
    its noise is that of a diffusion h c^2 V_g/2, beside T D - supplied, and D is the friction. `parameters`: numbers by
    name; values of other kinds are ignored.
    """
    if recipe.thermostats:
        return "a thermostat takes it away"
    enters = recipe.momenta or recipe.targets
    if len(enters) > 1 or len(recipe.targets) > 1:
        return "there are explicit coordinates"
    i, j = (recipe.state.index(b) for b in (enters[0], recipe.targets[0]))
    known = {s: parameters.get(s.name, s.default) for s in recipe.parameters}
    values = {s: Float(x) for s, x in known.items() if isinstance(x, (int, float))} | {step_size: Float(h)}
    c = (recipe.D + recipe.Q)[i, j].xreplace(values)
    friction = recipe.D[i, i].xreplace(values)
    supplied = recipe.supplied[i, i].xreplace(values)
    if not friction:
        return "there is no friction"
    if not all(e.is_number for e in (c, friction, supplied)):
        return "the friction depends on the state"
    return Heating(h * float(c) ** 2 / 2 / float(friction), float(supplied) / float(friction))
