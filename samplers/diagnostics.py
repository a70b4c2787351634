"""Judging draws: sample size, mixing, discrepancy, temperatures."""

from .results.discrepancy import Discrepancy, kernel_stein_discrepancy
from .results.mixing import autocorrelation_time, effective_sample_size, r_hat
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
