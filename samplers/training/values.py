"""The value of U, for formulas that read U itself, from the loss that a closure returns."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from integrators.transfers import is_near
from recipe.errors import RecipeError

from .stacked import count
from .tensors import by_chain, precise

ADVICE = "Pass step(closure), a function that makes the loss and its gradient, and returns the mean loss."


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
    return [_of_group(group, losses, prior) for group in groups]


def _of_group(group: Mapping[str, Any], losses: torch.Tensor, prior: torch.Tensor) -> torch.Tensor | None:
    """U of each chain, in the type in which steps of the group compute."""
    if not group["params"]:
        return None
    first = group["params"][0]
    return (losses * group["num_data"] + prior).to(first.device, precise(first.dtype))


def _losses(where: str, loss: Any) -> torch.Tensor:
    """A loss as a float64 tensor `(chains,)`."""
    if loss is None:
        raise RecipeError(where, "its formulas read U itself, and there is no loss", do=ADVICE)
    if isinstance(loss, bool) or not isinstance(loss, (int, float, torch.Tensor)):
        raise RecipeError(where, f"the closure returns a {type(loss).__name__}, no loss", do=ADVICE)
    losses = torch.as_tensor(loss).detach()
    if losses.dim() > 1 or losses.is_complex():
        raise RecipeError(where, f"the closure returns {losses.dtype} {tuple(losses.shape)}, no loss", do=ADVICE)
    losses = losses.double().reshape(-1)
    if is_near(losses) and not bool(losses.isfinite().all()):
        raise RecipeError(where, f"the loss is {losses.tolist()}", do="Look at the data, or take a smaller lr.")
    return losses
