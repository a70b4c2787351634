"""Tensors in memory-mapped files."""

import math
import os
from pathlib import Path

import numpy as np
import torch

from recipe.errors import RecipeError

from . import regular


def mapped(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, np.memmap | None]:
    """A tensor of this shape mapped to a file, and the map to flush, None for a tensor without numbers.

    The file is made, extended or cut to the tensor's size; other contents are kept. Raises RecipeError where there is
    no room, and for anything but a regular file.

    >>> import tempfile
    >>> x, file = mapped(Path(tempfile.mkdtemp()) / "x.draws", (2, 3), torch.float32)
    >>> x
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    like = torch.empty(0, dtype=dtype, device="cpu")
    size = math.prod(shape) * like.element_size()
    try:
        with os.fdopen(regular.opened(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
            # A map into a disk that is full would end the process.
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
            if not size:
                return torch.empty(shape, dtype=dtype, device="cpu"), None
            array = np.memmap(file, dtype=like.numpy().dtype, mode="r+", shape=shape)
            return torch.from_numpy(array), array
    except OSError as error:
        what = f"there is no room for {size} bytes of draws ({error.strerror or error})"
        raise RecipeError(str(path), what, do="Choose another folder, or a larger thin.") from error


def check_whole(path: Path, values: torch.Tensor) -> None:
    """Refuses a mapped file that was cut or removed; a process that reads beyond the end of a map is killed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x.draws"
    >>> x, file = mapped(path, (3,), torch.float32)
    >>> os.truncate(path, 4)
    >>> check_whole(path, x)                                                # doctest: +ELLIPSIS
    Traceback (most recent call last):
    recipe.errors.RecipeError: .../x.draws: it has 4 bytes, the run has made it of 12: somebody has cut or replaced \
it. Restore the file from a copy, or start in another folder.
    """
    expected = values.numel() * values.element_size()
    size = regular.size_of(path)
    if size != expected:
        now = "is gone" if size is None else f"has {size} bytes"
        what = f"it {now}, the run has made it of {expected}: somebody has cut or replaced it"
        raise RecipeError(str(path), what, do="Restore the file from a copy, or start in another folder.")


def private(path: Path, like: torch.Tensor) -> torch.Tensor:
    """A copy-on-write map of a file, in the shape of `like`: writes do not reach the file.

    `like`: the tensor of `mapped`, returned itself where no such map can be made.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x.draws"
    >>> x, file = mapped(path, (3,), torch.float32)
    >>> private(path, x).add_(1), x
    (tensor([1., 1., 1.]), tensor([0., 0., 0.]))
    """
    if not like.numel():
        return like
    try:
        with os.fdopen(regular.opened(path, os.O_RDONLY), "rb") as file:
            return torch.from_numpy(np.memmap(file, dtype=like.numpy().dtype, mode="c", shape=tuple(like.shape)))
    except (OSError, ValueError):  # more than the memory that the system promises, or a file that is gone
        return like
