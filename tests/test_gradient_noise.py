"""A gradient of known covariance V: what it does to the law on a quadratic energy, and what a sampler makes up for.

All laws are exact: of affine chains by the Lyapunov equation, of thermostats by the matrix of one step. k are the
curvatures, B = h V/2 the friction whose noise the gradient supplies.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from covering import covering
from many_steps import SchemeLaw, normal
from test_linear_law import HERE, TABLE, WORDS

from integrators import compile
from integrators.linear_law import linear_chain
from samplers import ATMC, MSGNHT, SANTA, SGFS, SGHMC, SGLD, SGNHT, VSGD, AdaptiveSGHMC, ISGDIdeal, PreconditionedSGLD
from samplers.testing.planted import planted


@dataclass(frozen=True)
class Standing:
    """A step whose adapted quantities stand at given values, as `linear_chain` takes it."""

    step: object
    values: dict

    recipe, program, draws = (
        property(lambda self, name=name: getattr(self.step, name)) for name in ("recipe", "program", "draws")
    )

    def __call__(self, state, h, **given):
        target = state[self.recipe.targets[0].name]
        return self.step(state | {name: torch.full_like(target, v) for name, v in self.values.items()}, h, **given)


K = HERE.k


def variance(step, h, k=K, **given):
    """The stationary variances of theta."""
    return linear_chain(step, h, k, **given).variance("theta")


# ---- SGLD and its kin


class Overdamped(NamedTuple):
    """A sampler whose gradient has the variance V, and what k Var theta is."""

    recipe: object
    h: float
    V: float
    law: object  # of k, h, V, T
    T: float = 1.0
    parameters: dict = {}


G, lam = 0.6, 7.3
OVERDAMPED = {
    "SGLD is heated by h V/2": Overdamped(SGLD, 0.2, 1.9, lambda k, h, V, T: (2 * T + h * V) / (2 - h * k), 0.8),
    "so is a preconditioned one": Overdamped(
        PreconditionedSGLD, 0.2, 1.9, lambda k, h, V, T: (2 * T + h * G * V) / (2 - h * G * k), 0.8, {"G": G}
    ),
    "which knows V": Overdamped(
        PreconditionedSGLD, 0.2, 1.9, lambda k, h, V, T: T / (1 - h * G * k / 2), 0.8, {"G": G, "V": 1.9}
    ),
    "and the curvature": Overdamped(
        PreconditionedSGLD, 0.2, 1.9, lambda k, h, V, T: 1 + 0 * k, 1.0, {"G": G, "V": 1.9, "K": torch.tensor(K)}
    ),
    "VSGD": Overdamped(VSGD, 1.0, 23.0, lambda k, h, V, T: 1 / (1 - k / V), 1.0, {"V": 23.0}),
    "ideal i-SGD is Euler at h = 1/lam": Overdamped(
        ISGDIdeal, 1.0, 6.2, lambda k, h, V, T: T / (1 - k / (2 * lam)), 0.8, {"lam": lam, "B": 3.1}
    ),
}


@pytest.mark.parametrize("name", OVERDAMPED)
def test_the_variance_of_an_overdamped_sampler(name):
    row = OVERDAMPED[name]
    result = variance(compile(row.recipe), row.h, gradient_noise=row.V, temperature=row.T, **row.parameters)
    assert result * K == pytest.approx(row.law(K, row.h, row.V, row.T), rel=1e-10)


@pytest.mark.parametrize(
    "name, text, other",
    [
        ("which knows V", "h/2*G**2", "h*G**2"),
        ("which knows V", "G**2*(temperature*K + V)", "G*(temperature*K + V)"),
        ("and the curvature", "(temperature*K + V)", "(temperature*K/2 + V)"),
        ("VSGD", "2*h/V", "h/V"),
        ("VSGD", "2*temperature/V - 2*h/V", "1/V"),
        ("ideal i-SGD is Euler at h = 1/lam", "h*B/lam**2", "0*B"),
        ("ideal i-SGD is Euler at h = 1/lam", "h*B/lam**2", "h*B/lam**2/2"),
    ],
    ids=lambda value: value.replace(" ", "-"),
)
def test_a_planted_error_in_a_budget_is_seen(name, text, other):
    row = OVERDAMPED[name]
    step = planted(compile(row.recipe), (text, other))
    result = variance(step, row.h, gradient_noise=row.V, temperature=row.T, **row.parameters)
    assert not result * K == pytest.approx(row.law(K, row.h, row.V, row.T), rel=1e-3)


@pytest.mark.parametrize("T", [0.7, 1.0, 2.5])
@pytest.mark.parametrize("h", [1e-3, 0.05, 0.2])
def test_preconditioned_sgld_that_knows_both_is_exact_on_gaussians_at_every_step_size(h, T):
    """As long as noise is left to inject: h G (V + k T) < 2 T."""
    row = OVERDAMPED["and the curvature"]
    result = variance(compile(row.recipe), h, gradient_noise=row.V, temperature=T, **row.parameters)
    assert result * K == pytest.approx(T, rel=1e-10)


@pytest.mark.parametrize("B", [0.0, 1.3, 7.3])
def test_the_total_noise_of_ideal_isgd_is_twice_its_step(B):
    """Whatever share of it the gradient has."""
    chain = linear_chain(compile(ISGDIdeal), 1.0, K, gradient_noise=2 * B, lam=lam, B=B)
    assert chain.B @ chain.B.T == pytest.approx(2 / lam * np.eye(len(K)), rel=1e-12, abs=1e-15)


# ---- SGFS


def sgfs(h, k, *changes, b=3.0, N=40, B=1.4, T=1.0):
    """k Var theta where N I1 = k, and batches of b with replacement give the gradient the covariance N^2 I1/b."""
    step = Standing(planted(compile(SGFS, freeze="I1"), *changes), {"I1": k / N})
    return k * variance(step, h, np.array([k]), gradient_noise=N * k / b, num_data=N, b=b, B=B, temperature=T)[0]


@pytest.mark.parametrize("T", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("h", [1e-3, 0.05, 1.0, 30.0])
def test_sgfs_is_exact_on_gaussians_at_every_step_size_and_temperature(h, k, T):
    assert sgfs(h, k, T=T) == pytest.approx(T, rel=1e-10)


@pytest.mark.parametrize(
    "old, new",
    [
        ("(1 + num_data/(temperature*b))", "(1 + b/num_data)"),
        ("(1 + num_data/(temperature*b))", "num_data/b"),
        ("- temperature*x1/(B + x1)**2", ""),
    ],
    ids=["gamma=(b+N)/N", "without-the-curvature", "nothing-supplied"],
)
def test_a_wrong_sgfs_is_not_exact(old, new):
    assert abs(sgfs(0.05, K[0], (old, new)) - 1) > 0.005


# ---- SGHMC by word


def sghmc(row, z, **given):
    return variance(
        compile(SGHMC, row.word, pieces=WORDS, reuse_gradient=row.reuse),
        z.h,
        z.k,
        C=z.gamma * z.m,
        m=z.m,
        temperature=z.T,
        **given,
    )


def share(row):
    """1, or 1/2 for words whose two half-kicks have gradients of their own: of h V/2, what the gradient supplies."""
    z = HERE._replace(h=1e-4)
    return round(float((row.slope(z) * 2 * z.gamma * z.k * z.m / z.h)[0]), 2)


NOISY = [name for name, row in TABLE.items() if row.slope]
s2 = 1.9


@pytest.mark.parametrize("name", NOISY)
def test_a_budget_lowers_the_temperature_of_the_injected_noise(name):
    """By B/C; to nothing, where one flow has the force and the noise, as F, G and W have."""
    row, z, B = TABLE[name], HERE, share(TABLE[name]) * HERE.h * s2 / 2
    result = sghmc(row, z, B=B, gradient_noise=s2)
    if any(letter in row.word for letter in "FGW"):
        assert result == pytest.approx(row.theta(z), rel=1e-10)
    else:
        colder = row.theta(z._replace(T=z.T - B / (z.gamma * z.m)))
        assert result == pytest.approx(colder + s2 * row.slope(z), rel=1e-10)


@pytest.mark.parametrize("word", ["B A O A B", "A G"])
def test_adaptive_sghmc_is_sghmc_that_knows_the_second_moment_of_the_gradient(word):
    """Where V stands at the gradient's variance: m = lam + sqrt(V), B = h V/2."""
    h, gamma, m = 0.2, 1.1, 0.3 + s2**0.5
    names = list(map(str, AdaptiveSGHMC.adapted))
    step = Standing(compile(AdaptiveSGHMC, word, freeze=names), {"V": s2, "gbar": 0.0, "tau": 1.0})
    result = variance(step, h, gradient_noise=s2, gamma=gamma, lam=0.3)
    known = variance(compile(SGHMC, word, pieces=WORDS), h, gradient_noise=s2, C=gamma * m, m=m, B=h * s2 / 2)
    assert result == pytest.approx(known, rel=1e-10)


