"""Symbolic energies of kernels that compute the gradient themselves."""

from recipe import Energy

from ..passes import Unsupported
from ..program import Program


def check_energy(program: Program, language: str) -> None:
    """Refuse a Program with a gradient supplied by the caller."""
    if program.recipe.potential is not None:
        symbolic_energy(program, language)


def symbolic_energy(program: Program, language: str) -> Energy:
    """The symbolic energy of a Program; raises Unsupported if there is none."""
    if program.energy is None:
        where = f"{program.recipe.name}, {language}"
        raise Unsupported(where, "the energy is not symbolic", do="Pass a recipe.Energy.")
    return program.energy
