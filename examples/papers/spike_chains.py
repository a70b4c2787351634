"""Chains under a spike-and-slab prior, of many data sets and from several starts, moved in one loop.

Every data set has minibatches of its own, without replacement; the columns of a table see the same ones.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.signal import lfilter
from torch import Tensor

import samplers
from recipe import Recipe
from samplers.schedules import Polynomial

P = 1000  # predictors
V1, DELTA, A, B = 100.0, 0.5, 1.0, float(P)  # of the slab, the first share of slabs, and its Beta prior
OFFSET, DECAY, GAIN, PAPER_STEPS = 1000, 0.75, 0.1, 500_000  # omega = .1 (k + 1000)^-3/4
BATCH, THIN, TRACED = 50, 10, 1000  # rows in a batch; steps between draws; draws that are kept for a picture
Loss = Callable[[Tensor, Tensor], Tensor]  # of scores and y: minus the log likelihood of each datum


@dataclass(frozen=True)
class DataSet:
    """Rows to learn from and rows to test on, and the coefficients; `stack` puts data sets side by side."""

    beta: Tensor  # (3,), the others are 0
    X: Tensor
    y: Tensor
    test_X: Tensor
    test_y: Tensor

    def predictions(self, w: Tensor) -> Tensor:
        """X w on the test rows."""
        return self.test_X @ w.to(self.test_X)


def coefficients(generator: torch.Generator) -> Tensor:
    """N(3, .2^2), N(2, .2^2), N(1, .2^2): the predictors that matter."""
    return torch.tensor([3.0, 2.0, 1.0]) + 0.2 * torch.randn(3, generator=generator)


def predictors(rows: int, correlation: float, generator: torch.Generator) -> Tensor:
    """N(0, Sigma) with Sigma_ij = correlation^|i - j|, an autoregression along the row."""
    innovations = torch.randn(rows, P, generator=generator)
    innovations[:, 1:] *= math.sqrt(1 - correlation**2)
    return torch.as_tensor(lfilter([1.0], [1.0, -correlation], innovations, axis=1), dtype=torch.float32)


def gain(steps: int) -> float:
    """A of omega = A (k + 1000)^-3/4 with which so many steps forget the first latents as the paper's 500,000 do."""
    span = (PAPER_STEPS + OFFSET) ** (1 - DECAY) - OFFSET ** (1 - DECAY)
    return GAIN * span / ((steps + OFFSET) ** (1 - DECAY) - OFFSET ** (1 - DECAY))


def averaging(steps: int, v0: float) -> dict[str, float]:
    """The settings of the latents that are averaged; kappa starts between those of spike and slab."""
    start = {"v0": v0, "v1": V1, "delta0": DELTA, "kappa0": (1 / v0 + 1 / V1) / 2}
    return start | {"a": A, "b": B, "A": gain(steps), "Z": float(OFFSET), "decay": DECAY}


class Average:
    """The weights averaged with the step sizes as shares, and the first three of the first data set, draw by draw."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.time = 0.0
        self.trace: list[list[list[float]]] = []  # draws, columns, three

    def add(self, weights: Tensor, h: float, traced: bool) -> None:
        """A draw `(columns, data sets, P)`."""
        self.total = self.total + h * weights
        self.time += h
        if traced:
            self.trace.append(weights[:, 0, :3].tolist())

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"total": self.total, "time": self.time, "trace": list(self.trace)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.total = state["total"]
        self.time = state["time"]
        self.trace = list(state["trace"])


@dataclass(frozen=True)
class Means:
    """Of the later half: weights `(columns, data sets, P)`, the last latents by name, draws of the first data set."""

    weights: Tensor
    latents: dict[str, list[list[float]]]
    trace: list[list[list[float]]]


def move(
    recipe: Recipe,
    data: Sequence[DataSet],
    loss: Loss,
    columns: Sequence[Mapping[str, float]],
    *,
    steps: int,
    schedule: Polynomial,
    folder: Path,
    seed: int = 0,
    residuals: bool = False,
    latents: Sequence[str] = (),
) -> Means:
    """One chain of each data set for the settings of each column; the later half counts.

    `columns` are settings of `samplers.Optimizer`; `residuals`: whether the recipe asks for the squared residuals,
    which are twice the loss. `folder` is for checkpoints: the same call goes on from there.
    """
    X = torch.stack([d.X for d in data])
    y = torch.stack([d.y for d in data])
    members, rows = y.shape
    of_a_set = torch.arange(members)[:, None]
    batches = samplers.Minibatches(torch.arange(rows), min(BATCH, rows // 2), seed=seed, members=members)
    ensembles = [samplers.Ensemble(_zeros, members=members) for _ in columns]
    optimizers = [
        samplers.Optimizer(
            ensemble.parameters(),
            recipe,
            num_data=rows,
            step_size=schedule(0),
            seed=seed,
            chain=members * number,
            **settings,
        )
        for number, (ensemble, settings) in enumerate(zip(ensembles, columns, strict=True))
    ]
    weights = [next(ensemble.parameters()) for ensemble in ensembles]
    average = Average()
    parts = {f"optimizer_{k}": optimizer for k, optimizer in enumerate(optimizers)}
    parts |= {f"weights_{k}": ensemble for k, ensemble in enumerate(ensembles)}
    plain = {"steps": steps, "columns": [dict(settings) for settings in columns]}
    checkpoint = samplers.Checkpoint(folder, every=60, settings=plain, batches=batches, average=average, **parts)
    checkpoint.load()
    every = THIN * max(1, steps // (2 * THIN * TRACED))
    done = batches.epoch * len(batches) + batches.batch
    while done < steps:
        for chosen in batches:
            h = schedule(done)
            scores = torch.einsum("dbp,cdp->cdb", X[of_a_set, chosen], torch.cat(weights).view(-1, members, P))
            losses = loss(scores, y[of_a_set, chosen]).mean(-1)
            for optimizer in optimizers:
                optimizer.zero_grad()
                optimizer.param_groups[0]["step_size"] = h
            losses.sum().backward()
            squares = 2 * rows * losses.detach()
            for k, optimizer in enumerate(optimizers):
                optimizer.step(observe={"squared_residuals": squares[k]} if residuals else None)
            done += 1
            if done > steps // 2 and done % THIN == 0:
                average.add(torch.cat(weights).detach().view(-1, members, P), h, traced=done % every == 0)
            checkpoint.save()
    checkpoint.save(now=True)
    states = [optimizer.state[w] for optimizer, w in zip(optimizers, weights, strict=True)]
    last = {name: [state[name].tolist() for state in states] for name in latents}
    return Means(torch.as_tensor(average.total) / average.time, last, average.trace)


def _zeros() -> torch.nn.Module:
    """Weights that begin at 0."""
    layer = torch.nn.Linear(P, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    return layer


def mse(column: Sequence[tuple[float, float]]) -> float:
    """The mean square error over the data sets, of each of which there are MAE and MSE."""
    return fmean(error for _, error in column)
