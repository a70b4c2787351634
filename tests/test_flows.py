"""The closed forms of pieces with a law of their own: geometric, Cox-Ingersoll-Ross, rotation, relativistic friction.

Each is read off the emitted step, whose noise is an argument, and held against the equations that define it: moments,
Laplace transforms, matrix exponentials, an ODE solver; and over h against two steps over parts of h.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from statements import interpret
from sympy import Rational, exp, log, sqrt

from integrators import compile, flow_rules
from integrators.functions import phi1
from recipe import (
    Recipe,
    RecipeError,
    force,
    friction,
    function,
    kick,
    noise,
    numerical,
    positive,
    potential,
    real,
    scalar,
    spring,
    total,
    vector,
)
from recipe.symbols import duration
from samplers import SGHMC, RelativisticSGHMC, SGRLDSimplex
from samplers.testing.interpreter import braked, flow_by_flow
from samplers.testing.random_calls import by_oracle, called, inputs, tensors, worst

theta, p, xi, w = vector("theta"), vector("p"), scalar("xi"), vector("w", domain="positive")
x = scalar("x", domain="positive")
b, c, d, k = real("b"), positive("c"), positive("d"), real("k")
m, nu = positive("m", per=theta), positive("nu", per=w)
U, n = potential(theta), total(1)
K = m * c**2 * (sqrt(1 + (p / (m * c)) ** 2) - 1)

TEMPERATURES = [0.8, 1.25]


def geometric():
    """dw = d (2T - b) w dt + sqrt(2T d) w dW."""
    return Recipe(name="geometric", state=(w,), H=total(b * log(w)), D={w: d * w**2}, pieces={"A": w}, scheme="A")


def square_root_diffusion():
    """dw = (c (nu + T) - k w) dt + sqrt(2T c w) dW: the law of Gamma(nu/T + 1) in units of T c/k, where k > 0."""
    return Recipe(
        name="square-root", state=(w,), H=total(k * w / c - nu * log(w)), D={w: c * w}, pieces={"A": w}, scheme="A"
    )


def square_root_diffusion_of_one_number():
    return Recipe(
        name="square-root-scalar", state=(x,), H=k * x / c - d * log(x), D={x: c * x}, pieces={"A": x}, scheme="A"
    )


def gaussian_prior():
    """A prior N(b, 1/c) and a momentum about d, whose motion together is a rotation."""
    prior, kinetic = total(c * (theta - b) ** 2) / 2, total((p - d) ** 2 / m) / 2
    return Recipe(
        name="gaussian-prior",
        state=(theta, p),
        H=U + prior + kinetic,
        marginal=U + prior,
        D={},
        Q={(theta, p): -1},
        pieces={"K": (theta, spring(p)), "B": kick(p)},
        scheme="B K B",
    )


def relativistic_thermostat():
    """dp = -xi K'(p) dt, with one xi of any sign for all sites."""
    return Recipe(
        name="relativistic-thermostat",
        state=(theta, p, xi),
        H=U + total(K) + n * (xi - d) ** 2 / 2,
        D={p: d},
        Q={(theta, p): -1, (p, xi): K.diff(p) / n},
        pieces={"R": friction(p), "W": force(p) + noise(p)},
        scheme="A' R W R A'",
    )


OWN = [geometric, square_root_diffusion, square_root_diffusion_of_one_number, gaussian_prior, relativistic_thermostat]


@pytest.mark.parametrize("oracle", [interpret, flow_by_flow])
@pytest.mark.parametrize("make", OWN)
def test_the_emitted_flow_equals_the_oracle(make, oracle):
    step = compile(make())
    assert step.exact
    for shape in [(), (3,), (2, 2)]:
        state, drawn, parameters = inputs(step, 4, shape)
        assert worst(called(step, state, drawn, parameters), by_oracle(oracle, step, state, drawn, parameters)) <= 1e-12


