"""The runs of an audit: a first look at the black box, then every target, temperature and step size.

The first look asks whether chains move, and whether noise is new for every seed, chain and step. Runs are lengthened
until the start is forgotten.
"""

from math import inf

import numpy as np
import torch

from .experiment import Cell, Experiment
from .judgement import Biases
from .known_laws import LAWS

FORGOTTEN = 4.0  # standard errors between the chains from two starts
DOUBLINGS = 5  # of the time, until the start is forgotten
ROUNDS = 5  # of measurements, until nothing changes with time
SURE = 1 - 1e-6  # the largest correlation of biases, whose covariance is inverted
RUNS, SHARE = 16, 0.2  # of exact samplers: runs from the ends of the last, and their share of the time


# ---- the first look


def first_look(experiment: Experiment) -> tuple[float, float] | None:
    """The correlations of theta over the first half of a run and over the second; None where a check has failed.

    The runs are on the first target, with two seeds, and one for twice the time.
    """
    law = LAWS[0]
    T = experiment.temperatures[0]
    h = experiment.step_sizes[0]
    init = experiment.draw(law, T)
    seed, other_seed = experiment.new_seed(), experiment.new_seed()
    theta = experiment.run(law, init, T, h, seed=seed)
    other = experiment.run(law, init, T, h, seed=other_seed)
    if not (experiment.stays(law, T, h, theta) and experiment.stays(law, T, h, other)):
        return None
    moving = ~((theta == init) & (other == init)).all(1)
    still = 1 - float(moving.double().mean())
    text = f"{still:.0%} of the chains end where they started, for two seeds"
    if not experiment.keeps("does not move", "chains that end where they started", still, 0.9, text):
        return None
    if still > 0.01:
        experiment.findings.append(f"{still:.0%} of the chains have not moved: a smaller step size would see more")
    width = float((theta.double().numpy().std(0) / law.moments(T)[1]).mean())
    share = float((theta == other)[moving].all(1).double().mean())
    text = f"{share:.0%} of the chains are the same for two seeds"
    text += "; and all are at one point: there is no noise" if width < 0.1 else ""
    if not experiment.keeps("seed ignored", "chains that are the same for two seeds", share, 0.01, text):
        return None
    if not torch.equal(theta, experiment.run(law, init, T, h, seed=seed)):
        experiment.findings.append("not reproducible: one seed gave two different runs")
    x, y = theta.double().numpy(), other.double().numpy()
    _compare_chains(experiment, x, y, law.moments(T)[1], width)
    later = experiment.run(law, init, T, h, seed=seed, time=2 * experiment.time)
    return _correlation(init.numpy(), x), _correlation(x, later.double().numpy())


def _compare_chains(experiment, x, y, sd, width):
    """Checks that chains are not correlated, and that means for two seeds are apart as of independent chains."""
    error = np.maximum(np.sqrt((x.var(0) + y.var(0)) / len(x)), 1e-12 * sd)
    offset = (abs(x.mean(0) - y.mean(0)) / error).max()
    statistic = "distance of the means for two seeds, in standard errors"
    text = f"the means over {len(x)} chains for two seeds are {offset:.2g} standard errors apart"
    text += f", and the chains {width:.2g} of the exact width"
    experiment.keeps("noise shared across chains", statistic, offset, experiment.threshold, text)
    lag, r, score = likeness(x)
    statistic = f"correlation of chains {lag} apart, in standard errors"
    text = f"chains that are {lag} apart have the correlation {r:.2f}"
    experiment.keeps("noise shared across chains", statistic, score, experiment.likeness, text)


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
    before = len(experiment.results)
    change = inf
    for _ in range(ROUNDS):
        began = experiment.time
        experiment.cells = []
        del experiment.results[before:]
        covariances = []
        for law, T in ((law, T) for law in LAWS for T in experiment.temperatures):
            cells, covariance = _measure(experiment, law, T)
            if not cells:
                return None
            experiment.cells += cells
            covariances.append(covariance)
        biases = Biases(experiment, covariances)
        if not (biases.wrong or biases.surest):
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
        experiment.time *= 4
    text = f"at time {experiment.time:g} the law still changes, by {change:.1f} standard errors: pass a longer time, "
    text += "unless it has no stationary law"
    experiment.keeps("start not forgotten", "change with time, in standard errors", change, FORGOTTEN, text)
    return None


def _measure(experiment, law, T):
    """The cells of a target and temperature, and the covariance of their biases, (statistics, cells, cells).

    Runs at all step sizes have the same seed and number of steps, so that errors are alike where steps take the same
    numbers. The time of the shortest run is doubled until the start is forgotten, and kept for the next target.
    No cells, with a finding, where chains diverge or keep their start.
    """
    for doubling in range(DOUBLINGS + 1):
        experiment.time *= 2 if doubling else 1
        steps = max(1, round(experiment.time / experiment.step_sizes[-1]))
        start, seed = _start(experiment, law, T), experiment.new_seed()
        cells: list[Cell] = []
        draws: list[np.ndarray] = []
        for h in reversed(experiment.step_sizes):
            cell, of_cell, distances = _cell(experiment, start, law, T, h, steps * h, seed)
            if cell is None:
                return [], None
            cells.insert(0, cell)
            draws.insert(0, of_cell)
            if distances.max() >= FORGOTTEN:
                break
        else:
            return cells, _covariance(cells, draws)
    _refuse(experiment, cells[0], distances)
    return [], None


