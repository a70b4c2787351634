"""Recipes of equal content: one that is declared again shares the certificate and the programs of the first."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from sympy import S
from sympy.matrices import MatrixBase

from .algebra import entries
from .bound import Bound
from .dynamics import Dynamics


@dataclass(frozen=True)
class _Content:
    """The class and all fields of a recipe, by which it is compared."""

    parts: tuple
    recipe: Any = field(compare=False)


def representative(recipe: Any) -> Any:
    """The first of the recipes that equal a recipe in every field, name and texts included.

    A recipe stands for itself if it has a network, whose weights may change, or a field without a hash, or if a dict of
    the first one was changed since; so does what is no recipe.

    >>> from recipe import Recipe, total, vector
    >>> one, other, colder = (Recipe(name="a", state=(t := vector("t")), H=k*total(t**2), D={t: 1}) for k in (1, 1, 2))
    >>> representative(other) is representative(one), representative(colder) is representative(one)
    (True, False)
    """
    if not isinstance(recipe, Dynamics) or any(e.has(Bound) for e in (*recipe.formulas, recipe.marginal or S.Zero)):
        return recipe
    parts = _parts(recipe)
    try:
        first = _first(_Content(parts, recipe))
    except TypeError:
        return recipe
    return first if first is recipe or _parts(first) == parts else recipe


@lru_cache(maxsize=256)
def _first(content: _Content) -> Any:
    return content.recipe


def _parts(recipe: Any) -> tuple:
    return type(recipe), *(_hashable(getattr(recipe, f.name)) for f in fields(recipe))


def _hashable(x: Any) -> Any:
    """A field as a tuple, in order, where it is a dict or a matrix."""
    if isinstance(x, MatrixBase):
        return x.shape, *entries(x).items()
    return tuple((key, _hashable(value)) for key, value in x.items()) if isinstance(x, Mapping) else x
