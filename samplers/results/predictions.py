"""Predictions as they are passed: numbers, logits and probabilities, checked."""

from typing import Any

import numpy as np
import torch

from recipe.errors import RecipeError


def tensor_of(where: str, name: str, value: Any) -> torch.Tensor:
    """Numbers as a tensor without a graph; RecipeError, which calls them `name`, for anything else."""
    try:  # by numpy, whose reals are float64: 0.1 in a list is not rounded to float32
        return (value if torch.is_tensor(value) else torch.from_numpy(np.array(value))).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(where, f"the {name} are no numbers ({error})", do="Pass a tensor.") from error


def checked(where: str, name: str, value: Any, *, last: str) -> torch.Tensor:
    """Finite real numbers `(..., data, last)`, where `last` is outputs or classes; RecipeError for anything else.

    >>> checked("doctest", "logits", [[0.0, 1.0]], last="classes")
    tensor([[0., 1.]], dtype=torch.float64)
    """
    x = tensor_of(where, name, value)
    if not x.is_floating_point():
        raise RecipeError(where, f"the {name} are {x.dtype}", do="Pass real numbers.")
    if x.dim() < 2 or not x.numel():
        raise RecipeError(where, f"the {name} have the shape {tuple(x.shape)}", do=f"Pass (data, {last}).")
    if last == "classes" and x.shape[-1] == 1:
        raise RecipeError(
            where,
            f"the {name} {tuple(x.shape)} are of one class",
            do="Give both classes a column: of a lone logit z, 0 and z; of a probability p, 1 - p and p.",
        )
    if not x.isfinite().all():
        raise RecipeError(where, f"the {name} are not finite", do="Leave out chains that diverged.")
    return x


def distributions(where: str, probabilities: Any) -> torch.Tensor:
    """Probabilities `(..., data, classes)` in float64; RecipeError where they are below 0 or do not sum to 1."""
    p = checked(where, "probabilities", probabilities, last="classes")
    rounding = max(1e-4, 4 * torch.finfo(p.dtype).eps)
    p = p.to(torch.float64)
    if (p < 0).any() or ((p.sum(-1) - 1).abs() > rounding).any():
        raise RecipeError(
            where,
            "the probabilities of a datum are below 0 or do not sum to 1",
            do="Pass logits.softmax(-1), not logits or their logarithms.",
        )
    return p.clamp(max=1)
