"""The exact stationary law of the emitted step on a quadratic energy, against the closed forms.

The target is anisotropic, and mass, temperature and friction are away from 1. x = gamma h, c = e^-x, w = h^2 k/(4m),
L = 4m - h^2 k, t = tanh(x/2); s2 is the variance that every evaluation of the gradient adds.
"""

from typing import NamedTuple

import numpy as np
import pytest
from numpy import cosh, exp, sinh, sqrt, tanh

from integrators import compile
from integrators.linear_law import is_affine, linear_chain
from recipe import RecipeError, euler, force, friction, noise, vector
from samplers import SGHMC, SGLD, PreconditionedSGLD, SGLDSAMarginal, UnderdampedLangevin, catalogue
from samplers.testing.planted import planted

p = vector("p")
WORDS = {"G": euler(p), "R": friction(p), "W": force(p) + noise(p)}


def coth(x):
    return 1 / tanh(x)


class At(NamedTuple):
    """A quadratic energy sum_i k_i theta_i^2/2 and the numbers of a step."""

    k: np.ndarray
    m: float
    T: float
    gamma: float
    h: float

    x = property(lambda self: self.gamma * self.h)
    c = property(lambda self: exp(-self.x))
    t = property(lambda self: tanh(self.x / 2))
    w = property(lambda self: self.h**2 * self.k / (4 * self.m))
    L = property(lambda self: 4 * self.m - self.h**2 * self.k)


HERE = At(k=np.array([0.7, 2.3, 5.1]), m=1.7, T=0.8, gamma=1.1, h=0.29)


class Law(NamedTuple):
    """A row of the table: Var theta and Var p at s2 = 0, and d Var theta/d s2."""

    word: str
    theta: object
    p: object = None
    slope: object = None
    reuse: bool = True


def force_in_friction(z):
    """Var theta of F A, A F, F A F."""
    return z.T / z.k * z.x / 2 * coth(z.x / 2) / (1 - z.h * z.k * z.t / (2 * z.gamma * z.m))


def euler_kick(z):
    """Var theta of A G and G A, the paper's SGHMC."""
    return z.T / z.k * (1 - z.x / 2) / (1 - z.x / 2 - z.w)


def euler_slope(z):
    return z.h * (2 - z.x) / (z.gamma * z.k * (4 * z.m - 2 * z.x * z.m - z.h**2 * z.k))


def F_SLOPE(z):
    return z.h / (z.k * (2 * z.gamma * z.m - z.h * z.k * z.t))


def F_MOMENTUM(z):
    return z.m * z.T / (1 - z.h * z.k * z.t / (2 * z.gamma * z.m))


def EXACT(z):
    return z.T / z.k


def MAXWELL(z):
    return z.m * z.T + 0 * z.k


