"""Dense coordinates, in which the covariance of pilot draws, by a shrunk estimate, is the identity."""

from dataclasses import replace

import torch

from recipe import Energy

from ..results.statistics import sample_size_of_mean
from ..target.coordinates import Affine, Sitewise
from .landscape import Surroundings
from .problem import Problem

FEWEST, MOST = 2, 200  # sites of a dense covariance


def may_be_dense(problem: Problem, near: Surroundings) -> bool:
    """Whether dense coordinates apply: 2 to 200 sites of an unmapped recipe, with one energy, not a sum over sites."""
    if problem.recipe.has_several_potentials or isinstance(problem.layout.coordinates, Sitewise):
        return False
    sitewise = isinstance(problem.energy, Energy) and problem.energy.is_sitewise
    return FEWEST <= near.mode.numel() <= MOST and not sitewise


def shrunk(draws: torch.Tensor) -> torch.Tensor:
    """The covariance of draws `(chains, draws, sites)`, `(sites, sites)`, shrunk towards a multiple of the identity.

        (1 - rho) S + rho tr(S)/p I,
        rho = ((1 - 2/p) tr S^2 + tr(S)^2) / ((n + 1 - 2/p) (tr S^2 - tr(S)^2/p)), at most 1,

    with n their effective number, the mean of that of all sites.

    Source: Chen, Wiesel, Eldar & Hero (2010), "Shrinkage algorithms for MMSE covariance estimation", eq. 23.

    >>> shrunk(torch.eye(2).repeat(1, 50, 1)).round(decimals=1)
    tensor([[ 0.3000, -0.2000],
            [-0.2000,  0.3000]], dtype=torch.float64)
    """
    draws = draws.to(torch.float64)
    sites = draws.shape[-1]
    S = torch.cov(draws.flatten(0, 1).T)
    n = float(sample_size_of_mean(draws).nan_to_num(nan=1.0).mean())
    trace = float(S.trace())
    square = float(S.square().sum())
    away = (n + 1 - 2 / sites) * (square - trace**2 / sites)
    rho = 1.0 if away <= 0 else min(1.0, ((1 - 2 / sites) * square + trace**2) / away)
    return (1 - rho) * S + rho * trace / sites * torch.eye(sites, dtype=S.dtype, device=S.device)


def condition(draws: torch.Tensor, units: torch.Tensor) -> float:
    """The condition number of the covariance of draws `(chains, draws, sites)` in these units, `(sites,)`.

    >>> condition(torch.tensor([[1.0, 0], [-1, 0], [0, 2], [0, -2]]).repeat(1, 200, 1), torch.tensor([1.0, 2.0]))
    1.0
    """
    levels = torch.linalg.eigvalsh(shrunk(draws.to(torch.float64) / units.to(torch.float64)))
    return float(levels[-1] / levels[0])


def by_curvature(near: Surroundings) -> Affine:
    """Coordinates in which the normal law around the mode is N(0, 1)."""
    return Affine(near.mode, near.root)


def refined(coordinates: Affine, draws: torch.Tensor) -> Affine:
    """Coordinates in which draws given in the old ones, `(chains, draws, *shape)`, have mean 0 and covariance 1."""
    flat = draws.flatten(2)
    root = torch.linalg.cholesky(shrunk(flat))
    center = draws.to(torch.float64).mean((0, 1)).to(draws.dtype)
    return Affine(coordinates(center), (coordinates.matrix.to(torch.float64) @ root).to(coordinates.matrix.dtype))


def around(near: Surroundings, coordinates: Affine) -> Surroundings:
    """The mode and the normal law around it, mapped into these coordinates."""
    matrix = coordinates.matrix.to(torch.float64)
    root = torch.linalg.solve(matrix, near.root.to(torch.float64)).to(near.root.dtype)
    return replace(near, mode=coordinates.inverse(near.mode), root=root)
