"""Checks of tensors that callers pass: numbers, logits, probabilities, variances; and optional packages."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from recipe.errors import RecipeError

STATE = "Pass what state_dict() returned."
FINITE = "Leave out chains that diverged."


def package(where: str, name: str, *, do: str = "") -> Any:
    """A module of an optional package. Raises RecipeError where the module cannot be imported."""
    try:
        return import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        top = name.partition(".")[0]
        what = f"{top} cannot be imported ({error})"
        raise RecipeError(where, what, do=do or f"Install it: pip install {top}.") from error


def tensor_of(where: str, what: str, value: Any, *, do: str = "Pass a tensor.") -> torch.Tensor:
    """Numbers as a tensor without a graph. Raises RecipeError, with `what` as the subject, for anything else."""
    try:  # by numpy, whose reals are float64: 0.1 in a list is not rounded to float32
        return (value if torch.is_tensor(value) else torch.from_numpy(np.array(value))).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(where, f"{what} are not numbers ({error})", do=do) from error


def check_tensors(where: str, values: Iterable[Any]) -> None:
    """Refuses a state with anything in the place of a tensor."""
    for x in values:
        if not torch.is_tensor(x):
            raise RecipeError(where, f"the state has a {type(x).__name__} in the place of a tensor", do=STATE)


def expanded(where: str, name: str, x: torch.Tensor, shape: torch.Size, each: str) -> torch.Tensor:
    """A tensor broadcast to the shape of all of `each`. Raises RecipeError where that fails."""
    try:
        return x.expand(shape)
    except RuntimeError as error:
        what = f"the {name} have the shape {tuple(x.shape)}, the {each}s {tuple(shape)}"
        raise RecipeError(where, what, do=f"Pass one number, or one per {each}.") from error


def checked(where: str, name: str, value: Any, *, last: str) -> torch.Tensor:
    """Finite real numbers `(..., data, last)`, where `last` is outputs or classes; RecipeError for anything else.

    >>> checked("doctest", "logits", [[0.0, 1.0]], last="classes")
    tensor([[0., 1.]], dtype=torch.float64)
    """
    x = tensor_of(where, f"the {name}", value)
    if not x.is_floating_point():
        raise RecipeError(where, f"the {name} are {x.dtype}", do="Pass real numbers.")
    if x.dim() < 2 or not x.numel():
        raise RecipeError(where, f"the {name} have the shape {tuple(x.shape)}", do=f"Pass (data, {last}).")
    if last == "classes" and x.shape[-1] == 1:
        raise RecipeError(
            where,
            f"the {name} {tuple(x.shape)} are of one class",
            do="Give both classes a column: of a lone logit z, 0 and z; of a probability p, 1 - p and p. "
            "The outputs of a regression are for PredictiveMoments, or stack them over draws: their mean and sd.",
        )
    if not x.isfinite().all():
        raise RecipeError(where, f"the {name} are not finite", do=FINITE)
    return x


def distributions(where: str, probabilities: Any) -> torch.Tensor:
    """Probabilities `(..., data, classes)` in float64; RecipeError where they are below 0 or do not sum to 1."""
    p = checked(where, "probabilities", probabilities, last="classes")
    rounding = max(1e-4, 4 * torch.finfo(p.dtype).eps)
    p = p.to(torch.float64)
    if (p < 0).any() or ((p.sum(-1) - 1).abs() > rounding).any():
        what = "the probabilities of a datum are below 0 or do not sum to 1"
        raise RecipeError(where, what, do="Pass logits.softmax(-1), not logits or their logarithms.")
    return p.clamp(max=1)


def noise_variances(where: str, value: Any, predictions: torch.Tensor) -> torch.Tensor:
    """Noise variances >= 0 in float64, broadcast to the predictions; RecipeError for others."""
    x = tensor_of(where, "the noise variances", value).to(predictions.device, torch.float64)
    if not ((x >= 0) & x.isfinite()).all():
        raise RecipeError(where, "a noise variance is not a number >= 0", do="Pass sigma**2, not its logarithm.")
    return expanded(where, "noise variances", x, predictions.shape, "prediction")


def checked_log_weights(logs: Any, chains: int, draws: int, sound: Sequence[int]) -> torch.Tensor:
    """The logarithms of weights in float64. Raises RecipeError for others than one per draw, a number or -inf."""
    x = _one_per_draw("the log weights", logs, (chains, draws), f"{chains} chains of {draws} draws")
    of_sound = x[list(sound)]
    if not (of_sound < torch.inf).all() or of_sound.numel() and not of_sound.isfinite().any():
        raise RecipeError("draws", "a log weight is no number, or every weight is 0", do="Give the logs of weights.")
    return x


def refuse_weights(log_weights: Any, where: str, what: str, do: str) -> None:
    """Refuse draws that weigh unequally, for what would take them as equal."""
    if log_weights is not None:
        raise RecipeError(where, f"the draws are weighted, and {what}", do=do)


def checked_step_sizes(step_sizes: Any, draws: int) -> torch.Tensor:
    """The step size of each draw in float64. Raises RecipeError for others than as many numbers > 0."""
    h = _one_per_draw("the step sizes", step_sizes, (draws,), f"{draws} draws")
    if not ((h > 0) & h.isfinite()).all():
        raise RecipeError("draws", "a step size is not a number > 0", do="Give the step sizes of the run.")
    return h


def _one_per_draw(what: str, values: Any, shape: tuple[int, ...], of: str) -> torch.Tensor:
    """A copy of numbers in float64; refused unless of this shape."""
    x = tensor_of("draws", what, values, do="Give one per draw.").to("cpu", torch.float64, copy=True)
    if x.shape != shape:
        raise RecipeError("draws", f"{what} have the shape {tuple(x.shape)}, for {of}", do="Give one per draw.")
    return x
