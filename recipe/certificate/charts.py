"""Charts: coordinates y in which the ends of a domain are at infinity, and tails are exponential.

On the line x = sinh y, on a half line x = e^y, between two ends x = low + (high - low)/(1 + e^-y).
"""

import numpy as np

from ..domains import Domain


def point(domain: Domain, y: np.ndarray) -> np.ndarray:
    """The coordinate x of the domain at y."""
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
