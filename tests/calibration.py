"""The calibration of stated errors: histograms of z-scores over problems with known answers.

python tests/calibration.py --problems 200 --first 0

Sites are independent, so that evidences are products. The law of the draws is that of the step: the fixed point of
Euler's kernel on a grid, or of a linear chain by its Lyapunov equation. Problem k has the seed k: two of one seed share
their noise, and their errors are not independent.
"""

import argparse
import warnings

import numpy as np
import torch
from scipy.integrate import quad
from sympy import Symbol, cosh, diff, lambdify, log

import integrators
import samplers
from integrators.linear_law import linear_chain
from recipe import Energy, total, vector
from samplers.results.bar import Bar

x, theta = Symbol("x", real=True), vector("theta")
LAWS = {"normal": x**2 / 2, "quartic": x**4 / 4, "log cosh": log(cosh(x))}
# Runs of 1000 steps have dozens of relaxation times.
EULER = {"normal": (0.05, 0.3), "quartic": (0.03, 0.15), "log cosh": (0.3, 0.9)}  # step sizes
RANGE = {"normal": 10.0, "quartic": 3.6, "log cosh": 30.0}  # outside of which a law is negligible
WORD, LONGER = "O B A B O", (0.2, 0.8)  # of underdamped Langevin on the normal


def energy(law, centre=0.0, scale=1.0):
    """U of independent sites."""
    return Energy(theta, U=total(LAWS[law].subs(x, (theta - centre) / scale)))


def of_evidence(k):
    """Yields estimates of problem k with their z-scores; none of an evidence that is not believed."""
    random = np.random.default_rng(k)
    law = list(LAWS)[k % len(LAWS)]
    sites, centre, scale = int(random.integers(1, 6)), random.uniform(-1.5, 1.5), np.exp(random.uniform(-1, 1))
    exact = sites * np.log(scale * _moment(law, 0))
    reference = torch.distributions.Normal(torch.zeros(sites, dtype=torch.float64), 2.0)
    result = samplers.evidence(samplers.UnderdampedLangevin, energy(law, centre, scale), reference=reference, seed=k)
    if result.believed:
        yield "annealing", (result.log_evidence - exact) / result.error
        yield "thermodynamic integration", (result.integral - exact) / result.integral_error


def of_accuracy(k):
    """Yields kinds of errors of the moments of all sites with their z-scores, of problem k."""
    random = np.random.default_rng(k)
    law = list(LAWS)[k % len(LAWS)]
    sites = int(random.integers(1, 6))
    if law == "normal" and k % 2:
        recipe, scheme, h = samplers.UnderdampedLangevin, WORD, random.uniform(*LONGER)
        sd = linear_chain(integrators.compile(recipe, scheme), h, [1.0]).variance("theta")[0] ** 0.5
    else:
        recipe, scheme, h = samplers.SGLD, None, random.uniform(*EULER[law])
        sd = _euler(law, h)
    run = dict(init=torch.zeros(sites, dtype=torch.float64), step_size=h, scheme=scheme, seed=k, progress=False)
    draws = samplers.sample(recipe, energy(law), chains=32, steps=1000, warmup=100, **run)
    of_step = {"mean": 0.0, "sd": sd}
    bias = {"mean": 0.0, "sd": sd - (_moment(law, 2) / _moment(law, 0)) ** 0.5}
    for f in draws.accuracy().figures:
        yield f"Monte Carlo, {f.statistic}", (f.value - of_step[f.statistic]) / f.monte_carlo
        yield f"bias of the step, {f.statistic}", (f.step - bias[f.statistic]) / f.step_error


def _moment(law, power):
    """The integral of x^power exp(-U) of one site."""
    U, end = lambdify(x, LAWS[law], "numpy"), RANGE[law]
    return quad(lambda at: at**power * np.exp(-U(at)), -end, end)[0]


def _euler(law, h):
    """The standard deviation of Euler steps of one site: of the fixed point of their kernel on a grid."""
    at = np.linspace(-RANGE[law], RANGE[law], int(3 * RANGE[law] / h**0.5))
    kernel = np.exp(-((at - (at - h * lambdify(x, diff(LAWS[law], x), "numpy")(at))[:, None]) ** 2) / (4 * h))
    kernel /= kernel.sum(1, keepdims=True)
    equations = np.vstack([kernel.T - np.eye(len(at)), np.ones(len(at))])
    weights = np.linalg.lstsq(equations, np.append(np.zeros(len(at)), 1.0), rcond=None)[0]
    return float(weights @ at**2) ** 0.5


def calibrated(of_problem, problems):
    """The z-scores of a range of problems by their kind."""
    scores = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for k in Bar(of_problem.__name__, len(problems), unit="problem", of=problems):
            for kind, score in of_problem(k):
                scores.setdefault(kind, []).append(score)
    return {kind: np.array(values) for kind, values in scores.items()}


def histogram(kind, scores):
    """The z-scores as text, with their mean and standard deviation."""
    counts, edges = np.histogram(scores.clip(-5, 5), np.arange(-5, 5.5, 0.5))
    mean, sd, largest = scores.mean(), scores.std(), abs(scores).max()
    yield f"{kind}: {len(scores)} z-scores, mean {mean:.2f}, sd {sd:.2f}, largest {largest:.2f}"
    for count, low in zip(counts, edges):
        yield f"{low:5.1f} {count:4d} {'#' * round(100 * count / len(scores))}"


def main(argv=None):
    """Prints the histograms."""
    parser = argparse.ArgumentParser(description="The calibration of stated errors: z-scores over known problems.")
    parser.add_argument("--problems", type=int, default=200, help="of evidences, and as many of accuracies")
    parser.add_argument("--first", type=int, default=0, help="the number of the first problem, which is its seed, too")
    options = parser.parse_args(argv)
    problems = range(options.first, options.first + options.problems)
    for of_problem in (of_evidence, of_accuracy):
        for kind, scores in calibrated(of_problem, problems).items():
            print(*histogram(kind, scores), "", sep="\n")


if __name__ == "__main__":
    main()
