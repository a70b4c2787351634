"""Minibatches for a training loop: in an order that is a function of (seed, epoch), from a place that can be saved."""

from collections.abc import Iterator, Mapping

import torch
from torch.utils.data import IterableDataset, Sampler, default_collate

from integrators import noise
from recipe.errors import RecipeError

ORDER = 0x8002  # number of the noise draw, which no run reaches


class Source:
    """What batches are taken from: a tensor or a tuple of tensors that share their first axis, or a map-style dataset.

    Raises RecipeError, in the name of `where`, for anything else and for no data.

    >>> Source((torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 1, 0])), "doctest").take(torch.tensor([2, 0]))
    (tensor([7., 5.]), tensor([0, 0]))
    """

    def __init__(self, data, where: str):
        self.alone, self.dataset = hasattr(data, "__array__"), data
        self.tensors = (data,) if self.alone else data if isinstance(data, tuple) else ()
        try:
            self.tensors = tuple(torch.as_tensor(t) for t in self.tensors)
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError(
                f"{where}, data", f"they are no tensors ({error})", do="Pass a tensor, or a tuple of them."
            ) from error
        if any(t.dim() == 0 for t in self.tensors):
            raise RecipeError(f"{where}, data", "there is no axis of rows", do="Pass tensors with one row per datum.")
        if not self.tensors and (
            not all(hasattr(data, name) for name in ("__getitem__", "__len__"))
            or isinstance(data, (IterableDataset, Mapping, list, str, tuple))
        ):
            raise RecipeError(
                f"{where}, data",
                f"a {type(data).__name__} has no rows by number",
                do="Pass a tensor, a tuple of tensors, or a dataset with __getitem__ and __len__.",
            )
        self.num_data = len(self.tensors[0] if self.tensors else data)
        for i, t in enumerate(self.tensors):
            if len(t) != self.num_data:
                raise RecipeError(
                    f"{where}, data",
                    f"tensor {i} has {len(t)} rows, tensor 0 has {self.num_data}",
                    do="Every tensor has one row per datum.",
                )
        if not self.num_data:
            raise RecipeError(f"{where}, data", "there are none", do="Pass at least one datum.")
        self.device = self.tensors[0].device if self.tensors else torch.device("cpu")

    def take(self, rows: torch.Tensor):
        """The batch of these rows: tensors as they came, or the items of a dataset by torch's default_collate."""
        if self.tensors:
            batch = tuple(t[rows] for t in self.tensors)
            return batch[0] if self.alone else batch
        rows, together = rows.tolist(), getattr(self.dataset, "__getitems__", None)
        return default_collate(together(rows) if together else [self.dataset[i] for i in rows])


