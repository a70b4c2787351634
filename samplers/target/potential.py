"""A potential U of all chains at once: its value, its slope and the diagonal of its Hessian."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from recipe.errors import RecipeError

Blocks = dict[str, torch.Tensor]  # of z: `(chains, *shape)`, or `(chains,)` for a scalar block
Position = torch.Tensor | Blocks  # of the target: by block where it has several
Orders = Set[int]  # of derivatives: 0 the value, 1 the slope, 2 the diagonal of the Hessian

VALUE: Orders = frozenset({0})
SLOPE: Orders = frozenset({1})
CURVATURE: Orders = frozenset({2})

# Other threads, other widths of vmap and other orders of sums move the gradients of networks by up to 2e-6 of their
# length in float32, and 2e-15 in float64 (tests/rounding.py). A larger difference is another function; the margin is
# wide, because draws could not show so small a difference of posteriors.
ROUNDING = {torch.float32: 5e-5, torch.float64: 1e-10}


@dataclass(frozen=True, slots=True)
class Jet:
    """U of all chains, `(chains,)`; slope and Hessian diagonal, in the form of the position; None if not computed."""

    value: Any = None
    slope: Any = None
    curvature: Any = None


class Potential(Protocol):
    """A function U of the position and, with data, of a batch."""

    @property
    def reads_data(self) -> bool:
        """Whether U takes the batch."""

    def jet(self, z: Any, *batch: Any, orders: Orders, per_chain: bool = False, faults: list[str] | None = None) -> Jet:
        """The derivatives of the given orders; `per_chain`: whether the batch has an axis of chains.

        If `faults` is a list, errors of U at the state of a chain are added to the list, and U of the chain is nan.
        """


def differentiated(U: Callable[[Any], torch.Tensor], z: Any) -> Jet:
    """The value and the slope of U at the position z, by autograd.

    >>> differentiated(lambda x: (x**2).sum(-1), torch.ones(1, 2))
    Jet(value=tensor([2.]), slope=tensor([[2., 2.]]), curvature=None)
    """
    leaves, form = tree_flatten(z)
    at = [x.detach().requires_grad_() for x in leaves]
    with torch.enable_grad():
        value = U(tree_unflatten(at, form))
        total = value.sum() if value.dim() else value
    if value.is_meta:
        raise RecipeError("sample, energy", "its value is on the device 'meta', no number", do="Compute a number.")
    slopes = torch.autograd.grad(total, at, materialize_grads=True)
    return Jet(value.detach(), tree_unflatten(slopes, form))
