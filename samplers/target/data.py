"""Tensors of data, and minibatches that are a function of the seed."""

from collections.abc import Callable
from typing import Any

import torch

from integrators import noise, streams
from integrators.kernels.addresses import plain
from recipe import Energy
from recipe.arguments import integer
from recipe.errors import RecipeError

from .datasets import WHERE, Read, read


class Data:
    """Tensors that share their first axis, and minibatches of them: uniform with replacement, independent per chain.

    `tensors`: one tensor `(rows, ...)`, or a tuple of tensors, as energies get their batches, or torch's Dataset or
    DataLoader, read once; `batch_size`: rows of a batch, None for all; `like`: the target, whose device and, for
    floating numbers, dtype the data must have. The rows of a batch are a pure function of (seed, step, evaluation,
    chain). Raises RecipeError for tensors of different lengths, and of another dtype or device than the target.

    >>> data = Data(torch.arange(10.0), 3, like=torch.zeros(1))
    >>> data.batch(data.rows_for(0, range(1), 0, 2)[0]).shape
    torch.Size([2, 3])
    """

    def __init__(self, tensors: Any, batch_size: int | None, *, like: torch.Tensor) -> None:
        tensors, _ = read(tensors)
        if isinstance(tensors, Read):
            rows = tensors.rows
            tensors = rows.to(like.device) if torch.is_tensor(rows) else tuple(x.to(like.device) for x in rows)
        self.alone = not isinstance(tensors, (tuple, list))
        self.tensors = tensors_of_rows(WHERE, (tensors,) if self.alone else tensors, like.device)
        _check_like(self.tensors, like)
        self.rows = len(self.tensors[0])
        self.batch_size = batch_size
        if batch_size is not None:
            what, do = f"got {batch_size!r} for {self.rows} data", f"Choose 1 to {self.rows}, or None for all data."
            place = "sample, batch_size"
            self.batch_size = integer(place, "batch_size", batch_size, least=1, most=self.rows, what=what, do=do)

    def columns(self, energy: Energy, theta: torch.Tensor) -> "Data":
        """The data as columns of a symbolic energy, in the dtype of theta; refused for columns of the wrong shape.

        `theta`: the target of all chains, `(chains, *shape)`.
        """
        if len(self.tensors) != len(energy.data):
            columns = ", ".join(map(str, energy.data))
            what = f"{len(self.tensors)} tensors for the columns ({columns}) of the energy"
            raise RecipeError(WHERE, what, do="Pass one tensor for each, in this order.")
        for d, t in zip(energy.data, self.tensors):
            if t.is_complex():
                raise RecipeError(WHERE, f"the column {d} is {t.dtype}", do="Pass real numbers: x.real, say.")
            shape = (self.rows, *theta.shape[1:]) if d.is_vector else (self.rows,)
            if tuple(t.shape) != shape:
                what = f"the column {d} has the shape {tuple(t.shape)}, not {shape}"
                do = "It has one number per row and site." if d.is_vector else "It has one number per row."
                raise RecipeError(WHERE, what, do=do)
        numbers = tuple(plain(WHERE, t.to(theta.dtype)) for t in self.tensors)
        return Data(numbers, self.batch_size, like=theta)

    def rows_for(
        self,
        seed: int,
        steps: range,
        evaluation: int,
        chains: int,
        first_chain: int = 0,
        integers: Callable[..., torch.Tensor] = noise.integers,
    ) -> torch.Tensor | None:
        """The rows of the batches of an evaluation in each step, `(steps, chains, batch_size)`; None for all data.

        `integers`: the function of noise that draws them.
        """
        if self.batch_size is None:
            return None
        return integers(
            seed,
            steps,
            streams.BATCH[evaluation],
            chains,
            (self.batch_size,),
            high=self.rows,
            device=self.tensors[0].device,
            first_chain=first_chain,
        )

    def batch(self, rows: torch.Tensor | None) -> Any:
        """The data at `rows`, `(chains, batch_size, ...)`, or all data: a tensor or a tuple, as `tensors` were."""
        return self._formed(self.tensors if rows is None else tuple(self._at(t, rows) for t in self.tensors))

    def batches(self, rows: torch.Tensor) -> list:
        """A list with the batch of each step, from rows `(steps, chains, batch_size)`."""
        return list(map(self._formed, zip(*(self._at(t, rows).unbind() for t in self.tensors))))

    @property
    def width(self) -> int:
        """The count of numbers in one row of all tensors."""
        return sum(t[0].numel() for t in self.tensors)

    @staticmethod
    def _at(t: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return t.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *t.shape[1:])

    def first(self) -> Any:
        """A batch of one chain, for a trial call of the energy."""
        size = self.batch_size or self.rows
        return self._formed(tuple(t[:size] for t in self.tensors))

    def _formed(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        return tensors[0] if self.alone else tensors


def tensors_of_rows(where: str, values: Any, device: torch.device | None = None) -> tuple[torch.Tensor, ...]:
    """The values as tensors that share their rows; arrays and lists become tensors on `device`.

    Raises RecipeError for other values, and where they have no axis of rows, no row, or different numbers of rows.
    """
    try:
        tensors = tuple(t if torch.is_tensor(t) else torch.as_tensor(t, device=device) for t in values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(where, f"they are no tensors ({error})", do="Pass a tensor or a tuple of tensors.") from error
    if not tensors or any(t.dim() == 0 for t in tensors):
        raise RecipeError(where, "there is no axis of rows", do="Pass at least one tensor with one row per datum.")
    rows = len(tensors[0])
    for i, t in enumerate(tensors):
        if len(t) != rows:
            what = f"tensor {i} has {len(t)} rows, tensor 0 has {rows}"
            raise RecipeError(where, what, do="Every tensor has one row per datum.")
    if not rows:
        raise RecipeError(where, "there are none", do="Pass at least one datum.")
    return tensors


def _check_like(tensors: tuple[torch.Tensor, ...], like: torch.Tensor) -> None:
    for i, t in enumerate(tensors):
        if t.is_floating_point() and t.dtype != like.dtype:
            what = f"tensor {i} is {t.dtype}, but the parameters are {like.dtype}"
            do = f"Convert one: X.to({like.dtype}), X.astype of numpy, or init to {t.dtype}."
            raise RecipeError(WHERE, what, do=do)
        if t.device != like.device:
            what = f"tensor {i} is on {t.device}, but the parameters are on {like.device}"
            raise RecipeError(WHERE, what, do=f"Move it: X.to({str(like.device)!r}).")


def has_minibatches(data: Data | None) -> bool:
    """Whether gradients are on a part of the data."""
    return data is not None and data.batch_size is not None
