"""What all C++ texts share: the prelude, the energies that can be printed, the domains of blocks."""

from recipe import Energy
from recipe.symbols import Block

from ..domains import bounds
from ..functions import AT_ENDS
from ..passes import Unsupported
from ..program import Program
from .template import template

PRELUDE = template("prelude.hpp")
AT_THE_ENDS = template("prelude_domains.hpp")


def prelude_of(program: Program) -> str:
    """The functions that the text of a Program may need."""
    return f"{PRELUDE}\n\n{AT_THE_ENDS}" if program.calls(*AT_ENDS) else PRELUDE


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
    return bool(bounds(block))


def is_inside(block: Block, name: str) -> str:
    """The condition that a number is in the domain of a bounded block.

    >>> from recipe import scalar
    >>> is_inside(scalar("v", domain="positive"), "v[l]")
    '(v[l] > 0)'
    """
    return " & ".join(f"({name} {sign} {_number(end)})" for sign, end in bounds(block))


def _number(end: float) -> str:
    """A number that a value of either precision is compared with."""
    return str(int(end)) if end == int(end) else f"R({end!r})"
