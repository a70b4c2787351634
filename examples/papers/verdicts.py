"""Verdicts on claims of papers: what a run here can say of them, and what it cannot.

A claim states its kind, whether it is found here, and what stands in the way of a judgement; its verdict follows.
Only what is proved or computed, with its reason, refutes: a run that is shorter than the paper's, has one seed, or
leaves a constant of the method open misses a figure without making it false; so does a rival that is better than
printed. A figure that one seed comes near may be luck, too: it decides nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import fmean, variance


class Kind(Enum):
    """What a claim is made of."""

    CLOSED_FORM = "closed form"  # a law that is proved or computed: chains show it, and its negation refutes
    FIGURE = "printed figure"
    COMPARISON = "comparison"  # an order of methods or of settings, by runs


class Verdict(Enum):
    """What is said of a claim here."""

    REPRODUCED = "reproduced"
    REDUCED = "reproduced at reduced scale"
    ELSEWHERE = "holds only under another scoring or setting"
    FALSE = "false as stated"
    UNDECIDED = "not decided here"


@dataclass(frozen=True)
class Claim:
    """A row of the table: what the paper says and prints, what is found, and why.

    `found`: whether it is so here, None within the spread of seeds or of the test set. `seeds`: independent runs, told
    where there is one; None where a law is computed. `reduced`: what is less than in the paper. `free`: constants of
    the method that are not chosen, or a regime that is not the paper's. `elsewhere`: where the claim holds, a scoring
    or setting.
    """

    words: str
    paper: str
    ours: str
    kind: Kind
    found: bool | None
    why: str = ""
    seeds: int | None = None
    reduced: str = ""
    free: str = ""
    elsewhere: str = ""

    @property
    def verdict(self) -> Verdict:
        """What follows from the kind, from what is found, and from what stands in the way."""
        if self.found is None or self.seeds == 1 and self.kind is not Kind.CLOSED_FORM:
            return Verdict.UNDECIDED
        if self.found:
            return Verdict.REDUCED if self.reduced else Verdict.REPRODUCED
        if self.elsewhere:
            return Verdict.ELSEWHERE
        refutes = self.kind is Kind.CLOSED_FORM and self.why and not self.reduced and not self.free
        return Verdict.FALSE if refutes else Verdict.UNDECIDED

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The row: claim, paper, here, verdict, why; of one seed it is said that it is one."""
        here = f"{self.ours}; one seed" if self.seeds == 1 else self.ours
        setting = f": {self.elsewhere}" if self.verdict is Verdict.ELSEWHERE else ""
        free = self.free if self.verdict is Verdict.UNDECIDED else ""
        why = "; ".join(part for part in (free, self.why, self.reduced) if part)
        return self.words, self.paper, here, self.verdict.value + setting, why


def part(done: int, whole: int, unit: str) -> str:
    """What is less than in the paper; nothing where all is done.

    >>> part(20_000, 500_000, "steps"), part(100, 100, "epochs")
    ('20,000 of 500,000 steps', '')
    """
    return f"{done:,} of {whole:,} {unit}" if done < whole else ""


def rises(groups: Sequence[Sequence[float]]) -> bool | None:
    """Whether means of seeds rise from each group to the next, beyond two standard errors; None where that is open.

    One seed has no error, so that nothing follows from it; a fall beyond two errors is enough to deny a rise.

    >>> rises([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]]), rises([[2.0, 2.1], [1.0, 1.1]]), rises([[1.0, 1.1], [2.0]])
    (True, False, None)
    """
    if min(map(len, groups)) < 2:
        return None
    steps = [
        (fmean(after) - fmean(before), math.sqrt(variance(before) / len(before) + variance(after) / len(after)))
        for before, after in pairwise(groups)
    ]
    if any(step < -2 * error for step, error in steps):
        return False
    return True if all(step > 2 * error for step, error in steps) else None
