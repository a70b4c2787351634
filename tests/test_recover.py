"""The converse of a recipe: from H, D and a drift back to Q, or to the residual of the drift."""

import pytest
from covering import covering
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Abs, Heaviside, ImmutableMatrix, Matrix, Max, Min, asinh, cos, exp, expand, log, sign, sin, sqrt
from wrong_drifts import (
    WRONG,
    A,
    B,
    U,
    alpha,
    c,
    gaussian,
    m,
    mu,
    n,
    p,
    private,
    relativistic,
    shared,
    slope,
    speed,
    theta,
    v,
    xi,
)

from recipe import Recipe, RecipeError, function, grad, operator, positive, potential, real, scalar, total
from recipe.algebra import vanishes
from recipe.converse import recover

eta, x, y, z = (scalar(name) for name in ("eta", "x", "y", "z"))
mass = positive("mass", default=1.9, per=theta)
g1, g2 = function("g1", theta), function("g2", theta, sign="nonnegative")


def recipe(name, state, H, D, Q, **more):
    return Recipe(name=name, state=state, H=H, D=D, Q=Q, **more)


RECIPES = [
    recipe("sghmc", (theta, p), gaussian, {p: A}, {(theta, p): -1}),
    recipe("masses", (theta, p), U + total(p**2 / mass) / 2, {p: A}, {(theta, p): -mass}),
    recipe("relativistic", (theta, p), relativistic, {p: A}, {(theta, p): -1}),
    recipe("sgnht", (theta, p, xi), gaussian + shared, {p: A}, {(theta, p): -1, (p, xi): p / (n * mu)}),
    recipe("msgnht", (theta, p, v), gaussian + private, {p: A}, {(theta, p): -1, (p, v): p / mu}),
    recipe("atmc", (theta, p, v), gaussian + private, {p: alpha * m + B / 2}, {(theta, p): -1, (p, v): p / mu}),
    recipe("atmc-max", (theta, p, v), gaussian + private, {p: Max(A - v, 0) * m}, {(theta, p): -1, (p, v): p / mu}),
    recipe(
        "atmc-relativistic",
        (theta, p, v),
        relativistic + private,
        {p: alpha * m + B / 2},
        {(theta, p): -1, (p, v): m * speed / mu},
    ),
    recipe(
        "santa",
        (theta, p, v),
        A * (U + total(p**2) / 2 + total((v - g2) ** 2) / 2),
        {p: g2 / A},
        {(theta, p): -g1 / A, (p, v): p / A},
    ),
    recipe(
        "chain",
        (theta, p, xi, eta),
        gaussian + shared + eta**2 / 2,
        {eta: 1},
        {(theta, p): -1, (p, xi): p / (n * mu), (xi, eta): xi},
    ),
    recipe(
        "magnetic",
        (x, y),
        potential(x, y),
        {x: 1 + y**2, y: 1},
        {(x, y): 1 + (A + B) * x - 3 * x * y + y**2 / mu},
        target=(x, y),
    ),
    recipe(
        "three",
        (x, y, z),
        potential(x, y, z),
        {x: 1},
        {(x, y): 1 + x * z, (y, z): 2 * z**2, (x, z): y - x},
        target=(x, y, z),
    ),
]


SLOW = {"santa", "chain", "atmc", "atmc-relativistic"}  # each takes half a second or more


def recovered(R, **options):
    return recover(R.state, R.H, R.drift, R.D, **options)


def same(Q, other):
    return (Q - other).applyfunc(expand).is_zero_matrix


@pytest.mark.parametrize("R", covering(RECIPES, [R for R in RECIPES if R.name not in SLOW][::2]), ids=lambda R: R.name)
def test_the_Q_of_a_recipe_is_recovered_from_its_drift(R):
    result = recovered(R)
    assert result.ok and result.how == "ansatz" and same(result.Q, R.Q)
    assert vanishes(result.residual)
    assert str(result).count("Q[") == sum(e != 0 for e in R.Q.upper_triangular())


@given(st.lists(st.integers(-3, 3), min_size=6, max_size=6))
@settings(max_examples=5, derandomize=True, deadline=None)
def test_every_polynomial_curl_of_degree_2_is_recovered(k):
    q = k[0] + k[1] * x + k[2] * y + k[3] * x**2 + k[4] * x * y + k[5] * y**2 / 2
    R = recipe("curl", (x, y), potential(x, y), {x: 1}, {(x, y): q}, target=(x, y))
    result = recovered(R)
    assert same(result.Q, R.Q) and result.how == ("ansatz" if q != 0 else "reversible")


