"""Stock samplers, and running a sampler: `sample`, `posterior`, `Draws`.

`import samplers` is light: each name of `__init__.pyi` is imported on first use.
"""

# a package of sde-recipe
from typing import Any

from lazy_loader import attach_stub

_imported, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from recipe import __version__  # imports sympy

        return __version__
    try:
        return _imported(name)
    except AttributeError as error:
        if name.startswith("_"):
            raise
        from recipe.errors import did_you_mean

        raise AttributeError(f"samplers has no {name!r}. {did_you_mean(name, __all__)}") from error
