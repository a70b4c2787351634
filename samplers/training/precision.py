"""Weights of half precision are moved as copies in float32, in which noise below their last digit adds up."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from integrators.kernels.addresses import Alike, starts
from integrators.late import is_near
from integrators.noise import Key

from .engines import TextEngine
from .tensors import precise

COPY = "copy in float32"  # among the state of a weight; no block bears this name


def copies_of(weights: Sequence[torch.Tensor], states: Mapping[torch.Tensor, dict[str, Any]]) -> Sequence[torch.Tensor]:
    """What is moved for weights: themselves, or those of half precision as the copies that their states keep."""
    if precise(weights[0].dtype) == weights[0].dtype:
        return weights
    for p in weights:
        copy = torch.empty_like(p, dtype=torch.float32, requires_grad=False)
        states[p][COPY] = copy.copy_(states[p].get(COPY, p))
    return [states[p][COPY] for p in weights]


class OnCopies:
    """An engine that moves copies of weights in float32, and rounds them to nearest into the weights.

    Weights that somebody else has written are copied anew; on a GPU, which is not waited for, those whose tensors count
    what is written, as they do not through `.data`.
    """

    def __init__(self, weights: Sequence[torch.Tensor], copies: Sequence[torch.Tensor], engine: TextEngine):
        self.weights = list(weights)
        self.copies = list(copies)
        self.engine = engine
        self.gradients = [torch.empty_like(x) for x in copies]
        self.starts = starts(weights)
        self.written = [p.detach().clone() for p in weights if is_near(p)]  # as weights are after a step
        self.as_weights = Alike(weights)
        self.as_gradients = Alike([p.detach() for p in weights])
        self._renew()

    def _renew(self):
        """Copy weights that are not their copies."""
        for p, x in zip(self.weights, self.copies):
            if not torch.equal(x.to(p.dtype), p):
                x.copy_(p)
        self._see_written()

    def _see_written(self):
        """Keep what tells whether weights are as they are now."""
        self.versions = [p._version for p in self.weights]
        if self.written:
            torch._foreach_copy_(self.written, self.weights)

    def _are_as_written(self):
        """Whether nobody has written into the weights."""
        if [p._version for p in self.weights] != self.versions:
            return False
        as_bits = map(_bits, self.written), map(_bits, self.weights)
        return not self.written or all(map(np.array_equal, *as_bits))

    def sees_infinities(self, group: Mapping[str, Any]) -> bool:
        """Whether the shortest gradient has numbers that are not finite, or too large together."""
        return self.engine.sees_infinities(group)

    def finds(self, group: Mapping[str, Any]) -> bool:
        """No look finds the gradients, which are copied."""
        return False

    def takes(self, gradients: Sequence[Any]) -> bool:
        """Whether the gradients are there, and lie in memory as the weights do."""
        return self.as_gradients(gradients)

    def fits(self, group: Mapping[str, Any]) -> bool:
        """Whether it is still these weights that move, where they were."""
        return starts(group["params"]) == self.starts and self.engine.fits({**group, "params": self.copies})

    def fits_closely(self, group: Mapping[str, Any]) -> bool:
        """Whether they are also of the form that they were of."""
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
        """One step of size h, by the gradients of the mean loss and the noise of a key; `value` is U."""
        if not self._are_as_written():
            self._renew()
        torch._foreach_copy_(self.gradients, list(gradients))
        self.engine.move(h, self.gradients, key, observe, value, **settings)
        torch._foreach_copy_(self.weights, self.copies)
        self._see_written()


def _bits(t: torch.Tensor) -> np.ndarray:
    """The bits of numbers of half precision, in the memory of the host."""
    return t.detach().view(torch.int16).numpy()
