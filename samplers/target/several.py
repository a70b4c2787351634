"""The energies of recipes with several potentials: one energy per name, or one energy at several blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from recipe import Energy, Recipe
from recipe.arguments import check_known
from recipe.errors import RecipeError
from recipe.symbols import Block, Potential

from .foreign import Foreign
from .model import Model
from .potential import VALUE
from .symbolic import Symbolic, energy_step
from .vectorised import takes


@dataclass(frozen=True)
class Energies:
    """The energies of a recipe's potentials, torch functions of one chain by `Potential.key`; a call returns their sum.

    `of_data`: the keys of the energies that read data.
    """

    recipe: Recipe
    functions: Mapping[str, Callable]
    of_data: frozenset[str] = frozenset()

    @property
    def num_data(self) -> int | None:
        """The `num_data` of the first energy that has one, else None."""
        known = (getattr(f, "num_data", None) for f in self.functions.values())
        return next((number for number in known if number is not None), None)

    def __call__(self, theta: Any, *batch: Any) -> torch.Tensor:
        values = []
        for U in self.recipe.potentials:
            arguments = batch if U.key in self.of_data else ()
            values.append(self.functions[U.key](argument(U, self.recipe, theta), *arguments))
        return sum(values[1:], values[0])


def argument(U: Potential, recipe: Recipe, theta: Any) -> Any:
    """The argument of a potential from the whole target: a tensor, or a dict by block for several blocks."""
    if len(recipe.targets) == 1 or len(U.blocks) > 1 and len(U.blocks) == len(recipe.targets):
        return theta
    return theta[U.blocks[0].name] if len(U.blocks) == 1 else {b.name: theta[b.name] for b in U.blocks}


def of_potentials(recipe: Recipe, energy: Any, where: str, *, has_data: bool) -> Any:
    """The `Energies` of a recipe with several potentials; for a recipe with one, the energy unchanged.

    `has_data`: whether the run has data, which at least one energy must read. Raises RecipeError for names other than
    those of the potentials, and for energies that are no functions of one chain.
    """
    if not recipe.has_several_potentials:
        if isinstance(energy, Mapping):
            what = f"it is a dict of {', '.join(map(str, energy))}, and the recipe has one U"
            raise RecipeError(f"{where}, energy", what, do='Name potentials: potential(theta, name="fast").')
        return energy
    if energy is None:
        return None
    functions = _by_key(recipe, energy, where)
    first = {U.key: U.blocks for U in reversed(recipe.potentials)}
    of_one = {key: _of_one_chain(f, first[key], f"{where}, energy {key!r}") for key, f in functions.items()}
    of_data = frozenset(key for key, f in of_one.items() if has_data and takes(f, 2) is not False)
    if has_data and not of_data:
        raise RecipeError(f"{where}, data", "no energy reads it", do="Give one as a function of (theta, batch).")
    return Energies(recipe, of_one, of_data)


def _by_key(recipe: Recipe, energy: Any, where: str) -> dict[str, Any]:
    keys = dict.fromkeys(U.key for U in recipe.potentials)
    if recipe.is_by_name and not isinstance(energy, Mapping):
        what = f"the recipe has the potentials {', '.join(keys)}, and the energy is {type(energy).__name__}"
        do = f"Pass a dict by name: {{{', '.join(f'{key!r}: ...' for key in keys)}}}."
        raise RecipeError(f"{where}, energy", what, do=do)
    functions = energy if isinstance(energy, Mapping) else {"U": energy}
    check_known(f"{where}, energy", "there is no potential {!r}", functions, keys)
    for name in keys.keys() - functions.keys():
        what = f"that of the potential {name!r} is missing"
        raise RecipeError(f"{where}, energy", what, do="Give one for each name.")
    return {key: functions[key] for key in keys}


def _of_one_chain(energy: Any, blocks: tuple[Block, ...], where: str) -> Callable:
    if isinstance(energy, Energy) and not energy.data:
        return _emitted(energy, blocks)
    if isinstance(energy, (Energy, Model, Foreign)) or not callable(energy):
        what = f"one of several energies is a torch function, got {type(energy).__name__}"
        raise RecipeError(where, what, do="Pass a function of theta, or of (theta, batch) with data=.")
    return energy


def _emitted(energy: Energy, blocks: tuple[Block, ...]) -> Callable:
    symbolic = Symbolic([energy_step(energy, blocks)])

    def of_one(theta: Any) -> Any:
        return symbolic.jet(tree_map(lambda x: x[None], theta), orders=VALUE).value[0]

    return of_one
