"""What all C++ texts share: the prelude."""

from ..functions import AT_ENDS
from ..program import Program
from .template import template

LANGUAGE = "cpp"
PRELUDE = template("prelude.hpp")
AT_THE_ENDS = template("prelude_domains.hpp")


def prelude_of(program: Program) -> str:
    """The functions that the text of a Program may need."""
    return f"{PRELUDE}\n\n{AT_THE_ENDS}" if program.calls(*AT_ENDS) else PRELUDE
