"""Predictions of draws: a model called at each draw, some rows of the data at a time."""

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
    """The predictions of a model for the rows of X at every `thin`-th draw. `Draws.predict` says more."""
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
            values = {name: x[chain, draw] for name, x in thinned.items()}
            theta = values if function is not model or len(values) > 1 else next(iter(values.values()))
            predictions = torch.cat([_predictions(function, theta, rows) for rows in parts])
            if result is None:
                result = predictions.new_empty((chains, number, *predictions.shape))
            result[chain, draw] = predictions
    if result is None:
        raise RecipeError(WHERE, "there are no draws", do="Sample longer.")
    return result


def _parts(X: Any, batch_size: int | None) -> list[Any]:
    """X, so many rows at a time, in its form."""
    tensors = X if isinstance(X, tuple) else (X,)
    if not tensors or not all(torch.is_tensor(x) and x.dim() for x in tensors):
        raise RecipeError(WHERE, f"X is a {type(X).__name__}", do="Pass a tensor, or a tuple of tensors, of rows.")
    if len({len(x) for x in tensors}) > 1 or not len(tensors[0]):
        raise RecipeError(WHERE, f"X has {[len(x) for x in tensors]} rows", do="Pass tensors of the same rows.")
    size = len(tensors[0]) if batch_size is None else integer(WHERE, "batch_size", batch_size, least=1)
    return list(zip(*(x.split(size) for x in tensors))) if isinstance(X, tuple) else list(X.split(size))


def _of_module(module: torch.nn.Module, draws: Mapping[str, torch.Tensor]) -> Callable:
    """A module as a function of its parameters and of rows, in eval mode."""
    names = {name for name, p in module.named_parameters() if p.requires_grad}
    if names != set(draws):
        what = f"the module has the parameters {sorted(names)}, the draws are of {sorted(draws)}"
        raise RecipeError(WHERE, what, do="Pass the module that the run began with, or a function of theta and rows.")

    def function(theta: dict[str, torch.Tensor], rows: Any) -> Any:
        was_training = module.training
        module.eval()
        try:
            return functional_call(module, theta, rows if isinstance(rows, tuple) else (rows,))
        finally:
            module.train(was_training)

    return function


def _predictions(function: Callable, theta: Any, rows: Any) -> torch.Tensor:
    """The predictions of a model for some rows; refused where there is not one for each row."""
    number = len(rows[0] if isinstance(rows, tuple) else rows)
    try:
        predictions = function(theta, rows)
    except (RecipeError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of the caller's own function
        what = f"the model fails, called with theta and rows: {type(error).__name__}: {error}"
        raise RecipeError(WHERE, what, do=FUNCTION) from error
    is_tensor = torch.is_tensor(predictions)
    if not is_tensor or not predictions.dim() or len(predictions) != number:
        got = f"the shape {tuple(predictions.shape)}" if is_tensor else f"a {type(predictions).__name__}"
        raise RecipeError(WHERE, f"the model gives {got} for {number} rows", do="Return one prediction per row.")
    return predictions
