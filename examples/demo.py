"""From three formulas to posterior samples on real data: what `make demo` runs.

A sampler of our own, declared by H, D and Q in riemann_thermostat.py, is proved. It samples a Bayesian logistic
regression of the breast-cancer data of scikit-learn, with full gradients and with minibatches, beside a reference that
shares no code with this package: Hamiltonian Monte Carlo with a Metropolis test, in plain torch.

With --full, three minutes: the derivation and the emitted step, long runs, the table of all coefficients, an account of
the minibatch bias and of its cause, a picture of every marginal, and exact chains whose settings `samplers.tune` finds.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from textwrap import fill

import matplotlib
import numpy
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
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
        progress=False,
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


HEAD = (
    f"{'':24}|{'reference (HMC)':^16}|{'full gradient':^35}|{f'minibatches of {BATCH}':^43}\n"
    f"{'coefficient':24}|{'mean':>8}{'sd':>7} |{'mean':>8}{'sd':>7}{'ESS':>7}{'R-hat':>7}{'z':>6}"
    f"|{'mean':>8}{'sd':>7}{'ESS':>7}{'R-hat':>7}{'bias/sd':>8}{'sd/sd':>6}\n"
    f"{'-' * 24}+{'-' * 16}+{'-' * 35}+{'-' * 43}"
)


def table(names: Sequence[str], full: Comparison, mini: Comparison) -> str:
    """One line per coefficient: z is the difference of the means in standard errors, bias in posterior sds."""
    lines = [HEAD]
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


def worst_rows(names: Sequence[str], mini: Comparison) -> str:
    """The five coefficients whose means are furthest from the reference, on minibatches."""
    lines = [f"{'':26}{'reference':>16}{f'minibatches of {BATCH}':>20}{'difference':>19}"]
    for i in numpy.argsort(-abs(mini.bias))[:5]:
        r, m = mini.reference.iloc[i], mini.run.iloc[i]
        cells = f"{r['mean']:9.2f} +- {r['sd']:4.2f}{m['mean']:12.2f} +- {m['sd']:4.2f}"
        lines.append(f"  {names[i]:24}{cells}{mini.bias[i]:+11.2f} +- {mini.error[i]:.2f} sd")
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
Exact chains of theta, tuned by `samplers.tune` ({acceptance:.0%} accepted):
the largest |z| of {len(z)} means is {z.max():.1f}, the sds agree within {100 * abs(exact.spread - 1).max():.1f} %,
ESS is at least {exact.run["ess_bulk"].min():.0f}.""")


def paragraphs(text: str) -> str:
    """The text filled to lines of equal width."""
    return "\n\n".join(fill(" ".join(part.split()), 118) for part in text.split("\n\n"))


