"""Steps by quadrature: how far one moves exp(-H/T), and the law of many.

A step is a pure function of state and noise. With the state z from exp(-H/T) and the noise from its law, both as tensor
grids of a quadrature, E f(step(z, w)) is a sum. The one-step defect of a monomial phi is E[phi(step(z, w))] - E[phi(z)]:
its norm falls as h^3 for a palindrome of exact flows, as h^2 for a consistent step, and only as h where the SDE or a
flow is wrong. The matrix of the step in orthonormal polynomials gives the law after any number of steps.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.special import gammaln

# ---- the law of one coordinate: points and weights


def boltzmann(energy, temperature, low, high, nodes=44, kinks=()):
    """Gauss-Legendre points and weights of the density exp(-energy/temperature) on an interval, split at kinks."""
    points, weights = [], []
    ends = [low, *sorted(k for k in kinks if low < k < high), high]
    for left, right in zip(ends, ends[1:]):
        x, w = np.polynomial.legendre.leggauss(nodes)
        points.append((left + right) / 2 + (right - left) / 2 * x)
        weights.append((right - left) / 2 * w * np.exp(-energy(points[-1]) / temperature))
    points, weights = np.concatenate(points), np.concatenate(weights)
    return points, weights / weights.sum()


def gaussian(mean, variance, nodes=12):
    """Gauss-Hermite points and weights of a normal law."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return mean + math.sqrt(variance) * x, w / w.sum()


def gamma(shape, scale=1.0, nodes=12):
    """Gauss-Laguerre points and weights of a Gamma law."""
    k = np.arange(nodes)
    off = np.sqrt(k[1:] * (k[1:] + shape - 1))
    x, vectors = np.linalg.eigh(np.diag(2 * k + shape) + np.diag(off, 1) + np.diag(off, -1))
    return scale * x, vectors[0] ** 2


def thermostat(mean, variance, kink, nodes=14):
    """The points and weights of a normal law whose integrand has a kink."""
    sd = math.sqrt(variance)
    return boltzmann(lambda x: (x - mean) ** 2 / 2, variance, mean - 8.5 * sd, mean + 8.5 * sd, 2 * nodes, [kink])


def relativistic(m, c, temperature, nodes=30):
    """The points and weights of the momentum m c sinh(u) under the kinetic energy m c^2 (cosh(u) - 1)."""
    energy = lambda u: m * c**2 * (np.cosh(u) - 1) - temperature * np.log(np.cosh(u))
    reach = math.acosh(1 + 45 * temperature / (m * c**2))
    u, weights = boltzmann(energy, temperature, -reach, reach, nodes)
    return m * c * np.sinh(u), weights


# ---- one step


def grid(axes):
    """The points and weights of a tensor product, one flat array for each axis."""
    points = np.meshgrid(*(x for x, _ in axes), indexing="ij")
    weights = np.ones(())
    for _, w in axes:
        weights = np.multiply.outer(weights, w)
    return [x.ravel() for x in points], weights.ravel()


def transition(
    step,
    law,
    h,
    gradient,
    *,
    constants=None,
    coupling=None,
    gradient_noise=0.0,
    temperature=1.0,
    draw_nodes=9,
    gradient_nodes=None,
    chart=None,
    least=0.0,
    **arguments,
):
    """Points of exp(-H/T), where the step takes each of them, both block by block, and their weights.

    `law`: coordinate -> (points, weights); the coordinates are the blocks, or led to them by the `chart`, a function.
    `coupling`: an energy of the coordinates beside those of their axes. `constants`: adapted quantities by name.
    `gradient_noise`: the variance that every gradient of the step adds, an axis of so many `gradient_nodes` too, +-1
    where these are 2; it may be a function of the coordinates. Points of weights below `least` are left out.
    """
    recipe, draws = step.recipe, step.program.draws
    assert not (gradient_noise and step.program.carries_gradient), "the noise of a carried gradient is not in the state"
    noisy = step.program.gradients_per_step if gradient_noise else 0
    kinds = {
        "normal": gaussian(0, 1, draw_nodes),
        "uniform": (np.full(1, 0.5), np.ones(1)),
        "poisson": (np.arange(200.0), np.ones(200)),
        "gamma": (np.arange(draw_nodes), np.ones(draw_nodes)),
    }
    points, weights = grid(
        [*law.values(), *(kinds[d.kind] for d in draws), *[gaussian(0, 1, gradient_nodes or draw_nodes)] * noisy]
    )
    if coupling:
        weights = weights * np.exp(-coupling(*points[: len(law)]) / temperature)
        weights /= weights.sum()
    points, weights = [x[weights > least] for x in points], weights[weights > least]

    def moved(points):
        """Where the step takes the points, and the weights of those draws whose law depends on the state."""
        shaped = lambda x, kind: torch.as_tensor(x)[:, None] if kind.is_vector else torch.as_tensor(x)
        blocks, factors, own = (chart or (lambda *z: z))(*points[: len(law)]), [], points[len(law) :]
        state = {b.name: shaped(x, b) for b, x in zip(recipe.state, blocks)}
        state |= {a.name: shaped(np.full(len(points[0]), constants[a.name]), a) for a in recipe.adapted}
        noise = {
            d.name: STATE_DEPENDENT[d.kind](x, factors) if d.kind in STATE_DEPENDENT else shaped(x, d)
            for d, x in zip(draws, own)
        }
        variance = gradient_noise(*points[: len(law)]) if callable(gradient_noise) else gradient_noise
        errors = iter([torch.as_tensor(variance**0.5 * x)[:, None] for x in own[len(draws) :]])
        field = gradient if not noisy else lambda theta: gradient(theta) + next(errors)
        out = step(state, h, gradient=field, noise=noise, temperature=temperature, **arguments)
        flat = lambda part: [part[b.name].flatten().numpy() for b in recipe.state]
        return flat(state), flat(out), math.prod(factors)

    for k, draw in enumerate(draws, len(law)):
        if draw.kind == "uniform":
            at = lambda u: [u if i == k else x for i, x in enumerate(points)]
            part = threshold(lambda points: moved(points)[1], points, k)
            points = [np.concatenate(pair) for pair in zip(at(part / 2), at((1 + part) / 2))]
            weights = np.concatenate([weights * part, weights * (1 - part)])
    before, after, factor = moved(points)
    return before, after, weights * factor


