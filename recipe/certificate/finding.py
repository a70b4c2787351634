"""Findings of a certificate, question by question."""

from dataclasses import dataclass
from typing import ClassVar

from ..results import WORDS, Findings, Row


@dataclass(frozen=True)
class Finding(Row):
    """A row of the certificate; `topic`: the question in a word."""

    topic: str = ""

    @property
    def in_words(self) -> str:
        """The question with its answer."""
        return f"{self.question}? {self.answer}"


@dataclass(frozen=True)
class Certificate(Findings):
    """The findings about a recipe: `.ok` is False if a finding failed, None if one is open; warnings are allowed."""

    recipe: str
    findings: tuple[Finding, ...]
    STATED: ClassVar = ("ok", "exact", "rows")

    @property
    def title(self) -> str:
        """The name of the recipe, and whether it is ok."""
        return f"certificate of {self.recipe}: {WORDS[self.ok]}"

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
        """The reasons, in words, why chains need not have the invariant law."""
        return [f.in_words for f in self.findings if f.verdict == "warning" and f.topic != "claim"]

    def __getitem__(self, topic: str) -> Finding:
        return next(f for f in self.findings if f.topic == topic)
