"""Whether a kernel can be had, or steps run in torch."""

import warnings
from collections.abc import Callable
from functools import cache

from recipe.errors import RecipeError

from ..passes import Unsupported


def made(backend: str, make: Callable):
    """What `make` makes; None where it cannot, and the `backend` is "auto", with a warning if only the compiler is to blame."""
    try:
        return make()
    except Unsupported:
        if backend != "auto":
            raise
    except RecipeError as error:
        if backend != "auto":
            raise
        _say_once(str(error))
    return None


@cache
def _say_once(reason):
    warnings.warn(f"no kernel is compiled, steps run in torch: {reason}", RuntimeWarning, stacklevel=4)
