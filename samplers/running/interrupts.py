"""Ctrl-C in a run: a request to stop with the draws so far, or KeyboardInterrupt where part of a run has no use."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C was pressed; a second Ctrl-C raises KeyboardInterrupt."""
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
    """Let Ctrl-C raise KeyboardInterrupt at once, also inside of runs, whose draws would be incomplete."""

    def end(number, frame):
        raise KeyboardInterrupt

    if not _is_ours():
        yield
        return
    with _handled_by(end):
        yield


def _is_ours() -> bool:
    """Whether this is the main thread and SIGINT has Python's default handler."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def _handled_by(handler: Callable) -> Iterator[None]:
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
