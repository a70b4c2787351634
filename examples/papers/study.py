"""What every experiment shares: results that are computed once and kept, claims beside those of the paper, pictures.

An experiment is a file with an `EXPERIMENT`. Its `claims` asks a `Study` for results, each a function of plain
settings, and says what the paper claims and what came out; the verdict follows (`verdicts`). A result that is there is
read, so that an interrupted run goes on where it was, and a changed setting is a new result.
"""

import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

import matplotlib
from datasets import check_file
from verdicts import Claim

from recipe.errors import RecipeError

matplotlib.use("Agg")

Candidate = TypeVar("Candidate")
LONGEST = 180  # characters of the name of a result; folders take no more than 255


class Scale(Enum):
    """How much is computed: to see that it works, what two cores do in the time stated, or all that the paper has."""

    QUICK = "quick"
    REDUCED = "reduced"
    FULL = "full"


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper: its place there, and the files that it reads under the data folder.

    `full_files`: those that it reads beside at the full scale. `seeds`: independent runs at the reduced one, in words.
    """

    name: str
    paper: str
    claims: "Callable[[Study], list[Claim]]"
    files: Sequence[str] = ()
    full_files: Sequence[str] = ()
    seeds: str = "one seed"

    def files_at(self, scale: Scale) -> list[str]:
        """The files that it reads at this scale."""
        return [*self.files, *(self.full_files if scale is Scale.FULL else ())]


def check_data(experiments: Sequence[Experiment], folder: Path | None, scale: Scale) -> None:
    """Refuse to begin where files of any of the experiments are missing or damaged; all of them are named.

    Raises RecipeError, which says which files, whose, and where they are to be had.
    """
    readers: dict[str, list[str]] = {}
    for experiment in experiments:
        for name in experiment.files_at(scale):
            readers.setdefault(name, []).append(experiment.name)
    if not readers:
        return
    if folder is not None and not folder.is_dir():
        raise RecipeError("--data", f"there is no folder {folder}", do="Pass --data FOLDER, that of the data sets.")
    if folder is None:
        do = "Pass --data FOLDER with them; examples/papers/datasets.py says where each is to be had."
        raise RecipeError("--data", f"there is no {', no '.join(readers)}", do=do)
    faults = []
    for name, own in readers.items():
        try:
            check_file(folder, name)
        except RecipeError as fault:
            faults.append(f"\n  {', '.join(own)}: {fault}")
    if faults:
        what = f"of {len(readers)} files {len(faults)} are missing or damaged:{''.join(faults)}\nNothing has begun"
        do = "examples/papers/datasets.py says what they hold. Or name experiments that read others."
        raise RecipeError(f"--data {folder}", what, do=do)


class Study:
    """The results of one experiment at one scale, in a folder.

    `data` is the folder of the data sets, `log` what is told on the way. Results that do not depend on one another are
    computed side by side where there is a `pool` of processes.
    """

    def __init__(
        self,
        folder: Path,
        data: Path | None = None,
        scale: Scale = Scale.REDUCED,
        log: Callable[[str], Any] = print,
        pool: Executor | None = None,
    ) -> None:
        self.place = (folder, data, scale)
        self.folder = folder / scale.value
        self.data = data
        self.scale = scale
        self.log = log
        self.pool = pool
        self.seconds = 0.0  # of the processor, that the results took when they were computed
        self._counted: set[Path] = set()
        self._earlier = 0.0  # seconds of results that the one that is being computed has read
        self._folders: list[Path] = []  # of checkpoints of the result that is being computed

    def of_scale(self, quick: Any, reduced: Any, full: Any) -> Any:
        """The value for this study's scale."""
        return {Scale.QUICK: quick, Scale.REDUCED: reduced, Scale.FULL: full}[self.scale]

    def result(self, function: Callable[..., dict], **settings: Any) -> dict:
        """`function(study, **settings)`, plain JSON data: read where it was computed with these settings, else kept.

        A file that is damaged is told and computed again.
        """
        path = self._path(function, settings)
        kept = self._read(path)
        if kept is None or kept["settings"] != json.loads(json.dumps(settings)):
            kept = self._computed(path, function, settings)
            self.log(f"  {path.stem}: {kept['seconds']:.1f} s")
        elif path not in self._counted:
            self._earlier += kept["seconds"]
        if path not in self._counted:  # a result that others are made of is asked for by each
            self.seconds += kept["seconds"]
            self._counted.add(path)
        return kept["value"]

    def _computed(self, path: Path, function: Callable[..., dict], settings: dict) -> dict:
        """Compute a result and keep it; the checkpoints on the way go."""
        outer, self._folders = self._folders, []
        earlier, self._earlier = self._earlier, 0.0
        others = self.seconds
        try:
            began = time.process_time()
            value = function(self, **settings)
            self.seconds = others  # a result that this one is made of has its seconds in those of this one
            seconds = time.process_time() - began + self._earlier
            kept = {"settings": settings, "seconds": round(seconds, 3), "value": value}
            self._write(path, json.dumps(kept, allow_nan=True))
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            self._folders, self._earlier = outer, earlier
        return json.loads(json.dumps(kept))  # what a later run will read

    def results(self, function: Callable[..., dict], settings: Sequence[dict]) -> list[dict]:
        """`result` of each, side by side where there is a pool; the function is then one of a module."""
        self._ahead(function, settings)
        return [self.result(function, **own) for own in settings]

    def _ahead(self, function: Callable[..., dict], settings: Sequence[dict]) -> None:
        """Compute those that are not there in the pool; what is refused is so again when it is asked for."""
        absent = [own for own in settings if not self._path(function, own).exists()]
        if self.pool and len(absent) > 1:
            for future in as_completed([self.pool.submit(_computed, self.place, function, own) for own in absent]):
                for line in future.result():
                    self.log(line)

    def scratch(self, function: Callable[..., dict], **settings: Any) -> Path:
        """A folder for the checkpoints of a result that takes long, of these settings alone; gone with the result."""
        folder = self.folder / f"{_name(function, settings)}.run"
        self._folders.append(folder)
        return folder

    def best(
        self,
        candidates: Sequence[Candidate],
        function: Callable[..., dict],
        settings: Callable[[Candidate], dict],
        loss: Callable[[dict], float],
    ) -> Candidate:
        """The candidate whose result, `function` of its `settings`, has the lowest loss; the only one is not tried.

        One whose loss is not a number, or whose run is refused, as one that diverges is, is out. Raises RecipeError
        where none is left.
        """
        if len(candidates) == 1:
            return candidates[0]
        self._ahead(function, [settings(candidate) for candidate in candidates])
        losses = [self._loss(function, settings(candidate), loss) for candidate in candidates]
        finite = [k for k, value in enumerate(losses) if math.isfinite(value)]
        if not finite:
            raise RecipeError("best", f"all of {list(candidates)} diverge", do="Give smaller step sizes.")
        return candidates[min(finite, key=losses.__getitem__)]

    def _loss(self, function: Callable[..., dict], settings: dict, loss: Callable[[dict], float]) -> float:
        try:
            return loss(self.result(function, **settings))
        except RecipeError as refusal:
            self.log(f"  out: {refusal}")
            return math.inf

    def write(self, name: str, text: str) -> None:
        """Write a text beside the results, whole or not at all."""
        self._write(self.folder / name, text)

    @contextmanager
    def figure(self, name: str, columns: int = 1, **options: Any) -> Iterator[Any]:
        """Axes in a row, of a picture NAME.png that is written when the block is over."""
        from matplotlib import pyplot

        self.folder.mkdir(parents=True, exist_ok=True)
        figure, axes = pyplot.subplots(1, columns, figsize=(4.6 * columns, 4), layout="constrained", **options)
        try:
            yield axes
            figure.savefig(self.folder / f"{name}.png", dpi=110)
        finally:
            pyplot.close(figure)

    def _path(self, function: Callable, settings: dict) -> Path:
        return self.folder / f"{_name(function, settings)}.json"

    def _read(self, path: Path) -> dict | None:
        try:
            kept = json.loads(path.read_text())
            if kept.keys() >= {"settings", "seconds", "value"}:
                return kept
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError):
            pass
        self.log(f"  {path}: damaged, computed again")
        return None

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(text)
        os.replace(partial, path)


