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
from torch.overrides import TorchFunctionMode

from integrators.step import Step
from integrators.variates import Time
from recipe.arrays import whole_power

from .quadrature import gamma, gaussian, grid, legendre
from .random_calls import stepped

Arrays = list[np.ndarray]  # one flat array for each coordinate
Powers = tuple[int, ...]  # exponents of a monomial

MOST_MONOMIALS = 210  # to be compared
AT_ONCE = 4096  # points whose monomials are summed at once, within the processor's cache


def transition(
    step: Step,
    blocks: Sequence[np.ndarray],
    weights: np.ndarray,
    h: float,
    gradient: Callable | None,
    *,
    constants: Mapping[str, float] | None = None,
    gradient_noise: float | Callable = 0.0,
    draw_nodes: int = 9,
    gradient_nodes: int | None = None,
    sites: int = 1,
    least: float = 0.0,
    parameters: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> tuple[Arrays, Arrays, np.ndarray]:
    """Points of exp(-H/T), their images under the step, both by coordinate of the blocks, and weights.

    `blocks`, `weights`: the points by block, in the order of the state. `constants`: adapted quantities by name.
    `gradient_noise`: the variance of every gradient of the step, a number or a function of the blocks, integrated
    over by `gradient_nodes` nodes. Points of weights below `least` are left out. `parameters`: of the recipe, whose
    names may be those of arguments here; `arguments`: others of the step.
    """
    recipe = step.recipe
    draws = step.program.draws
    size = len(blocks)
    constants = constants or {}
    if gradient_noise and step.program.carries_gradient:
        raise AssertionError("the noise of a carried gradient is not in the state")
    noisy = step.program.gradients_per_step if gradient_noise else 0
    owners = [(d, site) for d in draws for site in range(sites if d.is_vector else 1)]
    axes = [_nodes(draw, draw_nodes) for draw, _ in owners]
    numbers, mass = grid([*axes, *[gaussian(0, 1, gradient_nodes or draw_nodes)] * noisy])
    i, j = np.nonzero(np.multiply.outer(weights, mass) > least)
    points, weights = [*(x[i] for x in blocks), *(x[j] for x in numbers)], weights[i] * mass[j]

    def advance(points):
        """Points, their images, weights of draws whose law depends on the state, and what is compared."""
        factors: Arrays = []
        z, numbers = points[:size], _by_draw(points[size : size + len(axes)], draws, sites)
        frozen = [np.full((len(z[0]), sites) if a.is_vector else len(z[0]), constants[a.name]) for a in recipe.adapted]
        state = {b.name: _shaped(x, b) for b, x in zip([*recipe.state, *recipe.adapted], [*z, *frozen])}
        noise = {
            d.name: BY_NODES[d.kind](_shaped(x, d), factors) if d.kind in BY_NODES else _shaped(x, d)
            for d, x in zip(draws, numbers)
        }
        variance = gradient_noise(*z) if callable(gradient_noise) else gradient_noise
        errors = iter([torch.as_tensor(variance**0.5 * x)[:, None] for x in points[size + len(axes) :]])
        field = gradient if gradient is None or not noisy else lambda theta: gradient(theta) + next(errors)
        with Comparisons() as compared:
            after = stepped(step, state, h, gradient=field, noise=noise, **(parameters or {}), **arguments)
        return _flat(state, recipe), _flat(after, recipe), math.prod(factors), compared.differences

    for k, (draw, _) in enumerate(owners, size):
        if draw.kind == "uniform" and not isinstance(draw, Time):
            ends = [np.zeros(len(weights))]
            for _ in range(max(step.draw_blocks[draw.name].domain.categories - 1, 1)):
                ends.append(_threshold(advance, points, k, ends[-1]))
            parts = list(pairwise([*ends, np.ones(len(weights))]))
            points = [np.concatenate(x) for x in zip(*(_at(points, k, (low + high) / 2) for low, high in parts))]
            weights = np.concatenate([weights * (high - low) for low, high in parts])
            points, weights = [x[weights > 0] for x in points], weights[weights > 0]
    before, after, factor, _ = advance(points)
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


def _shaped(x, kind):
    x = torch.as_tensor(x)
    return x[:, None] if kind.is_vector and x.ndim == 1 else x


def _by_draw(axes, draws, sites):
    """The numbers of every draw: (points,) at one site, (points, sites) of vector draws at several."""
    if sites == 1:
        return axes
    columns = iter(axes)
    return [np.stack([next(columns) for _ in range(sites)], -1) if d.is_vector else next(columns) for d in draws]


def _flat(state, recipe):
    """The values of a state by coordinate, every block site after site."""
    return [x for b in recipe.state for x in state[b.name].reshape(len(state[b.name]), -1).T.numpy()]


def _at(points, k, u):
    """The points with their k-th coordinate replaced."""
    return [u if i == k else x for i, x in enumerate(points)]


# ---- uniform numbers


class Comparisons(TorchFunctionMode):
    """The differences of what is compared while a step is made."""

    def __init__(self) -> None:
        super().__init__()
        self.differences: list[torch.Tensor] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in ("lt", "le", "gt", "ge"):
            self.differences.append(args[0] * 1.0 - args[1])
        return function(*args, **(kwargs or {}))


def _threshold(advance, points, k, beyond):
    """The first jump after `beyond` of a step piecewise constant in a uniform, the k-th coordinate; 1 without one.

    A step jumps where a comparison turns, mostly of what is linear in the uniform; else the jump is found by bisection.
    """

    def images(points, u):
        return advance(_at(points, k, u))[1]

    def are_equal(one, other):
        return np.all([x == y for x, y in zip(one, other)], axis=0)

    low = np.where(beyond > 0, np.minimum(beyond + 2.0**-45, 1), 2.0**-60)
    high = np.full_like(low, 1 - 2.0**-50)
    (_, first, _, at_low), (_, last, _, at_high) = (advance(_at(points, k, u)) for u in (low, high))
    ends, is_open = np.ones_like(low), np.ones_like(low, dtype=bool)
    for limit in np.sort(_roots(low, high, at_low, at_high), axis=0):
        before, after = (are_equal(images(points, limit * factor), first) for factor in (1 - 1e-12, 1 + 1e-12))
        turns = is_open & before & ~after
        ends, is_open = np.where(turns, limit, ends), is_open & ~turns
    unsolved = is_open & ~are_equal(last, first)  # for a bisection
    if unsolved.any():
        points, low, high = [x[unsolved] for x in points], low[unsolved], high[unsolved]
        first = images(points, low)
        for _ in range(55):
            middle = (low + high) / 2
            is_before = are_equal(images(points, middle), first)
            low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
        ends[unsolved] = low
    return ends


def _roots(low, high, at_low, at_high):
    """Where differences, at `low` and at `high`, turn if they are linear between; 1 where they do not."""
    roots = []
    for f, g in zip(at_low, at_high):
        if f.numel() % len(low) == 0 and f.shape == g.shape:
            for a, b in zip(f.reshape(len(low), -1).T.numpy(), g.reshape(len(low), -1).T.numpy()):
                turns = a * b < 0
                if turns.any():
                    roots.append(np.where(turns, low + (high - low) * (a / np.where(turns, a - b, 1)), 1))
    return roots


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
        index = numbers.flatten().numpy()
        factors.append(weights[where, index])
        return torch.as_tensor(points[where, index]).reshape(numbers.shape)

    return draw


def _of_points(parameter, numbers):
    """The parameter of each number's law, flat."""
    return torch.as_tensor(parameter, dtype=torch.float64).broadcast_to(numbers.shape).flatten().numpy()


BY_NODES = {"poisson": _poisson, "gamma": _gamma}


# ---- moments


def exponents(coordinates: int, degree: int) -> list[Powers]:
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


def monomial(values: Sequence[np.ndarray], powers: Powers) -> np.ndarray:
    """The product of powers of some arrays."""
    return math.prod(whole_power(x, n) for x, n in zip(values, powers) if n)


def moments(values: Sequence[np.ndarray], weights: np.ndarray, degree: int) -> np.ndarray:
    """The means of the monomials of `exponents`, in their order.

    >>> moments([np.array([1.0, 3.0]), np.ones(2)], np.array([0.5, 0.5]), 2)
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
