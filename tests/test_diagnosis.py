"""The diagnosis of a drift: every stock recipe's own is right, every named mistake is found, said where, and mended.

The numbers are at T = 1.25 where T matters, and at parameters away from 1.
"""

import json
from functools import cache

import pytest
from covering import EVERY_MECHANISM, covering, slow
from sympy import ImmutableMatrix, S, diff
from wrong_drifts import WRONG, A, U, gaussian, m, p, slope, theta, v, xi

from recipe import Energy, RecipeError, derive, grad, positive, recover, total
from recipe.algebra import vanishes
from recipe.symbols import temperature as T
from samplers.testing.cases import CASES
from samplers.testing.diagnosis import diagnose
from samplers.testing.generator import generator_at_one_site

HOT = 1.25


@cache
def own(name):
    R = CASES[name].recipe
    return R, diagnose(R.state, R.H, R.tempered_drift, R.D)


# ---- right drifts


@pytest.mark.parametrize("name", covering(CASES, [*EVERY_MECHANISM, "sgrld"], but=["sgrhmc", "santa", "sgnht"]))
def test_the_own_drift_of_a_stock_recipe_is_right(name):
    R, result = own(name)
    assert result.ok and result.residual == 0 and not result.missing
    assert result.Q is not None and all(map(vanishes, result.Q - R.Q))
    assert result.results and max(r.value for r in result.results) < 1e-12 and all(r.ok for r in result.results)
    assert max(map(abs, result.heating.values())) < 2e-4  # log theta near 0 is cut off
    assert str(result).startswith("exp(-H) is invariant\n  proved   Q")


@pytest.mark.parametrize("name", ["sgrld", "sghmc", slow("sgnht"), slow("atmc")])
def test_the_drift_at_another_temperature_is_right_and_Q_is_that_of_temperature_1(name):
    R = CASES[name].recipe
    result = diagnose(R.state, R.H, R.tempered_drift, R.D, temperature=HOT)
    assert result.ok and all(map(vanishes, result.Q - R.Q)) and max(r.value for r in result.results) < 1e-12


def test_H_D_and_the_drift_may_read_the_temperature():
    for lost, ok in ((0, True), (theta, False)):
        result = diagnose(
            (theta,), total(T * theta**2) / 2, {theta: -(T**2) * theta + lost}, {theta: T}, temperature=HOT
        )
        assert result.ok == ok and result.missing == ({} if ok else {theta: -theta})


def test_the_results_are_one_for_each_monomial_of_degree_4_and_less():
    _, result = own("sgnht")
    assert len({r.subject for r in result.results}) == 34
    _, gibbs = own("sgld-sa-gibbs")  # the binary block is not in them
    assert {r.subject for r in gibbs.results} == {"theta", "theta**2", "theta**3", "theta**4"}


# ---- mistakes in the stock recipes


def mutants(R):
    """Drift and D of a recipe with one mistake each, at the temperature T, with what the drift lacks."""
    f, G, friction = R.tempered_drift, T * R.gamma, derive.times_gradient(R.D, R.H, R.state)
    noisy = not R.D.is_zero_matrix
    if noisy:
        yield "friction dropped", f + friction, R.D, -friction
        yield "friction doubled", f - friction, R.D, friction
        yield "noise doubled", f, 2 * R.D, T * derive.row_divergence(R.D, R.state) - friction
        yield "noise halved", f, R.D / 2, friction / 2 - T * derive.row_divergence(R.D, R.state) / 2
    if any(G):
        yield "Gamma of the wrong sign", f - 2 * G, R.D, 2 * G
        yield "Gamma dropped", f - G, R.D, G
        yield "Gamma halved", f - G / 2, R.D, G / 2
        yield "Gamma without T", f - G + R.gamma, R.D, G - R.gamma
    for i, a in enumerate(R.state):
        for j, b in enumerate(R.state):
            if R.Q[i, j] != 0:
                Q = R.Q.as_mutable()
                Q[i, j] = 0
                rest = derive.times_gradient(ImmutableMatrix(Q - R.Q), R.H, R.state)
                spread = T * derive.row_divergence(ImmutableMatrix(Q - R.Q), R.state)
                yield f"Q[{a}, {b}] flipped", f + 2 * (spread - rest), R.D, 2 * (rest - spread)


def defects(name, drift, D):
    case = CASES[name]
    R = case.recipe
    values = case.parameters | {a.name: 0.45 if a.domain.name == "fraction" else 0.7 for a in R.adapted}
    values |= {"num_data": 3, "h": 0.1}
    return generator_at_one_site(drift, D, R.H, R.state, values=values, temperature=HOT).defects()


