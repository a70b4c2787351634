"""Where chains start: a point or a point per chain for the target, the stationary law for auxiliary blocks."""

from collections.abc import Mapping

import torch

from integrators.domains import in_domain, is_bounded
from integrators.start import per_tensor
from integrators.step import Step
from recipe import Energy
from recipe.errors import RecipeError, did_you_mean

from ..energies.layout import Layout


def given_state(step: Step, energy, init, *, chains, device, parameters):
    """The blocks of all chains that `init` gives, the target among them, and how the energy sees the target."""
    recipe, where = step.recipe, f"{step.recipe.name}, init"
    _check_device(device)
    given, layout = _given(recipe, energy, init, chains, device, where)
    if step.program.scope == "tensor" and layout.shapes is None:
        raise RecipeError(
            where, "the scope 'tensor' needs the target's tensors by name", do="Pass a dict, or an nn.Module."
        )
    _check(recipe, given, where)
    if isinstance(energy, Energy):
        _check_coordinates(recipe, energy, given, where)
    target = given[recipe.targets[0].name]
    for s in recipe.parameters:
        _check_per_site(recipe, s, parameters.get(s.name), tuple(target.shape[1:]))
    return {
        name: per_tensor(x, layout.sizes) if step.program.scope == "tensor" and x.dim() == 1 else x
        for name, x in given.items()
    }, layout


def _check_device(device):
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise RecipeError(
            "sample, device",
            f"{device!r} is not there ({str(error).splitlines()[0]})",
            do="Use 'cpu', or 'cuda' where torch sees a GPU.",
        ) from error


def _check_per_site(recipe, s, value, shape):
    if s.per and torch.is_tensor(value) and value.dim():
        fits = value.dim() <= len(shape) and all(v in (1, n) for v, n in zip(value.shape[::-1], shape[::-1]))
        if not fits:
            raise RecipeError(
                f"{recipe.name}, sample",
                f"'{s.name}' has the shape {tuple(value.shape)}, but {s.per} has {shape}",
                do="Give one value per site, or one number.",
            )


def _given(recipe, energy, init, chains, device, where):
    """What `init` says: the blocks of all chains, and the layout of named parameters."""
    blocks = {b.name: b for b in recipe.entries}
    module = isinstance(init, torch.nn.Module)
    if module:
        init = dict(init.named_parameters())
    if init is None:
        init = _default_point(recipe, energy, where)
    if not isinstance(init, Mapping):
        if len(recipe.targets) > 1:
            raise RecipeError(where, "the target is made of explicit coordinates", do="Pass a dict by block.")
        init = {recipe.targets[0].name: init}
    if not init or not module and any(name in blocks for name in init):
        for name in init:
            if name not in blocks:
                raise RecipeError(where, f"there is no block '{name}'", do=did_you_mean(name, blocks))
        return {
            name: _chains_of(x, chains, f"{where}[{name!r}]", device, scalar=not blocks[name].is_vector)
            for name, x in init.items()
        }, Layout()
    if len(recipe.targets) > 1:
        raise RecipeError(where, f"there is no block '{next(iter(init))}'", do=did_you_mean(next(iter(init)), blocks))
    parts = {name: _one_point(x, f"{where}[{name!r}]", device) for name, x in init.items()}
    _check_alike(parts, where)
    flat = torch.cat([x.reshape(-1) for x in parts.values()])
    layout = Layout({name: tuple(x.shape) for name, x in parts.items()})
    return {recipe.targets[0].name: flat.expand(chains, -1).clone()}, layout


def _check(recipe, given, where):
    for b in recipe.targets:
        if b.name not in given:
            raise RecipeError(where, f"no start is given for {b}", do=f"Pass init={{{b.name!r}: ...}}.")
    _check_alike(given, where)
    if any(given[b.name].numel() == 0 for b in recipe.targets):
        raise RecipeError(where, "the target has no sites", do="Start at a tensor with at least one value.")
    shapes = {b.name: tuple(given[b.name].shape[1:]) for b in recipe.entries if b.is_vector and b.name in given}
    if len(set(shapes.values())) > 1:
        raise RecipeError(
            where, f"the vector blocks have the shapes {shapes}", do="Give all of them the target's shape."
        )
    for b in recipe.entries:
        if is_bounded(b) and b.name in given and not in_domain(b, given[b.name]).all():
            raise RecipeError(where, f"{b} is {b.domain}, but the start is not", do=f"Start at {b.domain} values.")


def _check_coordinates(recipe, energy, given, where):
    shape, wanted = tuple(given[recipe.targets[0].name].shape[1:]), (len(energy.coordinates),)
    if recipe.target_is_vector and not energy.is_sitewise and shape != wanted:
        raise RecipeError(
            where,
            f"the energy has {wanted[0]} coordinates, but the start of a chain has shape {shape}",
            do=f"Give one value per coordinate: shape {wanted}, or (chains, {wanted[0]}).",
        )


def _default_point(recipe, energy, where):
    if isinstance(energy, Energy) and not energy.is_sitewise and recipe.target_is_vector:
        return torch.zeros(len(energy.coordinates))
    if not recipe.target_is_vector:
        return {b.name: torch.tensor(1.0 if b.domain == "positive" else 0.0) for b in recipe.targets}
    raise RecipeError(
        where,
        "no start is given, and the shape of the target is not known",
        do="Pass init=torch.zeros(shape), a dict, or an nn.Module.",
    )


def _one_point(x, where, device):
    if not torch.is_tensor(x):
        try:
            x = torch.as_tensor(x, dtype=None if hasattr(x, "dtype") else torch.get_default_dtype())
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError(
                where, f"it is a {type(x).__name__}, not a tensor", do="Pass torch.zeros(shape)."
            ) from error
    if isinstance(x, torch.nn.Parameter) and not x.requires_grad:
        raise RecipeError(where, "the parameter has requires_grad=False", do="Leave frozen parameters out of init.")
    if x.dtype not in (torch.float32, torch.float64):
        raise RecipeError(where, f"it is {x.dtype}, samplers move float32 or float64", do="Convert it: x.float().")
    if not x.isfinite().all():
        raise RecipeError(where, "it is not finite", do="Start at finite values.")
    return x.detach().to(device) if device is not None else x.detach()


def _chains_of(x, chains, where, device, *, scalar):
    """A start per chain: as given where the first of at least two axes counts the chains, else repeated."""
    x = _one_point(x, where, device)
    per_chain = x.dim() >= (1 if scalar else 2) and len(x) == chains
    if scalar and x.dim() > 1 or scalar and x.dim() == 1 and not per_chain:
        raise RecipeError(
            where,
            f"a scalar block has one number per chain, got shape {tuple(x.shape)}",
            do=f"Pass a number or shape ({chains},).",
        )
    return x.clone() if per_chain else x.expand(chains, *x.shape).clone()


def _check_alike(tensors, where):
    for what in ("dtype", "device"):
        kinds = {name: str(getattr(x, what)) for name, x in tensors.items()}
        if len(set(kinds.values())) > 1:
            raise RecipeError(where, f"mixed {what}s: {kinds}", do=f"Give every tensor one {what}.")
