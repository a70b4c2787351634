"""The loss of a training loop at other weights than the model's: its value, its gradient, and checks of both."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.func import functional_call

from recipe.errors import RecipeError

from ..target.layers import fault_of

Weights = dict[str, torch.Tensor]  # by name
OF_RANKS = (
    "averages gradients over ranks before they are corrected",
    "Pass the module in it, and average after correct().",
)


class ModuleLoss:
    """loss(model, batch) of an nn.Module as a function of its weights by name.

    The modules are called with other weights and copies of their buffers; neither weights nor buffers change.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable):
        self.model = model
        self.weights: Weights = dict(model.named_parameters())
        self._whole = _Whole(model, loss)

    def check(self) -> None:
        """Refuses modules that make the loss random, or couple the examples of a batch."""
        check_modules("SVRG, model", self.model)

    def at(self, weights: Weights, batch: Any) -> Any:
        """The loss of a batch at these weights."""
        replaced = {name: b.clone() for name, b in self._whole.named_buffers()}
        replaced |= {f"model.{name}": x for name, x in weights.items()}
        return functional_call(self._whole, replaced, (batch,))


class WeightsLoss:
    """loss(weights, batch) of a list or dict of tensors as a function of weights by their numbers or names."""

    def __init__(self, model: Mapping[Any, torch.Tensor] | Iterable[torch.Tensor], loss: Callable):
        self.model = model if isinstance(model, Mapping) else list(model)
        self.loss = loss
        named = self.model.items() if isinstance(self.model, Mapping) else enumerate(self.model)
        self.weights: Weights = {str(name): p for name, p in named}

    def check(self) -> None:
        """Does nothing: there are no modules to check."""

    def at(self, weights: Weights, batch: Any) -> Any:
        """The loss of a batch at these weights, passed as a list or dict like the model."""
        whole = self.weights | weights
        if isinstance(self.model, Mapping):
            return self.loss({name: whole[str(name)] for name in self.model}, batch)
        return self.loss([whole[str(i)] for i in range(len(self.model))], batch)


def loss_of(model: Any, loss: Callable) -> ModuleLoss | WeightsLoss:
    """The loss of an nn.Module, or of weights in a list or a dict by name; RecipeError for anything else."""
    if not callable(loss):
        raise RecipeError(
            "SVRG, loss",
            f"it is a function of (model, batch), got {loss!r}",
            do="Pass the loss of the training loop.",
        )
    if isinstance(model, torch.nn.Module):
        return ModuleLoss(model, loss)
    advice = "Pass an nn.Module, or a list or dict of weights."
    if torch.is_tensor(model) or not isinstance(model, (Mapping, Iterable)):
        raise RecipeError("SVRG, model", f"got a {type(model).__name__}", do=advice)
    of_weights = WeightsLoss(model, loss)
    if not all(torch.is_tensor(p) for p in of_weights.weights.values()):
        raise RecipeError("SVRG, model", "a weight is no tensor", do=advice)
    return of_weights


def value(loss: ModuleLoss | WeightsLoss, weights: Weights, batch: Any) -> torch.Tensor:
    """The loss of a batch at these weights; RecipeError unless it is a 0-dim tensor."""
    x = loss.at(weights, batch)
    if torch.is_tensor(x) and not x.dim():
        return x
    got = f"a tensor of shape {tuple(x.shape)}" if torch.is_tensor(x) else f"a {type(x).__name__}"
    raise RecipeError("SVRG, loss", f"it returns {got}", do="Return the mean over the batch, a 0-dim tensor.")


def gradient(loss: ModuleLoss | WeightsLoss, weights: Weights, batch: Any) -> Weights:
    """The gradient of the loss of a batch by these weights; RecipeError for a loss that does not depend on weights."""
    with torch.enable_grad():
        at = {name: x.detach().requires_grad_() for name, x in weights.items()}
        x = value(loss, at, batch)
        if not x.requires_grad:
            raise RecipeError(
                "SVRG, loss",
                "it does not depend on the model that it is given",
                do="Compute it from its arguments.",
            )
        return dict(zip(at, torch.autograd.grad(x, list(at.values()), materialize_grads=True)))


def check_modules(where: str, model: torch.nn.Module) -> None:
    """Refuses a network with modules that make the loss random, or couple the examples of a batch."""
    for name, module in model.named_modules():
        fault, advice = OF_RANKS if isinstance(module, torch.nn.parallel.DistributedDataParallel) else fault_of(module)
        if fault:
            raise RecipeError(where, f"{name or 'it'}, a {type(module).__name__}, {fault}", do=advice)


class _Whole(torch.nn.Module):
    """The loss as a module around the model, so that functional_call can replace the model's weights."""

    def __init__(self, model: torch.nn.Module, loss: Callable):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any) -> Any:
        return self.loss(self.model, batch)
