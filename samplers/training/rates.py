"""Settings of a parameter group: the step size and parameters that follow from lr and momentum, checked."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from sympy import Symbol, lambdify

from integrators import operator_checks, operators
from integrators.adapting import adapting
from integrators.step import Step
from recipe import Recipe
from recipe.arguments import integer, number
from recipe.errors import RecipeError
from recipe.scheme import Scheme
from recipe.symbols import step_size

from .tensors import precise

SETTINGS = ("lr", "momentum", "step_size", "num_data", "temperature", "weight_decay")
RATES = ("lr", "momentum", "num_data")  # arguments of the conversion of a learning rate
CONVERSION = "lr, momentum"
USUAL_MOMENTUM = 0.9


class Rates(NamedTuple):
    """The step size of a group in units of time, its temperature, and the recipe's parameters by name."""

    step_size: float
    temperature: float
    parameters: dict[str, Any]


def setting(step: Step, where: str, group: Mapping[str, Any], *, budget: bool = True) -> Rates:
    """Step size, temperature and parameters of a group, given or converted from lr and momentum.

    The recipe's formulas convert; without a conversion the step size is lr/num_data, or sqrt(lr/num_data) if the recipe
    has momenta. `budget`: whether to check that the noise supplied by the gradient is within the noise of the step.
    Raises RecipeError, which `where` begins, for settings that contradict each other, or that allow no step.

    >>> import integrators
    >>> from samplers import SGLD
    >>> group = dict.fromkeys(SETTINGS) | {"lr": 0.5, "num_data": 10, "temperature": 1.0, "weight_decay": 0.0}
    >>> setting(integrators.compile(SGLD), "sgld, Optimizer", group)
    Rates(step_size=0.05, temperature=1.0, parameters={})
    """
    _check(where, group)
    temperature = group["temperature"]
    values = {name: group[name] for name in step.parameters if group.get(name) is not None}
    if group["lr"] == 0:  # from a schedule: the weights stand still
        return Rates(0.0, temperature, values)
    h, converted = _converted(step, where, group)
    for name in converted.keys() & values.keys():
        what = f"{name} is given, and follows from lr and momentum too"
        raise RecipeError(where, what, do=f"Drop it, or give step_size and {name}.")
    parameters = operator_checks.read(step.recipe, converted | values)
    for name in adapting(parameters):
        what = f"the operator {name} adapts to the chains of samplers.sample alone"
        raise RecipeError(where, what, do=f"Show it a run by observe(theta, gradient), and pass {name}.value.")
    for M in step.recipe.fields:
        do = f'Sample with samplers.sample, or declare operator("{M}"), a constant one.'
        raise RecipeError(where, f"the operator {M} moves with {M.at}, and is not checked here", do=do)
    step.check(h, temperature=temperature, **parameters)
    if budget:
        step.check_budget(h, temperature, **parameters)
    return Rates(h, temperature, parameters)


def _check(where: str, group: Mapping[str, Any]) -> None:
    num_data, lr, momentum = group["num_data"], group["lr"], group["momentum"]
    what = f"num_data is the number of data, a positive integer, got {num_data!r}"
    do = "A mean loss must be scaled up to the whole data. Pass num_data=len(X), the number of rows in the data."
    integer(where, "num_data", num_data, least=1, most=2**63 - 1, what=what, do=do)
    if (lr is None) == (group["step_size"] is None) or lr is None and momentum is not None:
        what = f"lr = {lr!r}, momentum = {momentum!r}, step_size = {group['step_size']!r}"
        raise RecipeError(where, what, do=f"Give lr, and momentum ({USUAL_MOMENTUM} if left out), or step_size.")
    for name in ("weight_decay", "lr", "momentum"):
        if group[name] is not None or name == "weight_decay":
            number(where, name, group[name], least=0, what=f"{name} = {group[name]!r}", do="Give a number >= 0.")
    if momentum is not None and momentum >= 1:
        raise RecipeError(where, f"momentum = {momentum!r}", do="Give a number below 1.")
    largest = min((torch.finfo(precise(p.dtype)).max for p in group.get("params", ())), default=math.inf)
    if num_data * group["weight_decay"] > largest:
        what = f"num_data times weight_decay = {group['weight_decay']!r} is beyond the numbers of the parameters"
        raise RecipeError(where, what, do="1/(num_data weight_decay) is the variance of the prior.")


def _converted(step: Step, where: str, group: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """The step size and parameters converted from lr and momentum, or the step size as given."""
    if group["lr"] is None:
        return group["step_size"], {}
    if group["momentum"] is not None and CONVERSION not in step.recipe.conversions:
        do = "Drop momentum (in a schedule: cycle_momentum=False), and give its parameters."
        raise RecipeError(where, "the recipe has no conversion of a momentum", do=do)
    rates = {name: group[name] for name in RATES}
    if rates["momentum"] is None:
        rates["momentum"] = USUAL_MOMENTUM
    try:
        values = {name: float(f(**rates)) for name, f in _conversion(step.recipe, step.scheme).items()}
    except (ValueError, ZeroDivisionError):  # a rate out of its range, which `convert` refuses
        values = step.recipe.convert(step.scheme, **rates)
    return values.pop("step_size"), values


@lru_cache(maxsize=32)
def _conversion(recipe: Recipe, scheme: Scheme) -> dict[str, Callable[..., float]]:
    """The conversion of lr and momentum as functions of floats: sympy is too slow for every step."""
    formulas = recipe.learning_rate(scheme)
    symbols = {s.name: s for formula in formulas.values() for s in formula.free_symbols}
    order = [symbols.get(name, Symbol(name)) for name in RATES]
    return {
        "step_size" if s == step_size else s.name: lambdify(order, formula, "math") for s, formula in formulas.items()
    }


def in_words(values: Mapping[str, Any]) -> str:
    """Text of numbers by name; tensors by their shape, operators by their structure."""

    def word(x: Any) -> str:
        if isinstance(x, operators.Operator):
            return repr(x)
        return f"of shape {tuple(x.shape)}" if torch.is_tensor(x) and x.dim() else f"{float(x):.3g}"

    return ", ".join(f"{name} {word(x)}" for name, x in values.items())
