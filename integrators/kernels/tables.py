"""The tensors of a kernel of one step, and the tables of their addresses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from recipe import Recipe
from recipe.errors import RecipeError

from ..passes import Plan

NamedTensors = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Parts:
    """The parts of a target: the type and the place of their numbers, their chains, and the shape of each.

    A shape begins with the chains. A recipe whose blocks are all scalar has no part.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    chains: int
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, recipe: Recipe, state: Mapping) -> "Parts":
        """Those of a state, in which every vector block is a list of tensors."""
        vectors = [b.name for b in recipe.entries if b.is_vector]
        tensors = state[vectors[0]] if vectors else []
        like = tensors[0] if vectors else state[recipe.targets[0].name]
        return cls(recipe.name, like.dtype, like.device, len(like), tuple(t.shape for t in tensors))

    @cached_property
    def sites(self) -> np.ndarray:
        """The sites of each part; of none, 0."""
        return np.array([shape.numel() // self.chains for shape in self.shapes] or [0], np.int64)

    @cached_property
    def offset(self) -> np.ndarray:
        """The sites before each part."""
        return np.concatenate([[0], np.cumsum(self.sites)])[:-1].astype(np.int64)

    @cached_property
    def shape_of_chain(self) -> tuple[int, ...]:
        """The shape of the sites of a chain: that of the only part, else all of them in a row."""
        return tuple(self.shapes[0][1:]) if len(self.shapes) == 1 else (int(self.sites.sum()),)

    def empty(self) -> list[torch.Tensor]:
        """New tensors by part."""
        return [torch.empty(shape, dtype=self.dtype, device=self.device) for shape in self.shapes]

    def cut(self, value: torch.Tensor) -> list[torch.Tensor]:
        """A value per site of a chain, cut into the parts."""
        value = value.to(dtype=self.dtype, device=self.device).reshape(-1)
        return [value[at : at + n].contiguous() for at, n in zip(self.offset, self.sites)]

    def check_parts(self, what: str, tensors: Iterable[torch.Tensor]) -> None:
        """Refuse tensors that a kernel cannot go over."""
        for t, shape in zip(tensors, self.shapes, strict=True):
            self._check(what, t, shape)

    def check_number(self, what: str, tensor: torch.Tensor) -> None:
        """Refuse a tensor that is not one number for each chain."""
        self._check(what, tensor, (self.chains,))

    def _check(self, what, t, shape):
        where = f"{self.name}, {what}"
        if t.dtype != self.dtype or t.device != self.device:
            raise RecipeError(
                where, f"it is {t.dtype} on {t.device}, the others {self.dtype} on {self.device}", do="Convert one."
            )
        if t.shape != shape:
            raise RecipeError(
                where,
                f"its shape is {tuple(t.shape)}, not {tuple(shape)}",
                do="A vector has the target's shapes, a scalar one value per chain.",
            )
        if not t.is_contiguous():
            raise RecipeError(
                where, f"its memory has holes or another order, strides {t.stride()}", do="Pass t.contiguous()."
            )


class Tables:
    """Addresses of tensors: by row and part of what has sites, by row of what has one number for each chain."""

    def __init__(self, plan: Plan, parts: int):
        self.array_in = _rows(len(plan.arrays), parts)
        self.array_out = _rows(len(plan.arrays), parts)
        self.number_in = _rows(len(plan.numbers))
        self.number_out = _rows(len(plan.numbers))
        self.drawn = _rows(len(plan.program.draws), parts)
        self.per_site = _rows(len(plan.constants), parts)

    def all(self) -> tuple[np.ndarray, ...]:
        """In the order in which kernels take them."""
        return self.array_in, self.array_out, self.number_in, self.number_out, self.drawn, self.per_site


def _rows(count, *parts):
    return np.zeros((max(1, count), *parts), np.int64)


def addresses(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Where the numbers of tensors begin."""
    return [t.data_ptr() for t in tensors]


def check_apart(name: str, read: NamedTensors, written: NamedTensors) -> None:
    """Refuse memory that is written under two names, or written under one and read under another."""
    spans = sorted([*_spans(read, False), *_spans(written, True)])
    end, owner, owner_is_written = -1, "", False
    for start, stop, what, is_written in spans:
        if start < end and owner != what and (is_written or owner_is_written):
            raise RecipeError(
                f"{name}, {owner}", f"it and {what} share memory", do="Give every block memory of its own."
            )
        if stop > end:
            end, owner, owner_is_written = stop, what, is_written


def _spans(tensors: NamedTensors, is_written: bool) -> Iterable[tuple[int, int, str, bool]]:
    """Where the numbers of tensors begin and end."""
    for what, t in tensors:
        if t.numel():
            yield t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), what, is_written
