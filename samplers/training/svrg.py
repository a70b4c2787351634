"""Variance reduction of minibatch gradients in a training loop, by a snapshot of the weights (SVRG)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.utils import get_total_norm

from recipe.arguments import integer
from recipe.errors import RecipeError

from ..results.tensor_checks import check_tensors
from ..target.layers import fault_of
from ..target.means import check_mean, chunks
from .minibatches import Minibatches, Rows

OTHER = 0.1  # least relative distance of two gradients beyond rounding and mixed precision
ENTRIES = {"steps", "every", "snapshot", "gradient"}  # of a state
OF_RANKS = (
    "averages gradients over ranks before they are corrected",
    "Pass the module in it, and average after correct().",
)

Weights = dict[str, torch.Tensor]  # by name


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
        if not callable(loss):
            what = f"it is a function of (model, batch), got {loss!r}"
            raise RecipeError("SVRG, loss", what, do="Pass the loss of the training loop.")
        self.loss = Loss(model, loss)
        self.source = data.source if isinstance(data, Minibatches) else Rows(data, "SVRG")
        self.every = integer("SVRG, every", "every", every, least=1)
        self.chunk = integer("SVRG, chunk", "chunk", chunk, least=1)
        self.weights = {name: p for name, p in self.loss.weights.items() if p.requires_grad}
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
        at_snapshot = self.loss.gradient(self._snapshot, batch)
        if self.steps == 0:
            _check_same(list(at_snapshot.values()), list(gradients.values()))
        with torch.no_grad():
            for name, g in gradients.items():
                g.add_(self._full[name] - at_snapshot[name])
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and copies of the snapshot and its full gradient by name."""
        snapshot, full = ({name: x.clone() for name, x in tensors.items()} for tensors in (self._snapshot, self._full))
        return {"steps": self.steps, "every": self.every, "snapshot": snapshot, "gradient": full}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of `state_dict`, bit for bit.

        Raises RecipeError for a state of other weights or another `every`.
        """
        where = "SVRG, load_state_dict"
        if not isinstance(state, Mapping) or set(state) != ENTRIES:
            raise RecipeError(where, "it is no state of an SVRG", do="Pass what state_dict() returned.")
        if state["every"] != self.every:
            what = f"it is the state of every = {state['every']}, here it is {self.every}"
            raise RecipeError(where, what, do="Make the same one.")
        steps = integer(where, "steps", state["steps"], least=0)
        check_tensors(where, [*state["snapshot"].values(), *state["gradient"].values()])
        mine = _shapes(self.weights)
        for tensors in (state["snapshot"], state["gradient"]):
            shapes = _shapes(tensors)
            if shapes != mine and (shapes or state["steps"]):
                what = f"it is the state of the weights {shapes}, here they are {mine}"
                raise RecipeError(where, what, do="Make the same model.")
        self._snapshot, self._full = (
            {name: x.to(self.weights[name], copy=True) for name, x in state[key].items()}
            for key in ("snapshot", "gradient")
        )
        self.steps = steps

    def _gradients(self) -> Weights:
        """p.grad of all weights."""
        gradients = {}
        for name, p in self.weights.items():
            if p.grad is None or p.grad.layout is not torch.strided:
                what = f"the weight {name} has {'no' if p.grad is None else 'a sparse'} gradient"
                do = "Call loss.backward() first, and pass the weights that the loss uses, with dense gradients."
                raise RecipeError("SVRG, correct", what, do=do)
            gradients[name] = p.grad
        return gradients

    def _take_snapshot(self) -> None:
        snapshot = {name: p.detach().clone() for name, p in self.weights.items()}
        take, rows = self.source.take, self.source.num_data
        if self.steps == 0:
            with torch.no_grad():
                value = lambda batch: self.loss.value(snapshot, batch)  # noqa: E731
                check_mean("SVRG, loss", value, take, rows, self.chunk, wanted="the mean over the batch")
        full = {name: torch.zeros_like(x) for name, x in snapshot.items()}
        for share, batch in chunks(take, rows, self.chunk):
            for name, g in self.loss.gradient(snapshot, batch).items():
                full[name] += share * g
        self._snapshot, self._full = snapshot, full


class Loss:
    """loss(model, batch) of a training loop at other weights than the model's, by name.

    `model`: an nn.Module, which is called with these weights and copies of its buffers, or weights in a list or a dict.
    Raises RecipeError for other models, and for a loss that is no 0-dim tensor or does not depend on the weights.
    """

    def __init__(self, model: Any, loss: Callable):
        self.model = model
        self.loss = loss
        advice = "Pass an nn.Module, or a list or dict of weights."
        if isinstance(model, torch.nn.Module):
            self.whole = _Whole(model, loss)
            self.weights = dict(model.named_parameters())
            return
        if torch.is_tensor(model) or not isinstance(model, (Mapping, Iterable)):
            raise RecipeError("SVRG, model", f"got a {type(model).__name__}", do=advice)
        self.model = model if isinstance(model, Mapping) else list(model)
        named = self.model.items() if isinstance(model, Mapping) else enumerate(self.model)
        self.weights = {str(name): p for name, p in named}
        if not all(map(torch.is_tensor, self.weights.values())):
            raise RecipeError("SVRG, model", "a weight is no tensor", do=advice)

    def check(self) -> None:
        """Refuses modules that make the loss random, or couple the examples of a batch."""
        if isinstance(self.model, torch.nn.Module):
            check_modules("SVRG, model", self.model)

    def value(self, weights: Weights, batch: Any) -> torch.Tensor:
        """The loss of a batch at these weights."""
        if isinstance(self.model, torch.nn.Module):
            replaced = {name: b.clone() for name, b in self.whole.named_buffers()}
            replaced |= {f"model.{name}": x for name, x in weights.items()}
            x = functional_call(self.whole, replaced, (batch,))
        else:
            whole = self.weights | weights
            like = self.model
            x = self.loss(dict(zip(like, whole.values())) if isinstance(like, Mapping) else [*whole.values()], batch)
        if torch.is_tensor(x) and not x.dim():
            return x
        got = f"a tensor of shape {tuple(x.shape)}" if torch.is_tensor(x) else f"a {type(x).__name__}"
        raise RecipeError("SVRG, loss", f"it returns {got}", do="Return the mean over the batch, a 0-dim tensor.")

    def gradient(self, weights: Weights, batch: Any) -> Weights:
        """The gradient of the loss of a batch by these weights."""
        with torch.enable_grad():
            at = {name: x.detach().requires_grad_() for name, x in weights.items()}
            x = self.value(at, batch)
            if not x.requires_grad:
                what = "it does not depend on the model that it is given"
                raise RecipeError("SVRG, loss", what, do="Compute it from its arguments.")
            return dict(zip(at, torch.autograd.grad(x, list(at.values()), materialize_grads=True)))


class _Whole(torch.nn.Module):
    """The loss as a module around the model, so that functional_call can replace the model's weights."""

    def __init__(self, model: torch.nn.Module, loss: Callable):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any) -> Any:
        return self.loss(self.model, batch)


def check_modules(where: str, model: torch.nn.Module) -> None:
    """Refuses a network with modules that make the loss random, or couple the examples of a batch."""
    for name, module in model.named_modules():
        fault, advice = OF_RANKS if isinstance(module, torch.nn.parallel.DistributedDataParallel) else fault_of(module)
        if fault:
            raise RecipeError(where, f"{name or 'it'}, a {type(module).__name__}, {fault}", do=advice)


def _check_same(mine: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    """Refuses a loss whose gradient differs from p.grad while theta is the snapshot."""
    distance = float(get_total_norm([a - b for a, b in zip(mine, other)]))
    size = max(float(get_total_norm(gradients)) for gradients in (mine, other))
    if distance > OTHER * size:
        what = f"p.grad differs from the gradient of the loss on this batch by {distance:.2g} of {size:.2g}"
        do = "Pass the loss of backward(), without randomness, and zero the gradients before it."
        raise RecipeError("SVRG, correct", what, do=do)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in tensors.items()}
