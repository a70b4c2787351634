"""Findings, each a number with the band it should be in and a cure, and their report."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from recipe.results import Findings, Row

from .averages import Agreement, Average

R_HAT = 1.01  # up to which chains agree, of Vehtari et al. 2021
WIDEST = 0.3  # half a band, over the temperature; an error of this share would not be seen in a wider one

NINE_OF_TEN = 1.28  # normal quantile of the power of a finding
MORE = "Take more steps, which tell. Should it stay there:"  # the advice where chance leaves an answer open
LATER = "call report()"  # ends the reason of a question that a report at a glance left out

Scalars = dict[str, float]


def told_apart(*numbers: float, digits: int = 4) -> list[str]:
    """Numbers as text, of `digits` digits, or of as many more as those that differ take to read differently.

    >>> told_apart(1.01004, 1.01), told_apart(1.4, 1.01)
    (['1.01004', '1.01'], ['1.4', '1.01'])
    """
    words = [f"{x:.{digits}g}" for x in numbers]
    return words if len(set(words)) >= len({*map(float, numbers)}) else told_apart(*numbers, digits=digits + 1)


@dataclass(frozen=True)
class Finding:
    """A question with its number, the standard error, the expected band from `low` to `high`, and a cure.

    `of`: the block, coordinate or tensor in question; `error` is None where the number is exact. `known` is False where
    chance makes the band so wide that a number inside of it says little. `chance`: the number up to which chance alone
    leads above a band of fixed ends.

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
    known: bool = True
    chance: float = -math.inf
    STATED: ClassVar = ("ok",)

    @property
    def ok(self) -> bool | None:
        """Whether the number is inside the band; None inside of a band that is too wide, or above it by chance."""
        if self.high < self.value <= self.chance:
            return None
        return self.low <= self.value <= self.high and (self.known or None)

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

    @property
    def answer(self) -> str:
        """The number with its error, and the band, or the end of the band that is exceeded."""
        value, error = f"{self.value:.4g}", "" if self.error is None else f" +- {self.error:.1g}"
        if self.ok:
            band = f"from {self.low:.4g}" if math.isinf(self.high) else f"{self.low:.4g} to {self.high:.4g}"
        elif self.ok is None and self.value <= self.high:
            chance = "" if self.error is None else f": chance leaves {self.low:.4g} to {self.high:.4g}"
            band = f"not known{chance}"
        elif not math.isfinite(self.value):
            band = "no number"
        else:
            value, end = told_apart(self.value, self.high if self.value > self.high else self.low)
            band = f"above {end}" if self.value > self.high else f"below {end}"
            band = f"not known: chance leaves more than {end} in so few draws" if self.ok is None else band
        return f"{value}{error}, {band}{self.power}"

    @property
    def power(self) -> str:
        """The error, in words, below which one may pass: it leaves the band nine times of ten. Empty without chance."""
        if not self.error or self.ok is False or math.isinf(self.high):
            return ""
        return f"; errors below {(self.high - self.low) / 2 + NINE_OF_TEN * self.error:.2g} may pass"

    @property
    def advice(self) -> str:
        """The cure of a number that is wrong, more steps before it where an average is not known; else nothing."""
        if self.ok:
            return ""
        return f"{MORE} {self.cure}" if self.ok is None and self.error is not None else self.cure

    def __str__(self) -> str:
        return f"{self.title} is {self.answer}. {self.advice}".strip()


def banded(
    question: str, of: str, average: Average, expected: float, slack: float, alpha: float, cure: str, T: float = 1.0
) -> Finding:
    """The finding on an average whose expectation is `expected`, up to `slack` and chance of probability `alpha`.

    The slack is at most WIDEST T; chance above two thirds of that leaves the question open.
    """
    chance = average.half_width(alpha)
    half = chance + min(slack, WIDEST * T)
    ends = expected - half, expected + half
    return Finding(question, of, average.value, average.error, *ends, cure, chance <= 2 / 3 * WIDEST * T)


def r_hat_finding(of: str, agreement: Agreement, alpha: float, cure: str) -> Finding:
    """The finding on an R-hat: at most R_HAT; chance of probability `alpha` that leaves more leaves it open."""
    return Finding("R-hat", of, agreement.r_hat, None, 0.0, R_HAT, cure, chance=agreement.most(alpha))


@dataclass(frozen=True, repr=False)
class Report(Findings):
    """Findings in the order of repair, and the questions that were not asked, with reasons; `print` it.

    A report is true where it has findings, all in their bands. Faults that none of the questions sees are not in it.
    `ok` is None where nothing was asked, or nothing is wrong and a question is open.

    >>> report = Report((Finding("lost chains", "", 1, None, 0, 0, "Take a smaller step size."),), ())
    >>> bool(report), report.scalars()
    (False, {'ok': 0.0, 'lost_chains': 1.0, 'lost_chains.low': 0.0, 'lost_chains.high': 0.0})
    >>> print(report)
    Change first: lost chains is 1, above 0. Take a smaller step size.
      failed   lost chains  1, above 0
               Take a smaller step size.
    """

    findings: tuple[Finding, ...]
    unasked: tuple[str, ...]
    STATED: ClassVar = ("ok", "verdict", "rows")

    @property
    def rows(self) -> tuple[Row, ...]:
        """The findings in words, with cures for numbers that are not known to be right."""
        verdicts = {True: "checked", None: "open", False: "failed"}
        return tuple(Row(f.title, f.answer, verdicts[f.ok], cure=f.advice) for f in self.findings)

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why questions were not asked, if any was asked."""
        return tuple(f"left out: {reason}" for reason in self.unasked) if self.findings else ()

    def __bool__(self) -> bool:
        return self.ok is True

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings out of their bands, what to change first at the beginning."""
        return tuple(f for f in self.findings if f.ok is False)

    @property
    def unknown(self) -> tuple[Finding, ...]:
        """The findings in bands so wide that they say little."""
        return tuple(f for f in self.findings if f.ok is None)

    @property
    def verdict(self) -> str:
        """One line: what to change first, after how much is not known if that is half, or that no fault was found."""
        wrong = self.wrong
        if wrong:
            rest = f" {len(wrong) - 1} more failed." if len(wrong) > 1 else ""
            first = f"{self._open}. " if 2 * len(self.unknown) >= len(self.findings) else ""
            return f"{first}Change first: {wrong[0]}{rest}"
        if not self.findings:
            return f"Nothing was asked: {'; '.join(self.unasked) or 'there are no questions'}."
        left_out = f"; {len(self.unasked)} left out" if self.unasked else ""
        later = sum(reason.endswith(LATER) for reason in self.unasked)
        left_out += f", of which report() asks {later}" if later else ""
        if self.unknown:
            return f"{self._open}{left_out}: {self.unknown[0]}"
        return f"All {len(self.findings)} diagnostics pass{left_out}."

    @property
    def _open(self) -> str:
        return f"{len(self.unknown)} of {len(self.findings)} answers not known"

    title = verdict

    def scalars(self) -> Scalars:
        """A flat dict of floats, for TensorBoard or W&B: `ok`, each number by its key, with `.low` and `.high`."""
        scalars = {"ok": float(bool(self))}
        for f in self.findings:
            scalars |= {f.key: float(f.value), f"{f.key}.low": float(f.low), f"{f.key}.high": float(f.high)}
        return scalars
