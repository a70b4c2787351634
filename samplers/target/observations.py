"""The observations of a recipe: statistics of theta, or of a batch, as functions of all chains at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from integrators.start import per_tensor
from integrators.step import Step
from recipe.arguments import check_known
from recipe.errors import RecipeError

from .data import Data
from .layout import Layout
from .vectorised import Vectorised


def observations_of(
    steps: Sequence[Step], observe: Mapping[str, Callable] | None, layout: Layout, data: Data | None, where: str
) -> dict[str, Callable]:
    """The observations that `steps` need, by name, as functions of theta, `(chains, *shape)`, and of a batch.

    `observe`: the caller's functions of one chain. Every value is checked: finite, one per site of theta for a vector,
    one per chain for a scalar. Raises RecipeError where a function is missing or unknown.
    """
    if observe is not None and not isinstance(observe, Mapping):
        raise RecipeError(
            f"{where}, observe", f"it is a dict of functions by name, got {observe!r}", do='Write {"name": f}.'
        )
    functions = observe or {}
    arguments = "theta" if data is None else "theta, batch"
    asked = dict.fromkeys(name for step in steps for name in step.observations)
    for name in asked:
        if not callable(functions.get(name)):
            what = f"the recipe asks for the observation '{name}'"
            raise RecipeError(where, what, do=f"Pass observe={{{name!r}: a function of {arguments}}}.")
    recipe = steps[0].recipe
    check_known(where, "there is no observation '{}'", functions, [observed.name for observed in recipe.observations])
    by_tensor = steps[0].program.scope == "tensor"
    return {
        observed.name: _checked(observed, functions[observed.name], layout, data, by_tensor, where)
        for observed in recipe.observations
        if observed.name in asked
    }


def _checked(
    observed: Any, function: Callable, layout: Layout, data: Data | None, by_tensor: bool, where: str
) -> Callable:
    """The observation of all chains by a function of one chain, with a check of each value."""
    of_chains = Vectorised(layout.of_target(lambda *arguments: _flat(function(*arguments))))
    per_chain = data is not None and data.batch_size is not None
    arguments = "theta" if data is None else "theta, batch"

    def observation(theta: torch.Tensor, *batch: Any) -> torch.Tensor:
        try:
            value = of_chains(theta, *batch, per_chain=per_chain)
        except Exception as error:  # raised by the caller's function
            raise RecipeError(
                f"{where}, observe[{observed.name!r}]",
                f"{type(error).__name__}: {str(error).splitlines()[0]}",
                do=f"It is a function of {arguments} of one chain, to a tensor.",
            ) from error
        _check_value(value, observed.name, theta.shape if observed.is_vector else theta.shape[:1], where)
        value = value.to(theta.dtype)
        return per_tensor(value, layout.sizes) if by_tensor and not observed.is_vector else value

    return observation


def _flat(value: Any) -> Any:
    return torch.cat([x.reshape(-1) for x in value.values()]) if isinstance(value, Mapping) else value


def _check_value(value: Any, name: str, shape: torch.Size, where: str) -> None:
    """Refuse a value that is not a finite tensor of this shape, chains first."""
    if not torch.is_tensor(value) or value.shape != shape:
        is_tensor = torch.is_tensor(value)
        got = f"has the shape {tuple(value.shape[1:])}" if is_tensor else f"is a {type(value).__name__}"
        what = f"the observation '{name}' {got} for one chain, not a tensor of shape {tuple(shape[1:])}"
        raise RecipeError(where, what, do="Sum over the batch, not over the chains.")
    if not value.isfinite().all():
        raise RecipeError(where, f"the observation '{name}' is not finite", do="Look at what it divides by.")