def threshold(moved, points, k):
    """Where a step, piecewise constant in a uniform, the k-th coordinate, jumps: at every point; 1 where it does not."""
    at = lambda u, points: [np.full(len(x), u) if i == k else x for i, x in enumerate(points)]
    equal = lambda a, b: np.all([x == y for x, y in zip(a, b)], axis=0)
    below, above = 2.0**-60, 1 - 2.0**-50

    def bisected(points):
        low, high = at(below, points)[k], at(1.0, points)[k]
        first = moved(at(below, points))
        for _ in range(55):
            middle = (low + high) / 2
            same = equal(moved(at(middle, points)), first)
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return low

    guess = bisected([x[:: 1 + len(x) // 50] for x in points])[0]  # mostly it is the same everywhere
    below_it, above_it = (moved(at(u, points)) for u in (guess * (1 - 1e-12), min(guess * (1 + 1e-12), above)))
    if np.all(equal(below_it, moved(at(below, points)))) and np.all(equal(above_it, moved(at(above, points)))):
        return at(guess, points)[k]
    return bisected(points)


def _poisson(counts, factors):
    """The counts as a function of their rate, which leaves their probabilities in `factors`."""

    def draw(rate):
        x = rate.flatten().numpy()
        factors.append(np.exp(counts * np.log(x) - x - gammaln(counts + 1)))
        return torch.as_tensor(counts).reshape(rate.shape)

    return draw


def _gamma(numbers, factors):
    """Gauss-Laguerre nodes by their number, as a function of the shape; their weights are left in `factors`."""

    def draw(shape):
        values, where = np.unique(shape.flatten().numpy(), return_inverse=True)
        points, weights = np.moveaxis(np.array([gamma(a, nodes=int(numbers.max()) + 1) for a in values]), 1, 0)
        factors.append(weights[where, numbers])
        return torch.as_tensor(points[where, numbers]).reshape(shape.shape)

    return draw


STATE_DEPENDENT = {"poisson": _poisson, "gamma": _gamma}


# ---- its defect


def defect(step, law, h, gradient, *, degree=4, **options):
    """E[phi(step(z, w))] - E[phi(z)] for all monomials phi up to a degree; `law`: block name -> (points, weights)."""
    law = {b.name: law[b.name] for b in step.recipe.state}
    before, after, weights = transition(step, law, h, gradient, **options)
    change = moments(after, weights, degree) - moments(before, weights, degree)
    total_degree = sum(np.indices(change.shape))
    return change[(0 < total_degree) & (total_degree <= degree)]


def moments(values, weights, degree):
    """The table of E[x^i y^j ...] for exponents from 0 to a degree each."""
    powers = [np.multiply.accumulate([np.ones(len(weights)), *[v] * degree]) for v in values]
    letters = "ijklm"[: len(powers)]
    return np.einsum(f"{','.join(f'{a}n' for a in letters)},n->{letters}", *powers, weights, optimize=True)


def slopes(step, law, gradient, hs=(0.2, 0.1, 0.05, 0.025), at=None, **options):
    """The slopes of the norm of the defect between neighbouring step sizes.

    `at`: what changes with them, `h` itself where they only measure the step.
    """

    def norm(h):
        given = {"h": h, **options, **(at(h) if at else {})}
        return np.linalg.norm(defect(step, law, given.pop("h"), gradient, **given))

    norms = [norm(h) for h in hs]
    assert min(norms) > 1e-11, f"the defect {norms} is lost in rounding: the slope says nothing"
    return [math.log(a / b) / math.log(g / f) for a, b, g, f in zip(norms, norms[1:], hs, hs[1:])]


# ---- many steps


@dataclass(frozen=True)
class Law:
    """The law exp(-energy/T) of one coordinate: Gauss nodes, orthonormal polynomials, moments, exact draws."""

    energy: object
    reach: float = 9.0
    nodes: int = 14
    temperature: float = 1.0
    low: float | None = None  # -reach if left out
    points: tuple = ()  # all that there are, for a discrete law

    @cached_property
    def grid(self):
        """Points and weights so fine that sums over them are integrals."""
        at = (
            np.array(self.points)
            if self.points
            else np.linspace(-self.reach if self.low is None else self.low, self.reach, 8001)
        )
        weight = np.exp(-self.energy(at) / self.temperature)
        return at, weight / weight.sum()

    def mean(self, f) -> float:
        """E f."""
        at, weight = self.grid
        return float(weight @ f(at))

    def draw(self, generator, shape):
        """Independent draws by the inverse of the distribution function."""
        at, weight = self.grid
        return np.interp(generator.random(shape), np.cumsum(weight) - weight / 2, at)

    @cached_property
    def recurrence(self):
        """Coefficients a, b of the orthonormal polynomials: b_k q_{k+1} = (x - a_k) q_k - b_{k-1} q_{k-1}."""
        at, weight = self.grid
        q, a, b = [np.ones_like(at)], [], []
        for k in range(self.nodes):
            a.append(weight @ (at * q[k] ** 2))
            rest = at * q[k]
            rest -= (np.array(q) @ (weight * rest)) @ np.array(q)
            b.append(math.sqrt(weight @ rest**2))
            q.append(rest / (b[k] or 1.0))
        return np.array(a), np.array(b)

    @cached_property
    def quadrature(self):
        """Gauss nodes and weights (Golub & Welsch 1969)."""
        a, b = self.recurrence
        nodes, vectors = np.linalg.eigh(np.diag(a) + np.diag(b[:-1], 1) + np.diag(b[:-1], -1))
        return nodes, vectors[0] ** 2

    def polynomials(self, at, degree):
        """q_0, ..., q_degree at some points."""
        (a, b), q = self.recurrence, [np.zeros_like(at), np.ones_like(at)]
        for k in range(degree):
            q.append(((at - a[k]) * q[-1] - (b[k - 1] if k else 0) * q[-2]) / b[k])
        return np.stack(q[1:])


def normal(mean, variance, nodes=14) -> Law:
    """The normal law of given mean and variance."""
    return Law(lambda z: (z - mean) ** 2 / (2 * variance), abs(mean) + 9 * variance**0.5, nodes)


class SchemeLaw:
    """One step in polynomials of coordinates, orthonormal where these are independent, from an exact start.

    `chart` is a pair of functions of numpy arrays, from the coordinates to the blocks and back, where they differ.
    """

    def __init__(self, step, h, laws, degree, *, chart=(None, lambda *z: z), noise_nodes=6, **options):
        self.laws, self.degree, self.inwards = laws, degree, chart[1]
        self.names = list(laws)
        before, after, weights = transition(
            step,
            {name: law.quadrature for name, law in laws.items()},
            h,
            draw_nodes=noise_nodes,
            chart=chart[0],
            least=1e-16,
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
        most = [min(self.degree, law.nodes - 1) for law in self.laws.values()]
        factors = [law.polynomials(at, k) for law, at, k in zip(self.laws.values(), z, most)]
        self.degrees = [k for k in itertools.product(*(range(k + 1) for k in most)) if sum(k) <= self.degree]
        return np.stack([math.prod(f[i] for f, i in zip(factors, k)) for k in self.degrees])

    def after(self, steps, f) -> float:
        """E f(z) after so many steps; f is a polynomial of the coordinates, in their order."""
        row = self.gram[0] @ np.linalg.matrix_power(self.matrix, steps)
        return float(row @ np.linalg.solve(self.gram, self.weighted @ f(*self.z)))

    def autocorrelation(self, steps) -> float:
        """The correlation of the first coordinate with itself so many steps earlier."""
        f = np.linalg.solve(self.gram, self.weighted @ self.z[0])
        mean, square = self.gram[0] @ f, f @ self.gram @ f
        product = f @ self.gram @ np.linalg.matrix_power(self.matrix, steps) @ f
        return float((product - mean * self.after(steps, lambda *z: z[0])) / (square - mean**2))
