"""The start of chains: a point or a point per chain for the target, the stationary law for auxiliary blocks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

import torch

from integrators import noise, operator_checks, streams
from integrators.domains import in_domain
from integrators.start import complete_state, per_tensor
from integrators.step import Step
from integrators.work import DIRECTION
from recipe import Energy, Recipe
from recipe.arguments import number
from recipe.errors import RecipeError, did_you_mean

from ..target.coordinates import Coordinates
from ..target.layout import Layout
from ..target.model import Model
from .inputs import Inputs
from .points import SAY, Device, Starting, one_point, points_of

Blocks = dict[str, torch.Tensor]  # `(chains, *shape)`, or `(chains,)` for a scalar block


def given_state(
    step: Step,
    energy: Energy | Callable | None,
    init: Any,
    *,
    chains: int,
    device: Device,
    parameters: Mapping,
    coordinates: Coordinates | None = None,
    per_chain: bool | None = None,
    spread: float = 0.0,
    seed: int = 0,
    first_chain: int = 0,
) -> tuple[Blocks, Layout]:
    """The blocks of all chains in `init`, the target among them, and the layout by which the energy sees the target.

    `per_chain`: whether tensors of `init` have an axis of chains; `spread`: the standard deviation of normal noise
    added to the target. A vector block is `(chains, *shape)`, a scalar `(chains,)`, or `(chains, tensors)` in the scope
    "tensor". With `coordinates` the target is z, while `init` has theta. `seed`, `first_chain`: those of random starts,
    such as a model's draws of the prior. Raises RecipeError for a start that is not finite, outside of a domain, or
    does not fit the recipe, energy, coordinates or parameters.
    """
    recipe = step.recipe
    where = f"{recipe.name}, init"
    by_tensor = step.program.scope == "tensor"
    _check_device(device)
    if per_chain not in (None, True, False):
        raise RecipeError(where, f"per_chain is True or False, got {per_chain!r}", do=SAY)
    number(where, "spread", spread, least=0, kinds=Real)
    if isinstance(energy, Model):
        if spread:
            raise RecipeError(
                where, "the variables of a model are not spread out", do="Leave init out: draws of the prior."
            )
        starts = partial(energy.starts, chains, seed, first_chain)
        blocks, layout = _of_model(recipe, energy, starts if init is None else init, chains, device, where)
    else:
        starting = Starting(chains, where, device, per_chain, seed, first_chain)
        blocks, layout = _blocks_and_layout(recipe, energy, init, starting)
    if spread:
        targets = {b.name: i for i, b in enumerate(recipe.targets) if b.name in blocks}
        blocks |= {name: _spread_out(blocks[name], i, float(spread), starting) for name, i in targets.items()}
    if by_tensor and layout.shapes is None:
        raise RecipeError(
            where, "the scope 'tensor' needs the target's tensors by name", do="Pass a dict, or an nn.Module."
        )
    if coordinates is not None:
        blocks, layout = _in_coordinates(recipe.targets[0].name, blocks, layout, coordinates, where)
    _check_blocks(recipe, blocks, where)
    shape = tuple(blocks[recipe.targets[0].name].shape[1:])
    if isinstance(energy, Energy):
        _check_coordinates(recipe, energy, shape, where)
    _check_parameters(recipe, parameters, blocks[recipe.targets[0].name])
    if by_tensor:
        blocks = {name: per_tensor(x, layout.sizes) if x.dim() == 1 else x for name, x in blocks.items()}
    return blocks, layout


@torch.no_grad()
def whole_state(
    step: Step, start: Blocks, energy: Energy | Callable | None, inputs: Inputs, temperature: float
) -> Blocks:
    """All blocks of all chains: those of `start`, and others from their law, or their first value, given `start`."""
    chains = len(next(iter(start.values())))
    functions = inputs.evaluations(0, chains).functions()
    return complete_state(
        step,
        start,
        seed=inputs.seed,
        temperature=temperature,
        gradient=functions["gradient"],
        observe=functions["observe"],
        energy=energy,
        sizes=inputs.layout.sizes,
        parameters=inputs.constants,
        first_chain=inputs.first_chain,
    )


def _blocks_and_layout(recipe: Recipe, energy: Any, init: Any, starting: Starting) -> tuple[Blocks, Layout]:
    """The blocks of all chains in `init`, and the layout, with shapes where `init` is by parameter."""
    if init is None:
        init = _default_point(recipe, energy, starting.where)
        starting = replace(starting, per_chain=None)
    points, by_parameter = points_of(recipe, init, starting)
    if not by_parameter or not points:
        return points, Layout()
    _check_alike(points, starting.where)
    theta = torch.cat([x.reshape(starting.chains, -1) for x in points.values()], 1)
    return {recipe.targets[0].name: theta}, Layout({name: tuple(x.shape[1:]) for name, x in points.items()})


def _in_coordinates(
    target: str, blocks: Blocks, layout: Layout, coordinates: Coordinates, where: str
) -> tuple[Blocks, Layout]:
    """The blocks with theta replaced by z, and the layout with the coordinates."""
    if target not in blocks:
        return blocks, layout
    placed = coordinates.placed(blocks[target], where)
    return blocks | {target: placed.inverse(blocks[target])}, replace(layout, coordinates=placed)


def _spread_out(target: torch.Tensor, number: int, spread: float, starting: Starting) -> torch.Tensor:
    """The starts of a block of the target, with normal noise of standard deviation `spread` added to each site."""
    key = noise.Key(starting.seed, number, starting.first_chain)
    return target + spread * key.normals(streams.SPREAD, target)


def _of_model(
    recipe: Recipe, model: Model, init: Any, chains: int, device: Device, where: str
) -> tuple[Blocks, Layout]:
    """The target of a model; `init`: a value or a value per chain by variable, or a function that returns all."""
    layout = Layout(model.shapes)
    target = recipe.targets[0].name
    if callable(init):
        return {target: one_point(init(), where, device)}, layout
    if not isinstance(init, Mapping):
        what = f"the start of a model is a dict by variable, got a {type(init).__name__}"
        raise RecipeError(where, what, do=f"Pass {{{next(iter(model.shapes))!r}: ...}}.")
    for name in init:
        if name not in model.shapes:
            raise RecipeError(where, f"there is no variable '{name}'", do=did_you_mean(name, list(model.shapes)))
    parts = []
    for name, shape in model.shapes.items():
        if name not in init:
            raise RecipeError(where, f"no start is given for the variable '{name}'", do="Give one, or none at all.")
        value = one_point(init[name], f"{where}[{name!r}]", device)
        if tuple(value.shape) not in (shape, (chains, *shape)):
            what = f"it has the shape {tuple(value.shape)}, and the variable {shape}"
            raise RecipeError(f"{where}[{name!r}]", what, do=f"Give {shape}, or {(chains, *shape)}.")
        parts.append(value.expand(chains, *shape).reshape(chains, -1))
    _check_alike(dict(zip(model.shapes, parts)), where)
    return {target: torch.cat(parts, -1)}, layout


def _default_point(recipe: Recipe, energy: Any, where: str) -> Any:
    """The default start, where the number of coordinates is known: 0, or 1 on a positive domain."""
    if isinstance(energy, Energy) and not energy.is_sitewise and recipe.target_is_vector:
        return torch.zeros(len(energy.coordinates))
    if not recipe.target_is_vector:
        return {b.name: torch.tensor(float(b.domain.start)) for b in recipe.targets}
    raise RecipeError(
        where,
        "no start is given, and the shape of the target is not known",
        do="Pass init=torch.zeros(shape), a dict, or an nn.Module.",
    )


def _check_device(device: Device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise RecipeError(
            "sample, device",
            f"{device!r} is not there ({str(error).splitlines()[0]})",
            do="Use 'cpu', or 'cuda' where torch sees a GPU.",
        ) from error


def _check_blocks(recipe: Recipe, blocks: Blocks, where: str) -> None:
    """Refuse blocks of different shapes, types or devices, and values outside of their domains."""
    for b in recipe.targets:
        if b.name not in blocks:
            raise RecipeError(where, f"no start is given for {b}", do=f"Pass init={{{b.name!r}: ...}}.")
    _check_alike(blocks, where)
    if any(blocks[b.name].numel() == 0 for b in recipe.targets):
        raise RecipeError(where, "the target has no sites", do="Start at a tensor with at least one value.")
    shapes = {b.name: tuple(blocks[b.name].shape[1:]) for b in recipe.entries if b.is_vector and b.name in blocks}
    if len(set(shapes.values())) > 1:
        raise RecipeError(
            where, f"the vector blocks have the shapes {shapes}", do="Give all of them the target's shape."
        )
    for b in recipe.entries:
        if not b.domain.is_real and b.name in blocks and not in_domain(b, blocks[b.name]).all():
            words = b.domain.in_words
            values = f"values {words}" if b.domain.is_compact else f"{words} values"
            raise RecipeError(where, f"{b} is {words}, but the start is not", do=f"Start at {values}.")
    direction = blocks.get(DIRECTION.name)
    if DIRECTION in recipe.adapted and direction is not None and not (direction.abs() == 1).all():
        raise RecipeError(where, "the direction of a chain is 1 or -1, but the start is not", do="Leave it out.")


def _check_alike(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Refuse tensors of different dtypes or devices."""
    for what in ("dtype", "device"):
        kinds = {name: str(getattr(x, what)) for name, x in tensors.items()}
        if len(set(kinds.values())) > 1:
            raise RecipeError(where, f"mixed {what}s: {kinds}", do=f"Give every tensor one {what}.")


