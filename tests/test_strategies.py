"""The public strategies make what they promise, and each shipped property holds and finds its planted errors."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from covering import slow
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from mutation import with_derived
from sympy import S, exp, sin, tanh
from zoo import HAMILTONIAN, compiled

import integrators
from integrators.functions import phi1
from integrators.lower import lower
from integrators.program import Gradient
from recipe import Energy, Recipe, RecipeError, fraction, positive, potential, scalar, total, vector
from recipe.scheme import Scheme
from recipe.symbols import duration as t
from samplers import SGNHT, RandomisedHMC, UnderdampedLangevin, catalogue
from samplers.testing import strategies
from samplers.testing.planted import planted
from samplers.testing.properties import (
    PROPERTIES,
    chains_permute,
    coordinates_permute,
    derivatives,
    emitted_equals_interpreted,
    flows_are_semigroups,
    pieces_sum_to_the_sde,
    residual_is_zero,
    reversible,
    volume_is_preserved,
    word_verifies,
)
from samplers.testing.random_calls import called, inputs
from samplers.testing.strategies import KINDS, energies, recipes, schemes, states, steps

theta, p, xi = vector("theta"), vector("p"), scalar("xi")
U, n = potential(theta), total(1)


def examples(count):
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],  # which asks how busy the machine is
    )


# ---- the properties hold


def all_hold(data, recipe):
    """Every property of a recipe and of a step, a state and an energy that fit it."""
    residual_is_zero(recipe)
    word, pieces = data.draw(schemes(recipe, method=data.draw(st.sampled_from([None, "euler", "heun"]))))
    step = integrators.compile(recipe, word, pieces=pieces)
    at, energy = data.draw(states(step, chains=3, shape=(2,))), data.draw(energies(recipe.targets))
    for holds in PROPERTIES:
        holds(step, at, energy)


@given(st.data())
@examples(2)
def test_every_property_holds_for_recipes_of_sites(data):
    all_hold(data, data.draw(recipes("sites")))


@given(st.data())
@examples(2)
def test_every_property_holds_for_explicit_coordinates(data):
    all_hold(data, data.draw(recipes("explicit")))


@given(st.data())
@examples(2)
def test_every_property_holds_where_flows_have_closed_forms(data):
    all_hold(data, data.draw(recipes("linear", "thermostatted")))


@given(st.data())
@examples(2)
def test_every_property_holds_beside_adaptations_and_jumps(data):
    all_hold(data, data.draw(recipes(adapt=True, jumps=True)))


@pytest.mark.slow
@given(st.data(), st.booleans(), st.booleans())
@examples(150)
def test_every_property_holds_for_many_recipes(data, adapt, jumps):
    all_hold(data, data.draw(recipes(adapt=adapt, jumps=jumps)))


@pytest.mark.slow  # the leapfrog is asked at every change, below
@given(steps(recipes("linear", "thermostatted", noise=False), euler=False, palindromes=True), st.integers(0, 99))
@examples(5)
def test_dynamics_without_noise_are_reversible_and_preserve_volume(step, seed):
    at = inputs(step, seed=seed, varied=True)
    flipped, pieces = reversible(step, at), volume_is_preserved(step, at)
    assume(flipped)
    assert pieces and set(flipped) & set(step.recipe.momenta)


@pytest.mark.parametrize(
    "name", ["sgrld-cir", "sgrld-simplex", "hmc-randomised", "sgnht", "atmc-relativistic", "santa"]
)
def test_every_property_holds_for_stock_samplers(name):
    step = integrators.compile(catalogue[name])
    residual_is_zero(catalogue[name])
    for holds in PROPERTIES:
        holds(step)


# ---- each property finds a planted error


def with_flow(step, letter, change):
    """The step with the formulas of one flow changed, emitted anew."""
    flow = step.flows[letter]
    flows = {**step.flows, letter: replace(flow, updates={b: change(b, e) for b, e in flow.updates.items()})}
    return replace(step, flows=flows, program=lower(step.recipe, step.scheme, flows))


def without_later_gradients(step):
    """The step that takes grad U once, in its first stage that asks for it."""
    program, seen, stages = step.program, False, []
    for stage in program.stages:
        asks = [s for s in stage.statements if isinstance(s, Gradient)]
        stages.append(replace(stage, statements=tuple(s for s in stage.statements if not (seen and s in asks))))
        seen = seen or bool(asks)
    return replace(step, program=replace(program, stages=tuple(stages)))


curled = Recipe(
    name="curled", state=(theta, p), H=U + total(p**2) / 2, D={p: 1 + theta**2}, Q={(theta, p): -1 - sin(p) ** 2}
)
langevin = compiled(UnderdampedLangevin, "B A O A B")
fresh = integrators.compile(UnderdampedLangevin, "B A O A B", reuse_gradient=False)
nose_hoover = compiled(SGNHT, "B A' O A' B")
leapfrog = compiled(HAMILTONIAN, "B A B")
g, draw = U.diff(theta), next(iter(langevin.flows["O"].draws))

MUTANTS = {  # by property: a mistake, and what is said of it
    residual_is_zero: {
        "Gamma dropped": (
            with_derived(curled, drift=curled.drift - curled.gamma),
            r"curled: exp\(-H\) is not stationary",
        ),
        "friction doubled": (with_derived(curled, drift=2 * curled.drift), "not stationary"),
    },
    word_verifies: {
        "half a step of A": (
            replace(langevin, scheme=Scheme("B A O", (("B", 1), ("A", S.Half), ("O", 1)))),
            "piece 'A' add up to 1/2",
        ),
        "a stale gradient": (without_later_gradients(fresh), "the gradient g is stale"),
        "a draw left out": (
            replace(langevin, flows=langevin.flows | {"O": replace(langevin.flows["O"], draws=())}),
            "other random numbers",
        ),
    },
    emitted_equals_interpreted: {
        "a whole kick for half of one": (
            planted(langevin, ("h/2*g", "h*g", 1)),
            "the emitted step is not that of its flows: theta",
        )
    },
    chains_permute: {
        "a total over chains": (
            planted(nose_hoover, ("sum1 = total(p**2)", "sum1 = total(p**2).cumsum(0)")),
            "chains do not permute",
        ),
        "noise shared by the chains": (planted(langevin, ('noise["p"]', 'noise["p"][:1]')), "chains do not permute"),
    },
    coordinates_permute: {
        "noise shared by the sites": (
            planted(langevin, ('noise["p"]', 'noise["p"][:, :1]')),
            "coordinates do not permute freely: theta",
        ),
        "a total over one site": (
            planted(nose_hoover, ("sum1 = total(p**2)", "sum1 = total(p[:, :1]**2)")),
            "coordinates do not permute",
        ),
    },
    pieces_sum_to_the_sde: {
        "the force of the wrong sign": (
            with_flow(langevin, "B", lambda b, e: e.xreplace({g: -g})),
            "move p, 'B', 'O', do not add up to its drift",
        ),
        "e^{+h gamma}": (
            with_flow(langevin, "O", lambda b, e: e.replace(exp, lambda x: exp(-x))),
            "move p, 'B', 'O', do not add up to its drift",
        ),
        "twice the noise": (
            with_flow(langevin, "O", lambda b, e: e.xreplace({draw: 2 * draw})),
            r"the noise 2\(T D - supplied\)\[p, p\]",
        ),
        "A left out": (
            replace(langevin, flows={k: f for k, f in langevin.flows.items() if k != "A"}),
            "move theta, none, do not add up to its drift, p/m",
        ),
    },
    flows_are_semigroups: {
        "Euler's noise in an exact flow": (
            with_flow(langevin, "O", lambda b, e: e.replace(phi1, lambda x: S.One)),
            "two half steps of piece 'O' are not its whole step.*: .'?p",
        ),
        "Euler's friction in an exact flow": (
            with_flow(langevin, "O", lambda b, e: e.replace(exp, lambda x: 1 + x)),
            "piece 'O'.*dp = ",
        ),
    },
    volume_is_preserved: {
        "a shear that contracts": (
            with_flow(leapfrog, "A", lambda b, e: e - t**2 * theta),
            "piece 'A' does not preserve volume.*dtheta = p dt",
        ),
        "a kick that contracts": (
            with_flow(leapfrog, "B", lambda b, e: e * (1 - t**2 / 4)),
            "piece 'B' does not preserve volume",
        ),
    },
    reversible: {
        "a kick that brakes": (with_flow(leapfrog, "B", lambda b, e: e - t**2 * tanh(p)), "R flipping p: p|: theta"),
        "a Lie word called a palindrome": (
            replace(integrators.compile(leapfrog.recipe, "B A"), scheme=leapfrog.scheme),
            "not reversible",
        ),
    },
}


@pytest.mark.parametrize("holds, name", [(holds, name) for holds, own in MUTANTS.items() for name in own])
def test_a_planted_error_is_found_and_told(holds, name):
    mutant, words = MUTANTS[holds][name]
    with pytest.raises(AssertionError, match=words):
        holds(mutant)


@pytest.mark.parametrize("holds", [residual_is_zero, *PROPERTIES])
def test_every_property_has_mutants_and_passes_what_they_were_made_from(holds):
    assert MUTANTS[holds]
    for right in (curled,) if holds is residual_is_zero else (langevin, fresh, nose_hoover, leapfrog):
        holds(right)


def test_what_a_property_does_not_speak_of_is_told():
    """Friction contracts; noise and thermostats of another centre cannot be run backwards."""
    assert volume_is_preserved(langevin) == ("B", "A") and volume_is_preserved(nose_hoover) == ("B", "A'")
    assert reversible(langevin) == () and reversible(integrators.compile(leapfrog.recipe, "B A")) == ()
    assert reversible(leapfrog) == (p,)


# ---- what the strategies make


KINDS_AND_SIZES = {*KINDS, 1, 2, 3, 4, "sin", "tanh", "exp"}


def kind_and_size(name, state, *formulas):
    return [name, len(state), *(type(e).__name__ for f in formulas for e in S(f).atoms(sin, tanh, exp))]


def test_declarations_are_of_every_kind_and_size(monkeypatch):
    """What a recipe is made of, before it is checked."""
    monkeypatch.setattr(strategies, "Recipe", SimpleNamespace)
    seen = Counter()

    @given(recipes())
    @examples(60)
    def look(R):
        seen.update(kind_and_size(R.name, R.state, *R.D.values(), *R.Q.values()))

    look()
    assert seen.keys() == KINDS_AND_SIZES


@pytest.mark.slow
def test_recipes_are_of_every_kind_and_size():
    seen = Counter()

    @given(recipes())
    @examples(60)
    def look(R):
        seen.update(kind_and_size(R.name, R.state, *R.D, *R.Q))
        has = {
            "momenta": R.momenta,
            "Gamma": any(R.gamma),
            "correlated noise": not R.D.is_diagonal(),
            "curl": any(R.Q),
            "per site": any(s.per for s in R.parameters),
            "auxiliary": len(R.state) > len(R.targets),
        }
        seen.update(name for name, value in has.items() if value)
        assert all(s.default is not None for s in R.parameters)

    look()
    of_dynamics = {"momenta", "Gamma", "correlated noise", "curl", "per site", "auxiliary"}
    assert seen.keys() == KINDS_AND_SIZES | of_dynamics


@given(recipes())
@examples(3)
def test_the_certificate_of_a_recipe_has_no_failures(R):
    assert not R.check().failures, str(R.check())


@given(recipes(noise=False))
@examples(8)
def test_recipes_without_noise_have_none(R):
    assert not any(R.D)


@pytest.mark.parametrize("count", [3, slow(15)])
def test_adaptations_and_jumps_are_added(count):
    more = dict(adapt=True, jumps=True)

    @given(recipes("sites", "linear", "explicit", **more), recipes("thermostatted", **more))
    @examples(count)
    def added(R, thermostatted):
        assert thermostatted.jumps  # whose momenta and thermostats are Gaussian
        for made in (R, thermostatted):
            assert [a.name for a in made.adapted] == ["V"]
            redrawn = [b for jump in made.jumps.values() for b in jump.blocks]
            assert all(made.H.diff(b, 3) == 0 and made.H.diff(b, 2) != 0 for b in redrawn)

    added()


@pytest.mark.slow
def test_words_are_of_every_form():
    seen = Counter()

    @given(steps(recipes("linear", "thermostatted", jumps=True)))
    @examples(22)
    def look(step):
        text = str(step.scheme)
        form = text.partition("(")[0] if text.startswith(("Lie", "Strang")) else "fractions" if "(" in text else "word"
        seen.update([form, "Euler" if "Euler" in text else "exact" if step.exact else "numerical", *step.recipe.jumps])

    look()
    assert seen.keys() == {"Lie", "Strang", "fractions", "word", "Euler", "exact", "J"}


@pytest.mark.parametrize("count", [2, slow(4)])
def test_palindromes_and_numerical_pieces_are_made_on_request(count):
    @given(st.data())
    @examples(count)
    def made(data):
        R = data.draw(recipes("explicit"))
        step = data.draw(steps(st.just(R), method="euler", palindromes=True, euler=False))
        assert step.scheme.is_palindrome and "Euler" not in step.flows
        assert all(flow.exact or flow.rule == "euler" for flow in step.flows.values()) and not step.exact

    made()


@pytest.mark.parametrize("blocks", [(xi,), tuple(map(scalar, "xyz"))], ids=len)
def test_energies_are_normalisable(blocks):
    """U grows at least as |x|^2/4 - |x| along every line."""

    @given(energies(blocks), st.lists(st.sampled_from([-1.0, 0.25, 1.0]), min_size=len(blocks), max_size=len(blocks)))
    @examples(25)
    def grows(energy, direction):
        at = {b: 100 * d for b, d in zip(blocks, direction)}
        assert energy.U.subs(at) > sum(x**2 / 4 - abs(x) for x in at.values()) - 10

    grows()


@pytest.mark.parametrize(
    "energy, at",
    [
        (
            Energy(theta, U=total(theta**4) + total(theta) ** 2 / n),
            torch.tensor([[0.3, -1.2, 0.8]], dtype=torch.float64),
        ),
        (
            Energy((scalar("x"), scalar("y")), U=scalar("x") ** 2 * sin(scalar("y"))),
            {"x": torch.ones(2), "y": torch.zeros(2)},
        ),
    ],
)
def test_the_derivatives_of_an_energy_are_the_same_for_arrays_and_tensors(energy, at):
    as_arrays = {k: v.numpy() for k, v in at.items()} if isinstance(at, dict) else at.numpy()
    for derivative in derivatives(energy.U, energy.coordinates).values():
        ours, theirs = derivative(as_arrays), derivative(at)
        names = at if isinstance(ours, dict) else [...]
        assert all(isinstance(ours[k], np.ndarray) and np.array_equal(ours[k], theirs[k]) for k in names)
    if not isinstance(at, dict):
        mean = at.mean()
        assert (derivatives(energy.U, energy.coordinates)["gradient"](at) - 4 * at**3 - 2 * mean).abs().max() < 1e-14
        assert (derivatives(energy.U, energy.coordinates)["curvature"](at) - 12 * at**2 - 2 / 3).abs().max() < 1e-14


@given(st.data())
@examples(15)
def test_states_are_inside_their_domains_and_a_step_takes_them(data):
    w, rate = vector("w", domain="positive"), fraction("f", default=0.9)
    m = positive("m", per=w)
    step = integrators.compile(Recipe(name="domains", state=(w,), H=potential(w), D={w: w * m * rate}), "Euler")
    at = data.draw(states(step, chains=5, shape=(2, 3), tensors=True))
    assert {v.dtype for v in (*at.state.values(), *at.noise.values())} == {torch.float64}
    assert at.state["w"].shape == at.noise["w"].shape == (5, 2, 3) and at.parameters["m"].shape == (2, 3)
    assert (at.state["w"] > 0).all() and (at.parameters["m"] > 0).all() and 0 < at.parameters["f"] <= 1
    out = called(step, *at, **derivatives(total(w**2), (w,)))
    assert out["w"].isfinite().all()


def test_jumps_and_equal_seeds():
    """Uniform numbers are between 0 and 1, and a seed is a state."""
    step = integrators.compile(RandomisedHMC)
    one, same, other = (inputs(step, seed=seed, varied=True) for seed in (1, 1, 2))
    uniform = [one.noise[name] for name, kind in step.draws.items() if kind == "uniform"]
    assert uniform and all(((0 < u) & (u < 1)).all() for u in uniform)
    assert (one.state["theta"] == same.state["theta"]).all() and (one.state["theta"] != other.state["theta"]).all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: recipes("linaer"), "Did you mean 'linear'"),
        (lambda: energies(5), "coordinates are blocks"),
        (lambda: energies(kinds=["quatric"]), "Did you mean 'quartic'"),
        (lambda: schemes("sgld"), "expected a Recipe, got str"),
        (lambda: schemes(RandomisedHMC, method="huen"), "Did you mean 'heun'"),
    ],
)
def test_what_there_is_not_is_refused_where_it_is_written(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
