"""The settings of sphinx: pages in Markdown, notebooks that are executed, names from docstrings."""

import re
from typing import Any

project = "sde-recipe"
copyright = "the sde-recipe authors"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "sde-recipe"
html_show_sphinx = html_copy_source = False
default_role = "code"  # docstrings quote as Markdown does
autodoc_typehints = "none"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
add_module_names = False
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True


def setup(app: Any) -> None:
    """Docstrings are read as they are written."""
    app.connect("autodoc-process-docstring", lambda *arguments: as_written(arguments[-1]))


def as_written(lines: list[str]) -> None:
    """Escape the bars and asterisks of formulas, in all paragraphs of a docstring that are no doctests."""
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(p if p.lstrip().startswith(">>>") else escaped(p) for p in paragraphs).split("\n")


def escaped(paragraph: str) -> str:
    """A paragraph whose bars and asterisks are signs, outside of what is quoted and of the points of a list."""
    parts = re.split("(`+[^`]*`+)", paragraph)
    signs = re.compile(r"(?<=\S)[*|]|[*|](?=\S)")
    return "".join(part if part.startswith("`") else signs.sub(r"\\\g<0>", part) for part in parts)
