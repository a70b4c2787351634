"""SGHMC-SA on images that are moved: Deng, Zhang, Liang & Lin (2019), Table 2, aMNIST and aFMNIST, augmented images.

The second network: two convolutions of 4 x 4 with 64 maps, pooled by 2, a full layer of 256 with batch normalisation,
one of 64, 10 classes. Each image of training is moved by up to 4 pixels; digits are turned by up to 15 degrees, clothes
are mirrored half of the time, what comes in is black. Samplers, priors and lr are those of `spike_networks`, kappa from
5e-4; the paper's temperatures by layer are not printed, so that all have .01. Networks of several seeds are averaged
for the columns aMNIST-5 and aFMNIST-5. Means and variances of batch normalisation are running averages, at each draw.

The control is Vanilla without augmentation, of as many epochs. Reduced are the images of training, the maps, the run,
and five networks to three.
"""

import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from datasets import IDX_FILES, SOURCES, Data, read_mnist
from spike_networks import Setting, Standardised, optimizer_of, rates
from study import Experiment, Study, spread
from torch import Tensor
from torch.nn import BatchNorm1d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential, Unflatten
from torch.nn.functional import affine_grid, cross_entropy, grid_sample
from training import train
from verdicts import Claim, Kind, part, rises

import samplers
from samplers.scores import accuracy, paired

BATCH, MAPS, SIDE = 1000, 64, 28
EPOCHS = {"mnist": 300, "fashion-mnist": 1000}  # of the paper
NAMES = {"mnist": "aMNIST", "fashion-mnist": "aFMNIST"}
SHIFT, ANGLE = 4, 15.0  # pixels and degrees, at most
METHODS = {"Vanilla": "adam", "Dropout": "dropout", "SGHMC": "sghmc", "SGHMC-SA": "sghmc-sa"}
PRINTED = {  # accuracy %, of one network and of five
    "mnist": {
        "Vanilla": (99.54, 99.75),
        "Dropout": (99.56, 99.74),
        "SGHMC": (99.71, 99.77),
        "SGHMC-SA": (99.75, 99.79),
    },
    "fashion-mnist": {
        "Vanilla": (93.14, 94.48),
        "Dropout": (93.35, 94.53),
        "SGHMC": (94.29, 94.64),
        "SGHMC-SA": (94.38, 94.78),
    },
}
PLAIN = "Vanilla, images as they are"
NEAR = 0.15  # per cent


