"""Regressions on the splits of the UCI sets, all splits of a set at once, a member of one Ensemble each.

A layer of 50 ReLU and batches of 64; the splits are those of Hernandez-Lobato & Adams (2015).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from datasets import read_npz
from study import Study
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import relu

import samplers

BATCH, UNITS, DROPPED = 64, 50, 0.5


# ---- data


@dataclass(frozen=True)
class Splits:
    """Inputs `(rows, features)` and targets `(rows,)` of all splits, and the rows of each, `(splits, ...)`."""

    X: Tensor
    y: Tensor
    train: Tensor
    test: Tensor

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the training targets of each split, `(splits, 1)`."""
        y = self.y[self.train]
        return y.mean(1, keepdim=True), y.std(1, keepdim=True)

    def held_back(self) -> "Splits":
        """A sixth of the training data as the test data."""
        rows = self.train.shape[1] // 6
        return Splits(self.X, self.y, self.train[:, rows:], self.train[:, :rows])

    def networks(self) -> list[Module]:
        """One for each split, standardised by its training data."""
        return [Regression(self.X[rows]) for rows in self.train]

    def targets(self) -> Tensor:
        """Standardised, `(splits, rows)`."""
        mean, sd = self.scale
        return ((self.y - mean) / sd).float()


def splits_of(study: Study, name: str, splits: int) -> Splits:
    """The first splits of a set; the columns are brought to a like scale, so that float32 can hold them."""
    X, y, *rows = read_npz(study.data, f"uci-regression/{name}.npz", "X", "y", "train_idx", "test_idx")
    columns = torch.tensor(X, dtype=torch.float64)
    deviations = columns.std(0)
    columns = (columns - columns.mean(0)) / torch.where(deviations > 0, deviations, 1.0)
    train, test = (torch.tensor(r[:splits]).long() for r in rows)
    return Splits(columns.float(), torch.tensor(y, dtype=torch.float64).flatten(), train, test)


class Regression(Module):
    """d-50-1, of inputs that are standardised by those of training; or of (inputs, which units are dropped)."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, training: Tensor) -> None:
        super().__init__()
        self.first, self.last = Linear(training.shape[1], UNITS), Linear(UNITS, 1)
        deviation = training.std(0)
        self.register_buffer("mean", training.mean(0))
        self.register_buffer("deviation", torch.where(deviation > 0, deviation, 1.0))

    def forward(self, inputs: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """`(rows, 1)`, the standardised target."""
        x, kept = inputs if isinstance(inputs, tuple) else (inputs, None)
        hidden = relu(self.first((x - self.mean) / self.deviation))
        return self.last(hidden if kept is None else hidden * kept / (1 - DROPPED))


# ---- training

Batch = tuple[Tensor, Tensor]


def batches_of(data: Splits, seed: int) -> Iterator[Batch]:
    """Batches `(splits, 64, ...)` without end, each split from its own training data."""
    targets = data.targets()
    size = min(BATCH, data.train.shape[1])
    batches = samplers.Minibatches(torch.arange(data.train.shape[1]), size, seed=seed, members=len(data.train))
    while True:
        for places in batches:
            rows = data.train.gather(1, places)
            yield data.X[rows], targets.gather(1, rows)


def loss(outputs: Tensor, y: Tensor, precision: Tensor) -> Tensor:
    """Minus the mean log likelihood of N(output, 1/precision), but for a constant."""
    return (precision * (outputs[:, 0] - y).square()).mean() / 2


def train(
    ensemble: samplers.Ensemble,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    precision: Tensor,
    steps: int,
    after: Callable[[int], None] = lambda step: None,
    drop: bool = False,
) -> None:
    """So many steps, with a call after each; `precision` is `(splits, 1)`."""
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        x, y = next(batches)
        inputs = (x, mask(generator, x.shape[:2])) if drop else x
        optimizer.zero_grad()
        ensemble.loss(loss, inputs, y, precision.expand_as(y)).backward()
        optimizer.step()
        after(step)


def mask(generator: torch.Generator, rows: torch.Size) -> Tensor:
    """Which units are kept, `(*rows, 50)`."""
    return (torch.rand(*rows, UNITS, generator=generator) >= DROPPED).float()


def ensemble_of(data: Splits, weights: dict | None = None) -> samplers.Ensemble:
    """A network for each split, from scratch or with the weights of a baseline."""
    torch.manual_seed(0)
    ensemble = samplers.Ensemble(data.networks())
    with torch.no_grad():
        for name, p in ensemble.named_parameters():
            if weights is not None:
                p.copy_(torch.tensor(weights[name]))
    return ensemble


@torch.no_grad()
def predicted(ensemble: samplers.Ensemble, data: Splits, generator: torch.Generator | None = None) -> Tensor:
    """What each member says of its test data, in the units of y: `(splits, rows)` in float64."""
    rows, back = data.test.unique(return_inverse=True)
    x = data.X[rows]
    outputs = ensemble(x if generator is None else (x, mask(generator, x.shape[:1])))[..., 0].double()
    mean, sd = data.scale
    return mean + sd * outputs.gather(1, back)
