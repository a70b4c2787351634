"""The layers of checks: every stock sampler passes them with every word, and what is wrong is named."""

import re
import warnings
from dataclasses import replace

import pytest
from covering import covering
from mutation import OF_FORMULAS, with_derived, with_mistake
from sympy import ImmutableMatrix, Symbol, exp, log, symbols

import integrators
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    adapted,
    by_category,
    copies,
    friction,
    function,
    gibbs,
    grad,
    kick,
    laws,
    noise,
    numerical,
    positive,
    potential,
    scalar,
    total,
    vector,
)
from samplers import SGLD, SGNHT, UnderdampedLangevin
from samplers.testing import LAYERS, assert_stationary, check
from samplers.testing.cases import CASES, case_of
from samplers.testing.check_results import LeftOut, Report, Result, timed
from samplers.testing.planted import planted
from samplers.testing.subject import Subject, subject_of

theta, p, r, xi, gamma = vector("theta"), vector("p"), vector("r"), scalar("xi"), positive("gamma", default=1.0)
U, x = potential(theta), Symbol("x", real=True)


# Here all layers look at one sampler; those of the other mechanisms are looked at by one test or another everywhere.
OF_ALL_LAYERS = {"sgld", "sghmc", "hmc-randomised", "sgld-sa-gibbs"}


def words_of_stock_samplers():
    for name, case in CASES.items():
        own, *others = case.all_words
        yield pytest.param(name, own, marks=() if name in OF_ALL_LAYERS else pytest.mark.slow)
        for word in others:
            if (name, word) != ("sgrld-simplex", "Euler"):
                yield pytest.param(name, word, marks=pytest.mark.slow)  # of many, test_invariance_defect asks one step


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("name, word", [*words_of_stock_samplers()])
def test_every_stock_sampler_passes_with_every_word(name, word):
    """The formulas, which know no word, with the first one only."""
    first = word == CASES[name].all_words[0]
    report = check(
        CASES[name].recipe, word, layers=None if first else [layer for layer in LAYERS if layer not in OF_FORMULAS]
    )
    assert report.ok is (None if report.left_out else True), report
    assert {r.layer for r in report.results} >= {"differential"} | ({*OF_FORMULAS} if first else set())


def test_a_word_whose_chains_leave_the_domain_fails():
    """Plain Euler on the positive half line, where the recipe's own word reflects."""
    report = check(CASES["sgrld-simplex"].recipe, "Euler")
    assert {r.layer for r in report.failures} == {"stationary start", "non-Gaussian"}
    assert all("left their domain" in r.statistic for r in report.failures)


@pytest.mark.parametrize("D", covering([exp(theta), 1 / (1 + grad(U) ** 2)], [exp(theta)]))
def test_an_order_that_shows_at_small_steps_only_is_seen(D):
    assert check(Recipe(name="stiff", state=(theta,), H=U, D={theta: D}, scheme="Euler")).ok


@pytest.mark.parametrize("name", covering(["hmc-randomised", "sgld", "vsgd"], ["sgld"]))
def test_a_recipe_that_bears_the_name_of_another_is_itself(name):
    g = positive("g")
    own = Recipe(name=name, state=(theta, p), H=U + total(p**2) / 2, D={p: g}, Q={(theta, p): -1})
    assert {r.layer for r in check(own).results} == set(LAYERS)


def test_a_recipe_of_ones_own_needs_no_more_than_its_declaration():
    """A mass that depends on theta, a numerical piece, an adapted friction: values, laws and words are found."""
    V = adapted("V", like=theta, start=grad(U) ** 2, domain="nonnegative")
    m = positive("m")
    own = Recipe(
        name="own",
        state=(theta, p),
        H=U + total(p**2 / m) / 2,
        D={p: m * (gamma + V)},
        Q={(theta, p): -1},
        adapt={V: V / 2 + grad(U) ** 2 / 2},
    )
    report = check(own, "B A O A B", pieces={"O": numerical(friction(p) + noise(p), "heun")})
    assert report.ok and {r.layer for r in report.results} == set(LAYERS) - {"linear law", "work"}
    assert_stationary(own, Energy(x, U=x**4 / 4 + x), gamma=0.7)


@pytest.mark.filterwarnings("ignore:.*the noise reaches every block")
def test_hamiltonian_dynamics_without_noise_is_invariant_and_has_no_linear_law():
    report = check(Recipe(name="noiseless", state=(theta, p), H=U + total(p**2) / 2, D={}, Q={(theta, p): -1}))
    assert report.ok and ["linear law"] == [name for name in LAYERS if any(name in note for note in report.notes)]


def test_explicit_coordinates_are_checked_on_energies_that_couple_them():
    """A banana of their own, or the caller's."""
    dense, (x1, x2) = CASES["sgrld-dense"].recipe, symbols("x1 x2", real=True)
    assert {r.subject for r in check(dense, layers="generator").results} == {"quartic", "double well", "banana"}
    assert_stationary(dense, Energy((x1, x2), U=x1**2 + x1 * x2 + x2**2))
    with pytest.raises(RecipeError, match="an Energy of one coordinate"):
        check(SGLD, energy=Energy((x1, x2), U=x1**2 + x2**2))


