"""The command `recipe`: list, show, check, emit, sample and audit.

Answers go to stdout, messages to stderr; the exit code is 0, 1 for a failed check, 2 for wrong use. A FILE is Python
code of the user's own and is run as such; nothing else on the command line is evaluated.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command, prints its answer and returns the exit code: 130 at Ctrl-C, also while modules are imported."""
    try:
        from .program import run  # imports sympy

        return run(argv)
    except KeyboardInterrupt:
        return 130
