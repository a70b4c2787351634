"""Minibatch gradients of less variance in a training loop, by a snapshot of the weights (SVRG)."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from recipe.errors import RecipeError

from ..energies.control_variates import _check_int, _check_mean, _chunks
from .minibatches import Minibatches, Source

OTHER = 0.1  # relative distance from which on two gradients are not the same up to rounding and mixed precision


class SVRG:
    """Less variance in the gradients of a training loop: every `every` steps a snapshot of the weights and its full gradient.

    After `loss.backward()`, `correct(batch)` makes of p.grad g~(theta) - g~(s) + g(s), where s is the snapshot and g~(s)
    the gradient of the same batch there. It is as unbiased, without variance while theta = s, and costs one gradient more,
    and at a snapshot one of all data.

    `model`: an nn.Module, or its weights in a list or a dict by name. `loss(model, batch)`: the mean over the batch, in the
    form of `model`; the modules are called with the snapshot in them (torch.func.functional_call) and copies of their
    buffers, so both stay as they are. `data`: all data, as for `Minibatches`, or `Minibatches` of them, read `chunk` rows at
    a time, without random augmentation. Correct gradients before they are clipped or averaged over ranks, and after they
    are unscaled. Raises RecipeError for dropout and batch normalisation in training mode, with which the loss at s is
    random or no mean, and for a loss that is not the one whose gradient is in p.grad.
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

    def __init__(self, model, loss: Callable, data, *, every: int, chunk: int = 1024):
        self.model, self.loss, self.every, self.chunk, self.steps = model, loss, every, chunk, 0
        if not callable(loss):
            raise RecipeError(
                "SVRG, loss",
                f"it is a function of (model, batch), got {loss!r}",
                do="Pass the loss of the training loop.",
            )
        self.source = data.source if isinstance(data, Minibatches) else Source(data, "SVRG")
        for name in ("every", "chunk"):
            _check_int(f"SVRG, {name}", getattr(self, name), 1)
        if isinstance(model, torch.nn.Module):
            named, self._module = model.named_parameters(), _Loss(model, loss)
        else:
            self._module = None
            if torch.is_tensor(model) or not isinstance(model, (Mapping, Iterable)):
                raise RecipeError(
                    "SVRG, model",
                    f"got a {type(model).__name__}",
                    do="Pass an nn.Module, or a list or dict of weights.",
                )
            if not isinstance(model, Mapping):
                self.model = list(model)
            named = model.items() if isinstance(model, Mapping) else enumerate(self.model)
        weights = {str(name): p for name, p in named}
        if not all(torch.is_tensor(p) for p in weights.values()):
            raise RecipeError(
                "SVRG, model", "a weight is no tensor", do="Pass an nn.Module, or a list or dict of weights."
            )
        self.weights = {name: p for name, p in weights.items() if p.requires_grad}
        self._fixed = {name: p for name, p in weights.items() if not p.requires_grad}
        if not self.weights:
            raise RecipeError("SVRG, model", "no weight requires a gradient", do="Pass the weights that are trained.")
        self._snapshot: dict[str, torch.Tensor] = {}
        self._full: dict[str, torch.Tensor] = {}
        self._check_modules()

    def correct(self, batch) -> None:
        """Correct the gradient of this batch in p.grad, at a snapshot of the weights that is taken now if it is time.

        Raises RecipeError, and leaves p.grad as it was, where a weight has none.
        """
        self._check_modules()
        for name, p in self.weights.items():
            if p.grad is None or p.grad.layout is not torch.strided:
                raise RecipeError(
                    "SVRG, correct",
                    f"the weight {name} has {'no' if p.grad is None else 'a sparse'} gradient",
                    do="Call loss.backward() first, and pass the weights that the loss uses, with dense gradients.",
                )
        if self.steps % self.every == 0:
            self._take_snapshot()
        slopes = self._gradient(self._snapshot, batch)
        if self.steps == 0:
            self._compare(slopes)
        with torch.no_grad():
            for name, p in self.weights.items():
                p.grad.add_(self._full[name] - slopes[name])
        self.steps += 1

    def state_dict(self) -> dict:
        """The number of steps, the snapshot and its full gradient by name; copies."""
        copy = lambda tensors: {name: x.clone() for name, x in tensors.items()}
        return {
            "steps": self.steps,
            "every": self.every,
            "snapshot": copy(self._snapshot),
            "gradient": copy(self._full),
        }

    def load_state_dict(self, state: Mapping) -> None:
        """Go on from what `state_dict` gave, bit for bit. Raises RecipeError if it is of other weights or another `every`."""
        where, shapes = "SVRG, load_state_dict", {name: tuple(p.shape) for name, p in self.weights.items()}
        if not isinstance(state, Mapping) or set(state) != {"steps", "every", "snapshot", "gradient"}:
            raise RecipeError(where, "it is no state of an SVRG", do="Pass what state_dict() returned.")
        if state["every"] != self.every:
            raise RecipeError(
                where, f"it is the state of every = {state['every']}, here it is {self.every}", do="Make the same one."
            )
        for tensors in (state["snapshot"], state["gradient"]):
            found = {name: tuple(x.shape) for name, x in tensors.items()}
            if found != shapes and (found or state["steps"]):
                raise RecipeError(
                    where, f"it is the state of the weights {found}, here they are {shapes}", do="Make the same model."
                )
        self.steps = state["steps"]
        self._snapshot, self._full = (
            {name: x.to(self.weights[name], copy=True) for name, x in state[part].items()}
            for part in ("snapshot", "gradient")
        )

    def _take_snapshot(self):
        snapshot = {name: p.detach().clone() for name, p in self.weights.items()}
        if self.steps == 0:
            with torch.no_grad():
                _check_mean(
                    "SVRG, loss",
                    lambda batch: self._value(snapshot, batch),
                    self.source.take,
                    self.source.num_data,
                    self.chunk,
                    "the mean over the batch",
                )
        full = {name: torch.zeros_like(x) for name, x in snapshot.items()}
        for share, batch in _chunks(self.source.take, self.source.num_data, self.chunk):
            for name, g in self._gradient(snapshot, batch).items():
                full[name] += share * g
        self._snapshot, self._full = snapshot, full

    def _value(self, at, batch):
        """The loss of a batch at these weights."""
        if self._module is not None:
            buffers = {name: b.clone() for name, b in self._module.named_buffers()}
            value = functional_call(self._module, {f"model.{name}": x for name, x in at.items()} | buffers, (batch,))
        else:
            at = self._fixed | at
            value = self.loss(
                {name: at[str(name)] for name in self.model}
                if isinstance(self.model, Mapping)
                else [at[str(i)] for i in range(len(self.model))],
                batch,
            )
        if not torch.is_tensor(value) or value.dim():
            got = f"a tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else f"a {type(value).__name__}"
            raise RecipeError("SVRG, loss", f"it returns {got}", do="Return the mean over the batch, a 0-dim tensor.")
        return value

    def _gradient(self, at, batch):
        with torch.enable_grad():
            at = {name: x.detach().requires_grad_() for name, x in at.items()}
            value = self._value(at, batch)
            if not value.requires_grad:
                raise RecipeError(
                    "SVRG, loss",
                    "it does not depend on the model that it is given",
                    do="Compute it from its arguments.",
                )
            return dict(zip(at, torch.autograd.grad(value, list(at.values()), materialize_grads=True)))

    def _compare(self, slopes):
        """Refuse, while theta is the snapshot, a loss of another gradient than p.grad."""
        norm = lambda tensors: float(torch.stack([x.norm() for x in tensors]).norm())
        mine, theirs = slopes.values(), [p.grad for p in self.weights.values()]
        apart, size = norm([a - b for a, b in zip(mine, theirs)]), max(norm(mine), norm(theirs))
        if apart > OTHER * size:
            raise RecipeError(
                "SVRG, correct",
                f"p.grad differs from the gradient of the loss on this batch by {apart:.2g} of {size:.2g}",
                do="Pass the loss of backward(), without randomness, and zero the gradients before it.",
            )

    def _check_modules(self):
        """Refuse modules that make the loss at the snapshot random, or couple the examples of a batch."""
        for name, module in self.model.named_modules() if self._module is not None else ():
            told, do = "", "Call eval() on it: gradients stay on."
            rate = getattr(module, "p", 1.0) if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                told, do = (
                    "averages gradients over ranks before they are corrected",
                    "Pass the module in it, and average after correct().",
                )
            elif isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
                told = "couples the examples of a batch"
                do = do if module.running_mean is not None else "Give it running statistics, and call eval() on it."
            elif module.training and (
                isinstance(module, torch.nn.RReLU) or isinstance(rate, (int, float)) and rate > 0
            ):
                told = "is random in training mode"
            if told:
                raise RecipeError("SVRG, model", f"{name or 'it'}, a {type(module).__name__}, {told}", do=do)


class _Loss(torch.nn.Module):
    """The loss as a module, in which functional_call can put other weights into the model."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch):
        return self.loss(self.model, batch)
