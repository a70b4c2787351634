"""The state of a parameter group, which is the blocks of a recipe beside its target: started, or loaded and checked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from integrators.initial_state import complete_state
from integrators.step import Step
from recipe import Recipe
from recipe.errors import RecipeError
from recipe.symbols import Block

from .kernels import COPY
from .shards import as_part, local
from .stacked import count
from .tensors import by_chain, end_to_end, precise, put_back

States = Mapping[torch.Tensor, dict[str, Any]]  # by parameter: tensors by the name of the block


def kept_with(recipe: Recipe, k: int) -> Iterator[Block]:
    """Yields the blocks that are stored with parameter k of a group: vectors with each, scalars with the first."""
    for b in recipe.entries:
        if b not in recipe.targets and (b.is_vector or k == 0):
            yield b


def begin(
    step: Step,
    params: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    states: States,
    gradient: Callable[[torch.Tensor], torch.Tensor],
    **how: Any,
) -> None:
    """Starts the state: auxiliary blocks from their stationary law, adapted quantities from the first gradient.

    `weights`: the parameters, or their copies in float32; `how`: further arguments of `complete_state`.
    """
    chains = count(params)
    whole = complete_state(
        step,
        {step.recipe.targets[0].name: end_to_end(weights, chains)},
        gradient=gradient,
        sizes=[by_chain(p, chains).shape[1] for p in weights],
        **how,
    )
    for b in kept_with(step.recipe, 0):
        if not b.is_vector:
            states[params[0]][b.name] = whole[b.name]
            continue
        tensors = [torch.empty_like(p) for p in weights]
        put_back(whole[b.name], tensors)
        for p, t in zip(params, tensors):
            states[p][b.name] = t


def hold_places(recipe: Recipe, group: Mapping[str, Any], states: States) -> None:
    """Fills the state with placeholders of the right shapes, into which torch.distributed.checkpoint loads.

    The first step, whose number is 0, replaces the placeholders by a started state.
    """
    for k, p in enumerate(group["params"]):
        dtype = precise(p.dtype)
        for b in kept_with(recipe, k):
            like = p if b.is_vector else torch.empty(1, device=p.device)
            states[p][b.name] = torch.full_like(like, float(b.domain.start), dtype=dtype, requires_grad=False)
        if dtype != p.dtype:
            states[p][COPY] = p.detach().to(dtype)


def check_same(where: str, group: Mapping[str, Any], state: Mapping[str, Any], index: int) -> None:
    """Refuses the state of a group of another sampler, seed, or number of data."""
    mine, other = ({name: x for name, x in g.get("sampler", {}).items() if name != "frozen"} for g in (group, state))
    if other != mine:
        names = [name for name in {**mine, **other} if mine.get(name) != other.get(name)]
        here, there = ({name: identity.get(name) for name in names} for identity in (mine, other))
        what = f"it is the state of {there if other else None}, this is {here}"
        raise RecipeError(where, what, do="Make the same one.")
    missing = [name for name in group if name not in state]
    if missing:
        what = f"group {index} of the state has no {', '.join(missing)}"
        raise RecipeError(where, what, do="Load what state_dict() gave.")
    number = state["num_data"]
    if number != group["num_data"]:
        what = f"group {index} is of {number} data, here of {group['num_data']}: another posterior"
        raise RecipeError(where, what, do="Pass the num_data of that run.")


def take_precise(
    where: str, params: Sequence[torch.Tensor], names: Sequence[Any], states: Any, saved: Mapping[Any, Any]
) -> None:
    """Loads the state of half-precision weights unrounded, where torch would round to the type of the weights."""
    for p, name in zip(params, names):
        if precise(p.dtype) != p.dtype:
            tensors = {k: x.to(p.device, copy=True) for k, x in saved.get(name, {}).items() if torch.is_tensor(x)}
            whole = {k: as_part(where, x, p) for k, x in tensors.items() if x.shape == p.shape}
            states[p].update(tensors | whole)


def take_up(where: str, recipe: Recipe, group: Mapping[str, Any], states: States, index: int) -> None:
    """Checks a loaded state, and copies each tensor into the memory order of its parameter.

    `where` begins the message of the RecipeError; `index` is the number of the group.
    """
    if not group["step_number"]:
        return
    for k, p in enumerate(group["params"]):
        for b in kept_with(recipe, k):
            value: Any = states[p].get(b.name)
            shape = tuple(p.shape) if b.is_vector else (count(group["params"]),)
            if b.is_vector and torch.is_tensor(value) and tuple(value.shape) == shape:
                value = states[p][b.name] = as_part(where, value, p)
            fault = _fault(value, shape, precise(p.dtype))
            if fault:
                what = f"{b} of parameter {k} of group {index} is {fault}, not {shape} of finite {precise(p.dtype)}"
                raise RecipeError(where, what, do="Load the state that state_dict() gave for these parameters.")
            if b.is_vector and local(value).stride() != local(p).stride():
                states[p][b.name] = torch.empty_like(p, dtype=value.dtype).copy_(value)


def _fault(value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
    if value is None:
        return "missing"
    if not torch.is_tensor(value):
        return f"a {type(value).__name__}"
    if (tuple(value.shape), value.dtype) != (shape, dtype):
        return f"{tuple(value.shape)}, {value.dtype}"
    if not bool(local(value).isfinite().all()):
        return "not finite"
    return None
