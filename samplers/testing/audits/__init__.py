"""The audit of a sampler that others wrote: a black box, run on targets whose law is known.

An `Experiment` runs the black box and compares (`experiment`). First runs test that chains move and that noise is new;
then every target (`laws`), temperature and step size is measured until the start is forgotten (`measurements`), and
biases that remain as h -> 0 are judged (`judgement`). The result is an `Audit` (`auditing`).
"""

from .auditing import Audit, audit
from .experiment import VERDICTS, Cell

__all__ = ["VERDICTS", "Audit", "Cell", "audit"]
