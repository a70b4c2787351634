"""What a recipe derives and proves: Gamma, the drift, the residual, the certificate, and how it prints."""

import json
import re
from functools import cache

import pytest
from covering import covering, slow
from explicit_sites import Expanded, at_site, coordinates, is_zero
from hypothesis import given, settings
from sympy import ImmutableMatrix, Matrix, S, cos, hessian, log, sin, sqrt, symbols
from sympy.core.function import AppliedUndef
from torch import zeros

from recipe import Energy, Recipe, RecipeError, derive, function, grad, positive, potential, scalar, total, vector
from recipe.algebra import vanishes
from recipe.marginal import eliminate_gaussians
from recipe.symbols import temperature
from samplers import sample
from samplers.testing.strategies import recipes

theta, p, v = vector("theta"), vector("p"), vector("v")
xi, eta = scalar("xi"), scalar("eta")
x, y, z = scalar("x"), scalar("y"), scalar("z")
A, B, m, mu, c = (
    positive(name, default=value) for name, value in [("A", 1.3), ("B", 0.6), ("m", 1.7), ("mu", 0.7), ("c", 0.8)]
)
mass = positive("mass", default=1.9, per=theta)
U, n = potential(theta), total(1)
G, g1 = function("G", theta, sign="positive"), function("g1", theta)
g2, alpha = function("g2", theta, sign="nonnegative"), function("alpha", v, sign="nonnegative")
langevin, TURNS = U + total(p**2 / m) / 2, {(theta, p): -1}
speed = p / (m * sqrt(1 + p**2 / (m * c) ** 2))

few = settings(max_examples=6, derandomize=True, deadline=None)


def recipe(name, state, H, D, Q=None, **more):
    return Recipe(name=name, state=state, H=H, D=D, Q=Q or {}, **more)


RECIPES = {
    r.name: r
    for r in [
        recipe("sgld", (theta,), U, {theta: 1}),
        recipe("preconditioned", (theta,), U, {theta: 1 / (1 + theta**2)}),
        recipe("hessian-diagonal", (theta,), U, {theta: 1 / (1 + grad(U) ** 2)}),
        recipe("shared-preconditioner", (theta,), U, {theta: 1 + total(theta**2) / n}),
        recipe("sghmc", (theta, p), langevin, {p: A * m}, TURNS),
        recipe("masses", (theta, p), U + total(p**2 / mass) / 2, {p: A * mass}, {(theta, p): -mass}),
        recipe("sgrhmc", (theta, p), langevin, {p: G**2}, {(theta, p): -G}),
        recipe("theta-mass", (theta, p), U + total(p**2 / G + log(G)) / 2, {p: A}, TURNS),
        recipe("relativistic", (theta, p), U + total(m * c**2 * sqrt(1 + p**2 / (m * c) ** 2)), {p: A}, TURNS),
        recipe(
            "sgnht", (theta, p, xi), langevin + n * mu * (xi - A) ** 2 / 2, {p: A}, {**TURNS, (p, xi): p / (n * mu)}
        ),
        recipe(
            "atmc",
            (theta, p, v),
            langevin + total(mu * (v - B / m / 2) ** 2) / 2,
            {p: alpha * m + B / 2},
            {**TURNS, (p, v): p / mu},
        ),
        recipe("santa", (theta, p, v), langevin + total((v - g2) ** 2) / 2, {p: g2 * m}, {(theta, p): -g1, (p, v): p}),
        recipe(
            "scalar-diffusion", (theta, p, xi), langevin + n * xi**2 / 2, {p: 1 + xi**2, xi: (1 + xi**2) / n}, TURNS
        ),
        recipe("total-diffusion", (theta, p, xi), langevin + n * xi**2 / 2, {p: 1, xi: xi**2 + total(p**2) / n}, TURNS),
        recipe(
            "total-curl",
            (theta, p, xi),
            langevin + n * xi**2 / 2,
            {p: 1},
            {**TURNS, (p, xi): p * (1 + xi**2) / total(p**2 + 1)},
        ),
        recipe(
            "chain",
            (theta, p, xi, eta),
            langevin + n * mu * xi**2 / 2 + eta**2 / 2,
            {eta: 1},
            {**TURNS, (p, xi): p / (n * mu), (xi, eta): xi * total(p**2) / n},
        ),
        recipe(
            "banana",
            (x, y),
            potential(x, y),
            Matrix([[1 + x**2, x * y], [x * y, 2 + y**2]]),
            Matrix([[0, x * y], [-x * y, 0]]),
            target=(x, y),
        ),
    ]
}

