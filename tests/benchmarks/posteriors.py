"""Posteriors that people bring to NUTS, in our words and with their data, for `models.py`; most data are synthetic.

`numpyro_models.py` has the same laws in NumPyro's words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch.distributions import (
    Bernoulli,
    Beta,
    Dirichlet,
    HalfCauchy,
    HalfNormal,
    LKJCholesky,
    LogNormal,
    MultivariateNormal,
    Normal,
    Uniform,
)
from torch.nn.functional import pad

import samplers

F64 = torch.float64
ZERO, ONE = torch.zeros((), dtype=F64), torch.ones((), dtype=F64)

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Posterior:
    """A model with its data by name."""

    model: Any
    data: Values


def normals(*shape: int, seed: int) -> torch.Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def events(logits: torch.Tensor, seed: int) -> torch.Tensor:
    """0 or 1, by their logits."""
    return torch.bernoulli(logits.sigmoid(), generator=torch.Generator().manual_seed(seed))


def filtered(x: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
    """y_t = phi y_{t-1} + x_t along the only axis, by (1 - phi B)^-1 = prod_j (1 + phi^{2^j} B^{2^j}), B the lag."""
    lag = 1
    while lag < len(x):
        x = x + phi**lag * pad(x[:-lag], (lag, 0))
        lag *= 2
    return x


SCHOOLS = {
    "effects": torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=F64),
    "errors": torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=F64),
}
SCALES = {"mu": Normal(ZERO, 5 * ONE), "tau": HalfCauchy(5 * ONE)}  # of the schools


def eight_schools() -> Posterior:
    """Rubin 1981, the scale of the effects with a half-Cauchy prior."""
    priors = SCALES | {"eta": Normal(torch.zeros(8, dtype=F64), ONE)}

    def log_likelihood(v: Values) -> torch.Tensor:
        return Normal(v["mu"] + v["tau"] * v["eta"], SCHOOLS["errors"]).log_prob(SCHOOLS["effects"])

    return Posterior(samplers.model(priors, log_likelihood), SCHOOLS)


def eight_schools_centred() -> Posterior:
    """The same with the effects themselves as variables: a funnel without a mode."""
    priors = SCALES | {"effect": lambda v: Normal(v["mu"].expand(8), v["tau"])}
    model = samplers.model(priors, lambda v: Normal(v["effect"], SCHOOLS["errors"]).log_prob(SCHOOLS["effects"]))
    return Posterior(model, SCHOOLS)


def varying_slopes() -> Posterior:
    """Intercepts and slopes of 15 groups, centred, with a prior LKJ(2) of their correlation: without a mode."""
    generator = torch.Generator().manual_seed(3)
    group = torch.arange(15).repeat_interleave(10)
    x, noise = torch.randn(2, 150, generator=generator, dtype=F64)
    levels = torch.randn(15, 2, generator=generator, dtype=F64)
    levels = torch.tensor([1.0, -0.5]) + levels @ torch.tensor([[0.8, 0.2], [0.0, 0.4]], dtype=F64)
    y = levels[group, 0] + levels[group, 1] * x + noise
    priors = {
        "mu": Normal(torch.zeros(2, dtype=F64), 2 * ONE),
        "scale": HalfNormal(torch.ones(2, dtype=F64)),
        "L": LKJCholesky(2, 2 * ONE),
        "sd": HalfNormal(2 * ONE),
        "levels": lambda v: MultivariateNormal(v["mu"].expand(15, 2), scale_tril=v["scale"][:, None] * v["L"]),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        return Normal(v["levels"][group, 0] + v["levels"][group, 1] * x, v["sd"]).log_prob(y)

    return Posterior(samplers.model(priors, log_likelihood), {"group": group, "x": x, "y": y})


def horseshoe() -> Posterior:
    """Regression on 50 features, of which three count; the scales of the weights have half-Cauchy priors."""
    generator = torch.Generator().manual_seed(4)
    X = torch.randn(100, 50, generator=generator, dtype=F64)
    y = X[:, :3] @ torch.tensor([3.0, -2.0, 1.0], dtype=F64)
    y = y + torch.randn(100, generator=generator, dtype=F64)
    zero = torch.zeros(50, dtype=F64)
    priors = {
        "z": Normal(zero, ONE),
        "local": HalfCauchy(zero + 1),
        "whole": HalfCauchy(0.1 * ONE),
        "sd": HalfNormal(2 * ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        return Normal(X @ (v["z"] * v["local"] * v["whole"]), v["sd"]).log_prob(y)

    return Posterior(samplers.model(priors, log_likelihood), {"X": X, "y": y})


def funnel() -> Posterior:
    """Neal 2003, non-centred, with an observation at the neck: y_i ~ N(e^{v/2} x_i, 1/2)."""
    y = torch.linspace(-0.5, 0.5, 9, dtype=F64)
    priors = {"v": Normal(ZERO, 3 * ONE), "x": Normal(torch.zeros(9, dtype=F64), ONE)}
    model = samplers.model(priors, lambda v: Normal((v["v"] / 2).exp() * v["x"], ONE / 2).log_prob(y))
    return Posterior(model, {"y": y})


def dirichlet_multinomial() -> Posterior:
    """Counts of three kinds in four places, whose shares vary about common ones: w_g ~ Dirichlet(k w + 1/2)."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=F64).expand(4, 3)
    noisy = shares * (1 + torch.rand(4, 3, generator=generator, dtype=F64))
    kinds = torch.multinomial(noisy, 40, replacement=True, generator=generator)
    counts = torch.stack([(kinds == kind).sum(1) for kind in range(3)], 1).double()
    priors = {
        "w": Dirichlet(torch.ones(3, dtype=F64)),
        "k": HalfNormal(20 * ONE),
        "places": lambda v: Dirichlet((v["k"] * v["w"] + 0.5).expand(4, 3)),
    }
    return Posterior(samplers.model(priors, lambda v: (counts * v["places"].log()).sum()), {"counts": counts})


