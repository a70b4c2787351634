"""Templates of emitted text: files with `$names` as places for a writer's parts."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("templates")
_PLACE = re.compile(r"( *)\$(\w+)")


@cache
def template(name: str) -> str:
    """The text of a template file, without its last newline."""
    return (FOLDER / name).read_text().removesuffix("\n")


def filled(text: str, **parts: str | Sequence[str]) -> str:
    """A template with parts in place of their `$names`; lines of a list get the indentation of the name.

    >>> print(filled("while ($test) {\\n    $body\\n}", test="i < 3", body=["f(i);", "++i;"]))
    while (i < 3) {
        f(i);
        ++i;
    }
    """

    def part(place: re.Match) -> str:
        before = place[1]
        value = parts[place[2]]
        return before + (value if isinstance(value, str) else f"\n{before}".join(value))

    return _PLACE.sub(part, text)


def inner(lines: Sequence[str]) -> list[str]:
    """Lines indented by four spaces."""
    return [f"    {line}" for line in lines]
