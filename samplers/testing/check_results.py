"""Results of checks, each a statistic against a bound with the tested equation, and their report."""

import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, ClassVar

from recipe.results import WORDS, Findings, Row, record


@dataclass(frozen=True)
class Result:
    """One comparison of a statistic with its bound; the check fails beyond the bound, or for a value that is no number.

    `layer`: the kind of check. `equation`: true of a right sampler, violated where the check fails. `subject`: the
    word, piece or target of the statistic. `least`: whether the bound is a lower one, as for an order.

    >>> print(Result("linear law", "|C - closed form|", 3e-12, 1e-10, "C = M C M' + N N'", subject="B A O A B"))
    passed  linear law: |C - closed form| = 3e-12 <= 1e-10  [B A O A B]
    """

    layer: str
    statistic: str
    value: float
    bound: float
    equation: str
    subject: str = ""
    least: bool = False
    seconds: float = 0.0
    STATED: ClassVar = ("verdict",)

    @property
    def ok(self) -> bool:
        """Whether the statistic keeps its bound."""
        return isfinite(self.value) and (self.value >= self.bound if self.least else self.value <= self.bound)

    @property
    def verdict(self) -> str:
        """ "passed" or "failed"."""
        return "passed" if self.ok else "failed"

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        return record(self)

    @property
    def row(self) -> Row:
        """The comparison in words, with its equation where that is violated."""
        sides = (">=", "<") if self.least else ("<=", ">")  # a value that is no number is beyond its bound
        relation = sides[not self.ok]
        answer = f"{self.value:.3g} {relation} {self.bound:.3g}" + (f"  [{self.subject}]" if self.subject else "")
        violated = "" if self.ok else f", violated: {self.equation}"
        return Row(f"{self.layer}: {self.statistic}", answer + violated, "checked" if self.ok else "failed")

    def __str__(self) -> str:
        return f"{self.verdict}  {self.row.question} = {self.row.answer}"


class Inapplicable(str):
    """The reason why a layer does not apply to a recipe, so that nothing is left out."""


class LeftOut(UserWarning):
    """A layer of checks had to be left out."""


Results = Generator[Result, None, str | None]  # of a layer, which returns the reason where there is nothing to check


@dataclass(frozen=True, repr=False)
class Report(Findings):
    """The results of several checks of one sampler: `ok` is None where none failed and a layer was left out.

    `left_out`: (layer, reason) for each layer that could not be run; `inapplicable`: for each that does not apply.
    `doubts`: reasons why chains need not reach the invariant law.
    """

    name: str
    results: tuple[Result, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    inapplicable: tuple[tuple[str, str], ...] = ()
    doubts: tuple[str, ...] = ()
    STATED: ClassVar = ("ok", "notes", "rows")

    @property
    def title(self) -> str:
        """The name of the sampler, and whether it is ok."""
        return f"checks of {self.name}: {WORDS[self.ok]}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The results in words."""
        return tuple(r.row for r in self.results)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on doubts and on layers that were not run, one for every reason."""
        lines = [f"warning  {text}" for text in self.doubts]
        lines += [f"left out  {text}" for text in _by_reason(self.left_out)]
        return (*lines, *(f"does not apply  {text}" for text in _by_reason(self.inapplicable)))

    @property
    def warning(self) -> str:
        """The layers left out, in one line; "" if all layers were run."""
        return f"{self.name}: left out {'; '.join(_by_reason(self.left_out))}" if self.left_out else ""

    @property
    def ok(self) -> bool | None:
        """False where a check failed, else None where a layer was left out or nothing was asked, else True."""
        return None if super().ok and self.left_out else super().ok

    @property
    def failures(self) -> tuple[Result, ...]:
        """The checks that failed."""
        return tuple(r for r in self.results if not r.ok)

    @property
    def seconds(self) -> float:
        """The seconds of all checks."""
        return sum(r.seconds for r in self.results)


def _by_reason(pairs):
    """Lines of layers with their reason, one for every reason."""
    layers: dict[str, list[str]] = {}
    for layer, reason in pairs:
        layers.setdefault(reason, []).append(layer)
    return [f"{', '.join(names)}: {reason}" for reason, names in layers.items()]


def timed(results: Iterable[Result]) -> tuple[list[Result], str | None]:
    """The results, each with its seconds, and the return value of their generator."""
    stamped: list[Result] = []
    results = iter(results)
    while True:
        started = time.perf_counter()
        try:
            result = next(results)
        except StopIteration as end:
            return stamped, end.value
        stamped.append(replace(result, seconds=round(time.perf_counter() - started, 4)))
