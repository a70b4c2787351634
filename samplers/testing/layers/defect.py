"""The layer of the one-step defect, the change of exp(-H/T) by one step, by quadrature or by draws."""

from functools import lru_cache

import numpy as np

from ..canonical import Weighted
from ..check_results import Result, Results
from ..features import evaluated, features_over
from ..generator import STANDARD_ERRORS
from ..one_step import exponents, fitting_degree, moments, monomial, transition
from ..subject import DRAW_NODES, GRADIENT_NODES, Subject
from .equilibrium_chains import exact_start, mirrored_chains

DRAWN_STEP, DRAWN_CHAINS, DRAWN_BOUND = 0.004, 20_000, 1e-2  # where state and noise are drawn


def one_step_defect(subject: Subject, energy: str | None = None, layer: str = "one-step defect") -> Results:
    """Checks E_pi[phi(step)] - E_pi[phi] = O(h^(order + 1)) for monomials phi of the features, up to degree 4.

    Where there is no quadrature, state and noise are drawn, and O(h^2) is checked.
    """
    if subject.out_of_reach:
        return subject.out_of_reach
    energy = energy or subject.first_energy
    if not is_resolved(subject.right, energy):
        yield _by_draws(subject, energy, layer)
        return None
    order = subject.right.live.order
    hs = _step_sizes(subject, order)
    norms = [_norm(subject, energy, h) for h in hs]
    equation = f"E[phi(step)] - E[phi] = O(h^{order + 1}) under exp(-H/T)"
    about = f"{subject.still.scheme}, {energy}"
    if norms[0] <= 1e-8:
        yield Result(layer, f"norm of the defect at h = {hs[0]}", norms[0], 1e-8, equation, about)
        return None
    for k in range(2, 6):  # the order may show only at small steps
        if _slope(norms) < order + 0.85 and norms[-1] > 1e-9:
            norms.append(_norm(subject, energy, hs[0] / 2**k))
    yield Result(layer, "order of the defect in h", _slope(norms), order + 0.85, equation, about, least=True)
    return None


# ---- by quadrature


def _step_sizes(subject, order):
    if len(subject.still.flows) == 1 and subject.still.exact:  # exact at all of them
        return 2.0, 1.0
    return (0.05, 0.025) if order == 2 else (0.0125, 0.00625)


def _slope(norms):
    """The order of the last two norms, at h and h/2."""
    return float(np.log2(norms[-2] / norms[-1])) if norms[-1] > 0 else np.nan


@lru_cache(maxsize=8)
def is_resolved(right: Subject, energy: str) -> bool:
    """Whether the defect of the right step has a quadrature, which a node less changes by 2 % at most."""
    if not right.is_by_quadrature(energy):
        return False
    law = right.laws[energy]
    if law.coarser is None:
        return True
    h, _ = _step_sizes(right, right.live.order)
    norm, coarse = (_norm(right, energy, h, one) for one in (law.weighted, law.coarser))
    return bool(abs(norm - coarse) <= 0.02 * norm + 1e-9)


def _norm(subject, energy, h, weighted=None):
    """The norm of (E_pi[phi(step)] - E_pi[phi])/E_pi|phi| over all monomials phi of degree 1 to 4."""
    before, after, weights = moved(subject, energy, h, weighted)
    features = evaluated(features_over(subject.recipe, subject.sites), subject.sites.coordinates)
    before, after = features(before), features(after)
    degree = fitting_degree(len(before))
    change = moments(after, weights, degree) - moments(before, weights, degree)
    return float(np.linalg.norm(change / moments([abs(v) for v in before], weights, degree)))


def moved(
    subject: Subject, energy: str, h: float, weighted: Weighted | None = None
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Points of exp(-H/T), or of another law, by coordinate, their images under the frozen step, and weights."""
    recipe = subject.recipe
    points, weights = weighted or subject.laws[energy].weighted
    blocks = subject.sites.arrays(points) if subject.sites.number > 1 else points
    arguments = subject.arguments(energy)

    def variance(*values):
        return subject.gradient_variance(h, dict(zip(recipe.state, values)))

    return transition(
        subject.still,
        [np.asarray(blocks[b]) for b in recipe.state],
        weights,
        h,
        arguments.pop("gradient", None),
        constants=subject.constants,
        gradient_noise=variance if any(recipe.supplied) else 0.0,
        draw_nodes=DRAW_NODES,
        gradient_nodes=GRADIENT_NODES,
        sites=subject.sites.number,
        least=1e-14,
        parameters=arguments,
    )


# ---- by draws


def _by_draws(subject, energy, layer):
    """The result on the largest d/dt E[phi] of a step as h -> 0: (4 defect(h/2) - defect(h))/h, from draws.

    The mean over both signs of the noise cancels terms of order sqrt(h), the difference terms of order h^2.
    """
    start = exact_start(subject, energy, DRAWN_CHAINS)
    ends = [
        (factor / 2, end)
        for factor, h in ((4, DRAWN_STEP / 2), (-1, DRAWN_STEP))
        for end in mirrored_chains(subject, energy, start, h)
    ]
    before = _columns(subject, start)
    columns = [(factor, _columns(subject, end)) for factor, end in ends]
    worst = 0.0
    for power in exponents(len(before), fitting_degree(len(before))):
        phi = monomial(before, power)
        rate = sum(factor * (monomial(after, power) - phi) for factor, after in columns) / DRAWN_STEP
        beyond = max(abs(rate.mean()) - STANDARD_ERRORS * rate.std() / len(rate) ** 0.5, 0)
        worst = max(worst, beyond / abs(phi).mean())
    return Result(
        layer,
        f"largest d/dt E[phi] of a step as h -> 0, over E|phi|, beyond {STANDARD_ERRORS} standard errors",
        float(worst),
        DRAWN_BOUND,
        "E[phi(step)] - E[phi] = O(h^2) under exp(-H/T)",
        f"{subject.still.scheme}, {energy}, {DRAWN_CHAINS:,} draws",
    )


def _columns(subject, state):
    """The features of a state at the sites of its law, (chains,) each."""
    blocks = [state[b.name].reshape(len(state[b.name]), -1).T.numpy() for b in subject.recipe.state]
    features = evaluated(features_over(subject.recipe, subject.sites), subject.sites.coordinates)
    return features([x for sites in blocks for x in sites[: subject.sites.number]])