def correlated() -> Posterior:
    """Three responses whose scales and correlations, with a prior LKJ(2), are asked for."""
    root = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.8]], dtype=F64)
    rows = normals(40, 3, seed=1) @ root.T
    zero = torch.zeros(3, dtype=F64)
    priors = {"mu": Normal(zero, 2 * ONE), "scale": HalfNormal(zero + 2), "L": LKJCholesky(3, 2 * ONE)}

    def log_likelihood(v: Values) -> torch.Tensor:
        factor = v["scale"][:, None] * v["L"]
        away = torch.linalg.solve_triangular(factor, (rows - v["mu"]).T, upper=False)
        return -away.square().sum() / 2 - len(rows) * factor.diagonal().log().sum()

    return Posterior(samplers.model(priors, log_likelihood), {"rows": rows})


def counts_by_group() -> Posterior:
    """Counts by group and a covariate, written with Pyro: Poisson, with intercepts that share a law."""
    generator = torch.Generator().manual_seed(2)
    group = torch.arange(80) % 8
    x = torch.randn(80, generator=generator, dtype=F64)
    y = torch.poisson((0.5 + 0.4 * x + 0.3 * (group - 3.5) / 3.5).exp(), generator=generator)

    def theirs(x: torch.Tensor, group: torch.Tensor, y: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(ZERO, 2 * ONE))
        slope = pyro.sample("slope", dist.Normal(ZERO, ONE))
        spread = pyro.sample("spread", dist.HalfNormal(ONE))
        with pyro.plate("groups", 8):
            level = pyro.sample("level", dist.Normal(ZERO, ONE))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Poisson((mean + spread * level[group] + slope * x).exp()), obs=y)

    return Posterior(samplers.from_pyro(theirs, x, group, y), {"x": x, "group": group, "y": y})


def gaussian_process() -> Posterior:
    """Latent values at 100 points with a squared exponential kernel, non-centred, and Gaussian noise."""
    x = torch.linspace(0, 10, 100, dtype=F64)
    y = (1.5 * x).sin() + 0.3 * normals(100, seed=11)
    apart = (x[:, None] - x).square()
    priors = {"length": LogNormal(ZERO, ONE / 2), "height": HalfNormal(ONE), "z": Normal(0 * x, ONE)}

    def log_likelihood(v: Values) -> torch.Tensor:
        kernel = v["height"] ** 2 * (-apart / (2 * v["length"] ** 2)).exp() + 1e-6 * torch.eye(100, dtype=F64)
        return Normal(torch.linalg.cholesky(kernel) @ v["z"], 0.3 * ONE).log_prob(y)

    return Posterior(samplers.model(priors, log_likelihood), {"x": x, "y": y})