every = pytest.mark.parametrize("R", RECIPES.values(), ids=RECIPES)
SEVERAL = ("sgld", "preconditioned", "sghmc", "sgrhmc", "sgnht", "total-curl", "banana")
several = pytest.mark.parametrize("R", covering(RECIPES.values(), map(RECIPES.get, SEVERAL)), ids=RECIPES)


# ---- Gamma, drift, residual


expanded = cache(Expanded)


def agrees_with_explicit_sites(R, n):
    explicit = expanded(R, n)
    return all(map(is_zero, explicit.column(R.gamma) - explicit.gamma)) and all(
        map(is_zero, explicit.column(R.drift) - explicit.drift)
    )


@every
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gamma_and_drift_are_those_of_the_explicit_sites(R, n):
    assert agrees_with_explicit_sites(R, n)


@several
def test_the_residual_of_a_recipe_is_zero(R):
    assert vanishes(R.residual()) == "symbolic"
    assert is_zero(expanded(R, 2).residual(expanded(R, 2).drift))


@pytest.mark.parametrize("R", covering(RECIPES.values(), map(RECIPES.get, SEVERAL[:4])), ids=RECIPES)
def test_the_residual_of_another_drift_is_that_of_the_explicit_sites(R):
    drift, explicit = -R.drift, expanded(R, 2)
    residual = derive.residual(drift, R.H, R.D, R.state)
    assert is_zero(at_site(residual, None, 2) - explicit.residual(explicit.column(drift)))
    assert vanishes(residual) is None


@pytest.mark.slow
@given(recipes("explicit"))
@few
def test_recipes_of_explicit_coordinates_are_derived_as_in_the_textbook_and_stationary(R):
    assert agrees_with_explicit_sites(R, 1)
    assert vanishes(R.residual()) == "symbolic"


@pytest.mark.slow
@given(recipes("sites"))
@few
def test_recipes_of_sites_are_derived_as_for_explicit_sites_and_stationary(R):
    assert agrees_with_explicit_sites(R, 2)
    assert vanishes(R.residual()) == "symbolic"


@every
def test_temperature_scales_gamma_only(R):
    """At T the recipe is (H/T, T D, T Q)."""
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
    "Gamma of a scalar without 1/n": lambda R: (
        R.drift
        + ImmutableMatrix([0 if b.is_vector or len(R.targets) > 1 else (n - 1) * g for b, g in zip(R.state, R.gamma)])
    ),
    "column divergence": lambda R: R.drift - R.gamma + derive.row_divergence((R.D + R.Q).T, R.state),
    "one entry of Q sign-flipped": lambda R: flow(R.D + with_one_sign_flipped(R.Q), R) if R.momenta else R.drift,
    "friction doubled": lambda R: R.drift - derive.times_gradient(R.D, R.H, R.state),
}


@pytest.mark.parametrize("kind", MUTANTS)
def test_a_mutant_of_the_drift_is_not_stationary(kind):
    """It is planted wherever it changes the drift: in four recipes or more."""
    mutate, planted = MUTANTS[kind], 0
    for R in RECIPES.values():
        mutant = mutate(R)
        if not all(map(vanishes, mutant - R.drift)):
            planted += 1
            assert vanishes(derive.residual(mutant, R.H, R.D, R.state)) is None, R.name
    assert planted >= 4


