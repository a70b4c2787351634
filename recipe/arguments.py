"""Checks of arguments: an integer or a finite number within its bounds, or a RecipeError.

A bool is no number. An error reads `where: name is an integer >= 1, got 0. Pass name=...`: `what` replaces the
message, `do` the advice.
"""

from collections.abc import Collection, Iterable
from math import isfinite
from numbers import Integral
from operator import ge, gt, index, le, lt
from typing import Any, cast

from .errors import RecipeError, did_you_mean

Kinds = type | tuple[type, ...]


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or numpy, and not a bool.

    >>> is_integer(3), is_integer(3.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)


def is_number(value: Any, kinds: Kinds = (int, float)) -> bool:
    """Whether a value is a finite number of the given kinds, and not a bool.

    `kinds`: classes of numbers; numbers.Real includes numpy's.

    >>> is_number(0.5), is_number(float("inf")), is_number(True), is_number("1")
    (True, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    try:
        return isfinite(cast(float, value))
    except OverflowError:  # an integer beyond every float
        return False


def integer(
    where: str,
    name: str,
    value: Any,
    *,
    least: int | None = None,
    most: int | None = None,
    what: str | None = None,
    do: str | None = None,
) -> int:
    """The value as an int, if it is an integer from `least` to `most`, both included.

    Raises RecipeError for any other value; `what` and `do` replace the message and the advice.

    >>> integer("sample", "steps", 10, least=1)
    10
    >>> integer("sample", "steps", 2.5, least=1)
    Traceback (most recent call last):
    recipe.errors.RecipeError: sample: steps is an integer >= 1, got 2.5. Pass steps=...
    """
    bounds = {">=": least, "<=": most}
    if is_integer(value) and _within(value, bounds):
        return index(value)
    raise _refusal(where, name, value, _in_words("an integer", bounds), what, do)


def number(
    where: str,
    name: str,
    value: Any,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    kinds: Kinds = (int, float),
    what: str | None = None,
    do: str | None = None,
) -> float:
    """The value, if it is a finite number: `least` <= value <= `most`, and `above` < value < `below`.

    `kinds`: as for `is_number`. Raises RecipeError for any other value; `what` and `do` replace the message and the
    advice.

    >>> number("sgld, step", "momentum", 0.9, least=0, below=1)
    0.9
    >>> number("sgld, step", "the step size", -0.1, above=0, do="It is in units of time.")
    Traceback (most recent call last):
    recipe.errors.RecipeError: sgld, step: the step size is a number > 0, got -0.1. It is in units of time.
    """
    bounds = {">=": least, ">": above, "<=": most, "<": below}
    if is_number(value, kinds) and _within(value, bounds):
        return value
    raise _refusal(where, name, value, _in_words("a number", bounds), what, do)


def text(where: str, name: str, value: Any) -> str:
    """The value, if it is a text that a file can hold; raises RecipeError for any other value.

    >>> text("langevin", "doc", 3)
    Traceback (most recent call last):
    recipe.errors.RecipeError: langevin: doc is a text, got int. Pass doc="...".
    """
    if not isinstance(value, str):
        raise RecipeError(where, f"{name} is a text, got {type(value).__name__}", do=f'Pass {name}="...".')
    for c in value:
        if c == "\0" or "\ud800" <= c <= "\udfff":
            raise RecipeError(where, f"{name} is a text without the character {c!r}, got {value!r}", do="Leave it out.")
    return value


def as_tuple(values: Any) -> tuple[Any, ...]:
    """The values of a list or a tuple as a tuple; anything else as the only one.

    >>> as_tuple([1, 2]), as_tuple("xi")
    ((1, 2), ('xi',))
    """
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


COMPARISONS = {">=": ge, ">": gt, "<=": le, "<": lt}


def _within(value: float, bounds: dict[str, Any]) -> bool:
    return all(COMPARISONS[sign](value, bound) for sign, bound in bounds.items() if bound is not None)


def _in_words(kind: str, bounds: dict[str, Any]) -> str:
    """The kind of a number and its bounds: a number > 0, an integer from 0 to 3."""
    bounds = {sign: bound for sign, bound in bounds.items() if bound is not None}
    if bounds.keys() == {">=", "<="}:
        return f"{kind} from {bounds['>=']} to {bounds['<=']}"
    limits = " and ".join(f"{sign} {bound}" for sign, bound in bounds.items())
    return f"{kind} {limits}".rstrip()


def _refusal(where: str, name: str, value: Any, kind: str, what: str | None, do: str | None) -> RecipeError:
    what = f"{name} is {kind}, got {value!r}" if what is None else what
    return RecipeError(where, what, do=f"Pass {name}=..." if do is None else do)


def check_known(where: str, what: str, names: Iterable[Any], known: Collection[Any]) -> None:
    """Refuse names that are not known; `what`: the message, with {} in the place of the name.

    >>> check_known("sgld, keep", "there is no block '{}'", ["tehta"], ["theta"])
    Traceback (most recent call last):
    recipe.errors.RecipeError: sgld, keep: there is no block 'tehta'. Did you mean 'theta'?
    """
    for name in names:
        if name not in known:
            raise RecipeError(where, what.format(name), do=did_you_mean(name, known))


def check_names(
    where: str, names: Iterable[str], known: Collection[str], arguments: Collection[str] = (), of: str = ""
) -> None:
    """Refuse `names` of parameters that are not `known`, and known ones that bear the names of `arguments`.

    `of`: words for the owner of the arguments.
    """
    for name in known:
        if name in arguments:
            what = f"the parameter '{name}' bears the name of an argument{of}"
            raise RecipeError(where, what, do="Rename it.")
    for name in names:
        if name not in known:
            raise RecipeError(where, f"'{name}' is not a parameter", do=did_you_mean(name, [*known, *arguments]))