def moved(step, block, value, h, noise, beside=None, **parameters):
    """The new values of a block that stands at `value`, one chain for each; other blocks are at 0 if not given."""
    value = torch.as_tensor(value, dtype=torch.float64).reshape(-1, 1)
    state = {b.name: torch.zeros_like(value if b.is_vector else value[:, 0]) for b in step.recipe.state}
    state |= {block: value, **(beside or {})}
    return step(state, h, gradient=torch.zeros_like, noise=noise, **parameters)[block][:, 0].numpy()


# ---- geometric


@pytest.mark.parametrize("T", TEMPERATURES)
@pytest.mark.parametrize("rate", [-1.3, 0.0, 2.4])
def test_a_geometric_flow_is_lognormal_with_the_moments_of_its_equation(rate, T):
    """m' = a m and (E w^2)' = 2 (a + T d) E w^2 for dw = a w dt + sqrt(2T d) w dW, with log w' normal."""
    step, d, start = compile(geometric()), 0.7, 1.9
    assert step.flows["A"].rule == "geometric"
    a = d * (2 * T - rate)

    def law(h):
        normals = torch.linspace(-2, 2, 5, dtype=torch.float64).reshape(-1, 1)
        logs = np.log(moved(step, "w", [start] * 5, h, {"w": normals}, b=rate, d=d, temperature=T))
        assert np.diff(logs, 2) == pytest.approx(np.zeros(3), abs=1e-13)
        return logs[2], np.diff(logs)[0] ** 2

    for h in (0.01, 0.5, 3.0):
        mean, variance = law(h)
        assert math.exp(mean + variance / 2) == pytest.approx(start * math.exp(a * h), rel=1e-12)
        assert math.exp(2 * mean + 2 * variance) == pytest.approx(start**2 * math.exp(2 * (a + T * d) * h), rel=1e-12)
        (first, one), (second, other) = law(0.3 * h), law(0.7 * h)
        assert (first + second - math.log(start), one + other) == pytest.approx((mean, variance), rel=1e-12, abs=1e-14)


def test_a_geometric_flow_keeps_the_sign():
    s = vector("s")
    step = compile(Recipe(name="signed", state=(s,), H=total(log(s**2)), D={s: s**2}, pieces={"S": s}), "S")
    below, above = moved(step, "s", [-2.0, 2.0], 0.3, {"s": torch.tensor([[0.4], [0.4]])})
    assert below == -above < 0


# ---- Cox-Ingersoll-Ross


@cache
def cir():
    return compile(square_root_diffusion())


def mixture(step, start, h, T, **parameters):
    """(rate, shape, scale) of the step w' = scale Gamma(shape + Poisson(rate)), from the functions that it asks for."""
    asked = {}

    def counted(rate):
        asked["rate"] = rate.item()
        return torch.full_like(rate, 3.0)

    def drawn(shape):
        asked["shape"] = shape.item() - 3
        return torch.full_like(shape, 1.0)

    scale = moved(step, "w", [start], h, {"w1": counted, "w2": drawn}, temperature=T, **parameters)[0]
    return asked["rate"], asked["shape"], scale


RATES = [-0.8, 0.0, 1e-9, 0.6, 40.0]


@pytest.mark.parametrize("T", TEMPERATURES)
@pytest.mark.parametrize("k", RATES)
@pytest.mark.parametrize("start", [1e-8, 0.4, 30.0])
def test_the_moments_of_a_square_root_diffusion_are_those_of_its_equation(start, k, T):
    """m' = a - k m, (E w^2)' = 2 (a + s) m - 2k E w^2 for dw = (a - k w) dt + sqrt(2 s w) dW."""
    step, c, nu, h = cir(), 1.3, 0.55, 0.5
    assert step.flows["A"].rule == "Cox-Ingersoll-Ross" and step.draws == {"w1": "poisson", "w2": "gamma"}
    a, s = c * (nu + T), T * c
    rate, shape, scale = mixture(step, start, h, T, k=k, c=c, nu=nu)
    _, mean, square = expm(h * np.array([[0, 0, 0], [a, -k, 0], [0, 2 * (a + s), -2 * k]])) @ [1, start, start**2]
    assert scale * (shape + rate) == pytest.approx(mean, rel=1e-12)
    assert scale**2 * (shape + 2 * rate + (shape + rate) ** 2) == pytest.approx(square, rel=1e-12)


