"""Judging draws: sample size, mixing, discrepancy, temperatures."""

from .results.diagnostics import effective_sample_size, autocorrelation_time, r_hat, Discrepancy, kernel_stein_discrepancy, Temperature, kinetic_temperature, configurational_temperature

__all__ = ["effective_sample_size", "autocorrelation_time", "r_hat", "Discrepancy", "kernel_stein_discrepancy", "Temperature", "kinetic_temperature", "configurational_temperature"]
