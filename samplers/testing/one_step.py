"""The one-step defect, the change of exp(-H/T) by one step, by quadrature.

A step is a pure function of state and noise. With the state z from exp(-H/T) and the noise w from its law, both as
tensor grids of a quadrature, E f(step(z, w)) is a sum. The one-step defect of a monomial phi is E[phi(step(z, w))] -
E[phi(z)]: its norm falls as h^3 for a palindrome of exact flows, as h^2 for a consistent step, and only as h where
the SDE or a flow is wrong.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import torch
from scipy.special import gammaln

from integrators.step import Step
from integrators.variates import Time

from .devices import stepped
from .quadrature import Rule, gamma, gaussian, grid, legendre

Arrays = list[np.ndarray]  # one flat array for each coordinate

MOST_MONOMIALS = 210  # to be compared
AT_ONCE = 4096  # points whose monomials are summed at once, within the processor's cache


def transition(
    step: Step,
    law: Mapping[str, Rule],
    h: float,
    gradient: Callable,
    *,
    constants: Mapping[str, float] | None = None,
    coupling: Callable | None = None,
    gradient_noise: float | Callable = 0.0,
    temperature: float = 1.0,
    draw_nodes: int = 9,
    gradient_nodes: int | None = None,
    chart: Callable | None = None,
    sites: int = 1,
    least: float = 0.0,
    **arguments: Any,
) -> tuple[Arrays, Arrays, np.ndarray]:
    """Points of exp(-H/T), their images under the step, both by coordinate of the blocks, and weights.

    `law`: coordinate -> (points, weights); `chart`: the function from coordinates to blocks, by default the identity.
    `coupling`: an energy of the coordinates beside the energies of `law`. `constants`: adapted quantities by name.
    `gradient_noise`: the variance of every gradient of the step, a number or a function of the coordinates, integrated
    over by `gradient_nodes` nodes. Points of weights below `least` are left out.
    """
    recipe = step.recipe
    draws = step.program.draws
    size = len(law)
    constants = constants or {}
    if gradient_noise and step.program.carries_gradient:
        raise AssertionError("the noise of a carried gradient is not in the state")
    noisy = step.program.gradients_per_step if gradient_noise else 0
    errors_of_gradients = [gaussian(0, 1, gradient_nodes or draw_nodes)] * noisy
    axes = [_nodes(d, draw_nodes) for d in draws for _ in range(sites if d.is_vector else 1)]
    points, weights = grid([*law.values(), *axes, *errors_of_gradients])
    if coupling:
        weights = weights * np.exp(-coupling(*points[:size]) / temperature)
        weights /= weights.sum()
    points, weights = [x[weights > least] for x in points], weights[weights > least]

    def moved(points):
        """Points, their images under the step, and the weights of draws whose law depends on the state."""
        factors: Arrays = []
        z, numbers = points[:size], _by_draw(points[size : size + len(axes)], draws, sites)
        blocks = chart(*z) if chart else z
        state = {b.name: _shaped(x, b) for b, x in zip(recipe.state, blocks)}
        frozen = {a: np.full(_shape(a, len(points[0]), sites), constants[a.name]) for a in recipe.adapted}
        state |= {a.name: _shaped(x, a) for a, x in frozen.items()}
        noise = {
            d.name: BY_NODES[d.kind](_shaped(x, d), factors) if d.kind in BY_NODES else _shaped(x, d)
            for d, x in zip(draws, numbers)
        }
        variance = gradient_noise(*z) if callable(gradient_noise) else gradient_noise
        errors = iter([torch.as_tensor(variance**0.5 * x)[:, None] for x in points[size + len(axes) :]])

        def noisy_gradient(theta):
            return gradient(theta) + next(errors)

        field = noisy_gradient if noisy else gradient
        after = stepped(step, state, h, gradient=field, noise=noise, temperature=temperature, **arguments)
        return _flat(state, recipe), _flat(after, recipe), math.prod(factors)

    for k, draw in enumerate(draws, size):
        if draw.kind == "uniform" and not isinstance(draw, Time):
            ends = [np.zeros(len(weights))]
            for _ in range(max(step.draw_blocks[draw.name].domain.categories - 1, 1)):
                ends.append(threshold(lambda points: moved(points)[1], points, k, ends[-1]))
            parts = list(pairwise([*ends, np.ones(len(weights))]))
            points = [np.concatenate(x) for x in zip(*(_at(points, k, (low + high) / 2) for low, high in parts))]
            weights = np.concatenate([weights * (high - low) for low, high in parts])
            points, weights = [x[weights > 0] for x in points], weights[weights > 0]
    before, after, factor = moved(points)
    return before, after, weights * factor


def _nodes(draw, nodes):
    """Points and weights of a draw; for a law that depends on the state, the numbers of its nodes."""
    match draw.kind:
        case "normal":
            return gaussian(0, 1, nodes)
        case "uniform" if isinstance(draw, Time):
            x, w = legendre(nodes)
            return (x + 1) / 2, w / 2
        case "uniform":
            return np.full(1, 0.5), np.ones(1)
        case "poisson":
            return np.arange(200.0), np.ones(200)
    return np.arange(nodes), np.ones(nodes)


def _shape(kind, points, sites):
    return (points, sites) if kind.is_vector and sites > 1 else (points,)


def _shaped(x, kind):
    x = torch.as_tensor(x)
    return x[:, None] if kind.is_vector and x.ndim == 1 else x


def _by_draw(axes, draws, sites):
    """The numbers of every draw: (points,) at one site, (points, sites) of vector draws at several."""
    if sites == 1:
        return axes
    left = iter(axes)
    return [np.stack([next(left) for _ in range(sites)], -1) if d.is_vector else next(left) for d in draws]


def _flat(state, recipe):
    """The values of a state by coordinate, every block site after site."""
    return [x for b in recipe.state for x in state[b.name].reshape(len(state[b.name]), -1).T.numpy()]


def _at(points, k, u):
    """The points with their k-th coordinate replaced."""
    return [u if i == k else x for i, x in enumerate(points)]


# ---- uniform numbers


def threshold(
    moved: Callable[[Arrays], Arrays], points: Arrays, k: int, beyond: float | np.ndarray = 0.0
) -> np.ndarray:
    """The first jump after `beyond` of a step piecewise constant in a uniform, the k-th coordinate; 1 without one."""
    if np.any(beyond):
        return _later_threshold(moved, points, k, np.asarray(beyond))
    below, above = 2.0**-60, 1 - 2.0**-50

    def at(u, points):
        return _at(points, k, np.full(len(points[0]), u))

    def equal(a, b):
        return np.all([x == y for x, y in zip(a, b)], axis=0)

    def bisected(points):
        low, high = at(below, points)[k], at(1.0, points)[k]
        first = moved(at(below, points))
        for _ in range(55):
            middle = (low + high) / 2
            same = equal(moved(_at(points, k, middle)), first)
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return low

    guess = bisected([x[:: 1 + len(x) // 50] for x in points])[0]  # the jump is mostly the same at all points
    below_it, above_it = (moved(at(u, points)) for u in (guess * (1 - 1e-12), min(guess * (1 + 1e-12), above)))
    if np.all(equal(below_it, moved(at(below, points)))) and np.all(equal(above_it, moved(at(above, points)))):
        return at(guess, points)[k]
    return bisected(points)


def _later_threshold(moved: Callable[[Arrays], Arrays], points: Arrays, k: int, beyond: np.ndarray) -> np.ndarray:
    """The first jump after `beyond`, at every point, by bisection."""
    low, high = np.minimum(beyond + 2.0**-45, 1), np.ones_like(beyond)
    first = moved(_at(points, k, low))
    for _ in range(55):
        middle = (low + high) / 2
        same = np.all([x == y for x, y in zip(moved(_at(points, k, middle)), first)], axis=0)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return high


# ---- draws whose law depends on the state


def _poisson(counts, factors):
    """The counts as a function of their rate, which appends their probabilities to `factors`."""

    def draw(rate):
        x = _of_points(rate, counts)
        k = counts.flatten().numpy()
        factors.append(np.exp(k * np.log(x) - x - gammaln(k + 1)))
        return counts

    return draw


def _gamma(numbers, factors):
    """Gauss-Laguerre nodes by their number, as a function of the shape, which appends their weights to `factors`."""

    def draw(shape):
        values, where = np.unique(_of_points(shape, numbers), return_inverse=True)
        points, weights = np.moveaxis(np.array([gamma(a, nodes=int(numbers.max()) + 1) for a in values]), 1, 0)
        which = numbers.flatten().numpy()
        factors.append(weights[where, which])
        return torch.as_tensor(points[where, which]).reshape(numbers.shape)

    return draw


def _of_points(parameter, numbers):
    """The parameter of each number's law, flat."""
    return torch.as_tensor(parameter, dtype=torch.float64).broadcast_to(numbers.shape).flatten().numpy()


