"""The precision of a prior, drawn between the steps of the weights, beside the posterior without it.

    python examples/hyperprior.py            # twelve minutes
    python examples/hyperprior.py --quick    # seconds, with large Monte Carlo error

Logistic regression on the breast-cancer data of scikit-learn, whose 31 weights share a prior with one precision,

    theta_i | tau ~ N(0, 1/tau),   tau ~ Gamma(a, rate b),

as in the experiments of Chen, Fox & Guestrin (2014), section 5: the weights move by SGHMC, and after every step tau is
drawn from its law given them, Gamma(a + n/2, b + |theta|^2/2), which the compiler proves to be that of exp(-H). With
momenta that are drawn anew and `metropolis=True` the same draw is part of chains that are exact at any step size.

The reference knows no tau. It is integrated out by hand,

    p(theta | data) ~ likelihood(theta) (b + |theta|^2/2)^-(a + n/2),

and Hamiltonian Monte Carlo with a Metropolis test in plain torch, that of `demo.py`, makes long chains of it. The mean
and variance of log tau follow from those of log(b + |theta|^2/2), without a draw.

The control has a fault of which no proof can know, as it is in H: the norm of the prior, tau^(n/2), is forgotten, so
that tau is drawn with the shape a. Beside the H of the others that draw is refused.

What came out; z is in Monte Carlo standard errors of both, off in standard deviations of the posterior:

                               mean of log tau      z      sd     z   31 weights: largest z   z of sd     off   ESS >=
    tau integrated out       -0.5605 +- 0.0050          0.502                                                     7791
    SGHMC, h = 0.1           -0.5629 +- 0.0040   -0.4   0.499  -0.9                     1.9       2.3   0.014    16100
    Metropolised HMC         -0.5669 +- 0.0030   -1.1   0.500  -0.6                     2.1       2.7   0.011    28502
    SGHMC, batches of 100    -0.5917 +- 0.0105   -2.7   0.497  -0.8                     3.3       2.6   0.044     2331
    the norm forgotten        -10.43 +- 0.08     -116   1.404    76                      26        35      55       38

Minibatches heat the weights by h V/(2 C), V the covariance of the gradient, hence the friction of 10 there; with 1 the
means are off by 0.7. The chains of the control have not settled: its weights wander off.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from demo import Coordinates, LogisticRegression, breast_cancer, gaussian_approximation, metropolised_hmc
from pandas import DataFrame, concat
from scipy.special import digamma, polygamma
from sympy import Expr, log
from torch import Tensor
from torch.nn.functional import softplus

import samplers
from recipe import Recipe, RecipeError, gibbs, laws, positive, potential, refresh, scalar, total, vector

SHAPE, RATE = 1.0, 1.0  # of the prior of tau
STEP, BATCH, CHAINS = 0.1, 100, 32
FULL = 200  # the size of runs: 40,000 steps of SGHMC
MINI_STEP, MINI_FRICTION = 0.02, 10.0
LEAPFROGS, TRAJECTORY = 16, 2.0
TYPICAL = 0.6  # a precision: of the coordinates of the reference, of which any are correct, and of starts

theta, p, tau = vector("theta"), vector("p"), scalar("tau", domain="positive")
a, b = positive("a", default=SHAPE, doc="shape of tau's prior"), positive("b", default=RATE, doc="its rate")
C = positive("C", default=1.0, doc="friction of SGHMC")
n, squares = total(1), total(theta**2)


def weights_and_precision(name: str, *, norm: Expr, shape: Expr, jumps: dict | None = None, **dynamics: Any) -> Recipe:
    """Weights with momenta under a prior of the norm tau^norm, and tau drawn with a shape."""
    prior = tau * squares / 2 - norm * log(tau) + b * tau - (a - 1) * log(tau)
    return Recipe(
        name=name,
        source="Chen, Fox & Guestrin 2014, section 5",
        state=(theta, p, tau),
        target=theta,
        H=potential(theta) + total(p**2) / 2 + prior,
        Q={(theta, p): -1},
        jumps={"G": gibbs(tau, laws.Gamma(shape, b + squares / 2))} | (jumps or {}),
        **dynamics,
    )


LANGEVIN: dict[str, Any] = dict(D={p: C}, scheme="B A O A B G")
SGHMC = weights_and_precision("sghmc-and-precision", norm=n / 2, shape=a + n / 2, **LANGEVIN)
FORGOTTEN = weights_and_precision("norm-forgotten", norm=0 * n, shape=a, **LANGEVIN)
HMC = weights_and_precision(
    "hmc-and-precision",
    norm=n / 2,
    shape=a + n / 2,
    D={},
    jumps={"R": refresh(p)},
    scheme="R" + " B A B" * LEAPFROGS + " G",
    metropolis=True,
)


def refusal() -> str:
    """What is said of the control's draw beside the right H."""
    try:
        weights_and_precision("wrong-shape", norm=n / 2, shape=a, **LANGEVIN)
    except RecipeError as error:
        return " ".join(str(error).split())
    return "nothing"


