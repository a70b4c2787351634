"""Long runs against reference posteriors, live thermostats and adaptations among them: `pytest -m slow`.

The means at h and h/2 are extrapolated by the order of the step; what is left must lie within a margin, two-sided.
"""

import numpy as np
import pytest
import torch
from error_budget import Z
from sympy import exp, lambdify, log, symbols

import integrators
import samplers
from recipe import Energy
from samplers.testing.cases import CASES

pytestmark = pytest.mark.slow

a, b = symbols("a b", real=True)
ROWS = [(-1.3, -1), (-0.4, 1), (0.1, -1), (0.7, 1), (1.1, 1), (1.9, 1)]  # x, y of a logistic regression
REFERENCES = {
    "logistic regression": Energy((a, b), U=(a**2 + b**2) / 4 + sum(log(1 + exp(-y * (a + b * x))) for x, y in ROWS)),
    "double well, coupled": Energy((a, b), U=(a**2 - 1) ** 2 / 2 + b**2 / 2 + a * b / 2 + b**4 / 8),
}
PHI = {
    "a": lambda a, b: a,
    "b": lambda a, b: b,
    "a^2": lambda a, b: a**2,
    "b^2": lambda a, b: b**2,
    "ab": lambda a, b: a * b,
}
STEP = {
    "sgld": 0.04,
    "underdamped-langevin": 0.3,
    "sghmc": 0.08,
    "sghmc-relativistic": 0.2,
    "hmc-randomised": 0.3,
    "sgnht": 0.2,
    "msgnht": 0.2,
    "atmc": 0.2,
    "atmc-relativistic": 0.2,
}
MARGIN = 0.02  # of the standard deviation of phi


def exact(energy):
    """Mean and standard deviation of every phi, by quadrature."""
    at = np.linspace(-12, 12, 1201)
    x, y = np.meshgrid(at, at)
    weight = np.exp(-lambdify((a, b), energy.U, "numpy")(x, y))
    weight /= weight.sum()
    mean = {name: (weight * f(x, y)).sum() for name, f in PHI.items()}
    return {name: (mean[name], ((weight * f(x, y) ** 2).sum() - mean[name] ** 2) ** 0.5) for name, f in PHI.items()}


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("name", STEP)
def test_the_posterior_is_the_limit_of_small_steps(name, reference):
    """From the mode, for 60 units of time, by 4000 chains; the last third is averaged chain by chain."""
    energy, h, result = REFERENCES[reference], STEP[name], []
    given = {k: v for k, v in CASES[name].values.items() if k != "B"}
    for seed, size in enumerate((h, h / 2)):
        steps = round(60 / size)
        draws = samplers.sample(
            CASES[name].recipe,
            energy,
            init=torch.zeros(2, dtype=torch.float64),
            chains=4000,
            warmup=2 * steps // 3,
            steps=steps // 3,
            thin=max(1, steps // 60),
            step_size=size,
            seed=seed,
            progress=False,
            **given,
        )
        theta = draws["theta"].numpy()
        result.append({phi: f(theta[..., 0], theta[..., 1]).mean(1) for phi, f in PHI.items()})
    factor = 2 ** integrators.compile(CASES[name].recipe).marginal_order
    for phi, (mean, sd) in exact(energy).items():
        coarse, fine = (run[phi] for run in result)
        limit = (factor * fine.mean() - coarse.mean()) / (factor - 1)
        error = np.hypot(factor * fine.std(), coarse.std()) / (factor - 1) / 4000**0.5
        assert abs(limit - mean) <= MARGIN * sd + Z * error, f"{phi}: {limit:.4f}, exactly {mean:.4f}"
        assert error < MARGIN * sd, "the run is too short to say"
