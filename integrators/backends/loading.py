"""Our own emitted text as Python names."""

import builtins
import linecache


def load(source: str, filename: str) -> dict:
    """The names that our own emitted text defines; the text is visible to tracebacks."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict = {}
    exec(builtins.compile(source, filename, "exec"), namespace)
    return namespace
