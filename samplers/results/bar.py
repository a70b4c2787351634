"""A progress bar, and scalars of what goes on for a function of the caller."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tqdm import tqdm

from recipe.errors import RecipeError

EVERY = 1.0  # seconds between two sets of scalars
LINES = 10.0  # seconds between two lines of a log

Scalars = dict[str, float]
Shown = bool | Callable[[Scalars], Any]  # whether to show a bar, or a function of scalars


def check_progress(progress: Any, where: str) -> None:
    """Refuse a `progress` that is neither a bool nor a function."""
    if not isinstance(progress, bool) and not callable(progress):
        what = f"progress is True, False, or a function of a dict of scalars, got {progress!r}"
        raise RecipeError(where, what, do="Pass progress=print, say.")


class Bar(tqdm):
    """A progress bar on stderr: on a terminal one line that moves, in a log a line every ten seconds and at the ends.

    `shown`: whether to show the bar, which needs stderr; `of`: an iterable that advances the bar in place of `update`.
    The lock of the bar belongs to the process: tqdm's lock belongs to the system, and `kill -9` leaves it behind.
    `total`: None where it is not known.
    """

    _lock = threading.RLock()

    def __init__(
        self, what: str, total: int | None, *, shown: bool = True, unit: str = "step", of: Iterable[Any] | None = None
    ) -> None:
        self.in_log = sys.stderr is not None and not sys.stderr.isatty()
        often = {"mininterval": LINES, "miniters": 1} if self.in_log else {}
        super().__init__(of, desc=what, total=total, disable=not shown or sys.stderr is None, unit=unit, **often)
        if self.in_log:
            self.ncols = None  # not the width of a terminal, at which tqdm cuts

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        """The function that prints a state of the bar: over the last state on a terminal, as a line in a log."""
        return tqdm.status_printer(file) if file.isatty() else lambda line: print(line, file=file, flush=True)

    def tell(self, words: str) -> None:
        """Show words after the numbers: at once on a terminal, with the next line in a log."""
        self.set_postfix_str(words, refresh=not self.in_log)


class Ticker:
    """Scalars of what goes on, about once a second: in words behind a bar, and for a function of the caller.

    `progress`: whether the bar is shown, or the function; `in_words`: the text of scalars; `at_once`: whether the first
    ones are due before a second has passed.
    """

    def __init__(self, bar: Bar, progress: Shown, in_words: Callable[[Scalars], str], *, at_once: bool = False) -> None:
        self.bar = bar
        self.call = None if isinstance(progress, bool) else progress
        self.in_words = in_words
        self.is_on = self.call is not None or not bar.disable
        self._last = -math.inf if at_once else time.monotonic()

    def update(self, scalars: Callable[[float], Scalars], *, at_end: bool = False) -> None:
        """Shows scalars, a function of the seconds since the last ones, if a second has passed, or `at_end`."""
        if not self.is_on:
            return
        now = time.monotonic()
        seconds = now - self._last
        if at_end or seconds >= EVERY:
            self._last = now
            values = scalars(seconds)
            self.bar.tell(self.in_words(values))
            if self.call is not None:
                self.call(values)
