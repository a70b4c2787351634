"""The first look at a black box: whether chains move, and whether noise is new for every seed, chain and step."""

import numpy as np
import torch

from .biases import correlation, likeness
from .experiment import Experiment
from .laws import LAWS

Halves = tuple[float, float]


def first_look(experiment: Experiment) -> Halves | None:
    """The correlations of theta over the first half of a run and over the second; None where a check has failed.

    The runs are on the first target, with two seeds, and one for twice the time.
    """
    law = LAWS[0]
    T = experiment.plan.temperatures[0]
    h = experiment.plan.step_sizes[0]
    init = experiment.draw(law, T)
    seed, other_seed = experiment.seed(), experiment.seed()
    theta = experiment.run(law, init, T, h, seed=seed)
    other = experiment.run(law, init, T, h, seed=other_seed)
    if not (experiment.stays(law, T, h, theta) and experiment.stays(law, T, h, other)):
        return None
    moved = ~((theta == init) & (other == init)).all(1)
    width = float((theta.double().numpy().std(0) / law.moments(T)[1]).mean())
    if not (_moves(experiment, moved) and _heeds_seeds(experiment, theta[moved], other[moved], width)):
        return None
    if not torch.equal(theta, experiment.run(law, init, T, h, seed=seed)):
        experiment.comparisons.findings.append("not reproducible: one seed gave two different runs")
    x, y = theta.double().numpy(), other.double().numpy()
    _compare_seeds(experiment, x, y, law.moments(T)[1], width)
    _compare_chains(experiment, x)
    later = experiment.run(law, init, T, h, seed=seed, time=2 * experiment.time)
    return correlation(init.numpy(), x), correlation(x, later.double().numpy())


def _moves(experiment, moved):
    """Whether chains move."""
    still = 1 - float(moved.double().mean())
    if not experiment.comparisons.keeps(
        "movement",
        "chains that end where they started",
        still,
        0.9,
        "theta_n != theta_0",
        "does not move",
        f"{still:.0%} of the chains end where they started, for two seeds",
    ):
        return False
    if still > 0.01:
        experiment.comparisons.findings.append(
            f"{still:.0%} of the chains have not moved in time {experiment.time:g}: a smaller step size would see more"
        )
    return True


def _heeds_seeds(experiment, theta, other, width):
    """Whether two seeds give different draws."""
    same = float((theta == other).all(1).double().mean())
    text = f"{same:.0%} of the chains are the same for two seeds"
    if width < 0.1:
        text += "; and all are at one point: there is no noise"
    return experiment.comparisons.keeps(
        "seed", "chains that are the same for two seeds", same, 0.01, "draws depend on the seed", "seed ignored", text
    )


def _compare_seeds(experiment, x, y, sd, width):
    """Checks that means over chains are as far apart for two seeds as means of independent chains."""
    error = np.maximum(np.sqrt((x.var(0) + y.var(0)) / len(x)), 1e-12 * sd)
    offset = (abs(x.mean(0) - y.mean(0)) / error).max()
    experiment.comparisons.keeps(
        "chains",
        "distance of the means for two seeds, in standard errors",
        offset,
        experiment.plan.threshold,
        "chains are independent",
        "noise shared across chains",
        f"the means over {len(x)} chains for two "
        f"seeds are {offset:.2g} standard errors apart, and the chains {width:.2g} of the exact width",
    )


def _compare_chains(experiment, x):
    """Checks that no two chains are correlated."""
    lag, r, score = likeness(x)
    experiment.comparisons.keeps(
        "chains",
        f"correlation of chains {lag} apart, in standard errors",
        score,
        experiment.plan.likeness,
        "chains are independent",
        "noise shared across chains",
        f"chains that are {lag} apart have the correlation {r:.2f}",
    )
