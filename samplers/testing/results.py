"""Results of checks, each a statistic against a bound with the tested equation, and their report."""

import time
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any


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
        return {**asdict(self), "value": self.value if isfinite(self.value) else None, "verdict": self.verdict}

    def __str__(self) -> str:
        text = f"{self.verdict}  {self.layer}: {self.statistic} = {self.value:.3g} {self._relation} {self.bound:.3g}"
        if self.subject:
            text += f"  [{self.subject}]"
        return text if self.ok else f"{text}\n        violated: {self.equation}"

    @property
    def _relation(self):
        """The relation of value and bound; a value that is no number is beyond the bound."""
        if self.least:
            return ">=" if self.ok else "<"
        return "<=" if self.ok else ">"


class Inapplicable(str):
    """The reason why a layer does not apply to a recipe, so that nothing is left out."""


class LeftOut(UserWarning):
    """A layer of checks had to be left out."""


Results = Generator[Result, None, str | None]  # of a layer, which returns the reason where there is nothing to check


@dataclass(frozen=True)
class Report:
    """The results of several checks of one sampler.

    `left_out`: (layer, reason) for each layer that could not be run; `inapplicable`: for each that does not apply.
    `doubts`: reasons why chains need not reach the invariant law.
    """

    name: str
    results: tuple[Result, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    inapplicable: tuple[tuple[str, str], ...] = ()
    doubts: tuple[str, ...] = ()

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
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(r.ok for r in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        """The checks that failed."""
        return tuple(r for r in self.results if not r.ok)

    @property
    def seconds(self) -> float:
        """The seconds of all checks."""
        return sum(r.seconds for r in self.results)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "name": self.name,
            "ok": self.ok,
            "results": [r.to_dict() for r in self.results],
            "left_out": [list(pair) for pair in self.left_out],
            "doubts": list(self.doubts),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"checks of {self.name}: {'ok' if self.ok else 'FAILED'}"]
        lines += [f"  {result}" for result in self.results]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def _by_reason(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of layers with their reason, one for every reason."""
    layers: dict[str, list[str]] = {}
    for layer, reason in pairs:
        layers.setdefault(reason, []).append(layer)
    return [f"{', '.join(names)}: {reason}" for reason, names in layers.items()]


def timed(results: Iterable[Result]) -> tuple[list[Result], str | None]:
    """The results, each with its seconds, and the return value of their generator."""
    stamped: list[Result] = []
    results = iter(results)
    started = time.perf_counter()
    while True:
        try:
            result = next(results)
        except StopIteration as end:
            return stamped, end.value
        now = time.perf_counter()
        stamped.append(replace(result, seconds=round(now - started, 4)))
        started = now
