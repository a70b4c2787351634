"""pSGLD on MNIST with fully connected networks: Li, Chen, Carlson & Carin (2016), Table 2 and Figure 4.

784-H-H-10, ReLU, prior N(0, sigma^2) of all weights, batches of 100 images, 100 epochs, a step size that halves every
fifth of them, predictions averaged over every 100th iterate after 300, weighted by step size. RMSprop and SGD stand
here with their last iterate, as in the paper, and averaged: what averaging buys without noise. U is the sum over the
data and lr = h N, so that the paper's eps is 2 lr as printed, and lr in the code that its authors published.

That code injects noise of temperature 1/N, next to none, where T = 1 is the posterior: both are in the table. Its
author on why (github.com/ChunyuanLI/pSGLD/issues/2): for faster convergence in practice. Step sizes are chosen by the
error on the last sixth of the training data, in runs of a fifth of the epochs, at T = 1 also whether they halve; then
every method learns from all training data.

How the paper made its row of one network that is distilled from the average is not printed. Here the network learns
soft labels, the average of the predictions for the training data after each epoch, by RMSprop as it would learn labels.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
from datasets import IDX_FILES
from psgld_learner import Setting, data_of, network
from study import Experiment, Scale, Study, beside, spread
from torch import Tensor
from verdicts import Claim, Kind, part, rises

from samplers.scores import Difference, paired

NEAR = 0.1  # per cent: so near to the error of the paper is the same; seeds differ by half of that


@dataclass(frozen=True)
class Method:
    """A row: the values of each axis, from which the rule starts with the first, and the predictions that count."""

    axes: dict[str, Sequence[Any]]
    predictions: str = "average"


PRECONDITIONED = (5e-4, 2.5e-4, 1e-3, 2e-3)  # the authors' eps, as in their code and as printed, and above it
PLAIN = (0.5, 0.25, 0.1, 1.0)
PSGLD = {"optimizer": ["psgld-same-step"], "lr": PRECONDITIONED}
SGLD = {"optimizer": ["sgld"], "lr": PLAIN}
RMSPROP = {"optimizer": ["rmsprop"], "lr": PRECONDITIONED}
SGD = {"optimizer": ["sgd"], "lr": PLAIN}
COLD = {"cold": [True]}
POSTERIOR = {"stages": (5, 1)}
METHODS = {
    "pSGLD, T = 1/N": Method(PSGLD | COLD),
    "pSGLD, T = 1/N, sigma^2 = 100": Method(PSGLD | COLD | {"prior": [100.0]}),
    "pSGLD, T = 1": Method(PSGLD | POSTERIOR | {"lr": (1e-3, 2.5e-4, 4e-3)}),
    "SGLD, T = 1/N": Method(SGLD | COLD),
    "SGLD, T = 1": Method(SGLD | POSTERIOR),
    "RMSprop": Method(RMSPROP, "last"),
    "RMSprop, averaged": Method(RMSPROP),
    "SGD": Method(SGD, "last"),
    "SGD, averaged": Method(SGD),
}
PRINTED = {  # test errors in Table 2, with 400, 800 and 1200 hidden units
    "pSGLD, T = 1/N": (1.45, 1.32, 1.24),
    "pSGLD, T = 1": (1.45, 1.32, 1.24),
    "pSGLD, T = 1/N, sigma^2 = 100": (1.40, 1.26, 1.14),
    "distilled": (1.44, 1.40, 1.41),
    "SGLD, T = 1/N": (1.64, 1.41, 1.40),
    "SGLD, T = 1": (1.64, 1.41, 1.40),
    "RMSprop": (1.59, 1.43, 1.39),
    "SGD": (1.72, 1.47, 1.47),
}
DISTILLED = "pSGLD, T = 1/N"  # what the distilled network learns from
MEMBERS = 3
RELEASED = "T = 1/N, at which the release runs"
ORDERS = (  # the paper's claims: the first has the lower error
    ("pSGLD, T = 1/N", "SGLD, T = 1/N"),
    ("pSGLD, T = 1", "SGLD, T = 1"),
    ("pSGLD, T = 1/N", "RMSprop"),
    ("SGLD, T = 1/N", "SGD"),
    ("RMSprop", "SGD"),
    ("pSGLD, T = 1/N, sigma^2 = 100", "pSGLD, T = 1/N"),
    ("pSGLD, T = 1/N", "distilled"),
)
CONTROLS = (  # what the paper has not
    ("pSGLD, T = 1/N", "RMSprop, averaged", "the same iterates without noise: what the noise adds"),
    ("SGLD, T = 1/N", "SGD, averaged", "the same iterates without noise: what the noise adds"),
    ("pSGLD, T = 1/N", "pSGLD, T = 1", "the posterior forgets its start in N/lr steps, more than the run has"),
    ("pSGLD, T = 1/N", "deep ensemble", f"{MEMBERS} members of RMSprop that share the epochs"),
)


# ---- the rule


def chosen(study: Study, method: Method, hidden: int, epochs: int) -> Setting:
    """One axis after another, the value with the lowest error on the data held back; what diverges is out."""

    def settings(setting: Setting) -> dict:
        return {"hidden": hidden, "epochs": epochs, "seed": 0, "validate": True} | asdict(setting)

    def loss(run: dict) -> float:
        return run[method.predictions]["error"]

    setting = Setting(**{axis: values[0] for axis, values in method.axes.items()})
    for axis, values in method.axes.items():
        setting = study.best([replace(setting, **{axis: value}) for value in values], network, settings, loss)
    return setting


@dataclass(frozen=True)
class Row:
    """What a method's predictions score for each seed, and how they were made."""

    setting: Setting
    runs: list[dict]
    predictions: str = "average"

    @property
    def errors(self) -> list[float]:
        """Test errors in per cent, by seed."""
        return [run[self.predictions]["error"] for run in self.runs]

    def less(self, other: "Row", rows: int) -> Difference:
        """How much lower the error is than that of another on the same test data, in per cent."""
        return paired(self._wrong(rows), other._wrong(rows))

    def _wrong(self, rows: int) -> Tensor:
        wrong = torch.zeros(rows)
        for run in self.runs:
            wrong[run[self.predictions]["wrong"]] += 100 / len(self.runs)
        return wrong


