"""The command `recipe`: list, show, check, emit, sample and audit.

Answers go to stdout, messages to stderr; the exit code is 0, 1 for a failed check, 2 for wrong use. A FILE is Python
code of the user's own and is run as such; nothing else on the command line is evaluated.
"""

from .commands import Answer
from .lookup import find_energy, find_function, find_recipe
from .program import NUMBERS, main

__all__ = ["NUMBERS", "Answer", "find_energy", "find_function", "find_recipe", "main"]
