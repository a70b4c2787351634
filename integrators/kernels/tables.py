"""Tensors of a kernel of one step, and tables of their addresses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from sympy import Symbol

from recipe import Recipe

from ..passes import LoopPlan
from ..processes import Spread
from .addresses import addresses, check_form, plain

Tensors = torch.Tensor | Sequence[torch.Tensor]  # one number for each chain, or values per site in parts


def listed(value: Tensors) -> Sequence[torch.Tensor]:
    """The tensors of a value: its parts, or the value alone."""
    return [value] if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class Parts:
    """Parts of a target: dtype, device, number of chains, and the shape of each part, chains first.

    A recipe with scalar blocks only has no part. With a `spread` the parts are its runs, and sites are counted over all
    processes. `half`: the dtype of gradients and of rounded weights, where it is not that of the state.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    chains: int
    shapes: tuple[torch.Size, ...]
    spread: Spread | None = None
    half: torch.dtype | None = None

    @classmethod
    def of(cls, recipe: Recipe, state: Mapping, spread: Spread | None = None) -> "Parts":
        """The parts of a state whose vector blocks are lists of tensors."""
        vectors = [b.name for b in recipe.entries if b.is_vector]
        tensors = state[vectors[0]] if vectors else []
        like = tensors[0] if vectors else state[recipe.targets[0].name]
        return cls(recipe.name, like.dtype, like.device, len(like), tuple(t.shape for t in tensors), spread)

    @cached_property
    def sites(self) -> np.ndarray:
        """The number of sites of each part; [0] without parts."""
        return np.array([shape.numel() // self.chains for shape in self.shapes] or [0], np.int64)

    @cached_property
    def offset(self) -> np.ndarray:
        """The number of sites of a chain before each part."""
        if self.spread is not None:
            return np.array([run.first for run in self.spread.runs], np.int64)
        return np.concatenate([[0], np.cumsum(self.sites)])[:-1].astype(np.int64)

    @cached_property
    def of_chain(self) -> int:
        """The number of sites of a chain."""
        return int(self.sites.sum()) if self.spread is None else self.spread.sites

    @cached_property
    def shape_of_chain(self) -> tuple[int, ...]:
        """The shape of the sites of a chain: the shape of a single part, else flat."""
        return tuple(self.shapes[0][1:]) if len(self.shapes) == 1 and self.spread is None else (self.of_chain,)

    def empty(self, is_vector: bool, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """New uninitialised tensors: one per part, or one number for each chain."""
        shapes = self.shapes if is_vector else [(self.chains,)]
        return [torch.empty(shape, dtype=dtype or self.dtype, device=self.device) for shape in shapes]

    def cut(self, value: torch.Tensor) -> list[torch.Tensor]:
        """A value per site of a chain, cut into the parts."""
        values = plain(self.name, value.to(dtype=self.dtype, device=self.device)).reshape(-1)
        return [values[at : at + n] for at, n in zip(self.offset, self.sites)]

    def check(
        self, what: str, tensors: Sequence[torch.Tensor], is_vector: bool, dtype: torch.dtype | None = None
    ) -> None:
        """Refuse tensors that differ from the parts, or from a number for each chain, in dtype, device or shape.

        `dtype`: that of the parts by default.
        """
        for t, shape in zip(tensors, self.shapes if is_vector else [(self.chains,)], strict=True):
            check_form(f"{self.name}, {what}", t, dtype or self.dtype, self.device, shape)


class Tables:
    """Addresses of tensors: by row and part for values per site, by row for values per chain.

    A table keeps tensors alive as long as it has their addresses. `places`: table and row of each symbol of a step, by
    the side that kernels read ("in") or write ("out"). The last row of `array_out` is of weights in half precision.
    """

    def __init__(self, plan: LoopPlan, parts: Parts):
        self.parts = parts
        count = len(parts.sites)
        symbols = plan.arrays, plan.arrays, plan.numbers, plan.numbers, plan.program.draws, plan.constants
        widths: tuple[tuple[int, ...], ...] = (count,), (count,), (), (), (count,), (count,)
        shapes = [(len(rows) + 1, *width) for rows, width in zip(symbols, widths)]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        self.memory = np.zeros(ends[-1], np.int64)  # of all tables, one after another
        tables = [part.reshape(shape) for part, shape in zip(np.split(self.memory, ends[:-1]), shapes)]
        self.array_in, self.array_out, self.number_in, self.number_out, self.drawn, self.per_site = tables
        self.places: dict[str, dict[Symbol, tuple[np.ndarray, int]]] = {}
        for side, arrays, numbers in (("in", self.array_in, self.number_in), ("out", self.array_out, self.number_out)):
            self.places[side] = {s: (arrays, row) for row, s in enumerate(plan.arrays)}
            self.places[side] |= {s: (numbers, row) for row, s in enumerate(plan.numbers)}
        self._kept: dict[tuple[int, int], Sequence[torch.Tensor]] = {}

    def set(self, side: str, s: Symbol, what: str, value: Tensors, dtype: torch.dtype | None = None) -> None:
        """Put the addresses of a symbol's checked values into the table of a side, if the step has the symbol."""
        tensors = listed(value)
        self.parts.check(what, tensors, s.is_vector, dtype)
        if s in self.places[side]:
            self.put(*self.places[side][s], what, tensors)

    def put(self, table: np.ndarray, row: int, what: str, tensors: Sequence[torch.Tensor]) -> None:
        """Put the addresses of tensors into a row of a table; raises RecipeError as `addresses` does."""
        row_addresses = addresses(f"{self.parts.name}, {what}", tensors)
        if table.ndim == 1:
            (table[row],) = row_addresses
        else:
            table[row, : len(row_addresses)] = row_addresses
        self._kept[id(table), row] = tensors

    def kept(self) -> tuple[Sequence[torch.Tensor], ...]:
        """The tensors whose addresses are in the tables."""
        return tuple(self._kept.values())

    def draw_inside(self) -> None:
        """Forget given random numbers, so that kernels draw the next ones."""
        if any(table == id(self.drawn) for table, _ in self._kept):
            self.forget(self.drawn)

    def forget(self, *tables: np.ndarray) -> None:
        """Release the tensors and addresses of the given tables."""
        for table in tables:
            table.fill(0)
        of = {id(table) for table in tables}
        self._kept = {place: tensors for place, tensors in self._kept.items() if place[0] not in of}

    def all(self) -> tuple[np.ndarray, ...]:
        """The tables in the order of the kernels' arguments."""
        return self.array_in, self.array_out, self.number_in, self.number_out, self.drawn, self.per_site
