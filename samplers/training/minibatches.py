"""Minibatches for a training loop, in an order that is a function of (seed, epoch); the position can be saved."""

import weakref
from collections.abc import Iterator, Mapping, Sized
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, Sampler, default_collate

from integrators import noise
from integrators.streams import ORDER
from recipe.arguments import integer
from recipe.errors import RecipeError

from ..target.data import tensors_of_rows
from .stacked import numbers_of

LATEST: list = []  # the Minibatches that have handed out a batch last, weakly, and that batch's epoch and number
NO_DATASET = IterableDataset, Mapping, list, str, tuple


class Rows:
    """Rows of tensors that share their first axis, or items of a map-style dataset, taken by number.

    Batches of a tensor are tensors, of a tuple tuples; items are put together by torch's default_collate. Raises
    RecipeError, in the name of `where`, for other data, tensors with different numbers of rows, and no data.

    >>> Rows((torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 1, 0])), "doctest").take(torch.tensor([2, 0]))
    (tensor([7., 5.]), tensor([0, 0]))
    >>> Rows(torch.utils.data.TensorDataset(torch.tensor([5.0, 6.0])), "doctest").take(torch.tensor([1]))
    [tensor([6.])]
    """

    def __init__(self, data: Any, where: str):
        where = f"{where}, data"
        self.data = data
        self.device = torch.device("cpu")
        self.tensors: tuple[torch.Tensor, ...] = ()
        if hasattr(data, "__array__") or isinstance(data, tuple) and data:
            self.tensors = tensors_of_rows(where, data if isinstance(data, tuple) else (data,))
            self.device = self.tensors[0].device
        elif not hasattr(data, "__getitem__") or not isinstance(data, Sized) or isinstance(data, NO_DATASET):
            what = f"a {type(data).__name__} has no rows by number"
            do = "Pass a tensor, a tuple of tensors, or a dataset with __getitem__ and __len__."
            raise RecipeError(where, what, do=do)
        self.num_data = len(self.tensors[0] if self.tensors else data)
        if not self.num_data:
            raise RecipeError(where, "there are none", do="Pass at least one datum.")

    def take(self, rows: torch.Tensor) -> Any:
        """The batch of these rows; for rows `(members, batch)`, the batches of all members, stacked."""
        if self.tensors:
            batch = tuple(t[rows] for t in self.tensors)
            return batch if isinstance(self.data, tuple) else batch[0]
        if rows.dim() > 1:
            return default_collate([self.take(of_member) for of_member in rows])
        numbers = rows.tolist()
        together = getattr(self.data, "__getitems__", None)
        return default_collate(together(numbers) if together else [self.data[i] for i in numbers])