TABLE = {
    "BAOAB, fresh gradients": Law(
        "B A O A B",
        EXACT,
        lambda z: z.m * z.T * (1 - z.w),
        lambda z: z.h**2 * coth(z.x / 2) / (2 * z.k * z.L),
        reuse=False,
    ),
    "BAOAB, one gradient": Law(
        "B A O A B",
        EXACT,
        lambda z: z.m * z.T * (1 - z.w),
        lambda z: z.h**2 * coth(z.x / 2) / (z.k * z.L),
    ),
    "AOAB": Law("A O A B", EXACT, MAXWELL, lambda z: z.h**2 * coth(z.x / 2) / (z.k * z.L)),
    "ABOBA": Law(
        "A B O B A",
        EXACT,
        lambda z: z.m * z.T / (1 - z.w),
        lambda z: z.h**2 * coth(z.x) / (4 * z.k * z.m),
        reuse=False,
    ),
    "OBABO": Law(
        "O B A B O",
        lambda z: z.T / z.k / (1 - z.w),
        MAXWELL,
        lambda z: z.h**2 * coth(z.x) / (z.k * z.L),
        reuse=False,
    ),
    "OABAO": Law(
        "O A B A O",
        lambda z: z.T / z.k * (1 - z.w),
        MAXWELL,
        lambda z: z.h**2 * (z.m * (1 + z.c) ** 2 - z.h**2 * z.k * z.c) / (z.k * z.m * (1 - z.c**2) * z.L),
    ),
    "AOBOA": Law(
        "A O B O A",
        lambda z: z.T / z.k * cosh(z.x / 2),
        lambda z: 2 * z.T * z.m**2 * (1 + z.c) / (2 * z.m * (1 + z.c) - z.h**2 * z.k * sqrt(z.c)),
        lambda z: z.h**2 / (4 * z.k * z.m * sinh(z.x / 2)),
    ),
    "FA": Law("F A", force_in_friction, F_MOMENTUM, F_SLOPE),
    "AF": Law("A F", force_in_friction, F_MOMENTUM, F_SLOPE),
    "FAF": Law(
        "F A F",
        force_in_friction,
        None,
        lambda z: z.h * (1 + z.c) / (z.k * (1 + sqrt(z.c)) ** 2 * (2 * z.gamma * z.m - z.h * z.k * z.t)),
        reuse=False,
    ),
    "AFA": Law(
        "A F A",
        lambda z: z.T / z.k * z.x / 2 * coth(z.x / 2),
        F_MOMENTUM,
        lambda z: z.h / (2 * z.gamma * z.k * z.m),
    ),
    "SSS": Law(
        "A R W R A",
        lambda z: z.T / z.k * z.x / 2 / sinh(z.x / 2),
        lambda z: 4 * z.T * z.x * z.m**2 * z.c / ((1 - z.c) * (2 * z.m * (1 + z.c) - z.h**2 * z.k * sqrt(z.c))),
        lambda z: z.h**2 / (4 * z.k * z.m * sinh(z.x / 2)),
    ),
    "AG": Law("A G", euler_kick, lambda z: z.m * z.T / (1 - z.x / 2 - z.w), euler_slope),
    "GA": Law("G A", euler_kick, lambda z: z.m * z.T / (1 - z.x / 2 - z.w), euler_slope),
    "explicit Euler": Law(
        "Euler",
        lambda z: z.T / z.k * (1 - z.x / 2 + 2 * z.w) / ((1 - z.h * z.k / (z.gamma * z.m)) * (1 - z.x / 2 + z.w)),
    ),
    "BOA": Law("B O A", lambda z: z.T / z.k * (1 + z.c) ** 2 / (2 * z.c * (1 + z.c) - 4 * z.c**2 * z.w)),
}

# the leading term of the relative error of Var theta at s2 = 0, and its power of h
LEADING = {
    "B A O A B": None,
    "A B O B A": None,
    "A O A B": None,
    "O B A B O": (2, lambda z: z.k / (4 * z.m)),
    "O A B A O": (2, lambda z: -z.k / (4 * z.m)),
    "A O B O A": (2, lambda z: z.gamma**2 / 8),
    "F A": (2, lambda z: z.gamma**2 / 12 + z.k / (4 * z.m)),
    "F A F": (2, lambda z: z.gamma**2 / 12 + z.k / (4 * z.m)),
    "A F A": (2, lambda z: z.gamma**2 / 12),
    "A R W R A": (2, lambda z: -(z.gamma**2) / 24),
    "A G": (2, lambda z: z.k / (4 * z.m)),
    "G A": (2, lambda z: z.k / (4 * z.m)),
    "Euler": (1, lambda z: z.k / (z.gamma * z.m)),
    "B O A": (1, lambda z: z.gamma / 2),
    "B A O B": (1, lambda z: -z.gamma / 2),
}


def chain(step, z, s2=0.0):
    """The affine law of a step of underdamped Langevin dynamics."""
    return linear_chain(step, z.h, z.k, gradient_noise=s2, gamma=z.gamma, m=z.m, temperature=z.T)


def langevin(row):
    return compile(UnderdampedLangevin, row.word, pieces=WORDS, reuse_gradient=row.reuse)


# ---- underdamped words


@pytest.mark.parametrize("name", TABLE)
def test_the_covariance_of_the_emitted_step_is_the_closed_form(name):
    row, step = TABLE[name], langevin(TABLE[name])
    law = chain(step, HERE)
    assert law.variance("theta") == pytest.approx(row.theta(HERE), rel=1e-10)
    if row.p:
        assert law.variance("p") == pytest.approx(row.p(HERE), rel=1e-10)
    if row.slope:
        noisy = chain(step, HERE, s2=0.6).variance("theta")
        assert noisy == pytest.approx(row.theta(HERE) + 0.6 * row.slope(HERE), rel=1e-10)


