"""Checks of recipes, of the steps compiled from them, and of samplers that others wrote.

`check(recipe, scheme)` runs the layers of checks, `audit(run)` judges a black box, `diagnose(state, H, drift, D)`
finds the faults of an SDE; `recipes()`, `schemes()`, `energies()` and `states()` are Hypothesis strategies,
PROPERTIES the statements that hold for all of them.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
