"""The training loop of the experiments with networks, which goes on where it was interrupted."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import samplers


def mean_loss(network: Module, x: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy; of an Ensemble the sum over its members. Labels are classes, or their probabilities."""
    if isinstance(network, samplers.Ensemble):
        return network.loss(cross_entropy, x, y)
    return cross_entropy(network(x), y)


class Curve:
    """Plain rows that a loop writes down, as a part of a checkpoint.

    >>> curve = Curve()
    >>> curve.rows.append([1, 0.5])
    >>> curve.state_dict()
    {'rows': [[1, 0.5]]}
    """

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def state_dict(self) -> dict[str, list]:
        """The rows."""
        return {"rows": list(self.rows)}

    def load_state_dict(self, state: Mapping[str, list]) -> None:
        """Go on after these rows."""
        self.rows = list(state["rows"])


def train(
    network: Module,
    optimizer: Optimizer,
    batches: samplers.Minibatches,
    *,
    epochs: int,
    lr: Callable[[int], float],
    draw: Callable[[int], Any],
    folder: Path,
    settings: Mapping[str, Any],
    every: float = 60.0,
    loss: Callable[[Module, Tensor, Tensor], Tensor] = mean_loss,
    **parts: Any,
) -> None:
    """So many epochs of steps with the lr of each epoch; `draw(step)` is called after each step, counted from 1.

    `loss(network, x, y)` is minus the mean log likelihood, with 1/num_data of the prior where that is a part of it.

    Network, optimizer, batches and `parts`, all that `draw` changes, are saved in `folder` every so many seconds. The
    same call goes on from there, bit for bit. Raises RecipeError where `folder` has a run of other settings.
    """
    checkpoint = samplers.Checkpoint(
        folder, every=every, settings=settings, model=network, optimizer=optimizer, batches=batches, **parts
    )
    checkpoint.load()
    while batches.epoch < epochs:
        for group in optimizer.param_groups:
            group["lr"] = lr(batches.epoch)
        for x, y in batches:
            optimizer.zero_grad()
            loss(network, x, y).backward()
            optimizer.step()
            draw(batches.epoch * len(batches) + batches.batch)
            checkpoint.save()
    checkpoint.save(now=True)
