"""`samplers.sample`: a run whose step size is a number, or "auto", tuned before the first step."""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from recipe import Recipe
from recipe.errors import RecipeError

from ..results.draws import Draws
from ..running.sampling import is_accepted
from ..running.sampling import sample as run
from ..stock import named
from ..target.reading import read
from .settings import Settings
from .tune import tune

P = ParamSpec("P")

TUNED = (
    "gradient",
    "data",
    "batch_size",
    "init",
    "per_chain",
    "chains",
    "device",
    "seed",
    "scheme",
    "pieces",
    "metropolis",
    "coordinates",
)
CHANGING = ("schedule", "phases", "temperatures", "swap_every", "freeze", "observe", "spread")  # not known to tuning


def tuned(run: Callable[P, Draws]) -> Callable[P, Draws]:
    """Wraps a run so that step_size="auto" takes the settings of `tune`, with their reasons in `info["tuned"]`.

    >>> import torch
    >>> from samplers import SGLD
    >>> draws = tuned(run)(SGLD, lambda theta: (theta**2).sum()/2, init=torch.zeros(1), step_size="auto",
    ...                    metropolis=True, steps=10, progress=False)
    >>> draws.info["tuned"]["step_size"][-34:]
    'are accepted, where 57 % are asked'
    """

    @wraps(run)
    def sample(*args: P.args, **kwargs: P.kwargs) -> Draws:
        if not isinstance(kwargs.get("step_size"), str):
            return run(*args, **kwargs)
        call = inspect.signature(run).bind(*args, **kwargs)
        call.apply_defaults()
        data, batch_size = read(call.arguments["data"], call.arguments["batch_size"])
        call.arguments |= {"data": data, "batch_size": batch_size}
        call.arguments["recipe"] = named(call.arguments["recipe"], "sample")
        settings = _settings(call.arguments)
        chosen: dict[str, Any] = {**call.arguments.pop("parameters"), **call.arguments, **settings.arguments}
        if chosen["progress"] is True:
            print(settings, file=sys.stderr)
        draws = run(**chosen)  # type: ignore[call-arg]  # by name, all of them
        draws.info["tuned"] = dict(settings.reasons)
        return draws

    return sample


def _settings(asked: dict[str, Any]) -> Settings:
    """The tuned settings for the arguments of a run; RecipeError for arguments that tuning does not support."""
    where = f"{asked['recipe'].name}, sample" if isinstance(asked["recipe"], Recipe) else "sample"
    if asked["step_size"] != "auto":
        what = f"the step size is a positive number or 'auto', got {asked['step_size']!r}"
        raise RecipeError(where, what, do="It is in units of time.")
    defaults = inspect.signature(run).parameters
    other = [name for name in CHANGING if asked[name] is not None and asked[name] != defaults[name].default]
    other += ["temperature"] if callable(asked["temperature"]) else []
    other += ["scope"] if asked["scope"] != "chain" else []
    if other:
        what = f"step_size='auto' is for a run of one law, and there is {other[0]}="
        raise RecipeError(where, what, do=f"Call samplers.tune, and sample with its numbers and {other[0]}.")
    arguments = {name: asked[name] for name in TUNED}
    arguments["metropolis"] = is_accepted(asked["recipe"], asked["metropolis"], where)
    repeat = asked["repeat"] if asked["repeat"] != 1 else None  # 1 is the default
    return tune(
        asked["recipe"],
        asked["energy"],
        temperature=asked["temperature"],
        repeat=repeat if arguments["metropolis"] else None,
        **arguments,
        **asked["parameters"],
    )


sample = tuned(run)