@every
@pytest.mark.parametrize("factor", [S.Half, S(2)], ids=["sqrt(D)", "sqrt(4D)"])
def test_the_wrong_amount_of_noise_is_not_stationary(R, factor):
    assert vanishes(derive.residual(R.drift, R.H, factor * R.D, R.state)) is None


# ---- the certificate


def verdict(R, question):
    """The verdict and the answer to the one question of the certificate that begins so."""
    (finding,) = [f for f in R.check().findings if f.question.startswith(question)]
    return finding.verdict, finding.answer


@several
def test_a_correct_recipe_has_a_certificate_without_failures(R):
    certificate = R.check()
    assert certificate.ok, str(certificate)
    assert verdict(R, "exp(-H) is stationary") == ("proved", "Fokker-Planck residual identically 0")
    assert verdict(R, "the noise reaches")[0] in ("proved", "checked")
    assert certificate.exact, str(certificate)
    assert str(certificate).startswith(f"certificate of {R.name}: ok\n")


def test_a_certificate_is_plain_data():
    R = RECIPES["sgnht"]
    data = json.loads(json.dumps(R.check().to_dict()))
    assert data["recipe"] == "sgnht" and data["ok"] is True
    assert [f["question"] for f in data["findings"]] == [f.question for f in R.check().findings]
    assert all(f["verdict"] in ("proved", "checked", "open", "warning", "failed") for f in data["findings"])


@pytest.mark.parametrize(
    "R, warning",
    [
        (recipe("hmc", (theta, p), langevin, {}, TURNS), "no noise.*not ergodic without refreshment"),
        (recipe("idle", (theta, p, xi), langevin + xi**2 / 2, {p: A}, TURNS), "never reaches xi.*not ergodic"),
    ],
    ids=["hmc", "idle"],
)
def test_noise_that_does_not_reach_every_block_is_a_warning(R, warning):
    result, answer = verdict(R, "the noise reaches")
    assert result == "warning" and re.search(warning, answer)
    assert R.check().ok is None and R.check().title == f"certificate of {R.name}: invariant; not ergodic"


def test_a_target_that_nothing_moves_fails_and_is_not_run():
    still = recipe("still", (theta, p), langevin, {p: A}, scheme="B A O A B")
    assert verdict(still, "the noise reaches")[0] == "failed" and "nothing moves theta: add" in str(still.check())
    assert still.check(freeze=["theta"])["reached"].verdict == "proved"
    with pytest.raises(RecipeError, match="the noise reaches every block. nothing moves theta"):
        sample(still, lambda x: (x**2).sum(), init=zeros(2), steps=2, step_size=0.1, scheme="Euler", progress=False)


@pytest.mark.parametrize(
    "H",
    [
        total(p**2 / mass - p * theta + theta**4),
        total(p**2 * (1 + theta**2) + p * sin(theta)) / 2,
        total((xi - theta) ** 2) / 2 + A * xi**2,
        total((xi - theta) ** 2 + p**2 * m - 2 * p * theta) / 2 + xi,
        total(p**2 + p * xi + theta**2) + n * (1 + mu) * xi**2,
    ],
    ids=str,
)
def test_eliminating_gaussian_blocks_is_laplace_over_explicit_sites(H):
    """-T log of the integral of exp(-H/T) is H at its minimum + T log(det H'')/2, up to a constant: H is quadratic."""
    explicit, auxiliary = at_site(H, None, 2), [a for b in (p, xi) if H.has(b) for a in coordinates(b, 2)]
    curvature = hessian(explicit, auxiliary)
    slope = Matrix([explicit.diff(a) for a in auxiliary]).xreplace({a: S.Zero for a in auxiliary})
    minimum = dict(zip(auxiliary, -curvature.LUsolve(slope)))
    laplace = explicit.xreplace(minimum) + temperature * log(curvature.det()) / 2
    result, rest = eliminate_gaussians(H, tuple(b for b in (p, xi) if H.has(b)))
    assert is_zero(at_site(rest, None, 2) - laplace)


quartic_mass = 1 + theta**2