@pytest.mark.parametrize("name", TABLE)
def test_theta_and_p_of_different_sites_are_independent(name):
    law, n = chain(langevin(TABLE[name]), HERE), len(HERE.k)
    across = law.covariance.reshape(len(law.names) // n, n, -1, n) * (1 - np.eye(n))[None, :, None, :]
    assert np.abs(across).max() == 0


@pytest.mark.parametrize("word", LEADING)
def test_the_relative_error_of_the_variance_begins_with_its_leading_term(word):
    z = HERE._replace(h=1e-3)
    error = chain(compile(UnderdampedLangevin, word, pieces=WORDS), z).variance("theta") * z.k / z.T - 1
    if LEADING[word] is None:
        assert np.abs(error).max() <= 1e-10
    else:
        power, term = LEADING[word]
        assert error / z.h**power == pytest.approx(term(z) + 0 * z.k, rel=0.01)


@pytest.mark.parametrize("word", ["A G", "F A"])
def test_the_budget_makes_up_for_the_gradient_noise_exactly(word):
    """B = h V_g/2 of gradients of covariance V_g: the law is that of B = V_g = 0."""
    step, z, V_g = compile(SGHMC, word, pieces=WORDS), HERE, 1.9

    def law(**given):
        return linear_chain(step, z.h, z.k, C=z.gamma * z.m, m=z.m, temperature=z.T, **given).covariance

    assert law(B=z.h * V_g / 2, gradient_noise=V_g) == pytest.approx(law(B=0.0), rel=1e-10, abs=1e-12)
    assert not law(B=0.0, gradient_noise=V_g) == pytest.approx(law(B=0.0), rel=1e-3)


# ---- overdamped steps


@pytest.mark.parametrize("s2", [0.0, 0.6])
def test_euler_of_overdamped_dynamics(s2):
    z, G = HERE, 0.6
    law = linear_chain(compile(PreconditionedSGLD), z.h, z.k, gradient_noise=s2, G=G, temperature=z.T)
    expected = (2 * z.T + z.h * G * s2) / (z.k * (2 - z.h * G * z.k))
    assert law.variance("theta") == pytest.approx(expected, rel=1e-10)


def test_a_preconditioner_per_site_acts_on_its_site():
    import torch

    z, G = HERE, np.array([1.9, 0.4, 0.7])
    law = linear_chain(compile(PreconditionedSGLD), z.h, z.k, G=torch.tensor(G), temperature=z.T)
    assert law.variance("theta") == pytest.approx(2 * z.T / (z.k * (2 - z.h * G * z.k)), rel=1e-10)


@pytest.mark.parametrize(
    "recipe, word, limit",
    [
        (SGLD, "Euler", 2 / 5.1),
        (UnderdampedLangevin, "B A O A B", sqrt(4 / 5.1)),
        (UnderdampedLangevin, "O B A B O", sqrt(4 / 5.1)),
    ],
)
def test_an_unstable_step_size_is_refused_with_its_spectral_radius(recipe, word, limit):
    """h k < 2 for Euler, h^2 k/m < 4 where leapfrog moves."""
    step = compile(recipe, word)
    assert linear_chain(step, 0.999 * float(limit), HERE.k).spectral_radius < 1
    law = linear_chain(step, 1.001 * float(limit), HERE.k)
    with pytest.raises(RecipeError, match=f"stability: the spectral radius of the step is {law.spectral_radius:.4g}"):
        law.covariance


# ---- mutants of the emitted text


BAOAB, KICK = "B A O A B", "p = p - h/2*g"
FIRST_KICK = (KICK, "pass", 1)
MUTANTS = {
    "noise variance halved": (BAOAB, ("math.sqrt(2*temperature", "math.sqrt(temperature")),
    "noise variance doubled": (BAOAB, ("math.sqrt(2*temperature", "math.sqrt(4*temperature")),
    "noise of sd T": (BAOAB, ("math.sqrt(2*temperature*h*gamma", "temperature*math.sqrt(2*h*gamma")),
    "temperature left out": (BAOAB, ("math.sqrt(2*temperature", "math.sqrt(2")),
    "noise without mass": (BAOAB, ("torch.sqrt(m)", "torch.ones_like(m)")),
    "noise with mass for its root": (BAOAB, ("torch.sqrt(m)", "m")),
    "noise of Euler in an exact flow": (BAOAB, ("phi1(-2*h*gamma)", "1")),
    "noise over h for 2h": (BAOAB, ("phi1(-2*h*gamma)", "phi1(-h*gamma)")),
    "decay e^{+gamma h}": (BAOAB, ("math.exp(-h*gamma)", "math.exp(h*gamma)")),
    "decay over half a step": (BAOAB, ("math.exp(-h*gamma)", "math.exp(-h/2*gamma)")),
    "decay with mass": (BAOAB, ("math.exp(-h*gamma)", "math.exp(-h*gamma/1.7)")),
    "decay to first order": (BAOAB, ("math.exp(-h*gamma)", "(1 - h*gamma)")),
    "no decay": (BAOAB, ("decay_p*p", "p")),
    "no noise": (BAOAB, ("spread_p*noise", "0*noise")),
    "drift without mass": (BAOAB, ("h/2/m", "h/2*torch.ones_like(m)")),
    "drift over a whole step": (BAOAB, ("h/2/m", "h/m")),
    "drift backwards": (BAOAB, ("theta + drift_theta*p", "theta - drift_theta*p", 1)),
    "one drift left out": (BAOAB, ("theta = theta + drift_theta*p", "pass", 1)),
    "one kick left out": (BAOAB, FIRST_KICK),
    "one kick over a whole step": (BAOAB, (KICK, "p = p - h*g", 1)),
    "kick uphill": (BAOAB, (KICK, "p = p + h/2*g", 1)),
    "a stale gradient": (BAOAB, ("    g = gradient(theta)\n", "")),
    "a gradient of the future": ("F A", ("g = gradient(theta)", "g = gradient(theta + h/m*p)")),
    "the response of Euler in an exact flow": ("F A", ("h*phi1(-h*gamma)", "h")),
    "the response without its limit": ("F A", ("h*phi1(-h*gamma)", "math.exp(-h*gamma)/gamma")),
    "the drift of the old momentum": (
        "F A",
        ("p = decay_p*p", "q, p = p, decay_p*p"),
        ("drift_theta*p", "drift_theta*q"),
    ),
    "the force left out of Euler": ("A G", ("h*(-g - gamma*p)", "h*(-gamma*p)")),
}
LAW_PRESERVING = {
    "noise of the other sign": (BAOAB, ("spread_p*noise", "-spread_p*noise")),
    "time runs backwards": (BAOAB, ("theta + drift_theta*p", "theta - drift_theta*p"), (KICK, "p = p + h/2*g")),
}


@pytest.fixture(scope="module")
def laws():
    """The chain and the covariance of the words that the mutants change."""
    return {word: chain(compile(UnderdampedLangevin, word, pieces=WORDS), HERE) for word in (BAOAB, "F A", "A G")}


def mutated(word, *changes):
    return chain(planted(compile(UnderdampedLangevin, word, pieces=WORDS), *changes), HERE)


def differ(a, b):
    return a.shape != b.shape or np.abs(a - b).max() > 1e-6


def covariance(law):
    """The covariance of theta and p; nothing where a mutant is unstable."""
    mine = [name in ("theta", "p") for name in law.names]
    return law.covariance[np.ix_(mine, mine)] if law.spectral_radius < 1 else np.empty(0)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_stationary_covariance_catches(name, laws):
    word, *changes = MUTANTS[name]
    assert differ(covariance(mutated(word, *changes)), covariance(laws[word]))


@pytest.mark.parametrize("name", MUTANTS | LAW_PRESERVING)
def test_the_one_step_map_catches(name, laws):
    word, *changes = (MUTANTS | LAW_PRESERVING)[name]
    mutant, law = mutated(word, *changes), laws[word]
    assert differ(np.hstack([mutant.M, mutant.B]), np.hstack([law.M, law.B]))


@pytest.mark.parametrize("name", LAW_PRESERVING)
def test_two_mutants_preserve_the_law(name, laws):
    """Up to the sign of p: why the one-step map is a layer of its own."""
    word, *changes = LAW_PRESERVING[name]
    assert np.abs(covariance(mutated(word, *changes))) == pytest.approx(np.abs(covariance(laws[word])), abs=1e-12)


def test_a_stale_gradient_has_the_law_that_is_known_of_it():
    """SSS with the gradient taken before the first drift: Var theta = (T/k) x/(2 sinh(x/2) - h^2 k/(2m))."""
    step = compile(UnderdampedLangevin, "A R W R A", pieces=WORDS)
    ask = "    g = gradient(theta)\n"
    stale = planted(step, (ask, ""), ("    # A over", f"{ask}    # A over", 1))
    z = HERE
    expected = z.T / z.k * z.x / (2 * sinh(z.x / 2) - z.h**2 * z.k / (2 * z.m))
    assert chain(stale, z).variance("theta") == pytest.approx(expected, rel=1e-10)


def test_a_symbolic_prior_that_is_no_quadratic_makes_no_affine_step():
    assert is_affine(SGHMC) and is_affine(PreconditionedSGLD)
    assert not is_affine(SGLDSAMarginal) and not is_affine(catalogue["sgrhmc"])
