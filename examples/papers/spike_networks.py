"""SGHMC-SA on convolutional networks: Deng, Zhang, Liang & Lin (2019), Table 2 without augmentation, and Figure 3.

Two convolutions of 5 x 5, pooled by 2, a hidden layer of 200, 10 classes; N(0, 1) for weights, flat for biases; the
spike-and-slab prior of SGHMC-SA is on the first full layer alone, v0 = .001, v1 = 1, sigma = .1. Batches of 1000, steps
h_k of the order of k^(-1/5), momentum .9, temperature .01, the printed gain .1 (k + 1000)^(-3/4), all as far as
printed; the first lr is chosen by the error on the last sixth of the training data. Vanilla and Dropout are Adam with
lr .001. Predictions of the samplers are averaged over a draw from each epoch of the last three fifths of the run.

kappa starts at 5e-4, as in the code that the authors published; a row of its own, the control, starts it at
(1/v0 + 1/v1)/2 = 500. The README of that code suggests that sparsity and sigma be fixed for networks: a row of its own
holds sigma and delta where they start.

Whole, with a padding of 2, the network has 681,506 weights, as the authors' code has; reduced are its width and the
run, and Fashion-MNIST is left out. Figure 3 is the accuracy under one step against the network's own label,
x - zeta sign(grad log max P(y|x)), clipped to [0, 1]; where predictions are an average, P is that average.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
from datasets import IDX_FILES, SOURCES, Data, read_mnist
from study import Experiment, Study, spread
from torch import Tensor
from torch.func import functional_call
from torch.nn import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential, Unflatten
from training import train
from verdicts import Claim, Kind, rises

import samplers
from samplers.scores import accuracy, paired

MEAN, SD = 0.1307, 0.3081  # of the pixels, for both sets
MOMENTUM, TEMPERATURE, BATCH = 0.9, 0.01, 1000
BURN_IN = 0.4  # of the epochs
ZETAS = (0.1, 0.2, 0.3, 0.4, 0.5)
HELD, CRUSHED = "SGHMC-SA, sigma and delta held", "SGHMC-SA, kappa from 500"
SPIKED = ("SGHMC-SA", HELD, CRUSHED)
METHODS = ("Vanilla", "Dropout", "SGHMC", *SPIKED)
PRINTED = {"mnist": (99.31, 99.38, 99.55, 99.60), "fashion-mnist": (92.73, 92.81, 92.93, 93.01)}
OPTIMIZERS = dict(
    zip(METHODS, ("adam", "dropout", "sghmc", "sghmc-sa", "sghmc-sa-held", "sghmc-sa-crushed"), strict=True)
)
SIGMA, V0 = 0.1, 1e-3
WIDTH = 32  # maps of the first convolution
ALIKE = 1.0  # per cent, of accuracies without an attack


@dataclass(frozen=True)
class Setting:
    """The optimizer, and its first lr on the mean loss."""

    optimizer: str
    lr: float

    @property
    def samples(self) -> bool:
        """Whether draws are averaged."""
        return self.optimizer.startswith("sghmc")

    def rate(self, epoch: int) -> float:
        """The lr of an epoch, which falls for samplers."""
        return self.lr * (1 + epoch) ** (-0.2 if self.samples else 0)

    def is_drawn(self, step: int, of_epoch: int, epochs: int) -> bool:
        """Whether networks after a step are draws: at the end of epochs beyond the burn-in, or of the last one."""
        epoch, rest = divmod(step, of_epoch)
        return not rest and (epoch == epochs or self.samples and epoch > BURN_IN * epochs)


def rates(optimizer: str) -> tuple[float, ...]:
    """The candidates for the first lr."""
    return (0.05, 0.0125) if Setting(optimizer, 0.0).samples else (0.001,)


class Standardised(Module):
    """Pixels from 0 to 1, less their mean, over their standard deviation."""

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        return (x - MEAN) / SD


def network_of(channels: tuple[int, int], hidden: int, dropout: float, seed: int) -> Sequential:
    """For images of 28 x 28; `dropout` is at the first full layer."""
    torch.manual_seed(seed)
    first, second = channels
    features = Conv2d(1, first, 5, padding=2), ReLU(), MaxPool2d(2)
    more = Conv2d(first, second, 5, padding=2), ReLU(), MaxPool2d(2)
    head = Flatten(), Linear(second * 49, hidden), ReLU(), Dropout(dropout), Linear(hidden, 10)
    return Sequential(Standardised(), Unflatten(1, (1, 28)), *features, *more, *head)


def optimizer_of(setting: Setting, network: Sequential, rows: int, seed: int) -> torch.optim.Optimizer:
    """Adam; SGHMC under N(0, 1); SGHMC-SA, whose prior is another one in the first full layer."""
    if not setting.samples:
        return torch.optim.Adam(network.parameters(), lr=setting.lr)
    layers = [layer for layer in network if isinstance(layer, Linear)]
    spiked = [layers[0].weight]
    biases = [p for p in network.parameters() if p.dim() == 1]
    weights = [p for p in network.parameters() if p.dim() > 1 and p is not spiked[0]]
    shared: dict[str, Any] = {"lr": setting.lr, "num_data": rows, "temperature": TEMPERATURE, "seed": seed}
    if setting.optimizer == "sghmc":
        groups = [{"params": [*weights, *spiked], "weight_decay": 1 / rows}, {"params": biases}]
        return samplers.Optimizer(groups, samplers.SGHMC, momentum=MOMENTUM, **shared)
    p = float(spiked[0].numel())
    groups = [
        {"params": spiked, "sparse": 1.0},
        {"params": weights, "sparse": 0.0, "ridge": 1.0},
        {"params": biases, "sparse": 0.0, "ridge": 1e-6},
    ]
    friction = -math.log(MOMENTUM) / math.sqrt(setting.lr / rows)
    prior = {"v0": V0, "v1": 1.0, "sigma0": SIGMA, "a": p, "b": p}
    if setting.optimizer == "sghmc-sa-crushed":
        prior["kappa0"] = (1 / prior["v0"] + 1 / prior["v1"]) / 2
    optimizer = samplers.Optimizer(groups, samplers.SGHMCSAClassification, C=friction, **prior, **shared)
    if setting.optimizer == "sghmc-sa-held":
        optimizer.freeze("sigma", "delta")
    return optimizer


class Draws:
    """Weights of a network at several steps, with the lr there, which is their share in averages."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.shares: list[float] = []

    def add(self, network: Module, share: float) -> None:
        """The weights as they are."""
        self.weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        self.shares.append(share)

    def probabilities(self, network: Module, x: Tensor) -> Tensor:
        """The average over the draws."""
        names = dict(network.named_parameters())
        total = sum(self.shares)
        average: Tensor | float = 0.0
        for flat, share in zip(self.weights, self.shares, strict=True):
            parts = flat.split([p.numel() for p in names.values()])
            state = {name: part.view_as(p) for (name, p), part in zip(names.items(), parts, strict=True)}
            average = average + share / total * functional_call(network, state, (x,)).softmax(-1)
        return torch.as_tensor(average)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"weights": list(self.weights), "shares": list(self.shares)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after these."""
        self.weights = list(state["weights"])
        self.shares = list(state["shares"])


def data_of(study: Study, name: str, validate: bool) -> tuple[Data, Data]:
    """What is learned from and what is predicted: training data and test data, or both of the training data."""
    (x, y), test, _ = read_mnist(study.data / name, SOURCES[name])
    rows = len(x) - len(x) // 6
    return ((x[:rows], y[:rows]), (x[rows:], y[rows:])) if validate else ((x, y), test)


def learned(
    study: Study, data: str, epochs: int, size: int, attacked: int, seed: int, validate: bool = False, **setting: Any
) -> dict:
    """The accuracy in per cent, which data are wrong, accuracies of the first images under attack, the last sigma."""
    settings = {"data": data, "epochs": epochs, "size": size, "attacked": attacked, "seed": seed, "validate": validate}
    known, (x, y) = data_of(study, data, validate)
    how = Setting(**setting)
    network = network_of((size, 2 * size), 6 * size + 8, 0.5 if how.optimizer == "dropout" else 0.0, seed)
    batches = samplers.Minibatches(known, min(BATCH, len(known[0]) // 4), seed=seed)
    optimizer = optimizer_of(how, network, len(known[0]), seed)
    draws = Draws()

    def draw(step: int) -> None:
        if how.is_drawn(step, len(batches), epochs):
            draws.add(network, optimizer.param_groups[0]["lr"])

    train(
        network,
        optimizer,
        batches,
        epochs=epochs,
        lr=how.rate,
        draw=draw,
        folder=study.scratch(learned, **settings, **setting),
        settings=asdict(how) | {"epochs": epochs},
        draws=draws,
    )
    network.eval()
    with torch.no_grad():
        p = torch.cat([draws.probabilities(network, part) for part in x.split(1000)])
        wrong = (p.argmax(-1) != y).nonzero().flatten().tolist()
    robust = under_attack(network, draws, (x[:attacked], y[:attacked])) if attacked else []
    last = {"lr": optimizer.param_groups[0]["lr"], "rows": len(known[0])}
    sigma = [float(state["sigma"].mean()) for state in optimizer.state.values() if "sigma" in state]
    return {"accuracy": 100 * accuracy(p, y), "wrong": wrong, "robust": robust, "sigma": sigma[:1]} | last


def under_attack(network: Module, draws: Draws, data: Data) -> list[float]:
    """The accuracies in per cent at each zeta."""
    hits = [0] * len(ZETAS)
    for x, y in zip(data[0].split(500), data[1].split(500), strict=True):
        x = x.clone().requires_grad_()
        confidence = draws.probabilities(network, x).amax(-1).clamp_min(1e-30).log()
        (slope,) = torch.autograd.grad(confidence.sum(), x)
        with torch.no_grad():
            for k, zeta in enumerate(ZETAS):
                images = (x - zeta * slope.sign()).clamp(0, 1)
                hits[k] += int((draws.probabilities(network, images).argmax(-1) == y).sum())
    return [100 * hit / len(data[0]) for hit in hits]


# ---- the claims


def chosen(study: Study, optimizer: str, data: str, **size: int) -> Setting:
    """The lr with the lowest error on the data held back, in short runs; what diverges is out."""
    candidates = [Setting(optimizer, lr) for lr in rates(optimizer)]

    def held_back(setting: Setting) -> dict:
        return {"data": data, "seed": 0, "attacked": 0, "validate": True} | size | asdict(setting)

    return study.best(candidates, learned, held_back, lambda result: -result["accuracy"])


def claims(study: Study) -> list[Claim]:
    """Each data set: the rows of Table 2, their order, and Figure 3."""
    epochs, trial, seeds, size, attacked = study.of_scale(
        (2, 1, {"mnist": 1, "fashion-mnist": 1}, 2, 20),
        (6, 2, {"mnist": 3}, WIDTH // 2, 1000),
        (100, 10, {"mnist": 3, "fashion-mnist": 3}, WIDTH, 10_000),
    )
    drafts = []
    curves = {}
    for data in seeds:
        runs: dict[str, list[dict]] = {}
        for method, optimizer in OPTIMIZERS.items():
            setting = chosen(study, optimizer, data, epochs=trial, size=size)
            settings = {"data": data, "epochs": epochs, "size": size, "attacked": attacked} | asdict(setting)
            runs[method] = study.results(learned, [settings | {"seed": seed} for seed in range(1, seeds[data] + 1)])
        rows = len(data_of(study, data, validate=False)[1][1])
        curves[data] = {
            method: [fmean(column) for column in zip(*(run["robust"] for run in of_method), strict=True)]
            for method, of_method in runs.items()
        }
        of_data = [of_row(data, name, runs[name]) for name in METHODS]
        orders = [("SGHMC", "Vanilla"), *((name, "SGHMC") for name in SPIKED), ("SGHMC-SA", CRUSHED)]
        of_data += [of_order(data, *pair, runs, rows) for pair in orders]
        of_data += attacks(data, curves[data], runs)
        less = f"{epochs} epochs" + (
            "" if size == WIDTH else f", {size} and {2 * size} maps of {WIDTH} and {2 * WIDTH}"
        )
        drafts += [replace(claim, seeds=seeds[data], reduced=less) for claim in of_data]
    picture(study, curves)
    return drafts


def printed(data: str, name: str) -> float:
    """The accuracy that the paper prints, in per cent."""
    return PRINTED[data][min(METHODS.index(name), len(PRINTED[data]) - 1)]


def of_row(data: str, name: str, runs: list[dict]) -> Claim:
    """An accuracy beside the printed one."""
    ours = [run["accuracy"] for run in runs]
    is_near = abs(fmean(ours) - printed(data, name)) <= 0.15
    why = "the paper prints neither epochs nor lr"
    if name in ("SGHMC-SA", CRUSHED):
        ends = ", ".join(f"{run['sigma'][0]:.3g}" for run in runs)
        edge = (runs[0]["lr"] / (4 * runs[0]["rows"] * V0)) ** 0.5
        why = f"sigma begins at {SIGMA:g} and ends at {ends}; steps are unstable below sqrt(lr/(4 N v0)) = {edge:.3g}"
    return Claim(f"{data}: {name}", f"{printed(data, name)} %", f"{spread(ours)} %", Kind.FIGURE, is_near, why)


def of_order(data: str, first: str, second: str, runs: dict[str, list[dict]], rows: int) -> Claim:
    """Whether the first is better: beyond two standard errors of the test set, paired."""
    gap = paired(misses(runs[second], rows), misses(runs[first], rows))
    holds = None if abs(gap.in_errors) < 2 else gap.value > 0
    paper = f"{printed(data, first)} against {printed(data, second)}" if second != CRUSHED else "control"
    why = "a handful of images of 10,000 in the paper" if first in SPIKED and second != CRUSHED else ""
    ours = f"{gap.value:+.2f} +- {gap.error:.2f} %"
    return Claim(f"{data}: {first} above {second}", paper, ours, Kind.COMPARISON, holds, why)


def misses(runs: Sequence[dict], rows: int) -> Tensor:
    """Of each datum how often it is wrong, in per cent."""
    wrong = torch.zeros(rows)
    for run in runs:
        wrong[run["wrong"]] += 100 / len(runs)
    return wrong


def attacks(data: str, curves: dict[str, list[float]], runs: dict[str, list[dict]]) -> list[Claim]:
    """Figure 3: samplers against Vanilla at the middle of the range, and SA against SGHMC beyond.

    The last is decided for networks alone that are alike without an attack: one that is wrong anyway has less to lose.
    """
    clean = {method: fmean(run["accuracy"] for run in of_method) for method, of_method in runs.items()}
    alike = {method: abs(value - clean["SGHMC"]) <= ALIKE for method, value in clean.items()}
    beyond = {method: fmean(curve[2:]) for method, curve in curves.items()}
    weak = {method: [fmean(run["robust"][2:]) for run in of_method] for method, of_method in runs.items()}
    rows = "; ".join(f"{method} {' '.join(f'{value:.1f}' for value in curve)}" for method, curve in curves.items())
    return [
        Claim(
            f"{data}: under attack Vanilla falls first, then Dropout, then SGHMC",
            "Figure 3",
            f"% at zeta = .1 to .5: {rows}",
            Kind.COMPARISON,
            rises([[run["robust"][2] for run in runs[name]] for name in METHODS[:3]]),
            "at zeta = .3; the gradient of a confident network vanishes in float32, its sign is then 0: no attack",
        ),
        *(
            Claim(
                f"{data}: {name} above SGHMC for zeta > .25",
                "by a point",
                f"{beyond[name]:.1f} against {beyond['SGHMC']:.1f} %",
                Kind.COMPARISON,
                rises([weak["SGHMC"], weak[name]]) if alike[name] else None,
                f"without an attack {clean[name]:.1f} against {clean['SGHMC']:.1f} %",
            )
            for name in SPIKED
        ),
    ]


def picture(study: Study, curves: dict[str, dict[str, list[float]]]) -> None:
    """Accuracy by the size of the attack."""
    with study.figure("attacks", columns=len(curves), squeeze=False) as axes_of:
        both = axes_of[0]
        for axes, (data, rows) in zip(both, curves.items(), strict=True):
            for method, curve in rows.items():
                axes.plot(ZETAS, curve, "o-", label=method)
            axes.set(xlabel="zeta", ylabel="accuracy in %", title=data)
        both[0].legend(fontsize=7)


EXPERIMENT = Experiment(
    "spike-networks",
    "SGHMC-SA (Deng, Zhang, Liang & Lin 2019), Table 2 (network 1, no augmentation) and Figure 3",
    claims,
    files=[f"{data}/{name}" for data in PRINTED for name in IDX_FILES],
    seeds="3 seeds",
)
