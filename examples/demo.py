"""From three formulas to posterior samples on real data: what `make demo` runs.

1. A sampler of our own, declared by H, D and Q in riemann_thermostat.py: its derivation, proof and emitted step.
2. Bayesian logistic regression on the breast-cancer data of scikit-learn, sampled with full gradients and minibatches.
3. A reference that shares no code with this package: Hamiltonian Monte Carlo with a Metropolis test, in plain torch.
4. A table, an account of the minibatch bias and of its cause, and a picture of every marginal.
5. Exact chains in the plain coordinates, whose settings `samplers.tune` has found: one line beside the reference. A
   quick demo leaves them out.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import matplotlib
import numpy
import torch
from numpy import ndarray
from pandas import DataFrame
from riemann_thermostat import RiemannThermostat, TailThermostat
from sklearn.datasets import load_breast_cancer
from torch import Generator, Tensor
from torch.nn.functional import softplus

import integrators
import samplers

matplotlib.use("Agg")
PRIOR_SD = 10.0
FRICTION = 1.0
FULL_STEP, MINI_STEP, BATCH = 0.15, 0.1, 100


# ---- the model: 31 correlated coefficients, nearly separable data


@dataclass(frozen=True)
class LogisticRegression:
    """U(theta) = sum_i [log(1 + exp(x_i.theta)) - y_i x_i.theta] + |theta|^2/(2 sd^2), for chains of theta."""

    X: Tensor
    y: Tensor
    names: tuple[str, ...]

    def energy(self, theta: Tensor) -> Tensor:
        """U of each theta, (..., 31)."""
        return self.of_data(theta) + theta.square().sum(-1) / (2 * PRIOR_SD**2)

    def of_data(self, theta: Tensor) -> Tensor:
        """U without the prior."""
        logits = theta @ self.X.T
        return softplus(logits).sum(-1) - logits @ self.y

    def gradient(self, theta: Tensor) -> Tensor:
        """grad U."""
        return self.residuals(theta) @ self.X + theta / PRIOR_SD**2

    def residuals(self, theta: Tensor) -> Tensor:
        """p_i - y_i: the gradient of the i-th term of the likelihood is this number times x_i."""
        return torch.sigmoid(theta @ self.X.T) - self.y


def breast_cancer() -> LogisticRegression:
    """569 tumours, 30 standardised features and an intercept; y = 1 is benign."""
    data = load_breast_cancer()
    X = (data.data - data.data.mean(0)) / data.data.std(0)
    X = numpy.column_stack([numpy.ones(len(X)), X])
    return LogisticRegression(
        torch.tensor(X), torch.tensor(data.target, dtype=torch.float64), ("intercept", *data.feature_names)
    )


# ---- coordinates z, theta = centre + scale z, in which the posterior is round and the gradient noise diagonal


@dataclass(frozen=True)
class Coordinates:
    """An affine map theta = centre + scale z. Any one is correct; a good one mixes well with unit masses."""

    centre: Tensor
    scale: Tensor

    def theta(self, z: Tensor) -> Tensor:
        """theta = centre + scale z."""
        return self.centre + z @ self.scale.T

    def z(self, theta: Tensor) -> Tensor:
        """z = scale^-1 (theta - centre)."""
        return torch.linalg.solve(self.scale.mT, theta - self.centre, left=False)


def gaussian_approximation(model: LogisticRegression, iterations: int = 150, prior_sd: float = PRIOR_SD) -> Coordinates:
    """The Gaussian q of E_q grad U = 0 and covariance^-1 = E_q hess U, by damped iteration and quadrature.

    The mode will not do: the posterior is skewed, and its mean is two standard deviations away.
    """
    nodes, weights = map(torch.tensor, numpy.polynomial.hermite_e.hermegauss(21))
    weights = weights / weights.sum()
    X, prior = model.X, torch.eye(model.X.shape[1]) / prior_sd**2
    mean, precision = torch.zeros(X.shape[1]), X.T @ X / 4 + prior
    for _ in range(iterations):
        spread = ((X @ torch.linalg.inv(precision)) * X).sum(1).sqrt()
        p = torch.sigmoid((X @ mean)[:, None] + spread[:, None] * nodes)
        gradient = X.T @ (p @ weights - model.y) + prior @ mean
        hessian = X.T @ ((p * (1 - p)) @ weights[:, None] * X) + prior
        precision = 0.7 * precision + 0.3 * hessian
        mean = mean - 0.3 * torch.linalg.solve(precision, gradient)
    return Coordinates(mean, torch.linalg.cholesky(torch.linalg.inv(precision)))


def diagonalise_noise(model: LogisticRegression, q: Coordinates, generator: Generator) -> Coordinates:
    """q, rotated so that the covariance of the minibatch gradient, averaged over q, is diagonal."""
    theta = q.theta(torch.randn(400, len(q.centre), generator=generator))
    r = model.residuals(theta)
    G = r @ model.X
    covariance = model.X.T @ (r.square().mean(0)[:, None] * model.X) - G.T @ G / len(theta) / len(model.y)
    _, rotation = torch.linalg.eigh(q.scale.T @ covariance @ q.scale)
    return Coordinates(q.centre, q.scale @ rotation)


# ---- the reference, in plain torch


def metropolised_hmc(
    model: LogisticRegression,
    q: Coordinates,
    generator: Generator,
    *,
    chains: int,
    draws: int,
    warmup: int,
    step: float = 0.3,
    leapfrogs: int = 12,
) -> Tensor:
    """Hamiltonian Monte Carlo with a Metropolis test: exact, whatever the coordinates q.

    The step is uniform on (0, step): short ones free a chain from the far tails, where the curvature is large.
    """

    def energy(z: Tensor) -> Tensor:
        return model.energy(q.theta(z))

    def force(z: Tensor) -> Tensor:
        return -model.gradient(q.theta(z)) @ q.scale

    z = 1.5 * torch.randn(chains, len(q.centre), generator=generator)
    U, f = energy(z), force(z)
    kept = []
    for k in range(warmup + draws):
        h = step * torch.rand(chains, 1, generator=generator)
        p = torch.randn(z.shape, generator=generator)
        new_z, new_f, new_p = z, f, p
        for _ in range(leapfrogs):
            new_p = new_p + h / 2 * new_f
            new_z = new_z + h * new_p
            new_f = force(new_z)
            new_p = new_p + h / 2 * new_f
        new_U = energy(new_z)
        rise = new_U - U + (new_p.square() - p.square()).sum(1) / 2
        accept = torch.rand(chains, generator=generator).log() < -rise
        z = torch.where(accept[:, None], new_z, z)
        f = torch.where(accept[:, None], new_f, f)
        U = torch.where(accept, new_U, U)
        if k >= warmup:
            kept.append(z)
    return q.theta(torch.stack(kept, 1))


# ---- our sampler


def seen_by(model: LogisticRegression, coordinates: Coordinates) -> tuple[Callable, tuple[Tensor, ...]]:
    """The energy U~(z, batch) of one chain in the coordinates z, and the data that its batches are of."""

    def loss(z: Tensor, batch: tuple) -> Tensor:  # one value per example
        x, o, y = batch
        logits = x @ z + o
        return softplus(logits) - y * logits

    def negative_log_prior(z: Tensor) -> Tensor:
        return coordinates.theta(z).square().sum() / (2 * PRIOR_SD**2)

    energy = samplers.posterior(loss, negative_log_prior, num_data=len(model.X))
    return energy, (model.X @ coordinates.scale, model.X @ coordinates.centre, model.y)


def run(
    model: LogisticRegression,
    coordinates: Coordinates,
    *,
    step_size: float,
    duration: float,
    warmup: float,
    chains: int,
    batch_size: int | None = None,
    seed: int = 0,
) -> tuple[samplers.Draws, Tensor]:
    """Draws of theta and the mean of xi in each coordinate, after `warmup` and `duration` units of time."""
    energy, data = seen_by(model, coordinates)
    start = 1.5 * torch.randn(chains, model.X.shape[1], generator=torch.Generator().manual_seed(seed))
    draws = samplers.sample(
        TailThermostat,
        energy,
        init=start,
        chains=chains,
        data=data,
        batch_size=batch_size,
        step_size=step_size,
        steps=round(duration / step_size),
        warmup=round(warmup / step_size),
        thin=round(1 / step_size),
        keep="xi",
        seed=seed,
        A=FRICTION,
    )
    return samplers.Draws({"theta": coordinates.theta(draws["theta"])}, info=draws.info), draws["xi"].mean((0, 1))


def tuned_run(
    model: LogisticRegression, steps: int, chains: int, repeat: int | None = None
) -> tuple[samplers.Draws, samplers.Settings]:
    """Metropolised Langevin dynamics of theta itself: nothing need be given but the energy and the chains."""
    zeros = torch.zeros(len(model.names))
    proposal = samplers.Metropolis(repeat=repeat)
    settings = samplers.tune(
        samplers.UnderdampedLangevin, model.energy, init=zeros, chains=chains, metropolis=proposal, seed=4
    )
    draws = samplers.sample(samplers.UnderdampedLangevin, model.energy, steps=steps, seed=5, **settings.arguments)
    return draws, settings


# ---- the comparison


@dataclass(frozen=True)
class Comparison:
    """The summary of a run beside that of the reference, coefficient by coefficient."""

    run: DataFrame
    reference: DataFrame

    @property
    def bias(self) -> ndarray:
        """The difference of the means in standard deviations of the posterior."""
        return ((self.run["mean"] - self.reference["mean"]) / self.reference["sd"]).to_numpy()

    @property
    def error(self) -> ndarray:
        """The Monte Carlo standard error of `bias`."""
        return (numpy.hypot(self.run["mcse_mean"], self.reference["mcse_mean"]) / self.reference["sd"]).to_numpy()

    @property
    def spread(self) -> ndarray:
        """The ratio of the standard deviations."""
        return (self.run["sd"] / self.reference["sd"]).to_numpy()

    @property
    def rms(self) -> float:
        """The root mean square of the bias, less what Monte Carlo error adds to it."""
        return max(0.0, (self.bias**2 - self.error**2).mean()) ** 0.5


def table(names: Sequence[str], full: Comparison, mini: Comparison) -> str:
    """One line per coefficient: z is the difference of the means in standard errors, bias in posterior sds."""
    blank = ""
    lines = [
        f"{blank:24}|{'reference (HMC)':^16}|{'full gradient':^35}|{f'minibatches of {BATCH}':^43}",
        f"{'coefficient':24}|{'mean':>8}{'sd':>7} |{'mean':>8}{'sd':>7}{'ESS':>7}{'R-hat':>7}{'z':>6}"
        f"|{'mean':>8}{'sd':>7}{'ESS':>7}{'R-hat':>7}{'bias/sd':>8}{'sd/sd':>6}",
    ]
    lines.append("-" * 24 + "+" + "-" * 16 + "+" + "-" * 35 + "+" + "-" * 43)
    for i, name in enumerate(names):
        r, f, m = full.reference.iloc[i], full.run.iloc[i], mini.run.iloc[i]
        lines.append(
            f"{name:24}|{r['mean']:8.2f}{r['sd']:7.2f} "
            f"|{f['mean']:8.2f}{f['sd']:7.2f}{f['ess_bulk']:7.0f}{f['r_hat']:7.3f}"
            f"{full.bias[i] / full.error[i]:6.1f}"
            f"|{m['mean']:8.2f}{m['sd']:7.2f}{m['ess_bulk']:7.0f}{m['r_hat']:7.3f}"
            f"{mini.bias[i]:8.3f}{mini.spread[i]:6.2f}"
        )
    return "\n".join(lines)


def account(
    full: Comparison, mini: Comparison, double: Comparison, V: Tensor, xi: Tensor, coordinates: Coordinates
) -> str:
    """How large the minibatch bias is, and why; V: the variances of the gradient at draws of the reference."""
    z = numpy.abs(full.bias / full.error)
    heat = MINI_STEP * V / 2
    noise = heat.mean(0)
    squares = coordinates.scale.square()
    widening = 100 * ((squares @ (1 + noise / FRICTION) / squares.sum(1)).sqrt() - 1)
    ratio = xi / (FRICTION + noise)
    swing = ((FRICTION + heat) / (FRICTION + noise)).std(0)
    half_swing = ((FRICTION + heat / 2) / (FRICTION + noise / 2)).std(0)
    signal = (mini.bias**2 - mini.error**2).sum()
    slope = mini.bias @ double.bias / signal
    slope_error = (mini.bias**2 @ double.error**2) ** 0.5 / signal
    return paragraphs(f"""
