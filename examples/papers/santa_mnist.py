"""Santa on MNIST with a fully connected network: Chen, Carlson, Gan, Li & Carin (2016), the column FNN-400.

784-400-400-10, ReLU, prior N(0, 1), batches of 100, lr or eta halved every fifth of the run. The poster prints no
settings. Its Santa is the stock one; eta and the first friction C (alpha_0 = sqrt(eta) C) are chosen like the lr of the
others, by the error on the last sixth of the training data. "Refinement only" has temperature 0 and the friction C
throughout. "Released" has the settings of the code that its authors published: eta = 4e-11, weight .1 of the past in V,
lam = 1e-4 and then 1e-5, a constant 100 in place of G2, a friction that starts at 1000, beta = t^.7. The first and the
last explore for three tenths of the run, then refine. What the release does beside that is left out: it takes the
gradient before the half step in which it is used, and averages it with the one before.

The release scores Santa by an average over networks after its burn-in, and its rivals by their last network
(FNN_CNN/experiments/SimpleExperiment.m, lines 129 to 136). Here every method is scored in both ways; the average is
over ten networks an epoch after three tenths of the run.

Reduced are the epochs.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import IDX_FILES
from psgld_learner import data_of, network_of, scores
from psgld_mnist import NEAR, Row
from study import Experiment, Study, beside, spread
from sympy import sqrt
from torch.nn import Module
from training import Curve, train
from verdicts import Claim, Kind, part

import samplers
from recipe import Recipe, adapted, force, fraction, friction, grad, noise, num_data, positive, potential, total, vector

BATCH = 100
EXPLORE = 0.3  # of the run
AVERAGED = 10  # networks an epoch
STAGES = 5  # lr is halved at the end of each but the last
FIRST_FRICTION = 1000.0  # of the release


def released() -> Recipe:
    """Santa with a constant diffusion in place of G2, as the release has it: the law is exact all the same."""
    theta, p, xi = vector("theta"), vector("p"), vector("xi")
    sigma = fraction("sigma", default=0.1, doc="weight of the past in V")
    lam = positive("lam", default=1e-4, doc="added to the root of V")
    G2 = positive("G2", default=100.0, doc="the diffusion of the momenta, and the mean of their friction")
    U = potential(theta)
    slope = grad(U) / num_data
    V = adapted("V", like=theta, start=slope**2, domain="nonnegative")
    return Recipe(
        name="santa-released",
        source="the code of Chen et al. 2016",
        state=(theta, p, xi),
        target=theta,
        H=U + total(p**2) / 2 + total((xi - G2) ** 2) / 2,
        D={p: G2},
        Q={(theta, p): -1 / sqrt(lam + sqrt(V)), (p, xi): p},
        adapt={V: sigma * V + (1 - sigma) * slope**2},
        order="same_step",
        pieces={"R": friction(p), "W": force(p) + noise(p)},
        scheme="A' R W R A'",
    )


RELEASED = released()


@dataclass(frozen=True)
class Setting:
    """How a network is trained: lr on the mean loss, for Santa eta N; its first friction, h C; beta = t^cooling.

    Without `cooling` Santa refines from its first step on.
    """

    optimizer: str
    lr: float
    friction: float | None = None
    cooling: float | None = None


EPOCHS = 100  # of the paper
SUM = 60_000  # eta of the release is on the sum over the data
METHODS = {  # the candidates, of which one is chosen where there are several
    "Santa, poster": [Setting("santa", eta * SUM, C, 0.5) for eta in (4e-10, 4e-9) for C in (0.03, 0.1, 0.3)],
    "Santa, refinement only": [Setting("santa", eta * SUM, C) for eta in (4e-10, 4e-9) for C in (0.03, 0.1, 0.3)],
    "Santa, released": [Setting("released", 4e-11 * SUM, FIRST_FRICTION * 4e-11**0.5, 0.7)],
    "Adam": [Setting("adam", lr) for lr in (1e-3, 5e-4, 2e-3, 4e-3)],
    "RMSprop": [Setting("rmsprop", lr) for lr in (5e-4, 1e-3, 2e-3, 4e-3)],
    "SGD-M": [Setting("momentum", lr) for lr in (0.1, 0.05, 0.2)],
    "SGD": [Setting("sgd", lr) for lr in (0.5, 0.25, 1.0)],
}
SANTAS = ("Santa, poster", "Santa, refinement only", "Santa, released")
PRINTED = {
    **dict.fromkeys(SANTAS, 1.21),
    "Adam": 1.53,
    "RMSprop": 1.59,
    "SGD-M": 1.66,
    "SGD": 1.72,
}


def optimizer_of(setting: Setting, network: Module, rows: int, seed: int) -> torch.optim.Optimizer:
    """Torch's own on the mean loss, or Santa."""
    decay = 1 / rows
    parameters = network.parameters()
    if setting.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=setting.lr, weight_decay=decay)
    if setting.optimizer == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=setting.lr, alpha=0.99, eps=1e-5, weight_decay=decay)
    if setting.optimizer in ("sgd", "momentum"):
        momentum = 0.9 if setting.optimizer == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=setting.lr, momentum=momentum, weight_decay=decay)
    recipe: Any = RELEASED if setting.optimizer == "released" else samplers.SANTA
    of_santa = {} if setting.optimizer == "released" else {"lam": 1e-4, "sigma": 0.99}
    return samplers.Optimizer(
        parameters, recipe, lr=setting.lr, num_data=rows, weight_decay=decay, temperature=1.0, seed=seed, **of_santa
    )


