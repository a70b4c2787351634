"""A check of the stability of affine steps on quadratic energies."""

from collections.abc import Mapping
from typing import Any

import sympy
import torch

from integrators.linear_law import has_normal_noise, is_affine, linear_chain
from integrators.metropolis import MetropolisedStep
from recipe import Energy
from recipe.algebra import entries
from recipe.errors import RecipeError
from recipe.symbols import Total

from .plan import Plan


def check_stability(plan: Plan, energy: Any, parameters: Mapping, where: str) -> None:
    """Refuse a first step size at which the step is unstable: its linear map has a spectral radius above 1.

    The check is made only where U is symbolic and quadratic, the step affine and every parameter a number.
    """
    step = plan.step
    if not isinstance(energy, Energy) or energy.data or isinstance(step, MetropolisedStep):
        return
    step_size = plan.stages[0].step_size(0)
    if step.frozen or any(torch.is_tensor(v) for v in parameters.values()):
        return
    if not (is_affine(step.recipe) and has_normal_noise(step)):
        return
    hessian = _constant_hessian(energy)
    if hessian is None:
        return
    matrix = [[float(e) for e in row] for row in hessian.tolist()]
    chain = linear_chain(step, step_size, matrix, temperature=plan.temperature(0), **parameters)
    damped = hessian.is_positive_definite and bool(entries(step.recipe.D))
    if chain.spectral_radius >= (1 - 1e-12 if damped else 1 + 1e-9):
        raise RecipeError(
            where,
            f"the step is unstable at step_size = {step_size:g}: its spectral radius is {chain.spectral_radius:.4g}",
            do="Take a smaller step size.",
        )


def _constant_hessian(energy: Energy) -> sympy.Matrix | None:
    """The Hessian of a quadratic U; None where the Hessian is not constant."""
    rows = []
    for slope in energy.gradient:
        row = []
        for c in energy.coordinates:
            row.append(sympy.diff(slope, c) if c in slope.free_symbols else sympy.S.Zero)
            if row[-1].free_symbols or row[-1].atoms(Total):
                return None
        rows.append(row)
    return sympy.Matrix(rows)