def _start(experiment, law, T):
    """Exact draws, of which the last quarter is at half the width."""
    init = experiment.draw(law, T)
    narrow = init[experiment.compared :]
    narrow[:] = (narrow + torch.tensor(law.moments(T)[0]).to(init)) / 2
    return init


def _cell(experiment, start, law, T, h, time, seed=None):
    """A cell, its statistics by chain, and the distance of the two starts; None where chains diverge."""
    compared = experiment.compared
    theta = experiment.run(law, start, T, h, seed=seed, time=time)
    if not experiment.stays(law, T, h, theta):
        return None, None, None
    wide, narrow = law.statistics(theta[:compared], T), law.statistics(theta[compared:], T)
    # at least the standard deviation of exact draws, since a law that is too narrow must not look precise
    ideal = law.statistics(start[:compared], T).std(0)
    error, error_narrow = (np.maximum(s.std(0), ideal) / len(s) ** 0.5 for s in (wide, narrow))
    distances = abs(wide.mean(0) - narrow.mean(0)) / np.hypot(error, error_narrow)
    return Cell(law, T, h, time, wide.mean(0) - law.exact(T), error), wide, distances


def _covariance(cells, draws):
    """The covariance of the biases of cells whose chains have the same noise, (statistics, cells, cells)."""
    residuals = np.stack([d - d.mean(0) for d in draws])
    residuals /= np.maximum(residuals.std(1, keepdims=True), 1e-300)
    correlation = SURE * np.einsum("ink,jnk->kij", residuals, residuals) / residuals.shape[1]
    errors = np.stack([cell.error for cell in cells], 1)
    covariance = correlation * errors[:, :, None] * errors[:, None, :]
    covariance[:, range(len(cells)), range(len(cells))] = errors**2
    return covariance


def _refuse(experiment, cell, distances):
    """Concludes that chains from two starts do not agree."""
    where = f"{cell.law.name}, T = {cell.temperature:g}, h = {cell.step_size:g}"
    worst = cell.law.labels[int(distances.argmax())]
    text = (
        f"after {cell.time:g} units of time, {cell.time / cell.step_size:.0f} steps, chains from exact draws and from "
        f"half their width are {distances.max():.1f} standard errors apart in the {worst} ({where}); pass a "
        "longer time; or it is not ergodic: no friction, no noise, a part that never moves"
    )
    statistic = f"distance of two starts by the {worst}, in standard errors"
    experiment.keeps("start not forgotten", statistic, distances.max(), FORGOTTEN, text, where)


def _change(experiment):
    """The largest change of biases when the time is quadrupled, in standard errors; None where such a run fails.

    Momenta and the like may start far from their law. The cells at h are compared with those of a quarter of their
    time, and the cell at h/4 with the surest bias with one of four times its time, since chains may forget more slowly.
    """
    largest, *_, smallest = experiment.step_sizes
    cells = experiment.cells
    surest = max(cells, key=lambda cell: (cell.step_size == smallest, float(abs(cell.z).max())))
    change = 0.0
    pooled = []
    for cell in [*(cell for cell in cells if cell.step_size == largest), surest]:
        law, T, h = cell.law, cell.temperature, cell.step_size
        time = cell.time * 4 if cell is surest else max(h, cell.time / 4)
        other, *_ = _cell(experiment, _start(experiment, law, T), law, T, h, time)
        if other is None:
            return None
        shift, error = other.bias - cell.bias, np.hypot(other.error, cell.error)
        sign = 1 if cell is surest else -1
        pooled.append((sign * shift[-1] / error[-1] ** 2, 1 / error[-1] ** 2))  # the temperature, of all targets
        together = abs(sum(m for m, _ in pooled)) / sum(w for _, w in pooled) ** 0.5
        change = max(change, float((abs(shift) / error).max()), together)
        if change > FORGOTTEN:
            break
    return change


# ---- of exact samplers


def measured_as_exact(experiment: Experiment) -> Biases | None:
    """The biases of chains that start from exact draws and are run again and again, which an exact sampler keeps.

    Each bias is the mean over runs, with the start, whose mean is known, as a control variate.
    """
    covariances = []
    for law, T in ((law, T) for law in LAWS for T in experiment.temperatures):
        cells = []
        for h in experiment.step_sizes:
            theta = experiment.draw(law, T)
            first = law.statistics(theta, T)
            mean = np.zeros_like(first)
            for _ in range(RUNS):
                theta = experiment.run(law, theta, T, h, time=SHARE * experiment.time)
                if not experiment.stays(law, T, h, theta):
                    return None
                mean += law.statistics(theta, T) / RUNS
            cells.append(Cell(law, T, h, RUNS * SHARE * experiment.time, *_controlled(mean, first, law.exact(T))))
        experiment.cells += cells
        covariances.append(np.stack([np.diag(row**2) for row in np.stack([cell.error for cell in cells], 1)]))
    return Biases(experiment, covariances)


def _controlled(mean, first, exact):
    """The biases of means by chain, and their standard errors, with the first statistics as control variates."""
    off = first - exact
    slope = (off * (mean - mean.mean(0))).mean(0) / np.maximum((off**2).mean(0), 1e-300)
    values = mean - exact - slope * off
    return values.mean(0), np.maximum(values.std(0), 1e-300) / len(values) ** 0.5
