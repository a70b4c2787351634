"""The audit of a sampler that others wrote: a black box, run on targets whose law is known.

A plan (`plan`) is checked; the box (`black_box`) gets a first look (`first_look`): does it move, is its noise new?
Then every target (`laws`), temperature and step size is measured until the start is forgotten (`measurements`), and
the biases that are left as h -> 0 are judged (`judgement`, `biases`). An `Audit` (`verdicts`) is what was found.
"""

from .auditing import audit
from .verdicts import VERDICTS, Audit, Cell

__all__ = ["VERDICTS", "Audit", "Cell", "audit"]
