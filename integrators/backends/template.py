"""The fixed text of what is emitted: files with `$names` where a writer puts its parts."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("templates")
_PLACE = re.compile(r"( *)\$(\w+)")


@cache
def template(name: str) -> str:
    """The text of a file of the folder, without the end of its last line."""
    return (FOLDER / name).read_text().removesuffix("\n")


def filled(text: str, **parts: str | Sequence[str]) -> str:
    """A template with parts in place of their `$names`: a text as it is, lines each behind the spaces before the name.

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
    """Lines of a text, further in."""
    return [f"    {line}" for line in lines]
