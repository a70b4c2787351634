"""Models as people write them: what `samplers.tune` costs, and what its HMC is worth, all of it by default.

    python tests/benchmarks/models.py --out out/models.json
    python tests/benchmarks/models.py --nuts                  # beside Pyro's NUTS, where a model of Pyro stands here

A row has the gradients and seconds of tuning, the least effective sample sizes of bulk and tails over all numbers,
those of the bulk a second with tuning and a thousand gradients, the worst R-hat, and the verdict of the report. With
`--nuts` the mean and the mean square of every number are compared: differences are in standard errors of both, by the
effective sample size of each; `worst` of so many should be near the largest of as many normal numbers.
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
from more_models import MORE
from pyro.infer import MCMC, NUTS
from scipy.stats import norm
from torch.distributions import Dirichlet, HalfCauchy, HalfNormal, LKJCholesky, MultivariateNormal, Normal

import samplers
from samplers.results.statistics import sample_size_of_mean, sample_size_of_ranks, sample_size_of_tails, split_r_hat

EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)
GROUPS = 8
PLACES = 4
ZERO, ONE = torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """A model in our words, and in Pyro's where there is one."""

    ours: Any
    theirs: Callable | None = None
    arguments: tuple = ()


def eight_schools() -> Problem:
    """Rubin 1981, the scale of the effects with a half-Cauchy prior."""
    zero, one = torch.zeros(8, dtype=torch.float64), ONE
    priors = {"mu": Normal(0 * one, 5 * one), "tau": HalfCauchy(5 * one), "eta": Normal(zero, one)}

    def theirs() -> None:
        mu = pyro.sample("mu", dist.Normal(0 * one, 5 * one))
        tau = pyro.sample("tau", dist.HalfCauchy(5 * one))
        eta = pyro.sample("eta", dist.Normal(zero, one).to_event(1))
        pyro.sample("effect", dist.Normal(mu + tau * eta, ERRORS).to_event(1), obs=EFFECTS)

    ours = samplers.model(priors, lambda v: Normal(v["mu"] + v["tau"] * v["eta"], ERRORS).log_prob(EFFECTS))
    return Problem(ours, theirs)


def eight_schools_centred() -> Problem:
    """The same with the effects themselves as variables: a funnel without a mode."""
    priors = {
        "mu": Normal(ZERO, 5 * ONE),
        "tau": HalfCauchy(5 * ONE),
        "effect": lambda v: Normal(v["mu"].expand(8), v["tau"]),
    }
    return Problem(samplers.model(priors, lambda v: Normal(v["effect"], ERRORS).log_prob(EFFECTS)))