SMALL = {"psgld-gamma": 5e-3}  # its Gamma is small at every alpha near 1


@pytest.mark.parametrize(
    "name",
    (
        "psgld-gamma",
        "sgrld",
        slow("sgrld-dense"),
        "sgrld-simplex",
        slow("sgrld-cir"),
        "sghmc",
        slow("sgrhmc"),
        slow("sghmc-relativistic"),
        slow("msgnht"),
        slow("sgld-sa-marginal"),
        "sghmc-sa-gibbs",
    ),
)
def test_the_generator_tells_right_from_wrong(name):
    R = CASES[name].recipe
    assert max(map(abs, defects(name, R.tempered_drift, R.D).values())) < 1e-12
    for mistake, drift, D, _ in mutants(R):
        assert max(map(abs, defects(name, drift, D).values())) > SMALL.get(name, 2e-2), mistake


FRICTION, GAMMA = ("friction dropped", "noise doubled"), ("Gamma dropped", "Gamma halved", "Gamma without T")
MENDED = {
    "sgld": FRICTION,
    "sgrld": GAMMA[:1],
    "sgrld-dense": GAMMA[:2],
    "sgrld-cir": FRICTION + GAMMA[2:],
    "sghmc": FRICTION + ("friction doubled", "noise halved"),
    "sgrhmc": GAMMA[:2],
    "sghmc-relativistic": FRICTION[1:],
    "msgnht": FRICTION[:1] + GAMMA[1:2] + ("Gamma of the wrong sign",),
}


@pytest.mark.parametrize("name", covering(MENDED, ["sgld", "sgrld-cir"]))
def test_what_a_mutant_of_a_stock_recipe_lacks_is_named_exactly(name):
    R = CASES[name].recipe
    chosen = [mutant for mutant in mutants(R) if mutant[0] in MENDED[name]]
    assert len(chosen) == len(MENDED[name])
    for mistake, drift, D, lacking in chosen:
        result = diagnose(R.state, R.H, drift, D, temperature=HOT)
        rows = zip(R.state, lacking.xreplace({T: S(5) / 4}))
        assert not result.ok and result.Q is None and result.worst[1] and not all(r.ok for r in result.results), mistake
        assert all(vanishes(result.missing.get(b, S.Zero) - e) for b, e in rows), (mistake, result.missing)


# ---- mistakes in other people's drifts


@cache
def diagnosed(name):
    H, drift, D, *_ = WRONG[name]
    return diagnose(tuple(drift), H, drift, D)


SLOW = {  # mistakes in thermostats and in friction; cheaper ones of each are fast
    "thermostat p^2 - 1",
    "Gaussian thermostat",
    "friction without the thermostat",
    "noise without the mass",
    "thermostat p^2/m - 2",
    "naive relativistic SGHMC",
}


@pytest.mark.parametrize("name", covering(WRONG, but=SLOW))
def test_a_named_mistake_is_found_where_it_is_and_mended(name):
    H, drift, D, missing, words = WRONG[name]
    result = diagnosed(name)
    assert not result.ok and result.Q is None and vanishes(result.residual) is None
    assert set(result.missing) == set(missing) and all(vanishes(result.missing[b] - e) for b, e in missing.items())
    assert words in str(result) and f"in the drift of {next(iter(missing))}" in str(result)
    assert recover(tuple(drift), H, {b: e + result.missing.get(b, 0) for b, e in drift.items()}, D).ok
    if name != "shared Gamma without 1/n":
        failed = [r for r in result.results if not r.ok]
        assert failed and max(r.value for r in failed) == abs(result.worst[1]) > 2e-2
        assert all(r.equation == f"E[L {r.subject}] = 0" and r.equation in str(r) for r in failed)


@pytest.mark.parametrize(
    "name, block, rate",
    [
        ("naive SGHMC", p, A / m),
        slow(("noise doubled", p, A / m)),
        ("friction doubled", p, -A / m),
        ("Gamma dropped", theta, -2),
    ],
)
def test_the_block_that_heats_or_cools_is_named_with_its_rate(name, block, rate):
    """d/dt E p^2/(2m) = D/m; without Gamma, E[-theta U'] 2 = -2."""
    H, drift, D, *_ = WRONG[name]
    values = {"A": 0.7, "m": 1.6} if name != "Gamma dropped" else {}
    result = diagnose(tuple(drift), H, drift, D, parameters=values)
    exact = float(S(rate).xreplace({A: S(0.7), m: S(1.6)}))
    assert result.heating[block,] == pytest.approx(exact, abs=1e-9)
    assert all(abs(x) < 1e-9 for blocks, x in result.heating.items() if blocks != (block,))
    assert f"{'heats' if exact > 0 else 'cools'}     {block}:" in str(result)


