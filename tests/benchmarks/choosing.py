"""Which sampler, which step: bias, effective draws per gradient and cost of samplers whose settings are found out.

    python tests/benchmarks/choosing.py --out tests/benchmarks/results/DATE-choosing.json

Four problems, 16 chains each. Every row is a run with the settings of `samplers.tune`, as step_size="auto" has them,
and for one sampler runs at multiples of that step size. What is looked at are the coordinates of theta, and of the
network its predictions at eight inputs: `bias`, the largest error of a standard deviation among them, as a part of it,
of which finitely many draws make `error`; `ess`, effective draws of the worst, by ranks, per 1000 gradients of all data
or of a batch; `seconds`, the processor's, per 1000 gradients. The truth is known of the normal law, and of the others
it is a long run of exact chains. `examples/guide/choosing.md` has the rows.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import samplers
from recipe.errors import RecipeError
from samplers.results.statistics import sample_size_of_mean, sample_size_of_ranks
from samplers.tuning.pilot import jittered

CHAINS, SITES, ROWS, BATCH = 16, 10, 1000, 50
DOUBLE = torch.float64


@dataclass(frozen=True)
class Problem:
    """An energy, where chains begin, what is looked at of draws `(chains, draws, sites)`, and its sd if it is known."""

    energy: Callable
    sites: int
    statistics: Callable[[Tensor], Tensor] = lambda theta: theta
    data: dict[str, Any] | None = None
    sd: Tensor | None = None
    longer: int = 1  # runs, of how many times the steps


def covariance() -> Tensor:
    """Neighbours are correlated by 0.9."""
    k = torch.arange(SITES)
    return (0.9 ** (k[:, None] - k).abs()).to(DOUBLE)


def normal_law() -> Problem:
    """Ten sites, correlated."""
    precision = torch.linalg.inv(covariance())
    return Problem(lambda theta: theta @ precision @ theta / 2, SITES, sd=torch.ones(SITES, dtype=DOUBLE))


def logistic(minibatches: bool) -> Problem:
    """Logistic regression of 1000 data on ten correlated features, on all data or on batches of 50."""
    random = torch.Generator().manual_seed(0)
    X = torch.randn(ROWS, SITES, generator=random, dtype=DOUBLE) @ torch.linalg.cholesky(covariance()).T
    truth = torch.randn(SITES, generator=random, dtype=DOUBLE)
    y = (torch.rand(ROWS, generator=random, dtype=DOUBLE) < torch.sigmoid(X @ truth)).to(DOUBLE)

    def loss(theta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(batch[0] @ theta, batch[1])

    def prior(theta: Tensor) -> Tensor:
        return theta.square().sum() / 2

    if minibatches:
        energy = samplers.posterior(loss, prior, num_data=ROWS)
        return Problem(energy, SITES, data={"data": (X, y), "batch_size": BATCH}, longer=20)
    return Problem(lambda theta: ROWS * loss(theta, (X, y)) + prior(theta), SITES)


def network() -> Problem:
    """A layer of five tanh, 16 weights, 40 data with noise of sd 0.2."""
    random = torch.Generator().manual_seed(1)
    x = torch.linspace(-2, 2, 40, dtype=DOUBLE)
    y = torch.sin(2 * x) + 0.2 * torch.randn(40, generator=random, dtype=DOUBLE)
    seen = torch.linspace(-1.75, 1.75, 8, dtype=DOUBLE)

    def predictions(theta: Tensor, inputs: Tensor) -> Tensor:
        a, b, c, d = theta[..., :5], theta[..., 5:10], theta[..., 10:15], theta[..., 15:]
        return (torch.tanh(inputs[:, None] * a[..., None, :] + b[..., None, :]) * c[..., None, :]).sum(-1) + d

    def energy(theta: Tensor) -> Tensor:
        return ((y - predictions(theta, x)) / 0.2).square().sum() / 2 + theta.square().sum() / 8

    return Problem(energy, 16, statistics=lambda theta: predictions(theta, seen))


PROBLEMS = {
    "correlated normal": normal_law(),
    "logistic, all data": logistic(minibatches=False),
    "logistic, batches": logistic(minibatches=True),
    "small network": network(),
}
EXACT = ("hmc", "mala")
STOCHASTIC = ("sgld", "underdamped-langevin", "sghmc", "sgnht")
MULTIPLES = {"underdamped-langevin": (2.0, 4.0)}


def draws_of(problem: Problem, sampler: str, steps: int, seed: int = 1, **settings: Any) -> samplers.Draws:
    """A run; the first fifth is a warmup."""
    start = torch.zeros(problem.sites, dtype=DOUBLE) + 0.1 * torch.arange(problem.sites).remainder(3)
    defaults = {"init": start, "chains": CHAINS, "step_size": "auto"}
    more = {"steps": steps, "warmup": steps // 5, "seed": seed, "progress": False}
    return samplers.sample(sampler, problem.energy, **(defaults | more | (problem.data or {}) | settings))


def truth_of(name: str, problem: Problem, steps: int) -> Tensor:
    """The standard deviations of what is looked at."""
    if problem.sd is not None:
        return problem.sd
    full = PROBLEMS["logistic, all data"] if problem.data else problem
    draws = draws_of(full, "hmc", steps, metropolis=True, chains=4 * CHAINS)
    return full.statistics(draws["theta"]).flatten(0, 1).std(0)


def tuned(problem: Problem, sampler: str) -> dict[str, Any]:
    """The settings that are found out; samplers of EXACT accept or reject."""
    arguments: dict[str, Any] = {"metropolis": sampler in EXACT}
    init = torch.zeros(problem.sites, dtype=DOUBLE)
    settings = samplers.tune(
        sampler, problem.energy, init=init, chains=CHAINS, seed=0, **arguments, **(problem.data or {})
    )
    return arguments | settings.arguments


def row(
    problem: Problem, truth: Tensor, sampler: str, steps: int, found: dict[str, Any], multiple: float, seed: int
) -> dict[str, Any]:
    """One run, looked at."""
    repeat = found["metropolis"].repeat if "metropolis" in found else 1
    h = multiple * getattr(found["step_size"], "step_size", found["step_size"])  # the mean of those that vary
    arguments = found | {"step_size": jittered(h, repeat)}
    began = time.process_time()
    draws = draws_of(problem, sampler, steps, seed, **arguments)
    seconds = time.process_time() - began
    seen = problem.statistics(draws["theta"])
    gradients = steps * CHAINS * repeat
    kept = 0.8 * gradients / 1000
    error = (1 / (2 * sample_size_of_mean((seen - seen.mean((0, 1))).square()).min())).sqrt()
    return {
        "sampler": sampler,
        "seed": seed,
        "multiple": multiple,
        "step_size": h,
        "bias": float((seen.flatten(0, 1).std(0) / truth - 1)[_worst(seen, truth)]),
        "error": float(error),
        "ess": float(sample_size_of_ranks(seen).min() / kept),
        "seconds": 1000 * seconds / gradients,
        "verdict": draws.report().verdict,
    }


def _worst(seen: Tensor, truth: Tensor) -> int:
    return int((seen.flatten(0, 1).std(0) / truth - 1).abs().argmax())


def main(argv: list[str] | None = None) -> None:
    """Measure, print and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="of every run, default 1500")
    parser.add_argument("--seeds", type=int, default=3, help="runs of every row, default 3")
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=PROBLEMS, help="by default all")
    parser.add_argument("--out", type=Path, default=Path("out/choosing.json"), help="file for the rows")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    print(f"{'':20}{'':22}{'times auto':>11}{'bias of sd':>11}{'error':>8}{'ESS/1000':>10}{'s/1000':>9}")
    for name in options.problems:
        problem = PROBLEMS[name]
        truth = truth_of(name, problem, options.steps)
        for sampler in STOCHASTIC if problem.data else (*EXACT, *STOCHASTIC):
            try:
                found = tuned(problem, sampler)
            except RecipeError as refusal:
                print(f"{name:20}{sampler:22}{refusal}", flush=True)
                continue
            multiples = (1.0, *MULTIPLES.get(sampler, ()))
            for multiple, seed in itertools.product(multiples, range(1, options.seeds + 1)):
                steps = options.steps * problem.longer
                rows.append({"problem": name} | row(problem, truth, sampler, steps, found, multiple, seed))
                r = rows[-1]
                cells = f"{r['bias']:+11.3f}{r['error']:8.3f}{r['ess']:10.2f}{r['seconds']:9.4f}  {r['verdict'][:60]}"
                print(f"{name:20}{sampler:22}{multiple:11g}{cells}", flush=True)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
