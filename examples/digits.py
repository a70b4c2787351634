"""A torch classifier, trained in one ordinary loop by SGD and by samplers.

Only the line that makes the optimizer differs. The data are scikit-learn's digits, 8 x 8 images: 1200 to learn from,
597 to test on, and the same 597 with the pixels of each permuted, which no class fits. A sampler draws the weights
theta of the network from exp(-U(theta)/T), where U = num_data * loss + |theta|^2/(2 * PRIOR): the mean loss that the
loop computes, scaled up to the whole data, and a Gaussian prior, which is the optimizer's weight_decay. T = 1 is the
posterior. Cyclical SGHMC restarts the scheduler of the step size, explores at T = 0 in the first half of each cycle,
and draws at T = 1 in the second. SGD seeks the minimum of the same U.

Scored are the last weights alone, as of a trained network, and the average of the predictions that all draws make,
one per epoch: of the second half of the run or cycle. ECE is in 15 bins; AUC is the chance that a permuted image has
a larger entropy than a digit. A single draw is worse than SGD in all of this. The averages are as accurate as SGD,
not of lower NLL, and tell permuted images from digits where SGD does less well.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import matplotlib
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import Linear, Module, ReLU, Sequential
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, StepLR
from torch.utils.data import DataLoader, TensorDataset

import samplers
from recipe import Recipe
from samplers import ATMC, SGHMC, Predictive, PSGLDSameStep
from samplers.scores import accuracy, expected_calibration_error, negative_log_likelihood, reliability, roc_auc

matplotlib.use("Agg")
TRAIN, BATCH, PRIOR = 1200, 50, 0.3  # images to learn from, images of a step, variance of the prior
DECAY = 1 / (TRAIN * PRIOR)
Data = tuple[Tensor, Tensor]  # images and labels


@dataclass(frozen=True)
class Method:
    """How a row of the table is made: the optimizer, from parameters and a seed, and the cycles of its step size."""

    optimizer: Callable
    cycles: int = 1
    temperature: str = "1"


def sampler(recipe: Recipe, parameters: Iterable, seed: int, **settings: float) -> samplers.Optimizer:
    """A recipe of this package as the optimizer of a mean loss over TRAIN data."""
    return samplers.Optimizer(parameters, recipe, num_data=TRAIN, weight_decay=DECAY, seed=seed, **settings)


def sgd(parameters: Iterable, seed: int) -> torch.optim.Optimizer:
    """The minimum of the same U; no seed is needed."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=DECAY)


METHODS = {
    "SGD": Method(sgd, temperature="-"),
    "pSGLD": Method(partial(sampler, PSGLDSameStep, lr=5e-3)),
    "SGHMC": Method(partial(sampler, SGHMC, lr=0.05, momentum=0.9)),
    "ATMC": Method(partial(sampler, ATMC, lr=0.05, momentum=0.9)),
    "cyclical SGHMC": Method(partial(sampler, SGHMC, lr=0.1, momentum=0.9), cycles=4, temperature="0, 1"),
}


def data() -> tuple[Data, Data, Tensor]:
    """Digits to learn from and to test on, as pairs of images `(rows, 64)` and labels, and the test images permuted."""
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.float32)
    y = torch.tensor(y)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(y), generator=generator)
    test = X[order[TRAIN:]]
    permuted = test.gather(1, torch.rand(test.shape, generator=generator).argsort(1))
    return (X[order[:TRAIN]], y[order[:TRAIN]]), (test, y[order[TRAIN:]]), permuted


def network(seed: int) -> Sequential:
    """64 pixels, two layers of 50, ten classes."""
    torch.manual_seed(seed)
    return Sequential(Linear(64, 50), ReLU(), Linear(50, 50), ReLU(), Linear(50, 10))


def loader(train_set: Data, seed: int) -> DataLoader:
    """Minibatches in an order of the seed."""
    return DataLoader(TensorDataset(*train_set), BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed))


