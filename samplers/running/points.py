"""Reads `init`: a tensor `(chains, *shape)` for every named block or parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch.distributions import Distribution

from integrators import noise, streams
from integrators.kernels.addresses import check_plain, plain
from recipe import Recipe
from recipe.arguments import check_known, number
from recipe.errors import RecipeError, did_you_mean, first_line

from ..target.torch_state import seeded
from .memory import check_fits

Device = torch.device | str | None
Points = dict[str, torch.Tensor]  # by the name of a block or of a parameter, `(chains, *shape)`

SAY = "Pass init=Start(point, per_chain=True), for a point of each chain, or per_chain=False."


@dataclass(frozen=True)
class Start:
    """The start of chains, for `sample(init=...)`, where a point alone leaves something open.

    `point`: what `init` may be. `spread`: the standard deviation of normal noise added to each site of the target,
    independent for each chain. `per_chain`: whether tensors have an axis of chains, as those of
    torch.func.stack_module_state have. `device`: of the chains; None for that of the point.

    >>> Start(torch.zeros(3), spread=0.1).spread
    0.1
    """

    point: Any = None
    spread: float = 0.0
    per_chain: bool | None = None
    device: Device = None

    def __post_init__(self) -> None:
        if self.per_chain not in (None, True, False):
            raise RecipeError("Start", f"per_chain is True or False, got {self.per_chain!r}", do=SAY)
        number("Start", "spread", self.spread, least=0, kinds=Real)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError) as error:
            what = f"{self.device!r} is not there ({first_line(error)})"
            raise RecipeError("Start, device", what, do="Use 'cpu', or 'cuda' where torch sees a GPU.") from error


def start_of(init: Any) -> Start:
    """`init` as a `Start`."""
    return init if isinstance(init, Start) else Start(init)


@dataclass(frozen=True)
class Starting:
    """The chains that start; draws are a function of `seed` and of the chain, counted from `first_chain`.

    `device`, `per_chain`: those of a `Start`; `where` begins the messages.
    """

    chains: int
    where: str
    device: Device = None
    per_chain: bool | None = None
    seed: int = 0
    first_chain: int = 0


def points_of(recipe: Recipe, init: Any, starting: Starting) -> tuple[Points, bool]:
    """The points of all chains by name, and whether the names are of parameters that make up the target.

    `init` is a tensor of the target, a dict of tensors by block or by parameter, an nn.Module, a torch Distribution,
    alone or in a dict, or a list with one start for each chain. A tensor of a block is a point per chain where it has
    at least two axes and the first is of length `chains`, unless `per_chain` decides.

    >>> from samplers import SGLD
    >>> points, by_parameter = points_of(SGLD, torch.zeros(3), Starting(2, "doctest"))
    >>> points["theta"].shape, by_parameter
    (torch.Size([2, 3]), False)
    """
    is_module = isinstance(init[0] if is_of_chains(init) else init, torch.nn.Module)
    if is_of_chains(init):
        init = _stacked(recipe, init, starting)
        starting = replace(starting, per_chain=True)
    elif is_module:
        init = _moving(init)
    elif not isinstance(init, Mapping):
        if len(recipe.targets) > 1:
            raise RecipeError(starting.where, "the target is made of explicit coordinates", do="Pass a dict by block.")
        init = {recipe.targets[0].name: init}
    names = [b.name for b in recipe.entries]
    if is_module or (init and not any(name in names for name in init)):
        return _by_parameter(recipe, init, starting), True
    return _by_block(recipe, init, starting), False


def is_of_chains(init: Any) -> bool:
    """Whether `init` is a list of starts, one for each chain: modules, dicts or tensors, not numbers."""
    if not isinstance(init, (list, tuple)) or not init:
        return False
    return all(isinstance(x, (torch.nn.Module, Mapping)) or (torch.is_tensor(x) and x.dim() > 0) for x in init)


def check_number(starts: Sequence[Any], chains: int, where: str) -> None:
    """Refuse a list of starts whose length is not `chains`."""
    if len(starts) != chains:
        what = f"it is a list of {len(starts)} starts, and there are {chains} chains"
        raise RecipeError(where, what, do=f"Pass chains={len(starts)}.")


def _stacked(recipe: Recipe, init: Sequence[Any], starting: Starting) -> dict[str, torch.Tensor]:
    """The starts of a list as tensors `(chains, *shape)` by name."""
    where = starting.where
    check_number(init, starting.chains, where)
    if starting.per_chain is False:
        raise RecipeError(where, "it is a list of starts, one for each chain", do="Leave per_chain out.")
    starts = [_tensors(recipe, x, f"{where}[{i}]") for i, x in enumerate(init)]
    shapes = [{name: tuple(x.shape) for name, x in start.items()} for start in starts]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            what = f"the start of chain {i} has the tensors {shape}, that of chain 0 {shapes[0]}"
            raise RecipeError(where, what, do="Give starts of one form.")
    for i, start in enumerate(starts):
        for name, x in start.items():
            one_point(x, f"{where}[{i}][{name!r}]", starting.device)
    return {name: torch.stack([start[name].detach() for start in starts]) for name in starts[0]}


def _moving(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a module with requires_grad; all, to be refused later, where none has."""
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    return {name: x for name, x in parameters.items() if x.requires_grad} or parameters


