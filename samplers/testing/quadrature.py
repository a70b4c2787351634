"""Points and weights: the laws of one coordinate, and their tensor products."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np

Rule = tuple[np.ndarray, np.ndarray]  # points and weights


@cache
def legendre(nodes: int) -> Rule:
    """Gauss-Legendre points and weights on (-1, 1), in shared arrays that are read-only."""
    return _fixed(np.polynomial.legendre.leggauss(nodes))


@cache
def hermite(nodes: int) -> Rule:
    """Gauss-Hermite points and weights of the standard normal law, in shared arrays that are read-only."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return _fixed((x, w / w.sum()))


def _fixed(rule: Rule) -> Rule:
    for array in rule:
        array.flags.writeable = False
    return rule


def boltzmann(
    energy: Callable[[np.ndarray], np.ndarray],
    temperature: float,
    low: float,
    high: float,
    nodes: int = 44,
    kinks: Sequence[float] = (),
) -> Rule:
    """Gauss-Legendre points and weights of the density exp(-energy/temperature) on an interval, split at kinks."""
    points, weights = [], []
    ends = [low, *sorted(k for k in kinks if low < k < high), high]
    for left, right in zip(ends, ends[1:]):
        x, w = legendre(nodes)
        points.append((left + right) / 2 + (right - left) / 2 * x)
        weights.append((right - left) / 2 * w * np.exp(-energy(points[-1]) / temperature))
    mass = np.concatenate(weights)
    return np.concatenate(points), mass / mass.sum()


def gaussian(mean: float, variance: float, nodes: int = 12) -> Rule:
    """Gauss-Hermite points and weights of a normal law."""
    x, w = hermite(nodes)
    return mean + math.sqrt(variance) * x, w.copy()


def gamma(shape: float, scale: float = 1.0, nodes: int = 12) -> Rule:
    """Gauss-Laguerre points and weights of a Gamma law."""
    k = np.arange(nodes)
    off = np.sqrt(k[1:] * (k[1:] + shape - 1))
    x, vectors = np.linalg.eigh(np.diag(2 * k + shape) + np.diag(off, 1) + np.diag(off, -1))
    return scale * x, vectors[0] ** 2


def recurrence(points: np.ndarray, weights: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients a, b of the polynomials orthonormal under weights: b_k q_{k+1} = (x - a_k) q_k - b_{k-1} q_{k-1}."""
    q = [np.ones_like(points)]
    a, b = [], []
    for k in range(nodes):
        a.append(weights @ (points * q[k] ** 2))
        rest = points * q[k]
        rest -= (np.array(q) @ (weights * rest)) @ np.array(q)
        b.append(math.sqrt(weights @ rest**2))
        q.append(rest / (b[k] or 1.0))
    return np.array(a), np.array(b)


def golub_welsch(a: np.ndarray, b: np.ndarray) -> Rule:
    """The Gauss points and weights of a recurrence. Golub & Welsch (1969)."""
    nodes, vectors = np.linalg.eigh(np.diag(a) + np.diag(b[:-1], 1) + np.diag(b[:-1], -1))
    return nodes, vectors[0] ** 2


def gauss(points: np.ndarray, weights: np.ndarray, nodes: int) -> Rule:
    """The Gauss points and weights of a law on a fine grid, exact for moments up to the degree 2 nodes - 1.

    >>> gauss(np.array([0.0, 1.0, 2.0]), np.array([0.25, 0.5, 0.25]), 1)
    (array([1.]), array([1.]))
    """
    return golub_welsch(*recurrence(points, weights / weights.sum(), nodes))


def thermostat(mean: float, variance: float, kink: float, nodes: int = 14) -> Rule:
    """The points and weights of a normal law whose integrand has a kink."""
    reach = 8.5 * math.sqrt(variance)
    return boltzmann(lambda x: (x - mean) ** 2 / 2, variance, mean - reach, mean + reach, 2 * nodes, [kink])


def relativistic(m: float, c: float, temperature: float, nodes: int = 30) -> Rule:
    """The points and weights of the momentum m c sinh(u) under the kinetic energy m c^2 (cosh(u) - 1)."""

    def energy(u):
        return m * c**2 * (np.cosh(u) - 1) - temperature * np.log(np.cosh(u))

    reach = math.acosh(1 + 45 * temperature / (m * c**2))
    u, weights = boltzmann(energy, temperature, -reach, reach, nodes)
    return m * c * np.sinh(u), weights


def grid(axes: Iterable[Rule]) -> tuple[list[np.ndarray], np.ndarray]:
    """The points and weights of a tensor product, one flat array of points for each axis.

    >>> points, weights = grid([gaussian(0, 1, 2), gaussian(0, 4, 2)])
    >>> float(weights @ (points[0] * points[1]) ** 2)
    4.0
    """
    axes = list(axes)
    points = np.meshgrid(*(x for x, _ in axes), indexing="ij")
    weights = np.ones(())
    for _, w in axes:
        weights = np.multiply.outer(weights, w)
    return [x.ravel() for x in points], weights.ravel()
