"""The posteriors of `posteriors.py` in NumPyro's words, and its NUTS on one of them; `models.py` starts this.

    python numpyro_models.py NAME DATA.npz DRAWS.npz

Needs numpyro alone, not this project. Writes the draws of all variables, `(chains, draws, *shape)`, and prints a line
of JSON: gradients and seconds of the warm-up and of the draws without compilation, its seconds, and divergences.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy
import numpyro
import numpyro.util
from jax.scipy.linalg import solve_triangular
from numpyro import sample
from numpyro.distributions import (
    Bernoulli,
    Beta,
    Dirichlet,
    HalfCauchy,
    HalfNormal,
    LKJCholesky,
    LogNormal,
    MultivariateNormal,
    Normal,
    Poisson,
    Uniform,
)
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam

Data = Mapping[str, Any]


def eight_schools(data: Data) -> None:
    """Non-centred; the effects are written, too."""
    mu, tau = sample("mu", Normal(0, 5)), sample("tau", HalfCauchy(5))
    effect = numpyro.deterministic("effect", mu + tau * sample("eta", Normal(jnp.zeros(8), 1)))
    sample("y", Normal(effect, data["errors"]), obs=data["effects"])


def eight_schools_centred(data: Data) -> None:
    """Centred."""
    effect = sample("effect", Normal(jnp.full(8, sample("mu", Normal(0, 5))), sample("tau", HalfCauchy(5))))
    sample("y", Normal(effect, data["errors"]), obs=data["effects"])


def varying_slopes(data: Data) -> None:
    """Centred."""
    mu, scale = sample("mu", Normal(jnp.zeros(2), 2)), sample("scale", HalfNormal(jnp.ones(2)))
    factor = scale[:, None] * sample("L", LKJCholesky(2, 2))
    sd = sample("sd", HalfNormal(2))
    levels = sample("levels", MultivariateNormal(jnp.broadcast_to(mu, (15, 2)), scale_tril=factor))
    mean = levels[data["group"], 0] + levels[data["group"], 1] * data["x"]
    sample("y", Normal(mean, sd), obs=data["y"])


def horseshoe(data: Data) -> None:
    """Weights in units of their scales."""
    z, local = sample("z", Normal(jnp.zeros(50), 1)), sample("local", HalfCauchy(jnp.ones(50)))
    whole, sd = sample("whole", HalfCauchy(0.1)), sample("sd", HalfNormal(2))
    sample("y", Normal(data["X"] @ (z * local * whole), sd), obs=data["y"])


def funnel(data: Data) -> None:
    """Non-centred."""
    v, x = sample("v", Normal(0, 3)), sample("x", Normal(jnp.zeros(9), 1))
    sample("y", Normal(jnp.exp(v / 2) * x, 0.5), obs=data["y"])


def dirichlet_multinomial(data: Data) -> None:
    """Shares of four places."""
    w, k = sample("w", Dirichlet(jnp.ones(3))), sample("k", HalfNormal(20))
    places = sample("places", Dirichlet(jnp.broadcast_to(k * w + 0.5, (4, 3))))
    numpyro.factor("counts", (data["counts"] * jnp.log(places)).sum())


def correlated(data: Data) -> None:
    """Rows of three responses."""
    mu, scale = sample("mu", Normal(jnp.zeros(3), 2)), sample("scale", HalfNormal(jnp.full(3, 2.0)))
    factor = scale[:, None] * sample("L", LKJCholesky(3, 2))
    away = solve_triangular(factor, (data["rows"] - mu).T, lower=True)
    numpyro.factor("rows", -(away**2).sum() / 2 - len(data["rows"]) * jnp.log(jnp.diagonal(factor)).sum())


def counts_by_group(data: Data) -> None:
    """Non-centred."""
    mean, slope, spread = sample("mean", Normal(0, 2)), sample("slope", Normal(0, 1)), sample("spread", HalfNormal(1))
    level = sample("level", Normal(jnp.zeros(8), 1))
    sample("y", Poisson(jnp.exp(mean + spread * level[data["group"]] + slope * data["x"])), obs=data["y"])


def gaussian_process(data: Data) -> None:
    """Non-centred."""
    x = data["x"]
    length, height = sample("length", LogNormal(0, 0.5)), sample("height", HalfNormal(1))
    kernel = height**2 * jnp.exp(-((x[:, None] - x) ** 2) / (2 * length**2)) + 1e-6 * jnp.eye(len(x))
    sample("y", Normal(jnp.linalg.cholesky(kernel) @ sample("z", Normal(0 * x, 1)), 0.3), obs=data["y"])


def filtered(x: Any, phi: Any) -> Any:
    """y_t = phi y_{t-1} + x_t, by (1 - phi B)^-1 = prod_j (1 + phi^{2^j} B^{2^j}), B the lag."""
    lag = 1
    while lag < len(x):
        x = x + phi**lag * jnp.pad(x[:-lag], (lag, 0))
        lag *= 2
    return x


def stochastic_volatility(data: Data) -> None:
    """Non-centred."""
    mean, phi, sd = sample("mean", Normal(0, 2)), sample("phi", Beta(20, 1.5)), sample("sd", HalfNormal(0.5))
    z = sample("z", Normal(0 * data["y"], 1))
    h = mean + sd * filtered(z.at[0].divide(jnp.sqrt(1 - phi**2)), phi)
    sample("y", Normal(0, jnp.exp(h / 2)), obs=data["y"])


def item_response(data: Data) -> None:
    """Two parameters an item."""
    ability, slope = sample("ability", Normal(jnp.zeros(180), 1)), sample("slope", LogNormal(jnp.zeros(20), 0.5))
    difficulty = sample("difficulty", Normal(jnp.zeros(20), 2))
    sample("y", Bernoulli(logits=slope * (ability[:, None] - difficulty)), obs=data["y"])


def radon(data: Data) -> None:
    """Half-way between centred and non-centred, as ours."""
    mean, slope = sample("mean", Normal(0, 5)), sample("slope", Normal(0, 2))
    spread, sd = sample("spread", HalfNormal(1)), sample("sd", HalfNormal(1))
    with numpyro.handlers.reparam(config={"level": LocScaleReparam(0.5)}):
        level = sample("level", Normal(jnp.full(85, mean), spread))
    sample("y", Normal(level[data["county"]] + slope * data["floor"], sd), obs=data["y"])


def logistic_regression(data: Data) -> None:
    """One weight a feature."""
    sample("y", Bernoulli(logits=data["X"] @ sample("w", Normal(jnp.zeros(30), 1))), obs=data["y"])


def autoregression(data: Data) -> None:
    """Five lags."""
    c, b, sd = sample("c", Normal(0, 10)), sample("b", Normal(jnp.zeros(5), 10)), sample("sd", HalfNormal(2))
    sample("y", Normal(c + data["lags"] @ b, sd), obs=data["y"])


def garch(data: Data) -> None:
    """The recursion of the variance."""
    y = data["y"]
    mu, base = sample("mu", Normal(0, 5)), sample("base", HalfNormal(1))
    shock, rest = sample("shock", Uniform(0, 1)), sample("rest", Uniform(0, 1))
    variance = filtered(jnp.concatenate([jnp.ones(1), base + shock * (y[:-1] - mu) ** 2]), (1 - shock) * rest)
    sample("y", Normal(mu, jnp.sqrt(variance)), obs=y)


def mixture(data: Data) -> None:
    """Two laws."""
    low, gap = sample("low", Normal(0, 2)), sample("gap", HalfNormal(5))
    sd, share = sample("sd", HalfNormal(jnp.full(2, 2.0))), sample("share", Beta(5, 5))
    one = Normal(low, sd[0]).log_prob(data["y"]) + jnp.log(share)
    other = Normal(low + gap, sd[1]).log_prob(data["y"]) + jnp.log1p(-share)
    numpyro.factor("y", jnp.logaddexp(one, other).sum())


MODELS: dict[str, Callable[[Data], None]] = {
    "eight schools": eight_schools,
    "eight schools, centred": eight_schools_centred,
    "varying slopes": varying_slopes,
    "horseshoe": horseshoe,
    "funnel": funnel,
    "Dirichlet-multinomial": dirichlet_multinomial,
    "LKJ correlations": correlated,
    "Poisson regression, of Pyro": counts_by_group,
    "Gaussian process": gaussian_process,
    "stochastic volatility, 200": stochastic_volatility,
    "stochastic volatility, 500": stochastic_volatility,
    "item response": item_response,
    "radon": radon,
    "logistic regression": logistic_regression,
    "autoregression": autoregression,
    "garch": garch,
    "mixture": mixture,
}


def main() -> None:
    """Runs NUTS on one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("data")
    parser.add_argument("draws")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--number", type=int, default=1000, help="of draws")
    parser.add_argument("--target", type=float, default=0.8, help="acceptance")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    numpyro.enable_x64()
    # JAX compiles the loops of every run anew, unless functions are the same objects and arguments can be hashed.
    numpyro.util.maybe_jit = cache(numpyro.util.maybe_jit)
    data = {key: jnp.asarray(x) for key, x in numpy.load(options.data).items()}
    kernel = NUTS(partial(MODELS[options.name], data), target_accept_prob=options.target)
    mcmc = MCMC(kernel, num_warmup=options.warmup, num_samples=options.number, progress_bar=False)
    keys = jax.random.split(jax.random.key(options.seed), options.chains)
    first, *chains = [one_chain(mcmc, key) for key in (keys[0], *keys)]  # one more, which compiles
    names = chains[0][0]
    numpy.savez(options.draws, **{name: numpy.stack([draws[name] for draws, _ in chains]) for name in names})
    row = {what: sum(numbers[what] for _, numbers in chains) for what in first[1]}
    again = chains[0][1]
    compiling = sum(first[1][what] - again[what] for what in ("tuning, s", "s"))
    row["compilation, s"] = max(0.0, compiling)  # where runs are long, the difference is chance
    print(json.dumps(row))


def one_chain(mcmc: MCMC, key: Any) -> tuple[dict[str, numpy.ndarray], dict[str, float]]:
    """Draws of one chain, and what they took."""
    fields = ("num_steps", "diverging")
    clock, began = time.perf_counter(), time.process_time()
    mcmc.warmup(key, extra_fields=fields, collect_warmup=True)
    tuning = int(mcmc.get_extra_fields()["num_steps"].sum())
    middle = time.process_time()
    mcmc.run(jax.random.fold_in(key, 1), extra_fields=fields)
    seen = {what: int(x.sum()) for what, x in mcmc.get_extra_fields().items()}
    draws = {name: numpy.asarray(x) for name, x in mcmc.get_samples().items()}
    ended = time.process_time()
    return draws, {
        "tuning, gradients": tuning,
        "gradients": seen["num_steps"],
        "tuning, s": middle - began,
        "s": ended - middle,
        "wall, s": time.perf_counter() - clock,
        "divergences": seen["diverging"],
    }


if __name__ == "__main__":
    main()