# ---- thermostats: V is ten times what the friction can bear, and nobody has told them


class Thermostat(NamedTuple):
    """A thermostatted sampler on a unit normal, the mean of xi that absorbs the noise, and margins for its bias."""

    recipe: object
    word: str
    h: float
    V: float
    m: float
    parameters: dict
    friction: float  # of SGHMC, for comparison
    xi: float

    def law(self, *changes):
        """The law of the step from the law of the SDE; one gradient to a step."""
        start = {"theta": normal(0, 1, 10), "p": normal(0, self.m, 10), "xi": normal(self.xi, 1, 10)}
        step = planted(compile(self.recipe, self.word, freeze=list(map(str, self.recipe.adapted))), *changes)
        given = {"gradient": lambda x: x, "gradient_noise": self.V, "noise_nodes": 4}  # exact to degree 7
        return SchemeLaw(step, self.h, start, 7, **given, **self.parameters)


UNAWARE = {  # A' O A' B has the theta and xi of B A' O A' B with one gradient per step
    "msgnht": Thermostat(MSGNHT, "A' O A' B", 0.02, 450.0, 1.0, {"A": 0.5}, 0.5, 0.5 + 0.02 * 450 / 2),
    "msgnht by F A'": Thermostat(MSGNHT, "F A'", 0.02, 450.0, 1.0, {"A": 0.5}, 0.5, 0.5 + 0.02 * 450 / 2),
    "sgnht": Thermostat(SGNHT, "A' O A' B", 0.02, 450.0, 1.0, {"A": 0.5}, 0.5, 0.5 + 0.02 * 450 / 2),
    "atmc": Thermostat(ATMC, "A' O A' B", 0.02, 1000.0, 2.0, {"m": 2.0, "Dmin": 0.5}, 0.5, 0.02 * 1000 / 4),
    "atmc by F A'": Thermostat(ATMC, "F A'", 0.05, 400.0, 2.0, {"m": 2.0, "Dmin": 0.5}, 0.5, 0.05 * 400 / 4),
    "santa": Thermostat(
        SANTA,
        "A' R W R A'",
        0.02,
        900.0,
        1.0,  # g1^2 = g2 = 1/2
        {"lam": 1.0, "constants": {"V": 1.0, "V_last": 9.0}},
        0.5,
        0.5 + 0.02 * 900 / 4,
    ),
}
theta_square, p_square, mean_xi = (lambda t, p, x: t**2), (lambda t, p, x: p**2), (lambda t, p, x: x)