@pytest.mark.parametrize(
    "H, expected",
    [
        (U + total(p**2 / G) / 2, "failed"),
        (U + total(p**2 / G + log(G)) / 2, "proved"),
        (U + total(p**2 / quartic_mass) / 2, "failed"),
        (U + total(p**2 / quartic_mass + log(quartic_mass)) / 2, "proved"),
        (U + total(p**4 * quartic_mass), "failed"),
        (U + total(p**4 * quartic_mass - log(quartic_mass) / 4), "checked"),
        (A * U + total(p**2) / 2, "failed"),
        (U + total((p - theta) ** 2) / 2, "proved"),
        (U + total(p**2 / 2 - p * theta), "failed"),
        slow((U + total((p - theta) ** 4), "checked")),
        (U + total(p**4) + total(p) * total(theta) - total(p * theta), "open"),
        (U + total(p**4 * quartic_mass) / (1 + total(theta**2)), "open"),
    ],
    ids=str,
)
def test_the_marginal_of_the_target_is_exp_minus_U_or_the_certificate_says_not(H, expected):
    assert verdict(recipe("marginal", (theta, p), H, {p: A}, TURNS), "the marginal of theta")[0] == expected


@pytest.mark.parametrize(
    "H, expected",
    [
        (U + total((xi - theta) ** 2) / 2, "failed"),
        (U + total((xi - theta) ** 2) / 2 - total(theta**2) / 2 + total(theta) ** 2 / (2 * n), "proved"),
        (U + total((xi - theta) ** 4), "open"),
    ],
    ids=str,
)
def test_one_site_does_not_decide_the_marginal_beside_a_shared_scalar(H, expected):
    """exp(-(xi - theta)^2/2) integrates to a constant over xi; a product of several such factors does not."""
    assert verdict(recipe("shared", (theta, xi), H, {theta: 1, xi: 1}), "the marginal of theta")[0] == expected


@pytest.mark.parametrize(
    "K, expected",
    [
        (log(1 + p**2), "checked"),
        (log(1 + p**2) / 2, "failed"),
        (cos(p), "failed"),
        (p**2 - p**4, "failed"),
        ((A - B) * p**2, "failed"),
        ((A + B) * p**2, "proved"),
    ],
    ids=str,
)
def test_an_energy_that_is_not_normalisable_fails(K, expected):
    R = recipe("tails", (theta, p), U + total(K), {p: A}, TURNS)
    assert verdict(R, "exp(-H) is normalisable")[0] == expected
    assert R.check().ok == (expected != "failed")


@pytest.mark.parametrize(
    "D, expected",
    [
        ({p: A}, "proved"),
        ({p: (theta - p) ** 2 + 1}, "proved"),
        ({theta: 1 + p**2, p: 1 + theta**2, (theta, p): p * theta}, "proved"),
        ({p: 1 + sin(theta) / 2}, "checked"),
    ],
    ids=str,
)
def test_the_certificate_says_how_D_is_known_to_be_positive(D, expected):
    assert verdict(recipe("diffusion", (theta, p), langevin, D, TURNS), "D is positive")[0] == expected


def test_an_eigenvalue_that_is_seldom_negative_is_found_by_the_certificate():
    R = recipe("dip", (theta, p), langevin, {p: theta**2 - S(1) / 1000}, TURNS)
    assert verdict(R, "D is positive")[0] == "failed" and not R.check().ok


def test_a_weaker_claim_is_open():
    R = recipe("psgld", (theta,), U, {theta: A}, claim="given frozen V")
    assert verdict(R, "claim") == ("open", "given frozen V")


# ---- print, bind


