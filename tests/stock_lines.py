"""The lines that follow from the files of samplers/stock: `make stock` writes them, a test compares them.

They are the table of the catalogue, the stubs for type checkers, and the table of the guide.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from recipe import Recipe
from samplers import stock

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "samplers" / "stock"


class Sampler(NamedTuple):
    """A recipe of a file, by the name that it has there."""

    file: str
    python: str
    recipe: Recipe


class Place(NamedTuple):
    """A part of a file: what comes before it and after it, as patterns, and the lines that belong there."""

    path: Path
    before: str
    after: str
    lines: list[str]

    @property
    def written(self) -> str:
        """The text of the file with these lines."""
        text = self.path.read_text()
        start = re.search(self.before, text, re.M).end()
        end = start + re.search(self.after, text[start:], re.M).start()
        return text[:start] + "".join(f"{line}\n" for line in self.lines) + text[end:]


def samplers_of_the_folder() -> list[Sampler]:
    """All of them, in the order of the catalogue; new ones come last."""
    found = []
    for path in sorted(FOLDER.glob("[!_]*.py")):
        of_file = vars(import_module(f"samplers.stock.{path.stem}")).items()
        found += [Sampler(path.stem, python, x) for python, x in of_file if isinstance(x, Recipe)]
    known = [*stock._FILES]
    return sorted(found, key=lambda s: known.index(s.recipe.name) if s.recipe.name in known else len(known))


def places() -> Iterator[Place]:
    """The places where lines follow from the files."""
    found = samplers_of_the_folder()
    by_file: dict[str, list[str]] = {}
    for file, python, _ in sorted(found):
        by_file.setdefault(file, []).append(f"{python} as {python}")
    names = sorted((python for _, python, _ in found), key=str.lower)
    rows = [f'    "{s.recipe.name}": ("{s.file}", "{s.python}"),' for s in found]
    yield Place(FOLDER / "__init__.py", r"^_FILES = .*\n", r"^}", rows)
    imports = [line for file, own in by_file.items() for line in _import(file, own)]
    yield Place(FOLDER / "__init__.pyi", r"^from recipe import Recipe\n\n", r"^\nclass", imports)
    lines = [f"    {python} as {python}," for python in names]
    yield Place(ROOT / "samplers" / "__init__.pyi", r"^from \.stock import \(\n", r"^    catalogue as", lines)
    table = [f"| `{r.name}` | `{python}` | {r.source} | {r.claim} | {r.scheme} |" for _, python, r in found]
    yield Place(ROOT / "examples" / "guide" / "stock.md", r"^\| name \| in Python .*\n\|(---\|)+\n", r"^\n", table)


def _import(file, names):
    """The import of some names, in one line where that fits."""
    one = f"from .{file} import {', '.join(names)}"
    return [one] if len(one) <= 120 else [f"from .{file} import (", *(f"    {name}," for name in names), ")"]


if __name__ == "__main__":
    for place in places():
        place.path.write_text(place.written)
