"""The layers of many steps: chains that start at exp(-H/T) keep this law, and move, each by its own noise."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from integrators.domains import in_domain
from recipe import Recipe

from ..features import evaluated, features_of
from ..one_step import exponents
from ..results import Inapplicable, Result, Results
from ..subject import Subject
from .chains import exact_start, moved_chains, noise_of, opposite, sites_of_a_run
from .defect import is_resolved, moved, one_step_defect

BOUND = 7.5  # standard errors, exceeded by a right sampler once in 1e13 comparisons
STEPS, HALVINGS = 8, 6


@dataclass(frozen=True)
class Run:
    """Chains at exp(-H/T) and after STEPS steps of h: tensors by name, (chains, sites), of scalar blocks (chains,)."""

    start: dict[str, Any]
    end: dict[str, Any]
    h: float
    chains: int
    sites: int


def stationary_start(subject: Subject, energy: str | None = None, layer: str = "stationary start") -> Results:
    """Checks chains that start at exp(-H/T): moments after some steps, and moves, each by its own noise."""
    if subject.out_of_reach:
        return subject.out_of_reach
    energy = energy or subject.first_energy
    run = _run(subject, energy)
    about = f"{subject.still.scheme}, {energy}"
    lost = _lost(subject.recipe, run)
    if lost:
        yield Result(
            layer,
            f"share of the chains that left their domain in {STEPS} steps of {run.h}",
            lost,
            0.0,
            "the chains stay where exp(-H) is positive: use an exact flow, or a reflected one",
            about,
        )
        return None
    score, name = _worst_moment(subject, energy, run)
    yield Result(
        layer,
        f"standard errors that E {name or 'phi'} is off after {STEPS} steps",
        score,
        BOUND,
        "the law of the chains stays exp(-H/T), up to the defect of every step",
        about,
    )
    moves = _moves(subject.recipe, run)
    displacement = float((moves**2).mean())
    yield Result(layer, "mean square displacement", displacement, 1e-8, "the chains move", about, least=True)
    for name, (a, b) in _pairs(moves, run, subject.sites.number == 1).items():
        correlation = float(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * a.size**0.5
        yield Result(
            layer,
            f"standard errors of the correlation with {name}",
            abs(correlation),
            BOUND,
            "every chain and every site has its own noise",
            about,
        )
    return None


# ---- the run


def _run(subject: Subject, energy: str) -> Run:
    """The run of a subject from exact draws, at the step size of the right subject's run."""
    right = _right_run(subject.right, energy)
    if subject is subject.right:
        return right
    start = exact_start(subject, energy, subject.chains)
    end = moved_chains(subject, energy, start, right.h, noise_of(subject, STEPS, subject.chains))
    return Run(start, end, right.h, subject.chains, sites_of_a_run(subject))


@lru_cache(maxsize=4)
def _right_run(right: Subject, energy: str) -> Run:
    """The run of a right subject, at a step size at which no block grows tenfold beyond its start."""
    h = 0.05 if right.still.order == 2 else 0.01
    start = exact_start(right, energy, right.chains)
    numbers = noise_of(right, STEPS, right.chains)
    widest = {b: 10 * (start[b.name].abs().max() + start[b.name].std()) for b in right.recipe.state}
    for k in range(HALVINGS):
        end = moved_chains(right, energy, start, h, numbers)
        far = [b for b, most in widest.items() if b.domain.is_real and not (end[b.name].abs() <= most).all()]
        if not far or k == HALVINGS - 1:
            break
        h /= 4
    return Run(start, end, h, right.chains, sites_of_a_run(right))


# ---- statistics of a run


def _lost(recipe: Recipe, run: Run) -> float:
    """The share of chains that are not finite, or outside of their domain."""
    gone = [~in_domain(b, run.end[b.name]).reshape(run.chains, -1).all(1) for b in recipe.state]
    return float(torch.stack(gone).any(0).double().mean())


