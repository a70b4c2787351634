"""The layers of checks of one step, from its formulas to its chains; deterministic layers come first.

A layer is a generator function of a Subject that yields Results, and returns the reason where there is nothing to
check. A new layer is a file of this folder and an entry in LAYERS.
"""

from .defect import one_step_defect
from .formulas import differential, generator, symbolic
from .linear import linear_law
from .stationary import non_gaussian, stationary_start
from .work import work

LAYERS = {
    "symbolic": symbolic,
    "generator": generator,
    "differential": differential,
    "linear law": linear_law,
    "one-step defect": one_step_defect,
    "stationary start": stationary_start,
    "non-Gaussian": non_gaussian,
    "work": work,
}
