"""Measurements of every target, temperature and step size, in runs until the start is forgotten."""

from math import inf

import numpy as np
import torch

from .experiment import Experiment
from .judgement import Biases, biases_of
from .laws import LAWS, Law
from .verdicts import Cell

FORGOTTEN = 4.0  # standard errors between the chains from two starts
DOUBLINGS = 5  # of the time, until the start is forgotten
ROUNDS = 5  # of measurements, until nothing changes with time


def measured(experiment: Experiment) -> Biases | None:
    """The biases of all cells, once nothing changes with time; None where a check has failed before."""
    plan = experiment.plan
    comparisons = experiment.comparisons
    settings = [(law, T, h) for law in LAWS for T in plan.temperatures for h in plan.step_sizes]
    before = len(comparisons.results)
    change = inf
    for _ in range(ROUNDS):
        began = experiment.time
        experiment.cells = []
        del comparisons.results[before:]
        for law, T, h in settings:
            cell = measure(experiment, law, T, h)
            if cell is None:
                return None
            experiment.cells.append(cell)
        biases = biases_of(experiment.cells, plan.threshold)
        comparisons.results += biases.results
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
    comparisons.keeps(
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


def measure(experiment: Experiment, law: Law, T: float, h: float) -> Cell | None:
    """Measures a cell; None, with a finding, where chains diverge or keep their start.

    Three quarters of the chains start from exact draws and are compared, the others at half the width. The time of a
    run is doubled until both groups agree, and is kept for the next cell.
    """
    compared = experiment.plan.chains * 3 // 4
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
    return experiment.comparisons.keeps(
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


def _change(experiment: Experiment) -> float | None:
    """The largest change of biases when the time is quadrupled, in standard errors; None where such a run fails.

    Momenta and the like may start far from their law. The cells at h are measured again, and the cell at h/4 with the
    surest bias, since chains may forget more slowly there.
    """
    largest, *_, smallest = experiment.plan.step_sizes
    cells = experiment.cells
    surest = max(cells, key=lambda cell: (cell.step_size == smallest, float(abs(cell.z).max())))
    change = 0.0
    pooled = []
    experiment.time *= 4
    for cell in [*(cell for cell in cells if cell.step_size == largest), surest]:
        later = measure(experiment, cell.law, cell.temperature, cell.step_size)
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