def transform(step, h, T, **parameters):
    """E exp(-u w') = exp(-A(u) - w B(u)) of a start w: the functions A and B."""
    (_, shape, scale), (rate, _, _) = (mixture(step, w, h, T, **parameters) for w in (1.0, 1.0))
    return lambda u: shape * math.log1p(u * scale), lambda u: rate * u * scale / (1 + u * scale)


@pytest.mark.parametrize("T", TEMPERATURES)
@pytest.mark.parametrize("k", RATES)
def test_the_laplace_transform_of_a_square_root_diffusion_solves_riccatis_equation_and_is_a_semigroup(k, T):
    """B' = -k B - s B^2 from B(0) = u, and A' = a B."""
    step, parameters = cir(), {"k": k, "c": 1.3, "nu": 0.55}
    a, s, h = 1.3 * (0.55 + T), T * 1.3, 0.5
    A, B = transform(step, h, T, **parameters)
    (A1, B1), (A2, B2) = transform(step, 0.2, T, **parameters), transform(step, 0.3, T, **parameters)
    for u in (0.01, 0.7, 5.0):
        solved = solve_ivp(
            lambda t, y: [a * y[1], -k * y[1] - s * y[1] ** 2], (0, h), [0, u], method="LSODA", rtol=1e-12, atol=1e-15
        ).y[:, -1]
        assert (A(u), B(u)) == pytest.approx(tuple(solved), rel=1e-8, abs=1e-10)
        assert (A2(u) + A1(B2(u)), B1(B2(u))) == pytest.approx((A(u), B(u)), rel=1e-12)


@pytest.mark.parametrize("T", TEMPERATURES)
@pytest.mark.parametrize("h", [0.01, 0.5, 20.0])
def test_a_square_root_diffusion_keeps_its_gamma_law(h, T):
    """E exp(-u w) = (1 + u T c/k)^-(nu/T + 1), before and after a step of any size."""
    step, k, c, nu = cir(), 0.6, 1.3, 0.55
    A, B = transform(step, h, T, k=k, c=c, nu=nu)

    def stationary(u):
        return -(nu / T + 1) * math.log1p(u * T * c / k)

    for u in (0.01, 0.7, 5.0):
        assert stationary(B(u)) - A(u) == pytest.approx(stationary(u), rel=1e-11)


# ---- rotation


@pytest.mark.parametrize("h", [1e-6, 0.3, 2.0, 40.0])
def test_a_rotation_is_the_matrix_exponential_of_its_equation_and_conserves_the_energy(h):
    """dtheta = (p - d)/m dt, dp = -c (theta - b) dt, for sites of different mass."""
    step = compile(gaussian_prior())
    assert step.flows["K"].rule == "rotation"
    m, c, b, d = np.array([0.5, 1.7, 6.0]), 1.3, 0.4, 0.9
    theta, p = np.array([0.3, -1.0, 2.0]), np.array([-0.7, 0.2, 1.5])

    def turned(theta, p, h):
        out = step(
            tensors({"theta": theta[None], "p": p[None]}),
            h,
            gradient=torch.zeros_like,
            **tensors({"m": m}),
            c=c,
            b=b,
            d=d,
        )
        return out["theta"][0].numpy(), out["p"][0].numpy()

    equations = [[[0, 1 / M, -d / M], [-c, 0, c * b], [0, 0, 0]] for M in m]
    expected = np.array([expm(h * np.array(A)) @ [q, r, 1] for A, q, r in zip(equations, theta, p)])
    result = turned(theta, p, h)
    assert np.array(result) == pytest.approx(expected.T[:2], rel=1e-10, abs=1e-10)

    def energy(theta, p):
        return c * (theta - b) ** 2 / 2 + (p - d) ** 2 / (2 * m)

    assert energy(*result) == pytest.approx(energy(theta, p), rel=1e-12)
    assert np.array(turned(*turned(theta, p, 0.3 * h), 0.7 * h)) == pytest.approx(
        np.array(result), rel=1e-10, abs=1e-12
    )