BY_NODES = {"poisson": _poisson, "gamma": _gamma}


# ---- the defect of a step


def defect(
    step: Step, law: Mapping[str, Rule], h: float, gradient: Callable, *, degree: int = 4, **options: Any
) -> np.ndarray:
    """E[phi(step(z, w))] - E[phi(z)] for all monomials phi up to a degree; `law`: block name -> (points, weights).

    `options`: of `transition`.
    """
    law = {b.name: law[b.name] for b in step.recipe.state}
    before, after, weights = transition(step, law, h, gradient, **options)
    return of_degree(moments(after, weights, degree) - moments(before, weights, degree), degree)


def moments(values: Sequence[np.ndarray], weights: np.ndarray, degree: int) -> np.ndarray:
    """The table of E[x^i y^j ...], for each exponent from 0 to `degree`.

    >>> moments([np.array([1.0, 3.0])], np.array([0.5, 0.5]), 2)
    array([1., 2., 5.])
    """
    size = degree + 1
    table = np.zeros((degree + 1) ** len(values))
    for first in range(0, len(weights), AT_ONCE):
        products = weights[None, first : first + AT_ONCE]
        *factors, last = [_powers(v[first : first + AT_ONCE], degree) for v in values]
        for powers in factors:
            products = (products[:, None] * powers).reshape(-1, products.shape[1])
        table += (products @ last.T).ravel()
    return table.reshape([size] * len(values))


