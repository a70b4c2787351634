"""A recipe that is declared again shares the certificate and the step of the first, and no other recipe does."""

from dataclasses import fields, replace

import pytest
import torch
from sympy import S, sinh

from integrators import compiler, metropolis
from integrators.networks import network
from recipe import (
    Recipe,
    RecipeError,
    adapted,
    function,
    laws,
    mapped,
    nonnegative,
    operator,
    positive,
    representative,
    scalar,
    total,
    vector,
)
from recipe.certificate import certify
from recipe.domains import Domain
from recipe.maps import Map
from recipe.pieces import friction, gibbs, noise
from samplers import sample


def declared(**changes):
    """Langevin dynamics with a redrawn scale, every symbol made anew."""
    theta, p, v = vector("theta"), vector("p"), scalar("v", domain="positive")
    usual = dict(
        name="again",
        state=(theta, p, v),
        target=theta,
        H=total(theta**2 + p**2) / 2 + 2 * v,
        D={p: positive("gamma", default=1.0)},
        Q={(theta, p): -1},
        jumps={"G": gibbs(v, laws.Gamma(1, 2))},
        pieces={"O": friction(p) + noise(p)},
        scheme="B A O A B G",
        source="a paper",
    )
    return Recipe(**usual | changes)


theta, p, v, z = vector("theta"), vector("p"), scalar("v", domain="positive"), vector("z")
gamma, a = positive("gamma", default=1.0), adapted("a", start=1, domain="positive")
FRICTION = dict(adapt={a: a / 2}, D={p: a})
ALIKE_BLOCKS = dict(D={theta: 1, p: 1}, Q={}, scheme="Euler")
CHANGES = {
    "name": dict(name="another"),
    "state": ALIKE_BLOCKS | dict(state=(p, theta, v)),
    "H": dict(H=total(theta**2 + 2 * p**2) / 2 + 2 * v),
    "D": dict(D={p: 2 * gamma}),
    "Q": dict(Q={(theta, p): -2}),
    "target": dict(target=p),
    "source": dict(source="another paper"),
    "supplied": dict(supplied={p: gamma / 2}),
    "scheme": dict(scheme="A B O B A G"),
    "pieces": dict(pieces={"N": friction(p) + noise(p)}),
    "schemes": dict(schemes={"long": "B A O A B G"}),
    "adapt": FRICTION | dict(adapt={a: a / 3}),
    "order": FRICTION | dict(order="same_step"),
    "jumps": dict(jumps={"G": gibbs(v, laws.Gamma(1, 2), rate=3)}),
    "transport": dict(transport={p: 1}),
    "marginal": dict(marginal=total(theta**2)),
    "weights": dict(weights=2 + total(theta**2)),
    "conversions": dict(conversions={"lr": {gamma: positive("lr")}}),
    "requires": dict(requires=(gamma < 2,)),
    "metropolis": dict(metropolis=True),
    "accepted": dict(accepted={"O"}, metropolis=True),
    "claim": dict(claim="given constant gamma"),
    "doc": dict(doc="notes"),
    "maps": dict(maps={theta: Map(z, theta, sinh(theta), z)}),
}
BEFORE = {
    "state": ALIKE_BLOCKS,
    "adapt": FRICTION,
    "order": FRICTION,
    "accepted": dict(metropolis=True),
}  # else as `declared`


FIRST = representative._first
PROPOSAL = metropolis._proposal


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """Recipes share what is made of the first, as they do outside of these tests."""
    monkeypatch.setattr(representative, "_first", FIRST)
    monkeypatch.setattr(metropolis, "_proposal", PROPOSAL)


@pytest.fixture
def proved(monkeypatch):
    """The recipes that are proved, in order."""
    recipes = []
    own = certify.Case

    def case(recipe, *others):
        recipes.append(recipe)
        return own(recipe, *others)

    certify._certified.cache_clear()
    monkeypatch.setattr(certify, "Case", case)
    return recipes


@pytest.mark.parametrize("field", [f.name for f in fields(Recipe)])
def test_a_recipe_with_another_value_of_a_field_is_proved_anew(proved, field):
    one, other = declared(**BEFORE.get(field, {})), declared(**CHANGES[field])
    one.check(), other.check(), one.check(), other.check()
    assert len(proved) == 2


@pytest.mark.parametrize("made", [declared, lambda: mapped(declared(), theta=vector("z"), by=sinh)])
def test_a_recipe_that_is_declared_again_is_proved_once(proved, made):
    one, other = made(), made()
    assert one.check() == other.check() == replace(other).check() and one != other
    assert len(proved) == 1
    assert one.check(temperature=2.0) == other.check(temperature=2.0)
    assert len(proved) == 2