def test_the_drift_may_be_a_dict_a_column_or_a_list():
    R = RECIPES[0]
    column = list(R.drift)
    for drift in (dict(zip(R.state, column)), Matrix(column), column):
        assert same(recover(R.state, R.H, drift, {p: A}).Q, R.Q)


def test_the_drift_may_be_written_in_another_form_than_H():
    speed = p / sqrt(m**2 + p**2 / c**2)
    result = recover((theta, p), relativistic, {theta: speed, p: -grad(U) - A * speed}, {p: A})
    assert str(result.Q) == "Matrix([[0, -1], [1, 0]])"


@pytest.mark.parametrize("D", [{theta: 1}, {theta: 1 + theta**2}, {theta: m}], ids=str)
def test_reversible_dynamics_has_no_curl(D):
    result = recovered(recipe("reversible", (theta,), U, D, {}))
    assert result.ok and result.how == "reversible" and result.Q == ImmutableMatrix([[0]])


def test_a_curl_outside_the_ansatz_is_recovered_from_declared_functions():
    R = recipe("quartic", (theta, p), gaussian, {p: A}, {(theta, p): -(theta**4) - cos(theta)})
    alone = recovered(R)
    assert alone.ok is None and alone.how == "not found" and vanishes(alone.residual) and "functions=" in str(alone)
    assert same(recovered(R, functions=[theta**4, cos(theta)]).Q, R.Q)


ROOT = sqrt(1 + x**2)
BY_NUMBERS = {  # the same U in two forms that no simplification shows to be equal: state, H, drift, Q
    "reversible": ((x,), ROOT * asinh(x) ** 2, [-(ROOT * log(x + ROOT) ** 2).diff(x)], "Q  0"),
    "ansatz": (
        (x, y),
        ROOT * asinh(x) ** 2 + y**2 / 2,
        [y, -y - (ROOT * log(x + ROOT) ** 2).diff(x)],
        "Q[x, y]  -1",
    ),
    "not found": (
        (x, y),
        ROOT * asinh(x) ** 2 + y**2 / 2,
        [y * cos(x), -y - cos(x) * (ROOT * log(x + ROOT) ** 2).diff(x) - sin(x)],
        "it is not in the ansatz",
    ),
}


@pytest.mark.parametrize("how", BY_NUMBERS)
def test_a_zero_at_random_states_is_no_proof(how):
    state, H, drift, answer = BY_NUMBERS[how]
    result = recover(state, H, drift, {state[-1]: 1})
    assert result.how == how and result.verdict == "checked"
    assert result.title == "exp(-H) is stationary, at random states"
    assert answer in str(result) and "proved" not in str(result)
    assert result.rows[0].verdict == ("open" if how == "not found" else "checked")


KINKS = {  # an energy with a kink, and its slope
    "Abs": (Abs(x) + y**2 / 2, sign(x)),
    "Max": (Max(0, x) + x**2 + y**2 / 2, Heaviside(x) + 2 * x),
}


@pytest.mark.parametrize("name", KINKS)
def test_a_kink_of_the_energy_is_no_obstacle(name):
    H, slope = KINKS[name]
    assert str(recover((x, y), H, {x: y, y: -slope - y}, {y: 1}).Q) == "Matrix([[0, -1], [1, 0]])"
    assert not recover((x, y), H, {x: y, y: -2 * slope - y}, {y: 1}).ok


FAR_AWAY = {  # drifts that are right but beyond a kink in the tail
    "reversible": ((x,), x**2 / 2, [-x - Max(0, x - 10)]),
    "with a curl": ((x, y), (x**2 + y**2) / 2, [y, -x - y - Max(0, x - 20)]),
}


@pytest.mark.parametrize("name", FAR_AWAY)
def test_a_drift_that_is_wrong_beyond_a_far_kink_has_no_Q(name):
    state, H, drift = FAR_AWAY[name]
    assert recover(state, H, drift, {state[-1]: 1}).how == "not stationary"


COUPLED_KINKS = {
    "of two": Max(x, y) ** 2 + x**2 + y**2,
    "of two, within an Abs": Abs(x - y) + x**2 + y**2,
    "of opposite order": Max(x - y, 0) - 2 * Min(y - x, 0) + x**2 + y**2,
}


@pytest.mark.parametrize("name", COUPLED_KINKS)
def test_a_kink_that_couples_blocks_is_no_obstacle(name):
    R = recipe("kinked", (x, y), COUPLED_KINKS[name], {x: 1, y: 1}, {(x, y): 1}, target=(x, y))
    assert R.check()["stationary"].verdict == "proved"
    assert same(recovered(R).Q, R.Q)
    assert recover(R.state, R.H, [2 * e for e in R.drift], R.D).how == "not stationary"