def _computed(place: tuple[Path, Path | None, Scale], function: Callable[..., dict], settings: dict) -> list[str]:
    """Compute a result in a process of a pool; what is told on the way."""
    lines: list[str] = []
    with suppress(RecipeError):
        Study(*place, log=lines.append).result(function, **settings)
    return lines


def _name(function: Callable, settings: dict) -> str:
    words = [function.__name__, *(f"{key}={value}" for key, value in settings.items())]
    name = re.sub(r"[^\w.=+-]+", "-", " ".join(words)).strip("-")
    if len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean, and the standard deviation over seeds where there are several.

    >>> spread([1.0, 2.0, 3.0], 1)
    '2.0 +- 1.0'
    """
    deviation = f" +- {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


def beside(axes: Any, rows: Mapping[str, Mapping[str, Sequence[float]]], printed: Mapping[str, float]) -> None:
    """A line of each row, from above: the mean and the spread over seeds of each setting, and what is printed."""
    places = range(0, -len(rows), -1)
    for k, setting in enumerate(dict.fromkeys(setting for row in rows.values() for setting in row)):
        own = [(at - 0.12 * k, row[setting]) for at, row in zip(places, rows.values()) if setting in row]
        deviations = [stdev(values) if len(values) > 1 else 0.0 for _, values in own]
        means = [fmean(values) for _, values in own]
        axes.errorbar(means, [at for at, _ in own], xerr=deviations, fmt="o", capsize=3, label=setting)
    axes.plot([printed[name] for name in rows], places, "kx", label="printed")
    axes.set_yticks(places, rows)
    axes.set_ylim(0.5 - len(rows), 0.5)
    axes.legend(fontsize=7)


HEAD = ("claim", "paper", "here", "verdict", "why")


def table(experiment: Experiment, claims: Sequence[Claim], seconds: float) -> str:
    """The claims as a table in Markdown, with the minutes of a processor that the results took."""
    lines = [f"### {experiment.name}: {experiment.paper} ({seconds / 60:.1f} min)", ""]
    lines += [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    for claim in claims:
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in claim.cells)} |")
    return "\n".join(lines) + "\n"
