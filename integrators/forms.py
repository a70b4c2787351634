"""Arguments of a step: names, dtype, device and shapes of its tensors, checked the same on every backend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from recipe import Recipe
from recipe.errors import RecipeError

from . import operator_checks
from .kernels.addresses import check_form
from .program import Program

FLOATS = torch.float32, torch.float64


def check_arguments(
    program: Program,
    state: Mapping,
    noise: Mapping | None,
    observe: Mapping,
    functions: Mapping[str, Any],
    has_others: bool,
) -> None:
    """Refuse a state that is not dense or has no axis of chains or no sites, and arguments that are missing.

    `noise`: None if a key draws it; `functions`: U's derivatives by name; `has_others`: whether other processes may
    hold sites.
    """
    where = f"{program.recipe.name}, step"
    for name, x in ((b.name, state[b.name]) for b in program.recipe.state if b.name in state):
        if not torch.is_tensor(x):
            raise RecipeError(where, f"{name} is a {type(x).__name__}", do="Pass a tensor (chains, *shape).")
        if x.is_nested or x.layout is not torch.strided:
            raise RecipeError(where, f"{name} is no dense tensor, but {x.layout}", do="Write x.to_dense().")
        if not x.dim():
            raise RecipeError(where, f"{name} has no axis of chains: its shape is ()", do="Write x.unsqueeze(0), say.")
        if not x.numel() and program.sums_over_sites and not has_others:
            what = f"it sums over sites, and {name} of the shape {tuple(x.shape)} has none"
            raise RecipeError(where, what, do="Give it at least one chain and one site.")
    required = {
        "state": [b.name for b in program.recipe.entries],
        "noise": [d.name for d in program.draws],
        "observe": list(program.observations),
    }
    for what, values in {"state": state, "noise": noise, "observe": observe}.items():
        missing = [] if values is None else [name for name in required[what] if name not in values]
        if missing:
            names = ", ".join(name for names in required.values() for name in names)
            raise RecipeError(where, f"{what}[{missing[0]!r}] is missing", do=f"It takes {names}.")
    if program.energy:
        return
    if program.needs_curvature and functions["curvature"] is None:
        raise RecipeError(where, "curvature is missing", do="Pass the Hessian diagonal of U, a function.")
    if program.needs_value and functions["value"] is None:
        raise RecipeError(where, "value is missing", do="Pass U, a function of the target, one number per chain.")


@dataclass(frozen=True)
class Form:
    """Dtype and device of a state, and the shapes of its vector and scalar blocks, chains first.

    >>> from integrators import compile
    >>> from samplers import SGLD
    >>> Form.of(compile(SGLD).program, {"theta": torch.zeros(4, 2)}).vector
    torch.Size([4, 2])
    """

    program: Program
    dtype: torch.dtype
    device: torch.device
    vector: torch.Size
    scalar: torch.Size

    @classmethod
    def of(
        cls, program: Program, state: Mapping, sizes: Sequence[int] | None = None, dtype: object | None = None
    ) -> "Form":
        """The form of a state; raises RecipeError if blocks differ in form or are not float32 or float64.

        `dtype`: the only dtype that the step was compiled for, if any.
        """
        recipe = program.recipe
        first = next((b for b in recipe.entries if b.is_vector), recipe.entries[0])
        like = state[first.name]
        if like.dtype not in FLOATS:
            where = f"{recipe.name}, state[{first.name!r}]"
            raise RecipeError(where, f"it is {like.dtype}, steps move float32 and float64", do="Convert it: x.float().")
        scalar = torch.Size((len(like),))
        if program.scope == "tensor":
            sites = state[recipe.targets[0].name].shape[-1]
            if not sizes or sum(sizes) != sites:
                what = f"sizes = {sizes} are not those of the tensors of a target with {sites} sites"
                do = "Give the number of sites of each tensor, in their order."
                raise RecipeError(f"{recipe.name}, step", what, do=do)
            scalar = torch.Size((len(like), len(sizes)))
        form = cls(program, like.dtype, like.device, like.shape, scalar)
        for b in recipe.entries:
            form.check(f"state[{b.name!r}]", state[b.name], b.is_vector)
        for order, name in enumerate(("value", "gradient")):
            if order in program.carries and name in state:
                form._check_carried(f"state['{name}']", state[name], order)
        if dtype is not None and like.dtype != dtype:
            what = f"it was compiled for {dtype}, but the state is {like.dtype}"
            raise RecipeError(f"{recipe.name}, step", what, do="Convert the state, or compile without dtype.")
        return form

    def check(self, what: str, t: object, is_vector: bool) -> None:
        """Refuse a value with another dtype, device or shape."""
        where = f"{self.program.recipe.name}, {what}"
        check_form(where, t, self.dtype, self.device, self.vector if is_vector else self.scalar)

    def _check_value(self, what: str, U: Any) -> None:
        """Refuse values of U of another form; they may be float64 where they are subtracted."""
        is_wide = bool(self.program.in_float64) and torch.is_tensor(U) and U.dtype == torch.float64
        (replace(self, dtype=torch.float64) if is_wide else self).check(what, U, is_vector=False)

    def noise(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Random numbers in the state's dtype; functions, for laws that depend on the state, are not converted."""
        numbers = dict(values)
        for d in self.program.draws:
            if not callable(numbers[d.name]):
                numbers[d.name] = self._of_the_type(numbers[d.name])
                self.check(f"noise[{d.name!r}]", numbers[d.name], d.is_vector)
        return numbers

    def _of_the_type(self, value):
        is_real = torch.is_tensor(value) and not value.is_complex()
        return value.to(self.dtype) if is_real else value

    def functions(self, derivatives: Mapping[str, Any], observe: Mapping[str, Callable]) -> dict[str, Any]:
        """The caller's functions by name, wrapped to check their values; statistics are converted to the dtype."""
        observed = {o.name: o for o in self.program.recipe.observations}
        checked: dict[str, Any] = {
            name: None if function is None else self._by_potential(name, function)
            for name, function in derivatives.items()
        }
        checked["observe"] = {
            name: self._observation(observed[name], f) for name, f in observe.items() if name in observed
        }
        return checked

    def _observation(self, observed, function):
        def value_of(theta):
            value = self._of_the_type(function(theta))
            self.check(f"observe[{observed.name!r}]", value, observed.is_vector)
            return value

        return value_of

    def _by_potential(self, what: str, function: Any) -> Any:
        """A function of the one potential, or a dict of functions by potential, wrapped to check their values."""
        recipe = self.program.recipe
        if not recipe.is_by_name:
            return self._checked(what, function)
        keys = dict.fromkeys(U.key for U in recipe.potentials)
        if not (isinstance(function, Mapping) and keys.keys() <= function.keys()):
            form = f"has {', '.join(map(str, function))}" if isinstance(function, Mapping) else f"is {function!r}"
            do = f"It is a dict by potential: {', '.join(keys)}."
            raise RecipeError(f"{recipe.name}, {what}", f"it {form}", do=do)
        return {key: self._checked(f"{what}[{key!r}]", function[key]) for key in keys}

    def _checked(self, what: str, function: Any) -> Any:
        if not callable(function):
            return function if function is None else self._check_derivative(what, function)

        def at(theta: Any) -> Any:
            value = function(theta)
            if what.startswith("value"):
                self._check_value("value", value)
                return value
            return self._check_derivative(what, value, theta)

        return at

    def _check_carried(self, what: str, value: Any, order: int) -> None:
        """Refuse derivatives, or values of U (order 0), that a state carries in another form."""
        if self.program.recipe.has_several_potentials:
            for _, g in self.program.carried_of(order):
                place = self.program.places[g]
                if not isinstance(value, Mapping) or place not in value:
                    where = f"{self.program.recipe.name}, {what}"
                    raise RecipeError(where, f"it has no '{place}'", do="Leave it out.")
                check = self._check_value if order == 0 else partial(self.check, is_vector=g.is_vector)
                check(f"{what}[{place!r}]", value[place])
        elif order:
            self._check_derivative(what, value)
        else:
            self._check_value(what, value)

    def _check_derivative(self, what: str, value: Any, theta: Any = None) -> Any:
        """The derivative, a tensor or a dict by block; raises RecipeError if its form differs.

        `theta`: the argument of a potential that reads some of the blocks only.
        """
        targets = self.program.recipe.targets
        if not isinstance(value, Mapping):
            self.check(what, value, targets[0].is_vector if theta is None else theta.shape == self.vector)
            return value
        for b in targets if theta is None else [b for b in targets if b.name in theta]:
            if b.name not in value:
                where = f"{self.program.recipe.name}, {what}"
                raise RecipeError(where, f"it has no '{b.name}'", do="It is a dict by block.")
            self.check(what, value[b.name], b.is_vector)
        return value


def parameters_like(recipe: Recipe, parameters: Mapping[str, Any], like: torch.Tensor) -> dict[str, Any]:
    """The parameters, with those per site converted to the dtype of a block, and values of operators read.

    Raises RecipeError for a parameter on another device, and for an operator without one row per site.
    """
    values = operator_checks.read(recipe, parameters)
    operator_checks.check_place(recipe, values, like)
    for name in (s.name for s in recipe.parameters if s.per):
        value = values.get(name)
        if not torch.is_tensor(value) or not value.dim():
            continue
        if value.device != like.device:
            what = f"it is on {value.device}, the state on {like.device}"
            do = f"Move it: x.to({str(like.device)!r})."
            raise RecipeError(f"{recipe.name}, parameter '{name}'", what, do=do)
        values[name] = value.to(like.dtype)
    return values
