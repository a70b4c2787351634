"""UCI regression: Franzese, Candelieri, Filippone & Michiardi (2021), Tables 1 and 2.

A layer of 50 ReLU, batches of 64, the splits of Hernandez-Lobato & Adams (2015): the first ten, of protein the five
that there are. All splits of a set are trained at once, a member of one Ensemble each. The baseline is Adam at lr .01.
i-SGD and VSGD start from it and so do the others here, but for SGLD: steps of 1e-6 falling to 1e-8 from scratch, as in
the paper. i-SGD has a lambda for each layer and T = .01, VSGD the step 1/lambda of the whole network and no noise.

Not printed are prior and noise: taken are N(0, 1) for each weight and the mean square residual of a sixth of the
training data that a first baseline has not seen, which also chooses lr of SGHMC and SWAG. Two things are called mnll:
that of the mixture of the draws with the noise, and, as in the paper for the samplers, that of a normal of the
variance of the outputs alone; the paper's baseline has some fixed variance. All are in the units of y.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

import torch
from isgd_splits import Batch, Splits, batches_of, ensemble_of, loss, predicted, splits_of, train
from study import Experiment, Study, spread
from torch import Tensor
from verdicts import Claim, Kind, part

import samplers
from recipe.errors import RecipeError
from samplers.schedules import Polynomial
from samplers.scores import log_predictive_density

SETS = ("wine", "protein", "naval", "kin8nm", "power", "boston")
METHODS = ("baseline", "i-SGD", "VSGD", "SGHMC", "SGHMC T", "SGLD", "SWAG", "drop")
PAPER = {  # rmse and mnll
    "baseline": ((0.641, 4.733, 0.001, 0.080, 4.354, 3.705), (1.182, 3.964, 0.920, 0.924, 3.071, 5.421)),
    "i-SGD": ((0.635, 4.699, 0.001, 0.079, 4.320, 3.703), (1.129, 4.371, -2.466, -0.460, 3.122, 9.799)),
    "VSGD": ((0.635, 4.699, 0.001, 0.079, 4.325, 3.588), (1.128, 4.371, -2.466, -0.480, 3.088, 8.413)),
    "SGHMC": ((0.628, 4.712, 0.000, 0.076, 4.310, 3.659), (1.041, 4.142, -2.763, -0.798, 2.924, 3.097)),
    "SGHMC T": ((0.628, 4.684, 0.000, 0.076, 4.326, 3.692), (1.104, 4.191, -2.966, -0.756, 3.116, 9.826)),
    "SGLD": ((0.759, 5.687, 0.007, 0.171, 11.753, 9.602), (1.546, 5.604, -1.751, 5.140, 8.429, 30.386)),
    "drop": ((0.637, 4.968, 0.003, 0.139, 4.531, 3.803), (1.065, 4.218, -2.322, -0.086, 2.941, 3.989)),
}
LR = (0.1, 0.03, 0.01, 0.003, 0.001)  # tried; some splits of naval, 20 times as exact as others, want the smallest
SPREAD = (0.05, 0.05, 0.001, 0.002, 0.13, 1.19)  # of the baseline's rmse over splits, but at least the last digit


# ---- the methods


def baseline(study: Study, name: str, splits: int, steps: int, held_back: bool) -> dict:
    """Adam at lr .01; its weights, predictions, and the mean square residual of each split, standardised."""
    data = splits_of(study, name, splits)
    data = data.held_back() if held_back else data
    ensemble = ensemble_of(data)
    optimizer = torch.optim.Adam(ensemble.parameters(), lr=0.01)
    train(ensemble, optimizer, batches_of(data, seed=0), torch.ones(splits, 1), steps)
    residual = (predicted(ensemble, data) - data.y[data.test]) / data.scale[1]
    return {
        "weights": {key: p.tolist() for key, p in ensemble.named_parameters()},
        "variance": residual.square().mean(1).tolist(),
    }


def run(
    study: Study,
    name: str,
    method: str,
    splits: int,
    adam: int,
    draws: int,
    every: int,
    held_back: bool = False,
    lr: float = 0.0,
) -> dict:
    """Scores of each split: rmse, the two mnll, and which of the splits have failed."""
    data = splits_of(study, name, splits)
    variance = study.result(baseline, name=name, splits=splits, steps=adam, held_back=True)["variance"]
    start = study.result(baseline, name=name, splits=splits, steps=adam, held_back=held_back)["weights"]
    data = data.held_back() if held_back else data
    noise = torch.tensor(variance)[:, None].clamp(min=1e-6)
    ensemble = ensemble_of(data, None if method == "SGLD" else start)
    outputs: list[Tensor] = []
    batches = batches_of(data, seed=1)
    if method == "baseline":
        outputs.append(predicted(ensemble, data))
    elif method == "drop":
        dropout(ensemble, data, batches, noise, adam, draws, outputs)
    elif method == "SWAG":
        swag(ensemble, data, batches, noise, lr, draws, every, outputs)
    else:
        try:
            sampled(ensemble, method, data, batches, noise, lr, draws, every, outputs)
        except RecipeError as error:  # the gradients of a split are no longer finite
            study.log(f"  {name}, {method}: {error}")
            return {"rmse": [], "mnll": [], "mnll of outputs": [], "failed": splits}
    return scores(torch.stack(outputs), data, noise)


def sampled(
    ensemble: samplers.Ensemble,
    method: str,
    data: Splits,
    batches: Iterator[Batch],
    noise: Tensor,
    lr: float,
    draws: int,
    every: int,
    outputs: list[Tensor],
) -> None:
    """Predictions of one state in `every`, after a fifth as many steps as burn-in."""
    rows, burn_in = data.train.shape[1], draws * every // 5
    steps = burn_in + draws * every
    decay = Polynomial(a=1e-6 * (steps / 4329) ** 0.55, b=steps / 4329, gamma=0.55)  # from 1e-6 to 1e-8
    common = {"num_data": rows, "weight_decay": 1 / rows, "temperature": 0.01 if method in ("i-SGD", "SGHMC T") else 1}
    optimizer: torch.optim.Optimizer
    match method:
        case "i-SGD":
            layers = [{"params": list(layer.parameters())} for layer in ensemble.network.children()]
            optimizer = samplers.Optimizer(layers, "isgd", step_size=1.0, warmup_steps=burn_in // 2, **common)
        case "VSGD":
            step = 1 / noise_of_gradients(ensemble, batches, noise, rows)
            optimizer = torch.optim.SGD(ensemble.parameters(), lr=rows * step, weight_decay=1 / rows)
        case "SGLD":
            optimizer = samplers.Optimizer(ensemble.parameters(), "sgld", step_size=1e-6, **common)
        case _:
            optimizer = samplers.Optimizer(ensemble.parameters(), "sghmc", lr=lr * float(noise.mean()), **common)

    def after(step: int) -> None:
        if method == "SGLD":
            optimizer.param_groups[0]["step_size"] = decay(step + 1)
        if step >= burn_in and (step + 1) % every == 0:
            outputs.append(predicted(ensemble, data))

    train(ensemble, optimizer, batches, 1 / noise, steps, after)


def noise_of_gradients(ensemble: samplers.Ensemble, batches: Iterator[Batch], noise: Tensor, rows: int) -> float:
    """lambda of the whole network, tr V_g/2 of the gradient of U, the mean over splits, from 200 batches."""
    first, second = 0.0, 0.0
    for _ in range(200):
        x, y = next(batches)
        ensemble.zero_grad()
        ensemble.loss(loss, x, y, (1 / noise).expand_as(y)).backward()
        gradient = torch.cat([rows * p.grad.flatten(1) for p in ensemble.parameters()], 1)
        first, second = first + gradient / 200, second + gradient.square() / 200
    ensemble.zero_grad()
    return float((second - first**2).sum(1).mean() / 2)


def swag(
    ensemble: samplers.Ensemble,
    data: Splits,
    batches: Iterator[Batch],
    noise: Tensor,
    lr: float,
    draws: int,
    every: int,
    outputs: list[Tensor],
) -> None:
    """SGD with momentum from the baseline, a Gaussian of rank 20 fitted to its states, draws of that."""
    fit = samplers.SWAG(rank=20)
    rows = data.train.shape[1]
    parameters = dict(ensemble.named_parameters())
    rate = lr * float(noise.mean())
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=rate, momentum=0.9, weight_decay=1 / rows)

    def after(step: int) -> None:
        if (step + 1) % every == 0:
            fit.add(parameters)

    train(ensemble, optimizer, batches, 1 / noise, draws * every, after)
    samples = fit.sample(draws, seed=0)
    for k in range(draws):
        with torch.no_grad():
            for key, p in parameters.items():
                p.copy_(samples[key][k])
        outputs.append(predicted(ensemble, data))


def dropout(
    ensemble: samplers.Ensemble,
    data: Splits,
    batches: Iterator[Batch],
    noise: Tensor,
    steps: int,
    draws: int,
    outputs: list[Tensor],
) -> None:
    """Adam with units dropped, and predictions with others dropped."""
    optimizer = torch.optim.Adam(ensemble.parameters(), lr=0.01)
    train(ensemble, optimizer, batches, torch.ones_like(noise), steps, drop=True)
    generator = torch.Generator().manual_seed(1)
    outputs += [predicted(ensemble, data, generator) for _ in range(draws)]


def scores(outputs: Tensor, data: Splits, noise: Tensor) -> dict:
    """Of the draws `(draws, splits, rows)`; a split whose predictions are not finite has failed."""
    y, (_, sd) = data.y[data.test], data.scale
    variance = noise.double() * sd**2
    result: dict = {"rmse": [], "mnll": [], "mnll of outputs": [], "failed": 0}
    for k in range(len(y)):
        f = outputs[:, k, :, None]
        if not f.isfinite().all() or f.abs().max() > 1e6 * y.abs().max():
            result["failed"] += 1
            continue
        result["rmse"].append(float((f.mean(0)[:, 0] - y[k]).square().mean().sqrt()))
        density = log_predictive_density(f, y[k][:, None], noise_variance=float(variance[k]))
        result["mnll"].append(float(-density.mean()))
        of_outputs = f[..., 0].var(0, correction=0).clamp(min=1e-12)
        normal = (2 * math.pi * of_outputs).log() / 2 + (y[k] - f.mean(0)[:, 0]).square() / (2 * of_outputs)
        result["mnll of outputs"].append(float(normal.mean()) if len(f) > 1 else math.nan)
    return result


# ---- claims


def claims(study: Study) -> list[Claim]:
    """Of both tables."""
    sets = study.of_scale(("boston",), SETS, SETS)
    splits, adam, draws, every = study.of_scale((2, 200, 5, 10), (10, 5000, 100, 50), (10, 20_000, 100, 1000))
    table: dict[str, dict[str, dict]] = {}
    for name in sets:
        common = {"name": name, "splits": min(splits, 5) if name == "protein" else splits, "adam": adam}
        table[name] = {}
        start = {"name": name, "splits": common["splits"], "steps": adam}
        study.results(baseline, [start | {"held_back": held_back} for held_back in (True, False)])
        for method in METHODS:
            length = {"draws": draws, "every": every}
            lr = chosen(study, method, common | {"draws": max(5, draws // 5), "every": every})
            table[name][method] = study.result(run, method=method, **common, **length, **lr)
    picture(study, table)
    drafts = [*rows_of(table), rmse_alike(table), sgld_behind(table), mnll_improves(table), isgd_is_vsgd(table)]
    less = part(adam + draws * every, 120_000, "steps")
    return [replace(claim, seeds=splits, reduced=less) for claim in drafts]


def chosen(study: Study, method: str, settings: dict) -> dict:
    """lr over the variance of the noise, by the mnll of the data held back."""
    if method not in ("SGHMC", "SGHMC T", "SWAG"):
        return {}

    def held_back(lr: float) -> dict:
        return {"method": method, "held_back": True, "lr": lr} | settings

    def mnll(result: dict) -> float:
        return math.inf if result["failed"] else fmean(result["mnll"])

    return {"lr": study.best(LR, run, held_back, mnll)}


def mean(results: dict, score: str) -> float:
    """Over the splits; not a number where all have failed."""
    return fmean(results[score]) if results[score] else math.nan


def rows_of(table: dict) -> list[Claim]:
    """The two tables, a set a row: rmse, and the mnll of the paper's baseline and samplers beside ours."""
    claims = []
    for name, results in table.items():
        k = SETS.index(name)
        ours = [
            f"{m} {spread(r['rmse'], 3) if r['rmse'] else 'all failed'}, {mean(r, 'mnll'):.2f}, "
            f"{mean(r, 'mnll of outputs'):.1f}" + (f" F{r['failed']}" if r["failed"] else "")
            for m, r in results.items()
        ]
        paper = [f"{m} {rmse[k]:.3f}, {mnll[k]:.2f}" for m, (rmse, mnll) in PAPER.items()]
        gap = mean(results["i-SGD"], "rmse") - PAPER["i-SGD"][0][k]
        words = f"{name}: rmse of i-SGD; of each method rmse, mnll with the noise, mnll of the outputs' variance"
        is_near = abs(gap) <= SPREAD[k]
        claims.append(Claim(words, "; ".join(paper), "; ".join(ours), Kind.FIGURE, is_near, why_not(gap, SPREAD[k])))
    return claims


