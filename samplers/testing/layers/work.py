"""The layer of the work: its fluctuations from an exact start, and the law of the accepted step, at any h.

A path and its reverse, of work -W, have the ratio exp(W/T) of probabilities: E f(W) = E f(-W) exp(-W/T) for any f
(Crooks). f = 1 is E exp(-W/T) = 1 (Jarzynski), of heavy tail; here f(W) = tanh(W/2T) / (1 + exp(W/T)).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

import integrators
from integrators import noise, streams
from integrators.step import Step
from integrators.work import ACCEPTED, DIRECTION, WORK
from recipe import RecipeError
from recipe.symbols import num_data

from ..arguments import NUM_DATA, TEMPERATURE
from ..features import features_of
from ..one_step import exponents, fitting_degree
from ..results import Inapplicable, Result, Results
from ..subject import Subject
from .chains import State, exact_start, noise_of
from .stationary import features_by_site, monomial

BOUND = 7.5  # standard errors, exceeded by a right step once in 1e13 comparisons
CHAINS, STEPS = 10_000, 20
LARGEST, HALVINGS = 1.0, 8
ACCEPTED_SHARE = 0.5  # of steps, at least, at the step size of the check
ROUNDING = 1e-9  # of a work that is 0


@dataclass(frozen=True)
class Run:
    """Chains at exp(-H/T) and after some steps of h that were accepted or rejected, and the work W/T of each step."""

    h: float
    start: State
    end: State
    works: np.ndarray


def work(subject: Subject) -> Results:
    """Checks the identity of the work, and the law of the accepted step, at a step size with rejected steps."""
    step = accepted_step(subject)
    if isinstance(step, str):
        return Inapplicable(step)
    if subject.unresolved:
        return subject.unresolved
    about = f"{subject.still.scheme}, {subject.first_energy}"
    h = _step_size(subject.right)
    run = _run(subject, step, h, STEPS)
    odd = (np.tanh(run.works / 2) / (1 + np.exp(np.clip(run.works, None, 500)))).mean(1)
    off = abs(odd.mean()) / max(odd.std() / len(odd) ** 0.5, ROUNDING)
    identity = "E f(W) = E f(-W) exp(-W/T) (Crooks)"
    yield Result("work", f"standard errors that E f(W) is off 0 at h = {h}", off, BOUND, identity, about)
    score, name = max(_moments_off(subject, run), default=(0.0, ""))
    law = "min(1, exp(-W/T)) leaves exp(-H/T) as it is at every h"
    yield Result("work", f"standard errors that E {name or 'phi'} is off after {STEPS} steps", score, BOUND, law, about)
    share = float(run.end[ACCEPTED.name].mean()) / STEPS
    yield Result("work", "share of accepted steps", share, 0.1, "steps are accepted", about, least=True)
    return None


def accepted_step(subject: Subject) -> Step | str:
    """The accept-reject step of a subject, with its mistake; as text, the reason where there is none."""
    if subject.wrong is not None:
        return "the work is derived of the formulas, not of what is compiled in their place"
    step = _accepted_step(subject.right)
    return step if isinstance(step, str) else subject.alter_accepted(step)


@lru_cache(maxsize=4)
def _accepted_step(subject: Subject) -> Step | str:
    frozen = [a.name for a in subject.recipe.adapted]
    try:
        return integrators.metropolised(subject.recipe, subject.scheme, pieces=subject.pieces, freeze=frozen)
    except RecipeError as error:
        return f"there is no work: {error.what}"


@lru_cache(maxsize=4)
def _step_size(right: Subject) -> float:
    """The largest of the step sizes 1, 1/2, 1/4, ... at which most steps are accepted."""
    step = accepted_step(right)
    h = LARGEST
    for _ in range(HALVINGS):
        run = _run(right, step, h, 2)
        if float(run.end[ACCEPTED.name].mean()) >= 2 * ACCEPTED_SHARE:
            break
        h /= 2
    return h


def _run(subject: Subject, step: Any, h: float, steps: int) -> Run:
    """Chains from an exact start, half of them in each direction of time."""
    energy = subject.first_energy
    start = exact_start(subject, energy, CHAINS)
    zero = torch.zeros(CHAINS, dtype=torch.float64)
    turn = noise.uniform(subject.seed, 0, streams.START, CHAINS, (), dtype=torch.float64)
    start |= {DIRECTION.name: torch.where(turn < 0.5, 1.0, -1.0).double(), WORK.name: zero, ACCEPTED.name: zero}
    state = start
    works = []
    arguments = _functions(subject, step, energy) | _settings(subject, step)
    for drawn in noise_of(subject, steps, CHAINS, step):
        state = step(state, h, noise=drawn, **arguments)
        works.append(state[WORK.name].numpy() / TEMPERATURE)
    return Run(h, start, state, np.stack(works, 1))


def _functions(subject: Subject, step: Step, energy: str) -> dict[str, Any]:
    """U and its derivatives, as arguments of the step."""
    if subject.recipe.potential is None:
        return {}
    functions = {"gradient": subject.derivative(energy, 1), "value": subject.value(energy)}
    return functions | ({"curvature": subject.derivative(energy, 2)} if step.program.needs_curvature else {})


def _settings(subject: Subject, step: Step) -> dict[str, Any]:
    settings: dict[str, Any] = {"temperature": TEMPERATURE}
    settings |= {name: x for name, x in subject.case.parameters.items() if name in step.parameters}
    return settings | ({"num_data": NUM_DATA} if step.program.reads(num_data) else {})


def _moments_off(subject: Subject, run: Run) -> Iterator[tuple[float, str]]:
    """Yields the change of each moment since the start of the same chains, in standard errors, and its name."""
    recipe = subject.recipe
    features = features_of(recipe)
    sides = [features_by_site(recipe, state) for state in (run.start, run.end)]
    for powers in exponents(len(features), fitting_degree(len(features))):
        before, after = (monomial(side, powers) for side in sides)
        change = after - before
        error = change.std() / len(change) ** 0.5
        if error > 0:
            yield abs(change.mean()) / error, "*".join(f"{f}^{n}" for f, n in zip(features, powers) if n)
