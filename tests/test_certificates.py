"""A certificate means what it says: no wrong recipe is called exact, and no right one is refused."""

import re

import pytest
import torch
from certificates import BY_TOPIC, RIGHT, WRONG
from covering import covering, slow
from sympy import Matrix, cos, exp, log, sin, symbols, tan, tanh

from recipe import (
    Energy,
    Recipe,
    RecipeError,
    adapted,
    nonnegative,
    positive,
    potential,
    scalar,
    temperature,
    total,
    vector,
)
from recipe.algebra import vanishes
from recipe.certificate import Finding, tails
from recipe.domains import NAMED
from samplers import SGHMC, SGNHT, UnderdampedLangevin, sample

theta, p = vector("theta"), vector("p")
U = potential(theta)


def finding(recipe: Recipe, topic: str, **at) -> Finding:
    """The answer to one question."""
    return recipe.check(**at)[topic]


# Every sixth recipe of a question is asked at every change, the others are slow.
FEW_WRONG = [name for cases in BY_TOPIC.values() for name in [*cases][::6]]
FEW_RIGHT = [*RIGHT][::6]
SLOW = {  # cheaper cases of the same question are fast
    "a chain of five thermostats",
    "reach: the metric of a triangle",
    "reach: a thermostat of equal springs keeps the plane of motion",
    "explosion: Cauchy along a diagonal, and noise that grows there",
}


@pytest.mark.parametrize("name", covering(WRONG, FEW_WRONG, but=SLOW & {*FEW_WRONG}))
def test_a_wrong_recipe_is_not_called_exact_and_the_right_question_catches_it(name):
    topic, declare = WRONG[name]
    if topic == "declaration":
        with pytest.raises(RecipeError):
            declare()
        return
    certificate = declare().check()
    assert certificate[topic].verdict in ("failed", "warning", "open"), str(certificate)
    assert not certificate.exact
    assert certificate["claim"].verdict in ("failed", "warning", "open")


@pytest.mark.parametrize("name", covering(RIGHT, FEW_RIGHT, but=SLOW & {*FEW_RIGHT}))
def test_a_right_recipe_is_proved_or_checked_in_every_question(name):
    """Those of the catalogue are asked in test_stock."""
    certificate = RIGHT[name]().check()
    assert certificate.exact, str(certificate)


def test_a_mass_of_theta_is_right_at_one_temperature_unless_its_log_is_multiplied_by_it():
    mass = 1 + theta**2
    log_mass = total(log(mass)) / 2
    cases = ((log_mass, "failed", "exact at temperature 1"), (temperature * log_mass, "proved", "exact"))
    for energy, elsewhere, claim in cases:
        H = U + total(p**2 / mass) / 2 + energy
        recipe = Recipe(name="mass", state=(theta, p), H=H, D={p: 1}, Q={(theta, p): -1})
        assert finding(recipe, "marginal").verdict == "proved"
        assert finding(recipe, "marginal", temperature=3.0).verdict == elsewhere
        assert finding(recipe, "claim").answer == claim


def test_a_run_at_a_temperature_at_which_the_marginal_is_another_one_is_refused():
    mass = 1 + theta**2
    H = U + total(p**2 / mass + log(mass)) / 2
    recipe = Recipe(name="mass", state=(theta, p), H=H, D={p: 1}, Q={(theta, p): -1}, scheme="Euler")
    run = dict(init=torch.zeros(2), steps=2, step_size=0.01, progress=False)
    samples = sample(recipe, lambda theta: (theta**2).sum() / 2, **run)
    assert samples.draws == 2
    with pytest.raises(RecipeError, match="the marginal of theta is exp.-U.."):
        sample(recipe, lambda theta: (theta**2).sum() / 2, temperature=3.0, **run)


def test_a_bound_energy_does_not_erase_the_question_of_the_marginal():
    H = U + total(p**2 / (1 + theta**2)) / 2
    recipe = Recipe(name="mass", state=(theta, p), H=H, D={p: 1}, Q={(theta, p): -1})
    bound = recipe.bind(U=Energy(theta, U=total(theta**2) / 2))
    assert finding(recipe, "marginal").verdict == finding(bound, "marginal").verdict == "failed"