def _worst_moment(subject: Subject, energy: str, run: Run) -> tuple[float, str]:
    """The error of the worst moment, beyond thrice the defect of the steps, in standard errors, and its name.

    Errors are from the moments of the law, or where these are known only by draws, from the start of the same chains.
    """
    features = features_of(subject.recipe)
    expected, change = _of_the_right_step(subject.right, energy, run.h)
    before, after = (features_by_site(subject.recipe, side) for side in (run.start, run.end))
    worst = 0.0
    name = ""
    for powers in _powers(len(features)):
        start, values = (monomial(side, powers) for side in (before, after))
        if expected is None:
            values, centre = values - start, 0.0
            spread = values.std()
        else:  # the deviation of the start, since wrong chains may scatter so far that no error stands out
            centre = expected[powers]
            spread = start.std()
        error = spread / run.chains**0.5
        off = max(abs(values.mean() - centre) - 3 * STEPS * abs(change[powers]), 0)
        score = off / error if error else (np.inf if off else 0.0)
        if not score <= worst:
            worst = score
            name = "*".join(f"{f}^{n}" for f, n in zip(features, powers) if n)
    return float(worst), name


def features_by_site(recipe: Recipe, state: dict[str, Any]) -> list[np.ndarray]:
    """The features of all blocks, (chains, sites) each."""
    arrays = [np.asarray(state[b.name]) for b in recipe.state]
    return evaluated(features_of(recipe), recipe.state)([x.reshape(len(x), -1) for x in arrays])


def monomial(features: list[np.ndarray], powers: tuple[int, ...]) -> np.ndarray:
    """A monomial by chain, (chains,), the mean over its sites."""
    return np.asarray(prod(f for f, n in zip(features, powers) for _ in range(n))).mean(-1)


Moments = dict[tuple[int, ...], float]


@lru_cache(maxsize=4)
def _of_the_right_step(subject: Subject, energy: str, h: float) -> tuple[Moments | None, Moments]:
    """E[phi] under exp(-H/T), None if known only by draws, and its change by one step, by exponents of phi."""
    recipe = subject.recipe
    sites = subject.sites
    if not is_resolved(subject, energy):
        return None, _drawn_change(subject, energy, h)
    before, after, mass = moved(subject, energy, h)
    sides = (sites.arrays(dict(zip(sites.coordinates, side))) for side in (before, after))
    start, end = (_moments(features_by_site(recipe, {b.name: x for b, x in side.items()}), mass) for side in sides)
    return start, {p: end[p] - start[p] for p in start}


def _moments(features: list[np.ndarray], weights: np.ndarray) -> Moments:
    return {p: float(weights @ monomial(features, p)) for p in _powers(len(features))}


def _drawn_change(subject: Subject, energy: str, h: float) -> Moments:
    """The change of E[phi] by one step from the same draws, with the normal numbers of both signs."""
    chains = subject.chains
    start, (numbers,) = exact_start(subject, energy, chains), noise_of(subject, 1, chains)
    signed = ((1, numbers), (-1, opposite(subject, numbers)))
    ends = [moved_chains(subject, energy, start, h, [one], sign) for sign, one in signed]
    before, *after = (
        _moments(features_by_site(subject.recipe, x), np.full(chains, 1 / chains)) for x in (start, *ends)
    )
    return {p: sum(end[p] for end in after) / 2 - before[p] for p in before}


def _powers(features: int) -> Iterator[tuple[int, ...]]:
    """Exponents of the monomials of degree 1 to 4 of one feature, and of degree 2 and 3 of several."""
    return (p for p in exponents(features, 4) if sum(p) < 4 or max(p) == 4)


def _moves(recipe: Recipe, run: Run) -> np.ndarray:
    """The displacements of the target, one row for each chain."""
    moves = [(run.end[b.name] - run.start[b.name]).numpy().reshape(run.chains, -1) for b in recipe.targets]
    return np.stack(moves, -1).reshape(run.chains, -1)


def _pairs(moves: np.ndarray, run: Run, independent_sites: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pairs of displacements that should be independent, by the name of the second."""
    half = run.chains // 2
    pairs = {
        "the next chain": (moves, np.roll(moves, 1, 0)),
        "the other half of the chains": (moves[:half], moves[half : 2 * half]),
    }
    if independent_sites and run.sites > 1:
        pairs["the next site"] = (moves[:, :1], moves[:, 1:2])
    return pairs


def non_gaussian(subject: Subject) -> Results:
    """Checks the one-step defect and a stationary start on all energies after the first, such as a double well."""
    if len(subject.energies) < 2:
        return Inapplicable("there is one energy, which is given")
    reason = None
    for energy in [*subject.energies][1:]:
        reason = yield from one_step_defect(subject, energy, "non-Gaussian")
        reason = yield from stationary_start(subject, energy, "non-Gaussian")
    return reason
