"""Santa on polyphonic music: Chen, Carlson, Gan, Li & Carin (2016), the table of piano rolls.

A recurrent network, GRU of 200 units as in the authors' code, has heard x_1 ... x_{t-1} and gives each of 88 keys a
probability at t; the score is the NLL in nats per time step, that of the test set after the epoch that is best on the
official validation set. Their lr is 1e-3 for the rivals, and 1e-3 or 2e-4 for Santa, on the mean over time steps; Santa
has sigma = .95, beta = sqrt(t), a friction of .5 a step at first, and explores for 15 % of the run. "Refinement only"
is the code's Santa_r, of temperature 0 throughout, whose friction still grows by p^2. Where the code has one lr for
all, "lr chosen" has the one that is best on the validation set. RMSprop is torch's, once with the code's rho = .9 and
1e-6 under the root, and once with its gradients, too, which it always scales to the norm 5.

Batches are 16 pieces of 100 steps at most, where the code takes a whole sequence at a time; gradients are not clipped.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy
import torch
from datasets import read_npz
from study import Experiment, Study, spread
from torch import Tensor
from torch.nn import GRU, Linear, Module, Parameter
from torch.nn.functional import binary_cross_entropy_with_logits
from training import Curve, train
from verdicts import Claim, Kind, part, rises

import samplers
from recipe.errors import RecipeError

KEYS, BATCH, PIECE = 88, 16, 100  # keys of a piano; pieces in a batch, and their time steps
EPOCHS = 100  # of the paper
EXPLORE, FIRST_FRICTION = 0.15, 0.5  # share of the run; of momenta in one step
NORM, SCALED = 5.0, "-scaled"  # of all gradients of the release; of optimizers whose gradients are scaled to it
NEAR = 0.1  # nats: so near to a printed figure is the same
SETS = {"jsb": "JSB", "piano": "Piano", "nottingham": "Nott", "muse": "Muse"}
PRINTED = {
    "Santa": {"piano": 7.60, "nottingham": 3.39, "muse": 7.20, "jsb": 8.46},
    "Adam": {"piano": 8.00, "nottingham": 3.70, "muse": 7.56, "jsb": 8.51},
    "RMSprop": {"piano": 7.70, "nottingham": 3.48, "muse": 7.22, "jsb": 8.52},
    "SGD-M": {"piano": 8.32, "nottingham": 3.60, "muse": 7.69, "jsb": 8.59},
    "SGD": {"piano": 11.13, "nottingham": 5.26, "muse": 10.08, "jsb": 10.81},
}


@dataclass(frozen=True)
class Setting:
    """The optimizer, and its lr on the mean over time steps."""

    optimizer: str
    lr: float


METHODS = {  # candidates, of which the best on the validation set counts
    "Santa": [Setting("santa", lr) for lr in (1e-3, 2e-4)],
    "Santa, refinement only": [Setting("santa-refined", lr) for lr in (1e-3, 2e-4)],
    "Adam": [Setting("adam", 1e-3)],
    "RMSprop": [Setting("rmsprop", 1e-3)],
    "RMSprop, rho and eps as released": [Setting("rmsprop-released", 1e-3)],
    "RMSprop, scaled as released, too": [Setting("rmsprop-released-scaled", 1e-3)],
    "SGD-M": [Setting("momentum", 1e-3)],
    "SGD-M, lr chosen": [Setting("momentum", lr) for lr in (0.1, 0.3)],
    "SGD": [Setting("sgd", 1e-3)],
    "SGD, lr chosen": [Setting("sgd", lr) for lr in (0.3, 1.0)],
}
SANTAS = ("Santa", "Santa, refinement only")
AS_RELEASED = ("Adam", "RMSprop, rho and eps as released", "RMSprop, scaled as released, too", "SGD-M", "SGD")


class Listener(Module):
    """What comes next: logits of the keys at t, given all before, from a learned first state."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.first = Parameter(torch.zeros(1, 1, units))
        self.memory = GRU(KEYS, units, batch_first=True)
        self.keys = Linear(units, KEYS)

    def forward(self, rolls: Tensor) -> Tensor:
        """`(sequences, steps, keys)` in and out."""
        past = torch.cat([torch.zeros_like(rolls[:, :1]), rolls[:, :-1]], 1)
        states, _ = self.memory(past, self.first.expand(1, len(rolls), -1).contiguous())
        return self.keys(states)