def picture(
    path: Path, names: Sequence[str], reference: Tensor, full: Tensor, mini: Tensor, V: Tensor, xi: Tensor
) -> None:
    """Every marginal of both runs against the reference, and the thermostats against their prediction."""
    figure, axes = pyplot.subplots(4, 8, figsize=(20, 11), layout="constrained")
    flat = [x.flatten(0, 1).numpy() for x in (reference, full, mini)]
    for i, (name, ax) in enumerate(zip(names, axes.flat, strict=False)):
        draw_marginal(ax, name, [x[:, i] for x in flat])
    draw_thermostats(axes.flat[len(names)], V, xi)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=12)
    figure.supxlabel("coefficient of the standardised feature (log odds of benign)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_marginal(ax: Axes, name: str, values: Sequence[ndarray]) -> None:
    """The histograms of a coefficient, of the reference and of both runs."""
    bins = numpy.linspace(*numpy.quantile(values[0], [0.0005, 0.9995]), 46)
    styles = [
        dict(color="0.8", histtype="stepfilled", label="reference: Metropolised HMC"),
        dict(color="tab:blue", histtype="step", lw=1.4, label=f"full gradient, h = {FULL_STEP:g}"),
        dict(color="tab:orange", histtype="step", lw=1.4, label=f"minibatches of {BATCH}, h = {MINI_STEP:g}"),
    ]
    for x, style in zip(values, styles, strict=True):
        ax.hist(x, bins, density=True, **style)
    ax.set_title(name, fontsize=10)
    ax.set_yticks([])
    ax.locator_params(axis="x", nbins=4)


def draw_thermostats(ax: Axes, V: Tensor, xi: Tensor) -> None:
    """The mean of each thermostat against its prediction."""
    predicted = FRICTION + MINI_STEP * V.mean(0) / 2
    ax.plot(predicted, predicted, color="0.6", lw=1)
    ax.plot(predicted, xi, "o", color="tab:orange", ms=4)
    ax.set_title("E xi of the 31 thermostats,\nagainst A + h E V_g/2", fontsize=10)


def four_panels(
    path: Path,
    names: Sequence[str],
    reference: Tensor,
    full: Tensor,
    mini: Tensor,
    V: Tensor,
    xi: Tensor,
    bias: ndarray,
) -> None:
    """The coefficients of least and largest bias, the thermostats against their prediction, a trace."""
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6), layout="constrained")
    flat = [x.flatten(0, 1).numpy() for x in (reference, full, mini)]
    order = numpy.argsort(abs(bias))
    for ax, i, which in ((axes[0, 0], order[0], "nearest"), (axes[0, 1], order[-1], "furthest")):
        draw_marginal(ax, f"{which}: {names[i]}", [x[:, i] for x in flat])
    draw_thermostats(axes[1, 0], V, xi)
    axes[1, 1].plot(mini[:4, :, order[-1]].T.numpy(), lw=0.8)
    axes[1, 1].set_title(f"{names[order[-1]]}: four chains, by draw", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def show_sampler() -> None:
    """The derivation for every metric S, its proof, and the step that one choice of S compiles to."""
    print(RiemannThermostat, RiemannThermostat.check(), sep="\n\n")
    step = integrators.compile(TailThermostat)
    print("\nWith S(theta) = sqrt(1 + (theta/l)^2) it compiles to", step, step.source, sep="\n\n")


@dataclass(frozen=True)
class Size:
    """Of the runs: units of time, chains, and draws of each chain of the reference."""

    duration: float
    warmup: float
    chains: int
    draws: int


SHORT, FULL = Size(160, 20, 16, 150), Size(1200, 60, 32, 2000)
MORE = """
more:
  .venv/bin/python examples/demo.py --full       longer runs, all coefficients, where the bias comes from: 3 minutes
  .venv/bin/recipe show examples/riemann_thermostat.py:RiemannThermostat     the SDE that was derived
  .venv/bin/recipe emit examples/riemann_thermostat.py:TailThermostat        its step as torch code
  .venv/bin/recipe list                          the samplers of the literature that are there
  examples/guide/start.md                        ten minutes: a sampler of your own, a network"""


class Demo:
    """The model, its coordinates and the reference, and the runs beside them, of one size."""

    def __init__(self, size: Size) -> None:
        generator = torch.Generator().manual_seed(2015)
        self.size, self.model = size, breast_cancer()
        self.coordinates = diagonalise_noise(self.model, gaussian_approximation(self.model), generator)
        print(
            f"Breast cancer data: {len(self.model.y)} rows, {len(self.names)} coefficients, prior N(0, {PRIOR_SD:g}^2)"
        )
        kind = dict(chains=2 * size.chains, draws=size.draws, warmup=200)
        self.reference = metropolised_hmc(self.model, self.coordinates, generator, **kind)
        self.true = samplers.Draws({"theta": self.reference}, info={"sampler": "Metropolised HMC"}).summary()
        print(f"reference: {2 * size.chains} chains x {size.draws} draws of Metropolised HMC")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the coefficients."""
        return self.model.names

    def run(self, step_size: float, batch_size: int | None, seed: int) -> tuple[samplers.Draws, Tensor, Comparison]:
        """The draws of a run, the means of its thermostats, and its comparison with the reference."""
        began, size = time.process_time(), self.size
        kind = dict(duration=size.duration, warmup=size.warmup, chains=size.chains)
        draws, xi = run(self.model, self.coordinates, step_size=step_size, batch_size=batch_size, seed=seed, **kind)
        compared = Comparison(draws.summary(), self.true)
        title = f"minibatches of {batch_size}" if batch_size else "full gradients"
        z = abs(compared.bias / compared.error).max()
        chance = NormalDist().inv_cdf(1 - 0.025 / len(self.names))  # the largest |z| without a bias, 19 times of 20
        bias = "no bias is seen" if z < chance else f"a bias of up to {abs(compared.bias).max():.2f} sd is seen"
        print(
            f"{title}: {bias} (largest |z| of {len(self.names)} means {z:.1f}, by chance {chance:.1f}), "
            f"ESS at least {compared.run['ess_bulk'].min():.0f}, {time.process_time() - began:.1f} s",
            flush=True,
        )
        return draws, xi, compared

    def variances(self) -> Tensor:
        """The variances V_g of the minibatch gradient at draws of the reference."""
        energy, data = seen_by(self.model, self.coordinates)
        points = self.coordinates.z(self.reference[:, ::50].flatten(0, 1))
        return samplers.gradient_variance(energy, points, data, batch_size=BATCH)


def short(out: Path) -> dict[str, Comparison]:
    """The first look: a proof, two short runs, the worst rows and four panels."""
    certificate = RiemannThermostat.check()
    print(f"your sampler: {'proved' if certificate.exact else certificate.title}")
    answers = [certificate[topic].answer for topic in ("stationary", "claim")]
    print(f"  {RiemannThermostat.name}, for every metric S: {'; '.join(answers)}")
    demo = Demo(SHORT)
    full, _, against_full = demo.run(FULL_STEP, None, seed=1)
    mini, xi, against_mini = demo.run(MINI_STEP, BATCH, seed=2)
    print("the five coefficients that are furthest off:", worst_rows(demo.names, against_mini), sep="\n")
    pictured = demo.names, demo.reference, full["theta"], mini["theta"], demo.variances(), xi
    four_panels(out / "demo.png", *pictured, against_mini.bias)
    print(f"picture: {out / 'demo.png'}", MORE, sep="\n")
    return {"full": against_full, "mini": against_mini}


def whole(out: Path) -> dict[str, Comparison]:
    """All of it: the derivation, long runs, the table, the account of the bias, every marginal, exact chains."""
    show_sampler()
    demo = Demo(FULL)
    full, _, against_full = demo.run(FULL_STEP, None, seed=1)
    mini, xi, against_mini = demo.run(MINI_STEP, BATCH, seed=2)
    _, _, against_double = demo.run(MINI_STEP, 2 * BATCH, seed=3)
    exact, settings = tuned_run(demo.model, FULL.draws // 2, chains=64)
    against_exact = Comparison(exact.summary(), demo.true)
    print("settings of exact chains, by samplers.tune", settings, sep="\n")
    V = demo.variances()
    print("", table(demo.names, against_full, against_mini), sep="\n")
    print(f"reference: R-hat at most {demo.true['r_hat'].max():.3f}, ESS at least {demo.true['ess_bulk'].min():.0f}\n")
    print(account(against_full, against_mini, against_double, V=V, xi=xi, coordinates=demo.coordinates))
    print("", exact_line(against_exact, exact), sep="\n")
    picture(out / "marginals.png", demo.names, demo.reference, full["theta"], mini["theta"], V, xi)
    for name, draws in (("full", full), ("minibatch", mini)):
        draws.save(out / f"{name}.safetensors")
    print(f"\n{out}: marginals.png, full.safetensors, minibatch.safetensors (samplers.Draws.load reads them)")
    return {"full": against_full, "mini": against_mini, "double": against_double, "exact": against_exact}


def main(argv: list[str] | None = None) -> dict[str, Comparison]:
    """Run the demo; returns the comparisons by name, for the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the picture and the draws")
    parser.add_argument("--full", action="store_true", help="long runs and all that they show: three minutes")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    return whole(options.out) if options.full else short(options.out)


if __name__ == "__main__":
    main()