def table_of(study: Study, hidden: int) -> dict[str, Row]:
    """The rows by method: chosen, then learned from all training data; the last two are made of the others."""
    epochs, seeds, trial = study.of_scale((3, 1, 2), (30, 3, 6), (100, 3, 20))
    settings = {name: chosen(study, method, hidden, trial) for name, method in METHODS.items()}

    ensemble = replace(settings["RMSprop"], members=MEMBERS)
    distil = settings["RMSprop"].lr
    runs: dict[str, list[dict]] = {name: [] for name in (*settings, "deep ensemble")}
    for seed in range(1, seeds + 1):  # the first seed of all before the second of any
        of_seed = {}
        for name, setting in (settings | {"deep ensemble": ensemble}).items():
            of_seed[name] = {"hidden": hidden, "epochs": epochs, "seed": seed} | asdict(setting)
            of_seed[name] |= {"distil": distil} if name == DISTILLED else {}
        for name, run in zip(of_seed, study.results(network, list(of_seed.values())), strict=True):
            runs[name].append(run)
    table = {name: Row(settings[name], runs[name], METHODS[name].predictions) for name in METHODS}
    return table | {
        "distilled": replace(table[DISTILLED], predictions="distilled"),
        "deep ensemble": Row(ensemble, runs["deep ensemble"], "last"),
    }


# ---- the claims


def claims(study: Study) -> list[Claim]:
    """The rows of Table 2 by width, their order, and the curves of Figure 4."""
    widths = study.of_scale((16,), (400,), (400, 800, 1200))
    tables = {hidden: table_of(study, hidden) for hidden in widths}
    rows = len(data_of(study, validate=False)[1][1])
    found = []
    for column, (hidden, table) in enumerate(tables.items()):
        units = f"{hidden} units"
        found += of_rows(units, {name: errors[column] for name, errors in PRINTED.items()}, table)
        for one, other in ORDERS:
            paper = f"{PRINTED[one][column]} and {PRINTED[other][column]} %"
            found.append(difference(f"{units}: {one} below {other}", paper, table[one], table[other], rows))
        for one, other, why in CONTROLS:
            found.append(difference(f"{units}: {one} below {other}", "control", table[one], table[other], rows, why))
    first = tables[widths[0]]
    picture(study, first)
    errors = {name: row.errors for name, row in first.items()}
    picture_of_temperatures(study, errors, {name: printed[0] for name, printed in PRINTED.items()})
    found += [of_speed(first), of_weights(first), of_width(study, tables)]
    less = part(study.of_scale(3, 30, 100), 100, "epochs")
    return [replace(claim, reduced=less) for claim in found] + of_length(study, widths[0], first)


def of_rows(units: str, printed: dict[str, float], table: dict[str, Row]) -> list[Claim]:
    """The test errors; where pSGLD has its own at T = 1/N, that is the setting under which the row of T = 1 holds."""
    rows = {name: of_row(f"{units}: {name}", error, table[name]) for name, error in printed.items()}
    if rows["pSGLD, T = 1/N"].found:
        rows["pSGLD, T = 1"] = replace(rows["pSGLD, T = 1"], elsewhere=RELEASED)
    return list(rows.values())


def of_row(words: str, printed: float, row: Row) -> Claim:
    """A test error beside the printed one."""
    gap = fmean(row.errors) - printed
    setting = row.setting
    schedule = "constant" if setting.stages == 1 else f"halved {setting.stages - 1} times"
    beside = "" if abs(gap) <= NEAR else "; above it" if gap > 0 else "; below it: a better rival is no failure"
    why = f"lr = {setting.lr:g}, {schedule}{beside}"
    ours = f"{spread(row.errors)} %"
    return Claim(
        f"{words}, test error", f"{printed:.2f} %", ours, Kind.FIGURE, abs(gap) <= NEAR, why, seeds=len(row.runs)
    )