# ---- the reference: without tau


class Collapsed(LogisticRegression):
    """U(theta) = -log likelihood + (a + n/2) log(b + |theta|^2/2)."""

    def energy(self, theta: Tensor) -> Tensor:
        """U of each theta, (..., 31)."""
        return self.of_data(theta) + (SHAPE + theta.shape[-1] / 2) * self.log_rate(theta)

    def gradient(self, theta: Tensor) -> Tensor:
        """grad U."""
        pull = (SHAPE + theta.shape[-1] / 2) / self.log_rate(theta).exp()
        return self.residuals(theta) @ self.X + pull[..., None] * theta

    def log_rate(self, theta: Tensor) -> Tensor:
        """log(b + |theta|^2/2): tau given theta is Gamma(a + n/2) over this rate."""
        return torch.log(RATE + theta.square().sum(-1) / 2)


def reference(model: LogisticRegression, q: Coordinates, draws: int) -> DataFrame:
    """Mean and sd of the weights and of log tau, with their Monte Carlo errors."""
    collapsed = Collapsed(model.X, model.y, model.names)
    generator = torch.Generator().manual_seed(2014)
    weights = metropolised_hmc(collapsed, q, generator, chains=CHAINS, draws=draws, warmup=200)
    both = samplers.Draws({"theta": weights, "rate": collapsed.log_rate(weights)}, info={}).summary()
    rate = both.loc["rate"]
    shape = SHAPE + len(model.names) / 2
    row = rate.copy()
    row["mean"] = digamma(shape) - rate["mean"]
    row["sd"] = math.sqrt(polygamma(1, shape) + rate["sd"] ** 2)
    row["mcse_sd"] = rate["mcse_sd"] * rate["sd"] / row["sd"]
    return concat([both.drop("rate"), row.to_frame("log tau").T.astype(both.dtypes)])


# ---- the runs


def likelihood(theta: Tensor, batch: tuple) -> Tensor:
    """-log of the likelihood of each row."""
    x, label = batch
    logits = x @ theta
    return softplus(logits) - label * logits


def run(recipe: Recipe, model: LogisticRegression, q: Coordinates, **setting: Any) -> DataFrame:
    """Mean and sd of the weights and of log tau by a recipe, on all data or on minibatches."""
    energy: Callable = model.of_data
    if "batch_size" in setting:
        energy = samplers.posterior(likelihood, lambda theta: theta.new_zeros(()), num_data=len(model.X))
        setting["data"] = (model.X, model.y)
    start = torch.randn(CHAINS, len(model.names), generator=torch.Generator().manual_seed(setting["seed"]))
    draws = samplers.sample(
        recipe,
        energy,
        init=q.theta(start),
        chains=CHAINS,
        warmup=setting["steps"] // 5,
        keep=["theta", "tau"],
        progress=False,
        **setting,
    )
    return samplers.Draws({"theta": draws["theta"], "log tau": draws["tau"].log()}, info={}).summary()


