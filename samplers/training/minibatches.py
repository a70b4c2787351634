"""Minibatches for a training loop, in an order that is a function of (seed, epoch); the position can be saved."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Sampler

from integrators import noise
from integrators.streams import ORDER
from recipe.arguments import integer
from recipe.errors import RecipeError

from .sources import source_of
from .stacked import numbers_of


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
        self.source = source_of(data, "Minibatches")
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
                raise RecipeError(
                    "Minibatches, world_size",
                    f"a batch of {size} has no {world_size} equal parts",
                    do=f"Take a batch_size that {world_size} divides, and drop_last=True.",
                )
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
        if self.replacement:
            return self._draw(epoch, self.num_data, high=self.num_data)
        high, low = self._draw(epoch, 2 * self.num_data, high=2**31).chunk(2, -1)
        return (high << 31 | low).argsort(stable=True)  # 62 bits: of a million rows two agree once in 1e7 epochs

    def _draw(self, epoch: int, count: int, high: int) -> torch.Tensor:
        """Uniform integers on [0, high), a function of the epoch, `(count,)`, or `(members, count)`."""
        chains = self.members or range(1)
        drawn = noise.integers(
            self.seed,
            epoch,
            ORDER,
            len(chains),
            (count,),
            high=high,
            device=self.source.device,
            first_chain=chains.start,
        )
        return drawn if self.members else drawn[0]

    def __iter__(self) -> Iterator:
        return map(self.source.take, self.rows())

    def rows(self) -> Iterator[torch.Tensor]:
        """Yields the rows of each batch to the end of the epoch, and moves the position on before handing them out."""
        more = True
        while more:
            if self._ordered is None or self._ordered[0] != self.epoch:
                self._ordered = self.epoch, self.order(self.epoch)
            order = self._ordered[1]
            first = self.batch * self.batch_size
            rows = order[..., first : first + self.batch_size].chunk(self.world_size, -1)[self.rank]
            self.batch += 1
            more = self.batch < len(self)
            if not more:
                self.epoch, self.batch = self.epoch + 1, 0
            yield rows

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
        return _Rows(self)

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
                raise RecipeError(
                    where,
                    f"it is a place where {name} = {state[name]!r}, here it is {value}",
                    do="Make the same batches.",
                )
        epoch = _integer("epoch", state["epoch"], 0, 2**63 - 1, "load_state_dict")
        self.batch = _integer("batch", state["batch"], 0, len(self) - 1, "load_state_dict")
        self.epoch = epoch

    def _kind(self) -> dict[str, int]:
        """The settings that a position is valid for."""
        kind = {
            "seed": self.seed,
            "num_data": self.num_data,
            "batch_size": self.batch_size,
            "replacement": int(self.replacement),
            "drop_last": int(self.drop_last),
        }
        own = self.members
        return kind | ({"first_member": own.start, "members": len(own)} if own else {})


class _Rows(Sampler[list[int]]):
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
