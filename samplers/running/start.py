"""The start of chains: a point or a point per chain for the target, the stationary law for auxiliary blocks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from integrators import noise, operator_checks, streams
from integrators.direction import DIRECTION
from integrators.domain_bounds import in_domain
from integrators.initial_state import complete_state, per_tensor
from integrators.step import Step
from recipe import Energy, Recipe
from recipe.arguments import check_known
from recipe.arrays import of_arrays
from recipe.declared import Block
from recipe.errors import RecipeError
from recipe.fields import outer_products
from recipe.symbols import OPAQUE

from ..target.coordinates import Coordinates
from ..target.layout import Layout
from ..target.model import Model
from ..target.potential import Blocks
from .inputs import Inputs
from .points import Start, Starting, one_point, points_of


def given_state(
    step: Step,
    energy: Any,
    start: Start,
    *,
    chains: int,
    parameters: Mapping,
    coordinates: Coordinates | None = None,
    seed: int = 0,
    first_chain: int = 0,
) -> tuple[Blocks, Layout]:
    """The blocks of all chains at `start`, the target among them, and the layout by which the energy sees the target.

    A vector block is `(chains, *shape)`, a scalar `(chains,)`, or `(chains, tensors)` in the scope "tensor". With
    `coordinates` the target is z, while `start` has theta. `seed`, `first_chain`: those of random starts, such as a
    model's draws of the prior. Raises RecipeError for a start that is not finite, outside of a domain, or does not fit
    the recipe, energy, coordinates or parameters.
    """
    recipe = step.recipe
    where = f"{recipe.name}, init"
    starting = Starting(chains, where, start.device, start.per_chain, seed, first_chain)
    names = {map.theta.name: z.name for z, map in recipe.maps.items()}  # theta of a mapped recipe is seen at z
    init = start.point
    if names and isinstance(init, Mapping):
        init = {names.get(name, name): x for name, x in init.items()}
    if isinstance(energy, Model):
        if start.spread:
            what = "the variables of a model are not spread out"
            raise RecipeError(where, what, do="Leave init out: draws of the prior.")
        blocks, layout = _of_model(recipe, energy, init, starting)
    else:
        blocks, layout = _blocks_and_layout(recipe, energy, init, starting)
    for i, b in enumerate(recipe.targets if start.spread else ()):
        if b.name in blocks:
            normals = noise.Key(seed, i, first_chain).normals(streams.SPREAD, blocks[b.name])
            blocks[b.name] = blocks[b.name] + float(start.spread) * normals
    by_tensor = step.program.scope == "tensor"
    if by_tensor and layout.shapes is None:
        what = "the scope 'tensor' needs the target's tensors by name"
        raise RecipeError(where, what, do="Pass a dict, or an nn.Module.")
    target = recipe.targets[0].name
    if coordinates is not None and target in blocks:
        placed = coordinates.placed(blocks[target], where)
        blocks[target], layout = placed.inverse(blocks[target]), replace(layout, coordinates=placed)
    _check_blocks(recipe, blocks, where)
    if isinstance(energy, Energy):
        _check_coordinates(recipe, energy, tuple(blocks[target].shape[1:]), where)
    _check_parameters(recipe, parameters, blocks[target])
    if by_tensor:
        blocks = {name: per_tensor(x, layout.sizes) if x.dim() == 1 else x for name, x in blocks.items()}
    return blocks, layout


@torch.no_grad()
def whole_state(step: Step, start: Blocks, inputs: Inputs, temperature: float) -> Blocks:
    """All blocks of all chains: those of `start`, and others from their law, or their first value, given `start`."""
    functions = inputs.evaluations(0, len(next(iter(start.values())))).functions()
    return complete_state(
        step,
        start,
        seed=inputs.seed,
        temperature=temperature,
        gradient=functions["gradient"],
        observe=functions["observe"],
        energy=inputs.target.energy,
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


def _of_model(recipe: Recipe, model: Model, init: Any, starting: Starting) -> tuple[Blocks, Layout]:
    """The target of a model: draws of the prior, or in `init` a value or a value per chain by variable."""
    layout = Layout(model.shapes)
    target = recipe.targets[0].name
    where, chains = starting.where, starting.chains
    if init is None:
        drawn = model.starts(chains, starting.seed, starting.first_chain)
        return {target: one_point(drawn, where, starting.device)}, layout
    if not isinstance(init, Mapping):
        what = f"the start of a model is a dict by variable, got a {type(init).__name__}"
        raise RecipeError(where, what, do=f"Pass {{{next(iter(model.shapes))!r}: ...}}.")
    check_known(where, "there is no variable '{}'", init, model.shapes)
    parts = {}
    for name, shape in model.shapes.items():
        if name not in init:
            raise RecipeError(where, f"no start is given for the variable '{name}'", do="Give one, or none at all.")
        value = one_point(init[name], f"{where}[{name!r}]", starting.device)
        if tuple(value.shape) not in (shape, (chains, *shape)):
            what = f"it has the shape {tuple(value.shape)}, and the variable {shape}"
            do = f"Give {shape}, or {(chains, *shape)}."
            if value.dim() and tuple(value.shape[1:]) == shape:
                do = f"They are starts of {len(value)} chains: take as many, or those of tune(..., chains={chains})."
            raise RecipeError(f"{where}[{name!r}]", what, do=do)
        parts[name] = value.expand(chains, *shape).reshape(chains, -1)
    _check_alike(parts, where)
    return {target: torch.cat(list(parts.values()), -1)}, layout


def _default_point(recipe: Recipe, energy: Any, where: str) -> Any:
    """The default start, where the number of coordinates is known: 0, or 1 on a positive domain."""
    if isinstance(energy, Energy) and not energy.is_sitewise and recipe.target_is_vector:
        return torch.zeros(len(energy.coordinates))
    if not recipe.target_is_vector:
        return {b.name: torch.tensor(float(b.domain.start)) for b in recipe.targets}
    what = "no start is given, and the shape of the target is not known"
    raise RecipeError(where, what, do="Pass init=torch.zeros(shape), a dict, or an nn.Module.")


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
        what = f"the vector blocks have the shapes {shapes}"
        raise RecipeError(where, what, do="Give all of them the target's shape.")
    for b in recipe.entries:
        if not b.domain.is_real and b.name in blocks and not in_domain(b, blocks[b.name]).all():
            words = b.domain.in_words
            values = f"values {words}" if b.domain.is_compact else f"{words} values"
            raise RecipeError(where, f"{b} is {words}, but the start is not", do=f"Start at {values}.")
        if b.domain.is_sphere:
            _check_sphere(b, blocks, len(blocks[recipe.targets[0].name][0].flatten()), where)
    _check_span(recipe, blocks, where)
    direction = blocks.get(DIRECTION.name)
    if DIRECTION in recipe.adapted and direction is not None and not (direction.abs() == 1).all():
        raise RecipeError(where, "the direction of a chain is 1 or -1, but the start is not", do="Leave it out.")


def _check_sphere(b: Block, blocks: Blocks, sites: int, where: str) -> None:
    """Refuse a sphere of one site, which is two points, and a start that is not on the sphere."""
    if sites < 2:
        what = f"{b} is {b.domain.in_words} of {sites} site, which is two points"
        raise RecipeError(where, what, do="Take two sites or more.")
    if b.name in blocks:
        lengths = blocks[b.name].flatten(1).norm(dim=1)
        if not torch.allclose(lengths, torch.ones_like(lengths), rtol=0, atol=1e-3):
            far = lengths[(lengths - 1).abs().argmax()]
            what = f"{b} is {b.domain.in_words}, but the start has the length {far:.3g}"
            raise RecipeError(where, what, do=f"Divide it by its length, or leave {b} out.")


def _check_span(recipe: Recipe, blocks: Blocks, where: str) -> None:
    """Refuse a start from which noise along vectors, as the distances of particles, never leaves what they span."""
    for i, b in enumerate(recipe.state):
        vectors = [x.vector for x in outer_products(recipe.D[i, i])]
        symbols = sorted(set().union(*(v.free_symbols for v in vectors)), key=str)
        known = all(s.name in blocks for s in symbols) and not any(v.has(*OPAQUE) for v in vectors)
        if not vectors or recipe.D[i, i].is_positive or not known:
            continue
        at = [blocks[s.name].flatten(1).double().cpu().numpy() for s in symbols]
        matrix = np.stack(np.broadcast_arrays(*of_arrays([symbols], vectors)(at)), 1)
        rank = int(np.linalg.matrix_rank(matrix, tol=1e-6 * abs(matrix).max()).min())
        if rank < matrix.shape[2]:
            what = (
                f"the noise of {b} is along vectors that span {rank} of {matrix.shape[2]} sites, and never leaves them"
            )
            raise RecipeError(where, what, do="Start particles apart, at points that no plane joins.")


def _check_alike(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    for what in ("dtype", "device"):
        kinds = {name: str(getattr(x, what)) for name, x in tensors.items()}
        if len(set(kinds.values())) > 1:
            raise RecipeError(where, f"mixed {what}s: {kinds}", do=f"Give every tensor one {what}.")


def _check_coordinates(recipe: Recipe, energy: Energy, shape: tuple[int, ...], where: str) -> None:
    """Refuse a target whose shape is not the number of coordinates of a symbolic energy."""
    number = len(energy.coordinates)
    if recipe.target_is_vector and not energy.is_sitewise and shape != (number,):
        what = f"the energy has {number} coordinates, but the start of a chain has shape {shape}"
        raise RecipeError(where, what, do=f"Give one value per coordinate: shape {(number,)}, or (chains, {number}).")


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
            what = f"'{s.name}' has the shape {tuple(value.shape)}, but {s.per} has {tuple(shape)}"
            raise RecipeError(f"{recipe.name}, sample", what, do="Give one value per site, or one number.")
