"""Networks of pSGLD on MNIST: how one, or members, learn, and what is averaged on the way.

Shared by the networks of Li, Chen, Carlson & Carin (2016), fully connected and convolutional, and in part by those of
Chen, Carlson, Gan, Li & Carin (2016). U is the sum over the data and lr = h N. A run goes on where it was interrupted.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Data, read_mnist
from networks import perceptron
from study import Study
from torch import Tensor
from torch.nn import Module
from training import Curve, train

import samplers
from samplers.scores import accuracy, negative_log_likelihood

GPU = "cuda" if torch.cuda.is_available() else "cpu"
BURN_IN = 300
THIN = 100
BATCH = 100


@dataclass(frozen=True)
class Setting:
    """How a network is trained: lr on the mean loss, halved at the end of each but the last of so many stages.

    `cold`: T is 1/N, as in the authors' code, else 1. `members` share the epochs.
    """

    optimizer: str
    lr: float
    cold: bool = False
    prior: float = 1.0
    stages: int = 5
    members: int = 1


class Learner:
    """A network, or members, that learn from `data`; on the way the predictions for `inputs` are averaged.

    With `soft` so are those for the training data, after each epoch.
    """

    def __init__(
        self, setting: Setting, make: Callable[[int], Module], data: Data, inputs: Tensor, seed: int, soft: bool = False
    ) -> None:
        rows, members = len(data[0]), setting.members
        self.setting = setting
        self.data = data
        self.inputs = inputs
        networks = [make(seed if members == 1 else 100 * seed + k).to(inputs.device) for k in range(members)]
        self.network = networks[0] if members == 1 else samplers.Ensemble(networks)
        arguments = {} if members == 1 else {"members": members}
        self.batches = samplers.Minibatches(data, min(BATCH, rows // 4), seed=seed, **arguments)
        self.optimizer = optimizer_of(setting, self.network, rows, seed)
        self.average = samplers.Predictive()
        self.labels = samplers.Predictive() if soft else None
        self.curve = Curve()

    def train(self, epochs: int, labels: Tensor, folder: Path) -> "Learner":
        """So many epochs, which members share; the curve has the errors by `labels` after each."""
        length = max(1, epochs // self.setting.members)
        parts = {"average": self.average, "curve": self.curve} | ({"labels": self.labels} if self.labels else {})
        train(
            self.network,
            self.optimizer,
            self.batches,
            epochs=length,
            lr=lambda epoch: self.setting.lr * 0.5 ** (epoch * self.setting.stages // length),
            draw=partial(self.draw, labels=labels),
            folder=folder,
            settings=asdict(self.setting) | {"epochs": epochs},
            **parts,
        )
        return self

    @torch.no_grad()
    def draw(self, step: int, labels: Tensor) -> None:
        """Take the predictions of an iterate into account, where its turn has come."""
        epoch, rest = divmod(step, len(self.batches))
        weight = self.optimizer.param_groups[0]["lr"]
        if step > BURN_IN and step % THIN == 0:
            self.average.add(self.network(self.inputs), weight=weight)
        if rest:
            return
        average = self.average if self.average.draws else self.last()
        self.curve.rows.append([epoch, *(error(p.probabilities, labels) for p in (self.last(), average))])
        if self.labels:
            self.labels.add(self.network(self.data[0]), weight=weight)

    @torch.no_grad()
    def last(self) -> samplers.Predictive:
        """The predictions of the last iterate, averaged over members."""
        predictive = samplers.Predictive()
        predictive.add(self.network(self.inputs))
        return predictive


def optimizer_of(setting: Setting, network: Module, rows: int, seed: int) -> torch.optim.Optimizer:
    """The optimizer on the mean loss, or the sampler of exp(-U/T)."""
    decay = 1 / (rows * setting.prior)
    if setting.optimizer == "sgd":
        return torch.optim.SGD(network.parameters(), lr=setting.lr, weight_decay=decay)
    if setting.optimizer == "rmsprop":
        return torch.optim.RMSprop(network.parameters(), lr=setting.lr, alpha=0.99, eps=1e-5, weight_decay=decay)
    return samplers.Optimizer(
        network.parameters(),
        setting.optimizer,
        lr=setting.lr,
        num_data=rows,
        temperature=1 / rows if setting.cold else 1.0,
        weight_decay=decay,
        seed=seed,
    )


def error(probabilities: Tensor, labels: Tensor) -> float:
    """Per cent."""
    return 100 * (1 - accuracy(probabilities, labels))


def scores(predictive: samplers.Predictive, labels: Tensor) -> dict:
    """The error in per cent, the NLL, and which data are wrong."""
    p = predictive.probabilities
    wrong = (p.argmax(-1) != labels).nonzero().flatten()
    return {"error": error(p, labels), "nll": negative_log_likelihood(p, labels), "wrong": wrong.tolist()}


def data_of(study: Study, validate: bool) -> tuple[Data, Data]:
    """What is learned from and what is predicted: training data and test data, or both of the training data."""
    learned_from, test, _ = read_mnist(study.data / "mnist")
    limit, device = study.of_scale((6000, "cpu"), (None, "cpu"), (None, GPU))
    x, y = (part[:limit].to(device) for part in learned_from)
    if not validate:
        test_x, test_y = test
        return (x, y), (test_x.to(device), test_y.to(device))
    rows = len(x) - len(x) // 6
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


def network(study: Study, *, hidden: int, **settings: Any) -> dict:
    """The scores of `learned`, with so many hidden units, which goes on where it was interrupted."""
    folder = study.scratch(network, hidden=hidden, **settings)
    return learned(study, folder, partial(network_of, hidden), **settings)


def network_of(hidden: int, seed: int) -> Module:
    """For images of 28 x 28."""
    return perceptron(784, hidden, seed=seed)


def learned(
    study: Study,
    folder: Path,
    make: Callable[[int], Module],
    *,
    epochs: int,
    seed: int,
    validate: bool = False,
    distil: float = 0.0,
    **setting: Any,
) -> dict:
    """The scores of the last iterate and of the average; also of what RMSprop of lr `distil` > 0 distils from it."""
    data, (inputs, labels) = data_of(study, validate)
    learner = Learner(Setting(**setting), make, data, inputs, seed, soft=distil > 0)
    learner.train(epochs, labels, folder / "teacher")
    weights = torch.cat([p.detach().flatten() for p in learner.network.parameters()])
    result = {
        "last": scores(learner.last(), labels),
        "average": scores(learner.average if learner.average.draws else learner.last(), labels),
        "curve": learner.curve.rows,
        "sd": float(weights.std()),
    }
    if learner.labels:
        soft = data[0], learner.labels.probabilities.float()
        student = Learner(Setting("rmsprop", distil), make, soft, inputs, seed + 100)
        result["distilled"] = scores(student.train(epochs, labels, folder / "student").last(), labels)
    return result
