"""The layers of many steps: chains that start at exp(-H/T) stay there, and move, each by its own noise."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from integrators import noise
from integrators.domains import in_domain
from recipe import Recipe
from recipe.symbols import Total, is_site

from ..features import Features, evaluated, features_of
from ..one_step import moments
from ..results import Result, Results
from ..subject import Subject
from .defect import DEGREE, moved, one_step_defect

BOUND = 7.5  # standard errors: a right sampler is beyond it once in 1e13 comparisons
STEPS = 8


@dataclass(frozen=True)
class Run:
    """Chains at exp(-H/T) and after STEPS steps of h: tensors by name, (chains, sites), of scalar blocks (chains,)."""

    start: dict[str, Any]
    end: dict[str, Any]
    h: float
    chains: int
    sites: int


def stationary_start(subject: Subject, energy: str | None = None, layer: str = "stationary start") -> Results:
    """Chains that start at exp(-H/T): their moments after some steps, and whether they move, each by its own noise."""
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
    for name, (a, b) in _pairs(moves, run).items():
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
    """The chains of a subject from exact draws, on gradients that are as noisy as their budget."""
    step = subject.still
    h = 0.05 if step.order == 2 else 0.01
    sites = 2 if subject.recipe.target_is_vector and not _coupled(subject.recipe) else 1
    slope, generator = subject.derivative(energy, 1), torch.Generator().manual_seed(subject.seed)

    def noisy_slope(theta):
        at = {b: state[b.name].numpy() for b in subject.recipe.state}
        spread = np.sqrt(np.broadcast_to(subject.gradient_variance(h, at), theta.shape))
        return slope(theta) + torch.as_tensor(spread) * torch.randn(theta.shape, generator=generator, dtype=theta.dtype)

    start = _exact_draws(subject, energy, sites)
    drawn = _noise(subject, sites)
    gradient = noisy_slope if any(subject.recipe.supplied) else slope
    state = start
    for k in range(STEPS):
        numbers = {name: v[k] for name, v in drawn.items()}
        state = step(state, h, gradient=gradient, noise=numbers, **subject.curvature(energy), **subject.settings)
    return Run(start, state, h, subject.chains, sites)


def _exact_draws(subject: Subject, energy: str, sites: int) -> dict[str, torch.Tensor]:
    """A state from exp(-H/T), its adapted quantities at their constants."""
    points, weights = subject.laws[energy]
    size = (subject.chains, sites)
    pick = np.random.default_rng(subject.seed).choice(len(weights), size=size, p=weights / weights.sum())

    def shaped(block, values):
        return torch.as_tensor(values if block.is_vector else values[:, 0])

    start = {b.name: shaped(b, np.asarray(points[b])[pick]) for b in subject.recipe.state}
    frozen = {a.name: shaped(a, np.full(size, subject.constants[a.name])) for a in subject.recipe.adapted}
    return start | frozen


def _noise(subject: Subject, sites: int) -> dict[str, Any]:
    """The random numbers of all steps by draw, step by step."""
    kinds = noise.KINDS | noise.STATE_DEPENDENT
    drawn = {}
    for i, draw in enumerate(subject.still.program.draws):
        shape = (sites,) if draw.is_vector else ()
        drawn[draw.name] = kinds[draw.kind](subject.seed, range(STEPS), i, subject.chains, shape, dtype=torch.float64)
    return drawn


def _coupled(recipe: Recipe) -> bool:
    """Whether the sites of a chain feel each other."""
    totals = any(t.integrand.free_symbols for e in (*recipe.drift, *recipe.D) for t in e.atoms(Total))
    return totals or any(not b.is_vector for b in recipe.state)


# ---- its statistics


def _lost(recipe: Recipe, run: Run) -> float:
    """The share of the chains that are not finite, or left their domain."""
    gone = [~in_domain(b, run.end[b.name]).reshape(run.chains, -1).all(1) for b in recipe.state]
    return float(torch.stack(gone).any(0).double().mean())


def _worst_moment(subject: Subject, energy: str, run: Run) -> tuple[float, str]:
    """The standard errors by which the worst moment is off, beyond thrice the defect of the steps, and its name."""
    features = _features(subject.recipe)
    expected, change = _of_the_right_step(subject.right, energy, run.h)
    state = subject.recipe.state
    ends = evaluated(features, state)([run.end[b.name].numpy().reshape(run.chains, -1) for b in state])
    worst, name = 0.0, ""
    for powers in _powers(len(features)):
        values = np.prod([v**n for v, n in zip(ends, powers) if n], axis=0).reshape(run.chains, -1).mean(-1)
        error = values.std() / run.chains**0.5
        off = max(abs(values.mean() - expected[powers]) - 3 * STEPS * abs(change[powers]), 0)
        score = off / error if error else np.inf
        if not score <= worst:
            worst, name = score, "*".join(f"{f}^{n}" for f, n in zip(features, powers) if n)
    return float(worst), name


def _features(recipe: Recipe) -> Features:
    """The features whose moments are compared: those of the sites, if there are any."""
    found = features_of(recipe)
    return tuple(f for f in found if is_site(f)) or found


@lru_cache(maxsize=4)
def _of_the_right_step(subject: Subject, energy: str, h: float) -> tuple[np.ndarray, np.ndarray]:
    """E[phi] under exp(-H/T), and its change by one step, by the exponents of phi."""
    state = subject.recipe.state
    features = evaluated(_features(subject.recipe), state)
    points, weights = subject.laws[energy]
    before, after, mass = moved(subject, energy, h)
    change = moments(features(after), mass, DEGREE) - moments(features(before), mass, DEGREE)
    return moments(features([np.asarray(points[b]) for b in state]), weights, DEGREE), change


def _powers(features: int) -> Iterator[tuple[int, ...]]:
    """Exponents of the monomials of degree 1 to 4 of one feature, and of degree 2 of two."""
    for powers in np.ndindex(*[5] * features):
        most = 4 if max(powers) == sum(powers) else 2
        if 0 < sum(powers) <= most:
            yield powers


def _moves(recipe: Recipe, run: Run) -> np.ndarray:
    """How far every chain went, a row each."""
    moves = [(run.end[b.name] - run.start[b.name]).numpy().reshape(run.chains, -1) for b in recipe.targets]
    return np.stack(moves, -1).reshape(run.chains, -1)


def _pairs(moves: np.ndarray, run: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Moves that should be independent, by the name of the second."""
    half = run.chains // 2
    pairs = {
        "the next chain": (moves, np.roll(moves, 1, 0)),
        "the other half of the chains": (moves[:half], moves[half : 2 * half]),
    }
    if run.sites > 1:
        pairs["the next site"] = (moves[:, :1], moves[:, 1:2])
    return pairs


def non_gaussian(subject: Subject) -> Results:
    """The one-step defect and a stationary start on the other energies, such as a double well."""
    if len(subject.energies) < 2:
        return "the energy is given"
    reason = None
    for energy in [*subject.energies][1:]:
        reason = yield from one_step_defect(subject, energy, "non-Gaussian")
        reason = yield from stationary_start(subject, energy, "non-Gaussian")
    return reason