@pytest.mark.parametrize("name", covering(UNAWARE, ["msgnht by F A'", "sgnht", "atmc", "santa"]))
def test_a_thermostat_holds_the_target_where_sghmc_is_ten_times_too_hot(name):
    row = UNAWARE[name]
    law = row.law()
    hot = variance(compile(SGHMC, "F A"), row.h, np.ones(1), gradient_noise=row.V, C=row.friction * row.m, m=row.m)
    assert hot >= 9.9
    assert law.after(3000, theta_square) == pytest.approx(1, rel=0.01)
    assert law.after(3000, mean_xi) == pytest.approx(row.xi, rel=0.01)


@pytest.mark.parametrize("name", [name for name in UNAWARE if UNAWARE[name].word == "F A'"])
def test_the_temperature_that_moves_xi_is_exact_at_every_step_size(name):
    """E xi stands still only if the mean of p^2/m over the pieces that move it is T."""
    row = UNAWARE[name]
    assert row._replace(h=2 * row.h, V=row.V / 2).law().after(20000, p_square) == pytest.approx(row.m, rel=1e-8)


@pytest.mark.parametrize(
    "name, text, other",
    [
        ("msgnht", "torch.exp(-h*xi)", "math.exp(-h*A)"),
        ("msgnht", "1/mu*p**2 - temperature/mu", "1/mu*p**2 - 2/mu"),
        ("atmc by F A'", "1/(m*mu)*p**2", "1/mu*p**2"),
        ("atmc by F A'", "-xi - torch.clamp(Dmin - xi, min=0)", "-Dmin + 0*xi"),
    ],
    ids=["friction-A", "thermostat-at-2-T", "thermostat-without-the-mass", "friction-Dmin"],
)
def test_a_wrong_thermostat_lets_go_of_the_target(name, text, other):
    assert abs(UNAWARE[name].law((text, other)).after(3000, theta_square) - 1) > 0.1
