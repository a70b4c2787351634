"""Scores of probabilistic predictions."""

from .results.scores import accuracy, negative_log_likelihood, brier, Reliability, reliability, expected_calibration_error, roc, roc_auc

__all__ = ["accuracy", "negative_log_likelihood", "brier", "Reliability", "reliability", "expected_calibration_error", "roc", "roc_auc"]
