"""The audit of a sampler that others wrote: a black box, run on targets whose law is known.

The settings are checked (`plan`); the first runs of the black box (`black_box`) test that chains move and that noise
is new (`first_look`). Every target (`laws`), temperature and step size is measured until the start is forgotten
(`measurements`), and biases that remain as h -> 0 are judged (`judgement`, `biases`). The result is an `Audit`
(`verdicts`).
"""

from .auditing import audit
from .verdicts import VERDICTS, Audit, Cell

__all__ = ["VERDICTS", "Audit", "Cell", "audit"]
