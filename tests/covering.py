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


def covering(cases, always):
    """Cases as parameters: those that are not in `always` are slow."""
    cases, always = list(cases), list(always)
    assert set(always) <= set(cases), "what always runs is among the cases"
    return [case if case in always else slow(case) for case in cases]


def slow(case):
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
