"""The result of an audit: a verdict, its findings, and the runs behind them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recipe.results import Findings, Row

from ..results import Report
from .laws import Law

VERDICTS: dict[str, bool | None] = {  # in this order: the first that applies is the verdict
    "not finished": None,
    "diverges": False,
    "does not move": False,
    "seed ignored": False,
    "noise shared across chains": False,
    "noise reused": False,
    "start not forgotten": False,
    "noise shared across coordinates": False,
    "temperature used wrongly": False,
    "bias does not vanish": False,
    "bias, limit unresolved": None,
    "vanishing bias": True,
    "unbiased": True,
}
HEADER = f"  {'target':12}{'dim':>4}{'T':>6}{'h':>9}{'E theta^2':>11}{'exact':>9}{'z':>8}{'worst z':>9}  of"
ROW = (
    "  {target:12}{dim:4}{temperature:6g}{step_size:9.4g}{time:8g}{E theta^2:11.4f}{exact:9.4f}{z:8.1f}"
    "{worst z:9.1f}  {worst}"
)


@dataclass(frozen=True)
class Cell:
    """A run for a target, temperature and step size, with the bias and standard error of each statistic.

    `square` is E theta^2, averaged over the coordinates, and `exact` its value under exp(-U/T).
    """

    law: Law = field(repr=False)
    temperature: float
    step_size: float
    time: float
    bias: np.ndarray = field(repr=False)
    error: np.ndarray = field(repr=False)

    @property
    def z(self) -> np.ndarray:
        """The biases in standard errors."""
        return self.bias / self.error

    @property
    def square(self) -> float:
        """E theta^2 of the draws."""
        return self.exact * (1 + self.bias[-2])

    @property
    def exact(self) -> float:
        """E theta^2 under exp(-U/T)."""
        return self.law.square(self.temperature)

    def to_dict(self) -> dict[str, Any]:
        """The cell as plain data."""
        worst = int(abs(self.z).argmax())
        return {
            "target": self.law.name,
            "dim": self.law.dim,
            "temperature": self.temperature,
            "step_size": self.step_size,
            "time": self.time,
            "E theta^2": self.square,
            "exact": self.exact,
            "z": float(self.z[-2]),
            "worst": self.law.labels[worst],
            "worst z": float(self.z[worst]),
        }


@dataclass(frozen=True)
class Audit(Findings):
    """The result of an audit: the verdict, one of VERDICTS, and findings with figures.

    `report` has the comparisons that decide `ok`; `cells` the runs; `threshold` the standard errors beyond which a
    comparison counts, so that a right sampler fails with probability `alpha` at most.
    """

    name: str
    verdict: str
    findings: tuple[str, ...]
    report: Report
    cells: tuple[Cell, ...]
    threshold: float
    alpha: float
    seconds: float

    @property
    def title(self) -> str:
        """The name of the sampler with the verdict."""
        return f"audit of {self.name}: {self.verdict}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The comparisons in words."""
        return self.report.rows

    @property
    def notes(self) -> tuple[str, ...]:
        """The findings with figures."""
        return self.findings

    @property
    def ok(self) -> bool | None:
        """Whether the law is right, or its bias vanishes with the step size; None where that is not resolved."""
        return VERDICTS[self.verdict]

    def __str__(self) -> str:
        lines = [self.title, *(f"  {text}" for text in self.findings)]
        if self.cells:
            lines += ["", HEADER, *(ROW.format(**c.to_dict()) for c in self.cells)]
        rate = f"{1 / self.alpha:,.0f}. {self.seconds:.0f} s."
        return "\n".join(
            [*lines, "", f"  |z| > {self.threshold:.2f} counts: a right sampler fails one audit in {rate}"]
        )