@dataclass
class Moved:
    """Images that are moved at random; `turned`, or mirrored. Its state is that of its random numbers."""

    turned: bool
    random: torch.Generator

    def __call__(self, x: Tensor) -> Tensor:
        """Of `(rows, 28, 28)`, each image in its own way."""
        rows = len(x)
        shift = torch.randint(-SHIFT, SHIFT + 1, (rows, 2), generator=self.random) * (2 / SIDE)
        if self.turned:
            angle = math.radians(ANGLE) * (2 * torch.rand(rows, generator=self.random) - 1)
            mirror = torch.ones(rows)
        else:
            angle = torch.zeros(rows)
            mirror = 1.0 - 2.0 * torch.randint(0, 2, (rows,), generator=self.random)
        cos, sin = angle.cos(), angle.sin()
        turn = torch.stack([torch.stack([mirror * cos, -sin], 1), torch.stack([mirror * sin, cos], 1)], 1)
        grid = affine_grid(torch.cat([turn, shift[..., None]], 2), [rows, 1, SIDE, SIDE], align_corners=False)
        return grid_sample(x[:, None], grid, align_corners=False)[:, 0]

    def state_dict(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {"random": self.random.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on after these random numbers."""
        self.random.set_state(state["random"])


def network_of(maps: int, dropout: float, seed: int) -> Sequential:
    """For images of 28 x 28; full layers of 4 and of 1 times as many units as maps, dropout at the first."""
    torch.manual_seed(seed)
    features = Conv2d(1, maps, 4), ReLU(), MaxPool2d(2, ceil_mode=True)
    more = Conv2d(maps, maps, 4), ReLU(), MaxPool2d(2, ceil_mode=True), Flatten()
    wide = Linear(25 * maps, 4 * maps), BatchNorm1d(4 * maps), ReLU(), Dropout(dropout)
    return Sequential(
        Standardised(),
        Unflatten(1, (1, SIDE)),
        *features,
        *more,
        *wide,
        Linear(4 * maps, maps),
        ReLU(),
        Linear(maps, 10),
    )


def data_of(study: Study, name: str, rows: int | None, validate: bool) -> tuple[Data, Data]:
    """What is learned from, and test data; or both of the training data."""
    (x, y), test, _ = read_mnist(study.data / name, SOURCES[name])
    x, y = x[:rows], y[:rows]
    first = len(x) - len(x) // 6
    return ((x[:first], y[:first]), (x[first:], y[first:])) if validate else ((x, y), test)


def learned(
    study: Study,
    data: str,
    moved: bool,
    epochs: int,
    maps: int,
    rows: int | None,
    batch: int,
    seed: int,
    validate: bool = False,
    **setting: Any,
) -> dict:
    """The accuracy in per cent, and the averaged probabilities of the test data."""
    settings = dict(data=data, moved=moved, epochs=epochs, maps=maps, rows=rows, batch=batch, seed=seed)
    known, (x, y) = data_of(study, data, rows, validate)
    how = Setting(**setting)
    network = network_of(maps, 0.5 if how.optimizer == "dropout" else 0.0, seed)
    batches = samplers.Minibatches(known, min(batch, len(known[0]) // 4), seed=seed)
    optimizer = optimizer_of(how, network, len(known[0]), seed)
    move = Moved(data == "mnist", torch.Generator().manual_seed(seed))
    predictive = samplers.Predictive()

    def loss(network: Module, images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(network(move(images) if moved else images), labels)

    @torch.no_grad()
    def draw(step: int) -> None:
        if not how.is_drawn(step, len(batches), epochs):
            return
        network.eval()
        logits = torch.cat([network(images) for images in x.split(1000)])
        predictive.add(logits, weight=optimizer.param_groups[0]["lr"])
        network.train()

    train(
        network,
        optimizer,
        batches,
        epochs=epochs,
        lr=how.rate,
        draw=draw,
        folder=study.scratch(learned, **settings, validate=validate, **setting),
        settings=asdict(how) | settings,
        loss=loss,
        predictive=predictive,
        move=move,
    )
    p = predictive.probabilities
    result: dict[str, Any] = {"accuracy": 100 * accuracy(p, y)}
    return result if validate else result | {"p": [[round(float(v), 4) for v in row] for row in p]}


# ---- the claims


def claims(study: Study) -> list[Claim]:
    """Each data set: the rows of Table 2, of one network and of several, and their order."""
    epochs, trial, seeds, maps, rows, batch = study.of_scale(
        (dict.fromkeys(EPOCHS, 2), 1, 2, 2, 400, 100),
        (dict.fromkeys(EPOCHS, 6), 3, 3, MAPS // 4, 6000, 200),
        (EPOCHS, 30, 5, MAPS, None, BATCH),
    )
    drafts = []
    for data, length in epochs.items():
        size = {"data": data, "moved": True, "epochs": length, "maps": maps, "rows": rows, "batch": batch}
        runs = {}
        for name, optimizer in METHODS.items():
            setting = asdict(chosen(study, optimizer, size | {"epochs": trial}))
            runs[name] = study.results(learned, [size | setting | {"seed": seed} for seed in range(1, seeds + 1)])
        plain = size | {"moved": False} | asdict(Setting("adam", *rates("adam")))
        runs[PLAIN] = study.results(learned, [plain | {"seed": seed} for seed in range(1, seeds + 1)])
        labels = data_of(study, data, rows, validate=False)[1][1]
        whole = part(length, EPOCHS[data], "epochs")
        less = f"{whole}, {rows:,} of 60,000 images, {maps} of {MAPS} maps" if whole and rows else whole
        drafts += [replace(claim, seeds=seeds, reduced=less) for claim in claims_of(data, runs, labels)]
    return drafts


def chosen(study: Study, optimizer: str, size: dict[str, Any]) -> Setting:
    """The lr with the lowest error on the data held back, in short runs."""
    candidates = [Setting(optimizer, lr) for lr in rates(optimizer)]

    def held_back(setting: Setting) -> dict:
        return size | {"seed": 0, "validate": True} | asdict(setting)

    return study.best(candidates, learned, held_back, lambda result: -result["accuracy"])


def claims_of(data: str, runs: dict[str, list[dict]], labels: Tensor) -> list[Claim]:
    """The two columns of a data set, what augmentation and averaging do, and the order of the methods."""
    name = NAMES[data]
    rows = []
    for method in METHODS:
        alone, five = PRINTED[data][method]
        ours = [run["accuracy"] for run in runs[method]]
        together = 100 * accuracy(average(runs[method]), labels)
        for column, printed, value, words in (
            (name, alone, fmean(ours), spread(ours)),
            (f"{name}-5", five, together, f"{together:.2f}"),
        ):
            here = f"{words} %" if column == name else f"{words} % of {len(ours)} networks"
            rows.append(Claim(f"{column}: {method}", f"{printed} %", here, Kind.FIGURE, abs(value - printed) <= NEAR))
    rows += [of_order(data, pair, runs, labels) for pair in (*pairwise(METHODS), ("Vanilla", "SGHMC"))]
    rows.append(of_order(data, (PLAIN, "Vanilla"), runs, labels))
    many = torch.stack([(average(of).argmax(-1) != labels).double() for of in (runs[m] for m in METHODS)]).mean(0)
    single = torch.stack([misses(runs[m], labels) for m in METHODS]).mean(0)
    words, holds = gap(single, 100 * many)
    rows.append(
        Claim(
            f"{name}: an average of networks is above one of them, all methods",
            "Table 2",
            words,
            Kind.COMPARISON,
            holds,
        )
    )
    return rows


def of_order(data: str, pair: tuple[str, str], runs: dict[str, list[dict]], labels: Tensor) -> Claim:
    """Whether the second method has more right: beyond two standard errors, by the test data and by the seeds."""
    worse, better = pair
    words, holds = gap(*(misses(runs[method], labels) for method in pair))
    if rises([[run["accuracy"] for run in runs[method]] for method in pair]) is not holds:
        holds = None
    if worse == PLAIN:
        why = "after so few epochs images that are moved are harder to learn, and no help yet"
        title = f"{NAMES[data]}: augmentation helps Vanilla"
        return Claim(title, "control", words, Kind.COMPARISON, holds, "" if holds else why)
    paper = " against ".join(str(PRINTED[data][method][0]) for method in (better, worse))
    why = "" if holds is not None else "within two standard errors over seeds, or over the test data"
    return Claim(f"{NAMES[data]}: {better} above {worse}", paper, words, Kind.COMPARISON, holds, why)


def average(runs: list[dict]) -> Tensor:
    """The probabilities of several networks, which are kept to four digits."""
    p = torch.stack([torch.tensor(run["p"], dtype=torch.float64) for run in runs]).mean(0)
    return p / p.sum(-1, keepdim=True)


def misses(runs: list[dict], labels: Tensor) -> Tensor:
    """Of each datum how often it is wrong, in per cent."""
    return 100 * torch.stack([(average([run]).argmax(-1) != labels).double() for run in runs]).mean(0)


def gap(worse: Tensor, better: Tensor) -> tuple[str, bool | None]:
    """How much fewer are wrong, paired, and whether that is beyond two standard errors."""
    less = paired(worse, better)
    holds = None if abs(less.in_errors) < 2 else less.value > 0
    return f"{less.value:+.2f} +- {less.error:.2f} %", holds


EXPERIMENT = Experiment(
    "spike-augmented",
    "SGHMC-SA (Deng, Zhang, Liang & Lin 2019), Table 2: network 2, augmented images",
    claims,
    files=[f"{data}/{name}" for data in EPOCHS for name in IDX_FILES],
    seeds="3 seeds",
)