def stochastic_volatility(number: int) -> Posterior:
    """Kim, Shephard & Chib 1998: y_t ~ N(0, e^{h_t}), with h an autoregression that is written non-centred."""
    noise = normals(2, number, seed=12)
    y = (filtered(0.25 * noise[0], 0.95 * ONE) / 2).exp() * noise[1]
    first = torch.arange(number) == 0
    priors = {
        "mean": Normal(ZERO, 2 * ONE),
        "phi": Beta(20 * ONE, 1.5 * ONE),
        "sd": HalfNormal(ONE / 2),
        "z": Normal(torch.zeros(number, dtype=F64), ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        steps = v["z"] * torch.where(first, (1 - v["phi"] ** 2).rsqrt(), 1.0)
        return Normal(ZERO, ((v["mean"] + v["sd"] * filtered(steps, v["phi"])) / 2).exp()).log_prob(y)

    return Posterior(samplers.model(priors, log_likelihood), {"y": y})


def item_response() -> Posterior:
    """Birnbaum's two parameters: 180 persons and 20 items, which are right with logit a_i (ability - b_i)."""
    noise = normals(220, seed=13)
    y = events((0.4 * noise[200:]).exp() * (noise[:180, None] - noise[180:200]), seed=14)
    zero = torch.zeros(20, dtype=F64)
    priors = {
        "ability": Normal(torch.zeros(180, dtype=F64), ONE),
        "slope": LogNormal(zero, ONE / 2),
        "difficulty": Normal(zero, 2 * ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        return Bernoulli(logits=v["slope"] * (v["ability"][:, None] - v["difficulty"])).log_prob(y)

    return Posterior(samplers.model(priors, log_likelihood), {"y": y})


def radon() -> Posterior:
    """Gelman & Hill 2007, of the size of theirs: 85 counties with intercepts of their own, half-way centred."""
    noise = normals(919 + 85, seed=15)
    county = torch.arange(919) % 85
    floor = (torch.arange(919) % 6 == 0).to(F64)
    y = 1.5 + 0.35 * noise[919:][county] - 0.7 * floor + 0.75 * noise[:919]
    priors = {
        "mean": Normal(ZERO, 5 * ONE),
        "slope": Normal(ZERO, 2 * ONE),
        "spread": HalfNormal(ONE),
        "sd": HalfNormal(ONE),
        "level": lambda v: Normal(v["mean"].expand(85), v["spread"]),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        return Normal(v["level"][county] + v["slope"] * floor, v["sd"]).log_prob(y)

    model = samplers.model(priors, log_likelihood, centred={"level": 0.5})
    return Posterior(model, {"county": county, "floor": floor, "y": y})


def logistic_regression() -> Posterior:
    """400 rows of 30 features."""
    X = normals(400, 30, seed=16)
    y = events(X @ normals(30, seed=17) / 2, seed=18)
    priors = {"w": Normal(torch.zeros(30, dtype=F64), ONE)}
    model = samplers.model(priors, lambda v: Bernoulli(logits=X @ v["w"]).log_prob(y))
    return Posterior(model, {"X": X, "y": y})


def autoregression() -> Posterior:
    """posteriordb's arK: five lags of a series of 200."""
    noise = normals(200, seed=19)
    values = [noise[t] for t in range(5)]
    for t in range(5, 200):
        values.append(0.4 * values[-1] + 0.2 * values[-2] + noise[t])
    series = torch.stack(values)
    lags, y = torch.stack([series[5 - k : 200 - k] for k in range(1, 6)], 1), series[5:]
    priors = {
        "c": Normal(ZERO, 10 * ONE),
        "b": Normal(torch.zeros(5, dtype=F64), 10 * ONE),
        "sd": HalfNormal(2 * ONE),
    }
    model = samplers.model(priors, lambda v: Normal(v["c"] + lags @ v["b"], v["sd"]).log_prob(y))
    return Posterior(model, {"lags": lags, "y": y})


def garch() -> Posterior:
    """posteriordb's garch11, 200 days: v_t = base + shock (y_{t-1} - mu)^2 + (1 - shock) rest v_{t-1}, v_0 = 1."""
    noise = normals(200, seed=21)
    values, variance = [noise[0]], ONE
    for t in range(1, 200):
        variance = 0.5 + 0.3 * values[-1] ** 2 + 0.4 * variance
        values.append(variance.sqrt() * noise[t])
    y = 0.2 + torch.stack(values)
    priors = {
        "mu": Normal(ZERO, 5 * ONE),
        "base": HalfNormal(ONE),
        "shock": Uniform(ZERO, ONE),
        "rest": Uniform(ZERO, ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        shocks = v["base"] + v["shock"] * (y[:-1] - v["mu"]).square()
        variance = filtered(torch.cat([ONE[None], shocks]), (1 - v["shock"]) * v["rest"])
        return Normal(v["mu"], variance.sqrt()).log_prob(y)

    return Posterior(samplers.model(priors, log_likelihood), {"y": y})


def mixture() -> Posterior:
    """posteriordb's low-dimensional mixture: two normal laws, whose means are in order."""
    noise = normals(500, seed=20)
    y = torch.where(torch.arange(500) % 3 == 0, 2.75 + noise, -2.75 + noise)
    priors = {
        "low": Normal(ZERO, 2 * ONE),
        "gap": HalfNormal(5 * ONE),
        "sd": HalfNormal(torch.full((2,), 2.0, dtype=F64)),
        "share": Beta(5 * ONE, 5 * ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        one = Normal(v["low"], v["sd"][0]).log_prob(y) + v["share"].log()
        other = Normal(v["low"] + v["gap"], v["sd"][1]).log_prob(y) + torch.log1p(-v["share"])
        return torch.logaddexp(one, other)

    return Posterior(samplers.model(priors, log_likelihood), {"y": y})


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "eight schools": eight_schools,
    "eight schools, centred": eight_schools_centred,
    "varying slopes": varying_slopes,
    "horseshoe": horseshoe,
    "funnel": funnel,
    "Gaussian process": gaussian_process,
    "stochastic volatility, 200": lambda: stochastic_volatility(200),
    "stochastic volatility, 500": lambda: stochastic_volatility(500),
    "item response": item_response,
    "radon": radon,
    "logistic regression": logistic_regression,
    "autoregression": autoregression,
    "garch": garch,
    "mixture": mixture,
    "Dirichlet-multinomial": dirichlet_multinomial,
    "LKJ correlations": correlated,
    "Poisson regression, of Pyro": counts_by_group,
}
