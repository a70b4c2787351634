"""Checks of the settings of a step, made before anything moves: step size, temperature, parameters, noise."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any

from sympy import Expr, S, Symbol, lambdify

from recipe import Recipe
from recipe.algebra import entries
from recipe.arguments import check_names, number
from recipe.certificate.definite import least_eigenvalue, minimum_eigenvalue, reads_other_sites
from recipe.errors import RecipeError
from recipe.symbols import Parameter, duration, step_size
from recipe.symbols import temperature as T

from .flow import Flow
from .variates import Drawn, GammaVariate

SITES = 2048  # number of sites of per-site parameters at which a matrix is checked
POINTS = 64  # number of values of the blocks at which a matrix is checked


def check_settings(recipe: Recipe, h: float, temperature: float, parameters: Mapping, *, needs_heat: bool) -> None:
    """Refuse a step size, temperature or parameter outside of its range, and relations between parameters that fail.

    `needs_heat`: whether the step is undefined at temperature 0.
    """
    where = f"{recipe.name}, step"
    positive = f"the step size is a positive number, got {h!r}"
    number(where, "the step size", h, above=0, what=positive, do="It is in units of time.")
    number(where, "the temperature", temperature, least=0, do="1 is the target itself.")
    if temperature == 0 and needs_heat:
        raise RecipeError(where, "a piece has no limit at temperature 0", do="Take a small temperature > 0.")
    check_names(where, parameters, [s.name for s in recipe.parameters])
    values = _values(recipe, parameters)
    for s, value in values.items():
        if s not in recipe.operators:
            _check_value(where, s, value)
    if recipe.operators:
        from . import operator_checks  # imports torch

        operator_checks.check(recipe, {**values, step_size: h, T: temperature}, where)
    for relation in recipe.requires:
        if not _holds(relation, values):
            numbers = ", ".join(f"{s} = {values[s]}" for s in sorted(relation.free_symbols, key=str))
            raise RecipeError(where, f"{relation} does not hold: {numbers}", do="Choose other parameters.")


def check_noise(recipe: Recipe, h: float, temperature: float, parameters: Mapping) -> None:
    """Refuse parameters at which the injected noise T D - supplied is not positive semidefinite."""
    if not entries(recipe.supplied) and recipe.D.is_diagonal():
        return
    values = _values(recipe, parameters)
    per_site = _at_some_sites({s: v for s, v in values.items() if _is_tensor(v) and s not in recipe.operators})
    if recipe.operators:
        from . import operator_checks  # imports torch

        per_site |= operator_checks.eigenvalues_of(recipe, values)
    fixed = {**values, **per_site, T: temperature, step_size: h}
    if reads_other_sites(recipe.D) and not entries(recipe.supplied):
        value, where = least_eigenvalue(recipe, points=POINTS, fixed=fixed)
    else:
        value, where = minimum_eigenvalue(T * recipe.D - recipe.supplied, points=POINTS, fixed=fixed)
    if value < -1e-12:
        what = f"T D - supplied has the eigenvalue {value:.3g} at {where}"
        do = "The noise needs D >= 0, and the gradient may not supply more than T D: raise the friction."
        raise RecipeError(f"{recipe.name}, supplied", what, do=do)


def check_gamma_draws(
    recipe: Recipe, flows: Mapping[str, Flow], h: float, temperature: float, parameters: Mapping
) -> None:
    """Refuse a Gamma number whose shape is not positive at a Poisson number of 0: no law is then stationary."""
    smallest = {s: v.double().amin().item() if _is_tensor(v) else v for s, v in _values(recipe, parameters).items()}
    smallest |= {T: temperature, duration: h}
    drawn = [(letter, x) for letter, flow in flows.items() for e in flow.updates.values() for x in e.atoms(Drawn)]
    for letter, x in drawn:
        shape = x.parameter.xreplace({d: S.Zero for d in x.parameter.atoms(Drawn)}).xreplace(smallest)
        if isinstance(x.variate, GammaVariate) and shape.is_nonpositive:
            what = f"at temperature {temperature:g} the target is not normalisable"
            raise RecipeError(
                f"{recipe.name}, piece {letter!r}",
                f"{what}: a Gamma number would have the shape {float(shape):.3g}",
                do="Raise the prior weight, or the temperature.",
            )


def check_one_potential(recipe: Recipe, where: str) -> None:
    """Refuse a recipe of several potentials, for uses that need one U of the whole target."""
    if recipe.has_several_potentials:
        names = ", ".join(map(str, recipe.potentials))
        raise RecipeError(where, f"this is for one U of the target, and H has {names}", do="Write one U for their sum.")


def check_one_vector(recipe: Recipe, where: str, *, several: str, ends: str, do: str) -> None:
    """Refuse a target that is not one vector block without ends; `several`, `ends`: what is wrong with these."""
    if len(recipe.targets) > 1 and all(b.is_vector for b in recipe.targets):
        what = f"the target is the blocks {', '.join(b.name for b in recipe.targets)}, {several}"
    elif not recipe.target_is_vector:
        what = "the target is made of explicit coordinates"
    elif not recipe.targets[0].domain.is_real:
        what = f"{recipe.targets[0]} has ends, {ends}: it is {recipe.targets[0].domain.in_words}"
    else:
        return
    raise RecipeError(where, what, do=do)


def _values(recipe: Recipe, parameters: Mapping) -> dict[Parameter, Any]:
    """The values of all parameters, given or default; raises RecipeError for a parameter with neither."""
    values = {s: parameters.get(s.name, s.default) for s in recipe.parameters}
    for s, value in values.items():
        if value is None:
            raise RecipeError(f"{recipe.name}, step", f"parameter '{s.name}' has no default", do=f"Pass {s.name}=...")
    return values


def _check_value(where: str, s: Parameter, value: Any) -> None:
    """Refuse a value that is no finite number or tensor, or outside of the parameter's range."""
    if _is_tensor(value):
        if str(value.layout) != "torch.strided" or value.is_complex() or value.is_meta or not value.numel():
            kind = f"{value.dtype} {tuple(value.shape)}, {value.layout} on {value.device}"
            raise RecipeError(where, f"'{s.name}' is {kind}", do="Pass dense real numbers, on 'cpu' or 'cuda'.")
        if not s.per and value.numel() > 1:
            what = f"'{s.name}' is one number, got shape {tuple(value.shape)}"
            raise RecipeError(where, what, do="Declare it with per=theta for one value per site.")
        value = value.detach()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low = high = float(value)
    elif hasattr(value, "min"):
        low, high = float(value.min()), float(value.max())
    else:
        what = f"'{s.name}' is a number or a tensor, got {type(value).__name__}"
        raise RecipeError(where, what, do="Pass a float.")
    if not (isfinite(low) and isfinite(high)):
        raise RecipeError(where, f"'{s.name}' is not finite", do="Pass a finite number.")
    allowed = {"positive": low > 0, "nonnegative": low >= 0, "fraction": 0 <= low and high <= 1}
    if not allowed.get(s.sign, True):
        values = "between 0 and 1" if s.sign == "fraction" else s.sign
        worst = high if s.sign == "fraction" and low >= 0 else low
        do = s.doc or f"It is a {s.sign} parameter."
        raise RecipeError(where, f"'{s.name}' must be {values}, got {worst:g}", do=do)


