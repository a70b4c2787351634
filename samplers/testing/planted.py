"""Steps with a planted mistake: changes of their emitted text."""

from dataclasses import replace

from integrators.step import Step


def planted(step: Step, *changes: tuple) -> Step:
    """The step with changes of its text, (old, new) or (old, new, count); AssertionError where old is missing."""
    source = step.source
    for old, new, *count in changes:
        if old not in source:
            raise AssertionError(f"{old!r} is not in\n{source}")
        source = source.replace(old, new, *count)
    return with_source(step, source)


def with_source(step: Step, source: str) -> Step:
    """The step with another emitted text."""
    mutant = replace(step)
    mutant.__dict__["source"] = source
    return mutant
