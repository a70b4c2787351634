"""Batch normalisation under a sampler: Heek & Kalchbrenner (2019), section 4.

The paper says that ATMC, which adds the noise that is needed, underfits where it is combined with batch normalisation,
and prints no number. Here ResNet++ has batch normalisation before each scale, or none; its parameters, their start and
their prior are the same, ATMC and SGD move both. Underfitting is a higher NLL on the training data. The control is SGD:
where it underfits as well, the sampler is not the reason. A state is judged with the running averages of its means and
variances, as torch has them.

Reduced: 8 layers of 4 filters, the exact pixels of 2000 and 1000 images, 16 epochs in cycles of 4.
lr of SGD is chosen for each network on a sixth of the training data; h, m, D and c of ATMC are the paper's, with steps
ten times as long.
"""

from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from atmc_cifar import EXACT, LOSSY, run
from study import Experiment, Study, spread
from verdicts import Claim, Kind, part, rises

from samplers.scores import paired

METHODS = ("ATMC", "SGD")
EPOCHS = 1000  # of the paper
EARLY = "in so few steps ATMC, whose steps have a limit, has learned less than SGD: the posterior is far off"
Table = dict[tuple[str, bool], list[dict]]  # results by seed, of a method without and with batch normalisation


def claims(study: Study) -> list[Claim]:
    """The NLL of training with and without it, of ATMC and of SGD; what it does to predictions."""
    seeds, epochs, cycle, size, rows, longer, full = study.of_scale(
        ((0, 1), 2, 1, (8, 2), 120, 10.0, False),
        ((0, 1, 2), 16, 4, (8, 4), 2000, 10.0, False),
        ((0, 1, 2), EPOCHS, 50, (56, 32), None, 1.0, True),
    )
    common = {"epochs": epochs, "cycle": cycle, "size": size, "rows": rows, "longer": longer, "full": full}
    table: Table = {}
    for method in METHODS:
        for normalised in (False, True):
            settings = common | {"method": method, "normalised": normalised}
            settings["lr"] = chosen(study, settings) if method == "SGD" else 0.0
            table[method, normalised] = study.results(run, [settings | {"seed": seed} for seed in seeds])
    less = "" if full else f"{part(epochs, EPOCHS, 'epochs')}, a smaller network, fewer images"
    return [replace(claim, seeds=len(seeds), reduced=less) for claim in claims_of(table)]


def chosen(study: Study, common: dict[str, Any]) -> float:
    """lr of SGD by the NLL of the data held back, in a run of a third of the epochs."""
    length = max(1, common["epochs"] // 3)
    settings = common | {"epochs": length, "cycle": length, "seed": 0, "held_back": True}
    return study.best((0.1, 0.03), run, lambda lr: settings | {"lr": lr}, lambda result: result["single"]["nll"])


def claims_of(table: Table) -> list[Claim]:
    """Underfitting of ATMC, of SGD as the control, and the predictions of both."""
    underfits = {
        method: rises([training(table[method, normalised]) for normalised in (False, True)]) for method in METHODS
    }
    alone = underfits["ATMC"]
    if alone and underfits["SGD"] is not False:
        alone = None
    return [
        Claim(
            "ATMC underfits with batch normalisation: its NLL of training is higher",
            "section 4, no numbers",
            words_of(table, "ATMC"),
            Kind.COMPARISON,
            alone,
            "SGD on the same two networks is the control, in the next row" if alone else EARLY,
        ),
        Claim(
            "... where SGD does not",
            "control",
            words_of(table, "SGD"),
            Kind.COMPARISON,
            None if underfits["SGD"] is None else not underfits["SGD"],
        ),
        predictions(table, "SGD", "single", True, "batch normalisation improves SGD on test data", "91.5 to 94.4 %"),
        predictions(table, "ATMC", "single", False, "... and not a sample of ATMC", "section 4, no numbers"),
    ]


def training(results: list[dict]) -> list[float]:
    """The NLL of the training data by the last state, of each seed."""
    return [result["training"]["nll"] for result in results]


def words_of(table: Table, method: str) -> str:
    """NLL and accuracy on the training data, without and with."""
    parts = []
    for normalised, words in ((False, "without"), (True, "with")):
        results = table[method, normalised]
        accuracies = [result["training"]["accuracy"] for result in results]
        parts.append(f"{spread(training(results), 3)}, {spread(accuracies, 1)} % {words}")
    return "; ".join(parts)


def predictions(table: Table, method: str, which: str, improves: bool, words: str, paper: str) -> Claim:
    """Whether the NLL of test data falls with it, as is said; within two standard errors not decided."""
    off, on = (
        torch.tensor([result[which]["each"] for result in table[method, normalised]]).mean(0)
        for normalised in (False, True)
    )
    gap = paired(on, off)
    holds = None if abs(gap.in_errors) < 2 else (gap.value < 0) == improves
    accuracies = [fmean(r[which]["accuracy"] for r in table[method, normalised]) for normalised in (False, True)]
    ours = f"NLL {gap.value:+.3f} +- {gap.error:.3f}; {accuracies[0]:.1f} to {accuracies[1]:.1f} %"
    return Claim(words, paper, ours, Kind.COMPARISON, holds, EARLY if method == "ATMC" and not holds else "")


EXPERIMENT = Experiment(
    "atmc-batchnorm",
    "ATMC (Heek & Kalchbrenner 2019), section 4: with batch normalisation",
    claims,
    files=[EXACT],
    full_files=[LOSSY],
    seeds="3 seeds",
)
