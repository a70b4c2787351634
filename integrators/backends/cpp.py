"""Prelude of all C++ texts."""

from ..functions import AT_ENDS
from ..program import Program
from .template import template

LANGUAGE = "cpp"
PRELUDE = template("prelude.hpp")
AT_THE_ENDS = template("prelude_domains.hpp")


def prelude_of(program: Program) -> str:
    """The prelude with the functions that the text of a Program may call."""
    return f"{PRELUDE}\n\n{AT_THE_ENDS}" if program.calls(*AT_ENDS) else PRELUDE
