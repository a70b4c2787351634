"""A part that covers a product of cases always runs, the rest of it is slow."""

import pytest

# A sampler of each mechanism: overdamped, a metric, domains, an accepted step, momenta, their redraw, a thermostat, a
# speed limit, an adaptation, jumps. What is asked of every sampler at every change, whatever its mechanism: its
# certificate, the SDE of its paper, the oracle's step, the defect of one step and the law of the step.
EVERY_MECHANISM = (
    "sgld",
    "psgld-gamma",
    "sgrld-simplex",
    "sgrld-cir",
    "mala",
    "sghmc",
    "sgrhmc",
    "hmc-randomised",
    "sgnht",
    "sghmc-relativistic",
    "santa",
    "isgd",
    "sgld-sa-gibbs",
)


def covering(cases, always=None, but=()):
    """Cases as parameters: those that are not in `always`, by default all, or are in `but` are slow."""
    cases = list(cases)
    always, but = cases if always is None else list(always), list(but)
    assert set(but) <= set(always) <= set(cases), "what always runs, and what is left out of it, is among the cases"
    return [case if case in always and case not in but else slow(case) for case in cases]


def slow(case):
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
