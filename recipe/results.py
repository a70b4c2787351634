"""Results: rows of question, answer, verdict and cure, as text, as an HTML table, as plain data; the certificate."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass
from html import escape
from math import isfinite
from typing import Any, ClassVar

from sympy.matrices import MatrixBase

# From the strongest to the weakest.
VERDICTS = ("proved", "checked", "open", "warning", "failed")
GRADES = {"symbolic": "proved", "numeric": "checked", None: "failed"}  # verdicts on what vanishes, by grade of proof
WORDS = {True: "ok", None: "open", False: "FAILED"}


@dataclass(frozen=True)
class Row:
    """A question of a result with its answer, its verdict and a cure.

    `verdict` is "proved", "checked" (numerically), "open" (not decided), "warning" (exp(-H/T) is invariant, and yet
    chains need not have this law) or "failed".
    """

    question: str
    answer: str
    verdict: str
    _: KW_ONLY
    cure: str = ""


class Findings(ABC):
    """Rows under a title: printable, a table in a notebook, `.ok`, `.to_dict()` for machines.

    >>> class Oracle(Findings):
    ...     title = "oracle"
    ...     rows = (Row("x < 1", "0.5", "checked"), Row("is it known", "no", "failed", cure="Ask."))
    >>> print(Oracle())
    oracle
      checked  x < 1        0.5
      failed   is it known  no
               Ask.
    >>> Oracle().ok, Oracle()._repr_html_()[-52:]
    (False, '<td>no</td><td>failed</td><td>Ask.</td></tr></table>')
    """

    STATED: ClassVar[tuple[str, ...]] = ("ok", "rows")  # properties that are data, beside the fields

    @property
    @abstractmethod
    def title(self) -> str:
        """The result in one line."""

    @property
    @abstractmethod
    def rows(self) -> tuple[Row, ...]:
        """The questions with their answers, verdicts and cures."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines beside the rows."""
        return ()

    @property
    def ok(self) -> bool | None:
        """False where a row failed, else None where one is open or a warning, or nothing was asked, else True."""
        verdicts = {row.verdict for row in self.rows}
        return False if "failed" in verdicts else None if verdicts & {"open", "warning"} or not verdicts else True

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; formulas are text, and a number that is not finite is None."""
        return record(self)

    def __str__(self) -> str:
        width = max((len(row.question) for row in self.rows), default=0)
        lines = [self.title]
        for row in self.rows:
            lines.append(f"  {row.verdict:8} {row.question:{width}}  {row.answer}")
            lines += [f"{'':11}{row.cure}"] if row.cure else []
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"<{self.title}>"

    def _repr_html_(self) -> str:
        names = ("question", "answer", "verdict", "cure")
        return html_table(self.title, names, ([getattr(row, name) for name in names] for row in self.rows), self.notes)


def html_table(title: str, head: Iterable[str], rows: Iterable[Iterable[object]], notes: Iterable[str] = ()) -> str:
    """A table for a notebook, its texts escaped.

    >>> html_table("law", ["name"], [["a < b"]])
    '<table><caption>law</caption><tr><th>name</th></tr><tr><td>a &lt; b</td></tr></table>'
    """
    lines = ["".join(f"<th>{escape(name)}</th>" for name in head)]
    lines += ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(title)}</caption>{table}</table>" + "".join(f"<p>{escape(n)}</p>" for n in notes)


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table, its columns two spaces apart.

    >>> aligned([("name", "law"), ("sgld", "exact")])
    ['name  law', 'sgld  exact']
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def record(x: Any) -> dict[str, Any]:
    """The fields of a dataclass, and the properties that it names in STATED, as plain data."""
    names = (*getattr(x, "STATED", ()), *(f.name for f in fields(x)))
    return {name: plain(getattr(x, name)) for name in names}


def plain(x: Any) -> Any:
    """Plain data of a value, for JSON: text for a formula, None for a number that is not finite.

    >>> plain({("p", "xi"): (1.5, float("nan")), "q": None})
    {'p, xi': [1.5, None], 'q': None}
    """
    if hasattr(x, "to_dict"):
        return x.to_dict()
    if is_dataclass(x):
        return record(x)
    if isinstance(x, Mapping):
        return {", ".join(map(str, k)) if isinstance(k, tuple) else str(k): plain(v) for k, v in x.items()}
    if isinstance(x, MatrixBase):
        return plain(x.tolist())
    if isinstance(x, (list, tuple)):
        return [plain(each) for each in x]
    if isinstance(x, float):
        return x if isfinite(x) else None
    return x if x is None or isinstance(x, (int, str)) else str(x)


@dataclass(frozen=True)
class Finding(Row):
    """A row of the certificate; `topic`: the question in a word."""

    topic: str = ""

    @property
    def in_words(self) -> str:
        """The question with its answer."""
        return f"{self.question}? {self.answer}"


@dataclass(frozen=True, repr=False)
class Certificate(Findings):
    """The findings about a recipe: `.ok` is False if a finding failed, None if one is open or a warning."""

    recipe: str
    findings: tuple[Finding, ...]
    STATED: ClassVar = ("ok", "exact", "rows")

    @property
    def title(self) -> str:
        """The name of the recipe, and whether it is ok, or its claim where that is in doubt."""
        return f"certificate of {self.recipe}: {WORDS[self.ok] if self.ok is not None else self['claim'].answer}"

    @property
    def rows(self) -> tuple[Finding, ...]:
        """The findings."""
        return self.findings

    @property
    def exact(self) -> bool:
        """Whether every question is proved or checked: the chain has the law that the recipe claims."""
        return all(f.verdict in ("proved", "checked") for f in self.findings)

    @property
    def failures(self) -> list[Finding]:
        """The failed findings, the claim last."""
        return [f for f in self.findings if f.verdict == "failed"]

    @property
    def doubts(self) -> list[str]:
        """The reasons, in words, why chains need not have the invariant law; where it is open, with what would tell."""
        doubts = [f.in_words for f in self.findings if f.verdict == "warning" and f.topic != "claim"]
        return doubts + [
            f"{f.in_words}. Compare chains from far starts by R-hat, or give each block noise, or a refresh, of its own"
            for f in self.findings
            if f.verdict == "open" and f.topic == "reached"
        ]

    def __getitem__(self, topic: str) -> Finding:
        return next(f for f in self.findings if f.topic == topic)
