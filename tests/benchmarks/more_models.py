"""Models of posteriors that people bring to NUTS, in our words, for `models.py`; data are synthetic, by fixed seeds."""

from typing import Any

import torch
from torch.distributions import Bernoulli, Beta, HalfNormal, LogNormal, Normal

import samplers

F64 = torch.float64
ONE = torch.ones((), dtype=F64)

Values = dict[str, torch.Tensor]


def normals(*shape: int, seed: int) -> torch.Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def gaussian_process() -> Any:
    """Latent values at 100 points with a squared exponential kernel, non-centred, and Gaussian noise."""
    x = torch.linspace(0, 10, 100, dtype=F64)
    y = (1.5 * x).sin() + 0.3 * normals(100, seed=11)
    apart = (x[:, None] - x).square()
    priors = {"length": LogNormal(0 * ONE, ONE / 2), "height": HalfNormal(ONE), "z": Normal(0 * x, ONE)}

    def log_likelihood(v: Values) -> torch.Tensor:
        kernel = v["height"] ** 2 * (-apart / (2 * v["length"] ** 2)).exp() + 1e-6 * torch.eye(100, dtype=F64)
        return Normal(torch.linalg.cholesky(kernel) @ v["z"], 0.3 * ONE).log_prob(y)

    return samplers.model(priors, log_likelihood)


def stochastic_volatility(number: int) -> Any:
    """Kim, Shephard & Chib 1998: y_t ~ N(0, e^{h_t}), with h an autoregression that is written non-centred."""
    noise = normals(2, number, seed=12)
    h = [0.25 * noise[0, 0]]
    for t in range(1, number):
        h.append(0.95 * h[-1] + 0.25 * noise[0, t])
    y = (torch.stack(h) / 2).exp() * noise[1]
    lag = (torch.arange(number)[:, None] - torch.arange(number)).to(F64)
    priors = {
        "mean": Normal(0 * ONE, 2 * ONE),
        "phi": Beta(20 * ONE, 1.5 * ONE),
        "sd": HalfNormal(ONE / 2),
        "z": Normal(torch.zeros(number, dtype=F64), ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        weights = torch.where(lag >= 0, v["phi"] ** lag.clamp(min=0), 0.0)
        first = v["z"] / torch.where(torch.arange(number) == 0, (1 - v["phi"] ** 2).sqrt(), 1.0)
        return Normal(0 * ONE, ((v["mean"] + v["sd"] * (weights @ first)) / 2).exp()).log_prob(y)

    return samplers.model(priors, log_likelihood)


def item_response() -> Any:
    """Birnbaum's two parameters: 180 persons and 20 items, which are right with logit a_i (ability - b_i)."""
    noise = normals(220, seed=13)
    logits = (0.4 * noise[200:]).exp() * (noise[:180, None] - noise[180:200])
    y = torch.bernoulli(logits.sigmoid(), generator=torch.Generator().manual_seed(14))
    zero = torch.zeros(20, dtype=F64)
    priors = {
        "ability": Normal(torch.zeros(180, dtype=F64), ONE),
        "slope": LogNormal(zero, ONE / 2),
        "difficulty": Normal(zero, 2 * ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        return Bernoulli(logits=v["slope"] * (v["ability"][:, None] - v["difficulty"])).log_prob(y)

    return samplers.model(priors, log_likelihood)


def radon() -> Any:
    """Gelman & Hill 2007, of the size of theirs: 85 counties with intercepts of their own; synthetic data."""
    noise = normals(919 + 85, seed=15)
    county = torch.arange(919) % 85
    floor = (torch.arange(919) % 6 == 0).to(F64)
    y = 1.5 + 0.35 * noise[919:][county] - 0.7 * floor + 0.75 * noise[:919]
    priors = {
        "mean": Normal(0 * ONE, 5 * ONE),
        "slope": Normal(0 * ONE, 2 * ONE),
        "spread": HalfNormal(ONE),
        "sd": HalfNormal(ONE),
        "level": lambda v: Normal(v["mean"].expand(85), v["spread"]),
    }
    return samplers.model(
        priors, lambda v: Normal(v["level"][county] + v["slope"] * floor, v["sd"]).log_prob(y), centred={"level": 0.5}
    )


def logistic_regression() -> Any:
    """400 rows of 30 features."""
    X = normals(400, 30, seed=16)
    logits = X @ normals(30, seed=17) / 2
    y = torch.bernoulli(logits.sigmoid(), generator=torch.Generator().manual_seed(18))
    priors = {"w": Normal(torch.zeros(30, dtype=F64), ONE)}
    return samplers.model(priors, lambda v: Bernoulli(logits=X @ v["w"]).log_prob(y))


def autoregression() -> Any:
    """posteriordb's arK: five lags of a series of 200."""
    noise = normals(200, seed=19)
    values = [noise[t] for t in range(5)]
    for t in range(5, 200):
        values.append(0.4 * values[-1] + 0.2 * values[-2] + noise[t])
    y = torch.stack(values)
    lags = torch.stack([y[5 - k : 200 - k] for k in range(1, 6)], 1)
    priors = {
        "c": Normal(0 * ONE, 10 * ONE),
        "b": Normal(torch.zeros(5, dtype=F64), 10 * ONE),
        "sd": HalfNormal(2 * ONE),
    }
    return samplers.model(priors, lambda v: Normal(v["c"] + lags @ v["b"], v["sd"]).log_prob(y[5:]))


def mixture() -> Any:
    """posteriordb's low-dimensional mixture: two normal laws, whose means are in order."""
    noise = normals(500, seed=20)
    y = torch.where(torch.arange(500) % 3 == 0, 2.75 + noise, -2.75 + noise)
    two = torch.zeros(2, dtype=F64)
    priors = {
        "low": Normal(0 * ONE, 2 * ONE),
        "gap": HalfNormal(5 * ONE),
        "sd": HalfNormal(two + 2),
        "share": Beta(5 * ONE, 5 * ONE),
    }

    def log_likelihood(v: Values) -> torch.Tensor:
        one = Normal(v["low"], v["sd"][0]).log_prob(y) + v["share"].log()
        other = Normal(v["low"] + v["gap"], v["sd"][1]).log_prob(y) + torch.log1p(-v["share"])
        return torch.logaddexp(one, other)

    return samplers.model(priors, log_likelihood)


MORE = {
    "Gaussian process": gaussian_process,
    "stochastic volatility, 200": lambda: stochastic_volatility(200),
    "stochastic volatility, 500": lambda: stochastic_volatility(500),
    "item response": item_response,
    "radon": radon,
    "logistic regression": logistic_regression,
    "autoregression": autoregression,
    "mixture": mixture,
}