@pytest.mark.parametrize("C, reached", [(0.0, "warning"), (0.3, "checked")])
def test_the_noise_reaches_at_the_values_in_use(C, reached):
    friction = nonnegative("C", default=0.0)
    H = U + total(p**2) / 2
    recipe = Recipe(name="friction", state=(theta, p), H=H, D={p: friction}, Q={(theta, p): -1})
    assert finding(recipe, "reached", C=C).verdict == reached
    assert finding(recipe, "claim", C=C).answer == ("exact" if C else "invariant; not ergodic")


@pytest.mark.parametrize(
    "weight, sites, verdict",
    [
        (2, 3, "checked"),
        (2, 4, "failed"),
        slow((2, 10, "failed")),
        slow((7, 10, "checked")),
        slow((9, 30, "failed")),
        slow((20, 30, "checked")),
    ],
)
def test_a_tail_of_the_sum_of_all_sites_is_weighed_at_the_number_of_sites(weight, sites, verdict):
    """The mass of a shell, r^(sites - 1) r^(-2 weight), is finite if 2 weight is greater than the number of sites."""
    heavy = Recipe(name="heavy", state=(theta,), H=weight * log(1 + total(theta**2)), D={theta: 1}, scheme="Euler")
    assert finding(heavy, "normalisable", sites=sites).verdict == verdict


@pytest.mark.parametrize("sites, verdict", [(2, "checked"), (5, "failed"), (6, "checked")])
def test_a_sum_of_sites_within_a_sum_is_weighed_at_the_number_of_sites(sites, verdict):
    """Deviations from a fifth of the sum leave the mean of exactly five sites free."""
    shifted = total((theta - total(theta) / 5) ** 2) / 2
    recipe = Recipe(name="deviations", state=(theta,), H=shifted, D={theta: 1}, scheme="Euler")
    assert finding(recipe, "normalisable", sites=sites).verdict == verdict


def test_a_run_of_more_sites_than_its_law_has_tails_for_is_refused():
    energy = Energy(theta, U=2 * log(1 + total(theta**2)))
    run = dict(steps=2, step_size=0.01, progress=False)
    assert sample("sgld", energy, init=torch.zeros(3), **run).info["law"] == "exact"
    with pytest.raises(RecipeError, match="no finite integral"):
        sample("sgld", energy, init=torch.zeros(10), **run)


def test_tails_are_looked_at_at_the_temperature_in_use():
    heavy = Recipe(name="heavy", state=(theta,), H=total(log(1 + theta**2)), D={theta: 1}, scheme="Euler")
    assert finding(heavy, "normalisable").verdict == "checked"
    assert finding(heavy, "normalisable", temperature=3.0).verdict == "failed"


@pytest.mark.parametrize("recipe, still", [(SGNHT, "xi"), (SGNHT, "p"), (SGHMC, "p"), (SGHMC, "theta")], ids=str)
def test_what_is_left_beside_blocks_that_are_held_still_is_a_recipe_of_its_own(recipe, still):
    certificate = recipe.check(freeze=(still,))
    assert certificate["stationary"].verdict == "failed" and not certificate.ok


def test_a_thermostat_on_its_own_may_be_held_still():
    xi = scalar("xi")
    H = U + total(p**2) / 2 + xi**2 / 2
    recipe = Recipe(name="alone", state=(theta, p, xi), H=H, D={p: 1, xi: 1}, Q={(theta, p): -1})
    assert recipe.check(freeze=("xi",)).exact


def test_a_claim_beside_adaptations_is_given_what_is_frozen():
    V = adapted("V", like=theta, start=1, domain="positive")
    D = {theta: 1 / (1 + V)}
    recipe = Recipe(
        name="claim", state=(theta,), H=U, D=D, adapt={V: (V + theta**2) / 2}, claim="exact", scheme="Euler"
    )
    assert finding(recipe, "claim").answer == "given frozen V"
    H = U + total(p**2 * (1 + V)) / 2
    mass = Recipe(name="mass", state=(theta, p), H=H, D={p: 1}, Q={(theta, p): -1}, adapt=recipe.adapt)
    assert finding(mass, "stationary", freeze=("theta",)).verdict == "failed"


def test_a_constant_diffusion_of_many_blocks_is_checked_by_its_eigenvalues():
    blocks = tuple(scalar(f"x{k}") for k in range(14))
    D = Matrix(14, 14, lambda i, j: 2 if i == j else (1 if abs(i - j) == 1 else 0))
    recipe = Recipe(name="wide", state=blocks, target=blocks, H=potential(*blocks), D=D, scheme="Euler")
    assert finding(recipe, "definite").verdict == "checked"