Full gradient: no bias that {full.run["ess_bulk"].min():.0f} effective draws or more could show. The largest |z| of
{len(z)} is {z.max():.1f}; the sds agree within {100 * abs(full.spread - 1).max():.1f} %.

Minibatches of {BATCH}: the means are off by {mini.rms:.3f} posterior sds (root mean square, Monte Carlo error removed),
and by {abs(mini.bias).max():.3f} at most; sd/sd is {mini.spread.min():.3f} to {mini.spread.max():.3f}. Why, from the
variances V_g of the minibatch gradient at the draws of the reference:

1. Averaged over the posterior, V_g is {V.mean(0).min():.2f} to {V.mean(0).max():.1f} in the {len(ratio)} coordinates.
As heat in Langevin dynamics of friction {FRICTION:g} it would make the sds of the coefficients
{widening.min():.0f} to {widening.max():.0f} % too large (linear response). The thermostats absorb this part:
E xi, predicted as A + h E V_g/2, is measured at {ratio.min():.2f} to {ratio.max():.2f} times the prediction.

2. What is left comes from V_g not being constant, which no xi can follow: across the posterior the temperature
(A + h V_g/2)/(A + h E V_g/2) of a coordinate has an sd of {swing.median():.2f} (median; at most {swing.max():.2f}).

