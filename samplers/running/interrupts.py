"""Ctrl-C as a wish to end a run, not as an error; and as an error again, in a run whose part is of no use."""

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

    if not _is_ours():
        yield lambda: False
        return
    with _handled_by(note):
        yield lambda: bool(pressed)


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt at once, in a run as well: its draws so far would be taken for all of them."""

    def end(number, frame):
        raise KeyboardInterrupt

    if not _is_ours():
        yield
        return
    with _handled_by(end):
        yield


def _is_ours() -> bool:
    """Whether Ctrl-C comes to this thread, and nobody else has a handler of it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def _handled_by(handler: Callable) -> Iterator[None]:
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
