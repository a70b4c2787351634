"""Tuned exact chains against NUTS on one posterior, interleaved: effective draws per gradient and per second.

    python tests/benchmarks/nuts.py --out out/nuts.json

Bayesian logistic regression on the breast-cancer data, 31 coefficients, prior N(0, 100), 64 chains. Ours are those of
`samplers.tune` alone. NUTS is blackjax's (`pip install blackjax`, which only this script needs), adapted over 1000
steps by windows, with a diagonal and with a dense mass. Each round moves every contender on once; the time is the
processor's, without tuning and compilation. An effective sample size is that of the worst coefficient, by ranks of the
draws and by the mean of their squares.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy
import torch
from sklearn.datasets import load_breast_cancer

import samplers
from samplers.results.statistics import sample_size_of_mean, sample_size_of_ranks

PRIOR = 100.0


def breast_cancer() -> tuple[numpy.ndarray, numpy.ndarray]:
    """Standardised features with an intercept, and the classes."""
    data = load_breast_cancer()
    X = (data.data - data.data.mean(0)) / data.data.std(0)
    return numpy.column_stack([numpy.ones(len(X)), X]), data.target.astype(float)


class Tuned:
    """Our chains, moved on by `run(number)`, which gives their draws, gradients and seconds."""

    def __init__(self, recipe: Any, X: numpy.ndarray, y: numpy.ndarray, chains: int) -> None:
        features, classes = torch.tensor(X), torch.tensor(y)

        def energy(theta: torch.Tensor) -> torch.Tensor:
            logits = features @ theta
            return torch.nn.functional.softplus(logits).sum() - logits @ classes + theta.square().sum() / (2 * PRIOR)

        self.recipe = recipe
        self.energy = energy
        began = time.process_time()
        start = torch.zeros(X.shape[1], dtype=torch.float64)
        self.settings = samplers.tune(recipe, energy, init=start, chains=chains, seed=1)
        self.tuning = time.process_time() - began
        self.arguments = dict(self.settings.arguments)
        self.seed = 100
        self.run(100)

    def run(self, number: int) -> tuple[numpy.ndarray, int, float]:
        """So many proposals."""
        self.seed += 1
        began = time.process_time()
        draws = samplers.sample(
            self.recipe, self.energy, steps=number, seed=self.seed, progress=False, **self.arguments
        )["theta"]
        seconds = time.process_time() - began
        self.arguments["init"] = {"theta": draws[:, -1].clone()}
        return draws.numpy(), number * len(draws) * self.arguments["metropolis"].repeat, seconds


class Nuts:
    """The same of blackjax's NUTS."""

    def __init__(self, X: numpy.ndarray, y: numpy.ndarray, chains: int, *, diagonal: bool) -> None:
        features, classes = jnp.asarray(X), jnp.asarray(y)

        def log_density(theta: Any) -> Any:
            logits = features @ theta
            return logits @ classes - jax.nn.softplus(logits).sum() - (theta**2).sum() / (2 * PRIOR)

        began = time.process_time()
        adaptation = blackjax.window_adaptation(blackjax.nuts, log_density, is_mass_matrix_diagonal=diagonal)
        (state, parameters), _ = adaptation.run(jax.random.key(0), jnp.zeros(X.shape[1]), 1000)
        self.tuning = time.process_time() - began
        nuts = blackjax.nuts(log_density, **parameters)
        self.chains = chains
        self.states = jax.vmap(nuts.init)(jnp.tile(state.position, (chains, 1)))
        self.key = jax.random.key(1)

        def step(states: Any, key: Any) -> tuple:
            states, info = jax.vmap(nuts.step)(jax.random.split(key, chains), states)
            return states, (states.position, info.num_integration_steps)

        self.steps: Callable = jax.jit(lambda states, keys: jax.lax.scan(step, states, keys))

    def run(self, number: int) -> tuple[numpy.ndarray, int, float]:
        """So many draws of each chain."""
        self.key, own = jax.random.split(self.key)
        began = time.process_time()
        self.states, (draws, gradients) = self.steps(self.states, jax.random.split(own, number))
        draws = numpy.asarray(draws).swapaxes(0, 1)
        return draws, int(gradients.sum()), time.process_time() - began


def figures(rounds: list[tuple[numpy.ndarray, int, float]]) -> dict[str, float]:
    """Effective draws of the worst coefficient."""
    draws = torch.tensor(numpy.concatenate([x for x, _, _ in rounds], axis=1))
    gradients, seconds = sum(n for _, n, _ in rounds), sum(s for _, _, s in rounds)
    sizes = {
        "ranks": float(sample_size_of_ranks(draws).min()),
        "squares": float(sample_size_of_mean((draws - draws.mean((0, 1))).square()).min()),
    }
    per_gradient = {f"ESS of {k} a gradient": size / gradients for k, size in sizes.items()}
    return per_gradient | {f"ESS of {k} a second": size / seconds for k, size in sizes.items()}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    X, y = breast_cancer()
    ours = Tuned(samplers.UnderdampedLangevin, X, y, options.chains)
    print(ours.settings, flush=True)
    contenders = {
        "tuned exact chains": (ours, 25),
        "NUTS, diagonal mass": (Nuts(X, y, options.chains, diagonal=True), 25),
        "NUTS, dense mass": (Nuts(X, y, options.chains, diagonal=False), 25),
    }
    for contender, number in contenders.values():
        contender.run(number)  # compiles, and forgets the start
    seen: dict[str, list] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, (contender, number) in contenders.items():
            seen[name].append(contender.run(number))
    table = {name: figures(rounds) | {"tuning, s": contenders[name][0].tuning} for name, rounds in seen.items()}
    for name, row in table.items():
        print(f"{name:22}", "  ".join(f"{what} {value:.3g}" for what, value in row.items()))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
