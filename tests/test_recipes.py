"""What a recipe derives and proves: Gamma, the drift, the residual, the certificate, and how it prints."""

import json

import pytest
from explicit_sites import Expanded, at_site, is_zero
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import ImmutableMatrix, Matrix, Max, S, cos, expand, log, pi, sin, sqrt, symbols, zeros

from recipe import Energy, Recipe, RecipeError, function, grad, nonnegative, positive, potential, scalar, total, vector
from recipe import derive
from recipe.algebra import vanishes
from recipe.symbols import temperature

theta, p, v = vector("theta"), vector("p"), vector("v")
xi, eta = scalar("xi"), scalar("eta")
x, y, z = scalar("x"), scalar("y"), scalar("z")
A, B, m, mu, beta, c = (positive(name, default=value) for name, value in
                        [("A", 1.3), ("B", 0.6), ("m", 1.7), ("mu", 0.7), ("beta", 2.0), ("c", 0.8)])
mass = positive("mass", default=1.9, per=theta)
U, n = potential(theta), total(1)
G, g1 = function("G", theta, sign="positive"), function("g1", theta)
g2, alpha = function("g2", theta, sign="nonnegative"), function("alpha", v, sign="nonnegative")
langevin = U + total(p**2 / m) / 2
speed = p / (m * sqrt(1 + p**2 / (m * c) ** 2))

few = settings(max_examples=8, derandomize=True, deadline=None)


def recipe(name, state, H, D, Q={}, **more):
    return Recipe(name=name, state=state, H=H, D=D, Q=Q, **more)


RECIPES = {r.name: r for r in [
    recipe("sgld", (theta,), U, {theta: 1}),
    recipe("preconditioned", (theta,), U, {theta: 1 / (1 + theta**2)}),
    recipe("hessian-diagonal", (theta,), U, {theta: 1 / (1 + grad(U) ** 2)}),
    recipe("shared-preconditioner", (theta,), U, {theta: 1 + total(theta**2) / n}),
    recipe("sghmc", (theta, p), langevin, {p: A * m}, {(theta, p): -1}),
    recipe("masses", (theta, p), U + total(p**2 / mass) / 2, {p: A * mass}, {(theta, p): -mass}),
    recipe("sgrhmc", (theta, p), langevin, {p: G**2}, {(theta, p): -G}),
    recipe("theta-mass", (theta, p), U + total(p**2 / G + log(G)) / 2, {p: A}, {(theta, p): -1}),
    recipe("relativistic", (theta, p), U + total(m * c**2 * sqrt(1 + p**2 / (m * c) ** 2)), {p: A}, {(theta, p): -1}),
    recipe("sgnht", (theta, p, xi), langevin + n * mu * (xi - A) ** 2 / 2, {p: A}, {(theta, p): -1, (p, xi): p / (n * mu)}),
    recipe("atmc", (theta, p, v), langevin + total(mu * (v - B / m / 2) ** 2) / 2, {p: alpha * m + B / 2},
           {(theta, p): -1, (p, v): p / mu}),
    recipe("santa", (theta, p, v), beta * (U + total(p**2) / 2 + total((v - g2) ** 2) / 2), {p: g2 / beta},
           {(theta, p): -g1 / beta, (p, v): p / beta}),
    recipe("scalar-diffusion", (theta, p, xi), langevin + n * xi**2 / 2, {p: 1 + xi**2, xi: (1 + xi**2) / n},
           {(theta, p): -1}),
    recipe("total-diffusion", (theta, p, xi), langevin + n * xi**2 / 2, {p: 1, xi: xi**2 + total(p**2) / n},
           {(theta, p): -1}),
    recipe("total-curl", (theta, p, xi), langevin + n * xi**2 / 2, {p: 1},
           {(theta, p): -1, (p, xi): p * xi / total(p**2 + 1)}),
    recipe("chain", (theta, p, xi, eta), langevin + n * mu * xi**2 / 2 + eta**2 / 2, {eta: 1},
           {(theta, p): -1, (p, xi): p / (n * mu), (xi, eta): xi * total(p**2) / n}),
    recipe("banana", (x, y), potential(x, y), Matrix([[1 + x**2, x * y], [x * y, 2 + y**2]]),
           Matrix([[0, x * y], [-x * y, 0]]), target=(x, y)),
]}

every = pytest.mark.parametrize("R", RECIPES.values(), ids=RECIPES)


# ---- Gamma, drift, residual


def agrees_with_explicit_sites(R, n):
    explicit = Expanded(R, n)
    return (all(map(is_zero, explicit.column(R.gamma) - explicit.gamma))
            and all(map(is_zero, explicit.column(R.drift) - explicit.drift)))


@every
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gamma_and_drift_are_those_of_the_explicit_sites(R, n):
    assert agrees_with_explicit_sites(R, n)


