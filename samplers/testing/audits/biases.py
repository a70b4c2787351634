"""Statistics over chains and step sizes: limits and orders of biases, and correlations between chains."""

import numpy as np


def limits(bias: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The limits of biases as h -> 0, their standard errors, and scores against vanishing, in standard errors.

    The limit is exact to second order in h. A bias does not vanish where b(h/4) is more than two thirds of b(h/2),
    unlike any bias of order h^.6 or higher, and the limit has the same sign.
    """
    coarse, middle, fine = bias
    limit = (coarse - 6 * middle + 8 * fine) / 3
    limit_error = np.sqrt(error[0] ** 2 + 36 * error[1] ** 2 + 64 * error[2] ** 2) / 3
    score = np.sign(fine) * (1.5 * fine - middle) / np.hypot(1.5 * error[2], error[1])
    return limit, limit_error, np.where(np.sign(fine) * limit > 2 * limit_error, score.clip(0), 0.0)


def order(bias: np.ndarray, error: np.ndarray, width: float = 2.0) -> tuple[float, float, float]:
    """The order p of b = c h^p by least squares, and its range within `width` standard errors.

    Where no power fits, as for c h + d h^2, the standard errors are scaled up to the misfit.
    """
    orders = np.linspace(-2, 6, 801)
    powers = 2.0 ** -np.outer(orders, range(3)) / error
    fitted = (powers @ (bias / error)) / (powers**2).sum(1)
    misfit = ((powers * fitted[:, None] - bias / error) ** 2).sum(1)
    within = orders[misfit < misfit.min() + width**2 * max(1.0, misfit.min())]
    return float(orders[misfit.argmin()]), float(within[0]), float(within[-1])


def likeness(x: np.ndarray) -> tuple[int, float, float]:
    """The lag between chains of the largest rank correlation, that correlation, and its size in standard errors."""
    y = x.argsort(0).argsort(0) - (len(x) - 1) / 2  # ranks, on which a few far chains have no influence
    y = y / y.std(0)
    r = np.fft.irfft(abs(np.fft.rfft(y, axis=0)) ** 2, len(y), axis=0)[1 : len(y) // 2 + 1] / len(y)
    score = abs(r) * len(y) ** 0.5
    if len(y) % 2 == 0:
        score[-1] /= 2**0.5  # half-way round, every pair counts twice
    lag, k = np.unravel_index(score.argmax(), score.shape)
    return int(lag) + 1, float(r[lag, k]), float(score[lag, k])


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """The mean over coordinates of the correlation across chains; a constant coordinate counts as 0."""
    pairs = zip(a.T, b.T)
    return float(np.mean([np.corrcoef(x, y)[0, 1] if x.std() and y.std() else 0.0 for x, y in pairs]))
