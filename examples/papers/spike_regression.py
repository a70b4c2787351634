"""SGLD-SA on a regression with more predictors than data: Deng, Zhang, Liang & Lin (2019), Table 1 and Figure 2.

n = 100, p = 1000, three predictors matter; five data sets, where the paper has one. SGLD-SA averages the latents of its
spike-and-slab prior while it samples, EMVS (Rockova & George 2014) optimises them from the same start, SGLD has the
prior N(0, 1) and the true variance of the noise. "marginal" and "gibbs" are exact samplers given the sigma and delta at
which SGLD-SA ends. The paper's step sizes .001 k^(-1/3) are unstable until k is some hundred; the stable start begins
with k = 1000. Its 500,000 steps are --full; fewer have a larger gain, to forget the first latents as thoroughly.
"""

import math
from dataclasses import replace
from statistics import fmean

import torch
from spike_chains import DELTA, PAPER_STEPS, V1, A, B, DataSet, Means, P, averaging, coefficients, move, mse, predictors
from study import Experiment, Study
from torch import Tensor
from verdicts import Claim, Kind, part

import samplers
from samplers.schedules import Polynomial

N, NOISE = 100, 3.0  # data, variance of the noise
COLUMNS = [(1e-3, 0.4), (1e-3, 0.5), (1e-2, 0.4), (1e-2, 0.5)]  # v0, the variance of the spike, and first sigma
SPIKES = (1e-3, 1e-2)  # v0 of the columns
GRID = tuple(10 ** (k / 4 - 5) for k in range(17))  # v0 of the picture, 1e-5 to .1
PRINTED_MSES = (2.85, 2.93)  # the least and the greatest of the four columns of Table 1
OFFSETS = {"stable": 1000.0, "printed": 1.0}  # of the first step
PRECISIONS = (1.0, 10.0)  # of a ridge prior


def data_set(seed: int) -> DataSet:
    """Predictors of correlation .6^|i - j|, y = X beta + N(0, 3): 100 rows to learn from and 1000 to test on."""
    generator = torch.Generator().manual_seed(seed)
    beta = coefficients(generator)
    parts = []
    for rows in (N, 1000):
        X = predictors(rows, 0.6, generator)
        parts += [X, X[:, :3] @ beta + math.sqrt(NOISE) * torch.randn(rows, generator=generator)]
    return DataSet(beta, *parts)


def half_squares(scores: Tensor, y: Tensor) -> Tensor:
    """U of the recipes for a regression, which divide it by sigma^2."""
    return (y - scores).square() / 2


def half_squares_over_noise(scores: Tensor, y: Tensor) -> Tensor:
    """U of SGLD, which is told the variance."""
    return half_squares(scores, y) / NOISE


def errors(w: Tensor, data: DataSet) -> tuple[float, float]:
    """MAE and MSE of the predictions."""
    r = data.predictions(w) - data.test_y
    return float(r.abs().mean()), float(r.square().mean())


def emvs(data: DataSet, v0: float, sigma: float, iterations: int = 300) -> Tensor:
    """The mode by EM: each of w, rho, kappa, sigma and delta in turn is put at its optimum given the others.

    The order is left open by the paper, and decides which starts fail: here rho sees the first sigma.
    """
    X, y = data.X.double(), data.y.double()
    delta, kappa = DELTA, torch.full((P,), (1 / v0 + 1 / V1) / 2, dtype=X.dtype)
    for _ in range(iterations):
        w = posterior_mean(X, y, kappa)
        odds = math.log(delta / (1 - delta)) - math.log(V1 / v0) / 2
        rho = (odds + w**2 / (2 * sigma**2) * (1 / v0 - 1 / V1)).sigmoid()
        kappa = (1 - rho) / v0 + rho / V1
        sigma = math.sqrt(((y - X @ w).square().sum() + (kappa * w**2).sum() + 1) / (N + P + 1))
        delta = min(max(float(rho.sum() + A - 1) / (A + B + P - 2), 1e-6), 1 - 1e-6)
    return w


def posterior_mean(X: Tensor, y: Tensor, kappa: Tensor) -> Tensor:
    """(X'X + diag kappa)^{-1} X'y: of weights N(0, sigma^2/kappa) and noise N(0, sigma^2), whatever sigma is."""
    scaled = X / kappa
    return scaled.T @ torch.linalg.solve(X @ scaled.T + torch.eye(len(y), dtype=X.dtype), y)