TEXTS = [
    ("sgnht", "state   theta (vector), p (vector), xi (scalar)"),
    ("sgnht", "Q[p, xi]        p/(mu*n)"),
    ("sgnht", "Gamma[xi]       -1/mu"),
    ("sgnht", "dtheta  = p/m dt"),
    ("sgnht", "sqrt(2*A) dW_p"),
    ("sgnht", "A       positive, default 1.3"),
    ("sgnht", "claim   exact"),
    ("masses", "mass    positive per theta, default 1.9"),
    ("banana", "target  x, y"),
    ("banana", "sqrt(2D)[x, x] dW_x + sqrt(2D)[x, y] dW_y"),
]
LATEX = [
    ("sgnht", r"\Gamma_{\xi} &= - \frac{1}{\mu}"),
    ("sgnht", r"Q_{\theta p} &= -1"),
    ("sgnht", r"D_{p p} &= A"),
    ("sgnht", r"\textstyle\sum p^{2}"),
    ("sgnht", r"\,dW_{p}"),
    ("banana", r"\frac{\partial U}{\partial x}"),
    ("banana", r"(\sqrt{2D})_{x x}\,dW_{x} + (\sqrt{2D})_{x y}\,dW_{y}"),
]


@pytest.mark.parametrize("name, line", TEXTS)
def test_text_shows(name, line):
    assert line in str(RECIPES[name])


@pytest.mark.parametrize("name, line", LATEX)
def test_latex_shows(name, line):
    assert line in RECIPES[name].latex()


@every
def test_latex_has_one_line_for_every_formula(R):
    lines = R.latex().splitlines()
    assert (lines[0], lines[-1]) == (r"\begin{aligned}", r"\end{aligned}")
    formulas = 1 + len(R.state) + sum(e != 0 for e in [*R.D.upper_triangular(), *R.Q.upper_triangular(), *R.gamma])
    assert len(lines) == formulas + 2 and all(line.count("&=") == 1 for line in lines[1:-1])
    assert R._repr_latex_() == f"$${R.latex()}$$"


given_functions = {
    "G": lambda t: 1 / (1 + t**2),
    "g1": lambda t: 2 + t**2,
    "g2": lambda t: t**2 / 3,
    "alpha": lambda t: t**2 / 2,
}


@every
def test_binding_commutes_with_deriving(R):
    names = [f for f in given_functions if any(f + "(" in str(e) for e in (R.H, *R.D, *R.Q))]

    def energy(*blocks):
        return total(sum(b**4 for b in blocks)) if theta in blocks else sum(b**4 for b in blocks)

    bound = R.bind(**{f: given_functions[f] for f in names}, U=energy)
    formula = energy(*R.targets)
    values = {grad(R.potential, b): formula.diff(b) for b in R.targets}
    values |= {f: given_functions[f.func.__name__](*f.args) for e in R.drift for f in e.atoms(AppliedUndef)}
    values |= {g.diff(b): v.diff(b) for g, v in values.items() for b in R.targets if g.diff(b) != 0}
    assert all(vanishes(d) for d in bound.drift - R.drift.xreplace(values).doit())
    assert bound.potential is None and vanishes(bound.residual())


def test_a_symbolic_energy_is_bound_by_the_order_of_its_coordinates():
    a, b = symbols("a b", real=True)
    assert RECIPES["banana"].bind(U=Energy((a, b), U=a**2 + 3 * b**4)).H == x**2 + 3 * y**4
    assert RECIPES["sghmc"].bind(U=Energy(v, U=total(v**4))).H == langevin - U + total(theta**4)


@pytest.mark.parametrize(
    "functions, words",
    [
        ({"H": lambda t: t}, "no opaque function 'H'.*G, U"),
        ({"g": 1}, "no opaque function 'g'"),
        ({"G": "1/(1 + theta**2)"}, "bind.G=.*Text is never evaluated"),
        ({"G": lambda: 1}, "bind.G=.*function of .theta"),
        ({"U": theta**2}, "one value per site.*Wrap it: total"),
        ({"U": Energy(symbols("a b"), U=1)}, "2 coordinates for 1 target"),
        ({"G": lambda t: v}, "block 'v' is used but is not in the state"),
    ],
)
def test_a_wrong_binding_is_refused(functions, words):
    with pytest.raises(RecipeError, match=words):
        RECIPES["sgrhmc"].bind(**functions)
