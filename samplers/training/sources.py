"""Sources of minibatches: tensors, or a map-style dataset."""

from collections.abc import Mapping, Sized
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from recipe.errors import RecipeError

NO_DATASET = IterableDataset, Mapping, list, str, tuple


class Tensors:
    """Rows of tensors that share their first axis; batches are a tensor where `data` is one, else a tuple.

    Raises RecipeError, in the name of `where`, for data other than tensors, and tensors without rows or with different
    numbers of rows.

    >>> Tensors((torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 1, 0])), "doctest").take(torch.tensor([2, 0]))
    (tensor([7., 5.]), tensor([0, 0]))
    """

    def __init__(self, data: Any, where: str):
        self.alone = not isinstance(data, tuple)
        try:
            self.tensors = tuple(torch.as_tensor(x) for x in ((data,) if self.alone else data))
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError(
                f"{where}, data", f"they are no tensors ({error})", do="Pass a tensor, or a tuple of them."
            ) from error
        if any(t.dim() == 0 for t in self.tensors):
            raise RecipeError(f"{where}, data", "there is no axis of rows", do="Pass tensors with one row per datum.")
        self.num_data = len(self.tensors[0])
        for i, t in enumerate(self.tensors):
            if len(t) != self.num_data:
                raise RecipeError(
                    f"{where}, data",
                    f"tensor {i} has {len(t)} rows, tensor 0 has {self.num_data}",
                    do="Every tensor has one row per datum.",
                )
        self.device = self.tensors[0].device

    def take(self, rows: torch.Tensor) -> Any:
        """The batch of these rows."""
        batch = tuple(t[rows] for t in self.tensors)
        return batch[0] if self.alone else batch


class Items:
    """Items of a map-style dataset; batches are made by torch's default_collate.

    Raises RecipeError, in the name of `where`, for objects without `__getitem__` and `__len__`, and plain containers.

    >>> Items(torch.utils.data.TensorDataset(torch.tensor([5.0, 6.0])), "doctest").take(torch.tensor([1]))
    [tensor([6.])]
    """

    def __init__(self, data: Any, where: str):
        if not hasattr(data, "__getitem__") or not isinstance(data, Sized) or isinstance(data, NO_DATASET):
            raise RecipeError(
                f"{where}, data",
                f"a {type(data).__name__} has no rows by number",
                do="Pass a tensor, a tuple of tensors, or a dataset with __getitem__ and __len__.",
            )
        self.dataset: Any = data
        self.num_data = len(data)
        self.device = torch.device("cpu")

    def take(self, rows: torch.Tensor) -> Any:
        """The batch of these rows; for rows `(members, batch)`, the batches of all members, stacked."""
        if rows.dim() > 1:
            return default_collate([self.take(own) for own in rows])
        numbers = rows.tolist()
        together = getattr(self.dataset, "__getitems__", None)
        return default_collate(together(numbers) if together else [self.dataset[i] for i in numbers])


Source = Tensors | Items


def source_of(data: Any, where: str) -> Source:
    """The source of a tensor or a tuple of tensors, or of a dataset.

    Raises RecipeError, in the name of `where`, for anything else and for no data.
    """
    are_tensors = hasattr(data, "__array__") or isinstance(data, tuple) and data
    source: Source = Tensors(data, where) if are_tensors else Items(data, where)
    if not source.num_data:
        raise RecipeError(f"{where}, data", "there are none", do="Pass at least one datum.")
    return source
