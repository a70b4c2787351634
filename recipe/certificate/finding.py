"""What is known of a recipe, question by question."""

from dataclasses import asdict, dataclass
from typing import Any

# From the strongest to the weakest.
VERDICTS = ("proved", "checked", "open", "warning", "failed")


@dataclass(frozen=True)
class Finding:
    """One question of the certificate: its answer, how it is known, and whether it holds.

    `verdict` is "proved", "checked" (numerically), "open" (not decided), "warning" (exp(-H/T) is invariant, and yet
    chains need not have this law) or "failed". `topic` is the question in a word.
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
    """What is known of a recipe: printable, `.ok` if nothing failed, `.to_dict()` for machines."""

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
        """The findings that failed, the claim the last of them."""
        return [f for f in self.findings if f.verdict == "failed"]

    @property
    def doubts(self) -> list[str]:
        """Why chains need not have the law, though it is invariant, in words."""
        return [f.in_words for f in self.findings if f.verdict == "warning" and f.topic != "claim"]

    def __getitem__(self, topic: str) -> Finding:
        return next(f for f in self.findings if f.topic == topic)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
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
