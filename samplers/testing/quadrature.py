"""Points and weights: the laws of one coordinate, and their tensor products."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce

import numpy as np

Rule = tuple[np.ndarray, np.ndarray]  # points and weights


@cache
def legendre(nodes: int) -> Rule:
    """Gauss-Legendre points and weights on (-1, 1), in shared arrays."""
    return np.polynomial.legendre.leggauss(nodes)


@cache
def hermite(nodes: int) -> Rule:
    """Gauss-Hermite points and weights of the standard normal law, in shared arrays."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return x, w / w.sum()


def boltzmann(
    energy: Callable[[np.ndarray], np.ndarray],
    temperature: float,
    low: float,
    high: float,
    nodes: int = 44,
    kinks: Sequence[float] = (),
) -> Rule:
    """Gauss-Legendre points and weights of the density exp(-energy/temperature) on an interval, split at kinks."""
    ends = np.array([low, *sorted(k for k in kinks if low < k < high), high])
    x, w = legendre(nodes)
    half = np.diff(ends)[:, None] / 2
    points = (ends[:-1, None] + half * (1 + x)).ravel()
    mass = (half * w).ravel() * np.exp(-energy(points) / temperature)
    return points, mass / mass.sum()


def gaussian(mean: float, variance: float, nodes: int = 12) -> Rule:
    """Gauss-Hermite points and weights of a normal law."""
    x, w = hermite(nodes)
    return mean + math.sqrt(variance) * x, w


def gamma(shape: float, scale: float = 1.0, nodes: int = 12) -> Rule:
    """Gauss-Laguerre points and weights of a Gamma law."""
    k = np.arange(nodes)
    x, w = golub_welsch(2 * k + shape, np.sqrt((k + 1) * (k + shape)))
    return scale * x, w


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


def grid(axes: Iterable[Rule]) -> tuple[list[np.ndarray], np.ndarray]:
    """The points and weights of a tensor product, one flat array of points for each axis.

    >>> points, weights = grid([gaussian(0, 1, 2), gaussian(0, 4, 2)])
    >>> float(weights @ (points[0] * points[1]) ** 2)
    4.0
    """
    axes = list(axes)
    mesh = np.meshgrid(*(x for x, _ in axes), indexing="ij")
    return [x.ravel() for x in mesh], reduce(np.multiply.outer, (w for _, w in axes), np.ones(())).ravel()
