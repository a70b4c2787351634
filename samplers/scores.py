"""Scores of probabilistic predictions."""

from .results.scores import (
    Reliability,
    accuracy,
    brier,
    expected_calibration_error,
    negative_log_likelihood,
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
    "roc",
    "roc_auc",
]
