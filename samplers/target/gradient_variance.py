"""The variance of minibatch gradients, V_g, at given points."""

from collections.abc import Callable
from typing import Any

import torch
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from recipe.arguments import integer

from .data import Data
from .potential import Position

Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def gradient_variance(
    energy: Callable[..., Any], theta: Position, data: Any, *, batch_size: int, chunk: int = 64
) -> Position:
    """The variances V_g of the coordinates of grad U~(theta, batch), for batches of `batch_size` rows.

    V_g = Var_i[grad U~(theta; {i})]/b, for b rows drawn with replacement, as in `samplers.sample`. In Langevin dynamics
    of friction C the noise raises the temperature to T + h V_g/(2 C), and `B` = h V_g/2 is the budget of
    `samplers.SGHMC` for the noise; `Draws.accuracy` has its effect on the draws of any recipe.

    `energy`: on the sum scale, a mean over the batch plus terms without data, as `samplers.posterior`. `theta`: points
    `(points, *shape)`, or a dict of such tensors by name; the result has the shape of theta. `data`: a tensor, or a
    tuple of tensors, read `chunk` rows at a time. Raises RecipeError for data of other dtypes, devices or lengths.

    >>> from samplers import posterior
    >>> x = torch.tensor([1.0, 2.0, 6.0])
    >>> energy = posterior(lambda theta, x: (x - theta)**2/2, lambda theta: 0*theta, num_data=3)
    >>> gradient_variance(energy, torch.zeros(1), x, batch_size=2)                       # 9 Var x/2
    tensor([21.])
    """
    leaves, form = tree_flatten(theta)
    integer("gradient_variance", "batch_size", batch_size, least=1)
    integer("gradient_variance", "chunk", chunk, least=1)
    rows = Data(data, None, like=leaves[0])

    def of_row(point, row):
        return energy(point, tree_map(lambda x: x[None], row))

    gradients = vmap(vmap(grad(of_row), in_dims=(None, 0)), in_dims=(0, None))
    sums: dict[int, Moments] = {}
    for index in torch.arange(rows.rows, device=leaves[0].device).split(chunk):
        for k, x in enumerate(tree_leaves(gradients(theta, rows.batch(index)))):
            shift, first, second = sums.get(k, (x[:, :1], torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])))
            x = x - shift
            sums[k] = shift, first + x.sum(1), second + x.square().sum(1)
    n = rows.rows
    variances = [(second / n - (first / n).square()) / batch_size for _, first, second in sums.values()]
    return tree_unflatten(variances, form)
