"""Rows of the data on which the gradient of an energy is not finite."""

import torch
from torch.utils._pytree import tree_leaves, tree_map

from recipe.errors import RecipeError

from .potential import Position
from .target import Target


def check_rows(target: Target, position: Position, where: str) -> None:
    """Refuse a row of the data with numbers that are not finite, if the gradient on it is not finite either.

    `position`: of all chains, of which the first is looked at, on a batch that has the row alone, many times.
    """
    data = target.data
    if data is None or target.whole is None:
        return
    finite = [x.isfinite().flatten(1).all(1) if x.dim() > 1 else x.isfinite() for x in data.tensors]
    bad = (~torch.stack(finite).all(0)).nonzero()
    if not len(bad):
        return
    row = int(bad[0])
    first = tree_map(lambda x: x[:1], position)

    def is_finite(rows: torch.Tensor | None) -> bool:
        with torch.no_grad():
            slope = target.at(first, rows).slope
        return all(bool(g.isfinite().all()) for g in tree_leaves(slope))

    if data.batch_size is None and is_finite(None):  # an energy of all data may mend what it holds
        return
    if not is_finite(bad.new_full((1, data.batch_size or data.rows), row)):
        what = f"the gradient is not finite on row {row} of the data, which holds numbers that are not finite"
        raise RecipeError(where, what, do="Mend the row, or leave it out.")
