"""The choice of a preconditioner, a scale for each site or dense coordinates, by effective draws a gradient.

In dense coordinates the covariance of pilot draws, by a shrunk estimate, is the identity.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from recipe import Energy

from ..results.statistics import sample_size_of_mean
from ..target.coordinates import Affine, Mapped
from .laplace import Laplace
from .pilot import Pilot
from .problem import Problem
from .roles_of_parameters import scale_of
from .tuner import WINDOWS, Tuner

FEWEST, MOST = 2, 200  # sites of a dense covariance
ALIKE = 2.0  # condition of a covariance, in units of the scales, below which dense coordinates are not tried
MORE = 1.25  # the least ratio of efficiencies, dense coordinates over scales, at which these are taken


def preconditioned(
    problem: Problem, pilot: Pilot, near: Laplace, held: Mapping[str, Any], repeat: int | None, where: str
) -> Tuner:
    """The settled tuner, with scales or dense coordinates, of more effective draws a gradient, and its reason.

    `held`: parameters that are kept; `repeat`: the words of a proposal, if these are known.
    """
    parameters = dict(pilot.parameters)
    plain = Tuner(problem, pilot, near, held, where)
    plain.settle()
    scale = scale_of(problem.recipe)
    if (scale is not None and scale.parameter.name in held) or not may_be_dense(problem, near):
        return plain
    draws = plain.later.flatten(2)
    seen = condition(draws, draws.std((0, 1)) if scale is not None else torch.ones(draws.shape[-1]).to(draws))
    if seen < ALIKE:
        plain.reasons["coordinates"] = f"those of the energy: the covariance has the condition {seen:.2g} there"
        return plain
    dense = _dense(plain, near, parameters, held, where)
    dense.race(repeat, plain.axis)
    plain.pilot.runs = dense.pilot.runs  # of both
    plain.pilot.words = dense.pilot.words
    plain.race(repeat, least=dense.best.efficiency / MORE)
    worth = f"{dense.best.efficiency:.2g} effective draws a gradient, beside {plain.best.efficiency:.2g}"
    if dense.best.efficiency < MORE * plain.best.efficiency:
        plain.reasons["coordinates"] = f"those of the energy: a dense map is worth {worth} without"
        return plain
    dense.pilot.runs = plain.pilot.runs
    dense.pilot.words = plain.pilot.words
    number = len(dense.later.flatten(0, 1))
    dense.reasons["coordinates"] = f"dense, by the shrunk covariance of {number} pilot draws: {worth} without"
    return dense


def _dense(plain: Tuner, near: Laplace, parameters: Mapping[str, Any], held: Mapping[str, Any], where: str) -> Tuner:
    """A tuner in dense coordinates, by the curvature at the mode first, then by the covariance of draws."""
    coordinates = Affine(near.mode, near.root)  # by the curvature
    pilot = plain.pilot
    theta = pilot.theta
    guess: float | None = None
    for window in range(WINDOWS + 1):
        problem = plain.problem.within(coordinates, where)
        z = coordinates.inverse(theta)
        pilot = replace(
            pilot, energy=problem.of_target(), theta=z, parameters=dict(parameters), coordinates=coordinates
        )
        tuner = Tuner(problem, pilot, around(near, coordinates), held, where, scaled=False, guess=guess)
        tuner.settle(windows=1)
        guess = tuner.guess
        theta = coordinates(pilot.theta)
        if window < WINDOWS:
            coordinates = refined(coordinates, tuner.later)
    return tuner


def may_be_dense(problem: Problem, near: Laplace) -> bool:
    """Whether dense coordinates apply: 2 to 200 sites of an unmapped recipe, with one energy, not a sum over sites."""
    if problem.recipe.has_several_potentials or isinstance(problem.layout.coordinates, Mapped):
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


def refined(coordinates: Affine, draws: torch.Tensor) -> Affine:
    """Coordinates in which draws given in the old ones, `(chains, draws, *shape)`, have mean 0 and covariance 1."""
    flat = draws.flatten(2)
    root = torch.linalg.cholesky(shrunk(flat))
    center = draws.to(torch.float64).mean((0, 1)).to(draws.dtype)
    return Affine(coordinates(center), (coordinates.matrix.to(torch.float64) @ root).to(coordinates.matrix.dtype))


def around(near: Laplace, coordinates: Affine) -> Laplace:
    """The mode and the normal law around it, mapped into these coordinates."""
    matrix = coordinates.matrix.to(torch.float64)
    root = torch.linalg.solve(matrix, near.root.to(torch.float64)).to(near.root.dtype)
    return replace(near, mode=coordinates.inverse(near.mode), root=root)
