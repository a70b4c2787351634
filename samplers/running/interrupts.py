"""Ctrl-C as a wish to end a run, not as an error."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C has been pressed; a second time ends at once."""
    pressed: list[int] = []

    def note(number, frame):
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