def _tensors(recipe: Recipe, start: Any, where: str) -> dict[str, torch.Tensor]:
    if isinstance(start, torch.nn.Module):
        return _moving(start)
    if not isinstance(start, Mapping):
        return {recipe.targets[0].name: start}
    for name, x in start.items():
        if not torch.is_tensor(x):
            raise RecipeError(f"{where}[{name!r}]", f"it is a {type(x).__name__}, not a tensor", do="Pass tensors.")
    return dict(start)


def _by_block(recipe: Recipe, init: Mapping[str, Any], starting: Starting) -> Points:
    blocks = {b.name: b for b in recipe.entries}
    check_known(starting.where, "there is no block '{}'", init, blocks)
    return {
        name: _drawn(x, i, starting)
        if isinstance(x, Distribution)
        else _of_block(x, f"{starting.where}[{name!r}]", starting, scalar=not blocks[name].is_vector)
        for i, (name, x) in enumerate(init.items())
    }


def _by_parameter(recipe: Recipe, init: Mapping[str, Any], starting: Starting) -> Points:
    """The points of parameters, which together are the one target of the recipe."""
    where = starting.where
    if len(recipe.targets) > 1:
        name = next(iter(init))
        raise RecipeError(where, f"there is no block '{name}'", do=did_you_mean(name, [b.name for b in recipe.entries]))
    points = {
        name: one_point(x, f"{where}[{name!r}]", starting.device)
        for name, x in init.items()
        if not isinstance(x, Distribution)
    }
    if starting.per_chain is None:
        check_unambiguous({name: init[name] for name in points}, starting.chains, where)
    return {
        name: _drawn(x, i, starting)
        if isinstance(x, Distribution)
        else _of_all(points[name], f"{where}[{name!r}]", starting, per_chain=bool(starting.per_chain))
        for i, (name, x) in enumerate(init.items())
    }


def check_unambiguous(tensors: Mapping[str, Any], chains: int, where: str) -> None:
    """Refuse plain tensors of parameters that all have `chains` rows.

    Such tensors may be one point, or a point per chain.
    """
    rows = {len(x) if torch.is_tensor(x) and x.dim() else 0 for x in tensors.values()}
    if chains == 1 or rows != {chains} or max(x.dim() for x in tensors.values()) == 1:
        return
    if not any(isinstance(x, torch.nn.Parameter) for x in tensors.values()):
        names = ", ".join(f"'{name}'" for name in list(tensors)[:3])
        what = f"{names} have as many rows as there are chains, {chains}: one point, or a point of each chain?"
        raise RecipeError(where, what, do=SAY)


def one_point(x: Any, where: str, device: Device) -> torch.Tensor:
    """A finite plain tensor of float32 or float64 on `device`, where chains can start."""
    if not torch.is_tensor(x):
        try:
            x = torch.as_tensor(x, dtype=None if hasattr(x, "dtype") else torch.get_default_dtype())
        except (TypeError, ValueError, RuntimeError) as error:
            what = f"it is a {type(x).__name__}, not a tensor"
            raise RecipeError(where, what, do="Pass torch.zeros(shape).") from error
    if isinstance(x, torch.nn.Parameter) and not x.requires_grad:
        raise RecipeError(where, "the parameter has requires_grad=False", do="Leave frozen parameters out of init.")
    check_plain(where, x)
    if x.dtype not in (torch.float32, torch.float64):
        raise RecipeError(where, f"it is {x.dtype}, samplers move float32 or float64", do="Convert it: x.float().")
    if not x.isfinite().all():
        raise RecipeError(where, "it is not finite", do="Start at finite values.")
    return plain(where, x if device is None else x.to(device))


def _of_block(x: Any, where: str, starting: Starting, *, scalar: bool) -> torch.Tensor:
    """The starts of a block, `(chains, *shape)`: given per chain by `per_chain` or its axes, else repeated."""
    point = one_point(x, where, starting.device)
    counts = point.dim() >= (1 if scalar else 2) and len(point) == starting.chains
    if scalar and (point.dim() > 1 or (point.dim() == 1 and not counts)):
        what = f"a scalar block has one number per chain, got shape {tuple(point.shape)}"
        raise RecipeError(where, what, do=f"Pass a number or shape ({starting.chains},).")
    per_chain = counts if scalar or starting.per_chain is None else starting.per_chain
    return _of_all(point, where, starting, per_chain=per_chain)


def _of_all(point: torch.Tensor, where: str, starting: Starting, *, per_chain: bool) -> torch.Tensor:
    """The points of all chains, `(chains, *shape)`: a copy of `point` if `per_chain`, else `point` repeated."""
    chains = starting.chains
    if not per_chain:
        shape = (chains, *point.shape)
        check_fits(where, "the states of all chains", shape, point, do="Run fewer chains.")
        return point.expand(shape).clone()
    if point.dim() == 0 or len(point) != chains:
        what = f"a point of each of {chains} chains is asked for, got shape {tuple(point.shape)}"
        count = f"chains={len(point)}, " if point.dim() else ""
        raise RecipeError(where, what, do=f"Pass {count}shape ({chains}, ...), or Start(..., per_chain=False).")
    return point.clone()


def _drawn(law: Distribution, number: int, starting: Starting) -> torch.Tensor:
    """A draw of a law for each chain, `(chains, *shape)`; the state of torch's generator is restored."""
    seeds = noise.seeds(starting.seed, number, streams.POINT, starting.chains, first_chain=starting.first_chain)
    draws = []
    for seed in seeds:
        with seeded(seed):
            draws.append(law.sample())
    return torch.stack([one_point(x, f"{starting.where}, a draw of {law}", starting.device) for x in draws])
