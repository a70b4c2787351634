"""Steps in torch where a kernel cannot be compiled, with a warning that says why."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from recipe.errors import RecipeError, warn

from ..passes import Unsupported

Kernel = TypeVar("Kernel")
BY_DEVICE = {"cpu": "cpp", "cuda": "triton"}  # the language of kernels, by the type of the device


def kernel_or_none(backend: str, make: Callable[[], Kernel], *, others: bool = False) -> Kernel | None:
    """The kernel from `make`; None if `make` raises RecipeError and the `backend` is "auto".

    Each reason is warned of once, except Unsupported, for a Program without a form as such a kernel. With an explicit
    backend the error of `make` is raised, except Unsupported where `others`, kernels of another kind, are tried next.
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
