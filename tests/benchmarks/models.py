"""Models against Pyro's NUTS: the mean and the sd of every number, within the Monte Carlo error of both.

    python tests/benchmarks/models.py --out out/models.json

Eight schools, a Dirichlet-multinomial and normal rows with LKJ correlations are written with `samplers.model`, and a
Poisson regression by groups with Pyro, through `samplers.from_pyro`. NUTS runs all four as models of Pyro, in a
diagonal mass. Ours are HMC by `samplers.tune` alone. A difference is in standard errors, of the
mean and of the mean square, by the effective sample size of each; `worst` of so many should be near the largest of as
many normal numbers.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from scipy.stats import norm
from torch.distributions import Dirichlet, HalfCauchy, HalfNormal, LKJCholesky, Normal

import samplers
from samplers.results.statistics import sample_size_of_mean

EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)
GROUPS = 8
PLACES = 4

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """A model in our words and in Pyro's."""

    ours: Any
    theirs: Callable
    arguments: tuple = ()


def eight_schools() -> Problem:
    """Rubin 1981, the scale of the effects with a half-Cauchy prior."""
    zero, one = torch.zeros(8, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    priors = {"mu": Normal(0 * one, 5 * one), "tau": HalfCauchy(5 * one), "eta": Normal(zero, one)}

    def theirs() -> None:
        mu = pyro.sample("mu", dist.Normal(0 * one, 5 * one))
        tau = pyro.sample("tau", dist.HalfCauchy(5 * one))
        eta = pyro.sample("eta", dist.Normal(zero, one).to_event(1))
        pyro.sample("effect", dist.Normal(mu + tau * eta, ERRORS).to_event(1), obs=EFFECTS)

    ours = samplers.model(priors, lambda v: Normal(v["mu"] + v["tau"] * v["eta"], ERRORS).log_prob(EFFECTS))
    return Problem(ours, theirs)


def dirichlet_multinomial() -> Problem:
    """Counts of three kinds in four places, whose shares vary about common ones: w_g ~ Dirichlet(k w + 1/2)."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(PLACES, 3)
    noisy = shares * (1 + torch.rand(PLACES, 3, generator=generator, dtype=torch.float64))
    kinds = torch.multinomial(noisy, 40, replacement=True, generator=generator)
    counts = torch.stack([(kinds == kind).sum(1) for kind in range(3)], 1).double()
    ones = torch.ones(3, dtype=torch.float64)
    ten = torch.tensor(10.0, dtype=torch.float64)
    priors = {
        "w": Dirichlet(ones),
        "k": HalfNormal(2 * ten),
        "places": lambda v: Dirichlet((v["k"] * v["w"] + 0.5).expand(PLACES, 3)),
    }

    def theirs() -> None:
        w = pyro.sample("w", dist.Dirichlet(ones))
        k = pyro.sample("k", dist.HalfNormal(2 * ten))
        places = pyro.sample("places", dist.Dirichlet((k * w + 0.5).expand(PLACES, 3)).to_event(1))
        pyro.factor("counts", (counts * places.log()).sum())

    return Problem(samplers.model(priors, lambda v: (counts * v["places"].log()).sum()), theirs)


def correlated() -> Problem:
    """Three responses whose scales and correlations, with a prior LKJ(2), are asked for."""
    generator = torch.Generator().manual_seed(1)
    root = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.8]], dtype=torch.float64)
    rows = torch.randn(40, 3, generator=generator, dtype=torch.float64) @ root.T
    one = torch.tensor(1.0, dtype=torch.float64)
    zero = torch.zeros(3, dtype=torch.float64)
    priors = {"mu": Normal(zero, 2 * one), "scale": HalfNormal(zero + 2), "L": LKJCholesky(3, 2 * one)}

    def log_likelihood(v: Values) -> torch.Tensor:
        factor = v["scale"][:, None] * v["L"]
        away = torch.linalg.solve_triangular(factor, (rows - v["mu"]).T, upper=False)
        return -away.square().sum() / 2 - len(rows) * factor.diagonal().log().sum()

    def theirs() -> None:
        values = {
            "mu": pyro.sample("mu", dist.Normal(zero, 2 * one).to_event(1)),
            "scale": pyro.sample("scale", dist.HalfNormal(zero + 2).to_event(1)),
            "L": pyro.sample("L", dist.LKJCholesky(3, 2 * one)),
        }
        pyro.factor("rows", log_likelihood(values))

    return Problem(samplers.model(priors, log_likelihood), theirs)


def of_pyro() -> Problem:
    """Counts by group and a covariate, written with Pyro alone: Poisson, with intercepts that share a law."""
    generator = torch.Generator().manual_seed(2)
    group = torch.arange(80) % GROUPS
    x = torch.randn(80, generator=generator, dtype=torch.float64)
    y = torch.poisson((0.5 + 0.4 * x + 0.3 * (group - 3.5) / 3.5).exp(), generator=generator)
    one = torch.tensor(1.0, dtype=torch.float64)

    def theirs(x: torch.Tensor, group: torch.Tensor, y: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0 * one, 2 * one))
        slope = pyro.sample("slope", dist.Normal(0 * one, one))
        spread = pyro.sample("spread", dist.HalfNormal(one))
        with pyro.plate("groups", GROUPS):
            level = pyro.sample("level", dist.Normal(0 * one, one))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Poisson((mean + spread * level[group] + slope * x).exp()), obs=y)

    return Problem(samplers.from_pyro(theirs, x, group, y), theirs, (x, group, y))


PROBLEMS = {
    "eight schools": eight_schools,
    "Dirichlet-multinomial": dirichlet_multinomial,
    "LKJ correlations": correlated,
    "Poisson regression, of Pyro": of_pyro,
}


def of_ours(problem: Problem, steps: int) -> Values:
    """Draws by variable, `(chains, draws, *shape)`, of tuned HMC."""
    settings = samplers.tune("hmc", problem.ours, chains=16, seed=1)
    run = dict(steps=steps, warmup=steps // 5, seed=2, progress=False)
    return dict(samplers.sample("hmc", problem.ours, **run, **settings.arguments))


def of_nuts(problem: Problem, steps: int, chains: int) -> Values:
    """The same of Pyro's NUTS, chains in turn, each adapted for as many steps as it draws, 500 at most."""
    parts = []
    for chain in range(chains):
        pyro.set_rng_seed(chain)
        kernel = NUTS(problem.theirs, jit_compile=True, ignore_jit_warnings=True)
        mcmc = MCMC(kernel, num_samples=steps, warmup_steps=min(steps, 500), disable_progbar=True)
        mcmc.run(*problem.arguments)
        parts.append(mcmc.get_samples())
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def moments(draws: Values) -> tuple[torch.Tensor, torch.Tensor]:
    """The means of every number that varies and of its square, and their standard errors, in the order of the names."""
    means, errors = [], []
    for name in sorted(draws):
        columns = draws[name].double().flatten(2) if draws[name].dim() > 2 else draws[name].double()[..., None]
        for x in columns.unbind(-1):
            for values in (x, x.square()):
                if float(values.std()) < 1e-12:
                    continue
                size = float(sample_size_of_mean(values))
                means.append(values.mean())
                errors.append(values.std() / size**0.5)
    return torch.stack(means), torch.stack(errors)


def compared(problem: Problem, steps: int, chains: int) -> dict[str, float]:
    """Differences between ours and NUTS in standard errors, and what both took."""
    began = time.process_time()
    ours, own_error = moments(of_ours(problem, steps))
    middle = time.process_time()
    theirs, their_error = moments(of_nuts(problem, steps, chains))
    z = (ours - theirs).abs() / (own_error.square() + their_error.square()).sqrt()
    return {
        "numbers": len(z),
        "worst": float(z.max()),
        "largest of normals": float(norm.isf(0.5 / len(z) / 2)),
        "mean square": float(z.square().mean()),
        "seconds, ours": middle - began,
        "seconds, NUTS": time.process_time() - middle,
    }


def main(argv: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Run the comparison; returns its rows by problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=4, help="of NUTS")
    parser.add_argument("--only", help="one problem, by its name")
    parser.add_argument("--out", type=Path, help="file for the rows")
    options = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)  # of what Pyro makes by itself
    warnings.filterwarnings("ignore", category=UserWarning, module="pyro|torch")
    rows = {}
    for name, problem in PROBLEMS.items():
        if options.only in (None, name):
            rows[name] = compared(problem(), options.steps, options.chains)
            print(name, {key: round(x, 3) for key, x in rows[name].items()}, flush=True)
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