class Minibatches:
    """An iterable over the minibatches of an epoch, whose order is a function of (seed, epoch) alone.

    An epoch is a uniformly random permutation of the data, cut into batches, or with `replacement` as many independent
    uniform rows; either way a batch mean is an unbiased estimate. `drop_last` leaves out a last batch of fewer rows. A
    loop goes on from where the last one was broken off, or from a loaded state, to the end of that epoch; `len` is the
    number of batches of a whole one. Of a batch of `batch_size` rows rank r of `world_size` takes the r-th part.

    `data`: a tensor or a tuple of tensors that share their first axis, whose batches are of the same form, or a
    map-style dataset. Torch's generators are neither used nor touched. Raises RecipeError for other data, for sizes that
    are no integers or do not fit the data, and where the ranks would get parts of different sizes.

    >>> minibatches = Minibatches(torch.arange(6), 2)
    >>> [batch.tolist() for batch in minibatches], minibatches.epoch
    ([[5, 3], [1, 0], [4, 2]], 1)
    """

    def __init__(
        self,
        data,
        batch_size: int,
        *,
        seed: int = 0,
        replacement: bool = False,
        drop_last: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.source = Source(data, "Minibatches")
        self.num_data = self.source.num_data
        _check_int("batch_size", batch_size, 1, self.num_data)
        _check_int("seed", seed, 0, 2**64 - 1)
        _check_int("world_size", world_size, 1, batch_size)
        _check_int("rank", rank, 0, world_size - 1)
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        self.replacement, self.drop_last = bool(replacement), bool(drop_last)
        for size in (batch_size, 0 if drop_last else self.num_data % batch_size):
            if size % world_size:
                raise RecipeError(
                    "Minibatches, world_size",
                    f"a batch of {size} has no {world_size} equal parts",
                    do=f"Take a batch_size that {world_size} divides, and drop_last=True.",
                )
        self.epoch = self.batch = 0
        self._ordered = None, None

    def __len__(self) -> int:
        whole, rest = divmod(self.num_data, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def order(self, epoch: int) -> torch.Tensor:
        """The rows of an epoch in the order in which they are drawn, `(num_data,)`, of all ranks.

        >>> Minibatches(torch.zeros(6), 2, seed=1, replacement=True).order(0)
        tensor([2, 3, 3, 3, 3, 4])
        """
        draw = lambda count, high: noise.integers(
            self.seed, epoch, ORDER, 1, (count,), high=high, device=self.source.device
        )[0]
        if self.replacement:
            return draw(self.num_data, self.num_data)
        high, low = draw(2 * self.num_data, 2**31).chunk(2)
        return (high << 31 | low).argsort(stable=True)  # 62 bits: of a million rows two agree once in 1e7 epochs

    def __iter__(self) -> Iterator:
        return map(self.source.take, self._batches())

    def _batches(self):
        """The rows of the batches to the end of the epoch; the place has moved on when one is handed out."""
        more = True
        while more:
            if self._ordered[0] != self.epoch:
                self._ordered = self.epoch, self.order(self.epoch)
            rows = self._ordered[1][self.batch * self.batch_size :][: self.batch_size].chunk(self.world_size)[self.rank]
            self.batch += 1
            more = self.batch < len(self)
            if not more:
                self.epoch, self.batch = self.epoch + 1, 0
            yield rows

    def as_sampler(self) -> Sampler[list[int]]:
        """The same batches as lists of rows, for DataLoader(dataset, batch_sampler=...); it moves this object's place.

        A DataLoader with workers draws batches ahead: see `state_dict`.

        >>> minibatches = Minibatches(torch.arange(6), 2)
        >>> loader = torch.utils.data.DataLoader(torch.arange(6), batch_sampler=minibatches.as_sampler())
        >>> [batch.tolist() for batch in loader]
        [[5, 3], [1, 0], [4, 2]]
        """
        return _Rows(self)

    def state_dict(self, *, seen: int | None = None) -> dict[str, int]:
        """The place, the number of the epoch and of the next batch in it, and what it is a place in; plain integers.

        `seen`: how many batches the loop has seen since its first epoch began, where a DataLoader with workers has drawn
        others ahead; the place is then the one after these. It is a place in the batches of all ranks, for any rank.
        """
        if seen is not None:
            _check_int("state_dict, seen", seen, 0, 2**63 - 1)
        epoch, batch = (self.epoch, self.batch) if seen is None else divmod(seen, len(self))
        return {"epoch": epoch, "batch": batch, **self._kind()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a place. Raises RecipeError if it is one in other batches: of another seed, number of data or size."""
        where, kind = "Minibatches, load_state_dict", self._kind()
        if not isinstance(state, Mapping) or set(state) != {"epoch", "batch", *kind}:
            raise RecipeError(where, f"{state!r} is no place", do="Pass what state_dict() returned.")
        for name, value in kind.items():
            if state[name] != value:
                raise RecipeError(
                    where,
                    f"it is a place where {name} = {state[name]!r}, here it is {value}",
                    do="Make the same batches.",
                )
        _check_int("load_state_dict, epoch", state["epoch"], 0, 2**63 - 1)
        _check_int("load_state_dict, batch", state["batch"], 0, len(self) - 1)
        self.epoch, self.batch = state["epoch"], state["batch"]

    def _kind(self):
        return {
            "seed": self.seed,
            "num_data": self.num_data,
            "batch_size": self.batch_size,
            "replacement": int(self.replacement),
            "drop_last": int(self.drop_last),
        }


class _Rows(Sampler):
    def __init__(self, minibatches):
        self.minibatches = minibatches

    def __len__(self):
        return len(self.minibatches)

    def __iter__(self):
        return (rows.tolist() for rows in self.minibatches._batches())


def _check_int(name, value, least, most):
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RecipeError(f"Minibatches, {name}", f"got {value!r}", do=f"Choose an integer from {least} to {most}.")
