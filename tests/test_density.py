"""The density that finds its own grid, against closed forms: moments up to degree 6 to 1e-10."""

import math

import numpy as np
import pytest
from scipy.special import erf, kve, poch
from sympy import Abs, Max, Piecewise, exp, log, sqrt

from recipe import Energy, RecipeError, function, positive, potential, scalar, total, vector
from samplers.testing.densities import closed, density

theta, p, xi = vector("theta"), vector("p"), vector("xi")
x, y, u = scalar("x"), scalar("y"), scalar("u")
ray, gamma = vector("ray", domain="positive"), vector("gamma", domain="binary")
m, c, a = positive("m"), positive("c"), positive("a")
DEGREES = range(1, 7)


def moments(block, H, state=None, centre=0.0, **options):
    """E (z - centre)^k of a block, for k = 1, ..., 6; the weights are a law."""
    points, weights = density(H, state or (block,), **options)
    assert set(points) == set(state or (block,)) and all(z.shape == weights.shape for z in points.values())
    assert abs(weights.sum() - 1) < 1e-14 and weights.min() > 0
    return np.array([weights @ (points[block] - centre) ** k for k in DEGREES])


def close(result, exact, scale=None):
    exact = np.array(exact)
    return np.all(abs(result - exact) <= 1e-10 * (abs(exact) if scale is None else np.array(scale)))


def normal(variance):
    return np.array([0 if k % 2 else variance ** (k / 2) * math.prod(range(1, k, 2)) for k in DEGREES])


@pytest.mark.parametrize("variance, mean, T", [(1.7, 3, 0.5), (1e-6, 500, 1), (1e6, -20, 2), (0.3, 0, 1.25)])
def test_a_normal_law_of_any_scale(variance, mean, T):
    result = moments(p, total((p - mean) ** 2 / m) / 2, centre=mean, values={"m": variance}, temperature=T)
    assert close(result, normal(variance * T), scale=(variance * T) ** (np.array(DEGREES) / 2))


def test_the_quartic_that_stands_for_U():
    """Its moments by an independent quadrature, and E[x U'] = T."""
    grid = np.linspace(-7, 7, 40001)
    weight = np.exp(-(grid**4 / 4 + grid**2 / 2 - 0.4 * grid) / 1.25)
    result = moments(theta, potential(theta), temperature=1.25)
    assert close(result, [grid**k @ weight / weight.sum() for k in DEGREES])
    assert abs(result[3] + result[1] - 0.4 * result[0] - 1.25) < 1e-12


def test_the_relativistic_kinetic_energy():
    """E p^2k by Bessel functions: with z = m c^2/T, p = m c sinh s has E p^2 = (m c)^2 K_2(z)/(z K_1(z)), and so on."""
    mass, light, T = 1.7, 1.3, 1.25
    z = mass * light**2 / T
    exact = [
        0 if k % 2 else (mass * light) ** k * math.prod(range(1, k, 2)) / z ** (k / 2) * kve(1 + k / 2, z) / kve(1, z)
        for k in DEGREES
    ]
    K = total(m * c**2 * (sqrt(1 + (p / (m * c)) ** 2) - 1))
    assert close(moments(p, K, values={"m": mass, "c": light}, temperature=T), exact, scale=np.maximum(exact, 1))


@pytest.mark.parametrize(
    "kinked", [Abs(xi - 1), Max(xi - 1, 1 - xi), Piecewise((xi - 1, xi > 1), (1 - xi, True))], ids=str
)
def test_a_law_with_a_kink(kinked):
    """exp(-|x|) about 1: E (x - 1)^k = k! for even k."""
    exact = [0 if k % 2 else math.factorial(k) for k in DEGREES]
    assert close(moments(xi, total(kinked), centre=1), exact, scale=[math.factorial(k) for k in DEGREES])


def test_the_kinks_of_an_integrand_split_the_panels():
    """E max(edge - xi, 0) = sd phi(b) + (edge - mean) Phi(b) of a thermostat of variance T/mu, b = (edge - mean)/sd."""
    mean, sd, edge = 0.4, math.sqrt(1.25 / 1.6), 0.8
    friction, b = Max(edge - xi, 0), (edge - mean) / sd
    exact = sd * math.exp(-(b**2) / 2) / math.sqrt(2 * math.pi) + (edge - mean) * (1 + erf(b / math.sqrt(2))) / 2

    def error(**options):
        points, weights = density(total(1.6 * (xi - mean) ** 2) / 2, (xi,), temperature=1.25, **options)
        return abs(weights @ np.maximum(edge - points[xi], 0) - exact)

    assert error(integrands=[friction]) < 1e-13 and error() > 1e-7


