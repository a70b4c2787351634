"""The choice of a preconditioner: a scale for each site, or dense coordinates where draws are correlated.

In dense coordinates the covariance of pilot draws, by a shrunk estimate, is the identity.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from recipe import Energy

from ..results.statistics import sample_size_of_mean
from ..target.coordinates import Affine, Mapped
from .pilot import Pilot
from .problem import Problem
from .roles_of_parameters import scale_of
from .tuner import APART, FEWEST_WORDS, MET, MOST_WORDS, Tuner

FEWEST, MOST = 2, 200  # sites of a dense covariance
WINDOWS = 4  # of dense coordinates, at most
ALIKE = 3.0  # condition of a covariance, in units of the scales, below which dense coordinates are not tried
CHANCE = 1.4  # ratio of efficiencies that chance makes of two tuners' trials, against what the covariance says


def preconditioned(
    problem: Problem,
    pilot: Pilot,
    held: Mapping[str, Any],
    repeat: int | None,
    budget: int,
    is_proper: bool,
    where: str,
) -> Tuner:
    """The settled tuner, with scales or dense coordinates, and its reason.

    `held`: parameters that are kept; `repeat`: the words of a proposal, if these are known; `budget`: of gradients;
    `is_proper`: whether exp(-U/T) is known to have an integral.
    """
    parameters = dict(pilot.parameters)
    plain = Tuner(problem, pilot, held, budget // 2, where, is_proper=is_proper)
    plain.settle()
    plain.budget = budget
    scale = scale_of(problem.recipe)
    is_held = scale is not None and scale.parameter.name in held
    if is_held or not may_be_dense(problem, pilot):
        return plain
    draws = plain.later.flatten(2)
    ratio = condition(draws, plain.units.flatten() if scale is not None else torch.ones_like(draws[0, 0]))
    if ratio < ALIKE:
        plain.reasons["coordinates"] = f"those of the energy: the covariance has the condition {ratio:.2g} there"
        return plain
    plain.begin(repeat)
    if plain.is_spent:
        plain.reasons["coordinates"] = "those of the energy: the budget is spent"
        return plain
    dense, draws = _dense(plain, parameters, held, where)
    dense.begin(repeat, plain.axis)
    is_better = CHANCE * dense.best.efficiency >= plain.best.efficiency
    if max(plain.r_hat, dense.r_hat) > APART:  # the coordinates in which they are nearer
        is_better = dense.r_hat < plain.r_hat
    best = dense if is_better else plain
    worth = f"{dense.best.efficiency:.2g} effective draws a gradient, beside {plain.best.efficiency:.2g} without"
    number = len(draws.flatten(0, 1))
    reason = f"those of the energy: a dense map is worth {worth}"
    if best is dense:
        covariance = f"the shrunk covariance of {number} pilot draws, of condition {ratio:.2g} before"
        reason = f"dense, by {covariance}: {worth}"
    best.reasons["coordinates"] = reason
    return best


def _dense(
    plain: Tuner, parameters: Mapping[str, Any], held: Mapping[str, Any], where: str
) -> tuple[Tuner, torch.Tensor]:
    """A tuner in dense coordinates, by the covariance of its own draws as soon as this is round, and these draws.

    The draws of a window make the coordinates of the next one; the last one, whose draws make none, is short.
    """
    pilot, draws = plain.pilot, plain.later
    coordinates = Affine(torch.zeros_like(draws[0, 0]), torch.eye(draws[0, 0].numel()).to(draws))
    is_round, r_hat = False, math.inf
    for _ in range(WINDOWS):
        source, coordinates = draws, refined(coordinates, draws)
        theta = coordinates.inverse(pilot.theta if pilot.coordinates is None else pilot.coordinates(pilot.theta))
        problem = plain.problem.within(coordinates, where)
        pilot = replace(
            pilot, energy=problem.of_target(), theta=theta, parameters=dict(parameters), coordinates=coordinates
        )
        tuner = Tuner(problem, pilot, held, plain.budget, where, scaled=False)
        tuner.window(FEWEST_WORDS if is_round else MOST_WORDS)
        if is_round or tuner.is_spent:
            break
        draws, r_hat = tuner.later, tuner.r_hat
        flat = draws.flatten(2)
        is_round = r_hat < MET and condition(flat, torch.ones_like(flat[0, 0])) < ALIKE * of_chance(flat)
    if is_round:
        tuner.r_hat = r_hat  # that of a short window is high
    tuner.explain()
    return tuner, source


def may_be_dense(problem: Problem, pilot: Pilot) -> bool:
    """Whether dense coordinates apply: 2 to 200 sites of an unmapped recipe, with one energy, not a sum over sites."""
    if problem.recipe.has_several_potentials or isinstance(problem.layout.coordinates, Mapped):
        return False
    sitewise = isinstance(problem.energy, Energy) and problem.energy.is_sitewise
    return FEWEST <= pilot.theta[0].numel() <= MOST and not sitewise


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


def of_chance(draws: torch.Tensor) -> float:
    """The condition number of the covariance of independent draws of a unit Gaussian, as many as these in effect.

        ((1 + r) / (1 - r))^2,  r = sqrt(sites/n),

    for draws `(chains, draws, sites)`, with n the mean of the effective numbers of their squares.

    Source: Marchenko & Pastur 1967.

    >>> round(of_chance(torch.randn(4, 1000, 40, generator=torch.Generator().manual_seed(0))), 1)
    1.5
    """
    away = draws.to(torch.float64) - draws.mean((0, 1))
    n = float(sample_size_of_mean(away.square()).nan_to_num(nan=1.0).mean())
    r = (draws.shape[-1] / n) ** 0.5
    return ((1 + r) / (1 - r)) ** 2 if r < 1 else math.inf


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
