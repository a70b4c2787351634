"""Eight schools (Rubin 1981), the parts that do not depend on the language in which the model is written.

mu ~ N(0, 5), tau ~ half-Cauchy(5), eta_i ~ N(0, 1), effect_i ~ N(mu + tau eta_i, error_i).
"""

from collections.abc import Callable

import torch
from numpy import ndarray

from samplers import Draws, sample, tune

EFFECTS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
ERRORS = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]


def moved(pair: Callable[[ndarray], tuple], sites: int, steps: int) -> Draws:
    """Draws of free numbers, by a function of them that returns (U, grad U), tuned and accepted or rejected."""
    settings = tune("hmc", gradient=pair, init=torch.zeros(sites, dtype=torch.float64))
    return sample("hmc", gradient=pair, steps=steps, warmup=steps // 10, progress=False, **settings.arguments)


def table(draws: dict[str, torch.Tensor]) -> str:
    """Mean and standard deviation of each variable."""
    rows = [f"{name:4} mean {x.mean():7.3f}   sd {x.std():6.3f}" for name, x in draws.items()]
    return "\n".join(rows)