@every
def test_the_residual_of_a_recipe_is_zero(R):
    assert vanishes(R.residual()) == "symbolic"
    assert is_zero(Expanded(R, 2).residual(Expanded(R, 2).drift))


@every
def test_the_residual_of_another_drift_is_that_of_the_explicit_sites(R):
    drift, explicit = -R.drift, Expanded(R, 2)
    residual = derive.residual(drift, R.H, R.D, R.state)
    assert is_zero(at_site(residual, None, 2) - explicit.residual(explicit.column(drift)))
    assert vanishes(residual) is None


def polynomials(*coordinates):
    """Polynomials of degree <= 2 with small coefficients."""
    monomials = [S.One, *coordinates, coordinates[0] * coordinates[-1], coordinates[-1] ** 2]
    return st.lists(st.integers(-2, 2), min_size=len(monomials), max_size=len(monomials)).map(
        lambda numbers: sum(k * f for k, f in zip(numbers, monomials)))


def dense(*coordinates):
    """Recipes in explicit coordinates with D = L L^T and a full Q, both polynomial."""
    size = len(coordinates)
    entries = st.lists(polynomials(*coordinates), min_size=size**2, max_size=size**2).map(lambda e: Matrix(size, size, e))
    return st.builds(lambda L, K: Recipe(name="dense", state=coordinates, target=coordinates, H=potential(*coordinates),
                                         D=(L.lower_triangular() * L.lower_triangular().T).expand(), Q=K - K.T),
                     entries, entries)


@given(dense(x, y) | dense(x, y, z))
@few
def test_dense_recipes_are_derived_as_in_the_textbook_and_stationary(R):
    assert agrees_with_explicit_sites(R, 1)
    assert vanishes(R.residual()) == "symbolic"


@every
def test_temperature_scales_gamma_only(R):
    """At T the recipe is (H/T, T D, T Q): MATH 0.3."""
    T = positive("tau")
    hot = Recipe(name="hot", state=R.state, target=R.target, H=R.H / T, D=T * R.D, Q=T * R.Q)
    difference = hot.drift - R.tempered_drift.subs(temperature, T)
    assert all(vanishes(d) for d in difference)
    assert all(vanishes(d) for d in R.tempered_drift.subs(temperature, 0) + R.gamma - R.drift)


# ---- mutants: each drift that is not the recipe's has a residual


def flow(A, R):
    """-A grad H + rowdiv(A)."""
    return derive.row_divergence(A, R.state) - derive.times_gradient(A, R.H, R.state)


def with_one_sign_flipped(Q):
    """Q with its first entry below the diagonal negated, and so not skew."""
    flipped = Q.as_mutable()
    i, j = next((i, j) for i in range(Q.rows) for j in range(Q.rows) if i > j and Q[i, j] != 0)
    flipped[i, j] = -Q[i, j]
    return ImmutableMatrix(flipped)


MUTANTS = {
    "Gamma with the wrong sign": lambda R: R.drift - 2 * R.gamma,
    "Gamma dropped": lambda R: R.drift - R.gamma,
    "Gamma halved": lambda R: R.drift - R.gamma / 2,
    "Gamma of a scalar without 1/n": lambda R: R.drift + ImmutableMatrix(
        [0 if b.is_vector or len(R.targets) > 1 else (n - 1) * g for b, g in zip(R.state, R.gamma)]),
    "column divergence": lambda R: R.drift - R.gamma + derive.row_divergence((R.D + R.Q).T, R.state),
    "one entry of Q sign-flipped": lambda R: flow(R.D + with_one_sign_flipped(R.Q), R) if R.momenta else R.drift,
    "friction doubled": lambda R: R.drift - derive.times_gradient(R.D, R.H, R.state),
}
ALIVE = [(kind, name) for kind, mutate in MUTANTS.items() for name, R in RECIPES.items()
         if not all(map(vanishes, mutate(R) - R.drift))]


@pytest.mark.parametrize("kind, name", ALIVE)
def test_a_mutant_of_the_drift_is_not_stationary(kind, name):
    R = RECIPES[name]
    assert vanishes(derive.residual(MUTANTS[kind](R), R.H, R.D, R.state)) is None


def test_every_mutant_is_planted_in_several_recipes():
    planted = [kind for kind, _ in ALIVE]
    assert all(planted.count(kind) >= 4 for kind in MUTANTS), {kind: planted.count(kind) for kind in MUTANTS}


@every
@pytest.mark.parametrize("factor", [S.Half, S(2)], ids=["sqrt(D)", "sqrt(4D)"])
def test_the_wrong_amount_of_noise_is_not_stationary(R, factor):
    assert vanishes(derive.residual(R.drift, R.H, factor * R.D, R.state)) is None


