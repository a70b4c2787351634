"""Datasets and loaders of torch, read into memory once, so that batches are a function of the seed."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from recipe.errors import RecipeError, warn

WHERE = "sample, data"


@dataclass(frozen=True)
class Read:
    """The items of a dataset: a tensor, or a tuple of tensors, of one row per item; `Data` moves them to its device."""

    rows: Any


def read(data: Any, batch_size: int | None = None) -> tuple[Any, int | None]:
    """The data and the batch size: a Dataset or DataLoader as `Read`, other data unchanged.

    The batch size of a loader counts unless `batch_size` is given. Items are read one by one and collated by the
    loader's collate_fn. The order of a loader is not used, since batches are a function of the seed; a shuffled loader
    gives a warning. Raises RecipeError for data without rows by number, samplers that select rows, and items that
    change from one reading to the next.

    >>> loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    >>> data, batch_size = read(loader)
    >>> data.rows, batch_size
    (tensor([0., 1., 2., 3., 4., 5.]), 2)
    """
    if isinstance(data, DataLoader):
        _check_sampler(data)
        return Read(_items(data.dataset, data.collate_fn)), data.batch_size if batch_size is None else batch_size
    if isinstance(data, Dataset):
        return Read(_items(data, default_collate)), batch_size
    return data, batch_size


def _check_sampler(loader: DataLoader) -> None:
    """Refuse a loader that does not take every row of the dataset once; warn of a shuffled one."""
    sampler = loader.sampler
    whole = type(loader.batch_sampler) in (BatchSampler, type(None))
    plain = type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and sampler._num_samples is None)
    if not (plain and whole) and not isinstance(loader.dataset, IterableDataset):
        kind = type(sampler if not plain else loader.batch_sampler).__name__
        what = f"the loader's {kind} chooses among the rows, and U is of all of them"
        raise RecipeError(WHERE, what, do="Pass the dataset of the rows that count: Subset(dataset, rows), say.")
    if type(sampler) is RandomSampler:
        warn(f"{WHERE}: the order of the loader is of no seed and not resumable: batches are drawn by sample's seed")


def _items(dataset: Any, collate: Any) -> Any:
    """All items of a dataset, collated: a tensor or a tuple of tensors with one row per item."""
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        what = f"a {type(dataset).__name__} has no rows by number"
        raise RecipeError(WHERE, what, do="Pass tensors, or a dataset with __getitem__ and __len__.")
    if not len(dataset):
        raise RecipeError(WHERE, "the dataset has no rows", do="Pass at least one datum.")
    if type(dataset) is TensorDataset and collate is default_collate:
        return _formed(dataset.tensors)
    items: Any = dataset
    if not _same(collate([items[0]]), collate([items[0]])):
        what = "the dataset gives other numbers each time it is read, by an augmentation perhaps"
        raise RecipeError(WHERE, what, do="Take it off: the posterior is of data that stay as they are.")
    return _formed(collate([items[i] for i in range(len(dataset))]))


def _formed(columns: Any) -> Any:
    if torch.is_tensor(columns):
        return columns
    if isinstance(columns, Mapping) or not all(map(torch.is_tensor, columns)):
        kind = "dicts" if isinstance(columns, Mapping) else "no tensors"
        raise RecipeError(WHERE, f"the items are {kind}", do="Give items of tensors or numbers, or tuples of them.")
    return tuple(columns) if len(columns) > 1 else columns[0]


def _same(one: Any, other: Any) -> bool:
    """Whether two collated items are equal, nan included."""

    def equal(x: Any, y: Any) -> bool:
        if torch.is_tensor(x):
            return torch.equal(x, y) or bool((x.isnan() & y.isnan() | (x == y)).all())
        return bool(x == y)

    return all(map(equal, tree_leaves(one), tree_leaves(other)))