def exponents(coordinates: int, degree: int) -> list[tuple[int, ...]]:
    """The exponents of all monomials of total degree 1 to `degree`, lower degrees first.

    >>> exponents(2, 2)
    [(1, 0), (0, 1), (2, 0), (1, 1), (0, 2)]
    """
    factors = (c for d in range(1, degree + 1) for c in combinations_with_replacement(range(coordinates), d))
    return [tuple(map(c.count, range(coordinates))) for c in factors]


def fitting_degree(coordinates: int, most: int = 4) -> int:
    """The largest degree up to `most` with at most MOST_MONOMIALS monomials, at least 1.

    >>> fitting_degree(3), fitting_degree(7)
    (4, 3)
    """
    return next((d for d in range(most, 1, -1) if math.comb(coordinates + d, d) <= MOST_MONOMIALS), 1)


def low_moments(values: Sequence[np.ndarray], weights: np.ndarray, degree: int) -> np.ndarray:
    """The means of the monomials of `exponents`, in their order, without the table of `moments`.

    >>> low_moments([np.array([1.0, 3.0]), np.ones(2)], np.array([0.5, 0.5]), 2)
    array([2., 1., 5., 2., 1.])
    """
    powers = exponents(len(values), degree)
    means = np.zeros(len(powers))
    for first in range(0, len(weights), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        products = {(0,) * len(values): np.ones(len(weights[part]))}
        for power in powers:
            i = next(k for k, n in enumerate(power) if n)
            lower = tuple(n - (k == i) for k, n in enumerate(power))
            products[power] = products[lower] * values[i][part]
        means += np.array([products[power] @ weights[part] for power in powers])
    return means


def _powers(x, degree):
    """x^0 to x^degree, a row each."""
    powers = np.ones((degree + 1, len(x)))
    for k in range(degree):
        np.multiply(powers[k], x, out=powers[k + 1])
    return powers


def of_degree(table: np.ndarray, degree: int) -> np.ndarray:
    """The entries of a table of moments of total degree 1 to a degree, flat."""
    total = sum(np.indices(table.shape))
    return table[(0 < total) & (total <= degree)]


def slopes(
    step: Step,
    law: Mapping[str, Rule],
    gradient: Callable,
    hs: Sequence[float] = (0.2, 0.1, 0.05, 0.025),
    at: Callable[[float], Mapping] | None = None,
    **options: Any,
) -> list[float]:
    """The slopes of the norm of the defect between neighbouring step sizes.

    `at`: the function from a step size to arguments of `defect` that change with it.
    """

    def norm(h):
        arguments = {"h": h, **options, **(at(h) if at else {})}
        return np.linalg.norm(defect(step, law, gradient=gradient, **arguments))

    norms = [norm(h) for h in hs]
    if not min(norms) > 1e-11:
        raise AssertionError(f"the defect {norms} is lost in rounding: the slope says nothing")
    return [math.log(a / b) / math.log(g / f) for a, b, g, f in zip(norms, norms[1:], hs, hs[1:])]
