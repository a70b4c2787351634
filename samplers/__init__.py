"""Stock samplers, and running a sampler: `sample`, `posterior`, `Draws`.

`import samplers` is light: each name of `__init__.pyi` is imported on first use.
"""

from typing import Any

from lazy_loader import attach_stub

_imported, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from recipe import __version__  # imports sympy

        return __version__
    return _imported(name)