def surprise(network: Module, rolls: Tensor, heard: Tensor) -> Tensor:
    """The NLL in nats per time step, over the steps that are `heard` and no padding."""
    each = binary_cross_entropy_with_logits(network(rolls), rolls, reduction="none").sum(-1)
    return (each * heard).sum() / heard.sum()


def mean_surprise(network: Module, groups: list[tuple[Tensor, Tensor]]) -> float:
    """The NLL in nats per time step of all sequences of the groups."""
    steps = [int(heard.sum()) for _, heard in groups]
    with torch.no_grad():
        sums = [n * float(surprise(network, *group)) for n, group in zip(steps, groups, strict=True)]
    return sum(sums) / sum(steps)


def sequences(folder: Path, name: str, part: str) -> list[Tensor]:
    """The piano rolls of a part of a data set, `(steps, keys)` each; RecipeError where lengths and rolls differ."""
    file = f"polymusic/{name}.npz"
    packed, lengths = read_npz(folder, file, f"{part}_roll", f"{part}_len")
    if packed.ndim != 2 or packed.shape[1] * 8 < KEYS or lengths.ndim != 1 or lengths.sum() != len(packed):
        what = f"{part}_roll of the shape {packed.shape} does not have the {lengths.sum()} steps of {part}_len"
        raise RecipeError(str(folder / file), what, do="Pass rolls of 88 keys, bits packed, end to end.")
    rolls = torch.from_numpy(numpy.unpackbits(packed, axis=1)[:, :KEYS].astype(numpy.float32))
    return list(rolls.split(lengths.tolist()))


def padded(rolls: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Side by side, `(sequences, steps, keys)`, and where they are heard, `(sequences, steps)`."""
    heard = [torch.ones(len(roll)) for roll in rolls]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rolls, batch_first=True), pad(heard, batch_first=True)


def by_length(rolls: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Groups of sequences of nearly one length, side by side, so that little is padding."""
    rolls = sorted(rolls, key=len)
    return [padded(rolls[k : k + BATCH]) for k in range(0, len(rolls), BATCH)]


class ReleasedRMSprop(torch.optim.Optimizer):
    """RMSprop as the authors' code has it: theta <- theta - lr g/sqrt(V + 1e-6), V <- .9 V + .1 g^2 from 0."""

    def __init__(self, parameters: Iterable[Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step; the root is of V + 1e-6, where torch adds to the root."""
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad + group["weight_decay"] * p
                V = self.state[p].setdefault("V", torch.zeros_like(p))
                V.mul_(0.9).addcmul_(g, g, value=0.1)
                p.addcdiv_(g, (V + 1e-6).sqrt(), value=-group["lr"])


def scale(parameters: list[Parameter]) -> None:
    """Scales the gradients of all parameters to the norm 5."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    factor = NORM / torch.cat([g.flatten() for g in gradients]).norm()
    for g in gradients:
        g.mul_(factor)


def optimizer_of(setting: Setting, network: Module, steps: int, seed: int) -> torch.optim.Optimizer:
    """Torch's own on the mean over time steps, RMSprop of the release, or Santa; the prior is N(0, 1).

    Where the name of the optimizer ends in "-scaled", gradients of the loss are scaled to the norm 5 before each step.
    """
    decay, parameters = 1 / steps, list(network.parameters())
    if setting.optimizer.endswith(SCALED):
        own = replace(setting, optimizer=setting.optimizer.removesuffix(SCALED))
        optimizer = optimizer_of(own, network, steps, seed)
        optimizer.register_step_pre_hook(lambda *_: scale(parameters))
        return optimizer
    if setting.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=setting.lr, weight_decay=decay)
    if setting.optimizer == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=setting.lr, weight_decay=decay)
    if setting.optimizer == "rmsprop-released":
        return ReleasedRMSprop(parameters, lr=setting.lr, weight_decay=decay)
    if setting.optimizer in ("sgd", "momentum"):
        momentum = 0.9 if setting.optimizer == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=setting.lr, momentum=momentum, weight_decay=decay)
    own: dict[str, Any] = {"sigma": 0.95, "lam": 1e-4, "temperature": float(setting.optimizer == "santa")}
    return samplers.Optimizer(
        parameters, samplers.SANTA, lr=setting.lr, num_data=steps, weight_decay=decay, seed=seed, **own
    )