J, M = operator("J", kind="skew"), operator("M")
OF_OPERATORS = {
    "skew alone": recipe("turned", (theta,), U, {theta: 1}, {theta: 2 * J}),
    "skew on a momentum": recipe("turned", (theta, p), gaussian, {p: A}, {(theta, p): -1, p: J}),
    "mass": recipe("mass", (theta, p), gaussian, {p: A}, {(theta, p): -M}),
    "skew between blocks": recipe("between", (theta, p), gaussian, {p: A}, {(theta, p): -J}),
}


@pytest.mark.parametrize("name", OF_OPERATORS)
def test_the_operators_of_a_Q_are_recovered(name):
    R = OF_OPERATORS[name]
    result = recovered(R)
    assert result.ok and same(result.Q, R.Q)
    assert str(result).count("Q[") == sum(e != 0 for k in range(R.Q.rows) for e in R.Q[k, k:])


def test_a_current_along_one_number_has_no_Q():
    result = recover((x,), x**2 / 2, [exp(x**2 / 2) - x], {x: 1})
    assert result.how == "not found" and "skew operators" in str(result)


# ---- drifts without a Q


@pytest.mark.parametrize("name", WRONG)
def test_a_drift_that_is_not_stationary_has_no_Q(name):
    H, drift, D, *_ = WRONG[name]
    result = recover(tuple(drift), H, drift, D)
    assert result.ok is False and result.Q is None and result.how == "not stationary"
    assert (
        vanishes(result.residual) is None
        and "not stationary" in str(result)
        and f"residual  {result.residual}" in str(result)
    )


# ---- wrong input

good = {"state": (theta, p), "H": gaussian, "drift": {theta: p / m, p: -slope - A * p / m}, "D": {p: A}}


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"drift": {v: 1}}, "recover, drift: v is not a block of the state"),
        ({"drift": [p / m]}, "needs 2 rows"),
        ({"drift": "p/m"}, "needs 2 rows"),
        ({"drift": None}, "needs 2 rows"),
        ({"drift": ["p/m", 0]}, "recover, drift.theta.*Text is never evaluated"),
        ({"drift": {theta: p / real("mm")}, "H": gaussian + total(v)}, "block 'v' is used"),
        ({"drift": {theta: v}}, "'v' is unbound"),
        ({"drift": {theta: p / positive("m", default=9)}}, "are named 'm'"),
        ({"state": (theta, p, xi), "H": gaussian + xi**2, "drift": {xi: p}}, "drift.xi.*one value per site.*total"),
        ({"H": U + p**2}, "recover, H: p..2 has one value per site"),
        ({"H": "p"}, "recover, H.*Text is never evaluated"),
        ({"D": {p: -1}}, "recover, D: it is not positive semidefinite"),
        ({"D": Matrix([[1]])}, "recover, D.*2 x 2"),
        ({"functions": ["theta"]}, "recover, functions.*Text is never evaluated"),
        ({"functions": [v]}, "'v' is unbound"),
        ({"functions": [sign(theta)]}, "functions: sign.theta. jumps where theta = 0.*continuous"),
    ],
    ids=str,
)
def test_wrong_input_is_refused(changes, words):
    with pytest.raises(RecipeError, match=words):
        recover(**good | changes)


def test_a_pairwise_thermostat_of_another_trace_is_refuted():
    """The heat of a pair is that of the trace of its friction, 2 w. Leimkuhler & Shang 2016, eq. (12)."""
    px, py = scalar("px"), scalar("py")
    w = exp(-((x - y) ** 2) / 8)
    H, D = potential(x, y) + (px**2 + py**2) / 2 + mu * xi**2 / 2, {px: A * w, py: A * w, (px, py): -A * w}
    Q = {(x, px): -1, (y, py): -1, (px, xi): w * (px - py) / mu, (py, xi): w * (py - px) / mu}
    own = recipe("pairwise", (x, y, px, py, xi), H, D, Q, target=(x, y))
    drift = dict(zip(own.state, own.drift, strict=True))
    rest = drift[xi] - w * (px - py) ** 2 / mu
    assert own.residual() == 0 and expand(rest + 2 * w / mu) == 0
    wrong = recover(own.state, H, drift | {xi: drift[xi] + w / mu}, D)
    assert wrong.ok is False and wrong.residual.has(xi)
