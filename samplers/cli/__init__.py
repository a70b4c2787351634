"""The command `recipe`: list, show, check, emit, sample and audit.

Answers go to stdout, messages to stderr. A FILE is Python code of the user's own and is run as such; nothing else on
the command line is evaluated.
"""

import sys

INTRODUCTION = """\
Samplers from three formulas, with the proof of their law.

  recipe show sghmc                          a stock sampler: equations, certificate, step
  recipe sample hmc --energy gaussian --tune  draws, their summary and their report
  recipe audit theirs.py:run                 the law of somebody else's sampler

recipe list names the stock samplers, recipe --help all commands.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command, prints its answer and returns the exit code: 130 at Ctrl-C, also while modules are imported."""
    if not (sys.argv[1:] if argv is None else argv):
        print(INTRODUCTION, end="")
        return 0
    try:
        from .command_line import run  # imports sympy

        return run(argv)
    except KeyboardInterrupt:
        return 130