def learned(study: Study, data: str, units: int, epochs: int, seed: int, batch: int = BATCH, **setting: Any) -> dict:
    """NLL of validation and test after the best epoch, the curve of both, and the steps of an epoch."""
    own = {"data": data, "units": units, "epochs": epochs, "seed": seed, "batch": batch} | setting
    how = Setting(**setting)
    rolls = sequences(study.data, data, "train")
    pieces = padded([piece for roll in rolls for piece in roll.split(PIECE)])
    scored = [by_length(sequences(study.data, data, part)) for part in ("valid", "test")]
    torch.manual_seed(seed)
    network = Listener(units)
    batches = samplers.Minibatches(pieces, min(batch, len(pieces[0]) // 2), seed=seed)
    steps = int(pieces[1].sum())
    optimizer = optimizer_of(how, network, steps, seed)
    curve = Curve()

    def see(step: int) -> None:
        if step == 1 and isinstance(optimizer, samplers.Optimizer):
            for p in network.parameters():
                optimizer.state[p]["xi"].fill_(FIRST_FRICTION / math.sqrt(how.lr / steps))
        epoch, rest = divmod(step, len(batches))
        if not rest:
            curve.rows.append([epoch, *(mean_surprise(network, groups) for groups in scored)])

    def cool(step: int) -> None:
        optimizer.param_groups[0]["temperature"] = (step + 1) ** -0.5
        see(step)

    def part(until: int, name: str, draw: Any) -> None:
        train(
            network,
            optimizer,
            batches,
            epochs=until,
            lr=lambda epoch: how.lr,
            draw=draw,
            folder=study.scratch(learned, **own) / name,
            settings=asdict(how) | {"epochs": epochs},
            loss=surprise,
            curve=curve,
        )

    if how.optimizer.removesuffix(SCALED) == "santa":
        assert isinstance(optimizer, samplers.Optimizer)
        part(max(1, round(EXPLORE * epochs)), "explore", cool)
        optimizer.param_groups[0]["temperature"] = 0.0
        optimizer.freeze("xi")
    part(epochs, "refine", see)
    return best_epoch(curve.rows) | {"steps": len(batches)}


def best_epoch(rows: list[list[float]]) -> dict:
    """The NLL where that of the validation set is lowest; infinite where a run diverges."""
    finite = [row for row in rows if all(map(math.isfinite, row))]
    epoch, valid, test = min(finite, key=lambda row: row[1], default=[0, math.inf, math.inf])
    return {"epoch": epoch, "valid": valid, "test": test, "curve": rows}


# ---- the claims


def claims(study: Study) -> list[Claim]:
    """The rows of each data set, and whether Santa is lowest."""
    lengths, units, runs = study.of_scale(
        ({"jsb": 3}, 8, {"jsb": 1}),
        ({"jsb": EPOCHS, "piano": 30, "nottingham": 4, "muse": 3}, 200, dict.fromkeys(SETS, 1) | {"jsb": 3}),
        (dict.fromkeys(SETS, EPOCHS), 200, dict.fromkeys(SETS, 3)),
    )
    found = []
    curves = {}
    for data, epochs in lengths.items():
        seeds = runs[data]
        size = {"data": data, "units": units, "epochs": epochs}
        rows = {method: best_of(study, candidates, seeds, size) for method, candidates in METHODS.items()}
        own = [of_row(data, method, of_seed, epochs) for method, of_seed in rows.items()]
        own += [of_order(data, santa, rows) for santa in SANTAS]
        found += [replace(claim, seeds=seeds, reduced=part(epochs, EPOCHS, "epochs")) for claim in own]
        curves[data] = {method: of_seed[0]["curve"] for method, of_seed in rows.items()}
    picture(study, curves)
    return found


def best_of(study: Study, candidates: list[Setting], seeds: int, size: dict[str, Any]) -> list[dict]:
    """The runs by seed of the candidate with the lowest NLL on the validation set; what diverges is out."""
    runs = []
    for setting in candidates:
        try:
            own = size | asdict(setting)
            results = study.results(learned, [own | {"seed": seed} for seed in range(1, seeds + 1)])
            runs.append([result | asdict(setting) for result in results])
        except RecipeError as refusal:
            study.log(f"  out: {refusal}")
    if not runs:
        raise RecipeError("santa-music", f"all of {candidates} diverge", do="Give smaller lr.")
    return min(runs, key=lambda of_seed: fmean(run["valid"] for run in of_seed))


def of_row(data: str, method: str, runs: list[dict], epochs: int) -> Claim:
    """A test NLL beside the printed one."""
    ours = [run["test"] for run in runs]
    printed = PRINTED[method.partition(",")[0]][data]
    best = ", ".join(f"{run['epoch']:.0f}" for run in runs)
    why = f"lr = {runs[0]['lr']:g}, best after epoch{'s' if len(runs) > 1 else ''} {best} of {epochs}"
    if fmean(ours) < printed - NEAR and method not in SANTAS:
        why += "; a baseline below the printed one is no failure"
    same = abs(fmean(ours) - printed) <= NEAR
    return Claim(f"{SETS[data]}: {method}, test NLL", f"{printed:.2f}", spread(ours), Kind.FIGURE, same, why)


def of_order(data: str, santa: str, rows: dict[str, list[dict]]) -> Claim:
    """Whether this Santa is below its best rival, beyond two standard errors, or else below those of the code."""
    tests = {method: [run["test"] for run in runs] for method, runs in rows.items()}
    rival, released = (
        min(rivals, key=lambda method: fmean(tests[method]))
        for rivals in ([method for method in tests if method not in SANTAS], AS_RELEASED)
    )
    ours = f"{spread(tests[santa])}; {rival} {spread(tests[rival])}"
    printed = f"{PRINTED['Santa'][data]:.2f}; " + ", ".join(
        f"{method} {PRINTED[method][data]:.2f}" for method in ("Adam", "RMSprop")
    )
    lowest = rises([tests[santa], tests[rival]])
    elsewhere = (
        f"in batches of {BATCH}, beside rivals with the constants of the code, {released} {spread(tests[released])}"
    )
    return Claim(
        f"{SETS[data]}: {santa} lowest",
        printed,
        ours,
        Kind.COMPARISON,
        lowest,
        "lr of the rivals chosen where it says so",
        elsewhere=elsewhere if rises([tests[santa], tests[released]]) else "",
    )


def picture(study: Study, curves: dict[str, dict[str, list[list[float]]]]) -> None:
    """The NLL of the validation set by epoch."""
    with study.figure("music", columns=len(curves), squeeze=False) as axes:
        for ax, (data, rows) in zip(axes[0], curves.items(), strict=True):
            for method, curve in rows.items():
                ax.plot([row[0] for row in curve], [row[1] for row in curve], label=method)
            ax.set(xlabel="epochs", ylabel="NLL of the validation set", title=SETS[data])
            ax.legend(fontsize=7)


EXPERIMENT = Experiment(
    "santa-music",
    "Santa (Chen, Carlson, Gan, Li & Carin 2016), polyphonic music, nats per time step",
    claims,
    files=[f"polymusic/{name}.npz" for name in SETS],
    seeds="3 seeds of JSB, one of the others",
)