def test_a_parameter_moves_the_numbers_and_so_does_the_energy():
    H, drift, D, *_ = WRONG["naive SGHMC"]

    def heat(**options):
        return diagnose(tuple(drift), H, drift, D, **options).heating[p,]

    assert heat(parameters={"A": 2.0, "m": 0.5}) == pytest.approx(4)
    scores = [
        generator_at_one_site([-2 * slope], ImmutableMatrix([[1]]), U, (theta,), energy=E).defects()[theta**2]
        for E in (None, Energy(theta, U=total(theta**4)))
    ]
    assert scores[0] != pytest.approx(scores[1], abs=1e-3)


def test_a_Q_outside_the_ansatz_is_said_to_be_so():
    Q = -(theta**4) - theta
    drift = {theta: -Q * p / m, p: Q * slope - diff(Q, theta) - A * p / m}
    result = diagnose((theta, p), gaussian, drift, {p: A})
    assert result.ok and result.Q is None and "not in the ansatz" in str(result)


def test_numbers_are_left_out_where_the_law_has_none():
    result = diagnose((theta,), U, {theta: -slope}, {theta: 2}, energy=theta)
    assert not result.ok and not result.results and result.worst is None and "no numbers: density" in str(result)
    assert result.missing == {theta: -slope}


def test_the_diagnosis_is_plain_data():
    for name in ("naive SGHMC", "thermostat p^2 - 1"):
        result = diagnosed(name)
        data = json.loads(json.dumps(result.to_dict()))
        assert data["ok"] is False and data["Q"] is None
        assert data["missing"] == {str(b): str(e) for b, e in result.missing.items()}
        assert data["worst"][0] == str(result.worst[0]) and len(data["results"]) == len(result.results)
    assert json.loads(json.dumps(own("sghmc")[1].to_dict()))["Q"] == [["0", "-1"], ["1", "0"]]


# ---- wrong input

good = {"state": (theta, p), "H": gaussian, "drift": {theta: p / m, p: -slope - A * p / m}, "D": {p: A}}


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"drift": {v: 1}}, "diagnose, drift: v is not a block"),
        ({"drift": [p / m]}, "needs 2 rows"),
        ({"drift": "p/m"}, "needs 2 rows"),
        ({"drift": ["p/m", 0]}, "diagnose, drift.theta.*Text is never evaluated"),
        ({"drift": {theta: v}}, "diagnose, drift.theta.: 'v' is neither"),
        ({"state": (theta, p, xi), "H": gaussian + xi**2, "drift": {xi: p}}, "drift.xi.*one value per site.*total"),
        ({"H": gaussian + p}, "diagnose, H: p has one value per site"),
        ({"D": {p: -1}}, "D: it is not positive semidefinite"),
        ({"parameters": {"mass": 2}}, "there is no 'mass'. Known: A, m"),
        ({"parameters": {"m": "2"}}, "Text is never evaluated"),
        ({"temperature": 0}, "Give a positive number"),
        ({"state": theta}, "diagnose, H|diagnose, D"),
        ({"state": "theta"}, "diagnose, state: a state is made of blocks"),
        ({"energy": "theta**4"}, "diagnose, energy.*Text is never evaluated"),
        ({"energy": abs}, "diagnose, energy"),
        ({"temperature": "hot"}, "Text is never evaluated"),
    ],
    ids=str,
)
def test_wrong_input_is_refused(changes, words):
    with pytest.raises(RecipeError, match=words):
        diagnose(**good | changes)


def test_a_row_that_was_forgotten_is_missing():
    m, g = positive("m"), positive("g")
    result = diagnose((theta, p), U + total(p**2 / m) / 2, {theta: p / m}, {p: g * m})
    assert not result.ok and set(result.missing) == {p} and (result.missing[p] + grad(U) + g * p).expand() == 0


def test_a_parameter_outside_of_its_range_is_refused():
    g = positive("g")
    with pytest.raises(RecipeError, match="g cannot be -1"):
        diagnose((theta, p), U + total(p**2) / 2, {theta: p, p: -grad(U) - g * p}, {p: g}, parameters={"g": -1.0})