def _check_coordinates(recipe: Recipe, energy: Energy, shape: tuple[int, ...], where: str) -> None:
    """Refuse a target whose shape is not the number of coordinates of a symbolic energy."""
    number = len(energy.coordinates)
    if recipe.target_is_vector and not energy.is_sitewise and shape != (number,):
        raise RecipeError(
            where,
            f"the energy has {number} coordinates, but the start of a chain has shape {shape}",
            do=f"Give one value per coordinate: shape {(number,)}, or (chains, {number}).",
        )


def _check_parameters(recipe: Recipe, parameters: Mapping, target: torch.Tensor) -> None:
    """Refuse values per site that do not broadcast to the target's shape, and operators of the wrong size."""
    operator_checks.check_place(recipe, parameters, target)
    shape = target.shape[1:]
    for s in recipe.parameters:
        value = parameters.get(s.name)
        if not s.per or not torch.is_tensor(value) or not value.dim():
            continue
        pairs = zip(value.shape[::-1], shape[::-1])
        if value.dim() > len(shape) or not all(v in (1, n) for v, n in pairs):
            raise RecipeError(
                f"{recipe.name}, sample",
                f"'{s.name}' has the shape {tuple(value.shape)}, but {s.per} has {tuple(shape)}",
                do="Give one value per site, or one number.",
            )