def difference(words: str, paper: str, first: Row, second: Row, rows: int, why: str = "") -> Claim:
    """Whether the first has the lower error: beyond two standard errors by the choice of the test data, paired."""
    gap = first.less(second, rows)
    found = None if abs(gap.in_errors) < 2 else gap.value < 0
    ours = f"{gap.value:+.2f} +- {gap.error:.2f} % ({spread(first.errors)} and {spread(second.errors)} %)"
    return Claim(words, paper, ours, Kind.COMPARISON, found, why, seeds=len(first.runs))


def of_speed(table: dict[str, Row]) -> Claim:
    """Figure 4b: after how many epochs the averages of pSGLD are where those of SGLD end."""
    psgld, sgld = (mean_curve(table[name]) for name in ("pSGLD, T = 1/N", "SGLD, T = 1/N"))
    epochs = [epoch for epoch, _, average in psgld if average <= sgld[-1][2]]
    ours = f"after {epochs[0]:.0f} of {len(sgld)} epochs where SGLD ends" if epochs else "not as low as SGLD"
    return Claim("pSGLD converges faster than SGLD", "Figure 4b", ours, Kind.COMPARISON, bool(epochs[:-1]))


def mean_curve(row: Row) -> list[list[float]]:
    """Epoch, errors of the last iterate and of the average, averaged over seeds."""
    return torch.tensor([run["curve"] for run in row.runs]).mean(0).tolist()


def of_weights(table: dict[str, Row]) -> Claim:
    """Figure 4a."""
    narrow, wide = (fmean(run["sd"] for run in table[name].runs) for name in ORDERS[5][::-1])
    ours = f"sd {wide:.3f} against {narrow:.3f}"
    return Claim(
        "weights spread wider with sigma^2 = 100 than with 1", "Figure 4a", ours, Kind.COMPARISON, wide > narrow
    )


def of_width(study: Study, tables: dict[int, dict[str, Row]]) -> Claim:
    """The error of pSGLD by width; one wider network with the step size of the others where there is one width."""
    by_width = {hidden: table["pSGLD, T = 1/N"].errors for hidden, table in tables.items()}
    if len(by_width) == 1:
        (hidden,) = by_width
        setting = tables[hidden]["pSGLD, T = 1/N"].setting
        epochs = study.of_scale(3, 30, 100)
        wider = study.result(network, hidden=2 * hidden, epochs=epochs, seed=1, **asdict(setting))
        by_width[2 * hidden] = [wider["average"]["error"]]
    falls = rises(list(by_width.values())[::-1])
    why = "" if falls is not None else "within two standard errors over seeds, or a width of one seed"
    ours = "; ".join(f"{hidden}: {spread(errors)} %" for hidden, errors in by_width.items())
    seeds = min(map(len, by_width.values()))
    words = "the error of pSGLD falls with the width"
    return Claim(words, "1.45, 1.32, 1.24 %", ours, Kind.COMPARISON, falls, why, seeds)


def of_length(study: Study, hidden: int, table: dict[str, Row]) -> list[Claim]:
    """pSGLD and SGLD after all epochs of the paper, one seed, where the rows above have fewer."""
    if study.scale is Scale.FULL:
        return []
    epochs = study.of_scale(4, 100, None)
    settings = [table[name].setting for name in ORDERS[0]]
    runs = study.results(network, [{"hidden": hidden, "epochs": epochs, "seed": 1} | asdict(own) for own in settings])
    found = []
    for name, setting, run in zip(ORDERS[0], settings, runs, strict=True):
        words = f"{hidden} units, {epochs} epochs: {name}"
        found.append(of_row(words, PRINTED[name][0], Row(setting, [run])))
    return found


def picture(study: Study, table: dict[str, Row]) -> None:
    """Figure 4b: the error by epoch of the averages, and of the last iterates."""
    with study.figure("mnist", columns=2, sharey=True) as both:
        for name in METHODS:
            curve = mean_curve(table[name])
            for axes, column in zip(both, (2, 1)):
                axes.semilogy([row[0] for row in curve], [row[column] for row in curve], label=name)
        for axes, title in zip(both, ("average", "last iterate")):
            axes.set(xlabel="epochs", ylabel="test error in %", title=title)
        both[0].legend(fontsize=7)


def picture_of_temperatures(study: Study, errors: dict[str, list[float]], printed: dict[str, float]) -> None:
    """The errors of averages at T = 1 and at T = 1/N, and of the same iterates without noise."""
    rows = {}
    for name, rival in (("pSGLD", "RMSprop, averaged"), ("SGLD", "SGD, averaged")):
        rows[name] = {f"T = {T}": errors[f"{name}, T = {T}"] for T in ("1", "1/N")} | {"no noise": errors[rival]}
    with study.figure("temperatures") as axes:
        beside(axes, rows, {name: printed[f"{name}, T = 1"] for name in rows})
        axes.set(xlabel="test error of the average in %")


EXPERIMENT = Experiment(
    "psgld-mnist",
    "pSGLD (Li, Chen, Carlson & Carin 2016), Table 2 and Figure 4: MNIST, fully connected",
    claims,
    files=[f"mnist/{name}" for name in IDX_FILES],
    seeds="3 seeds",
)
