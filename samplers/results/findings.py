"""What a report says: findings, each a number with the band it should be in and the cure, and the first to change."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

Scalars = dict[str, float]


@dataclass(frozen=True)
class Finding:
    """A question with its number, the standard error of that, the band from `low` to `high` it should be in, a cure.

    `of`: the block, coordinate or tensor that was asked about; `error` is None where the number is exact.

    >>> finding = Finding("R-hat", "theta[1]", 1.4, None, 0.0, 1.01, "Take more steps.")
    >>> finding.ok, finding.key
    (False, 'r_hat.theta[1]')
    >>> print(finding)
    R-hat of theta[1] is 1.4, above 1.01. Take more steps.
    """

    question: str
    of: str
    value: float
    error: float | None
    low: float
    high: float
    cure: str

    @property
    def ok(self) -> bool:
        """Whether the number is inside the band."""
        return self.low <= self.value <= self.high

    @property
    def title(self) -> str:
        """What was asked, of what."""
        return f"{self.question} of {self.of}" if self.of else self.question

    @property
    def key(self) -> str:
        """The name among scalars."""
        question = self.question.lower().replace(" ", "_").replace("-", "_")
        of = self.of.replace(", ", ",").replace(" ", "_")
        return f"{question}.{of}" if of else question

    def __str__(self) -> str:
        error = "" if self.error is None else f" +- {self.error:.1g}"
        start = f"{self.title} is {self.value:.4g}{error}"
        if self.ok:
            return f"{start}, as it should be."
        side = f"above {self.high:.4g}" if self.value > self.high else f"below {self.low:.4g}"
        return f"{start}, {side if math.isfinite(self.value) else 'no number'}. {self.cure}"


@dataclass(frozen=True)
class Report:
    """Findings in the order in which they are to be changed, and sentences of what was not asked; `print` it.

    It is true where it has findings, all in their bands, which does not say that the draws are right: what is wrong
    in a way that none of the questions sees is not in it.

    >>> report = Report((Finding("lost chains", "", 1, None, 0, 0, "Take a smaller step size."),), ())
    >>> bool(report), report.scalars()
    (False, {'ok': 0.0, 'lost_chains': 1.0, 'lost_chains.low': 0.0, 'lost_chains.high': 0.0})
    >>> print(report)
    Change first: lost chains is 1, above 0. Take a smaller step size.
    question     value  error  band
    lost chains      1         0 to 0  <-
    """

    findings: tuple[Finding, ...]
    unasked: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether something was asked, and every finding is in its band."""
        return bool(self.findings) and all(f.ok for f in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings out of their bands, what to change first at the beginning."""
        return tuple(f for f in self.findings if not f.ok)

    @property
    def verdict(self) -> str:
        """One line: what to change first, or that nothing asked speaks against the run."""
        wrong = self.wrong
        if wrong:
            others = f" {len(wrong) - 1} more out of their bands." if len(wrong) > 1 else ""
            return f"Change first: {wrong[0]}{others}"
        if not self.findings:
            return f"Nothing was asked: {'; '.join(self.unasked) or 'there are no questions'}."
        left_out = f"; {len(self.unasked)} not asked" if self.unasked else ""
        return f"Nothing asked speaks against it: {len(self.findings)} numbers in their bands{left_out}."

    def scalars(self) -> Scalars:
        """A flat dict of floats, for TensorBoard or W&B: `ok`, each number by its key, with `.low` and `.high`."""
        scalars = {"ok": float(self.ok)}
        for f in self.findings:
            scalars |= {f.key: float(f.value), f"{f.key}.low": float(f.low), f"{f.key}.high": float(f.high)}
        return scalars

    def to_dict(self) -> dict[str, Any]:
        """Plain data; JSON has no infinite numbers, so an open end of a band is None."""
        findings = [{k: _finite(x) for k, x in asdict(f).items()} | {"ok": f.ok} for f in self.findings]
        return {"ok": self.ok, "verdict": self.verdict, "findings": findings, "unasked": list(self.unasked)}

    def __str__(self) -> str:
        if not self.findings:
            return self.verdict
        rows: list[tuple[str, ...]] = [("question", "value", "error", "band")]
        rows += [_row(f) for f in self.findings]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [self.verdict]
        for (title, value, error, band), f in zip(rows, (None, *self.findings)):
            cells = (title.ljust(widths[0]), value.rjust(widths[1]), error.rjust(widths[2]), band)
            lines.append("  ".join(cells) + ("" if f is None or f.ok else "  <-"))
        return "\n".join([*lines, *(f"not asked: {reason}" for reason in self.unasked)])


def _row(f: Finding) -> tuple[str, ...]:
    error = "" if f.error is None else f"{f.error:.1g}"
    ends = f"from {f.low:.4g}" if math.isinf(f.high) else f"{f.low:.4g} to {f.high:.4g}"
    return (f.title, f"{f.value:.4g}", error, ends)


def _finite(x: Any) -> Any:
    return None if isinstance(x, float) and not math.isfinite(x) else x
