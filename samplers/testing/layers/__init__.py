"""The layers of checks of one step, from its formulas to its chains: what is deterministic comes first.

A layer is a function of a Subject. It yields its Results, and returns why it has nothing to check, if so. To add one,
write it in a file of this folder and name it in LAYERS.
"""

from .defect import one_step_defect
from .differential import differential
from .formulas import generator, symbolic
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