def train(method: Method, train_set: Data, images: Tensor, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Train a network; the probabilities of `images` by its last weights, and by the average of the draws."""
    model = network(seed)
    batches = loader(train_set, seed)
    predictive = Predictive()
    optimizer = method.optimizer(model.parameters(), seed=seed)
    length = epochs // method.cycles
    if method.cycles == 1:
        scheduler = StepLR(optimizer, max(1, length // 3), gamma=0.5)
    else:
        scheduler = CosineAnnealingWarmRestarts(optimizer, length)
    for epoch in range(length * method.cycles):
        draws = epoch % length >= length / 2
        if method.cycles > 1:
            optimizer.param_groups[0]["temperature"] = float(draws)
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
        if draws:
            predictive.add(logits_of(model, images))
    return logits_of(model, images).double().softmax(-1), predictive.probabilities


@torch.no_grad()
def logits_of(model: Module, images: Tensor) -> Tensor:
    """The logits, without gradients."""
    return model(images)


@dataclass(frozen=True)
class Scores:
    """The quality of predictions for the test images and, after them, the permuted ones."""

    accuracy: float
    nll: float
    ece: float
    entropy: float
    entropy_permuted: float
    auc: float

    @classmethod
    def of(cls, probabilities: Tensor, labels: Tensor) -> "Scores":
        """The scores of probabilities `(rows, classes)`, of which the first have labels."""
        p = probabilities[: len(labels)]
        entropy = torch.special.entr(probabilities).sum(-1)
        inside, outside = entropy[: len(labels)], entropy[len(labels) :]
        return cls(
            accuracy(p, labels),
            negative_log_likelihood(p, labels),
            expected_calibration_error(p, labels),
            float(inside.mean()),
            float(outside.mean()),
            roc_auc(inside, outside),
        )


HEAD = f"{'':16}{'T':>5}  {'predictions':12}{'accuracy':>9}{'NLL':>8}{'ECE':>8}{'entropy':>9}{'permuted':>10}{'AUC':>8}"


def line(name: str, temperature: str, kind: str, s: Scores) -> str:
    """A line under HEAD; `kind` is "last" or "average"."""
    return (
        f"{name:16}{temperature:>5}  {kind:12}{s.accuracy:9.3f}{s.nll:8.3f}{s.ece:8.3f}{s.entropy:9.3f}"
        f"{s.entropy_permuted:10.3f}{s.auc:8.3f}"
    )


def verdict(results: dict[str, dict[str, Scores]]) -> str:
    """Whether the averages have the lower NLL; `results`: the Scores by method, and by "last" and "average"."""
    better = [name for name, scores in results.items() if scores["average"].nll < scores["last"].nll]
    worse = [name for name in results if name not in better]
    text = f"NLL of the average below that of the last weights: {', '.join(better) or 'none'}"
    return f"{text}; not of {', '.join(worse)}" if worse else text


def picture(path: Path, predictions: dict[str, dict[str, Tensor]], labels: Tensor) -> None:
    """Of each method the reliability diagrams and the entropies, of the last weights above the average."""
    from matplotlib import pyplot

    n, columns = len(labels), len(predictions)
    bins = torch.linspace(0, 2.4, 25).numpy()
    figure, axes = pyplot.subplots(4, columns, figsize=(3.4 * columns, 12), layout="constrained", squeeze=False)
    for j, (name, by_kind) in enumerate(predictions.items()):
        for i, (kind, p) in enumerate(by_kind.items()):
            reliability(p[:n], labels).plot(axes[i, j]).set_title(f"{name}, {kind}")
            entropy = torch.special.entr(p).sum(-1).numpy()
            ax = axes[2 + i, j]
            ax.hist(entropy[:n], bins, alpha=0.6, label="digits")
            ax.hist(entropy[n:], bins, alpha=0.6, label="permuted")
            ax.set(title=f"{name}, {kind}", xlabel="entropy in nats", yscale="log", ylim=(0.8, 600))
            if j:
                axes[i, j].get_legend().remove()
            else:
                ax.legend()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def command_line(description: str, out: str) -> argparse.ArgumentParser:
    """What can be said to an example that trains the network."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=400, help="of every method, default 400")
    parser.add_argument("--seed", type=int, default=0, help="of start, order and noise, default 0")
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder for what is written, default {out}")
    parser.add_argument("--quick", action="store_const", dest="epochs", const=32, help="32 epochs: seconds")
    return parser


def main(argv: list[str] | None = None) -> dict[str, dict[str, Scores]]:
    """Run the example; returns the Scores by method, and by "last" and "average"."""
    parser = command_line(__doc__, "out/digits")
    options = parser.parse_args(argv)
    if options.epochs < 8:
        parser.error("argument --epochs: at least 8, two for each cycle")
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    started = time.monotonic()

    train_set, (test, labels), permuted = data()
    images = torch.cat([test, permuted])
    predictions, results = {}, {}
    rows, lines = [], [HEAD]
    print(HEAD)
    for name, method in METHODS.items():
        last, average = train(method, train_set, images, options.epochs, options.seed)
        predictions[name] = {"last": last, "average": average}
        results[name] = {kind: Scores.of(p, labels) for kind, p in predictions[name].items()}
        for kind, scores in results[name].items():
            rows.append({"method": name, "temperature": method.temperature, "predictions": kind, **asdict(scores)})
            lines.append(line(name, method.temperature, kind, scores))
            print(lines[-1], flush=True)
    print("", verdict(results), sep="\n")
    picture(options.out / "digits.png", predictions, labels)
    (options.out / "digits.txt").write_text("\n".join(lines) + "\n")
    (options.out / "digits.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{options.out}: digits.txt, digits.json, digits.png; {time.monotonic() - started:.0f} s in all")
    return results


if __name__ == "__main__":
    main()