def test_a_recipe_whose_first_was_changed_since_is_proved_for_itself(proved):
    one, other = declared(), declared()
    assert one.check() == other.check()
    one.jumps["G"] = gibbs(v, laws.Gamma(1, 3))
    assert other.check(temperature=2.0) == declared(doc="notes").check(temperature=2.0)
    assert len(proved) == 3


NET = network(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Softplus()), sign="positive")(theta)
ALIKE = {
    "a default": (positive("k", default=1), positive("k", default=2)),
    "a doc": (positive("k", doc="rate"), positive("k")),
    "a value per site": (positive("k"), positive("k", per=theta)),
    "a sign": (positive("k"), nonnegative("k")),
    "a sign of a function": (function("f", theta, sign="positive"), function("f", theta, sign="nonnegative")),
    "an operator": (operator("k"), positive("k")),
    "a kind of operator": (operator("k"), operator("k", kind="semidefinite")),
    "the weights of a network": (NET, NET),
}


@pytest.mark.parametrize("what", ALIKE)
def test_recipes_of_equal_text_are_proved_anew_where_their_symbols_differ(proved, what):
    one, other = (Recipe(name="alike", state=theta, H=total(theta**2), D={theta: noise}) for noise in ALIKE[what])
    assert str(one.D) == str(other.D)
    one.check(), other.check()
    assert len(proved) == 2


def test_recipes_of_another_class_or_start_or_box_are_proved_anew(proved):
    class Own(Recipe):
        pass

    starts = (adapted("a", start=start, domain="positive") for start in (1, 2))
    boxes = (vector("t", domain=Domain("box", S(-1), S(end), "reflected")) for end in (1, 2))
    recipes = [Own(**{f.name: getattr(declared(), f.name) for f in fields(Recipe)}), declared()]
    recipes += [declared(adapt={b: b / 2}, D={p: b}) for b in starts]
    recipes += [Recipe(name="box", state=t, H=total(t**2), D={t: 1}) for t in boxes]
    for recipe in recipes:
        recipe.check()
    assert len(proved) == len(recipes)


def test_blocks_and_parameters_of_one_name_differ_by_all_that_their_domains_are():
    narrow, wide = (vector("t", domain=Domain("box", S(-1), S(end), "reflected")) for end in (1, 2))
    assert narrow != wide and narrow == vector("t", domain=narrow.domain)
    assert positive("k", per=narrow) != positive("k", per=wide)
    assert operator("M", at=narrow) != operator("M", at=wide)


def test_a_recipe_with_its_word_as_a_list_stands_for_itself(proved):
    one, other = (declared(scheme=[("B", 1), ("A", 1), ("O", 1), ("G", 1)]) for _ in range(2))
    assert one.check() == other.check()
    assert len(proved) == 2


def test_a_run_of_a_recipe_that_is_declared_again_compiles_nothing(monkeypatch):
    lowered = []
    own = compiler.lower
    run = dict(init=torch.zeros(2, 3), steps=3, step_size=0.1, seed=1, progress=False)
    monkeypatch.setattr(compiler, "lower", lambda *args, **more: lowered.append(args) or own(*args, **more))
    one, other = (sample(declared(name="again-in-a-run"), **run)["theta"] for _ in range(2))
    assert torch.equal(one, other) and len(lowered) == 1


def test_accepted_steps_of_equal_recipes_share_a_program_and_those_of_other_choices_do_not():
    theta, p, gamma = vector("theta"), vector("p"), positive("gamma", default=1.0)

    def program(**choices):
        H, D = total(theta**2 + p**2) / 2, {p: gamma}
        own = Recipe(name="again-accepted", state=(theta, p), target=theta, H=H, D=D, Q={(theta, p): -1})
        return metropolis.metropolised(own, **choices).program

    first = program()
    assert program() is first and program(backend="cpp") is first
    for choices in (dict(scheme="O A B A O"), dict(repeat=2), dict(accept=False)):
        other = program(**choices)
        assert other is program(**choices) and other != first, choices


def test_a_piece_that_was_changed_is_seen_by_accepted_steps():
    theta, p = vector("theta"), vector("p")
    H, pieces = total(theta**2 + p**2) / 2, {"O": friction(p) + noise(p)}
    own = Recipe(name="changed", state=(theta, p), target=theta, H=H, D={p: 1}, Q={(theta, p): -1}, pieces=pieces)
    metropolis.metropolised(own, "O A B A O")
    own.pieces["O"] = noise(p)
    with pytest.raises(RecipeError, match="no piece takes"):
        metropolis.metropolised(own, "O A B A O")
