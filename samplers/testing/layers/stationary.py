"""The layers of many steps: chains that start at exp(-H/T) keep this law, and move, each by its own noise."""

from functools import lru_cache

import numpy as np
import torch

from integrators.domain_bounds import in_domain

from ..check_results import Inapplicable, Result, Results
from ..generator import STANDARD_ERRORS
from ..one_step import exponents, monomial
from ..subject import Subject
from .defect import is_resolved, moved, one_step_defect
from .equilibrium_chains import (
    exact_start,
    features_by_site,
    mirrored_chains,
    moved_chains,
    noise_of,
    sites_of_a_run,
    worst_moment,
)

STEPS, HALVINGS = 8, 6


def stationary_start(subject: Subject, energy: str | None = None, layer: str = "stationary start") -> Results:
    """Checks chains that start at exp(-H/T): moments after some steps, and moves, each by its own noise."""
    if subject.out_of_reach:
        return subject.out_of_reach
    energy = energy or subject.first_energy
    recipe = subject.recipe
    start, end, h = _run(subject, energy)
    about = f"{subject.still.scheme}, {energy}"
    outside = [~in_domain(b, end[b.name]).reshape(subject.chains, -1).all(1) for b in recipe.state]
    lost = float(torch.stack(outside).any(0).double().mean())
    if lost:
        yield Result(
            layer,
            f"share of the chains that left their domain in {STEPS} steps of {h}",
            lost,
            0.0,
            "the chains stay where exp(-H) is positive: use an exact flow, or a reflected one",
            about,
        )
        return None
    expected, change = _of_the_right_step(subject.right, energy, h)
    allowed = {powers: 3 * STEPS * abs(x) for powers, x in change.items()}
    score, name = worst_moment(recipe, start, end, change, expected, allowed)
    yield Result(
        layer,
        f"standard errors that E {name} is off after {STEPS} steps",
        score,
        STANDARD_ERRORS,
        "the law of the chains stays exp(-H/T), up to the defect of every step",
        about,
    )
    by_target = [(end[b.name] - start[b.name]).numpy().reshape(subject.chains, -1) for b in recipe.targets]
    moves = np.concatenate(by_target, -1)
    displacement = float((moves**2).mean())
    yield Result(layer, "mean square displacement", displacement, 1e-8, "the chains move", about, least=True)
    if not displacement:
        return None
    half = subject.chains // 2
    pairs = {
        "the next chain": (moves, np.roll(moves, 1, 0)),
        "the other half of the chains": (moves[:half], moves[half : 2 * half]),
    }
    if subject.sites.number == 1 and sites_of_a_run(subject) > 1:
        first, second = (np.concatenate([x[:, [k]] for x in by_target], -1) for k in (0, 1))
        pairs["the next site"] = first, second
    for name, (a, b) in pairs.items():
        correlation = float(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * a.size**0.5
        yield Result(
            layer,
            f"standard errors of the correlation with {name}",
            abs(correlation),
            STANDARD_ERRORS,
            "every chain and every site has its own noise",
            about,
        )
    return None


def _run(subject, energy):
    """The chains of a subject at exact draws and STEPS steps later, and the step size of the right subject's run."""
    right = _right_run(subject.right, energy)
    if subject is subject.right:
        return right
    h = right[-1]
    start = exact_start(subject, energy, subject.chains)
    return start, moved_chains(subject, energy, start, h, noise_of(subject, STEPS, subject.chains)), h


@lru_cache(maxsize=4)
def _right_run(right, energy):
    """The chains of a right subject, at a step size at which no block grows tenfold beyond its start."""
    h = 0.05 if right.still.order == 2 else 0.01
    start = exact_start(right, energy, right.chains)
    numbers = noise_of(right, STEPS, right.chains)
    widest = {b: 10 * (start[b.name].abs().max() + start[b.name].std()) for b in right.recipe.state}
    for k in range(HALVINGS):
        end = moved_chains(right, energy, start, h, numbers)
        far = [b for b, bound in widest.items() if b.domain.is_real and not (end[b.name].abs() <= bound).all()]
        if not far or k == HALVINGS - 1:
            break
        h /= 4
    return start, end, h


@lru_cache(maxsize=4)
def _of_the_right_step(right, energy, h):
    """E[phi] under exp(-H/T), None if known only by draws, and its change by one step, by exponents of phi."""
    if is_resolved(right, energy):
        sites = right.sites
        *sides, mass = moved(right, energy, h)
        arrays = [sites.arrays(dict(zip(sites.coordinates, side))) for side in sides]
        before, after = (_moments(right.recipe, {b.name: x for b, x in side.items()}, mass) for side in arrays)
        return before, {p: after[p] - before[p] for p in before}
    chains = exact_start(right, energy, right.chains)
    ends = mirrored_chains(right, energy, chains, h)
    start, *ends = (_moments(right.recipe, x, np.full(right.chains, 1 / right.chains)) for x in (chains, *ends))
    return None, {p: sum(end[p] for end in ends) / 2 - start[p] for p in start}


def _moments(recipe, state, weights):
    """The monomials of degree 1 to 4 of one feature, and of degree 2 and 3 of several, means over sites."""
    features = features_by_site(recipe, state)
    powers = (p for p in exponents(len(features), 4) if sum(p) < 4 or max(p) == 4)
    return {p: float(weights @ monomial(features, p).mean(-1)) for p in powers}


def non_gaussian(subject: Subject) -> Results:
    """Checks the one-step defect and a stationary start on all energies after the first, such as a double well."""
    if len(subject.energies) < 2:
        return Inapplicable("there is one energy, which is given")
    reason = None
    for energy in [*subject.energies][1:]:
        reason = yield from one_step_defect(subject, energy, "non-Gaussian")
        reason = yield from stationary_start(subject, energy, "non-Gaussian")
    return reason
