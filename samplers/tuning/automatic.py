"""`samplers.sample`: a run whose step size is a number, or "auto", tuned before the first step."""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from recipe import Recipe
from recipe.arguments import is_number
from recipe.errors import RecipeError

from ..results.draws import Draws
from ..running.points import start_of
from ..running.sampling import proposal_of
from ..running.sampling import sample as run
from ..stock import recipe_of
from ..target.datasets import read
from .tune import Settings, TunedStart, tune

P = ParamSpec("P")

TUNED = ("gradient", "data", "batch_size", "init", "seed", "scheme", "coordinates", "metropolis")
UNTUNED = ("phases", "observe")  # not known to tuning


def tuned(run: Callable[P, Draws]) -> Callable[P, Draws]:
    """Wraps a run so that step_size="auto" takes the settings of `tune`, with their reasons in `info["tuned"]`.

    Those of a run whose arguments are all of `tune` are there too.

    >>> import torch
    >>> from samplers import SGLD
    >>> draws = tuned(run)(SGLD, lambda theta: (theta**2).sum()/2, init=torch.zeros(1), step_size="auto",
    ...                    metropolis=True, steps=10, progress=False)
    >>> draws.info["tuned"]["step_size"][-34:]
    'are accepted, where 57 % are asked'
    """

    @wraps(run)
    def sample(*args: P.args, **kwargs: P.kwargs) -> Draws:
        if "step_size" not in kwargs:
            advice = "Give a number, in units of time, or step_size='auto' with metropolis=True, which finds it."
            raise RecipeError("sample", "there is no step_size", do=advice)
        if not isinstance(kwargs.get("step_size"), str):
            draws = run(*args, **kwargs)
            start = kwargs.get("init")
            reasons = start.reasons_for(kwargs) if isinstance(start, TunedStart) else {}
            if reasons:
                draws.info["tuned"] = reasons
            return draws
        call = inspect.signature(run).bind(*args, **kwargs)
        call.apply_defaults()
        data, batch_size = read(call.arguments["data"], call.arguments["batch_size"])
        call.arguments |= {"data": data, "batch_size": batch_size}
        call.arguments["recipe"] = recipe_of(call.arguments["recipe"], "sample")
        settings = _settings(call.arguments)
        chosen: dict[str, Any] = {**call.arguments.pop("parameters"), **call.arguments, **settings.arguments}
        chosen["chains"] = call.arguments["chains"]
        if chosen["progress"] is True:
            print(settings, file=sys.stderr)
        draws = run(**chosen)  # type: ignore[call-arg]  # by name, all of them
        draws.info["tuned"] = dict(settings.reasons)
        return draws

    return sample


def _settings(call: dict[str, Any]) -> Settings:
    """The tuned settings for the arguments of a run; RecipeError for arguments that tuning does not support."""
    where = f"{call['recipe'].name}, sample" if isinstance(call["recipe"], Recipe) else "sample"
    if call["step_size"] != "auto":
        what = f"the step size is a positive number or 'auto', got {call['step_size']!r}"
        raise RecipeError(where, what, do="It is in units of time.")
    other = [name for name in UNTUNED if call[name] is not None]
    other += ["temperature"] if not is_number(call["temperature"]) else []
    other += ["scope"] if call["scope"] != "chain" else []
    other += ["Start(spread)"] if start_of(call["init"]).spread else []
    if other:
        what = f"step_size='auto' is for a run of one law, and there is {other[0]}="
        raise RecipeError(where, what, do=f"Call samplers.tune, and sample with its numbers and {other[0]}.")
    chains = call["chains"]
    metropolis = proposal_of(call["recipe"], call["metropolis"], where)
    arguments = {name: call[name] for name in TUNED} | {"metropolis": False if metropolis is None else metropolis}
    return tune(
        call["recipe"],
        call["energy"],
        temperature=call["temperature"],
        chains=len(chains) if isinstance(chains, range) else chains,
        progress=call["progress"] is True,
        **arguments,
        **call["parameters"],
    )


sample = tuned(run)
