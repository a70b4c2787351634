"""Scores of probabilistic predictions."""

from .results.regression import coverage, crps, log_predictive_density, rmse
from .results.scores import (
    Difference,
    Reliability,
    accuracy,
    brier,
    expected_calibration_error,
    negative_log_likelihood,
    paired,
    reliability,
    roc,
    roc_auc,
)

__all__ = [
    "accuracy",
    "negative_log_likelihood",
    "brier",
    "Reliability",
    "reliability",
    "expected_calibration_error",
    "rmse",
    "log_predictive_density",
    "crps",
    "coverage",
    "Difference",
    "paired",
    "roc",
    "roc_auc",
]
