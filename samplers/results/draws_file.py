"""Files of draws: their numbers and the record of their run, which is checked when a file is read."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipe.errors import RecipeError

from ..files import storage
from .averages import Agreement
from .geometry import check_geometry
from .report import ALPHA

BESIDE = ("step_sizes", "log_weights")  # numbers beside the blocks
KINETIC = {"value", "error", "freedom", "expected", "kick"}


def write_draws(path: Path, draws: Any) -> None:
    """Write `Draws` to a file; `Draws.save` says more."""
    storage.check_suffix("draws, save", path)
    values = dict(draws)
    account: dict[str, Any] = {"info": draws.info}
    for name in BESIDE:
        x = getattr(draws, name)
        if x is not None:
            key = name
            while key in values:  # a block may bear that name
                key += "_"
            account[name], values[key] = key, x
    storage.write(path, "draws", values, account)


def read_draws(path: Path, constructor: Callable[..., Any]) -> Any:
    """The draws of a file, by a `constructor` of blocks, info and the numbers beside; `Draws.load` says more."""
    values, account = storage.read(path, "draws")
    try:
        numbers = {name: values.pop(account[name]) for name in BESIDE if name in account}
        draws = constructor(values, info=account["info"], **numbers)
        _check_record(draws)
    except RecipeError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecipeError(str(path), f"not an intact file of draws ({error})", do=storage.RESTORE) from error
    return draws


def _check_record(draws: Any) -> None:
    """Raises the errors of plain data for a record that no run writes, as in a forged file."""
    info = draws.info
    if not all(type(step) is int and chain in range(draws.chains) for chain, step in draws.diverged.items()):
        raise ValueError("chains have diverged that are not there")
    if not all(name in draws for name in info.get("targets", ())):
        raise ValueError("a target is not there")
    if not all(0 <= share <= 1 for share in info.get("acceptance") or ()):
        raise ValueError("an acceptance is no share")
    if not all(type(info[name]) is int and info[name] > 0 for name in ("steps", "thin", "repeat") if name in info):
        raise ValueError("a number of steps is no count")
    check_geometry(info, draws.chains, draws.draws)
    averages = info.get("averages") or {}
    for name, numbers in (averages.get("kinetic_temperature") or {}).items():
        if set(numbers) != KINETIC or not all(map(math.isfinite, numbers.values())):
            raise ValueError(f"the kinetic temperature of {name} is no average")
    for numbers in (averages.get("thermostats") or {}).values():
        if not Agreement(**numbers).most(ALPHA) > 1 or not numbers["r_hat"] > 0:
            raise ValueError("a thermostat has no R-hat")
    shown = [info.get(name, "") for name in ("recipe", "scheme", "report")]
    if not all(text.replace("\n", "").isprintable() for text in (*draws, *shown)):
        raise ValueError("a name has control characters")