3. If so, the bias shrinks with these swings. With minibatches of {2 * BATCH} they are
{half_swing.norm() / swing.norm():.2f} as large, and the biases of the means are
{slope:.2f} +- {slope_error:.2f} as large (least squares): {double.rms:.3f} sds (root mean square),
with sd/sd {double.spread.min():.3f} to {double.spread.max():.3f}.""")


def exact_line(exact: Comparison, draws: samplers.Draws) -> str:
    """How far exact chains are from the reference."""
    z = numpy.abs(exact.bias / exact.error)
    acceptance = numpy.mean(draws.info["acceptance"])
    return paragraphs(f"""
Exact chains of theta, tuned by `samplers.tune` (h = {draws.info["step_size"]:.3g}, {acceptance:.0%} accepted):
the largest |z| of {len(z)} means is {z.max():.1f}, the sds agree within {100 * abs(exact.spread - 1).max():.1f} %,
ESS is at least {exact.run["ess_bulk"].min():.0f}.""")


def paragraphs(text: str) -> str:
    """The text filled to lines of equal width."""
    return "\n\n".join(fill(" ".join(part.split()), 118) for part in text.split("\n\n"))


def picture(
    path: Path, names: Sequence[str], reference: Tensor, full: Tensor, mini: Tensor, V: Tensor, xi: Tensor
) -> None:
    """Every marginal of both runs against the reference, and the thermostats against their prediction."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 8, figsize=(20, 11), layout="constrained")
    flat = [x.flatten(0, 1).numpy() for x in (reference, full, mini)]
    styles = [
        dict(color="0.8", histtype="stepfilled", label="reference: Metropolised HMC"),
        dict(color="tab:blue", histtype="step", lw=1.4, label=f"full gradient, h = {FULL_STEP:g}"),
        dict(color="tab:orange", histtype="step", lw=1.4, label=f"minibatches of {BATCH}, h = {MINI_STEP:g}"),
    ]
    for i, (name, ax) in enumerate(zip(names, axes.flat, strict=False)):
        bins = numpy.linspace(*numpy.quantile(flat[0][:, i], [0.0005, 0.9995]), 46)
        for x, style in zip(flat, styles, strict=True):
            ax.hist(x[:, i], bins, density=True, **style)
        ax.set_title(name, fontsize=10)
        ax.set_yticks([])
        ax.locator_params(axis="x", nbins=4)
    predicted = FRICTION + MINI_STEP * V.mean(0) / 2
    ax = axes.flat[len(names)]
    ax.plot(predicted, predicted, color="0.6", lw=1)
    ax.plot(predicted, xi, "o", color="tab:orange", ms=4)
    ax.set_title("E xi of the 31 thermostats,\nagainst A + h E V_g/2", fontsize=10)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=12)
    figure.supxlabel("coefficient of the standardised feature (log odds of benign)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def show_sampler() -> None:
    """The derivation for every metric S, its proof, and the step that one choice of S compiles to."""
    print(RiemannThermostat, RiemannThermostat.check(), sep="\n\n")
    step = integrators.compile(TailThermostat)
    print("\nWith S(theta) = sqrt(1 + (theta/l)^2) it compiles to", step, step.source, sep="\n\n")


def main(argv: list[str] | None = None) -> dict[str, Comparison]:
    """Run the demo; returns the comparisons by name, for the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the picture and the draws")
    parser.add_argument("--quick", action="store_true", help="a small run, seconds long, with large Monte Carlo error")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    generator = torch.Generator().manual_seed(2015)
    started = time.monotonic()
    duration, warmup, chains, draws = (30, 20, 64, 75) if options.quick else (1200, 60, 32, 2000)

    show_sampler()

    model = breast_cancer()
    q = diagonalise_noise(model, gaussian_approximation(model), generator)
    print(f"Breast cancer data: {len(model.y)} rows, {len(model.names)} coefficients, prior N(0, {PRIOR_SD:g}^2)\n")
    reference = metropolised_hmc(model, q, generator, chains=2 * chains, draws=draws, warmup=200)
    print(f"reference: {2 * chains} chains x {draws} draws of Metropolised HMC")

    kind = dict(duration=duration, warmup=warmup, chains=chains)
    print(f"full gradients, h = {FULL_STEP:g}")
    full, _ = run(model, q, step_size=FULL_STEP, seed=1, **kind)
    print(f"minibatches of {BATCH}, h = {MINI_STEP:g}")
    mini, xi = run(model, q, step_size=MINI_STEP, batch_size=BATCH, seed=2, **kind)
    print(f"minibatches of {2 * BATCH}, h = {MINI_STEP:g}")
    double, _ = run(model, q, step_size=MINI_STEP, batch_size=2 * BATCH, seed=3, **kind)

    true = samplers.Draws({"theta": reference}, info={"sampler": "Metropolised HMC"}).summary()
    runs = {"full": full, "mini": mini, "double": double}
    if not options.quick:
        print("settings of exact chains, by samplers.tune")
        runs["exact"], settings = tuned_run(model, draws // 2, chains=64)
        print(settings)
    against = {name: Comparison(draws.summary(), true) for name, draws in runs.items()}
    energy, data = seen_by(model, q)
    V = samplers.gradient_variance(energy, q.z(reference[:, ::50].flatten(0, 1)), data, batch_size=BATCH)
    print("", table(model.names, against["full"], against["mini"]), sep="\n")
    print(f"reference: R-hat at most {true['r_hat'].max():.3f}, ESS at least {true['ess_bulk'].min():.0f}\n")
    print(account(against["full"], against["mini"], against["double"], V=V, xi=xi, coordinates=q))
    if not options.quick:
        print("", exact_line(against["exact"], runs["exact"]), sep="\n")

    picture(options.out / "marginals.png", model.names, reference, full["theta"], mini["theta"], V, xi)
    for name, draws in (("full", full), ("minibatch", mini)):
        draws.save(options.out / f"{name}.safetensors")
    print(f"\n{options.out}: marginals.png, full.safetensors, minibatch.safetensors (samplers.Draws.load reads them)")
    print(f"{time.monotonic() - started:.0f} s in all")
    return against


if __name__ == "__main__":
    main()