def varying_slopes() -> Problem:
    """Intercepts and slopes of 15 groups, centred, with a prior LKJ(2) of their correlation: without a mode."""
    generator = torch.Generator().manual_seed(3)
    group = torch.arange(15).repeat_interleave(10)
    x, noise = torch.randn(2, 150, generator=generator, dtype=torch.float64)
    levels = torch.randn(15, 2, generator=generator, dtype=torch.float64)
    levels = torch.tensor([1.0, -0.5]) + levels @ torch.tensor([[0.8, 0.2], [0.0, 0.4]], dtype=torch.float64)
    y = levels[group, 0] + levels[group, 1] * x + noise
    priors = {
        "mu": Normal(torch.zeros(2, dtype=torch.float64), 2 * ONE),
        "scale": HalfNormal(torch.ones(2, dtype=torch.float64)),
        "L": LKJCholesky(2, 2 * ONE),
        "sd": HalfNormal(2 * ONE),
        "levels": lambda v: MultivariateNormal(v["mu"].expand(15, 2), scale_tril=v["scale"][:, None] * v["L"]),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        return Normal(v["levels"][group, 0] + v["levels"][group, 1] * x, v["sd"]).log_prob(y)

    return Problem(samplers.model(priors, log_likelihood))


def horseshoe() -> Problem:
    """Regression on 50 features, of which three count; the scales of the weights have half-Cauchy priors."""
    generator = torch.Generator().manual_seed(4)
    X = torch.randn(100, 50, generator=generator, dtype=torch.float64)
    y = X[:, :3] @ torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)
    y = y + torch.randn(100, generator=generator, dtype=torch.float64)
    zero = torch.zeros(50, dtype=torch.float64)
    priors = {
        "z": Normal(zero, ONE),
        "local": HalfCauchy(zero + 1),
        "whole": HalfCauchy(0.1 * ONE),
        "sd": HalfNormal(2 * ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        return Normal(X @ (v["z"] * v["local"] * v["whole"]), v["sd"]).log_prob(y)

    return Problem(samplers.model(priors, log_likelihood))


def funnel() -> Problem:
    """Neal 2003, non-centred, with an observation at the neck: y_i ~ N(e^{v/2} x_i, 1/2)."""
    y = torch.linspace(-0.5, 0.5, 9, dtype=torch.float64)
    priors = {"v": Normal(ZERO, 3 * ONE), "x": Normal(torch.zeros(9, dtype=torch.float64), ONE)}
    return Problem(samplers.model(priors, lambda v: Normal((v["v"] / 2).exp() * v["x"], ONE / 2).log_prob(y)))


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
    "eight schools, centred": eight_schools_centred,
    "varying slopes": varying_slopes,
    "horseshoe": horseshoe,
    "funnel": funnel,
    "Dirichlet-multinomial": dirichlet_multinomial,
    "LKJ correlations": correlated,
    "Poisson regression, of Pyro": of_pyro,
    **{name: lambda ours=ours: Problem(ours()) for name, ours in MORE.items()},
}


@dataclass(frozen=True)
class Ours:
    """Draws of tuned HMC with what they took."""

    draws: samplers.Draws
    settings: samplers.Settings
    tuning: float  # seconds
    seconds: float

    @property
    def row(self) -> dict[str, Any]:
        """What tuning cost, and what the draws are worth."""
        statistics = (sample_size_of_ranks, sample_size_of_tails)
        values = [x.double().flatten(2) if x.dim() > 2 else x.double()[..., None] for x in self.draws.values()]
        bulk, tails = (torch.cat([f(x) for x in values]).nan_to_num(nan=torch.inf).min() for f in statistics)
        gradients = self.draws.info["steps"] * self.settings.arguments["metropolis"].repeat * values[0].shape[0]
        return {
            "tuning, gradients": self.settings.reasons["gradients"],
            "tuning, s": self.tuning,
            "bulk": float(bulk),
            "tails": float(tails),
            "bulk a second": float(bulk) / (self.tuning + self.seconds),
            "bulk a thousand gradients": 1e3 * float(bulk) / gradients,
            "R-hat": max(float(split_r_hat(x).nan_to_num(nan=1.0).max()) for x in values),
            "verdict": self.draws.report().verdict,
        }


def of_ours(problem: Problem, steps: int) -> Ours:
    """Tunes and runs HMC."""
    began = time.process_time()
    settings = samplers.tune("hmc", problem.ours, chains=16, seed=1)
    middle = time.process_time()
    run = dict(steps=steps, warmup=steps // 5, seed=2, progress=False)
    draws = samplers.sample("hmc", problem.ours, **run, **settings.arguments)
    return Ours(draws, settings, middle - began, time.process_time() - middle)


def of_nuts(problem: Problem, steps: int, chains: int) -> Values:
    """The same of Pyro's NUTS, chains in turn, each adapted for as many steps as it draws, 500 at most."""
    parts = []
    for chain in range(chains):
        pyro.set_rng_seed(chain)
        assert problem.theirs is not None
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


def compared(ours: Ours, problem: Problem, steps: int, chains: int) -> dict[str, float]:
    """Differences between ours and NUTS in standard errors, and what NUTS took."""
    began = time.process_time()
    own, own_error = moments(dict(ours.draws))
    theirs, their_error = moments(of_nuts(problem, steps, chains))
    z = (own - theirs).abs() / (own_error.square() + their_error.square()).sqrt()
    return {
        "numbers": len(z),
        "worst": float(z.max()),
        "largest of normals": float(norm.isf(0.5 / len(z) / 2)),
        "mean square": float(z.square().mean()),
        "seconds, NUTS": time.process_time() - began,
    }


def main(argv: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Tunes and runs all of them; returns rows by problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--nuts", action="store_true", help="compare with NUTS of Pyro")
    parser.add_argument("--chains", type=int, default=4, help="of NUTS")
    parser.add_argument("--only", help="one problem, by its name")
    parser.add_argument("--out", type=Path, help="file for the rows")
    options = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)  # of what Pyro makes by itself
    warnings.filterwarnings("ignore", category=UserWarning, module="pyro|torch")
    rows = {}
    for name, problem in PROBLEMS.items():
        if options.only in (None, name):
            own = problem()
            ours = of_ours(own, options.steps)
            rows[name] = ours.row
            if options.nuts and own.theirs is not None:
                rows[name] |= compared(ours, own, options.steps, options.chains)
            print(name, {key: round(x, 3) if isinstance(x, float) else x for key, x in rows[name].items()}, flush=True)
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
