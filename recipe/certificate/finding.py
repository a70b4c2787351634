"""Findings of a certificate, question by question."""

from dataclasses import asdict, dataclass
from typing import Any

# From the strongest to the weakest.
VERDICTS = ("proved", "checked", "open", "warning", "failed")


@dataclass(frozen=True)
class Finding:
    """A question of the certificate with its answer and verdict.

    `verdict`: "proved", "checked" (numerically), "open" (not decided), "warning" (exp(-H/T) is invariant, and yet
    chains need not have this law) or "failed". `topic`: the question in a word.
    """

    question: str
    answer: str
    verdict: str
    topic: str = ""

    @property
    def in_words(self) -> str:
        """The question with its answer."""
        return f"{self.question}? {self.answer}"


@dataclass(frozen=True)
class Certificate:
    """The findings about a recipe: printable, `.ok` if nothing failed, `.to_dict()` for machines."""

    recipe: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no finding failed; warnings and open questions are allowed."""
        return not self.failures

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

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain data, ready for JSON."""
        return {
            "recipe": self.recipe,
            "ok": self.ok,
            "exact": self.exact,
            "findings": [asdict(f) for f in self.findings],
        }

    def __str__(self):
        width = max(len(f.question) for f in self.findings)
        lines = [f"  {f.verdict:8} {f.question:{width}}  {f.answer}" for f in self.findings]
        return "\n".join([f"certificate of {self.recipe}: {'ok' if self.ok else 'FAILED'}", *lines])
