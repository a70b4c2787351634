"""Loading of emitted Python text."""

import linecache
from typing import Any


def load(source: str, filename: str) -> dict[str, Any]:
    """The namespace of emitted Python text; tracebacks show the text under its file name.

    >>> load("def twice(x):\\n    return 2*x\\n", "<example>")["twice"](3)
    6
    """
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = {}
    # the text is of our printers: what a user declares reaches them as expressions, and names are checked
    exec(compile(source, filename, "exec"), namespace)
    return namespace
