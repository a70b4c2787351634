"""The runs of an audit: a first look at the black box, then every target, temperature and step size.

The first look asks whether chains move, and whether noise is new for every seed, chain and step. Runs are lengthened
until the start is forgotten.
"""

from math import inf

import numpy as np
import torch

from .experiment import Cell, Experiment
from .judgement import Biases
from .laws import LAWS

FORGOTTEN = 4.0  # standard errors between the chains from two starts
DOUBLINGS = 5  # of the time, until the start is forgotten
ROUNDS = 5  # of measurements, until nothing changes with time


# ---- the first look


def first_look(experiment: Experiment) -> tuple[float, float] | None:
    """The correlations of theta over the first half of a run and over the second; None where a check has failed.

    The runs are on the first target, with two seeds, and one for twice the time.
    """
    law = LAWS[0]
    T = experiment.temperatures[0]
    h = experiment.step_sizes[0]
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
        experiment.findings.append("not reproducible: one seed gave two different runs")
    x, y = theta.double().numpy(), other.double().numpy()
    _compare_seeds(experiment, x, y, law.moments(T)[1], width)
    _compare_chains(experiment, x)
    later = experiment.run(law, init, T, h, seed=seed, time=2 * experiment.time)
    return _correlation(init.numpy(), x), _correlation(x, later.double().numpy())


