"""The layer of the one-step defect: how far one step moves exp(-H/T), by quadrature over state and noise."""

from typing import Any

import numpy as np

from ..features import evaluated, features_of
from ..one_step import moments, of_degree, transition
from ..results import Result, Results
from ..subject import DRAW_NODES, GRADIENT_NODES, Subject

DEGREE = 4  # of the monomials


def one_step_defect(subject: Subject, energy: str | None = None, layer: str = "one-step defect") -> Results:
    """E_pi[phi(step)] - E_pi[phi] = O(h^(order + 1)) for monomials phi of the features, up to degree 4."""
    if subject.out_of_reach:
        return subject.out_of_reach
    energy = energy or subject.first_energy
    order = subject.right.live.order
    hs = _step_sizes(subject, order)
    norms = [_norm(subject, energy, h) for h in hs]
    equation, about = f"E[phi(step)] - E[phi] = O(h^{order + 1}) under exp(-H/T)", f"{subject.still.scheme}, {energy}"
    if norms[0] <= 1e-8:
        yield Result(layer, f"norm of the defect at h = {hs[0]}", norms[0], 1e-8, equation, about)
        return None
    for k in range(2, 6):  # the order may show at small steps only
        if _slope(norms) < order + 0.85 and norms[-1] > 1e-9:
            norms.append(_norm(subject, energy, hs[0] / 2**k))
    yield Result(layer, "order of the defect in h", _slope(norms), order + 0.85, equation, about, least=True)
    return None


def _step_sizes(subject: Subject, order: int) -> tuple[float, float]:
    if len(subject.still.flows) == 1 and subject.still.exact:  # exact at all of them
        return 2.0, 1.0
    return (0.05, 0.025) if order == 2 else (0.0125, 0.00625)


def _slope(norms: list[float]) -> float:
    """The order of the last two norms, at h and h/2."""
    return float(np.log2(norms[-2] / norms[-1])) if norms[-1] > 0 else np.nan


def _norm(subject: Subject, energy: str, h: float) -> float:
    """The norm of (E_pi[phi(step)] - E_pi[phi])/E_pi|phi| over all monomials phi of degree 1 to 4."""
    before, after, weights = moved(subject, energy, h)
    features = evaluated(features_of(subject.recipe), subject.recipe.state)
    before, after = features(before), features(after)
    change = moments(after, weights, DEGREE) - moments(before, weights, DEGREE)
    change /= moments([abs(v) for v in before], weights, DEGREE)
    return float(np.linalg.norm(of_degree(change, DEGREE)))


def moved(subject: Subject, energy: str, h: float) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Points of exp(-H/T), where the frozen step takes them, both by block, and their weights."""
    recipe = subject.recipe
    points, weights = subject.laws[energy]
    blocks = [np.asarray(points[b]) for b in recipe.state]

    def chart(index):
        return tuple(v[np.asarray(index, int)] for v in blocks)

    def variance(index):
        return subject.gradient_variance(h, dict(zip(recipe.state, chart(index))))

    settings: dict[str, Any] = {**subject.settings, **subject.curvature(energy)}
    return transition(
        subject.still,
        {"": (np.arange(len(weights)), weights)},
        h,
        subject.derivative(energy, 1),
        chart=chart,
        constants=subject.constants,
        gradient_noise=variance if any(recipe.supplied) else 0.0,
        draw_nodes=DRAW_NODES,
        gradient_nodes=GRADIENT_NODES,
        least=1e-14,
        **settings,
    )