def why_not(gap: float, deviation: float) -> str:
    """Why the rmse of i-SGD is not that of the paper."""
    if gap > deviation:
        return "higher: Adam, from where i-SGD hardly moves, is without a prior here; fewer steps"
    return "lower, and so is the baseline, from where it hardly moves" if gap < -deviation else ""


def ratio(table: dict, method: str, to: str, score: str = "rmse") -> list[float]:
    """By set."""
    return [mean(r[method], score) / mean(r[to], score) for r in table.values()]


def rmse_alike(table: dict) -> Claim:
    """Over the baseline's."""
    methods = ("i-SGD", "VSGD", "SGHMC", "SGHMC T")
    ratios = {m: ratio(table, m, "baseline") for m in methods}
    return Claim(
        "rmse is alike for all but SGLD",
        "Table 1: within 7 %",
        "; ".join(f"{m} {min(r):.2f} to {max(r):.2f} of the baseline" for m, r in ratios.items()),
        Kind.COMPARISON,
        all(0.85 < x < 1.07 for r in ratios.values() for x in r),
        "where it is less, averages are better than the last state of Adam at a constant lr",
    )


def sgld_behind(table: dict) -> Claim:
    """SGLD as printed."""
    ratios = ratio(table, "SGLD", "baseline")
    return Claim(
        "SGLD is far behind",
        "1.2 to 7 times the rmse",
        f"{', '.join(f'{x:.1f}' for x in ratios)} times that of the baseline",
        Kind.COMPARISON,
        min(ratios) > 1.15,
        "1e-6 to 1e-8 on the sum over the data is too short to arrive: the steps, and not the posterior, are behind",
    )