def _moves(experiment, moved):
    """Whether chains move."""
    still = 1 - float(moved.double().mean())
    if not experiment.keeps(
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
        experiment.findings.append(
            f"{still:.0%} of the chains have not moved in time {experiment.time:g}: a smaller step size would see more"
        )
    return True


def _heeds_seeds(experiment, theta, other, width):
    """Whether two seeds give different draws."""
    same = float((theta == other).all(1).double().mean())
    text = f"{same:.0%} of the chains are the same for two seeds"
    if width < 0.1:
        text += "; and all are at one point: there is no noise"
    return experiment.keeps(
        "seed", "chains that are the same for two seeds", same, 0.01, "draws depend on the seed", "seed ignored", text
    )


def _compare_seeds(experiment, x, y, sd, width):
    """Checks that means over chains are as far apart for two seeds as means of independent chains."""
    error = np.maximum(np.sqrt((x.var(0) + y.var(0)) / len(x)), 1e-12 * sd)
    offset = (abs(x.mean(0) - y.mean(0)) / error).max()
    experiment.keeps(
        "chains",
        "distance of the means for two seeds, in standard errors",
        offset,
        experiment.threshold,
        "chains are independent",
        "noise shared across chains",
        f"the means over {len(x)} chains for two "
        f"seeds are {offset:.2g} standard errors apart, and the chains {width:.2g} of the exact width",
    )


def _compare_chains(experiment, x):
    """Checks that no two chains are correlated."""
    lag, r, score = likeness(x)
    experiment.keeps(
        "chains",
        f"correlation of chains {lag} apart, in standard errors",
        score,
        experiment.likeness,
        "chains are independent",
        "noise shared across chains",
        f"chains that are {lag} apart have the correlation {r:.2f}",
    )


def likeness(x: np.ndarray) -> tuple[int, float, float]:
    """The lag between chains of the largest rank correlation, that correlation, and its size in standard errors."""
    y = x.argsort(0).argsort(0) - (len(x) - 1) / 2  # ranks, on which a few far chains have no influence
    y = y / y.std(0)
    r = np.fft.irfft(abs(np.fft.rfft(y, axis=0)) ** 2, len(y), axis=0)[1 : len(y) // 2 + 1] / len(y)
    score = abs(r) * len(y) ** 0.5
    if len(y) % 2 == 0:
        score[-1] /= 2**0.5  # half-way round, every pair counts twice
    lag, k = np.unravel_index(score.argmax(), score.shape)
    return int(lag) + 1, float(r[lag, k]), float(score[lag, k])


def _correlation(a, b):
    """The mean over coordinates of the correlation across chains; a constant coordinate counts as 0."""
    pairs = zip(a.T, b.T)
    return float(np.mean([np.corrcoef(x, y)[0, 1] if x.std() and y.std() else 0.0 for x, y in pairs]))


# ---- the measurements


def measured(experiment: Experiment) -> Biases | None:
    """The biases of all cells, once nothing changes with time; None where a check has failed before."""
    settings = [(law, T, h) for law in LAWS for T in experiment.temperatures for h in experiment.step_sizes]
    before = len(experiment.results)
    change = inf
    for _ in range(ROUNDS):
        began = experiment.time
        experiment.cells = []
        del experiment.results[before:]
        for setting in settings:
            cell = _measure(experiment, *setting)
            if cell is None:
                return None
            experiment.cells.append(cell)
        biases = Biases(experiment.cells, experiment.threshold)
        experiment.results += biases.results
        if not biases:
            return biases
        if experiment.time > began:  # biases at different times do not compare
            change = inf
            continue
        later = _change(experiment)
        if later is None:
            return None
        change = later
        if change <= FORGOTTEN:
            return biases
    experiment.keeps(
        "start",
        "change with time, in standard errors",
        change,
        FORGOTTEN,
        "the law is stationary",
        "start not forgotten",
        f"at time {experiment.time:g} the law still changes, by {change:.1f} standard errors: pass "
        "a longer time, unless it has no stationary law",
    )
    return None


def _measure(experiment, law, T, h):
    """Measures a cell; None, with a finding, where chains diverge or keep their start.

    Three quarters of the chains start from exact draws and are compared, the others at half the width. The time of a
    run is doubled until both groups agree, and is kept for the next cell.
    """
    compared = experiment.chains * 3 // 4
    for doubling in range(DOUBLINGS + 1):
        experiment.time *= 2 if doubling else 1
        init = experiment.draw(law, T)
        mean = torch.tensor(law.moments(T)[0]).to(init)
        init[compared:] = mean + (init[compared:] - mean) / 2
        theta = experiment.run(law, init, T, h)
        if not experiment.stays(law, T, h, theta):
            return None
        wide, narrow = law.statistics(theta[:compared], T), law.statistics(theta[compared:], T)
        # at least the standard deviation of exact draws, since a law that is too narrow must not look precise
        ideal = law.statistics(init[:compared], T).std(0)
        error, error_narrow = (np.maximum(s.std(0), ideal) / len(s) ** 0.5 for s in (wide, narrow))
        apart = abs(wide.mean(0) - narrow.mean(0)) / np.hypot(error, error_narrow)
        if apart.max() < FORGOTTEN:
            break
    if not _forgets(experiment, law, T, h, apart):
        return None
    return Cell(law, T, h, experiment.time, wide.mean(0) - law.exact(T), error)


def _forgets(experiment, law, T, h, apart):
    """Whether chains from two starts agree."""
    where = f"{law.name}, T = {T:g}, h = {h:g}"
    worst = law.labels[int(apart.argmax())]
    time = experiment.time
    return experiment.keeps(
        "start",
        f"distance of two starts by the {worst}, in standard errors",
        apart.max(),
        FORGOTTEN,
        "the law forgets its start",
        "start not forgotten",
        f"after {time:g} units of time, {time / h:.0f} steps, chains from exact draws and from "
        f"half their width are {apart.max():.1f} standard errors apart in the {worst} ({where}); pass a "
        "longer time; or it is not ergodic: no friction, no noise, a part that never moves",
        where,
    )


def _change(experiment):
    """The largest change of biases when the time is quadrupled, in standard errors; None where such a run fails.

    Momenta and the like may start far from their law. The cells at h are measured again, and the cell at h/4 with the
    surest bias, since chains may forget more slowly there.
    """
    largest, *_, smallest = experiment.step_sizes
    cells = experiment.cells
    surest = max(cells, key=lambda cell: (cell.step_size == smallest, float(abs(cell.z).max())))
    change = 0.0
    pooled = []
    experiment.time *= 4
    for cell in [*(cell for cell in cells if cell.step_size == largest), surest]:
        later = _measure(experiment, cell.law, cell.temperature, cell.step_size)
        if later is None:
            return None
        moved, error = later.bias - cell.bias, np.hypot(later.error, cell.error)
        pooled.append((moved[-1] / error[-1] ** 2, 1 / error[-1] ** 2))  # the temperature, of all targets together
        together = abs(sum(m for m, _ in pooled)) / sum(w for _, w in pooled) ** 0.5
        change = max(change, float((abs(moved) / error).max()), together)
        if change > FORGOTTEN:
            return change
    experiment.time /= 4
    return change
