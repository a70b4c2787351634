"""Half-precision weights, moved as copies in float32, in which noise below the weights' last digit adds up."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from integrators.kernels.addresses import Alike, starts
from integrators.noise import Key
from integrators.transfers import is_near

from .engines import TextEngine
from .tensors import precise

COPY = "copy in float32"  # key in the state of a weight; no block bears this name


def copies_of(weights: Sequence[torch.Tensor], states: Mapping[torch.Tensor, dict[str, Any]]) -> Sequence[torch.Tensor]:
    """The tensors that steps move: the weights, or for half precision their float32 copies, made in their states."""
    if precise(weights[0].dtype) == weights[0].dtype:
        return weights
    for p in weights:
        copy = torch.empty_like(p, dtype=torch.float32, requires_grad=False)
        states[p][COPY] = copy.copy_(states[p].get(COPY, p))
    return [states[p][COPY] for p in weights]


class OnCopies:
    """An engine that moves float32 copies of weights, and rounds the copies to nearest into the weights.

    Weights that other code has written are copied anew. On a GPU, which is not waited for, writes are noticed by the
    tensor's version counter, which writes through `.data` bypass.
    """

    def __init__(self, weights: Sequence[torch.Tensor], copies: Sequence[torch.Tensor], engine: TextEngine):
        self.weights = list(weights)
        self.copies = list(copies)
        self.engine = engine
        self.gradients = [torch.empty_like(x) for x in copies]
        self.starts = starts(weights)
        self.written = [p.detach().clone() for p in weights if is_near(p)]  # values of the weights after a step
        self.as_weights = Alike(weights)
        self.as_gradients = Alike([p.detach() for p in weights])
        self._renew()

    def _renew(self):
        """Copies weights anew that differ from their rounded copies."""
        for p, x in zip(self.weights, self.copies):
            if not torch.equal(x.to(p.dtype), p):
                x.copy_(p)
        self._see_written()

    def _see_written(self):
        """Records the weights' version counters, and on the CPU their values."""
        self.versions = [p._version for p in self.weights]
        if self.written:
            torch._foreach_copy_(self.written, self.weights)

    def _are_as_written(self):
        """Whether the weights are unchanged since the last step."""
        if [p._version for p in self.weights] != self.versions:
            return False
        as_bits = map(_bits, self.written), map(_bits, self.weights)
        return not self.written or all(map(np.array_equal, *as_bits))

    def sees_infinities(self, group: Mapping[str, Any]) -> bool:
        """Whether the shortest gradient has numbers that are not finite, or too large together."""
        return self.engine.sees_infinities(group)

    def finds(self, group: Mapping[str, Any]) -> bool:
        """Returns False: gradients are copied, so the engine does not find them itself."""
        return False

    def takes(self, gradients: Sequence[Any]) -> bool:
        """Whether the gradients are there, and lie in memory as the weights do."""
        return self.as_gradients(gradients)

    def fits(self, group: Mapping[str, Any]) -> bool:
        """Whether the group has the same weights, at the same addresses."""
        return starts(group["params"]) == self.starts and self.engine.fits({**group, "params": self.copies})

    def fits_closely(self, group: Mapping[str, Any]) -> bool:
        """Whether the group's weights also have the same shapes, strides and types."""
        return self.fits(group) and self.as_weights(group["params"])

    def move(
        self,
        h: float,
        gradients: Sequence[torch.Tensor],
        key: Key,
        observe: Mapping[str, torch.Tensor],
        value: torch.Tensor | None = None,
        /,
        **settings: Any,
    ) -> None:
        """Makes one step of size h from the gradients of the mean loss and the noise of a key; `value` is U."""
        if not self._are_as_written():
            self._renew()
        torch._foreach_copy_(self.gradients, list(gradients))
        self.engine.move(h, self.gradients, key, observe, value, **settings)
        torch._foreach_copy_(self.weights, self.copies)
        self._see_written()


def _bits(t: torch.Tensor) -> np.ndarray:
    """The bits of a half-precision tensor as int16, in the memory of the host."""
    return t.detach().view(torch.int16).numpy()