def test_sums_over_sites_are_no_independent_numbers():
    n = total(1)
    spread = total(theta**2) / n - (total(theta) / n) ** 2
    recipe = Recipe(name="mean-field", state=(theta,), H=U, D={theta: spread}, scheme="Euler")
    assert finding(recipe, "definite").verdict == "checked" and recipe.check().exact


def test_paths_out_of_the_range_of_floats_leave_open_whether_noise_reaches():
    x, y = scalar("x"), scalar("y")
    D = {x: (1 + x**2 + y**2 + x * y**3) ** 8 + 1, y: (1 + x * y + x**2) ** 12}
    recipe = Recipe(name="steep", state=(x, y), target=(x, y), H=potential(x, y), D=D, scheme="Euler")
    assert finding(recipe, "reached").verdict == "open"


def test_a_formula_too_long_for_a_proof_is_checked_at_random_states():
    x, y = scalar("x"), scalar("y")
    power = (1 + x + y + total(1) * x * y) ** 90
    assert vanishes(power * (1 + x) - power - power * x) == "numeric"
    assert vanishes(power * (1 + x) - power - power * y) is None


@pytest.mark.parametrize(
    "at, message",
    [
        ({"gamma": -1.0}, "gamma is a number > 0, got -1.0"),
        ({"gamma": "a"}, "gamma is a number > 0, got 'a'"),
        ({"temperature": 0.0}, "temperature is a number > 0, got 0.0"),
        ({"temperature": "hot"}, "temperature is a number > 0, got 'hot'"),
        ({"sites": 2.5}, "sites is an integer >= 1, got 2.5"),
        ({"gama": 1.0}, "'gama' is not a parameter. Did you mean 'gamma'?"),
        ({"freeze": ["q"]}, "freeze names 'q', which is no block"),
    ],
)
def test_arguments_that_no_run_could_have_are_refused(at, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        UnderdampedLangevin.check(**at)


def test_a_certificate_names_what_is_open():
    a = positive("a", default=1.0)
    H = U + total(p**4) + a * total(p) * total(theta) - a * total(p * theta)
    recipe = Recipe(name="open", state=(theta, p), H=H, D={p: 1}, Q={(theta, p): -1})
    certificate = recipe.check()
    assert certificate["marginal"].verdict == "open"
    assert certificate["claim"] == Finding("claim", "invariant; the marginal open", "open", "claim")


q, w = symbols("q w", real=True)
LINE = NAMED["real"]
BY_FORM = {
    "bounded terms": q**2 + w**2 + 5 * sin(q - w) - 4 * cos(q**3) * tanh(w),
    "a log of a power": q**2 / 100 + w**2 - 9 * log(1 + abs(q * w) + (q - w) ** 4),
    "a log of what decays": q**2 + w**2 + q * w - log(2 + exp(-(q**2) * w**2) / (1 + q**2)),
    "higher powers": q**2 + w**2 + (q * w) ** 4 + w**6,
}
BY_SEARCH = {
    "a log of what grows faster": (q**2 + w**2 - log(1 + exp(2 * q**2 + w)), False),
    "a square of one direction": ((q - w) ** 2 + sin(q), False),
    "a negative square": (q**2 + w**2 - 3 * q * w + cos(q), False),
    "a cubic": (q**2 + w**2 + q**3 * w, False),
    "a log of a tangent": (q**2 + w**2 + sin(q - w) - log(1 + abs(tan(q))), True),
}


@pytest.mark.parametrize("what", BY_FORM)
def test_a_square_beside_slow_terms_is_integrable_by_its_form_as_by_the_search(what, monkeypatch):
    domains = {q: LINE, w: LINE}
    assert tails._Valley(BY_FORM[what], domains, 1.0).growth().is_integrable
    monkeypatch.delattr(tails, "_Valley")
    assert tails.growth(BY_FORM[what], domains).is_integrable


@pytest.mark.parametrize("what", BY_SEARCH)
def test_other_energies_are_searched(what, monkeypatch):
    searched = []
    own = tails._Valley
    monkeypatch.setattr(tails, "_Valley", lambda *args: searched.append(args) or own(*args))
    energy, is_integrable = BY_SEARCH[what]
    assert tails.growth(energy, {q: LINE, w: LINE}).is_integrable == is_integrable and searched
