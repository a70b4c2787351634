"""The variance of minibatch gradients, V_g, at given points."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.func import grad, vmap

from recipe.arguments import integer

from .data import Data
from .potential import Position

Moments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def gradient_variance(energy: Callable, theta: Position, data: Any, *, batch_size: int, chunk: int = 64) -> Position:
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
    like = next(iter(theta.values())) if isinstance(theta, Mapping) else theta
    integer("gradient_variance", "batch_size", batch_size, least=1)
    integer("gradient_variance", "chunk", chunk, least=1)
    rows = Data(data, None, like=like)

    def of_row(point, row):
        return energy(point, tuple(x[None] for x in row) if isinstance(row, tuple) else row[None])

    gradients = vmap(vmap(grad(of_row), in_dims=(None, 0)), in_dims=(0, None))
    sums: dict[Any, Moments] = {}
    for some in torch.arange(rows.rows, device=like.device).split(chunk):
        g = gradients(theta, rows.batch(some))
        for name, x in (g if isinstance(g, Mapping) else {None: g}).items():
            shift, first, second = sums.get(name, (x[:, :1], torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])))
            x = x - shift
            sums[name] = shift, first + x.sum(1), second + x.square().sum(1)
    n = rows.rows
    variances = {name: (second / n - (first / n).square()) / batch_size for name, (_, first, second) in sums.items()}
    return variances if isinstance(theta, Mapping) else variances[None]
