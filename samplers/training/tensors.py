"""Parameters and gradients of an optimizer: checks, and their layout in memory."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from integrators.kernels.addresses import check_apart, check_plain, plain, starts
from integrators.transfers import Arrivals, largest
from recipe import Recipe
from recipe.errors import RecipeError

from .shards import check_sharded, local, placed_as
from .stacked import count, labels, members_of

HALVES = torch.bfloat16, torch.float16
FLOATS = torch.float32, torch.float64, *HALVES


def precise(dtype: torch.dtype) -> torch.dtype:
    """The type in which steps compute for weights of a type.

    >>> precise(torch.bfloat16), precise(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in HALVES else dtype


def flat(t: torch.Tensor) -> torch.Tensor:
    """The numbers of a dense tensor, or of the part of a DTensor on this rank, in memory order, as one axis.

    >>> x = torch.arange(6.0).reshape(2, 3).T
    >>> flat(x)
    tensor([0., 1., 2., 3., 4., 5.])
    """
    t = local(t)
    return t.detach().view(-1) if t.is_contiguous() else t.detach().as_strided((t.numel(),), (1,))


def by_chain(t: torch.Tensor, chains: int) -> torch.Tensor:
    """The numbers of a dense tensor by chain, `(chains, sites)`, in the order of its memory.

    >>> by_chain(torch.zeros(2, 3, 5), chains=2).shape, by_chain(torch.zeros(2, 3, 5), chains=1).shape
    (torch.Size([2, 15]), torch.Size([1, 30]))
    """
    numbers = flat(t)
    return numbers.view(chains, numbers.numel() // chains)


def end_to_end(tensors: Sequence[torch.Tensor], chains: int = 1) -> torch.Tensor:
    """The sites of all tensors, concatenated for each chain, `(chains, sites)`."""
    return torch.cat([by_chain(t, chains) for t in tensors], 1)


def put_back(sites: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Writes the sites of chains, `(chains, sites)`, into the tensors."""
    chains = len(sites)
    numbers = [flat(t) for t in tensors]
    for own, part in zip(numbers, sites.split([own.numel() // chains for own in numbers], 1)):
        own.view(part.shape).copy_(part)


def gradient_of_U(
    params: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    num_data: int,
    weight_decay: float,
    chains: int = 1,
) -> torch.Tensor:
    """The gradient of U = num_data (loss + weight_decay theta^2/2) of each chain, `(chains, sites)`."""
    gradient = end_to_end(gradients, chains).mul_(num_data)
    if weight_decay:
        gradient.add_(end_to_end(params, chains), alpha=num_data * weight_decay)
    return gradient


def usable_gradients(where: str, params: Sequence[torch.Tensor], index: int) -> list[torch.Tensor]:
    """The gradients of a group's parameters in the parameters' memory order; of sharded ones the part on this rank.

    Raises RecipeError for a gradient that is missing, sparse or unlike its parameter in shape, type or device; `index`
    is the number of the group.
    """
    return [_usable(where, p, f"parameter {k} of group {index}") for k, p in enumerate(params)]


def _usable(where: str, p: torch.Tensor, name: str) -> torch.Tensor:
    g = p.grad
    if g is None and not p.requires_grad:
        raise RecipeError(
            f"{where}, step",
            f"{name} has been frozen since it was given",
            do="Freeze what is not to move before the optimizer is made.",
        )
    if g is None:
        raise RecipeError(
            f"{where}, step",
            f"{name} has no gradient",
            do="Call loss.backward() first, and leave out what the loss does not use.",
        )
    p, g = local(p), local(placed_as(f"{where}, the gradient of {name}", g, p))
    if g.layout is not torch.strided:
        raise RecipeError(f"{where}, step", f"the gradient of {name} is sparse", do="Use sparse=False.")
    if g.dtype != p.dtype or g.device != p.device or g.shape != p.shape:
        raise RecipeError(
            f"{where}, step",
            f"the gradient of {name} is {_kind(g)}, the parameter {_kind(p)}",
            do="Call zero_grad() and loss.backward() anew.",
        )
    values = plain(f"{where}, the gradient of {name}", g) if g.is_neg() or type(g) is not torch.Tensor else g.detach()
    return values if values.stride() == p.stride() else torch.empty_like(p).copy_(values)


def _kind(t: torch.Tensor) -> str:
    return f"{t.dtype} {tuple(t.shape)} on {t.device}"


def observations_like(
    where: str, recipe: Recipe, values: Mapping[str, torch.Tensor], params: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The observations in the parameters' type: `(chains,)` for a scalar, `(chains, sites)` for a vector.

    Raises RecipeError for an observation with another number of values.
    """
    chains = count(params)
    sites = sum(p.numel() for p in params) // chains
    observed = {o.name: (chains, sites) if o.is_vector else (chains,) for o in recipe.observations}
    return {
        name: _observation(f"{where}, observe[{name!r}]", values[name], observed[name], params[0]) for name in observed
    }


def _observation(where: str, value: torch.Tensor, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    check_plain(where, value)
    if value.is_complex() or value.numel() != math.prod(shape) or value.device != like.device:
        raise RecipeError(
            where, f"it is {_kind(value)}", do=f"Pass {math.prod(shape)} real number(s) on {like.device}."
        )
    return plain(where, value.to(precise(like.dtype))).reshape(shape)


def check_gradients(
    where: str, group: Mapping[str, Any], gradients: Sequence[torch.Tensor], index: int, arrivals: Arrivals
) -> None:
    """Refuses gradients that are not finite: on the CPU before the step, on a GPU when their sizes have arrived."""
    step = group["step_number"]
    params = group["params"]
    chains = [(k, label, c) for k in range(len(params)) for c, label in enumerate(labels(index, params))]
    number = count(params)

    def read(sizes: list[float]) -> None:
        for (k, of, chain), size in zip(chains, sizes):
            if math.isfinite(size):
                continue
            advice = "look at the loss, or take a smaller lr."
            if not bool(by_chain(params[k], number)[chain].isfinite().all()):
                advice = f"and so are its weights: go back to a checkpoint and {advice}"
            raise RecipeError(
                f"{where}, step",
                f"the gradient of parameter {k} of {of} is not finite at step {step}",
                do=advice.capitalize(),
            )

    arrivals.send(largest([row for g in gradients for row in by_chain(g, number)]), read)


def check_gradients_apart(where: str, params: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """Refuses gradients that overlap the parameters in memory, except gradients that are a whole parameter."""
    own = set(starts(params))
    others = [(f"the gradient of parameter {k}", g) for k, g in enumerate(gradients) if starts([g])[0] not in own]
    check_apart(where, others, [(f"parameter {k}", p) for k, p in enumerate(params)])


def check_parameters(where: str, params: Sequence[torch.Tensor]) -> None:
    """Refuses parameters that cannot be moved; of sharded ones the part on this rank is looked at."""
    check_sharded(where, params)
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
    if not _is_dense(p):
        return "has holes in its memory"
    if not bool(p.isfinite().all()):
        return "is not finite"
    return None


def _fault_of_members(p: torch.Tensor, params: Sequence[torch.Tensor]) -> str | None:
    members = members_of(params)
    if members_of([p]) != members:
        return f"is of {_of(members_of([p]))}, the first of {_of(members)}"
    if members and len(members) > 1 and p.numel() and p.stride(0) * len(members) != p.numel():
        return "has members that do not lie one after another in memory"
    return None


def _of(members: range | None) -> str:
    return "one network" if members is None else f"members {members.start} to {members.stop - 1}"


def _is_dense(t: torch.Tensor) -> bool:
    """Whether the numbers of a tensor fill a stretch of memory without holes."""
    if not t.numel():
        return True
    size = 1
    for stride, n in sorted((s, n) for s, n in zip(t.stride(), t.shape) if n != 1):
        if stride != size:
            return False
        size *= n
    return True
