"""The outputs that a page shows after its Python blocks: compared with what the blocks print, or written anew.

python tests/shown.py README.md
"""

import io
import re
import sys
from contextlib import redirect_stdout
from math import isclose
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.S | re.M)


def run(page: Path) -> tuple[dict, list[tuple[str, str]]]:
    """Run the blocks of a page one after the other: their names, and what is shown and printed, where it is shown."""
    namespace: dict = {}
    outputs = []
    for block, shown in BLOCK.findall(page.read_text()):
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, str(page), "exec"), namespace)
        outputs += [(shown, printed.getvalue())] if shown else []
    return namespace, outputs


def agree(shown: str, printed: str) -> bool:
    """Whether two texts have the same words, and numbers of the same size: draws differ a little between machines.

    The coordinate that a row is about, as `[1]` in `theta[1]`, may be another one: the worst of several.
    """
    one, other = (re.split(r"([-+]?\d[\d.]*)", re.sub(r"(?<=\w)\[\d+\]", "[]", text)) for text in (shown, printed))
    words = [" ".join(text.split()) for text in one[::2]] == [" ".join(text.split()) for text in other[::2]]
    return words and all(isclose(float(x), float(y), rel_tol=0.5, abs_tol=0.1) for x, y in zip(one[1::2], other[1::2]))


def main(page: Path) -> None:
    _, outputs = run(page)
    printed = iter([output for _, output in outputs])

    def renewed(match):
        return match[0].replace(match[2], next(printed)) if match[2] else match[0]

    page.write_text(BLOCK.sub(renewed, page.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
