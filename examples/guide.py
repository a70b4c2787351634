"""From an ordinary training loop to a posterior, on Fashion-MNIST: all that is chosen is chosen by a rule.

    python examples/guide.py --data FOLDER            # the four idx files of Fashion-MNIST, plain or .gz
    python examples/guide.py --data FOLDER --quick    # less data, few epochs: to see that it works

1. The loop is `train` below, an ordinary one. In `optimizer_of` one line makes a sampler of it.
2. A sampler, lr, temperature and prior have to be chosen. `choose` is the rule: the last sixth of the training data is
   held back for validation; one axis after another, every value of the axis is tried with the others as chosen so far,
   and the one whose averaged predictions have the lowest NLL on the held-back data is kept. The test set is not looked
   at. The axes are in METHODS, each beginning with where the rule starts.
3. What did sampling buy? SGD, SGD with averaged predictions and a deep ensemble choose by the same rule, each for the
   predictions that it makes; every run has the same number of epochs, which the members of an ensemble share. At the
   end each method is trained on all training data, with three seeds, and scored on the test set, once.

The averages are over the predictions after each epoch of the later half of the run, or of each cycle. Errors are
standard errors over seeds; those of the differences, over the test images, are paired.

Found, at the defaults, with the members of ensembles trained one after another:

                                  NLL         accuracy              ECE   NLL less that of the sampler
    SGD              0.3155 +- 0.0009 0.8890 +- 0.0006 0.0085 +- 0.0010              +0.0169 +- 0.0017
    SGD, averaged    0.2996 +- 0.0023 0.8980 +- 0.0008 0.0123 +- 0.0012              +0.0011 +- 0.0026
    deep ensemble    0.3129 +- 0.0009 0.8889 +- 0.0014 0.0098 +- 0.0010              +0.0144 +- 0.0016
    sampler, T = 1   0.3407 +- 0.0010 0.8762 +- 0.0005 0.0116 +- 0.0005              +0.0422 +- 0.0025
    sampler          0.2985 +- 0.0007 0.8939 +- 0.0006 0.0099 +- 0.0010

The rule took SGHMC at T = 0.01 with a cyclical lr. It is better than SGD and than an ensemble of equal compute, but
cannot be told from SGD with averaged predictions, which is the more accurate: sampling bought what averaging buys. The
posterior itself, T = 1, predicts less well than any of them in so many epochs.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import torch
from papers.datasets import IDX_FILES, SOURCES, Data, read_mnist
from torch import Tensor
from torch.nn import Linear, Module, ReLU, Sequential
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

import samplers
from recipe.errors import RecipeError
from samplers.scores import accuracy, expected_calibration_error, negative_log_likelihood, paired

CYCLES = 4
EPOCHS_OF_DRAWS = 400  # of a run, at most, at equal distances; the later half of them are draws


@dataclass(frozen=True)
class Setting:
    """How networks are trained: `members` of them, each with its share of the epochs.

    `lr` is that of SGD on the mean loss, `prior` the variance of a weight; `schedule` is of lr. The first half of the
    run may be a burn-in by an optimizer.
    """

    optimizer: str
    lr: float
    prior: float
    schedule: str = "constant"
    temperature: float = 1.0
    members: int = 1
    burn_in: "Setting | None" = None

    def __str__(self) -> str:
        law = "" if self.optimizer in BASELINES else f", T = {self.temperature:g}"
        members = f", {self.members} members" if self.members > 1 else ""
        members += f", after {self.burn_in.optimizer}" if self.burn_in else ""
        return f"{self.optimizer}, lr = {self.lr:g}, prior {self.prior:g}, {self.schedule}{law}{members}"


@dataclass(frozen=True)
class Method:
    """A row of the table: where the rule starts, the values of each axis, and the predictions that are averaged.

    These are of each member, after its last epoch, or after each epoch of the later half.
    """

    start: Setting
    axes: Mapping[str, tuple]
    average: bool = False


@dataclass(frozen=True)
class Problem:
    """What is learned.

    `network` makes one; `loss` is minus the mean log likelihood of labels given outputs, and `nll` minus
    that of each datum under the average of draws `(draws, rows, outputs)`.
    """

    network: Callable[[], Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    nll: Callable[[Tensor, Tensor], Tensor]
    batch_size: int
    epochs: int


# ---- 1. the loop

BASELINES = {"sgd": partial(torch.optim.SGD, momentum=0.9), "adam": torch.optim.Adam}
SAMPLERS = {"sghmc": {"momentum": 0.9}, "sgnht": {"momentum": 0.9}, "psgld-same-step": {"lam": 1e-3}}


def optimizer_of(setting: Setting, network: Module, rows: int, seed: int) -> torch.optim.Optimizer:
    """The optimizer, or the sampler of exp(-U/T) with U = rows loss + |weights|^2/(2 prior).

    Biases, and a scale of noise, have the prior N(0, 1).
    """
    weights, rest = [], []
    for name, p in network.named_parameters():
        (weights if name.endswith("weight") else rest).append(p)
    groups = [
        {"params": weights, "weight_decay": 1 / (rows * setting.prior)},
        {"params": rest, "weight_decay": 1 / rows},
    ]
    if setting.optimizer in BASELINES:
        return BASELINES[setting.optimizer](groups, lr=setting.lr)
    arguments = {"temperature": setting.temperature, "seed": seed} | SAMPLERS[setting.optimizer]
    return samplers.Optimizer(groups, setting.optimizer, lr=setting.lr, num_data=rows, **arguments)


def cycle(setting: Setting, part: float) -> float:
    """How much of the run, or of its cycle, is over where `part` of the run is."""
    return part * CYCLES % 1 if setting.schedule == "cyclical" else part


def factor(setting: Setting, steps: int, step: int) -> float:
    """What lr is multiplied with at a step of so many."""
    return 1.0 if setting.schedule == "constant" else (1 + math.cos(math.pi * cycle(setting, step / steps))) / 2


def stages(setting: Setting, epochs: int) -> list[tuple[Setting, int]]:
    """What is done for how many epochs."""
    if setting.burn_in is None:
        return [(setting, epochs)]
    return [(setting.burn_in, epochs // 2), (setting, epochs - epochs // 2)]


@dataclass(frozen=True)
class Run:
    """The outputs after the epochs that are kept, `(draws, rows, outputs)`, what the optimizer says, and seconds."""

    outputs: Tensor
    report: str
    seconds: float


def train(method: Method, setting: Setting, problem: Problem, data: Data, inputs: Tensor, seed: int) -> Run:
    """Train the members; what they predict for `inputs` after each epoch of the later half, or after the last."""
    began = time.monotonic()
    ensemble = samplers.Ensemble(problem.network, members=setting.members, seed=seed)
    size = min(problem.batch_size, len(data[0]))
    batches = samplers.Minibatches(data, size, members=setting.members, seed=seed)
    epochs = max(2, problem.epochs // setting.members)
    thin = -(-epochs // EPOCHS_OF_DRAWS)
    outputs = []
    epoch = 0
    for stage, length in stages(setting, epochs):
        optimizer = optimizer_of(stage, ensemble, len(data[0]), seed)
        scheduler = LambdaLR(optimizer, partial(factor, stage, length * len(batches)))
        for _ in range(length):
            for x, y in batches:
                optimizer.zero_grad()
                ensemble.loss(problem.loss, x, y).backward()
                optimizer.step()
                scheduler.step()
            is_draw = method.average and epoch % thin == 0 and cycle(setting, (epoch + 0.5) / epochs) > 0.5
            epoch += 1
            if is_draw or epoch == epochs:
                with torch.no_grad():
                    outputs.append(ensemble(inputs))
    report = str(optimizer.report()) if isinstance(optimizer, samplers.Optimizer) else ""
    return Run(torch.cat(outputs), report, time.monotonic() - began)


# ---- 2. the rule


@dataclass(frozen=True)
class Choice:
    """What the rule chose, and the NLL on validation data of all that it tried."""

    setting: Setting
    tried: dict[Setting, float]


def choose(method: Method, problem: Problem, data: Data, held_back: Data, seed: int = 0) -> Choice:
    """One axis after another, the value with the lowest NLL on the data held back; what diverges is out."""
    tried: dict[Setting, float] = {}

    def nll(setting: Setting) -> float:
        if setting not in tried:
            tried[setting] = nll_of(method, setting, problem, data, held_back, seed)
            print(f"  {tried[setting]:8.4f}  {setting}", flush=True)
        return tried[setting]

    setting = method.start
    for axis, values in method.axes.items():
        setting = min((replace(setting, **{axis: value}) for value in values), key=nll)
    if not math.isfinite(nll(setting)):
        raise RecipeError("choose", "every setting that was tried diverges", do="Give smaller values of lr.")
    return Choice(setting, tried)


def nll_of(method: Method, setting: Setting, problem: Problem, data: Data, held_back: Data, seed: int) -> float:
    """The mean NLL of the data held back; infinite for a run that diverges."""
    try:
        outputs = train(method, setting, problem, data, held_back[0], seed).outputs
    except RecipeError:  # a sampler says where its gradients are no longer finite
        return math.inf
    return float(problem.nll(outputs, held_back[1]).mean()) if outputs.isfinite().all() else math.inf


# ---- 3. Fashion-MNIST

SGD = Setting("sgd", lr=0.02, prior=0.1)
SAMPLER = Setting("sghmc", lr=0.02, prior=0.1)
AXES = {"lr": (0.02, 0.005, 0.05), "prior": (0.1, 1.0, 0.01)}
OF_SGD = AXES | {"schedule": ("constant", "cosine")}
OF_SAMPLERS = AXES | {"schedule": ("constant", "cyclical"), "optimizer": ("sghmc", "sgnht"), "members": (1, 3)}
METHODS = {
    "SGD": Method(SGD, OF_SGD),
    "SGD, averaged": Method(SGD, AXES | {"schedule": ("constant", "cosine", "cyclical")}, average=True),
    "deep ensemble": Method(replace(SGD, members=5), OF_SGD | {"members": (5, 3)}),
    "sampler, T = 1": Method(SAMPLER, OF_SAMPLERS, average=True),
    "sampler": Method(SAMPLER, {"temperature": (1.0, 0.1, 0.01)} | OF_SAMPLERS, average=True),
}


def network() -> Sequential:
    """784 pixels, a layer of 200, ten classes."""
    return Sequential(Linear(784, 200), ReLU(), Linear(200, 10))


def probabilities(logits: Tensor) -> Tensor:
    """The average over draws of what they predict."""
    predictive = samplers.Predictive()
    predictive.add(logits)
    return predictive.probabilities


def nll_of_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """-log of the average probability of each label."""
    return negative_log_likelihood(probabilities(logits), labels, each=True)


def fashion(folder: Path, rows: int | None) -> tuple[Data, Data]:
    """Training and test data, the pixels standardised by those of training; `rows`: so many to learn from."""
    (x, y), (test_x, test_y), _ = read_mnist(folder, mirror=SOURCES["fashion-mnist"])
    x, y = x[:rows].flatten(1), y[:rows]
    mean, sd = x.mean(), x.std()
    return ((x - mean) / sd, y), ((test_x.flatten(1) - mean) / sd, test_y)


def split(data: Data) -> tuple[Data, Data]:
    """What is learned from during the choice, and the sixth that is held back."""
    x, y = data
    rows = len(x) - len(x) // 6
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


# ---- 4. what it bought


def scored(runs: list[Run], labels: Tensor) -> dict[str, list[float]]:
    """The scores of each seed on the test set."""
    predictions = [probabilities(r.outputs) for r in runs]
    scores = {"nll": negative_log_likelihood, "accuracy": accuracy, "ece": expected_calibration_error}
    return {name: [score(p, labels) for p in predictions] for name, score in scores.items()}


def with_error(values: list[float], digits: int = 4) -> str:
    """The mean, and its standard error where there are several."""
    error = f" +- {stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error}"


HEAD = f"{'':16}{'NLL':>17}{'accuracy':>17}{'ECE':>17}{'NLL less that of the sampler':>31}{'time':>8}"


def line(name: str, row: dict) -> str:
    """A line under HEAD."""
    gap = row["less_sampler"]
    difference = "" if gap is None else f"{gap['value']:+.4f} +- {gap['error']:.4f}"
    cells = "".join(f"{with_error(row[score]):>17}" for score in ("nll", "accuracy", "ece"))
    return f"{name:16}{cells}{difference:>31}{fmean(row['seconds']):6.0f} s"


def verdict(rows: dict[str, dict]) -> str:
    """What sampling bought, in a sentence for each of the others."""
    sentences = []
    for name, row in rows.items():
        gap = row["less_sampler"]
        if gap is None:
            continue
        errors = gap["value"] / gap["error"] if gap["error"] else 0.0
        if abs(errors) < 2:
            sentences.append(f"It cannot be told from {name}: {abs(errors):.1f} standard errors.")
        else:
            side = "below" if errors > 0 else "above"
            sentences.append(f"Its NLL is {side} that of {name}, by {abs(errors):.1f} standard errors.")
    return "\n".join(["The sampler:", *sentences])


def guide(folder: Path, seeds: int, rows: int | None, epochs: int) -> dict[str, dict]:
    """The rows of the table, by method, printed on the way."""
    data, (test_x, test_y) = fashion(folder, rows)
    problem = Problem(network, cross_entropy, nll_of_labels, batch_size=100, epochs=epochs)
    learned, held_back = split(data)
    print(f"{len(learned[0])} images to learn from, {len(held_back[0])} held back, {epochs} epochs")
    table, each = {}, {}
    for name, method in METHODS.items():
        began = time.monotonic()
        print(f"\n{name}: NLL on the images held back")
        choice = choose(method, problem, learned, held_back)
        print(f"{name}: {choice.setting}; the rule took {time.monotonic() - began:.0f} s", flush=True)
        runs = [train(method, choice.setting, problem, data, test_x, seed) for seed in range(1, seeds + 1)]
        each[name] = torch.stack([problem.nll(r.outputs, test_y) for r in runs]).mean(0)
        tried = [asdict(setting) | {"nll": nll} for setting, nll in choice.tried.items()]
        seconds = [r.seconds for r in runs]
        table[name] = scored(runs, test_y) | {"seconds": seconds, "setting": asdict(choice.setting), "tried": tried}
        if runs[0].report:
            print(runs[0].report, flush=True)
    for name, row in table.items():
        row["less_sampler"] = None if name == "sampler" else asdict(paired(each[name], each["sampler"]))
    return table


def write_table(folder: Path, name: str, text: str, table: dict) -> None:
    """Print the text, and write it and the table to NAME.txt and NAME.json of a folder."""
    print("", text, sep="\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(text + "\n")
    (folder / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Run the guide; the exit code is 2 for wrong use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the four idx files of Fashion-MNIST, plain or .gz")
    parser.add_argument("--epochs", type=int, default=25, help="of every run, default 25")
    parser.add_argument("--seeds", type=int, default=3, help="of the runs on all training data, default 3")
    parser.add_argument("--quick", action="store_true", help="6000 images, 5 epochs, 2 seeds: a minute")
    parser.add_argument("--out", type=Path, default=Path("out/guide"), help="folder for guide.json and guide.txt")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    size = (2, 6000, 5) if options.quick else (options.seeds, None, options.epochs)
    try:
        if options.data is None:
            files = ", ".join(f"{name}.gz" for name in IDX_FILES)
            raise RecipeError("--data", "no folder was given", do=f"Fetch {files} from {SOURCES['fashion-mnist']}")
        table = guide(options.data, *size)
    except (RecipeError, OSError) as error:
        print("guide:", *str(error).split(), file=sys.stderr)
        return 2
    text = "\n".join([HEAD, *(line(name, row) for name, row in table.items()), "", verdict(table)])
    write_table(options.out, "guide", text, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
