"""Variance reduction of minibatch gradients in a training loop, by a snapshot of the weights (SVRG)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from recipe.arguments import integer
from recipe.errors import RecipeError

from ..target.means import check_mean, chunks
from .losses import Weights, gradient, loss_of, value
from .minibatches import Minibatches
from .sources import source_of

OTHER = 0.1  # least relative distance of two gradients beyond rounding and mixed precision
ENTRIES = {"steps", "every", "snapshot", "gradient"}  # of a state


class SVRG:
    """Variance reduction of the gradients of a training loop, by a snapshot of the weights and its full gradient.

    After `loss.backward()`, `correct(batch)` replaces p.grad = g~(theta) by g~(theta) - g~(s) + g(s), where s is the
    snapshot, taken every `every` steps, and g~(s) the gradient of the same batch there. The result has the same mean,
    no variance while theta = s, and costs one gradient more, and at a snapshot the gradient of all data.

    `model`: an nn.Module, or its weights in a list or a dict by name. `loss(model, batch)`: the mean over the batch, in
    the form of `model`; the modules are called with the snapshot and copies of their buffers
    (torch.func.functional_call), so that weights and buffers do not change. `data`: all data, as for `Minibatches`, or
    a `Minibatches`, read `chunk` rows at a time, without random augmentation. Correct gradients before clipping and
    before averaging over ranks, and after unscaling.

    Raises RecipeError for dropout and batch normalisation in training mode, which make the loss at s random or no mean
    over examples, and for a loss whose gradient is not p.grad.

    Sources: Johnson & Zhang 2013; Dubey et al. 2016 (SVRG-LD).

    >>> X, model = torch.linspace(0, 1, 8)[:, None], torch.nn.Linear(1, 1)
    >>> loss = lambda model, x: (model(x) - x**2).square().mean()
    >>> svrg = SVRG(model, loss, X, every=100)
    >>> loss(model, X[:2]).backward()
    >>> svrg.correct(X[:2])
    >>> at_snapshot = model.weight.grad.clone()
    >>> model.zero_grad()
    >>> loss(model, X).backward()
    >>> torch.allclose(at_snapshot, model.weight.grad)
    True
    """

    def __init__(self, model: Any, loss: Callable, data: Any, *, every: int, chunk: int = 1024):
        self.loss = loss_of(model, loss)
        self.source = data.source if isinstance(data, Minibatches) else source_of(data, "SVRG")
        self.every = integer("SVRG, every", "every", every, least=1)
        self.chunk = integer("SVRG, chunk", "chunk", chunk, least=1)
        self.weights: Weights = {name: p for name, p in self.loss.weights.items() if p.requires_grad}
        if not self.weights:
            raise RecipeError("SVRG, model", "no weight requires a gradient", do="Pass the weights that are trained.")
        self.loss.check()
        self.steps = 0
        self._snapshot: Weights = {}
        self._full: Weights = {}

    def correct(self, batch: Any) -> None:
        """Corrects the gradient of this batch in p.grad; takes a new snapshot of the weights every `every` steps.

        Raises RecipeError, and leaves p.grad unchanged, where a weight has no gradient.
        """
        self.loss.check()
        gradients = self._gradients()
        if self.steps % self.every == 0:
            self._take_snapshot()
        at_snapshot = gradient(self.loss, self._snapshot, batch)
        if self.steps == 0:
            _check_same(list(at_snapshot.values()), list(gradients.values()))
        with torch.no_grad():
            for name, g in gradients.items():
                g.add_(self._full[name] - at_snapshot[name])
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and copies of the snapshot and its full gradient by name."""
        return {
            "steps": self.steps,
            "every": self.every,
            "snapshot": {name: x.clone() for name, x in self._snapshot.items()},
            "gradient": {name: x.clone() for name, x in self._full.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of `state_dict`, bit for bit.

        Raises RecipeError for a state of other weights or another `every`.
        """
        where = "SVRG, load_state_dict"
        if not isinstance(state, Mapping) or set(state) != ENTRIES:
            raise RecipeError(where, "it is no state of an SVRG", do="Pass what state_dict() returned.")
        if state["every"] != self.every:
            raise RecipeError(
                where, f"it is the state of every = {state['every']}, here it is {self.every}", do="Make the same one."
            )
        mine = _shapes(self.weights)
        for tensors in (state["snapshot"], state["gradient"]):
            shapes = _shapes(tensors)
            if shapes != mine and (shapes or state["steps"]):
                raise RecipeError(
                    where, f"it is the state of the weights {shapes}, here they are {mine}", do="Make the same model."
                )
        self._snapshot = self._copies(state["snapshot"])
        self._full = self._copies(state["gradient"])
        self.steps = state["steps"]

    def _copies(self, tensors: Mapping[str, torch.Tensor]) -> Weights:
        return {name: x.to(self.weights[name], copy=True) for name, x in tensors.items()}

    def _gradients(self) -> Weights:
        """p.grad of all weights."""
        gradients = {}
        for name, p in self.weights.items():
            if p.grad is None or p.grad.layout is not torch.strided:
                kind = "no" if p.grad is None else "a sparse"
                raise RecipeError(
                    "SVRG, correct",
                    f"the weight {name} has {kind} gradient",
                    do="Call loss.backward() first, and pass the weights that the loss uses, with dense gradients.",
                )
            gradients[name] = p.grad
        return gradients

    def _take_snapshot(self) -> None:
        snapshot = {name: p.detach().clone() for name, p in self.weights.items()}
        if self.steps == 0:
            self._check_mean(snapshot)
        full = {name: torch.zeros_like(x) for name, x in snapshot.items()}
        for share, batch in chunks(self.source.take, self.source.num_data, self.chunk):
            for name, g in gradient(self.loss, snapshot, batch).items():
                full[name] += share * g
        self._snapshot = snapshot
        self._full = full

    def _check_mean(self, weights: Weights) -> None:
        with torch.no_grad():
            check_mean(
                "SVRG, loss",
                lambda batch: value(self.loss, weights, batch),
                self.source.take,
                self.source.num_data,
                self.chunk,
                wanted="the mean over the batch",
            )


def _check_same(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """Refuses a loss whose gradient differs from p.grad while theta is the snapshot."""
    apart = _norm(a - b for a, b in zip(mine, theirs))
    size = max(_norm(mine), _norm(theirs))
    if apart > OTHER * size:
        raise RecipeError(
            "SVRG, correct",
            f"p.grad differs from the gradient of the loss on this batch by {apart:.2g} of {size:.2g}",
            do="Pass the loss of backward(), without randomness, and zero the gradients before it.",
        )


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return float(torch.stack([x.norm() for x in tensors]).norm())


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in tensors.items()}
