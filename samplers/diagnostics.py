"""Judging draws: sample size, mixing, discrepancy, temperatures."""

from .results.diagnostics import (
    Discrepancy,
    Temperature,
    autocorrelation_time,
    configurational_temperature,
    effective_sample_size,
    kernel_stein_discrepancy,
    kinetic_temperature,
    r_hat,
)

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
