"""Ctrl-C in a run: a request to stop with the draws so far, or KeyboardInterrupt where part of a run has no use."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C was pressed; a second Ctrl-C raises KeyboardInterrupt."""
    pressed: list[int] = []

    def note(number, frame):
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    with _handled_by(note):
        yield lambda: bool(pressed)


def ended_by_interrupt() -> AbstractContextManager[None]:
    """Let Ctrl-C raise KeyboardInterrupt at once, also inside of runs, whose draws would be incomplete."""

    def end(number, frame):
        raise KeyboardInterrupt

    return _handled_by(end)


@contextmanager
def _handled_by(handler: Callable) -> Iterator[None]:
    """Has SIGINT handled, in the main thread and where it has Python's default handler."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