class Learner:
    """A network that learns from training data, with the errors on other data after each epoch."""

    def __init__(self, study: Study, setting: Setting, hidden: int, seed: int, validate: bool) -> None:
        self.setting = setting
        self.data, (self.inputs, self.labels) = data_of(study, validate)
        self.rows = len(self.data[0])
        self.network = network_of(hidden, seed)
        self.batches = samplers.Minibatches(self.data, min(BATCH, self.rows // 4), seed=seed)
        self.optimizer = optimizer_of(setting, self.network, self.rows, seed)
        self.curve = Curve()
        self.average = samplers.Predictive()
        self.burn_in = 0

    def train(self, epochs: int, folder: Path) -> None:
        """All epochs; Santa refines from the end of its exploration on."""
        explore = max(1, round(EXPLORE * epochs))
        self.burn_in = explore * len(self.batches)
        if self.setting.cooling is not None:
            self._part(epochs, explore, folder / "explore", self.cool)
        if isinstance(self.optimizer, samplers.Optimizer) and self.setting.cooling is not None:
            self.refine()
        self._part(epochs, epochs, folder / "refine", self.see)

    def _part(self, epochs: int, until: int, folder: Path, draw: Any) -> None:
        train(
            self.network,
            self.optimizer,
            self.batches,
            epochs=until,
            lr=lambda epoch: self.setting.lr * 0.5 ** (epoch * STAGES // epochs),
            draw=draw,
            folder=folder,
            settings=asdict(self.setting) | {"epochs": epochs},
            curve=self.curve,
            average=self.average,
        )

    def cool(self, step: int) -> None:
        """The temperature of the next step of the exploration."""
        assert self.setting.cooling is not None
        self.optimizer.param_groups[0]["temperature"] = (step + 1) ** -self.setting.cooling
        self.see(step)

    def refine(self) -> None:
        """Temperature 0, the thermostat frozen."""
        group = self.optimizer.param_groups[0]
        group["temperature"] = 0.0
        if self.setting.optimizer == "released":
            group["lam"] = 1e-5
        self.optimizer.freeze("xi")  # type: ignore[attr-defined]

    @torch.no_grad()
    def see(self, step: int) -> None:
        """The first friction after the first step; then a network of the average, and the errors after an epoch."""
        if step == 1 and self.setting.friction is not None:
            h = (self.setting.lr / self.rows) ** 0.5
            for p in self.network.parameters():
                self.optimizer.state[p]["xi"].fill_(self.setting.friction / h)
            if self.setting.cooling is None:
                self.refine()
        each = max(1, len(self.batches) // AVERAGED)
        if step > self.burn_in and step % each == 0:
            self.average.add(self.network(self.inputs))
        epoch, rest = divmod(step, len(self.batches))
        if not rest:
            self.curve.rows.append([epoch, *(score["error"] for score in self.scores().values())])

    @torch.no_grad()
    def scores(self) -> dict[str, dict]:
        """The scores of the network as it is, and of the average; of the network alone before there is one."""
        last = samplers.Predictive()
        last.add(self.network(self.inputs))
        average = self.average if self.average.draws else last
        return {"last": scores(last, self.labels), "average": scores(average, self.labels)}


def network(study: Study, hidden: int, epochs: int, seed: int, validate: bool = False, **setting: Any) -> dict:
    """The scores of a network, which goes on where it was interrupted."""
    settings = {"hidden": hidden, "epochs": epochs, "seed": seed, "validate": validate} | setting
    learner = Learner(study, Setting(**setting), hidden, seed, validate)
    learner.train(epochs, study.scratch(network, **settings))
    return learner.scores() | {"curve": learner.curve.rows}


def memory(study: Study, hidden: int, **setting: Any) -> dict:
    """How many steps the momenta of Santa remember, 1/(h xi), after an epoch: of the mean and of the least friction."""
    how = Setting(**setting)
    learner = Learner(study, how, hidden, seed=1, validate=True)
    learner.train(1, study.scratch(memory, hidden=hidden, **setting))
    xi = torch.cat([learner.optimizer.state[p]["xi"].flatten() for p in learner.network.parameters()])
    h = (how.lr / len(learner.data[0])) ** 0.5
    return {"mean": 1 / (h * float(xi.mean())), "longest": 1 / (h * float(xi.min()))}


def chosen(study: Study, candidates: list[Setting], hidden: int, epochs: int) -> Setting:
    """The lowest error on the data held back, in short runs; what diverges is out."""

    def held_back(setting: Setting) -> dict:
        return {"hidden": hidden, "epochs": epochs, "seed": 0, "validate": True} | asdict(setting)

    return study.best(candidates, network, held_back, lambda result: result["last"]["error"])


def claims(study: Study) -> list[Claim]:
    """The column of the table, and who is below whom."""
    hidden, epochs, seeds, trial = study.of_scale((16, 3, 1, 1), (400, 15, 3, 3), (400, EPOCHS, 3, 20))
    settings = {name: chosen(study, candidates, hidden, trial) for name, candidates in METHODS.items()}
    table = table_of(study, settings, hidden, epochs, seeds)
    picture(study, table)
    picture_of_scorings(
        study, {name: [replace(row, predictions=p).errors for p in ("last", "average")] for name, row in table.items()}
    )
    why = {name: remembered(study.result(memory, hidden=hidden, **asdict(settings[name]))) for name in SANTAS}
    return claims_of(study, table, epochs, why)


def table_of(study: Study, settings: dict[str, Setting], hidden: int, epochs: int, seeds: int) -> dict[str, Row]:
    """The rows by method, the first seed of all before the second of any."""
    runs: dict[str, list[dict]] = {name: [] for name in settings}
    for seed in range(1, seeds + 1):
        size = {"hidden": hidden, "epochs": epochs, "seed": seed}
        results = study.results(network, [size | asdict(setting) for setting in settings.values()])
        for name, result in zip(settings, results, strict=True):
            runs[name].append(result)
    return {name: Row(setting, runs[name], "last") for name, setting in settings.items()}


def remembered(steps: dict) -> str:
    """What the friction of Santa is worth at its step size."""
    mean, longest = (f"{steps[which]:.0f}" for which in ("mean", "longest"))
    spread = "" if mean == longest else f", some of them in {longest}"
    return f"its momenta forget in {mean} steps{spread}, those of SGD-M in 10"


SCORINGS = {  # of Santa, and of its rivals
    "as the release scores: Santa averaged, its rivals single": ("average", "last"),
    "all averaged": ("average", "average"),
    "all single": ("last", "last"),
}


def claims_of(
    study: Study, table: dict[str, Row], epochs: int, why: dict[str, str], printed: dict[str, float] = PRINTED
) -> list[Claim]:
    """The rows after so many epochs, and their order; `why` is of Santa's."""
    rows = len(data_of(study, validate=False)[1][1])
    drafts = [of_row(name, row, epochs, printed[name]) for name, row in table.items()]
    for santa in (name for name in SANTAS if name in table):
        orders = {words: below(table, santa, pair, rows) for words, pair in SCORINGS.items()}
        holds = next((words for words, (_, lower) in orders.items() if lower), "")
        for words, (gaps, lower) in orders.items():
            rivals = [name for name in table if name not in SANTAS]
            drafts.append(
                Claim(
                    f"{santa}, below {', '.join(rivals)} after {epochs} epochs, {words}",
                    "; ".join(str(printed[name]) for name in (santa, *rivals)),
                    gaps,
                    Kind.COMPARISON,
                    lower,
                    why[santa],
                    seeds=len(table[santa].runs),
                    elsewhere="" if lower else holds,
                )
            )
    return [replace(claim, reduced=part(epochs, EPOCHS, "epochs")) for claim in drafts]


def below(table: dict[str, Row], santa: str, scoring: tuple[str, str], rows: int) -> tuple[str, bool | None]:
    """How far Santa is below each rival, and whether it is below all, beyond two errors; None where that is open."""
    ours = replace(table[santa], predictions=scoring[0])
    gaps = {}
    for name, row in table.items():
        if name not in SANTAS:
            gaps[name] = ours.less(replace(row, predictions=scoring[1]), rows)
    words = "; ".join(f"{gap.value:+.2f} +- {gap.error:.2f} % to {name}" for name, gap in gaps.items())
    if all(gap.in_errors < -2 for gap in gaps.values()):
        return words, True
    return words, False if any(gap.in_errors > 2 for gap in gaps.values()) else None


def of_row(name: str, row: Row, epochs: int, printed: float) -> Claim:
    """Test errors in both scorings beside the printed one, which the release's scoring is compared with."""
    single, average = (replace(row, predictions=which).errors for which in ("last", "average"))
    scored = average if name in SANTAS else single
    is_near = abs(fmean(scored) - printed) <= NEAR
    friction = row.setting.friction
    why = f"lr = {row.setting.lr:g}" + ("" if friction is None else f", h C = {friction:.2g}")
    if name not in SANTAS and fmean(scored) < printed - NEAR:
        why += "; a baseline below the printed one is no failure"
    words = f"{name}, test error after {epochs} epochs"
    ours = f"single {spread(single)} %, averaged {spread(average)} %"
    return Claim(words, f"{printed} %", ours, Kind.FIGURE, is_near, why, seeds=len(row.runs))


def picture(study: Study, table: dict[str, Row]) -> None:
    """The errors by epoch, averaged over seeds: of single networks, and of averages."""
    with study.figure("mnist", columns=2, sharey=True) as both:
        for column, (axes, words) in enumerate(zip(both, ("single networks", "averages"), strict=True), start=1):
            for name, row in table.items():
                curve = torch.tensor([run["curve"] for run in row.runs]).mean(0)
                axes.semilogy(curve[:, 0], curve[:, column], label=name)
            axes.set(xlabel="epochs", title=words)
        both[0].set(ylabel="test error in %")
        both[0].legend(fontsize=7)


def picture_of_scorings(study: Study, errors: dict[str, list[list[float]]]) -> None:
    """The errors of the last network, and of the average, of each method."""
    rows = {name: dict(zip(("single", "averaged"), both, strict=True)) for name, both in errors.items()}
    with study.figure("scorings") as axes:
        beside(axes, rows, PRINTED)
        axes.set(xlabel="test error in %")


EXPERIMENT = Experiment(
    "santa-mnist",
    "Santa (Chen, Carlson, Gan, Li & Carin 2016), test error on MNIST, FNN-400",
    claims,
    files=[f"mnist/{name}" for name in IDX_FILES],
    seeds="3 seeds",
)
