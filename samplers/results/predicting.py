"""Predictions of draws: a model called at each of them, some rows of the data at a time."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.func import functional_call

from recipe.arguments import integer
from recipe.errors import RecipeError

WHERE = "draws, predict"
FUNCTION = "Pass a function f(theta, rows) of one draw and of rows of X, or the nn.Module that the run began with."


@torch.no_grad()
def predictions_of(
    draws: Mapping[str, torch.Tensor], model: Callable, X: Any, *, batch_size: int | None, thin: int
) -> torch.Tensor:
    """What a model says of the rows of X at every `thin`-th draw, `(chains, draws, data, ...)`. See `Draws.predict`."""
    integer(WHERE, "thin", thin, least=1)
    parts = _parts(X, batch_size)
    thinned = {name: x[:, ::thin] for name, x in draws.items()}
    chains, number = next(iter(thinned.values())).shape[:2]
    function = _of_module(model, thinned) if isinstance(model, torch.nn.Module) else model
    if not callable(function):
        raise RecipeError(WHERE, f"the model is {model!r}", do=FUNCTION)
    result: torch.Tensor | None = None
    for chain in range(chains):
        for draw in range(number):
            theta = _theta({name: x[chain, draw] for name, x in thinned.items()}, function is not model)
            says = torch.cat([_says(function, theta, p if isinstance(X, tuple) else p[0], len(p[0])) for p in parts])
            if result is None:
                result = says.new_empty((chains, number, *says.shape))
            result[chain, draw] = says
    if result is None:
        raise RecipeError(WHERE, "there are no draws", do="Sample longer.")
    return result


def _parts(X: Any, batch_size: int | None) -> list[tuple[torch.Tensor, ...]]:
    """The tensors of X, so many rows at a time."""
    tensors = X if isinstance(X, tuple) else (X,)
    if not tensors or not all(torch.is_tensor(x) and x.dim() for x in tensors):
        raise RecipeError(WHERE, f"X is a {type(X).__name__}", do="Pass a tensor, or a tuple of tensors, of rows.")
    if len({len(x) for x in tensors}) > 1 or not len(tensors[0]):
        raise RecipeError(WHERE, f"X has {[len(x) for x in tensors]} rows", do="Pass tensors of the same rows.")
    size = len(tensors[0]) if batch_size is None else integer(WHERE, "batch_size", batch_size, least=1)
    return list(zip(*(x.split(size) for x in tensors)))


def _theta(values: dict[str, torch.Tensor], by_name: bool) -> Any:
    """The target of one draw, as a model takes it: a tensor where it is alone."""
    return values if by_name or len(values) > 1 else next(iter(values.values()))


def _of_module(module: torch.nn.Module, draws: Mapping[str, torch.Tensor]) -> Callable:
    """A module as a function of its parameters and of rows, in eval mode."""
    names = {name for name, p in module.named_parameters() if p.requires_grad}
    if names != set(draws):
        raise RecipeError(
            WHERE,
            f"the module has the parameters {sorted(names)}, the draws are of {sorted(draws)}",
            do="Pass the module that the run began with, or a function of theta and rows.",
        )

    def function(theta: dict[str, torch.Tensor], rows: Any) -> Any:
        was_training = module.training
        module.eval()
        try:
            return functional_call(module, theta, rows if isinstance(rows, tuple) else (rows,))
        finally:
            module.train(was_training)

    return function


def _says(function: Callable, theta: Any, some: Any, rows: int) -> torch.Tensor:
    """What a model says of some rows, of which there are `rows`; refused where it is not one prediction for each."""
    try:
        says = function(theta, some)
    except (RecipeError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of the caller's own function
        what = f"the model fails, called with theta and rows: {type(error).__name__}: {error}"
        raise RecipeError(WHERE, what, do=FUNCTION) from error
    if not torch.is_tensor(says) or not says.dim() or len(says) != rows:
        got = f"the shape {tuple(says.shape)}" if torch.is_tensor(says) else f"a {type(says).__name__}"
        raise RecipeError(WHERE, f"the model gives {got} for {rows} rows", do="Return one prediction per row.")
    return says
