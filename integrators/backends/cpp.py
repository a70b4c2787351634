"""What all C++ texts share: the prelude, the energies that can be printed, the domains of blocks."""

from recipe import Energy
from recipe.symbols import Block

from ..passes import Unsupported
from ..program import Program
from .template import template

PRELUDE = template("prelude.hpp")
_CONDITIONS = {"positive": "{0} > 0", "nonnegative": "{0} >= 0", "fraction": "{0} >= 0) & ({0} <= 1"}


def check_energy(program: Program) -> None:
    """Refuse a Program whose gradient is a function of the caller's."""
    if program.recipe.potential is not None:
        symbolic_energy(program)


def symbolic_energy(program: Program) -> Energy:
    """The energy of a Program whose gradient is printed."""
    if program.energy is None:
        where = f"{program.recipe.name}, cpp"
        raise Unsupported(where, "the energy is not symbolic", do="Pass a recipe.Energy.")
    return program.energy


def is_bounded(block: Block) -> bool:
    """Whether some numbers are outside of the domain of a block."""
    return block.domain in _CONDITIONS


def is_inside(block: Block, name: str) -> str:
    """The condition that a number is in the domain of a bounded block.

    >>> from recipe import scalar
    >>> is_inside(scalar("v", domain="positive"), "v[l]")
    '(v[l] > 0)'
    """
    return f"({_CONDITIONS[block.domain].format(name)})"