def _is_tensor(value: object) -> bool:
    return hasattr(value, "detach")


def _holds(relation: Expr, values: Mapping[Symbol, Any]) -> bool:
    """Whether a relation between parameters holds, at every site."""
    symbols, function = _function(relation)
    holds = function(*(values[s] for s in symbols))
    return bool(holds.all()) if hasattr(holds, "all") else bool(holds)


@lru_cache(maxsize=128)
def _function(relation: Expr) -> tuple[list[Symbol], Callable]:
    """The symbols of a relation, in order, and the relation as a function of their values; cached for every step."""
    symbols = sorted(relation.free_symbols, key=str)
    return symbols, lambdify(symbols, relation, "math")


def _at_some_sites(tensors: Mapping[Parameter, Any]) -> dict[Parameter, list[float]]:
    """The values of per-site parameters at about SITES sites, including the extremes of each parameter."""
    if not tensors:
        return {}
    import torch  # only where a parameter is a tensor

    flat = [x.detach().double().reshape(-1) for x in torch.broadcast_tensors(*tensors.values())]
    sites = torch.arange(len(flat[0]), device=flat[0].device)[:: max(1, len(flat[0]) // SITES)]
    at = torch.cat([sites, *(torch.stack([x.argmin(), x.argmax()]) for x in flat)])
    return {s: x[at].tolist() for s, x in zip(tensors, flat)}
