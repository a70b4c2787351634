"""Form of the tensors of a step: dtype, device and shapes, the same on every backend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from recipe import Recipe
from recipe.errors import RecipeError

from . import operator_checks
from .kernels.addresses import check_form
from .program import Program
from .requirements import check_sizes

FLOATS = torch.float32, torch.float64


@dataclass(frozen=True)
class Form:
    """Dtype and device of a state, and the shapes of its vector and scalar blocks, chains first.

    >>> from integrators import compile
    >>> from samplers import SGLD
    >>> Form.of(compile(SGLD).program, {"theta": torch.zeros(4, 2)}, None).vector
    torch.Size([4, 2])
    """

    program: Program
    dtype: torch.dtype
    device: torch.device
    vector: torch.Size
    scalar: torch.Size

    @classmethod
    def of(cls, program: Program, state: Mapping, sizes: Sequence[int] | None) -> "Form":
        """The form of a state; raises RecipeError if blocks differ in form or are not float32 or float64."""
        entries = program.recipe.entries
        first = next((b for b in entries if b.is_vector), entries[0])
        like = state[first.name]
        where = f"{program.recipe.name}, state[{first.name!r}]"
        if not torch.is_tensor(like) or like.dtype not in FLOATS:
            got = like.dtype if torch.is_tensor(like) else f"a {type(like).__name__}"
            raise RecipeError(where, f"it is {got}, steps move float32 and float64", do="Convert it: x.float().")
        if like.dim() == 0:
            raise RecipeError(where, "it has no axis of chains", do="Pass x[None] for one chain.")
        check_sizes(program, state, sizes)
        scalar = torch.Size((len(like), len(sizes)) if program.scope == "tensor" and sizes else (len(like),))
        form = cls(program, like.dtype, like.device, like.shape, scalar)
        for b in entries:
            form.check(f"state[{b.name!r}]", state[b.name], b.is_vector)
        if program.carries_gradient and "gradient" in state:
            form.check_carried("state['gradient']", state["gradient"], 1)
        if 0 in program.carries and "value" in state:
            form.check_carried("state['value']", state["value"], 0)
        return form

    def check(self, what: str, t: object, is_vector: bool) -> None:
        """Refuse a value with another dtype, device or shape."""
        where = f"{self.program.recipe.name}, {what}"
        check_form(where, t, self.dtype, self.device, self.vector if is_vector else self.scalar)

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

    def functions(
        self,
        gradient: Any,
        curvature: Callable | None,
        value: Callable | None,
        observe: Mapping[str, Callable] | None,
    ) -> dict[str, Any]:
        """The caller's functions by name, wrapped to check their values."""
        asked = {"gradient": gradient, "curvature": curvature, "value": value}
        checked: dict[str, Any] = {
            name: None if function is None else self._by_potential(name, function) for name, function in asked.items()
        }
        return checked | {"observe": self.observations(observe or {})}

    def _by_potential(self, what: str, function: Any) -> Any:
        """A function of the one potential, or a dict of functions by potential, wrapped to check their values."""
        recipe = self.program.recipe
        if not recipe.is_by_name:
            return self._checked(what, function)
        keys = dict.fromkeys(U.key for U in recipe.potentials)
        if not (isinstance(function, Mapping) and keys.keys() <= function.keys()):
            where = f"{recipe.name}, {what}"
            got = f"has {', '.join(map(str, function))}" if isinstance(function, Mapping) else f"is {function!r}"
            raise RecipeError(where, f"it {got}", do=f"It is a dict by potential: {', '.join(keys)}.")
        return {key: self._checked(f"{what}[{key!r}]", function[key]) for key in keys}

    def _checked(self, what: str, function: Any) -> Any:
        return self.value(function) if what.startswith("value") else self.derivative(what, function)

    def value(self, function: Callable) -> Callable:
        """U as a function of the target, wrapped to check the form of its values."""

        def value_of(theta):
            U = function(theta)
            self.check("value", U, is_vector=False)
            return U

        return value_of

    def derivative(self, what: str, value: Any) -> Any:
        """A derivative of U, checked, or a function wrapped to check its values; None for None."""
        if not callable(value):
            return value if value is None else self.check_derivative(what, value)

        def at(theta: Any) -> Any:
            return self.check_derivative(what, value(theta), theta)

        return at

    def check_carried(self, what: str, value: Any, order: int) -> None:
        """Refuse derivatives, or values of U (order 0), that a state carries in another form."""
        if not self.program.recipe.has_several_potentials:
            if order:
                self.check_derivative(what, value)
            else:
                self.check(what, value, is_vector=False)
            return
        for _, g in self.program.carried_of(order):
            place = self.program.places[g]
            if not isinstance(value, Mapping) or place not in value:
                raise RecipeError(f"{self.program.recipe.name}, {what}", f"it has no '{place}'", do="Leave it out.")
            self.check(f"{what}[{place!r}]", value[place], g.is_vector)

    def check_derivative(self, what: str, value: Any, theta: Any = None) -> Any:
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

    def observations(self, functions: Mapping[str, Callable]) -> dict[str, Callable]:
        """Statistics as functions of the target, with values converted to the state's dtype and checked."""
        observed = {o.name: o for o in self.program.recipe.observations}
        return {name: self._observation(observed[name], f) for name, f in functions.items() if name in observed}

    def _observation(self, observed, function):
        def value_of(theta):
            value = self._of_the_type(function(theta))
            self.check(f"observe[{observed.name!r}]", value, observed.is_vector)
            return value

        return value_of


def parameters_like(recipe: Recipe, parameters: Mapping[str, Any], like: torch.Tensor) -> dict[str, Any]:
    """The parameters, with those per site converted to the dtype of a block, and values of operators read.

    Raises RecipeError for a parameter on another device, and for an operator without one row per site.
    """
    values = operator_checks.read(recipe, parameters)
    operator_checks.check_place(recipe, values, like)
    tensors = {name for name, value in values.items() if torch.is_tensor(value) and value.dim()}
    if tensors:
        for name in tensors & {s.name for s in recipe.parameters if s.per}:
            value = values[name]
            if value.device != like.device:
                raise RecipeError(
                    f"{recipe.name}, parameter '{name}'",
                    f"it is on {value.device}, the state on {like.device}",
                    do=f"Move it: x.to({str(like.device)!r}).",
                )
            values[name] = value.to(like.dtype)
    return values
