"""The site, by sphinx, from the README, the guide, the notebooks, the gallery, the papers and the docstrings.

    python examples/website/build.py --out out/docs

Pages that are made of something else are written beside copies of the others, into a folder beside the site, and the
pictures of the guide are drawn anew. A warning is an error, and nothing is fetched. tests/test_readme.py runs the
blocks of the pages; notebooks run here.
"""

import argparse
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAPERS = ROOT / "examples" / "papers" / "pages"
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "examples" / "gallery")]

import pictures  # noqa: E402
import run  # noqa: E402  the gallery's script

import samplers  # noqa: E402
from recipe import Recipe  # noqa: E402

QUESTIONS = (
    "choosing sampling tuning training loops data models tempering report declaring operators targets networks".split()
)
QUESTIONS += "domains coefficients checking judging gpu machines messages glossary".split()
REASONS = "recipe words work bias certificates steps".split()
CONTENTS = {
    "Begin": ["guide/start", "notebooks/tour", "notebooks/digits", "notebooks/own_sampler"],
    "How do I": [f"guide/{name}" for name in QUESTIONS],
    "Why it works": [f"guide/{name}" for name in REASONS],
    "Samplers": ["guide/stock", "formulas", "gallery/index", "gallery/results"],
    "Papers": ["papers/results", *(f"papers/pages/{page.stem}" for page in sorted(PAPERS.glob("*.md")))],
    "Reference": ["reference/recipe", "reference/integrators", "reference/samplers", "reference/samplers.testing"],
    "Project": ["CONTRIBUTING", "CHANGELOG"],
}
LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def main(arguments: list[str] | None = None) -> int:
    """Write the pages and run sphinx; the status is that of sphinx."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/docs"), help="folder of the site, default out/docs")
    out = parser.parse_args(arguments).out
    pages = out.with_name(f"{out.name}-pages")
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "examples", pages, ignore=shutil.ignore_patterns("__pycache__", "website"))
    for path, text in made().items():
        (pages / path).parent.mkdir(exist_ok=True)
        (pages / path).write_text(text)
    for name, draw in pictures.OF_PAGES.items():
        draw((pages / "guide" / "pictures" / f"{name}.png").resolve())
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-c", str(HERE), str(pages), str(out)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


def made() -> dict[str, str]:
    """The pages that are made of something else, by path."""
    pages = {name: moved((ROOT / name).read_text()) for name in ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")}
    pages["CITATION.cff"] = (ROOT / "CITATION.cff").read_text()
    pages["index.md"] = moved((ROOT / "README.md").read_text()) + "".join(map(contents, CONTENTS))
    pages["formulas.md"] = formulas()
    pages["gallery/index.md"] = gallery()
    for package in ("recipe", "integrators", "samplers", "samplers.testing"):
        pages |= reference(package)
    return pages


def moved(text: str) -> str:
    """A page of the root of the repository, as one of the folder of examples."""
    return LINK.sub(lambda link: f"]({link[1].removeprefix('examples/')})", text)


def contents(part: str) -> str:
    """A part of the table of contents."""
    return "\n".join(["", f"```{{toctree}}\n:hidden:\n:caption: {part}\n", *CONTENTS[part], "```", ""])


def formulas() -> str:
    """H and the SDE of each stock sampler, with its docstring."""
    parts = [
        "# Formulas of the stock samplers",
        "One value per site, `Σ` over the sites of a chain; `recipe show NAME`.",
    ]
    for name, recipe in samplers.catalogue.items():
        parts += [f"## {name}", described(recipe)]
    return "\n\n".join(parts)


def described(recipe: Recipe) -> str:
    """The source of a recipe, its formulas, its law and word."""
    law = f"Word `{recipe.scheme}`. Law: {recipe.check()['claim'].answer}."
    return f"{recipe.source}.\n\n```text\n{recipe.typeset()}\n```\n\n{law}"


def gallery() -> str:
    """The samplers of the gallery, by room, each with its formulas and a picture of its draws."""
    parts = ["# Gallery", inspect.cleandoc(run.__doc__).split("\n\n")[0]]
    for room in run.ROOMS:
        parts += [f"## {room.__name__.capitalize()}", room.__doc__]
        for exhibit in room.GALLERY:
            picture = f"![draws of {exhibit.name} and their law](pictures/{exhibit.name}.png)"
            parts += [f"### {exhibit.name}", described(exhibit.recipe), picture]
    return "\n\n".join(parts)


def reference(package: str) -> dict[str, str]:
    """The pages of a package by path: its docstring, and its public classes and functions from theirs.

    Those of `samplers` have a page for each of its rooms, titled by the docstring of the room.
    """
    module = import_module(package)
    index = [f"# {package}", "", "```{eval-rst}", f".. automodule:: {package}", "   :no-members:", "```"]
    pages = {package: index}
    for thing, name in {thing: name for name, thing in public(package, module)}.items():
        room = ".".join(thing.__module__.split(".")[:2]) if package == "samplers" else package
        if room not in pages:
            title = inspect.cleandoc(import_module(room).__doc__ or room).splitlines()[0].rstrip(".")
            pages[room] = [f"# {title}"]
        kind = "autoclass" if inspect.isclass(thing) else "autofunction"
        pages[room] += ["", f"## {name.removeprefix(f'{package}.')}", "", "```{eval-rst}"]
        pages[room] += [f".. {kind}:: {thing.__module__}.{thing.__name__}"]
        pages[room] += ["   :members:"] * inspect.isclass(thing) + ["```"]
    rooms = [room for room in pages if room != package]
    index += ["", "```{toctree}", ":maxdepth: 2", "", *rooms, "```"] if rooms else []
    return {f"reference/{room}.md": "\n".join(lines) + "\n" for room, lines in pages.items()}


def public(path: str, module: Any) -> Iterator[tuple[str, Any]]:
    """The classes and functions of a package by the names that a user imports, those of its public modules too."""
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"{path}.{name}", thing
        elif inspect.ismodule(thing) and hasattr(thing, "__all__") and name not in ("stock", "testing"):
            yield from public(f"{path}.{name}", thing)


if __name__ == "__main__":
    sys.exit(main())
