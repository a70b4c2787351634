"""Coordinates in which the ends of a domain are infinitely far, and tails exponential.

A real x is sinh y, one on a half line e^y, one between two ends low + (high - low)/(1 + e^-y).
"""

import numpy as np

from ..domains import Domain


def point(domain: Domain, y: np.ndarray) -> np.ndarray:
    """x at y."""
    if domain.is_real:
        return np.sinh(y)
    return domain.inside(1 / (1 + np.exp(-y))) if domain.is_compact else np.exp(y)


def log_slope(domain: Domain, y: np.ndarray) -> np.ndarray:
    """log |dx/dy| at y."""
    if domain.is_real:
        return np.logaddexp(y, -y) - np.log(2)
    if domain.is_compact:
        return np.log(float(domain.width)) - np.logaddexp(0, y) - np.logaddexp(0, -y)
    return y
