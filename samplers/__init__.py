"""Stock samplers, and running a sampler: `sample`, `posterior`, `Draws`.

`import samplers` is light: a name is imported when it is first asked for. The names are those of `__init__.pyi`.
"""

from typing import Any

from lazy_loader import attach_stub

_imported, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from recipe import __version__  # imports sympy

        return __version__
    return _imported(name)