@pytest.mark.parametrize("shape", [0.1, 0.6, 1.9, 30.0])
def test_a_gamma_law_on_the_half_line(shape):
    result = moments(ray, total(ray / a - (shape - 1) * log(ray)), values={"a": 2.5})
    assert close(result, [2.5**k * poch(shape, k) for k in DEGREES])


def test_a_binary_block_beside_a_continuous_one():
    """theta ~ N(0, 1) or N(0, 1/4): the weights are 1 and e^-1 times the normalisers."""
    odds = math.exp(-1) / 2
    H, state = total(theta**2 * (1 + 3 * gamma) / 2 + gamma), (theta, gamma)
    mixed = (normal(1) + odds * normal(0.25)) / (1 + odds)
    assert close(moments(theta, H, state), mixed, scale=np.maximum(mixed, 1))
    assert close(moments(gamma, H, state), [odds / (1 + odds)] * 6)
    points, weights = density(H, state)
    assert (
        set(points[gamma]) == {0, 1}
        and abs(weights @ (points[gamma] * points[theta] ** 2) - odds / (1 + odds) / 4) < 1e-12
    )


def test_coupled_and_independent_blocks_together():
    """A banana, y ~ N(x^2, 1/10) given x, beside a normal u: E x^k, E y = 1, E y^2 = 3.1; E u^2 = 1/2, u by itself."""
    state = (u, y, x)
    points, weights = density(x**2 / 2 + 5 * (y - x**2) ** 2 + u**2, state, degree=4)

    def mean(f):
        return weights @ f(*(points[b] for b in (x, y, u)))

    for f, exact in [
        (lambda x, y, u: x**4, 3),
        (lambda x, y, u: y, 1),
        (lambda x, y, u: y**2, 3.1),
        (lambda x, y, u: u**2, 0.5),
        (lambda x, y, u: y * x**2, 3),
        (lambda x, y, u: u**2 * y, 0.5),
        (lambda x, y, u: u * x, 0),
    ]:
        assert abs(mean(f) - exact) < 1e-10
    assert list(points) == list(state)


def test_heavy_tails_have_the_moments_that_exist():
    """Student with five degrees of freedom: E x^4 = 25 in these units, E x^6 is infinite."""
    assert abs(moments(x, 3 * log(1 + x**2 / 5), degree=4)[3] - 25) < 1e-9
    with pytest.raises(RecipeError, match=r"\|x\|\^6 has no finite integral"):
        density(3 * log(1 + x**2 / 5), (x,))


def test_two_far_modes_are_both_seen():
    result = moments(x, -log(exp(-((x - 40) ** 2) / 2) + exp(-((x + 40) ** 2) / 2)))
    assert close(result[[1, 3]], [1601, 40**4 + 6 * 40**2 + 3])


def test_the_number_of_nodes_may_be_given():
    points, weights = density(x**2 / 2, (x,), nodes=7)
    assert len(weights) <= 7 and abs(weights @ points[x] ** 2 - 1) > 1e-6


def test_every_symbol_has_its_number():
    number = closed(temperature=2, values={"m": 3, a: 0.5}, energy=Energy(x, U=x**3))
    assert number(total(p**2 / m) + a * potential(x).diff(x)) == total(p**2) / 3 + 3 * x**2 / 2


@pytest.mark.parametrize(
    "H, state, options, words",
    [
        (total(p**2) / m, (p,), {}, "'m' has no value.*Give values={'m'"),
        (total(p**2), (theta,), {}, "'p' is not a block of the state"),
        (total(function("G", p) + p**2), (p,), {}, "is opaque"),
        (-total(p**2), (p,), {}, "no finite integral"),
        (0 * x, (x,), {}, "no finite integral"),
        ((x + y + u + vector("w")) ** 2 + x**2, (x, y, u, vector("w")), {}, "couples 4 blocks"),
        (x**2 / 18 + x / 2 + exp(-x) * y**2 / 2, (x, y), {}, "does not resolve"),
        (total(p**2 / m), (p,), {"values": {"m": "1"}}, "Text is never evaluated"),
    ],
    ids=str,
)
def test_what_is_refused(H, state, options, words):
    with pytest.raises(RecipeError, match=words):
        density(H, state, **options)