# ---- what is wrong is seen, by the layer that is for it


w, y, s = vector("w"), vector("y"), scalar("s")
fast, slow, (U_w, U_y) = potential(theta, name="fast"), potential(theta, name="slow"), copies(w, y)
SEVERAL = {  # recipes with an energy of their own in place of one U of one vector, and H with a mistake
    "energies by name": (
        replace(UnderdampedLangevin, H=fast + slow + total(p**2) / 2, pieces={"F": kick("fast"), "S": kick("slow")}),
        "S (F A O A F)*2 S",
        fast + slow / 2 + total(p**2) / 2,
    ),
    "copies": (
        Recipe(name="copies", state=(w, y), target=(w, y), H=U_w + U_y + total((w - y) ** 2), D={w: 1, y: 1}),
        "Euler",
        U_w + U_y / 2 + total((w - y) ** 2),
    ),
    "a vector and a scalar": (
        Recipe(name="mixed", state=(w, s), target=(w, s), H=potential(w, s), D={w: 1, s: 1}),
        "Euler",
        potential(w, s) + s**2 / 2,
    ),
}


@pytest.mark.parametrize("name", covering(SEVERAL, ["copies"]))
def test_the_law_of_several_energies_is_kept_and_that_of_a_wrong_energy_is_not(name):
    recipe, word, wrong = SEVERAL[name]
    assert check(recipe, word, layers=["differential", "one-step defect", "stationary start"]).ok
    subject = subject_of(recipe, word)
    (result,), _ = timed(LAYERS["one-step defect"](with_mistake(subject, wrong=replace(recipe, H=wrong))))
    assert not result.ok


def test_an_energy_of_each_potential_is_of_its_name():
    recipe, word, _ = SEVERAL["energies by name"]
    energies = {"fast": Energy(x, U=x**2), "slow": Energy(x, U=x**4 / 4)}
    assert check(recipe, word, energy=energies, layers="one-step defect").ok
    with pytest.raises(RecipeError, match=re.escape("Write {'fast': Energy(x, U=...), 'slow': Energy(x, U=...)}.")):
        check(recipe, word, energy=energies["fast"])


def test_a_proposal_that_knows_the_prior_is_accepted_by_its_work():
    """The Crank-Nicolson step of a Gaussian prior with the gradient of the rest (Cotter et al. 2013, pCNL)."""
    recipe = replace(SGLD, H=U + total(theta**2) / 2, pieces={"X": numerical(theta, "exponential")}, scheme="X")
    assert check(recipe, layers=["differential", "one-step defect", "work"]).ok


def failing(mistake, word="B A O A B", recipe=UnderdampedLangevin, **more):
    """The layers that fail for a step whose text is changed."""
    one = with_mistake(Subject(case_of(recipe), word, **more), alter=lambda step: planted(step, mistake))
    return {name for name, layer in LAYERS.items() if any(not r.ok for r in layer(one))}


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(("exp(-h*gamma)", "exp(-h*gamma/2)"), marks=pytest.mark.slow), ("2*temperature", "temperature")]
    + [pytest.param(("h/2*g", "h*g"), marks=pytest.mark.slow)],
)
def test_a_mistake_in_the_text_is_seen_by_every_layer_that_runs_it(mistake):
    assert failing(mistake) == set(LAYERS) - {"symbolic", "generator", "work"}


def test_another_sampler_of_the_same_law_is_seen_by_the_layer_that_knows_the_sde():
    """Twice the friction, with its noise."""
    assert failing(("h*gamma", "h*2*gamma")) == {"differential"}


def test_a_shared_noise_is_seen_at_the_start():
    shared = ('noise["p"]', 'noise["p"][:1].expand_as(noise["p"])')
    assert failing(shared) >= {"differential", "stationary start", "non-Gaussian"}


def test_chains_that_stand_still_are_seen():
    assert "stationary start" in failing(('spread_theta*noise["theta"] - h*g', "0*g"), "Euler", SGLD)


def test_a_wrong_sde_is_seen_by_the_formulas_and_by_the_law():
    """A thermostat at p^2 - 2 T."""
    mistake = ImmutableMatrix([0, 0, 1])
    formulas = {name: getattr(SGNHT, name) - mistake for name in ("drift", "tempered_drift")}
    one = with_mistake(Subject(case_of(SGNHT)), wrong=with_derived(SGNHT, **formulas))
    assert not all(r.ok for r in LAYERS["symbolic"](one))
    assert not all(r.ok for r in LAYERS["generator"](one))
    assert not all(r.ok for r in LAYERS["one-step defect"](one))
    assert all(r.ok for r in LAYERS["differential"](one))  # the text is what the wrong formulas say


# ---- what a user sees