def known_support(data: DataSet, v0: float) -> Tensor:
    """The exact posterior mean of the stated prior, told that the three are slabs and all others spikes."""
    kappa = torch.full((P,), 1 / v0, dtype=torch.float64)
    kappa[:3] = 1 / V1
    return posterior_mean(data.X.double(), data.y.double(), kappa)


def ridge(data: DataSet, precision: float) -> Tensor:
    """The exact posterior mean under N(0, 1/precision) and the true variance of the noise."""
    X, y = data.X, data.y
    return X.T @ torch.linalg.solve(X @ X.T + precision * NOISE * torch.eye(N), y)


# ---- the kinds of runs


def averaged(study: Study, start: str, sets: int, steps: int) -> dict:
    """SGLD-SA from the four columns: errors (columns, data sets, 2), the last latents, draws of the first data set."""
    data = [data_set(seed) for seed in range(sets)]
    means = move(
        samplers.SGLDSA,
        data,
        half_squares,
        [{"sigma0": sigma, **averaging(steps, v0)} for v0, sigma in COLUMNS],
        steps=steps,
        schedule=Polynomial(a=0.001, b=OFFSETS[start], gamma=1 / 3),
        folder=study.scratch(averaged, start=start, sets=sets, steps=steps),
        residuals=True,
        latents=("sigma", "delta"),
    )
    return errors_of(means, data) | means.latents


def given(study: Study, mode: str, latents: list[list[float]], sets: int, steps: int) -> dict:
    """ "marginal" or "gibbs" at v0, sigma and delta of each column."""
    data = [data_set(seed) for seed in range(sets)]
    means = move(
        samplers.catalogue[f"sgld-sa-{mode}"],
        data,
        half_squares,
        [{"v0": v0, "v1": V1, "sigma": sigma, "delta": delta} for v0, sigma, delta in latents],
        steps=steps,
        schedule=Polynomial(a=0.001, b=OFFSETS["stable"], gamma=1 / 3),
        folder=study.scratch(given, mode=mode, latents=latents, sets=sets, steps=steps),
    )
    return errors_of(means, data)


def plain(study: Study, sets: int, steps: int) -> dict:
    """SGLD under N(0, 1) and N(0, .1)."""
    data = [data_set(seed) for seed in range(sets)]
    means = move(
        samplers.SGLD,
        data,
        half_squares_over_noise,
        [{"weight_decay": precision / N} for precision in (1.0, 10.0)],
        steps=steps,
        schedule=Polynomial(a=0.001, b=OFFSETS["stable"], gamma=1 / 3),
        folder=study.scratch(plain, sets=sets, steps=steps),
    )
    return errors_of(means, data)


def errors_of(means: Means, data: list[DataSet]) -> dict:
    """The errors of the average weights, and the draws."""
    table = [[errors(w, d) for w, d in zip(column, data, strict=True)] for column in means.weights]
    return {"errors": table, "trace": means.trace}


def closed_forms(study: Study, sets: int) -> dict:
    """The errors of what needs no sampler, by name: (columns, data sets, 2)."""
    data = [data_set(seed) for seed in range(sets)]
    truth = [torch.cat([d.beta, torch.zeros(P - 3)]) for d in data]
    known = [torch.cat([torch.linalg.lstsq(d.X[:, :3], d.y).solution, torch.zeros(P - 3)]) for d in data]
    modes = [[emvs(d, *column) for d in data] for column in COLUMNS]
    weights = {
        "EMVS": modes,
        "known support": [[known_support(d, v0) for d in data] for v0 in SPIKES],
        "ridge": [[ridge(d, precision) for d in data] for precision in PRECISIONS],
        "least squares on the three": [known],
        "true weights": [truth],
    }
    table = {
        name: [[errors(w, d) for w, d in zip(column, data, strict=True)] for column in columns]
        for name, columns in weights.items()
    }
    return {"errors": table, "emvs": [column[0][:3].tolist() for column in modes]}


def floors(study: Study, sets: int) -> dict:
    """The MSE of the exact mean of the stated prior, told its support, by v0."""
    data = [data_set(seed) for seed in range(sets)]
    return {"mse": [fmean(errors(known_support(d, v0), d)[1] for d in data) for v0 in GRID]}


# ---- the claims


def row(columns: list) -> str:
    """MAE / MSE by column."""
    return "; ".join(f"{fmean(mae for mae, _ in column):.2f} / {mse(column):.3g}" for column in columns)


