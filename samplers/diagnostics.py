"""Diagnostics of draws: sample size, mixing, discrepancy, temperatures.

Source of the sample size and of R-hat: Vehtari, Gelman, Simpson, Carpenter & Buerkner 2021, "Rank-normalization,
folding, and localization"; sums of autocorrelations end where Geyer 1992 ends them.
"""

import torch

from .results import statistics
from .results.discrepancy import Discrepancy, kernel_stein_discrepancy
from .results.draws import Draws
from .results.temperatures import Temperature, configurational_temperature, kinetic_temperature

__all__ = [
    "effective_sample_size",
    "autocorrelation_time",
    "r_hat",
    "Discrepancy",
    "kernel_stein_discrepancy",
    "Temperature",
    "kinetic_temperature",
    "configurational_temperature",
]


def effective_sample_size(draws: Draws, name: str) -> torch.Tensor:
    """The number of independent draws of equal precision in the bulk: chains draws/tau of the rank-normalised values.

    Returns `(*shape)` of the block, in float64; nan for fewer than 4 draws, and where all values are equal. Draws weigh
    equally; chains that diverged are left out, with a warning. Raises RecipeError for an unknown name, or where no
    chain is left.

    >>> draws = Draws({"theta": torch.randn(4, 1000, 2, generator=torch.Generator().manual_seed(0))}, info={})
    >>> effective_sample_size(draws, "theta") > 3500
    tensor([True, True])
    """
    return statistics.sample_size_of_ranks(draws[name][draws.sound_chains("effective_sample_size")])


def autocorrelation_time(draws: Draws, name: str) -> torch.Tensor:
    """The integrated autocorrelation time: tau = 1 + 2 sum_t rho_t = chains draws/ESS of the mean, in draws.

    Steps between draws, `thin` of them, multiply it. Returns, and raises, as `effective_sample_size` does.

    >>> steps = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0))
    >>> autocorrelation_time(Draws({"theta": steps.repeat_interleave(5, dim=1)}, info={}), "theta").round()
    tensor(5., dtype=torch.float64)
    """
    return statistics.autocorrelation_time(draws[name][draws.sound_chains("autocorrelation_time")])


def r_hat(draws: Draws, name: str) -> torch.Tensor:
    """The rank-normalised split R-hat, sqrt(var+/W): 1 where halves of chains agree, above 1.01 where they do not yet.

    Returns, and raises, as `effective_sample_size` does; nan also for one chain.

    >>> draws = Draws({"theta": torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))}, info={})
    >>> r_hat(draws, "theta") < 1.01
    tensor(True)
    """
    return statistics.split_r_hat(draws[name][draws.sound_chains("r_hat")])
