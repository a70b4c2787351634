"""Whether a kernel can be had, or steps run in torch."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from recipe.errors import RecipeError, warn

from ..passes import Unsupported

Kernel = TypeVar("Kernel")
BY_DEVICE = {"cpu": "cpp", "cuda": "triton"}  # the language of kernels, by the type of the device


def kernel_or_none(backend: str, make: Callable[[], Kernel], *, others: bool = False) -> Kernel | None:
    """The kernel that `make` makes; None where it cannot and the `backend` is "auto".

    A warning says so once for each reason, unless the Program itself has no form as such a kernel. Raises what `make`
    raises where a kernel is asked for, but where there may be `others` of that backend.
    """
    try:
        return make()
    except RecipeError as error:
        if backend != "auto" and not (others and isinstance(error, Unsupported)):
            raise
        if not isinstance(error, Unsupported):
            _say_once(str(error))
        return None


@cache
def _say_once(reason):
    warn(f"no kernel is compiled, steps run in torch: {reason}")