@dataclass(frozen=True)
class Comparison:
    """The summary of a run beside the reference's, of 31 weights and log tau."""

    run: DataFrame
    truth: DataFrame

    def scores(self, what: str) -> numpy.ndarray:
        """By how many standard errors each "mean" or "sd" is off."""
        error = numpy.hypot(self.run[f"mcse_{what}"], self.truth[f"mcse_{what}"])
        return ((self.run[what] - self.truth[what]) / error).to_numpy()

    @property
    def off(self) -> numpy.ndarray:
        """By how many standard deviations of the posterior each mean is off."""
        return ((self.run["mean"] - self.truth["mean"]) / self.truth["sd"]).to_numpy()

    @property
    def spread(self) -> numpy.ndarray:
        """The ratio of the standard deviations."""
        return (self.run["sd"] / self.truth["sd"]).to_numpy()

    def __str__(self) -> str:
        tau, means, sds = self.run.loc["log tau"], self.scores("mean"), self.scores("sd")
        return (
            f"{tau['mean']:8.4f} +- {tau['mcse_mean']:.4f} {means[-1]:6.1f}{tau['sd']:8.4f}{sds[-1]:6.1f} |"
            f"{abs(means[:-1]).max():6.1f}{abs(sds[:-1]).max():6.1f}{abs(self.off[:-1]).max():8.3f}"
            f"{self.spread[:-1].min():7.3f}{self.spread[:-1].max():7.3f}{self.run['ess_bulk'].min():8.0f}"
        )


HEAD = (
    f"{'':28}|{'log tau':^36}|{'31 weights, the worst':^42}\n"
    f"{'':28}|{'mean':>8}{'error':>11}{'z':>6}{'sd':>8}{'z':>6} |{'z':>6}{'z(sd)':>6}{'off/sd':>8}"
    f"{'sd/sd':>14}{'ESS':>8}"
)


def main(argv: list[str] | None = None) -> dict[str, Comparison]:
    """Print the table; returns the comparisons by name, for the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=FULL, help="of all runs; minibatches are left out of smaller ones")
    parser.add_argument("--quick", action="store_const", const=2, dest="size", help="a size of 2")
    options = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    started = time.process_time()
    size = options.size
    model = breast_cancer()
    q = gaussian_approximation(model, prior_sd=TYPICAL**-0.5)
    print(f"The control's draw beside the right H: {refusal()}\n")
    truth = reference(model, q, draws=10 * size)
    tau_row = truth.loc["log tau"]
    langevin = dict(steps=200 * size, thin=5, step_size=STEP)
    runs: dict[str, tuple[Recipe, dict[str, Any]]] = {
        "SGHMC": (SGHMC, dict(seed=1, **langevin)),
        "Metropolised HMC": (HMC, dict(seed=2, steps=40 * size, step_size=TRAJECTORY)),
        f"SGHMC, batches of {BATCH}": (
            SGHMC,
            dict(seed=3, steps=1000 * size, thin=25, step_size=MINI_STEP, batch_size=BATCH, C=MINI_FRICTION),
        ),
        "the norm forgotten": (FORGOTTEN, dict(seed=4, **langevin)),
    }
    if size < FULL:
        del runs[f"SGHMC, batches of {BATCH}"]
    print(HEAD)
    print(f"{'tau integrated out':28}|{tau_row['mean']:8.4f} +- {tau_row['mcse_mean']:.4f} {'':6}{tau_row['sd']:8.4f}")
    results = {}
    for name, (recipe, setting) in runs.items():
        results[name] = Comparison(run(recipe, model, q, **setting), truth)
        print(f"{name:28}|{results[name]}", flush=True)
    print(f"\nreference: ESS at least {truth['ess_bulk'].min():.0f}; {time.process_time() - started:.0f} s in all")
    return results


if __name__ == "__main__":
    main()
