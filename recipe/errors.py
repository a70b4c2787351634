"""The exception of the project, hints for its messages, and warnings."""

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from .neighbours import PACKAGES

P = ParamSpec("P")
R = TypeVar("R")
OWN = {*PACKAGES, "torch", "contextlib", "functools"}  # packages skipped by `warn`


class RecipeError(ValueError):
    """Error of a request that cannot be met: where, what, and what to do instead.

    >>> print(RecipeError("sgnht, split", "no piece takes the noise of p", do="Add noise(p) to a piece."))
    sgnht, split: no piece takes the noise of p. Add noise(p) to a piece.
    """

    def __init__(self, where: str, what: str, *, do: str = "") -> None:
        self.where = where
        self.what = what
        self.do = do
        message = printable(f"{where}: {what}.")
        super().__init__(f"{message} {do}" if do else message)

    def __reduce__(self):
        return _error, (type(self), self.where, self.what, self.do)


def printable(text: str) -> str:
    """Text with control characters spelled out, so that a name of a file cannot steer a terminal.

    >>> print(printable("theta\\x1b[2J"))
    theta\\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def _error(kind, where, what, do):
    return kind(where, what, do=do)


def first_line(error: BaseException) -> str:
    """The first line of the message of an error; of many errors it is empty.

    >>> first_line(ValueError("one\\ntwo")), first_line(AssertionError())
    ('one', '')
    """
    return next(iter(str(error).splitlines()), "")


def in_short(error: BaseException) -> str:
    """The type of an error and the first line of its message.

    >>> in_short(ValueError("one\\ntwo"))
    'ValueError: one'
    """
    return f"{type(error).__name__}: {first_line(error)}"


def did_you_mean(name: object, known: Iterable[object], *, most: int = 1) -> str:
    """A hint with the closest known names, at most `most`, or with all known names if none is close.

    >>> did_you_mean("gama", ["gamma", "mu"])
    "Did you mean 'gamma'?"
    """
    names = sorted(map(str, known))
    close = difflib.get_close_matches(str(name), names, n=most)
    if close:
        return "Did you mean " + " or ".join(f"'{other}'" for other in close) + "?"
    return f"Known here: {', '.join(names) or 'nothing'}."


@contextmanager
def of_the_caller(where: str, what: str, do: str, passed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns an error of a function of the caller's own into a RecipeError, after the words `what`.

    RecipeErrors, and errors of the types `passed`, are raised as they are.

    >>> with of_the_caller("model", "its prior fails", "Mend it."):
    ...     1 / 0
    Traceback (most recent call last):
    recipe.errors.RecipeError: model: its prior fails: ZeroDivisionError: division by zero. Mend it.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (RecipeError, *passed)):
            raise
        raise RecipeError(where, f"{what}: {type(error).__name__}: {error}", do=do) from error


def of_known_arguments(where: str, do: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of functions: a keyword that is no argument raises RecipeError, with the advice `do`."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in signature(function).parameters if name != "self"]

        @wraps(function)
        def checked(*values: P.args, **options: P.kwargs) -> R:
            for name in options:
                if name not in known:
                    raise RecipeError(where, f"there is no argument '{name}'", do=do or did_you_mean(name, known))
            return function(*values, **options)

        return checked

    return decorated


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the line of the caller's own code, outside of the packages in OWN."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame = frame.f_back
        level += 1
    warnings.warn(printable(message), category, stacklevel=level)