def claims(study: Study) -> list[Claim]:
    """Every method on the same data sets."""
    sets, steps = study.of_scale((2, 60), (5, 20_000), (5, 500_000))
    stable, printed = (study.result(averaged, start=start, sets=sets, steps=steps) for start in OFFSETS)
    latents = []
    for k in (0, 2):  # the columns of each v0, whose latents end alike
        sigma, delta = (fmean(sum(stable[name][k : k + 2], [])) for name in ("sigma", "delta"))
        latents.append([COLUMNS[k][0], round(sigma, 4), round(delta, 6)])
    exact = {
        mode: study.result(given, mode=mode, latents=latents, sets=sets, steps=steps) for mode in ("marginal", "gibbs")
    }
    sgld = study.result(plain, sets=sets, steps=steps)
    formulas = study.result(closed_forms, sets=sets)
    picture_of_floors(study, study.result(floors, sets=sets)["mse"], stable["errors"], formulas["errors"])
    picture(study, {"SGLD-SA": stable, "gibbs": exact["gibbs"], "SGLD": sgld}, formulas["emvs"][1])
    drafts = claims_of(stable, printed, exact, sgld, formulas)
    less = part(steps, PAPER_STEPS, "steps")
    return [replace(claim, reduced="" if claim.kind is Kind.CLOSED_FORM else less) for claim in drafts]


def claims_of(stable: dict, printed: dict, exact: dict, sgld: dict, formulas: dict) -> list[Claim]:
    """MAE / MSE in the order of the columns: v0 = .001 and .01, each with sigma = .4 and .5."""
    closed = formulas["errors"]
    level = [mse(column) for column in stable["errors"]]
    first = [mse(column) for column in printed["errors"]]
    em = [mse(column) for column in closed["EMVS"]]
    floor = mse(closed["true weights"][0])
    oracle = mse(closed["least squares on the three"][0])
    known = [mse(column) for column in closed["known support"]]
    ends = "; ".join(f"{fmean(column):.2f}" for column in stable["sigma"])
    thrown = "; ".join(f"{fmean(column):.3g}" for column in printed["sigma"])
    ridges = ", ".join(
        f"{mse(column):.3g} at {precision:g}" for precision, column in zip(PRECISIONS, closed["ridge"], strict=True)
    )
    modes = "; ".join(f"{name} {row(result['errors'])}" for name, result in exact.items())
    best_exact = [min(mse(result["errors"][k]) for result in exact.values()) for k in (0, 1)]
    return [
        Claim(
            "SGLD-SA hardly depends on v0 and the first sigma (steps stable from the start)",
            "1.32 / 2.85; 1.34 / 2.90; 1.34 / 2.92; 1.37 / 2.93",
            row(stable["errors"]),
            Kind.COMPARISON,
            max(level) < 1.5 * min(level),
        ),
        Claim(
            "... and predicts as printed",
            "MSE 2.85 to 2.93, one data set",
            f"MSE {min(level):.2f} to {max(level):.2f}; sigma ends at {ends}",
            Kind.FIGURE,
            max(level) < 1.05 * PRINTED_MSES[1],
            f"the true weights have {floor:.2f} on these data, and the printed figures are of one data set that is not "
            "given",
        ),
        Claim(
            "the stated prior has the noise floor in its reach: its exact posterior mean, told which three matter",
            "MSE 2.85 to 2.93",
            f"MSE {'; '.join(f'{x:.2f} (v0 = {v0:g})' for v0, x in zip(SPIKES, known, strict=True))}; "
            f"true weights {floor:.2f}, least squares on the three {oracle:.2f}",
            Kind.CLOSED_FORM,
            max(known) < 1.05 * oracle,
            "the prior is conjugate, so that sigma cancels from the posterior mean given the support: 997 spikes of "
            "variance v0 sigma^2 fit noise, whatever sampler moves them",
        ),
        Claim(
            "... with the printed steps .001 k^(-1/3) from k = 1",
            "2.85 to 2.93",
            row(printed["errors"]),
            Kind.COMPARISON,
            max(first) < 1.5 * min(first) and max(first) < 1.25 * max(level),
            f"h times the curvature is 13 at first: the residuals blow up, sigma after them, which ends at {thrown}; "
            "the paper's 500,000 steps are the time to come back",
        ),
        Claim(
            "EMVS fails from some starts",
            "1.43 / 3.19; 3.04 / 13.6; 3.40 / 18.8; 1.33 / 2.95",
            row(closed["EMVS"]),
            Kind.COMPARISON,
            max(em) > 2 * min(em),
            "which ones hangs on the order of the EM, that the paper leaves open: with sigma before rho none fails",
        ),
        Claim(
            "SGLD overfits",
            "4.98 / 42.6",
            row(sgld["errors"]),
            Kind.COMPARISON,
            mse(sgld["errors"][0]) > 3 * max(level),
            "900 directions are the prior's alone, and the average has not forgotten their random walk (here under "
            f"N(0, 1) and N(0, .1); the paper prints no prior): the exact posterior mean has {ridges}",
        ),
        Claim(
            "averaged latents cost nothing against the posterior at the same sigma and delta (not in the paper)",
            "-",
            f"{modes} (v0 = .001, .01)",
            Kind.COMPARISON,
            all(level[2 * k] < 1.05 * best_exact[k] for k in (0, 1)),
            "the averages tend to a law of their own, neither the marginal nor the joint posterior",
        ),
        covered(stable, exact["gibbs"]),
    ]