class Minibatches:
    """An iterable over the minibatches of an epoch, whose order is a function of (seed, epoch) alone.

    An epoch is a uniformly random permutation of the data, cut into batches, or with `replacement` as many independent
    uniform rows; either way a batch mean is an unbiased estimate. `drop_last` leaves out a last batch of fewer rows. An
    iteration continues from the batch after the last one handed out, or from a loaded state, to the end of that epoch;
    `len` is the number of batches of a whole epoch. Rank r of `world_size` takes the r-th part of each batch.
    With `members`, their number or the range of their numbers, each member of an `Ensemble` has its own order, a
    function of (seed, epoch, number of the member): tensors are `(members, batch, ...)`.

    `data`: a tensor or a tuple of tensors that share their first axis, whose batches are of the same form, or a
    map-style dataset. Torch's generators are neither used nor touched. Raises RecipeError for other data, for sizes
    that are no integers or do not fit the data, and where the ranks would get parts of different sizes.

    >>> minibatches = Minibatches(torch.arange(6), 2)
    >>> [batch.tolist() for batch in minibatches], minibatches.epoch
    ([[5, 3], [1, 0], [4, 2]], 1)
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        seed: int = 0,
        replacement: bool = False,
        drop_last: bool = True,
        rank: int = 0,
        world_size: int = 1,
        members: int | range | None = None,
    ):
        self.source = Rows(data, "Minibatches")
        self.num_data = self.source.num_data
        self.batch_size = _integer("batch_size", batch_size, 1, self.num_data)
        self.seed = _integer("seed", seed, 0, 2**64 - 1)
        self.world_size = _integer("world_size", world_size, 1, self.batch_size)
        self.rank = _integer("rank", rank, 0, self.world_size - 1)
        self.members = None if members is None else numbers_of("Minibatches", members)
        self.replacement = bool(replacement)
        self.drop_last = bool(drop_last)
        for size in (self.batch_size, 0 if drop_last else self.num_data % self.batch_size):
            if size % self.world_size:
                what = f"a batch of {size} has no {world_size} equal parts"
                do = f"Take a batch_size that {world_size} divides, and drop_last=True."
                raise RecipeError("Minibatches, world_size", what, do=do)
        self.epoch = 0
        self.batch = 0
        self._ordered: tuple[int, torch.Tensor] | None = None  # an epoch and its order

    def __len__(self) -> int:
        whole, rest = divmod(self.num_data, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def order(self, epoch: int) -> torch.Tensor:
        """The rows of an epoch in the order of drawing, over all ranks, `(num_data,)`, or `(members, num_data)`.

        >>> Minibatches(torch.zeros(6), 2, seed=1, replacement=True).order(0)
        tensor([2, 3, 3, 3, 3, 4])
        """
        n, members = self.num_data, self.members or range(1)
        count, high = (n, n) if self.replacement else (2 * n, 2**31)
        on, first = self.source.device, members.start
        drawn = noise.integers(self.seed, epoch, ORDER, len(members), (count,), high=high, device=on, first_chain=first)
        drawn = drawn if self.members else drawn[0]
        if self.replacement:
            return drawn
        left, right = drawn.chunk(2, -1)
        return (left << 31 | right).argsort(stable=True)  # 62 bits: of a million rows two agree once in 1e7 epochs

    def __iter__(self) -> Iterator:
        return map(self.source.take, self.rows())

    def rows(self) -> Iterator[torch.Tensor]:
        """Yields the rows of each batch to the end of the epoch, and moves the position on before handing them out."""
        more = True
        while more:
            if self._ordered is None or self._ordered[0] != self.epoch:
                self._ordered = self.epoch, self.order(self.epoch)
            first = self.batch * self.batch_size
            batch = self._ordered[1][..., first : first + self.batch_size]
            LATEST[:] = weakref.ref(self), (self.epoch, self.batch)
            self.batch += 1
            more = self.batch < len(self)
            if not more:
                self.epoch, self.batch = self.epoch + 1, 0
            yield batch.chunk(self.world_size, -1)[self.rank]

    def as_sampler(self) -> Sampler[list[int]]:
        """A sampler of the batches as lists of rows, for DataLoader(dataset, batch_sampler=...), by this position.

        A DataLoader with workers draws batches ahead: see `state_dict`. Raises RecipeError for batches of members.

        >>> minibatches = Minibatches(torch.arange(6), 2)
        >>> loader = torch.utils.data.DataLoader(torch.arange(6), batch_sampler=minibatches.as_sampler())
        >>> [batch.tolist() for batch in loader]
        [[5, 3], [1, 0], [4, 2]]
        """
        if self.members:
            do = "Iterate over the Minibatches, or leave members out."
            raise RecipeError("Minibatches, as_sampler", "a DataLoader has no batch for each member", do=do)
        return _OfRows(self)

    def state_dict(self, *, seen: int | None = None) -> dict[str, int]:
        """The position, the numbers of the epoch and of its next batch, and the settings of the order; plain integers.

        `seen`: the number of batches that the loop has seen since its first epoch began, where a DataLoader with
        workers has drawn more ahead; the position is then after these. The position is the same for all ranks.
        """
        epoch, batch = self.epoch, self.batch
        if seen is not None:
            epoch, batch = divmod(_integer("seen", seen, 0, 2**63 - 1, "state_dict"), len(self))
        return {"epoch": epoch, "batch": batch, **self._kind()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from a saved position.

        Raises RecipeError for a position in other batches: of another seed, number of data or size.
        """
        where = "Minibatches, load_state_dict"
        kind = self._kind()
        if not isinstance(state, Mapping) or set(state) != {"epoch", "batch", *kind}:
            raise RecipeError(where, f"{state!r} is no place", do="Pass what state_dict() returned.")
        for name, value in kind.items():
            if state[name] != value:
                what = f"it is a place where {name} = {state[name]!r}, here it is {value}"
                raise RecipeError(where, what, do="Make the same batches.")
        epoch = _integer("epoch", state["epoch"], 0, 2**63 - 1, "load_state_dict")
        self.batch = _integer("batch", state["batch"], 0, len(self) - 1, "load_state_dict")
        self.epoch = epoch

    def _kind(self) -> dict[str, int]:
        """The settings that a position is valid for."""
        members = self.members
        names = ("seed", "num_data", "batch_size", "replacement", "drop_last")
        kind = {name: int(getattr(self, name)) for name in names}
        return kind | ({"first_member": members.start, "members": len(members)} if members else {})


def latest() -> tuple:
    """The Minibatches of the process that have handed out a batch last, and its place; empty where there are none."""
    return tuple(LATEST)


class BatchSource(NamedTuple):
    """The number of data of Minibatches that are read beside a loop, and whether each batch is all of them."""

    num_data: int
    whole: bool


def handed_out_since(before: tuple) -> BatchSource | None:
    """The numbers of the Minibatches that have handed out batches since `before`; None if none have."""
    now = latest()
    if not before or not now or now[0] != before[0] or now[1] == before[1]:
        return None
    source = now[0]()
    if source is None:
        return None
    return BatchSource(source.num_data, source.batch_size == source.num_data and not source.replacement)


class _OfRows(Sampler[list[int]]):
    def __init__(self, minibatches: Minibatches):
        self.minibatches = minibatches

    def __len__(self) -> int:
        return len(self.minibatches)

    def __iter__(self) -> Iterator[list[int]]:
        return (rows.tolist() for rows in self.minibatches.rows())


def _integer(name: str, value: Any, least: int, most: int, *method: str) -> int:
    where = ", ".join(("Minibatches", *method, name))
    advice = f"Choose an integer from {least} to {most}."
    return integer(where, name, value, least=least, most=most, what=f"got {value!r}", do=advice)
