"""Checks of a step's arguments, made before anything moves."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

from sympy import Expr, S, Symbol, lambdify

from recipe import Recipe
from recipe.algebra import entries
from recipe.arguments import number
from recipe.certificate import minimum_eigenvalue
from recipe.errors import RecipeError, did_you_mean
from recipe.symbols import Parameter, duration, step_size
from recipe.symbols import temperature as T

from .flow import Flow
from .program import Program
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
    known = [s.name for s in recipe.parameters]
    for name in parameters:
        if name not in known:
            raise RecipeError(where, f"'{name}' is not a parameter", do=did_you_mean(name, known))
    values = _values(recipe, parameters)
    for s, value in values.items():
        if s not in recipe.operators:
            _check_value(where, s, value)
    if recipe.operators:
        from . import operator_checks  # imports torch

        operator_checks.check(recipe, {**values, step_size: h, T: temperature}, where)
    for relation in recipe.requires:
        if not _holds(relation, values):
            named = ", ".join(f"{s} = {values[s]}" for s in sorted(relation.free_symbols, key=str))
            raise RecipeError(where, f"{relation} does not hold: {named}", do="Choose other parameters.")


def check_noise(recipe: Recipe, h: float, temperature: float, parameters: Mapping) -> None:
    """Refuse parameters at which the injected noise T D - supplied is not positive semidefinite."""
    if not entries(recipe.supplied) and recipe.D.is_diagonal():
        return
    values = _values(recipe, parameters)
    per_site = _at_some_sites({s: v for s, v in values.items() if _is_tensor(v) and s not in recipe.operators})
    if recipe.operators:
        from . import operator_checks  # imports torch

        per_site |= operator_checks.eigenvalues_of(recipe, values)
    budget = T * recipe.D - recipe.supplied
    value, where = minimum_eigenvalue(budget, points=POINTS, fixed={**values, **per_site, T: temperature, step_size: h})
    if value < -1e-12:
        raise RecipeError(
            f"{recipe.name}, supplied",
            f"T D - supplied has the eigenvalue {value:.3g} at {where}",
            do="The noise needs D >= 0, and the gradient may not supply more than T D: raise the friction.",
        )


def check_gamma_draws(
    recipe: Recipe, flows: Mapping[str, Flow], h: float, temperature: float, parameters: Mapping
) -> None:
    """Refuse a Gamma number whose shape is not positive at a Poisson number of 0: no law is then stationary."""
    smallest = {s: v.double().amin().item() if _is_tensor(v) else v for s, v in _values(recipe, parameters).items()}
    smallest |= {T: temperature, duration: h}
    for letter, drawn in _gamma_draws(flows):
        without_poisson = drawn.parameter.xreplace({d: S.Zero for d in drawn.parameter.atoms(Drawn)})
        shape = without_poisson.xreplace(smallest)
        if shape.is_nonpositive:
            raise RecipeError(
                f"{recipe.name}, piece {letter!r}",
                f"at temperature {temperature:g} the target is not "
                f"normalisable: a Gamma number would have the shape {float(shape):.3g}",
                do="Raise the prior weight, or the temperature.",
            )


def check_names(program: Program, *, state: Iterable, noise: Iterable | None, observe: Iterable) -> None:
    """Refuse a state, noise or observations with a missing name; `noise` is None if the step draws it."""
    required = {
        "state": [b.name for b in program.recipe.entries],
        "noise": [d.name for d in program.draws],
        "observe": list(program.observations),
    }
    for what, values in (("state", state), ("noise", noise), ("observe", observe)):
        missing = [] if values is None else [name for name in required[what] if name not in values]
        if missing:
            raise RecipeError(
                f"{program.recipe.name}, step",
                f"{what}[{missing[0]!r}] is missing",
                do=f"It takes {', '.join(name for names in required.values() for name in names)}.",
            )


def check_shapes(program: Program, state: Mapping, *, has_others: bool = False) -> None:
    """Refuse a state that is not dense or has no axis of chains, and sums over sites for a state without sites.

    `has_others`: whether other processes may hold sites.
    """
    where = f"{program.recipe.name}, step"
    for name, x in ((b.name, state[b.name]) for b in program.recipe.state if b.name in state):
        if not _is_tensor(x):
            raise RecipeError(where, f"{name} is a {type(x).__name__}", do="Pass a tensor (chains, *shape).")
        if x.is_nested or str(x.layout) != "torch.strided":
            raise RecipeError(where, f"{name} is no dense tensor, but {x.layout}", do="Write x.to_dense().")
        if not x.dim():
            raise RecipeError(where, f"{name} has no axis of chains: its shape is ()", do="Write x.unsqueeze(0), say.")
        if not x.numel() and program.sums_over_sites and not has_others:
            what = f"it sums over sites, and {name} of the shape {tuple(x.shape)} has none"
            raise RecipeError(where, what, do="Give it at least one chain and one site.")


def check_derivatives(program: Program, curvature: object, value: object) -> None:
    """Refuse a call without the Hessian diagonal, or the value of U, if the formulas of the step read it."""
    where = f"{program.recipe.name}, step"
    if program.energy:
        return
    if program.needs_curvature and curvature is None:
        raise RecipeError(where, "curvature is missing", do="Pass the Hessian diagonal of U, a function.")
    if program.needs_value and value is None:
        raise RecipeError(where, "value is missing", do="Pass U, a function of the target, one number per chain.")


def check_one_potential(recipe: Recipe, where: str) -> None:
    """Refuse a recipe of several potentials, for uses that need one U of the whole target."""
    if recipe.has_several_potentials:
        names = ", ".join(map(str, recipe.potentials))
        raise RecipeError(where, f"this is for one U of the target, and H has {names}", do="Write one U for their sum.")


def check_dtype(recipe: Recipe, state: Mapping, dtype: object) -> None:
    """Refuse a state of another dtype than the step was compiled for; None allows any dtype."""
    if dtype is not None and any(state[b.name].dtype != dtype for b in recipe.state):
        raise RecipeError(
            f"{recipe.name}, step",
            f"it was compiled for {dtype}, but the state is {state[recipe.state[0].name].dtype}",
            do="Convert the state, or compile without dtype.",
        )


def check_sizes(program: Program, state: Mapping, sizes: Sequence[int] | None) -> None:
    """Refuse sizes of tensors that do not add up to the sites of the target, in the scope "tensor"."""
    if program.scope != "tensor":
        return
    sites = state[program.recipe.targets[0].name].shape[-1]
    if not sizes or sum(sizes) != sites:
        raise RecipeError(
            f"{program.recipe.name}, step",
            f"sizes = {sizes} are not those of the tensors of a target with {sites} sites",
            do="Give the number of sites of each tensor, in their order.",
        )


def _values(recipe: Recipe, parameters: Mapping) -> dict[Parameter, Any]:
    """The values of all parameters, given or default; raises RecipeError for a parameter with neither."""
    values = {s: parameters.get(s.name, s.default) for s in recipe.parameters}
    for s, value in values.items():
        if value is None:
            raise RecipeError(f"{recipe.name}, step", f"parameter '{s.name}' has no default", do=f"Pass {s.name}=...")
    return values


def _check_value(where: str, s: Parameter, value: Any) -> None:
    low, high = _extremes(where, s, value)
    if not (isfinite(low) and isfinite(high)):
        raise RecipeError(where, f"'{s.name}' is not finite", do="Pass a finite number.")
    allowed = {"positive": low > 0, "nonnegative": low >= 0, "fraction": 0 <= low and high <= 1}
    if not allowed.get(s.sign, True):
        allowed_in_words = "between 0 and 1" if s.sign == "fraction" else s.sign
        worst = high if s.sign == "fraction" and low >= 0 else low
        raise RecipeError(
            where, f"'{s.name}' must be {allowed_in_words}, got {worst:g}", do=s.doc or f"It is a {s.sign} parameter."
        )


def _extremes(where: str, s: Parameter, value: Any) -> tuple[float, float]:
    """The smallest and the largest number of a parameter's value."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value), float(value)
    if _is_odd(value):
        kind = f"{value.dtype} {tuple(value.shape)}, {value.layout} on {value.device}"
        raise RecipeError(where, f"'{s.name}' is {kind}", do="Pass dense real numbers, on 'cpu' or 'cuda'.")
    if not hasattr(value, "min"):
        raise RecipeError(where, f"'{s.name}' is a number or a tensor, got {type(value).__name__}", do="Pass a float.")
    if not s.per and _is_tensor(value) and value.numel() > 1:
        raise RecipeError(
            where,
            f"'{s.name}' is one number, got shape {tuple(value.shape)}",
            do="Declare it with per=theta for one value per site.",
        )
    value = value.detach() if _is_tensor(value) else value
    return float(value.min()), float(value.max())


def _is_odd(value: Any) -> bool:
    """Whether a value is a tensor without a smallest number: sparse, complex, meta or empty."""
    if not _is_tensor(value):
        return False
    return str(value.layout) != "torch.strided" or value.is_complex() or value.is_meta or not value.numel()


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
    some = torch.arange(len(flat[0]), device=flat[0].device)[:: max(1, len(flat[0]) // SITES)]
    at = torch.cat([some, *(torch.stack([x.argmin(), x.argmax()]) for x in flat)])
    return {s: x[at].tolist() for s, x in zip(tensors, flat)}


def _gamma_draws(flows: Mapping[str, Flow]) -> Iterator[tuple[str, Drawn]]:
    for letter, flow in flows.items():
        for update in flow.updates.values():
            for drawn in update.atoms(Drawn):
                if isinstance(drawn.variate, GammaVariate):
                    yield letter, drawn