def covered(stable: dict, gibbs: dict) -> Claim:
    """Whether the truth is inside the posteriors of the picture, which are of the first data set."""
    beta = data_set(0).beta.tolist()
    intervals = [interval(stable, 1), interval(gibbs, 0)]
    ours, exact = (
        "; ".join(f"{b:.2f} in [{x:.2f}, {y:.2f}]" for b, x, y in zip(beta, low, high, strict=True))
        for low, high in intervals
    )
    low, high = intervals[0]
    return Claim(
        "SGLD-SA has sensible posteriors of the three coefficients (v0 = .001, sigma = .5)",
        "Figure 2a to c, no numbers",
        f"95 %: {ours}",
        Kind.COMPARISON,
        all(x < b < y for b, x, y in zip(beta, low, high, strict=True)),
        f"one data set; exact given sigma and delta (gibbs): {exact}",
    )


def interval(result: dict, column: int) -> tuple[list[float], list[float]]:
    """95 % of the draws of the three coefficients."""
    low, high = torch.quantile(torch.tensor(result["trace"])[:, column], torch.tensor([0.025, 0.975]), 0).tolist()
    return low, high


def picture(study: Study, results: dict[str, dict], modes: list[float]) -> None:
    """The posteriors of the three coefficients on the first data set, at v0 = .001 and sigma = .5."""
    beta = data_set(0).beta.tolist()
    with study.figure("posteriors", columns=3) as axes:
        for j, ax in enumerate(axes):
            for name, result in results.items():
                column = min(1, len(result["errors"]) - 1) if name == "SGLD-SA" else 0
                draws = torch.tensor(result["trace"])[:, column, j]
                ax.hist(draws.numpy(), 40, density=True, histtype="step", label=name)
            ax.axvline(modes[j], color="tab:red", ls=":", label="EMVS")
            ax.axvline(beta[j], color="k", label="truth")
            ax.set(xlabel=f"beta_{j + 1}", yticks=[], xlim=(-1.5, 4.5))
        axes[0].legend(fontsize=7)


def picture_of_floors(study: Study, known: list[float], columns: list, closed: dict[str, list]) -> None:
    """The MSE that the stated prior has at best, by v0, beside SGLD-SA, what is printed and the noise."""
    with study.figure("floor") as axes:
        axes.semilogx(GRID, known, label="exact mean, told the support")
        sides = dict(zip(COLUMNS, columns, strict=True))
        for sigma, marker in zip(dict.fromkeys(sigma for _, sigma in COLUMNS), "ov", strict=True):
            ends = [mse(sides[v0, sigma]) for v0 in SPIKES]
            axes.plot(SPIKES, ends, f"C1{marker}", label=f"SGLD-SA, first sigma {sigma:g}")
        axes.axhspan(*PRINTED_MSES, color="C2", alpha=0.4, label="printed")
        for name, style in (("least squares on the three", "k--"), ("true weights", "k:")):
            axes.plot(GRID[:: len(GRID) - 1], [mse(closed[name][0])] * 2, style, label=name)
        axes.set(xlabel="v0", ylabel="test MSE")
        axes.legend(fontsize=7)


EXPERIMENT = Experiment(
    "spike-regression",
    "SGLD-SA (Deng, Zhang, Liang & Lin 2019), Table 1: p = 1000, n = 100; test MAE / MSE",
    claims,
    seeds="5 data sets",
)
