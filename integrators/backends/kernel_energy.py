"""The energies that kernels print, with the gradient inside of them."""

from recipe import Energy

from ..passes import Unsupported
from ..program import Program


def check_energy(program: Program, language: str) -> None:
    """Refuse a Program whose gradient is a function of the caller's."""
    if program.recipe.potential is not None:
        symbolic_energy(program, language)


def symbolic_energy(program: Program, language: str) -> Energy:
    """The energy of a Program whose gradient is printed."""
    if program.energy is None:
        where = f"{program.recipe.name}, {language}"
        raise Unsupported(where, "the energy is not symbolic", do="Pass a recipe.Energy.")
    return program.energy
