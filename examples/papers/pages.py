"""The pages of the papers: what a run found, as tables that are read and cited, and the same as JSON beside them.

    python examples/papers/pages.py                     # results.json and pages/*.json anew, from the pages
    python examples/papers/pages.py --out out/papers    # first the tables and the pictures of a run into the pages

The page of an experiment is the one that its name begins with: psgld-a9a is a section of pages/psgld.md. The words
around the tables are written by hand. SHA256SUMS has the data files that the figures are of: `sha256sum -c` reads it.
"""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from run import EXPERIMENTS, TABLE
from study import HEAD, Experiment, Scale

HERE = Path(__file__).parent
RESULTS = HERE / "results.md"
PAGES = HERE / "pages"
SECTION = re.compile(r"^### ([\w-]+): (.*) \(([\d.]+) min\)\n\n(?:(`make papers.*)\n\n)?((?:\|.*\n)+)", re.M)
TABLES = re.compile(r"(?:^\|.*\n)+", re.M)


def page_of(name: str) -> Path:
    """The page of an experiment."""
    return PAGES / f"{name.partition('-')[0]}.md"


def cells(table: str) -> list[list[str]]:
    """The rows of a table in Markdown, less its head."""
    return [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]


def command(experiment: Experiment) -> str:
    """What runs an experiment at the reduced scale."""
    return f"make papers NAMES={experiment.name}" + " DATA=FOLDER" * bool(experiment.files)


def about(experiment: Experiment) -> str:
    """The line under the head of a section: the command, the independent runs, the folders of data."""
    folders = ", ".join(dict.fromkeys(Path(name).parts[0] for name in experiment.files))
    return f"`{command(experiment)}`: {experiment.seeds}; {f'data: {folders}' if folders else 'no data files'}."


def digests(experiment: Experiment) -> dict[str, str]:
    """The SHA-256 of each data file of an experiment, by its name."""
    lines = (HERE / "SHA256SUMS").read_text().splitlines()
    known = {name.removesuffix(".gz"): digest for digest, name in map(str.split, lines)}
    return {name: known[name] for name in experiment.files}


def sections(page: str) -> dict[str, dict]:
    """The experiments of a page by name: command, seeds, data, minutes of a processor, and the claims."""
    records = {}
    for name, paper, minutes, _, table in SECTION.findall(page):
        experiment = EXPERIMENTS[name]
        record = dict(paper=paper, command=command(experiment), seeds=experiment.seeds, data=digests(experiment))
        records[name] = record | {"minutes": float(minutes), "claims": [claim(row) for row in cells(table)]}
    return records


def claim(row: list[str]) -> dict[str, str]:
    """A row by its head; the setting under which a claim holds stands apart from the verdict."""
    named = dict(zip(HEAD, row, strict=True))
    verdict, _, setting = named["verdict"].partition(": ")
    return named | {"verdict": verdict, "setting": setting}


def headlines(page: str) -> list[dict[str, str]]:
    """The rows of the tables before the lessons, each by the head of its own; the experiment by its name."""
    rows = []
    for table in TABLES.findall(page.partition("\n## Lessons")[0]):
        head = table.partition("\n")[0][2:-2].split(" | ")
        rows += [dict(zip(head, row, strict=True)) for row in cells(table)]
    return [row | {"experiment": row["experiment"][1:].partition("]")[0]} for row in rows]


def renewed(page: str, table: str) -> str:
    """A page with the section of a table, in the place of the one that it has of this experiment, or at its end."""
    parts = SECTION.match(table)
    experiment = EXPERIMENTS[parts[1]]
    section = table.replace("\n\n", f"\n\n{about(experiment)}\n\n", 1)
    before = next((match for match in SECTION.finditer(page) if match[1] == experiment.name), None)
    return page.replace(before[0], section) if before else f"{page.rstrip()}\n\n{section}"


def take(out: Path) -> None:
    """Bring the tables of a run at the reduced scale into the pages, and the pictures that these show.

    The only picture of an experiment has its name there, one of several its own name behind that.
    """
    for name in EXPERIMENTS:
        folder, page = out / name / Scale.REDUCED.value, page_of(name)
        if not (folder / TABLE).is_file():
            continue
        text = page.read_text() if page.is_file() else f"# {page.stem}\n"
        page.write_text(renewed(text, (folder / TABLE).read_text()))
        for picture in folder.glob("*.png"):
            for shown in (name, f"{name}-{picture.stem}"):
                if f"(pictures/{shown}.png)" in text:
                    (PAGES / "pictures").mkdir(exist_ok=True)
                    shutil.copyfile(picture, PAGES / "pictures" / f"{shown}.png")


def beside() -> dict[Path, str]:
    """The JSON beside each page, as it has to be, by its path."""
    records: dict[Path, object] = {RESULTS: headlines(RESULTS.read_text())}
    records |= {page: sections(page.read_text()) for page in sorted(PAGES.glob("*.md"))}
    return {page.with_suffix(".json"): json.dumps(record, indent=1) + "\n" for page, record in records.items()}


def main(argv: list[str] | None = None) -> int:
    """Write the pages' tables from a run, where there is one, and the JSON beside all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the results of a run, whose tables go into the pages")
    options = parser.parse_args(argv)
    if options.out:
        take(options.out)
    for path, text in beside().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
