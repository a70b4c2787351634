"""Tensors that a step of an optimizer reads: parameters, gradients, observations and losses, checked and laid out."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from integrators.kernels.addresses import check_apart, check_plain, plain, starts
from integrators.transfers import Arrivals, is_near, largest
from recipe import Recipe
from recipe.errors import RecipeError

from .shards import is_sharded, local, placed_as, runs_of
from .stacked import count, members_of

HALVES = torch.bfloat16, torch.float16
FLOATS = torch.float32, torch.float64, *HALVES
CLOSURE = "Pass step(closure), a function that makes the loss and its gradient, and returns the mean loss."


# ---- layout


def precise(dtype: torch.dtype) -> torch.dtype:
    """The type in which steps compute for weights of a type.

    >>> precise(torch.bfloat16), precise(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in HALVES else dtype


def by_chain(t: torch.Tensor, chains: int) -> torch.Tensor:
    """The numbers of a dense tensor by chain, `(chains, sites)`, in the order of its memory; of a DTensor its part.

    >>> by_chain(torch.arange(6).reshape(2, 3).T, chains=1), by_chain(torch.zeros(2, 3, 5), chains=2).shape
    (tensor([[0, 1, 2, 3, 4, 5]]), torch.Size([2, 15]))
    """
    t = local(t)
    sites = t.numel() // chains
    return t.detach().as_strided((chains, sites), (sites, 1))


def end_to_end(tensors: Sequence[torch.Tensor], chains: int = 1) -> torch.Tensor:
    """The sites of all tensors, concatenated for each chain, `(chains, sites)`."""
    return torch.cat([by_chain(t, chains) for t in tensors], 1)


def put_back(sites: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Writes the sites of chains, `(chains, sites)`, into the tensors."""
    rows = [by_chain(t, len(sites)) for t in tensors]
    for row, part in zip(rows, sites.split([row.shape[1] for row in rows], 1)):
        row.copy_(part)


def gradient_of_U(
    params: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], num_data: int, weight_decay: float, chains: int
) -> torch.Tensor:
    """The gradient of U = num_data (loss + weight_decay theta^2/2) of each chain, `(chains, sites)`."""
    gradient = end_to_end(gradients, chains).mul_(num_data)
    if weight_decay:
        gradient.add_(end_to_end(params, chains), alpha=num_data * weight_decay)
    return gradient


# ---- gradients


def unreached(params: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of the parameters that the loss has not reached, whose `grad` is None where others' is not.

    >>> used, unused = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    >>> used.sum().backward()
    >>> unreached([used, unused]), unreached([unused])
    ([1], [])
    """
    without = [k for k, p in enumerate(params) if p.grad is None and p.requires_grad and not is_sharded(p)]
    return without if len(without) < len(params) else []


def usable_gradients(
    where: str, params: Sequence[torch.Tensor], index: int, skipped: Sequence[int]
) -> list[torch.Tensor]:
    """The gradients of a group's parameters in the parameters' memory order; of sharded ones the part on this rank.

    Zeros stand for the gradients of the parameters of the numbers `skipped`. Raises RecipeError for another that is
    missing, and for a gradient that is sparse or unlike its parameter in shape, type or device; `index` is the number
    of the group.
    """
    return [
        torch.zeros_like(p) if k in skipped else _usable(where, p, f"parameter {k} of group {index}")
        for k, p in enumerate(params)
    ]


def _usable(where: str, p: torch.Tensor, name: str) -> torch.Tensor:
    where_of_gradient = f"{where}, the gradient of {name}"
    where = f"{where}, step"
    if p.grad is None:
        what, do = f"{name} has no gradient", "Call loss.backward() first, and leave out what the loss does not use."
        if not p.requires_grad:
            what = f"{name} has been frozen since it was given"
            do = "Freeze what is not to move before the optimizer is made."
        raise RecipeError(where, what, do=do)
    g = placed_as(where_of_gradient, p.grad, p)
    p = local(p)
    if g.layout is not torch.strided:
        raise RecipeError(where, f"the gradient of {name} is sparse", do="Use sparse=False.")
    if g.dtype != p.dtype or g.device != p.device or g.shape != p.shape:
        what = f"the gradient of {name} is {_kind(g)}, the parameter {_kind(p)}"
        raise RecipeError(where, what, do="Call zero_grad() and loss.backward() anew.")
    values = plain(where_of_gradient, g) if g.is_neg() or type(g) is not torch.Tensor else g.detach()
    return values if values.stride() == p.stride() else torch.empty_like(p).copy_(values)


def _kind(t: torch.Tensor) -> str:
    return f"{t.dtype} {tuple(t.shape)} on {t.device}"


@torch.no_grad()
def check_finite(
    tensors: Mapping[str, Sequence[torch.Tensor]],
    of_chains: Sequence[str],
    arrivals: Arrivals,
    refuse: Callable[[str, bool], None],
) -> None:
    """Looks for tensors that are not finite, now, or on a GPU when their sizes have arrived.

    `tensors`: lists by what their numbers are of, gradients before weights and states; `of_chains`: labels of chains.
    `refuse` is called with words for the first such tensor, and whether weights or states are among them.
    """
    counts = {what: len(of_kind) for what, of_kind in tensors.items() if len(of_kind)}
    chains = len(of_chains)
    sizes = [_sizes(tensors[what], chains) for what in counts]

    def read(sizes: list[float]) -> None:
        if all(map(math.isfinite, sizes)):
            return
        places = [f"{what} {k} of {of}" for what, count in counts.items() for k in range(count) for of in of_chains]
        faults = [place for place, size in zip(places, sizes) if not math.isfinite(size)]
        refuse(faults[0], not faults[-1].startswith("the gradient"))

    if sizes:
        arrivals.send(torch.cat(sizes), read)


def _sizes(tensors: Sequence[torch.Tensor], chains: int) -> torch.Tensor:
    """A number of each tensor and chain that is finite if all entries are: a sum on the CPU, where maxima are slow."""
    parts = list(map(local, tensors)) if any(map(is_sharded, tensors[:1])) else tensors
    rows = parts if chains == 1 else [row for t in parts for row in by_chain(t, chains)]
    if is_near(rows[0]):
        return torch.stack([row.sum(dtype=precise(row.dtype)) for row in rows])
    return largest(rows)


def check_gradients_apart(where: str, params: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """Refuses gradients that overlap the parameters in memory, except gradients that are a whole parameter."""
    addresses = set(starts(params))
    named = [(f"the gradient of parameter {k}", g) for k, g in enumerate(gradients) if starts([g])[0] not in addresses]
    check_apart(where, named, [(f"parameter {k}", p) for k, p in enumerate(params)])


# ---- observations and losses


def observations_like(
    where: str, recipe: Recipe, values: Mapping[str, torch.Tensor], params: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The observations in the parameters' type: `(chains,)` for a scalar, `(chains, sites)` for a vector.

    Raises RecipeError for an observation with another number of values.
    """
    like = params[0]
    chains = count(params)
    observed = {}
    for o in recipe.observations:
        value = values[o.name]
        where_of_value = f"{where}, observe[{o.name!r}]"
        shape = (chains, sum(p.numel() for p in params) // chains) if o.is_vector else (chains,)
        check_plain(where_of_value, value)
        if value.is_complex() or value.numel() != math.prod(shape) or value.device != like.device:
            do = f"Pass {math.prod(shape)} real number(s) on {like.device}."
            raise RecipeError(where_of_value, f"it is {_kind(value)}", do=do)
        observed[o.name] = plain(where_of_value, value.to(precise(like.dtype))).reshape(shape)
    return observed


def values_of(where: str, groups: Sequence[Mapping[str, Any]], loss: Any) -> list[torch.Tensor | None]:
    """U = num_data loss + num_data weight_decay theta^2/2, the prior over all groups, `(chains,)`, for every group.

    `loss`: the mean over the data, a number, or one for each member of an ensemble. A group without weights has None.
    Raises RecipeError for any other loss, and on the CPU for one that is not finite.

    >>> theta = torch.tensor([3.0])
    >>> values_of("Optimizer", [{"params": [theta], "num_data": 10, "weight_decay": 0.1}], torch.tensor(2.0))
    [tensor([24.5000])]
    """
    losses = _losses(where, loss)
    prior = torch.zeros_like(losses)
    for group in groups:
        chains = count(group["params"])
        if group["params"] and len(losses) != chains:
            what = f"the closure returns {len(losses)} loss(es) for {chains} chain(s)"
            raise RecipeError(where, what, do="Return the loss of each member, as ensemble.losses(...) has them.")
        for p in group["params"] if group["weight_decay"] else ():
            squares = by_chain(p, chains).double().square().sum(1)
            prior += squares.to(losses.device) * (group["num_data"] * group["weight_decay"] / 2)
    firsts = [next(iter(group["params"]), None) for group in groups]
    return [
        None if first is None else (losses * group["num_data"] + prior).to(first.device, precise(first.dtype))
        for group, first in zip(groups, firsts)
    ]


def _losses(where: str, loss: Any) -> torch.Tensor:
    """A loss as a float64 tensor `(chains,)`."""
    if loss is None:
        raise RecipeError(where, "its formulas read U itself, and there is no loss", do=CLOSURE)
    if isinstance(loss, bool) or not isinstance(loss, (int, float, torch.Tensor)):
        raise RecipeError(where, f"the closure returns a {type(loss).__name__}, no loss", do=CLOSURE)
    losses = torch.as_tensor(loss).detach()
    if losses.dim() > 1 or losses.is_complex():
        raise RecipeError(where, f"the closure returns {losses.dtype} {tuple(losses.shape)}, no loss", do=CLOSURE)
    losses = losses.double().reshape(-1)
    if is_near(losses) and not bool(losses.isfinite().all()):
        raise RecipeError(where, f"the loss is {losses.tolist()}", do="Look at the data, or take a smaller lr.")
    return losses


# ---- parameters


def check_parameters(where: str, params: Sequence[torch.Tensor]) -> None:
    """Refuses parameters that cannot be moved; of sharded ones the part on this rank is looked at."""
    runs_of(where, params)
    parts = [local(p) for p in params]
    for k, (p, part) in enumerate(zip(params, parts)):
        check_plain(f"{where}, parameter {k}", part)
        fault = _fault(part, parts[0]) if p.requires_grad else "requires no gradient"
        fault = fault or _fault_of_members(p, params)
        if fault:
            raise RecipeError(
                where,
                f"parameter {k} {fault}",
                do="Pass real weights of one type and one device that the loss depends on; "
                "mixed precision keeps float32 weights and computes under torch.autocast.",
            )
    check_apart(where, [], [(f"parameter {k}", part) for k, part in enumerate(parts)])


def _fault(p: torch.Tensor, first: torch.Tensor) -> str | None:
    if p.dtype not in FLOATS:
        return f"is {p.dtype}"
    if p.is_neg():
        return "is a lazy negative: pass one of x.resolve_neg()"
    if (p.dtype, p.device) != (first.dtype, first.device):
        return f"is {p.dtype} on {p.device}, the first {first.dtype} on {first.device}"
    if p.numel() and torch.empty_like(p, device="meta").stride() != p.stride():  # where torch fills memory densely
        return "has holes in its memory"
    if not bool(p.isfinite().all()):
        return "is not finite"
    return None


def _fault_of_members(p: torch.Tensor, params: Sequence[torch.Tensor]) -> str | None:
    members = members_of(params)
    if members_of([p]) != members:
        here, first = (f"members {m.start} to {m.stop - 1}" if m else "one network" for m in (members_of([p]), members))
        return f"is of {here}, the first of {first}"
    if members and len(members) > 1 and p.numel() and p.stride(0) * len(members) != p.numel():
        return "has members that do not lie one after another in memory"
    return None