def test_a_spring_that_may_push_has_no_rotation_but_a_matrix_solution():
    R = Recipe(
        name="saddle",
        state=(theta, p),
        H=U + total(b * theta**2) / 2 + total(p**2) / 2,
        D={},
        Q={(theta, p): -1},
        pieces={"K": (theta, spring(p)), "B": kick(p)},
    )
    step = compile(R, "B K B")
    assert step.flows["K"].rule == "matrix Ornstein-Uhlenbeck"
    for stiffness in (-1.3, 0.0, 1.3):
        start = tensors({"theta": np.array([[0.3]]), "p": np.array([[0.8]])})
        out = step(start, 0.5, gradient=torch.zeros_like, b=stiffness)
        expected = expm(0.5 * np.array([[0, 1], [-stiffness, 0]])) @ [0.3, 0.8]
        assert (out["theta"].item(), out["p"].item()) == pytest.approx(tuple(expected), rel=1e-12)


@pytest.mark.parametrize("of", [c, m, 1 + theta**2, 1 + total(theta**2)], ids=str)
def test_a_friction_that_is_a_fraction_has_its_closed_form(of):
    friction = d * (of + 1) / (of + Rational(1, 10))
    H = U + total(p**2) / 2
    recipe = Recipe(name="fraction", state=(theta, p), H=H, D={p: friction}, Q={(theta, p): -1})
    assert str(compile(recipe).scheme) == "B A O A B"


def test_a_force_is_a_kick_and_a_spring():
    assert str(kick(p) + spring(p)) == str(force(p)) == "force(p)"
    whole, parts = (
        compile(gaussian_prior(), "A F", pieces={"F": force(p)}),
        compile(gaussian_prior(), "A F", pieces={"F": kick(p) + spring(p)}),
    )
    assert whole.source == parts.source
    with pytest.raises(RecipeError, match="no piece takes .* in the drift of p"):
        compile(gaussian_prior(), "A B")
    with pytest.raises(RecipeError, match="pieces 'K' and 'F' both take"):
        compile(gaussian_prior(), "K F", pieces={"F": force(p)})


# ---- relativistic friction

MOMENTA = [0.0, 1e-200, 1e-9, 0.03, 0.8, 3.0, 50.0, 1e6]
SIGNED = [s * q for q in MOMENTA for s in (1, -1)]


def braking(step, h, friction, p=SIGNED, m=1.7, c=1.3):
    """p after the piece R alone: there is no gradient, no noise, and A' follows."""
    beside = {"xi": torch.full((len(p),), friction, dtype=torch.float64)}
    still = {"p": torch.zeros(len(p), 1, dtype=torch.float64)}
    return moved(step, "p", p, h, still, beside, m=m, c=c, d=1.0)


@pytest.mark.parametrize("friction", [-2.0, -0.3, 0.0, 1e-7, 0.7, 4.0])
def test_relativistic_friction_solves_its_equation(friction):
    """dp = -xi p/M dt with M = m sqrt(1 + p^2/(m c)^2), for every size and sign of p and of xi."""
    step, m, c, h = compile(relativistic_thermostat(), "R W A'"), 1.7, 1.3, 0.9
    assert step.flows["R"].rule == "relativistic friction"

    def equation(t, p):
        return -friction * p / (m * np.sqrt(1 + (p / (m * c)) ** 2))

    solved = solve_ivp(equation, (0, h), SIGNED, method="DOP853", rtol=1e-12, atol=1e-300).y[:, -1]
    result = braking(step, h, friction, m=m, c=c)
    assert result == pytest.approx(solved, rel=1e-10, abs=0)
    assert braking(step, 0.7 * h, friction, braking(step, 0.3 * h, friction)) == pytest.approx(result, rel=1e-13, abs=0)


