"""Baselines of LeNet-5, trained shorter, longer, or on at a lower lr: Franzese et al. (2021), Table A1.

Adam at lr .01 for 20,000 steps is the baseline; S has half of the steps, L half as many again, and R goes on from the
baseline as long as L, at lr .001. The table asks whether i-SGD gains by its further steps alone: R has better figures
on digits, and i-SGD tells letters from digits better than R does. i-SGD at T = 1 starts from the same baselines.

Reduced are the images, 12,000 of 60,000, and the steps: 8 epochs of 93 are the baseline, and i-SGD goes on for as many
steps as R.
"""

from dataclasses import replace
from typing import Any

import isgd_lenet
import torch
from datasets import IDX_FILES
from isgd_lenet import BATCH, LETTERS, data_of, mean, order, row, scores, weakest
from networks import lenet
from study import Experiment, Study
from training import Curve, train
from verdicts import Claim, Kind, part

import samplers

STEPS = 20_000  # of the paper's baseline
COLUMNS = {"nll": "NLL", "H0": "H0", "H1": "H1", "auroc": "AUROC"}
PAPER = {  # accuracy %, mean NLL, H0, H1
    "baseline": (98.87, 0.0353, 0.0353, 0.0019),
    "baseline S": (98.93, 0.0340, 0.0392, 0.0024),
    "baseline L": (98.72, 0.0390, 0.0378, 0.0025),
    "baseline R": (99.19, 0.0243, 0.0303, 0.0021),
    "i-SGD": isgd_lenet.PAPER["i-SGD"],
}


def adam(study: Study, seed: int, epochs: int, cooled: bool, rows: int | None = None) -> dict:
    """Scores after half of the epochs, after all, and after half as many again, at lr .001 where `cooled`."""
    settings = {"seed": seed, "epochs": epochs, "cooled": cooled, "rows": rows}
    data, test, letters = data_of(study, rows, False)
    network = lenet(seed=seed)
    batches = samplers.Minibatches(data, min(BATCH, len(data[0])), seed=seed)
    curve = Curve()
    stages = (epochs // 2, epochs, epochs + epochs // 2)

    @torch.no_grad()
    def see(step: int) -> None:
        epoch, rest = divmod(step, len(batches))
        if rest or epoch not in stages:
            return
        digits, unknown = samplers.Predictive(), samplers.Predictive()
        digits.add(network(test[0]))
        unknown.add(network(letters))
        curve.rows.append([step, scores(digits, unknown, test[1])])

    train(
        network,
        torch.optim.Adam(network.parameters(), lr=0.01),
        batches,
        epochs=stages[-1],
        lr=lambda epoch: 0.001 if cooled and epoch >= epochs else 0.01,
        draw=see,
        folder=study.scratch(adam, **settings),
        settings=settings,
        curve=curve,
    )
    return {"steps": [step for step, _ in curve.rows], "scores": [score for _, score in curve.rows]}


def claims(study: Study) -> list[Claim]:
    """The rows of Table A1, their order, and i-SGD beside the best of them."""
    seeds, epochs, draws, every, rows = study.of_scale(
        ((0,), 2, 3, 2, 300), ((0, 1, 2), 8, 20, 15, 12_000), ((0, 1, 2), 44, 30, 10_000, None)
    )
    size = {"epochs": epochs, "rows": rows}
    constant, cooled = (
        study.results(adam, [size | {"seed": seed, "cooled": cooled} for seed in seeds]) for cooled in (False, True)
    )
    steps = constant[0]["steps"]
    table = {
        "baseline": [run["scores"][1] for run in constant],
        "baseline S": [run["scores"][0] for run in constant],
        "baseline L": [run["scores"][2] for run in constant],
        "baseline R": [run["scores"][2] for run in cooled],
    }
    settings = {"method": "i-SGD", "steps": steps[1], "draws": draws, "every": every, "rows": rows}
    table["i-SGD"] = study.results(isgd_lenet.run, [settings | {"seed": seed} for seed in seeds])
    drafts = [*(row(name, results, PAPER[name], COLUMNS) for name, results in table.items()), *claims_of(table)]
    less = f"{part(steps[1], STEPS, 'steps')}, {rows:,} of 60,000 images" if rows else part(steps[1], STEPS, "steps")
    return [replace(claim, seeds=len(seeds), reduced=less) for claim in drafts]


def claims_of(table: dict[str, list[dict[str, Any]]]) -> list[Claim]:
    """What more steps do, at one lr and at a lower one, and what they do not."""

    def of(score: str, *names: str) -> str:
        return ", ".join(f"{name} {mean(table[name], score):.4f}" for name in names)

    constant = ("baseline", "baseline S", "baseline L")
    cooled = {name: order(table, "nll", ("baseline R", name)) for name in constant}
    near = [name for name, lower in cooled.items() if lower is None]
    letters = weakest([order(table, score, ("baseline R", "i-SGD")) for score in ("auroc", "H1")])
    return [
        Claim(
            "R, on at a lower lr, has the lowest NLL of the baselines",
            "Table A1: .0243; .0353, .0340, .0390",
            of("nll", "baseline R", *constant),
            Kind.COMPARISON,
            weakest([*cooled.values()]),
            f"within two standard errors over seeds of {', '.join(near)}" if near else "",
        ),
        Claim(
            "L, longer at the same lr, has no lower NLL than the baseline",
            "Table A1: .0390, .0353",
            of("nll", "baseline", "baseline L"),
            Kind.COMPARISON,
            order(table, "nll", ("baseline", "baseline L")),
        ),
        Claim(
            "i-SGD tells letters from digits better than R",
            "Tables 3 and A1: H1 .456, .002; Figure 1",
            f"AUROC {of('auroc', 'baseline R', 'i-SGD')}; H1 {of('H1', 'baseline R', 'i-SGD')}",
            Kind.COMPARISON,
            letters,
            "steps of i-SGD, 1/lambda, are so short that weights hardly change",
        ),
    ]


EXPERIMENT = Experiment(
    "isgd-baselines",
    "i-SGD (Franzese et al. 2021), Table A1: baselines of LeNet-5",
    claims,
    files=[*(f"mnist/{name}" for name in IDX_FILES), LETTERS],
    seeds="3 seeds",
)
