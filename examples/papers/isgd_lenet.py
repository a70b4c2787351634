"""LeNet-5 on MNIST, and what it says of letters: Franzese et al. (2021), Table 3, Figure 1.

Batches of 128. The baseline is Adam at lr .01. From it start i-SGD, a lambda for each layer, at T = 1 and .01, SGHMC at
T = 1 and .01, SGLD with an lr that falls by 100, VSGD with the step 1/lambda of the whole network, and SWAG; MC dropout
is SGD at lr .005 and momentum .5 with half of the hidden units dropped, from scratch. The prior is N(0, 1), which is
not printed; lr of SGHMC, SGLD and SWAG is chosen on the last sixth of the training data, which the networks of that
choice have not seen. Digits and letters (notMNIST, a sample of 10,000 of it) are on one scale, from 0 to 1.

Reduced: 3000 steps of Adam instead of 20,000, 30 draws that are 100 steps apart instead of 10,000. The scores are
accuracy and mean NLL, mean predictive entropy on digits (H0) and letters (H1), and the area under the curve of telling
letters from digits by the entropy.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from datasets import IDX_FILES, SOURCES, Data, read_idx, read_mnist, stored
from networks import layers_of, lenet
from study import Experiment, Study, spread
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from training import train
from verdicts import Claim, Kind, part

import samplers
from recipe.errors import RecipeError
from samplers.schedules import Polynomial
from samplers.scores import accuracy, expected_calibration_error, negative_log_likelihood, roc_auc

BATCH = 128
LETTERS = f"notmnist/{IDX_FILES[2]}"  # their images
WHY = {  # an accuracy is another one
    "VSGD": "its step is so short that it stays at the baseline",
    "drop": "fewer steps than in the paper, at a small lr, from scratch",
}
FEW = "fewer steps than in the paper"
COLUMNS = {"nll": "NLL", "H0": "H0", "H1": "H1", "ece": "ECE", "auroc": "AUROC"}
METHODS = ("baseline", "i-SGD", "i-SGD T", "SGHMC", "SGHMC T", "SGLD", "VSGD", "SWAG", "drop")
CHOSEN = {"SGHMC": (0.03, 0.01), "SGHMC T": (0.03, 0.01), "SGLD": (0.1, 0.01), "SWAG": (0.03, 0.01)}  # lr, tried
PAPER = {  # accuracy %, mean NLL, H0, H1
    "baseline": (98.87, 0.0353, 0.0353, 0.0019),
    "i-SGD": (99.16, 0.0264, 0.0368, 0.4558),
    "i-SGD T": (99.16, 0.0256, 0.0289, 0.0284),
    "SGHMC": (99.31, 0.0268, 0.0593, 1.0369),
    "SGHMC T": (99.37, 0.0232, 0.0434, 0.4623),
    "SGLD": (99.27, 0.0280, 0.0556, 1.3032),
    "VSGD": (99.27, 0.0225, 0.0274, 0.0414),
    "SWAG": (99.17, 0.0309, 0.0675, 0.3953),
    "drop": (99.13, 0.0363, 0.0960, 0.5507),
}


def data_of(study: Study, rows: int | None, held_back: bool) -> tuple[Data, Data, Tensor]:
    """Training data, test data (or those held back), and letters; `(rows, 1, 28, 28)`."""
    folder = study.data or Path()
    (x, y), (test_x, test_y), _ = read_mnist(folder / "mnist")
    letters = read_idx(stored(folder / LETTERS) or folder / LETTERS, 3, SOURCES["notmnist"]) / 255
    x, y, test_x, test_y, letters = x[:rows], y[:rows], test_x[:rows], test_y[:rows], letters[:rows]
    if held_back:
        last = len(x) // 6
        x, test_x, y, test_y = x[:-last], x[-last:], y[:-last], y[-last:]
    return (x[:, None], y), (test_x[:, None], test_y), letters[:, None]


# ---- training


def adam(study: Study, data: Data, seed: int, steps: int, **settings: Any) -> Module:
    """The baseline; where it has been trained with these settings it is read."""
    network = lenet(seed=seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    batches = samplers.Minibatches(data, min(BATCH, len(data[0])), seed=seed)
    settings = {"seed": seed, "steps": steps, **settings}
    train(
        network,
        optimizer,
        batches,
        epochs=math.ceil(steps / len(batches)),
        lr=lambda epoch: 0.01,
        draw=lambda step: None,
        folder=study.scratch(adam, **settings),
        settings=settings,
    )
    return network


def optimizer_of(
    method: str, network: Module, data: Data, steps: int, burn_in: int, lr: float, seed: int
) -> torch.optim.Optimizer:
    """What moves the weights from the baseline."""
    rows = len(data[0])
    prior = 1 / rows
    common = {"num_data": rows, "weight_decay": prior, "temperature": 0.01 if method.endswith(" T") else 1.0}
    match method.removesuffix(" T"):
        case "i-SGD":
            layers = layers_of(network)
            return samplers.Optimizer(layers, "isgd", lr=rows, warmup_steps=burn_in // 2, seed=seed, **common)
        case "VSGD":
            rate = rows / noise_of_gradients(network, data, seed)
            return torch.optim.SGD(network.parameters(), lr=rate, weight_decay=prior)
        case "SWAG":
            return torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9, weight_decay=prior)
        case "drop":
            return torch.optim.SGD(network.parameters(), lr=0.005, momentum=0.5, weight_decay=prior)
    return samplers.Optimizer(network.parameters(), method.removesuffix(" T").lower(), lr=lr, seed=seed, **common)


def noise_of_gradients(network: Module, data: Data, seed: int, batches: int = 50) -> float:
    """lambda of the whole network: tr V_g/2 of the gradient of U."""
    first, second = 0.0, 0.0
    size = min(BATCH, len(data[0]))
    source = samplers.Minibatches(data, size, seed=seed + 1, replacement=True)
    for x, y in islice(source, batches):
        network.zero_grad()
        cross_entropy(network(x), y).backward()
        gradient = torch.cat([p.grad.flatten() for p in network.parameters()]) * len(data[0])
        first, second = first + gradient, second + gradient.square()
    network.zero_grad()
    number = min(batches, len(source))
    return float((second / number - (first / number) ** 2).sum() / 2)


def run(
    study: Study,
    method: str,
    seed: int,
    steps: int,
    draws: int,
    every: int,
    rows: int | None = None,
    held_back: bool = False,
    lr: float = 0.0,
) -> dict:
    """The scores of the averaged predictions."""
    data, test, letters = data_of(study, rows, held_back)
    settings = dict(
        method=method, seed=seed, steps=steps, draws=draws, every=every, rows=rows, held_back=held_back, lr=lr
    )
    digits, unknown = samplers.Predictive(), samplers.Predictive()
    burn_in = draws * every // 5
    network = (
        lenet(seed=seed, dropout=0.5)
        if method == "drop"
        else adam(study, data, seed, steps, rows=rows, held_back=held_back)
    )

    @torch.no_grad()
    def add() -> None:
        digits.add(network(test[0]))
        unknown.add(network(letters))

    if method == "baseline":
        add()
        return scores(digits, unknown, test[1])
    total = steps if method == "drop" else burn_in + draws * every
    optimizer = optimizer_of(method, network, data, total, burn_in, lr, seed)
    decay = Polynomial(a=lr * (total / 4329) ** 0.55, b=total / 4329, gamma=0.55) if method == "SGLD" else None
    swag = samplers.SWAG(rank=20)

    def draw(step: int) -> None:
        if method == "drop" or step <= burn_in or (step - burn_in) % every or digits.draws + swag.count == draws:
            return
        swag.add(dict(network.named_parameters())) if method == "SWAG" else add()

    try:
        walk(study, network, optimizer, data, total, decay, draw, settings, digits=digits, letters=unknown, swag=swag)
    except RecipeError as error:  # gradients that are no longer finite
        study.log(f"  {method}: {error}")
        return dict.fromkeys(("accuracy", "nll", "ece", "H0", "H1", "auroc"), math.nan) | {"draws": 0}
    if method == "SWAG":
        samples = swag.sample(draws, seed=seed)
        for k in range(draws):
            with torch.no_grad():
                for name, p in network.named_parameters():
                    p.copy_(samples[name][k])
            add()
    for _ in range(draws if method == "drop" else 0):  # the network is as in training: others are dropped each time
        add()
    return scores(digits, unknown, test[1])


def walk(
    study: Study,
    network: Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    steps: int,
    decay: Callable[[int], float] | None,
    draw: Callable[[int], None],
    settings: dict,
    **parts: Any,
) -> None:
    """About so many steps, in whole epochs."""
    batches = samplers.Minibatches(data, min(BATCH, len(data[0])), seed=settings["seed"] + 100)
    constant = optimizer.param_groups[0]["lr"]

    def rate(step: int) -> float:
        return decay(step) if decay else constant

    def after(step: int) -> None:
        draw(step)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)

    train(
        network,
        optimizer,
        batches,
        epochs=math.ceil(steps / len(batches)),
        lr=lambda epoch: rate(epoch * len(batches)),
        draw=after,
        folder=study.scratch(run, **settings),
        settings=settings,
        **parts,
    )


def scores(digits: samplers.Predictive, letters: samplers.Predictive, labels: Tensor) -> dict:
    """Of the averages."""
    p = digits.probabilities
    return {
        "accuracy": accuracy(p, labels),
        "nll": negative_log_likelihood(p, labels),
        "ece": expected_calibration_error(p, labels),
        "H0": float(digits.entropy.mean()),
        "H1": float(letters.entropy.mean()),
        "auroc": roc_auc(digits.entropy, letters.entropy),
        "draws": digits.draws,
    }


# ---- claims


def claims(study: Study) -> list[Claim]:
    """Of Table 3 and Figure 1, a row of scores for each method first."""
    seeds, steps, draws, every, rows = study.of_scale(
        ((0,), 20, 3, 5, 300), ((0, 1, 2), 3000, 30, 100, None), ((0, 1, 2), 20_000, 30, 10_000, None)
    )
    size = {"steps": steps, "draws": draws, "every": every, "rows": rows}
    table = {}
    for method in METHODS:
        lr = chosen(study, method, size | {"draws": max(3, draws // 5)})
        table[method] = study.results(run, [{"method": method, "seed": seed} | size | lr for seed in seeds])
    picture(study, table)
    drafts = [row(name, results, PAPER[name], COLUMNS, why=WHY.get(name, FEW)) for name, results in table.items()]
    drafts += claims_of(table)
    less = part(steps + draws * every, 320_000, "steps")
    return [replace(claim, seeds=len(seeds), reduced=less) for claim in drafts]


def chosen(study: Study, method: str, settings: dict) -> dict:
    """lr, by the NLL of the data held back."""
    if method not in CHOSEN:
        return {}

    def held_back(lr: float) -> dict:
        return {"method": method, "seed": 0, "held_back": True, "lr": lr} | settings

    return {"lr": study.best(CHOSEN[method], run, held_back, itemgetter("nll"))}


def mean(results: list[dict], score: str) -> float:
    """Over the seeds."""
    return fmean(r[score] for r in results)


def order(table: dict, score: str, methods: tuple[str, ...]) -> bool | None:
    """Whether a score rises from each method to the next: beyond two standard errors of the seeds, paired."""
    parts = []
    for one, other in pairwise(methods):
        gaps = [b[score] - a[score] for a, b in zip(table[one], table[other], strict=True)]
        error = stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        parts.append(None if len(gaps) == 1 or abs(fmean(gaps)) < 2 * error else fmean(gaps) > 0)
    return weakest(parts)


def weakest(parts: list[bool | None]) -> bool | None:
    """Of a claim that has several parts."""
    return max(parts, key=[True, None, False].index)


def row(
    name: str,
    results: list[dict],
    printed: tuple[float, ...],
    columns: dict[str, str],
    near: float = 0.5,
    why: str = "",
) -> Claim:
    """The accuracy, and scores in the order of the paper, those after a semicolon not printed there.

    An accuracy within `near` per cent of the printed one is the verdict; `why` it is not.
    """
    known = len(printed) - 1

    def listed(cells: list[str]) -> str:
        return "; ".join(", ".join(part) for part in (cells[:known], cells[known:]) if part)

    percent = [100 * r["accuracy"] for r in results]
    is_near = abs(fmean(percent) - printed[0]) < near
    return Claim(
        f"{name}: accuracy, {listed([*columns.values()])}",
        f"{printed[0]:.2f} %, {listed([f'{x:.3f}' for x in printed[1:]])}",
        f"{spread(percent)} %, {listed([spread([r[column] for r in results], 3) for column in columns])}",
        Kind.FIGURE,
        is_near,
        "" if is_near else why,
    )


def claims_of(table: dict) -> list[Claim]:
    """The orders that the paper sees in its table."""

    def of(score: str, methods: tuple[str, ...]) -> str:
        return ", ".join(f"{m} {mean(table[m], score):.3f}" for m in methods)

    hot = ("baseline", "SGHMC T", "SGHMC")
    cold = ("baseline", "VSGD", "i-SGD")
    base = table["baseline"]
    return [
        Claim(
            "averages over samples are more uncertain of letters, the more so at T = 1: H1 rises",
            "Table 3: .002, .46, 1.04",
            of("H1", hot),
            Kind.COMPARISON,
            order(table, "H1", hot),
            "among averages it rises with T; one network of so few steps is as uncertain as they are, of digits too: "
            f"H0 {of('H0', hot)}",
        ),
        Claim(
            "... and tell them from digits better",
            "Figure 1",
            of("auroc", hot),
            Kind.COMPARISON,
            order(table, "auroc", hot),
        ),
        Claim(
            "i-SGD beats VSGD and the baseline on letters",
            "Table 3, Figure 1",
            f"AUROC {of('auroc', cold)}; H1 {of('H1', cold)}",
            Kind.COMPARISON,
            weakest([order(table, score, cold) for score in ("auroc", "H1")]),
            "their steps, 1/lambda, are so short that weights hardly change",
        ),
        Claim(
            "averaging improves NLL on digits: i-SGD, SGHMC",
            "Table 3: .035 to .026, .027",
            of("nll", ("baseline", "i-SGD", "SGHMC")),
            Kind.COMPARISON,
            max(mean(table[m], "nll") for m in ("i-SGD", "SGHMC")) < mean(base, "nll"),
        ),
        Claim(
            "the baseline is more certain of letters than of digits",
            "Table 3: H1 = .002 < H0 = .035",
            f"H1 {mean(base, 'H1'):.3f}, H0 {mean(base, 'H0'):.3f}",
            Kind.COMPARISON,
            mean(base, "H1") < mean(base, "H0"),
            "on one scale it is not; pixels from 0 to 255 for one of the two would give what is printed",
        ),
    ]


def picture(study: Study, table: dict) -> None:
    """H1 beside the area under the curve."""
    with study.figure("letters") as axes:
        for method, results in table.items():
            axes.plot([r["H1"] for r in results], [r["auroc"] for r in results], "o", label=method)
        axes.set(xlabel="mean entropy on letters, nats", ylabel="area under the curve, letters against digits")
        axes.legend(fontsize=7)


EXPERIMENT = Experiment(
    "isgd-lenet",
    "i-SGD (Franzese et al. 2021), Table 3, Figure 1: LeNet-5 on MNIST and letters",
    claims,
    files=[*(f"mnist/{name}" for name in IDX_FILES), LETTERS],
    seeds="3 seeds",
)
