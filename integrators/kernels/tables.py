"""The tensors of a kernel of one step, and the tables of their addresses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from recipe import Recipe

from ..passes import Plan
from ..spread import Spread
from .addresses import addresses, check_form, plain


@dataclass(frozen=True)
class Parts:
    """The parts of a target: the type and the place of their numbers, their chains, and the shape of each.

    A shape begins with the chains. A recipe whose blocks are all scalar has no part. With a `spread` the parts are its
    runs, and sites are counted over all processes.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    chains: int
    shapes: tuple[torch.Size, ...]
    spread: Spread | None = None

    @classmethod
    def of(cls, recipe: Recipe, state: Mapping, spread: Spread | None = None) -> "Parts":
        """Those of a state, in which every vector block is a list of tensors."""
        vectors = [b.name for b in recipe.entries if b.is_vector]
        tensors = state[vectors[0]] if vectors else []
        like = tensors[0] if vectors else state[recipe.targets[0].name]
        return cls(recipe.name, like.dtype, like.device, len(like), tuple(t.shape for t in tensors), spread)

    @cached_property
    def sites(self) -> np.ndarray:
        """The sites of each part; of none, 0."""
        return np.array([shape.numel() // self.chains for shape in self.shapes] or [0], np.int64)

    @cached_property
    def offset(self) -> np.ndarray:
        """The sites of a chain before each part."""
        if self.spread is not None:
            return np.array([run.first for run in self.spread.runs], np.int64)
        return np.concatenate([[0], np.cumsum(self.sites)])[:-1].astype(np.int64)

    @cached_property
    def of_chain(self) -> int:
        """The sites of a chain."""
        return int(self.sites.sum()) if self.spread is None else self.spread.sites

    @cached_property
    def shape_of_chain(self) -> tuple[int, ...]:
        """The shape of the sites of a chain: that of the only part, else all of them in a row."""
        return tuple(self.shapes[0][1:]) if len(self.shapes) == 1 and self.spread is None else (self.of_chain,)

    def empty(self) -> list[torch.Tensor]:
        """New tensors by part."""
        return [torch.empty(shape, dtype=self.dtype, device=self.device) for shape in self.shapes]

    def cut(self, value: torch.Tensor) -> list[torch.Tensor]:
        """A value per site of a chain, cut into the parts."""
        values = plain(self.name, value.to(dtype=self.dtype, device=self.device)).reshape(-1)
        return [values[at : at + n] for at, n in zip(self.offset, self.sites)]

    def check_parts(self, what: str, tensors: Iterable[torch.Tensor]) -> None:
        """Refuse tensors that a kernel cannot go over."""
        for t, shape in zip(tensors, self.shapes, strict=True):
            self._check(what, t, shape)

    def check_number(self, what: str, tensor: torch.Tensor) -> None:
        """Refuse a tensor that is not one number for each chain."""
        self._check(what, tensor, (self.chains,))

    def _check(self, what, t, shape):
        check_form(f"{self.name}, {what}", t, self.dtype, self.device, shape)


class Tables:
    """Addresses of tensors: by row and part of what has sites, by row of what has one number for each chain.

    The tensors are kept as long as their addresses are here.
    """

    def __init__(self, plan: Plan, parts: int):
        self.name = plan.program.recipe.name
        self.array_in = _rows(len(plan.arrays), parts)
        self.array_out = _rows(len(plan.arrays), parts)
        self.number_in = _rows(len(plan.numbers))
        self.number_out = _rows(len(plan.numbers))
        self.drawn = _rows(len(plan.program.draws), parts)
        self.per_site = _rows(len(plan.constants), parts)
        self._kept: dict[tuple[int, int], Sequence[torch.Tensor]] = {}

    def put(self, table: np.ndarray, row: int, what: str, tensors: Sequence[torch.Tensor]) -> None:
        """Put the addresses of a row into one of the tables; refused for what `addresses` refuses."""
        row_addresses = addresses(f"{self.name}, {what}", tensors)
        if table.ndim == 1:
            (table[row],) = row_addresses
        else:
            table[row, : len(row_addresses)] = row_addresses
        self._kept[id(table), row] = tensors

    def draw_inside(self) -> None:
        """Forget random numbers that a step was given: kernels draw those of the next."""
        if any(table == id(self.drawn) for table, _ in self._kept):
            self.forget(self.drawn)

    def forget(self, *tables: np.ndarray) -> None:
        """Let go of the tensors of these tables, and of their addresses."""
        for table in tables:
            table.fill(0)
        of = {id(table) for table in tables}
        self._kept = {place: tensors for place, tensors in self._kept.items() if place[0] not in of}

    def all(self) -> tuple[np.ndarray, ...]:
        """In the order in which kernels take them."""
        return self.array_in, self.array_out, self.number_in, self.number_out, self.drawn, self.per_site


def _rows(count, *parts):
    return np.zeros((max(1, count), *parts), np.int64)
