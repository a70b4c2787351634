"""The integral of one-dimensional priors over the values in which chains move."""

import math

import numpy as np
import torch
from torch.distributions import Distribution, Transform, VonMises, identity_transform

from recipe.errors import RecipeError

from .independent import of_each

DRAWS = 256  # of the prior, between which the nodes lie
NODES = 8  # between two draws
BEYOND = 256  # nodes in each tail
NUMBERS = 2**22  # values of densities, at most
LEAST, MOST = 0.5, 1.05  # of an integral of 1: values that underflow are missing, and the rule is off by 0.02 at most


def check_normalisation(law: Distribution, map: Transform, where: str, advice: str, *, is_cut: bool) -> None:
    """Refuse a one-dimensional prior whose density has another integral than 1 over the range of `map`.

    A prior that is cut, by a constraint, has an integral up to 1. Priors of several dimensions are not asked.
    """
    law = of_each(law)
    is_joint = law.event_shape or map.codomain.event_dim
    if is_joint or law.batch_shape.numel() * (NODES * DRAWS + 2 * BEYOND) > NUMBERS:
        return
    is_periodic = isinstance(law, VonMises) and map == identity_transform  # torch says that its support is real
    integral = torch.full((1,), math.inf) if is_periodic else _integrals(law, map)
    wrong = (integral > MOST) | (integral < (0 if is_cut else LEAST))
    if wrong.any():
        worst = float(integral[wrong].flatten()[0])
        what = f"the integral of its prior {law} over the values in which chains move is {worst:.3g}, not 1"
        raise RecipeError(where, what, do=advice)


def _integrals(law: Distribution, map: Transform) -> torch.Tensor:
    """The integral of the density for each number of the prior, by the free numbers z.

    Gauss and Legendre's rule between draws; z = end -+ s exp(pi/2 sinh t) beyond the first and the last, with s the
    distance of the quartiles. Source: Takahasi & Mori 1974, for the tails.
    """
    draws = law.sample(torch.Size([DRAWS]))
    z = map.inv(draws.double())
    z = torch.where(z.isfinite(), z, z.nanmedian(0).values).sort(0).values
    axes = (-1,) + (1,) * (z.dim() - 1)
    x, w = (torch.from_numpy(each).reshape(axes) for each in np.polynomial.legendre.leggauss(NODES))
    width = z.diff(dim=0)[:, None] / 2
    nodes, weights = [(z[:-1, None] + width * (1 + x)).flatten(0, 1)], [(width * w).flatten(0, 1)]
    t = torch.linspace(-4, 4, BEYOND, dtype=torch.float64).reshape(axes)
    steps = torch.exp(math.pi / 2 * t.sinh()) * (z[3 * DRAWS // 4] - z[DRAWS // 4])
    for end, side in ((z[0], -1), (z[-1], 1)):
        nodes.append(end + side * steps)
        weights.append(steps * math.pi / 2 * t.cosh() * 8 / (BEYOND - 1))
    return (_density(law, map, torch.cat(nodes), draws[0]) * torch.cat(weights)).sum(0)


def _density(law: Distribution, map: Transform, z: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """The density of the free numbers z; 0 at values that round to an end, or beyond it. `inside`: a value inside."""
    values = map(z)
    rounded = values.to(inside.dtype)  # as by the law itself
    assert law.support is not None  # where chains move
    within = law.support.check(rounded) & rounded.isfinite() & map.inv(rounded).isfinite()
    volume = map.log_abs_det_jacobian(z, values)
    density = (law.log_prob(torch.where(within, values, inside.double())) + volume).exp()
    return torch.where(within, density, 0.0).nan_to_num(0.0, posinf=0.0)  # single points, at the ends of the numbers
