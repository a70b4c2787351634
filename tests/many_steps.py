"""The law of a step after any number of steps, from its matrix in orthonormal polynomials."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from orders import coupled

from samplers.testing.one_step import transition
from samplers.testing.quadrature import golub_welsch, recurrence


@dataclass(frozen=True)
class CoordinateLaw:
    """The law exp(-energy/T) of one coordinate: Gauss nodes, orthonormal polynomials, moments, exact draws.

    The support is |x| < reach, or [low, reach], or `points`, for a discrete law.

    >>> law = normal(mean=1.0, variance=4.0)
    >>> round(law.mean(lambda x: x**2), 6)
    5.0
    """

    energy: Callable[[np.ndarray], np.ndarray]
    reach: float = 9.0
    nodes: int = 14
    temperature: float = 1.0
    low: float | None = None
    points: tuple[float, ...] = ()

    @cached_property
    def grid(self):
        """Points and weights of a fine grid, sums over which are integrals."""
        low = -self.reach if self.low is None else self.low
        at = np.array(self.points) if self.points else np.linspace(low, self.reach, 8001)
        weight = np.exp(-self.energy(at) / self.temperature)
        return at, weight / weight.sum()

    def mean(self, f):
        """The mean E f of a function."""
        at, weight = self.grid
        return float(weight @ f(at))

    def draw(self, generator, shape):
        """Independent draws by the inverse of the distribution function."""
        at, weight = self.grid
        return np.interp(generator.random(shape), np.cumsum(weight) - weight / 2, at)

    @cached_property
    def recurrence(self):
        """Coefficients a, b of the orthonormal polynomials: b_k q_{k+1} = (x - a_k) q_k - b_{k-1} q_{k-1}."""
        return recurrence(*self.grid, self.nodes)

    @cached_property
    def quadrature(self):
        """Gauss nodes and weights (Golub & Welsch 1969)."""
        return golub_welsch(*self.recurrence)

    def polynomials(self, at, degree):
        """q_0, ..., q_degree at given points, a row each."""
        a, b = self.recurrence
        q = [np.zeros_like(at), np.ones_like(at)]
        for k in range(degree):
            before = b[k - 1] if k else 0
            q.append(((at - a[k]) * q[-1] - before * q[-2]) / b[k])
        return np.stack(q[1:])


def normal(mean, variance, nodes=14):
    """The normal law of a mean and a variance."""
    return CoordinateLaw(lambda z: (z - mean) ** 2 / (2 * variance), abs(mean) + 9 * variance**0.5, nodes)


class SchemeLaw:
    """The matrix of one step in polynomials of the coordinates, from an exact start.

    Polynomials are orthonormal for independent coordinates. `laws`: of the coordinates, by name; `degree`: the total
    degree. `chart`: a pair of functions of numpy arrays, from the coordinates to the blocks and back, where the two
    differ. `options`: of `transition`.
    """

    def __init__(
        self,
        step,
        h,
        laws,
        degree,
        *,
        chart=(lambda *z: z, lambda *z: z),
        coupling=None,
        noise_nodes=6,
        gradient=None,
        temperature=1.0,
        **options,
    ):
        self.laws = laws
        self.names = list(laws)
        outwards, self.inwards = chart
        most = [min(degree, law.nodes - 1) for law in laws.values()]
        self.degrees = [k for k in itertools.product(*(range(k + 1) for k in most)) if sum(k) <= degree]
        points, weights = coupled([law.quadrature for law in laws.values()], coupling, temperature)
        before, after, weights = transition(
            step,
            outwards(*points),
            weights,
            h,
            gradient,
            draw_nodes=noise_nodes,
            least=1e-16,
            temperature=temperature,
            **options,
        )
        self.z = np.stack(self.inwards(*before))
        basis = self.basis(self.z)
        self.weighted = basis * weights
        self.gram = self.weighted @ basis.T
        moved = self.basis(np.stack(self.inwards(*after)))
        self.matrix = np.linalg.solve(self.gram, self.weighted @ moved.T)

    def basis(self, z):
        """Products of polynomials up to the total degree, a row each."""
        most = np.max(self.degrees, axis=0)
        factors = [law.polynomials(at, int(k)) for law, at, k in zip(self.laws.values(), z, most)]
        return np.stack([math.prod(f[i] for f, i in zip(factors, k)) for k in self.degrees])

    def after(self, steps, f):
        """E f(z) after `steps` steps; f is a polynomial of the coordinates, in their order."""
        row = self.gram[0] @ np.linalg.matrix_power(self.matrix, steps)
        return float(row @ np.linalg.solve(self.gram, self.weighted @ f(*self.z)))

    def autocorrelation(self, steps):
        """The autocorrelation of the first coordinate at a lag of `steps`."""
        f = np.linalg.solve(self.gram, self.weighted @ self.z[0])
        mean, square = self.gram[0] @ f, f @ self.gram @ f
        product = f @ self.gram @ np.linalg.matrix_power(self.matrix, steps) @ f
        return float((product - mean * self.after(steps, lambda *z: z[0])) / (square - mean**2))
