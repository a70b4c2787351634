"""Lookup of NAME, FILE and FILE:NAME: stock samplers and energies, and objects of the user's own Python files."""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isfunction
from pathlib import Path
from typing import Any

from recipe import Energy, Recipe
from recipe.arguments import check_known
from recipe.errors import RecipeError, did_you_mean

from ..stock import catalogue, recipe_of
from ..target.targets import TARGETS


def find_recipe(text: str) -> Recipe:
    """The recipe of NAME, FILE or FILE:NAME.

    >>> find_recipe("sghmc")
    Recipe('sghmc', state=(theta, p))
    """
    file, name = file_and_name(text)
    if file is None:
        return recipe_of(text, text, most=1)
    recipes = {variable: x for variable, x in run_file(file).items() if isinstance(x, Recipe)}
    if name is None:
        custom = {variable: R for variable, R in recipes.items() if R not in catalogue.values()}
        return _pick(text, None, custom, "Recipe")
    of_this_name = {variable: R for variable, R in recipes.items() if R.name == name}
    if of_this_name and name not in recipes:
        return _pick(text, None, of_this_name, "Recipe")
    return _pick(text, name, recipes, "Recipe")


def find_energy(text: str) -> Energy | Callable:
    """The energy of NAME, FILE or FILE:NAME: an Energy, or a torch function; of a FILE the only one that it defines.

    >>> find_energy("double-well").U
    2*(x**2 - 1)**2
    """
    file, name = file_and_name(text)
    if file is None:
        return _pick(text, text.lower(), TARGETS, "test energy")

    defined = run_file(file)
    energies = {variable: x for variable, x in defined.items() if isinstance(x, Energy)}
    if name is not None:
        return _pick(text, name, energies | ({name: defined[name]} if callable(defined.get(name)) else {}), "Energy")
    functions = {variable: x for variable, x in defined.items() if isfunction(x) and x.__globals__ is defined}
    return _pick(text, None, energies or functions, "Energy")


def find_function(text: str) -> Callable:
    """The function of FILE:FUNCTION."""
    file, name = file_and_name(text)
    if file is None:
        raise RecipeError(text, "it is not a function of a Python file", do="Write FILE.py:FUNCTION.")
    functions = {variable: x for variable, x in run_file(file).items() if callable(x)}
    return _pick(text, name, functions, "function")


def file_and_name(text: str) -> tuple[str | None, str | None]:
    """The file and the name of FILE:NAME, FILE or NAME, None for a missing part; a FILE ends in .py."""
    if text.endswith(".py"):
        return str(Path(text).absolute()), None
    head, _, tail = text.rpartition(":")
    if head.endswith(".py"):
        return str(Path(head).absolute()), tail
    return None, text


def _pick(text: str, name: str | None, objects: Mapping[str, Any], kind: str) -> Any:
    """The object of this name, or without a name the only object."""
    if name is None:
        if len({id(x) for x in objects.values()}) == 1:
            return next(iter(objects.values()))
        what = f"it does not define one {kind}, write FILE:NAME"
        raise RecipeError(text, what, do=did_you_mean("", objects))
    check_known(text, f"there is no {kind} of this name", [name], objects)
    return objects[name]


@cache
def run_file(file: str) -> dict[str, Any]:
    """Runs a Python file of the user's own, and returns the names that it defines."""
    if not Path(file).is_file():
        raise RecipeError(file, "there is no such file", do="Check the path.")
    spec = spec_from_file_location(f"recipe_file_{Path(file).stem}", file)
    assert spec and spec.loader  # a file that ends in .py has them
    module = sys.modules[spec.name] = module_from_spec(spec)
    sys.path.append(str(Path(file).parent))
    with blaming(file, wholly=True):
        spec.loader.exec_module(module)
    return vars(module)


def _lines(error: BaseException, file: str | None) -> list[int | None]:
    """The lines of a file that an error came through."""
    return [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]


@contextmanager
def blaming(file: str | None, *, wholly: bool = False) -> Iterator[None]:
    """Turns an error raised by a line of the user's file into a RecipeError that names the line.

    `wholly`: whether errors raised elsewhere are turned into RecipeErrors too.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        error, lines, do = raised, _lines(raised, file), ""
        if isinstance(raised, RecipeError) and raised.__cause__ is not None and _lines(raised.__cause__, file):
            error, lines, do = raised.__cause__, _lines(raised.__cause__, file), raised.do  # of a function of the file
        if not lines and isinstance(error, SyntaxError):
            lines = [error.lineno or 1]
        if not lines and not wholly:
            raise
        where = f"{file}, line {lines[-1] or 1}" if lines else str(file)
        raise RecipeError(where, f"{type(error).__name__}: {error}".rstrip(".: "), do=do) from error