def mnll_improves(table: dict) -> Claim:
    """With the same noise variance on both sides."""

    def gaps(method: str) -> list[float]:
        return [mean(r[method], "mnll") - mean(r["baseline"], "mnll") for r in table.values()]

    methods = ("i-SGD", "SGHMC", "SGHMC T", "SWAG", "drop")
    better = {m: sum(gap < 0 for gap in gaps(m)) for m in methods}
    return Claim(
        "averaging improves mnll",
        "Table 2: wine, naval and kin8nm, of i-SGD",
        "; ".join(f"{m} less by {', '.join(f'{-gap:.2f}' for gap in gaps(m))}" for m in methods),
        Kind.COMPARISON,
        min(better["i-SGD"], better["SGHMC"]) >= max(1, len(table) - 1),
        "here all have the same noise variance; in the paper the baseline has a fixed one, and the samplers the "
        "variance of their outputs, which leaves the noise out: not comparable, and in places below any noise",
    )


def isgd_is_vsgd(table: dict) -> Claim:
    """Rows that agree to three digits."""
    rmse = ratio(table, "i-SGD", "VSGD")
    return Claim(
        "i-SGD and VSGD are alike",
        "rmse the same to three digits in four sets",
        f"rmse of i-SGD over that of VSGD: {', '.join(f'{x:.3f}' for x in rmse)}",
        Kind.COMPARISON,
        all(abs(x - 1) < 0.02 for x in rmse),
        "at T = .01 i-SGD injects next to nothing, and its steps are as short: both stay near the baseline",
    )


def picture(study: Study, table: dict) -> None:
    """rmse over that of the baseline, by set."""
    with study.figure("rmse") as axes:
        for method in METHODS[1:]:
            axes.plot(list(table), ratio(table, method, "baseline"), "o", label=method)
        axes.axhline(1, color="black", linestyle="--")
        axes.set(ylabel="rmse over that of the baseline", yscale="log")
        axes.legend(fontsize=7)


EXPERIMENT = Experiment(
    "isgd-uci",
    "i-SGD (Franzese et al. 2021), Tables 1 and 2: UCI regression",
    claims,
    files=[f"uci-regression/{name}.npz" for name in SETS],
    seeds="10 splits, 5 splits of protein",
)