def test_friction_for_ever_stops_and_stays_finite():
    step = compile(relativistic_thermostat(), "R W A'")
    assert (abs(braking(step, 1.0, 1e6)) < 1e-300).all()
    assert np.isfinite(braking(step, 1.0, -1e6)).all()
    assert braking(step, 1e4, 0.7, [1e3, -1e3]) == pytest.approx([0, 0], abs=1e-300)


def test_the_emitted_root_is_that_of_another_solver():
    emitted = compile(RelativisticSGHMC).namespace["braked"]
    y, s = (
        v.ravel()
        for v in np.meshgrid(
            [s * 10.0**e for e in range(-12, 7) for s in (1, -1)], [-30.0, -1.3, -1e-3, 1e-9, 0.2, 1.0, 5.0, 200.0]
        )
    )
    assert emitted(torch.tensor(y), torch.tensor(s)).numpy() == pytest.approx(braked(y, s), rel=1e-12, abs=0)
    single = emitted(torch.tensor(y, dtype=torch.float32), torch.tensor(s, dtype=torch.float32))
    assert single.dtype == torch.float32 and single.numpy() == pytest.approx(braked(y, s), rel=1e-4, abs=1e-37)


# ---- numerical, by request: the absolute value of Euler's step


@pytest.mark.parametrize("start, eta", [(0.3, -4.0), (0.3, 2.0), (2.0, -0.1), (1e-6, -3.0)])
def test_reflected_euler_is_the_absolute_value_of_eulers_step(start, eta):
    reflected, plain = (compile(SGRLDSimplex, word) for word in ("E", "Euler"))
    given = dict(noise={"theta": torch.tensor([[eta]], dtype=torch.float64)}, a=1.6, temperature=0.8)
    values = [moved(step, "theta", [start], 0.2, **given)[0] for step in (reflected, plain)]
    assert values[0] == abs(values[1])
    assert not reflected.exact and reflected.order == 1


def test_a_reflection_needs_a_block_that_is_positive():
    with pytest.raises(RecipeError, match="'reflected'.*may be negative.*domain=\"positive\""):
        compile(SGHMC, "A X", pieces={"X": numerical(p, "reflected")})


# ---- the check of closed forms by numbers

t, g = duration, U.diff(theta)
MEAN, DECAY, SPREAD = exp(-c * t) * p + t * phi1(-c * t) * g, exp(-2 * c * t), t * phi1(-2 * c * t)


@pytest.mark.parametrize(
    "mean, decay, spread",
    [
        (exp(-c * t / 2) * p + t * phi1(-c * t) * g, DECAY, SPREAD),
        (exp(-c * t) * p + t * g, DECAY, SPREAD),
        (exp(-c * t) * p - t * phi1(-c * t) * g, DECAY, SPREAD),
        (MEAN, exp(-c * t), SPREAD),
        (MEAN, DECAY, t),
        (MEAN, DECAY, t * phi1(-c * t)),
    ],
)
def test_a_wrong_closed_form_breaks_its_equation(mean, decay, spread):
    flow_rules._verify(p, c, g, MEAN, DECAY, SPREAD)
    with pytest.raises(AssertionError, match="breaks its equation"):
        flow_rules._verify(p, c, g, mean, decay, spread)


@pytest.mark.parametrize("name", ["in H", "in D"])
def test_an_open_function_of_what_moves_is_asked_for_by_its_name(name):
    F = function("F", theta, p)
    H = U + total(p**2) / 2 + (total(F) if name == "in H" else 0)
    recipe = Recipe(name="open", state=(theta, p), H=H, D={p: 1 if name == "in H" else 1 + F**2}, Q={(theta, p): -1})
    with pytest.raises(RecipeError, match=r"the function 'F' is still opaque. Give it: recipe.bind\(F=...\)"):
        compile(recipe)
