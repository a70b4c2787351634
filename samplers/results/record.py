"""The record of draws beside their numbers, in words and handed to ArviZ."""

import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from recipe.errors import RecipeError

from .tensor_checks import FINITE, package, tensor_of

WHERE = "draws, to_arviz"
NAMED = 8  # lost chains that are named


def named(diverged: Mapping[int, int], how: str) -> str:
    """The lost chains with their steps, the first few of many.

    >>> named({3: 10, 5: 12}, "at step")
    'chain 3 at step 10, chain 5 at step 12'
    """
    lost = [f"chain {chain} {how} {step}" for chain, step in diverged.items()]
    rest = len(lost) - NAMED
    return ", ".join(lost[:NAMED]) + (f", and {rest} others" if rest > 0 else "")


def arviz_of(draws: Any, log_likelihood: Any) -> Any:
    """An arviz.InferenceData of `Draws`; `Draws.to_arviz` says more."""
    # netCDF attributes are text or numbers.
    attributes = {key: x if type(x) in (str, int, float) else json.dumps(x) for key, x in draws.info.items()}
    groups = {"posterior": {name: x.to("cpu", torch.float64, copy=True).numpy() for name, x in draws.items()}}
    if log_likelihood is not None:
        by_name = log_likelihood if isinstance(log_likelihood, Mapping) else {"y": log_likelihood}
        groups["log_likelihood"] = {name: _log_likelihood(name, x, draws) for name, x in by_name.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "More chains .* than draws", UserWarning)
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
        # Before 1.0 ArviZ writes into the user's cache folder when it is imported.
        advice = "Install it: pip install arviz; if it has no folder, name one in XDG_CACHE_HOME."
        arviz = package(WHERE, "arviz", do=advice)
        if arviz.__version__.startswith("0."):
            return arviz.from_dict(**groups, posterior_attrs=attributes)
        return arviz.from_dict(groups, attrs={"posterior": attributes}, check_conventions=False)


def _log_likelihood(name: str, values: Any, draws: Any) -> np.ndarray:
    """log p of each datum under each draw, real numbers `(chains, draws, data)`; nan for lost chains alone."""
    what = f"the log likelihood of {name}"
    if callable(values):
        raise RecipeError(WHERE, f"{what} is a function", do="Give its values: draws.predict(function, X).")
    x = tensor_of(WHERE, f"the numbers of {what}", values).cpu()
    if x.is_complex() or x.dim() < 3 or x.shape[:2] != (draws.chains, draws.draws):
        do = f"It is ({draws.chains}, {draws.draws}, data), real: log p of each datum under each draw."
        raise RecipeError(WHERE, f"{what} has the shape {tuple(x.shape)}, {x.dtype}", do=do)
    lost = [chain for chain in range(draws.chains) if chain not in draws.diverged and bool(x[chain].isnan().any())]
    if lost:
        raise RecipeError(WHERE, f"{what} is nan in chain {lost[0]}", do=FINITE)
    return x.to(torch.float64).numpy()
