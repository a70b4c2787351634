"""The layer of the work: its fluctuations from an exact start, and the law of the accepted step, at any h.

A path and its reverse, of work -W, have the ratio exp(W/T) of probabilities: E f(W) = E f(-W) exp(-W/T) for any f
(Crooks). f = 1 is E exp(-W/T) = 1 (Jarzynski), of heavy tail; here f(W) = tanh(W/2T) / (1 + exp(W/T)).
"""

from functools import lru_cache

import numpy as np

from integrators.direction import ACCEPTED, WORK

from ..check_results import Inapplicable, Result, Results
from ..features import features_of
from ..generator import STANDARD_ERRORS
from ..one_step import exponents, fitting_degree
from ..random_calls import TEMPERATURE
from ..subject import Subject
from .equilibrium_chains import accepted_chains, exact_start, noise_of, worst_moment

CHAINS, STEPS = 10_000, 20
LARGEST, HALVINGS = 1.0, 8
ACCEPTED_SHARE = 0.5  # of steps, at least, at the step size of the check
ROUNDING = 1e-9  # of a work that is 0


def work(subject: Subject) -> Results:
    """Checks the identity of the work, and the law of the accepted step, at a step size with rejected steps."""
    step = subject.accepted
    if isinstance(step, str):
        return Inapplicable(step)
    if subject.unresolved:
        return subject.unresolved
    about = f"{step.scheme}, {subject.first_energy}"
    h = _step_size(subject.right)
    start, states = _run(subject, step, h, STEPS)
    works = np.stack([state[WORK.name].numpy() / TEMPERATURE for state in states], 1)
    odd = (np.tanh(works / 2) / (1 + np.exp(np.clip(works, None, 500)))).mean(1)
    off = abs(odd.mean()) / max(odd.std() / len(odd) ** 0.5, ROUNDING)
    identity = "E f(W) = E f(-W) exp(-W/T) (Crooks)"
    yield Result("work", f"standard errors that E f(W) is off 0 at h = {h}", off, STANDARD_ERRORS, identity, about)
    features = len(features_of(subject.recipe))
    score, name = worst_moment(subject.recipe, start, states[-1], exponents(features, fitting_degree(features)))
    law = "min(1, exp(-W/T)) leaves exp(-H/T) as it is at every h"
    yield Result(
        "work", f"standard errors that E {name} is off after {STEPS} steps", score, STANDARD_ERRORS, law, about
    )
    share = _share(states)
    yield Result("work", "share of accepted steps", share, 0.1, "steps are accepted", about, least=True)
    return None


@lru_cache(maxsize=4)
def _step_size(right):
    """The largest of the step sizes 1, 1/2, 1/4, ... at which most steps are accepted."""
    h = LARGEST
    for _ in range(HALVINGS):
        if _share(_run(right, right.accepted, h, 2)[1]) >= ACCEPTED_SHARE:
            break
        h /= 2
    return h


def _run(subject, step, h, steps):
    """The exact start of chains, and their states after each step."""
    start = exact_start(subject, subject.first_energy, CHAINS)
    numbers = noise_of(subject, steps, CHAINS, step)
    with np.errstate(all="ignore"):  # a wrong step may go beyond the largest number
        return start, list(accepted_chains(subject, step, subject.first_energy, start, h, numbers))


def _share(states):
    """The share of accepted steps."""
    return float(states[-1][ACCEPTED.name].mean()) / len(states)
