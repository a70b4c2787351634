"""The choice between a scale for each site and dense coordinates, by effective draws a gradient."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from .landscape import Surroundings
from .pilot import Pilot
from .problem import Problem
from .roles import scale_of
from .tuner import WINDOWS, Tuner
from .whitening import around, by_curvature, condition, may_be_dense, refined

ALIKE = 2.0  # condition of a covariance, in units of the scales, below which dense coordinates are not tried
MORE = 1.25  # the least ratio of efficiencies, dense coordinates over scales, at which these are taken


def fastest(
    problem: Problem, pilot: Pilot, near: Surroundings, held: Mapping[str, Any], repeat: int | None, where: str
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


def _dense(
    plain: Tuner, near: Surroundings, parameters: Mapping[str, Any], held: Mapping[str, Any], where: str
) -> Tuner:
    """A tuner in dense coordinates, by the curvature at the mode first, then by the covariance of draws."""
    coordinates = by_curvature(near)
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
