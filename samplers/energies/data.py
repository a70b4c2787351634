"""Tensors of data, and minibatches of them that are a function of the seed."""

import torch

from integrators import noise
from recipe import Energy
from recipe.errors import RecipeError


class Data:
    """Tensors that share their first axis, and minibatches of them: uniform with replacement, independent per chain.

    The rows of a batch are a pure function of (seed, step, evaluation, chain).
    """

    def __init__(self, tensors, batch_size: int | None, *, like: torch.Tensor):
        self.alone = not isinstance(tensors, (tuple, list))
        given = (tensors,) if self.alone else tensors
        try:
            self.tensors = tuple(t if torch.is_tensor(t) else torch.as_tensor(t) for t in given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError(
                "sample, data",
                f"a {type(given[0]).__name__} is no tensor ({error})",
                do="Pass a tensor or a tuple of tensors.",
            ) from error
        if not self.tensors or any(t.dim() == 0 for t in self.tensors):
            raise RecipeError(
                "sample, data", "there is no axis of rows", do="Pass at least one tensor with one row per datum."
            )
        self.batch_size, self.rows = batch_size, len(self.tensors[0])
        for i, t in enumerate(self.tensors):
            if len(t) != self.rows or not self.rows:
                raise RecipeError(
                    "sample, data",
                    f"tensor {i} has {len(t)} rows, tensor 0 has {self.rows}",
                    do="Every tensor has one row per datum, and at least one.",
                )
            if t.is_floating_point() and t.dtype != like.dtype:
                raise RecipeError(
                    "sample, data",
                    f"tensor {i} is {t.dtype}, but the parameters are {like.dtype}",
                    do=f"Convert one: X.to({like.dtype}).",
                )
            if t.device != like.device:
                raise RecipeError(
                    "sample, data",
                    f"tensor {i} is on {t.device}, but the parameters are on {like.device}",
                    do=f"Move it: X.to({str(like.device)!r}).",
                )
        whole = isinstance(batch_size, int) and not isinstance(batch_size, bool)
        if batch_size is not None and not (whole and 1 <= batch_size <= self.rows):
            raise RecipeError(
                "sample, batch_size",
                f"got {batch_size!r} for {self.rows} data",
                do=f"Choose 1 to {self.rows}, or None for all data.",
            )

    def columns(self, energy: Energy, theta) -> None:
        """Take the tensors for the columns of a symbolic energy, as numbers of theta's type."""
        where = "sample, data"
        if len(self.tensors) != len(energy.data):
            raise RecipeError(
                where,
                f"{len(self.tensors)} tensors for the columns ({', '.join(map(str, energy.data))}) of the energy",
                do="Pass one tensor for each, in this order.",
            )
        for d, t in zip(energy.data, self.tensors):
            wanted = (self.rows, *theta.shape[1:]) if d.is_vector else (self.rows,)
            if tuple(t.shape) != wanted:
                raise RecipeError(
                    where,
                    f"the column {d} has the shape {tuple(t.shape)}, not {wanted}",
                    do=f"It has one number per row{' and site' * d.is_vector}.",
                )
        self.tensors, self.alone = tuple(t.to(theta.dtype).contiguous() for t in self.tensors), False

    def rows_for(
        self, seed: int, steps: range, evaluation: int, chains: int, first_chain: int = 0
    ) -> torch.Tensor | None:
        """The rows of the batch of every chain for one evaluation in each step: (steps, chains, batch_size)."""
        if self.batch_size is None:
            return None
        return noise.integers(
            seed,
            steps,
            noise.BATCH - evaluation,
            chains,
            (self.batch_size,),
            high=self.rows,
            device=self.tensors[0].device,
            first_chain=first_chain,
        )

    def batch(self, rows: torch.Tensor | None):
        """The data of these rows, `(chains, batch_size, ...)`, or all data."""
        if rows is None:
            return self.whole
        picked = tuple(t[rows] for t in self.tensors)
        return picked[0] if self.alone else picked

    @property
    def whole(self):
        """All data, in the form that the energy takes."""
        return self.tensors[0] if self.alone else self.tensors

    def first(self):
        """A batch of one chain, for a trial call of the energy."""
        size = self.batch_size or self.rows
        head = tuple(t[:size] for t in self.tensors)
        return head[0] if self.alone else head