def test_assert_stationary_names_the_layer_the_statistic_and_the_equation():
    unproved = Recipe(
        name="unproved", state=(theta, p), H=U + total(p**2 * (1 + theta**2)) / 2, D={p: gamma}, Q={(theta, p): -1}
    )
    with pytest.raises(AssertionError) as raised:
        assert_stationary(unproved)
    assert "checks of unproved failed" in str(raised.value) and "the marginal of theta" in str(raised.value)


def test_an_opaque_recipe_is_checked_by_its_formulas():
    with pytest.warns(LeftOut, match="opaque: left out .* a function is opaque"):
        report = check(Recipe(name="opaque", state=(theta,), H=U, D={theta: function("G", theta, sign="positive")}))
    assert report.ok is None and {r.layer for r in report.results} == {"symbolic"}
    assert report.notes[0].endswith("bind()") and all(name in report.notes[0] for name in LAYERS if name != "symbolic")


def test_a_step_stands_for_its_recipe_word_and_pieces():
    pieces = {"O": numerical(friction(p) + noise(p), "heun")}
    step = integrators.compile(UnderdampedLangevin, "O B A B O", pieces=pieces)
    assert check(step, layers=["differential"]).results[0].subject == "O B A B O"
    assert "numerical" in check(step, layers=["linear law"]).notes[0]
    assert_stationary(step)
    with pytest.raises(RecipeError, match="without scheme="):
        check(step, "Euler")


def test_what_is_left_out_is_said_with_the_reason_and_one_warning():
    """Parameters that imply a step size; a law without moments."""
    heavy = Recipe(name="heavy", state=(theta,), H=total(log(1 + theta**2)) * 2, D={theta: 1}, scheme="Euler")
    for recipe, reason, layers in (
        (CASES["vsgd"].recipe, "imply a step size", ["one-step defect", "stationary start", "non-Gaussian"]),
        (heavy, "no finite integral", ["generator", "one-step defect", "stationary start", "work"]),
    ):
        with pytest.warns(LeftOut) as warned:
            report = assert_stationary(recipe)
        assert len(warned) == 1 and str(warned[0].message) == report.warning and warned[0].filename == __file__
        assert report.ok is None and [layer for layer, _ in report.left_out] == layers
        assert all(reason in why for _, why in report.left_out) and reason in report.warning
        assert any(note.startswith("left out") and reason in note for note in report.notes)
        assert report.to_dict()["left_out"] == [list(pair) for pair in report.left_out]


def test_what_does_not_apply_is_no_gap():
    """A linear law of what is not linear."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOut)
        report = check(SGNHT, layers=["linear law"])
    assert not report.left_out and [layer for layer, _ in report.inapplicable] == ["linear law"]
    assert report.notes == ("does not apply  linear law: the step is not affine for a quadratic U, site by site",)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: check(SGLD, layers=["defect"]), "there is no layer 'defect'"),
        (lambda: check(SGLD, gama=1.0), "'gama' is not a parameter"),
        (lambda: check(SGLD, energy=lambda x: x**2), "an Energy of one coordinate"),
        (lambda: check(SGLD, "B A B"), "B"),
        (lambda: check(SGLD, layers=[]), "none is named"),
        (lambda: check(3), "expected a Recipe, or a Step .*, got int"),
        (lambda: check(UnderdampedLangevin, gamma=float("nan")), "'gamma' is not finite"),
        (lambda: check(UnderdampedLangevin, gamma="1"), "'gamma' is a number or a tensor, got str"),
    ],
)
def test_what_cannot_be_checked_is_refused(make, words):
    with pytest.raises(RecipeError, match=words):
        make()


def test_a_result_fails_beyond_its_bound_and_where_it_is_no_number():
    def result(value, **more):
        return Result("layer", "x", value, 1.0, "x <= 1", **more)

    assert result(1.0).ok and not result(1.1).ok and not result(float("nan")).ok
    assert result(1.1, least=True).ok and not result(0.9, least=True).ok
    assert "violated: x <= 1" in str(result(2.0)) and result(float("nan")).to_dict()["value"] is None
    report = Report("two", tuple(timed([result(0.5), result(3.0)])[0]))
    assert not report.ok and report.failures == (report.results[1],) and report.seconds >= 0


def test_a_draw_of_several_categories_is_integrated_over():
    """A uniform number has as many thresholds as there are categories but one."""
    theta, z = vector("theta"), vector("z", domain=("categories", 3))
    H = total((theta - by_category(z, -2, 0, 2)) ** 2) / 2 - total(log(by_category(z, 1, 2, 3)))
    law = laws.Categorical(*(w * exp(-((theta - c) ** 2) / 2) for w, c in zip((1, 2, 3), (-2, 0, 2))))
    mixture = Recipe(name="mixture", state=(theta, z), H=H, D={theta: 1}, jumps={"G": gibbs(z, law)}, scheme="G Euler")
    (result,) = check(mixture, layers=["one-step defect"]).results
    assert result.statistic == "order of the defect in h" and result.ok, str(result)
