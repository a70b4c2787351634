"""Wrong samplers made from right ones."""

from dataclasses import replace


def planted(step, *changes):
    """The step with its emitted text changed: (old, new), or (old, new, number of occurrences); old must be there."""
    source = step.source
    for old, new, *count in changes:
        assert old in source, f"{old!r} is not in\n{source}"
        source = source.replace(old, new, *count)
    mutant = replace(step)
    mutant.__dict__["source"] = source
    return mutant
