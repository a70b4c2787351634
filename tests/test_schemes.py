"""Splitting words, the pieces they name, the solved forms of these pieces, and what is refused on the way to a step."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import slow
from sympy import Float, Rational, Symbol, exp, factorial, floor, sin, symbols, zeta
from zoo import GENERALISED_LANGEVIN, HAMILTONIAN, JOINT, MAGNETIC, QUARTIC_KINETIC

from integrators import compile
from integrators.backends.loading import load
from integrators.functions import phi1
from integrators.program import Draw, Gradient, Set, Stage, verify
from integrators.split import split
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    euler,
    force,
    friction,
    grad,
    noise,
    numerical,
    positive,
    potential,
    scalar,
    spring,
    total,
    vector,
)
from recipe.scheme import all_letters, scheme
from samplers import ATMC, MSGNHT, SGHMC, SGLD, SGNHT, SGRLD, SGRLDDense, UnderdampedLangevin
from samplers.testing.interpreter import Chain, van_loan

theta, p, xi, x, y, px, py = (*map(vector, ("theta", "p")), *map(scalar, ("xi", "x", "y", "px", "py")))
U, n = potential(theta), total(1)
PAPER = {"G": euler(p), "R": friction(p), "W": force(p) + noise(p)}
O = friction(p) + noise(p)

Multiplicative = Recipe(
    name="multiplicative", state=(theta, p), H=U + total(p**2) / 2, D={p: 1 + p**2}, Q={(theta, p): -1}
)


# ---- words

LETTERS = ("A", "B", "O", "A'", "Euler", "Kick")
HALF, THIRD = Rational(1, 2), Rational(1, 3)
MOVES = {
    "B A O A B": [("B", HALF), ("A", HALF), ("O", 1), ("A", HALF), ("B", HALF)],
    "BAOAB": [("B", HALF), ("A", HALF), ("O", 1), ("A", HALF), ("B", HALF)],
    " B A\tO A\nB ": [("B", HALF), ("A", HALF), ("O", 1), ("A", HALF), ("B", HALF)],
    "A B A O A": [("A", THIRD), ("B", 1), ("A", THIRD), ("O", 1), ("A", THIRD)],
    "BA'OA'B": [("B", HALF), ("A'", HALF), ("O", 1), ("A'", HALF), ("B", HALF)],
    "A A'": [("A", 1), ("A'", 1)],
    "O": [("O", 1)],
    "Euler": [("Euler", 1)],
    "Kick": [("Kick", 1)],
    "Kick A Kick": [("Kick", HALF), ("A", 1), ("Kick", HALF)],
    "Lie(A,B,O)": [("A", 1), ("B", 1), ("O", 1)],
    "Lie( A' , Kick )": [("A'", 1), ("Kick", 1)],
    "Strang(A,B)": [("A", HALF), ("B", 1), ("A", HALF)],
    "Strang(B, A, O)": [("B", HALF), ("A", HALF), ("O", 1), ("A", HALF), ("B", HALF)],
    (("A", 0.25), ("B", 1), ("A", 0.75)): [("A", Float(0.25)), ("B", 1), ("A", Float(0.75))],
    (("A", THIRD), ("B", 1), ("A", 1 - THIRD)): [("A", THIRD), ("B", 1), ("A", 1 - THIRD)],
    (("A", -0.5), ("B", 1), ("A", 1.5)): [("A", Float(-0.5)), ("B", 1), ("A", Float(1.5))],
}


@pytest.mark.parametrize("word", MOVES)
def test_a_word_is_its_letters_from_left_to_right_each_with_its_share(word):
    read = scheme(word, LETTERS)
    assert list(read.moves) == MOVES[word]
    assert all(math.isclose(sum(share for letter, share in read.moves if letter == one), 1) for one in read.letters)
    assert scheme(read, LETTERS) is read
    assert read.is_palindrome == (list(read.moves) == list(read.moves)[::-1])
    cycle = [read.rotated(k).moves for k in range(len(read.moves) + 1)]
    assert cycle[0] == read.moves and all(sorted(moves, key=str) == sorted(read.moves, key=str) for moves in cycle)


def test_neighbours_of_one_letter_join_where_the_letter_is_a_semigroup():
    rotated = scheme("B A O A B", LETTERS).rotated(4)
    assert rotated.merged("B").moves == (("B", 1), ("A", HALF), ("O", 1), ("A", HALF))
    assert rotated.merged("A").moves == rotated.moves


@pytest.mark.parametrize(
    "word, message",
    [
        ("B A X A B", "no piece is named 'X'"),
        ("Kik A", "no piece is named 'Kik'. Did you mean 'Kick'?"),
        ("Strang(A, Kik)", "Did you mean 'Kick'?"),
        ([("Kik", 1)], "Did you mean 'Kick'?"),
        ("", "the word is empty"),
        ("  ", "the word is empty"),
        ([], "the list of moves is empty"),
        ("Lie(A)", "not a word that can be read"),
        ("Lie(A,B", "not a word that can be read"),
        ("Lie(A,,B)", "not a word that can be read"),
        ("Yoshida(A,B)", "not a word that can be read"),
        (7, "not a word and not a list"),
        (["A"], "not a word and not a list"),
        ([("A", "1/2"), ("A", "1/2")], "not a word and not a list"),
        ([("A", 0.5), ("B", 1)], "the fractions of 'A' add up to 0.5"),
        ([("A", 1), ("A", 1)], "the fractions of 'A' add up to 2, not 1"),
        ([("A", math.nan)], "add up to nan, not 1"),
    ],
)
def test_a_word_that_cannot_be_read_is_refused(word, message):
    with pytest.raises(RecipeError) as raised:
        scheme(word, LETTERS)
    assert str(raised.value).startswith("scheme") and message in str(raised.value)


# ---- orders

ORDERS = [
    (SGLD, "Euler", {}, 1, 1),
    (SGHMC, "Euler", {}, 1, 1),
    *(
        (SGHMC, word, {}, 2, 2)
        for word in ("B A O A B", "A B O B A", "O B A B O", "O A B A O", "A F A", "F A F", "Strang(A, B, O)")
    ),
    (SGHMC, "A R W R A", PAPER, 2, 2),
    (SGHMC, [("A", 0.3), ("F", 1), ("A", 0.7)], {}, 1, 1),
    (SGHMC, [("A", 0.3), ("B", 0.5), ("A", 0.2), ("O", 1), ("A", 0.2), ("B", 0.5), ("A", 0.3)], {}, 2, 2),
    *((SGHMC, word, {}, 1, 2) for word in ("F A", "A F", "A O A B", "B A O A", "O B A B", "B A B O")),
    *(
        (SGHMC, word, PAPER, 1, 1)
        for word in ("A G", "G A", "B O A", "B A O", "A B O", "O A B", "B A O B", "Lie(A, B, O)")
    ),
    (SGNHT, "B A' O A' B", {}, 2, 2),
    (SGNHT, "A' F A'", {}, 2, 2),
    (SGNHT, "O C A B A C O", {}, 2, 2),
    (SGNHT, "F A'", {}, 1, 2),
    (SGNHT, "A' F", {}, 1, 2),
    (SGNHT, "A' O A' B", {}, 1, 2),
    (SGNHT, "G A'", PAPER, 1, 1),
    (SGNHT, "Lie(A, B, C, O)", {}, 1, 1),
    (ATMC, "F A'", {}, 1, 2),
    (QUARTIC_KINETIC, "B A O A B", {"O": numerical(O, "heun")}, 2, 2),
    (QUARTIC_KINETIC, "B A O A B", {"O": numerical(O, "euler")}, 1, 1),
    (QUARTIC_KINETIC, "B A O A B", {"O": numerical(O, "exponential")}, 1, 1),
    (SGLD, "X", {"X": numerical(theta, "exponential")}, 1, 1),
    (GENERALISED_LANGEVIN, "B A O A B", JOINT, 2, 2),
]


@pytest.mark.parametrize("recipe, word, pieces, order, marginal", ORDERS)
def test_the_order_of_a_word(recipe, word, pieces, order, marginal):
    step = compile(recipe, word, pieces=pieces)
    assert (step.order, step.marginal_order) == (order, marginal)
    assert f"weak order {order}, order {marginal} for the target" in str(step)


@pytest.mark.parametrize(
    "recipe, word",
    [
        (SGLD, "Euler"),
        (UnderdampedLangevin, "B A O A B"),
        (SGHMC, "B A O A B"),
        (SGNHT, "B A' O A' B"),
        (MSGNHT, "B A' O A' B"),
        (ATMC, "B A' O A' B"),
        (GENERALISED_LANGEVIN, "B A' O A' B"),
        (Multiplicative, "Euler"),
        (QUARTIC_KINETIC, "Euler"),
    ],
)
def test_without_a_word_the_recommended_one_is_taken(recipe, word):
    assert str(compile(recipe).scheme) == str(compile(replace(recipe, scheme=None)).scheme) == word


def test_yoshidas_word_has_a_fourth_order_energy_error_and_strangs_a_second():
    """A list of fractions, negative ones among them: leapfrog and its triple jump on a pendulum."""
    w = 1 / (2 - 2 ** (1 / 3))
    yoshida = [("A", w / 2), ("B", w), ("A", (1 - w) / 2), ("B", 1 - 2 * w), ("A", (1 - w) / 2), ("B", w), ("A", w / 2)]

    def drift_of_energy(word, h):
        step, state = compile(HAMILTONIAN, word), {k: torch.ones(1, 1, dtype=torch.float64) for k in ("theta", "p")}

        def energy(state):
            return float(state["p"] ** 2 / 2 - torch.cos(state["theta"]))

        start = energy(state)
        for _ in range(round(4 / h)):
            state = step(state, h, gradient=torch.sin, noise={})
        return abs(energy(state) - start)

    for word, order in ((yoshida, 4), ("Strang(A, B)", 2), ("Lie(A, B)", 1)):
        assert math.log2(drift_of_energy(word, 0.1) / drift_of_energy(word, 0.05)) == pytest.approx(order, abs=0.35)


# ---- pieces add up to the SDE, and each is solved

SPLITS = [
    *((UnderdampedLangevin, word, PAPER) for word in ("B A O A B", "F A", "A R W R A")),
    (SGHMC, "B A O A B", {}),
    *(
        (recipe, word, PAPER)
        for recipe in (SGNHT, MSGNHT, ATMC)
        for word in ("B A' O A' B", "F A'", "A C B O", "A' R W")
    ),
    (GENERALISED_LANGEVIN, "B A O A B", JOINT),
    (MAGNETIC, "B A O A B", {}),
    (HAMILTONIAN, "A B", {}),
]


def subsystems(recipe, word, pieces):
    letters = all_letters(recipe, pieces)
    return split(recipe, scheme(word, letters), letters)


@pytest.mark.parametrize("recipe, word, pieces", SPLITS)
def test_the_pieces_of_a_word_add_up_to_the_sde(recipe, word, pieces):
    parts = subsystems(recipe, word, pieces).values()
    for i, row in enumerate(recipe.state):
        assert sum(part.drift.get(row, 0) for part in parts) - recipe.tempered_drift[i] == 0
        for j, column in enumerate(recipe.state):
            assert sum(part.diffusion.get((row, column), 0) for part in parts) == recipe.D[i, j]
            assert sum(part.supplied.get((row, column), 0) for part in parts) == recipe.supplied[i, j]


def solved(flow, recipe, fraction, h, state, parameters):
    """A linear flow as numbers: x' = M x + c + B w on its moving blocks, of one site and one chain."""
    moving, updates = list(flow.updates), flow.over(fraction)
    chain = Chain(recipe, state, h, parameters)
    chain.at |= {grad(recipe.potential, block): np.array([[1.7]]) for block in recipe.targets}

    def image(blocks=None, draws=None):
        chain.at |= {block: np.array([[float(block == blocks)]]) for block in moving}
        chain.at |= {draw: np.array([[float(draw == draws)]]) for draw in flow.draws}
        return np.array([float(chain.value(updates[block]).item()) for block in moving])

    c = image()
    M = np.array([image(blocks=block) - c for block in moving]).T
    B = np.array([image(draws=draw) - c for draw in flow.draws]).reshape(-1, len(moving)).T
    return M, c, B @ B.T


def equations(piece, flow, recipe, h, state, parameters):
    """The piece's own SDE as numbers: dx = (c - A x) dt + noise of covariance rate 2 D."""
    moving = list(flow.updates)
    chain = Chain(recipe, state, h, parameters)
    chain.at |= {grad(recipe.potential, block): np.array([[1.7]]) for block in recipe.targets}

    def rate(blocks=None):
        chain.at |= {block: np.array([[float(block == blocks)]]) for block in moving}
        return np.array(
            [
                float(np.asarray(chain.value(piece.drift[block])).item()) if block in piece.drift else 0.0
                for block in moving
            ]
        )

    c = rate()
    A = -np.array([rate(block) - c for block in moving]).T

    def spread(row, column):
        return piece.injected.get((row, column), Rational(0))

    D = np.array([[float(np.asarray(chain.value(spread(row, column))).item()) for column in moving] for row in moving])
    return A, c, D


# a thermostat of every site has the flows of SGNHT's site by site: of each such recipe one word always runs
ONE_WORD = (MSGNHT, ATMC)


@pytest.mark.parametrize(
    "recipe, word, pieces", [slow(case) if case[0] in ONE_WORD and case[1] != "A' R W" else case for case in SPLITS]
)
def test_every_solved_form_is_the_law_of_its_piece_and_a_semigroup(recipe, word, pieces):
    """Mean and covariance by Van Loan's exponentials, at positive, negative, tiny and no friction."""
    h, parameters = 0.4, {"temperature": 1.3, "m": 1.7, "mu": 1.6, "Dmin": 0.8, "A": 0.7, "gamma": 1.1, "C": 1.4}
    parameters = {k: v for k, v in parameters.items() if k == "temperature" or k in map(str, recipe.parameters)}
    flows = compile(recipe, word, pieces=pieces).flows
    for letter, piece in subsystems(recipe, word, pieces).items():
        flow = flows[letter]
        rubs = any("xi" in map(str, e.free_symbols) for block, e in flow.updates.items() if block.name == "p")
        for frozen in [0.7, -1.3, 1e-9, -1e-9, 0.0, 20.0] if rubs else [0.7]:
            state = {
                block.name: np.full((1, 1) if block.is_vector else (1,), frozen if block.name == "xi" else 0.9)
                for block in recipe.state
            }

            def of(fraction):
                return solved(flow, recipe, fraction, h, state, parameters)

            A, c, D = equations(piece, flow, recipe, h, state, parameters)
            M, J, V = van_loan(A, D, h)
            for result, expected in zip(of(1), (M, J @ c, V)):
                assert result == pytest.approx(expected, rel=1e-11, abs=1e-13)
            (M1, c1, V1), (M2, c2, V2) = of(THIRD), of(1 - THIRD)
            for result, expected in zip(of(1), (M2 @ M1, M2 @ c1 + c2, M2 @ V1 @ M2.T + V2)):
                assert result == pytest.approx(expected, rel=1e-11, abs=1e-13)
        assert flow.exact


@pytest.mark.parametrize("value", [0.0, 1e-300, -1e-300, 1e-12, -1e-9, 1e-4, -0.3, 2.0, -40.0, 80.0])
def test_phi1_has_full_precision_on_both_sides_of_0(value):
    """In python and in the emitted text, where the plain (e^x - 1)/x loses all digits."""
    import mpmath

    emitted = compile(SGNHT, "F A'").namespace["phi1"]
    with mpmath.workdps(50):
        exact = float(mpmath.expm1(value) / value) if value else 1.0
    assert phi1.value(value) == pytest.approx(exact, rel=1e-15)
    assert emitted(value) == pytest.approx(exact, rel=1e-15)
    assert float(emitted(torch.tensor(value, dtype=torch.float64))) == pytest.approx(exact, rel=1e-15)
    if abs(value) > 1e-30:
        assert float(emitted(torch.tensor(value))) == pytest.approx(exact, rel=4e-7)


def test_a_step_says_which_flows_are_exact():
    step = compile(QUARTIC_KINETIC, "B A O A B", pieces={"O": numerical(O, "heun")})
    assert not step.exact and step.flows["B"].exact and not step.flows["O"].exact
    assert "[heun, not exact]" in str(step) and "with numerical flows" in str(step)
    assert compile(SGHMC).exact and "exact flows" in str(compile(SGHMC))


# ---- what is refused before the first step

COMPILE_ERRORS = [
    (
        UnderdampedLangevin,
        "B A",
        {},
        ['underdamped-langevin, split: no piece takes "-gamma*p" in the drift of p', "'B A'"],
    ),
    (UnderdampedLangevin, "B A R", PAPER, ["no piece takes the noise of p", 'pieces={"X": noise(p)}']),
    (SGNHT, "B A O A B", {}, ["no piece takes", "in the drift of xi"]),
    (SGHMC, "F A O", {}, ["sghmc, split: pieces 'F' and 'O' both take", "drift of p"]),
    (SGHMC, "B A O Z", {"Z": noise(p)}, ["pieces 'O' and 'Z' both take the noise of p"]),
    (SGHMC, "B A Z", {"Z": xi}, ["piece 'Z' names xi, which is not in the state", "theta, p"]),
    (
        MAGNETIC,
        "A B X Y",
        {"X": friction(px) + noise(px), "Y": friction(py) + noise(py)},
        ["the noises of px and py are correlated", "Put both noises into one piece"],
    ),
    (
        SGLD,
        "A",
        {},
        ["sgld, solve: no closed form is known for piece 'A': dtheta = -grad(U) dt", "numerical(piece, 'heun')"],
    ),
    (QUARTIC_KINETIC, "B A O A B", {}, ["no closed form is known for piece 'O'", "p**3"]),
    (Multiplicative, "B A O A B", {"O": numerical(O, "heun")}, ["its noise depends on the blocks it moves", "'euler'"]),
    (SGHMC, "X", {"X": numerical((theta, p), "heun")}, ["its gradients are of several points", "supplied"]),
    (
        replace(SGLD, H=U + total(theta) ** 2 / 2),
        "X",
        {"X": numerical(theta, "exponential")},
        ["is not c - a(theta) theta", "'euler'"],
    ),
    (
        replace(SGLD, H=U + total(theta**2) / 2),
        "O",
        {"O": spring(theta) + noise(theta)},
        ['no piece takes "-grad(U)" in the drift of theta', 'pieces={"X": numerical(theta, "exponential")}'],
    ),
    (UnderdampedLangevin, "X", {"X": numerical((theta, p), "exponential")}, ["it moves several blocks"]),
    (
        Multiplicative,
        "B A O A B",
        {"O": numerical(O, "exponential")},
        ["its noise depends on the block it moves", "'euler'"],
    ),
    (SGRLD, None, {}, ["the function 'inverse_metric' is still opaque", "recipe.bind(inverse_metric=...)"]),
    (SGRLDDense, "Euler", {}, ["the function 'L_xx' is still opaque", "recipe.bind(L_xx=...)"]),
    (
        SGHMC,
        [("A", 0.5), ("O", -1), ("B", 1), ("A", 0.5), ("O", 2)],
        {},
        ["piece 'O' has noise and cannot run backwards"],
    ),
    (SGHMC, "A X", {"X\nimport os": p}, ["import os"]),
    (SGHMC, "A X", {"X": "p"}, ["a piece is made of blocks", "'p'"]),
    ("sghmc", None, {}, ["expected a Recipe, got str"]),
    (
        Recipe(
            name="mixed", state=(x, y), target=(x, y), H=potential(x, y), D={x: 1 + grad(potential(x, y), y) ** 2, y: 1}
        ),
        None,
        {},
        ["asks for hessian(U, x, y)", "recipe.bind(U=Energy(...))"],
    ),
]


@pytest.mark.parametrize("recipe, word, pieces, messages", COMPILE_ERRORS)
def test_a_word_that_does_not_fit_the_recipe_is_refused(recipe, word, pieces, messages):
    with pytest.raises(RecipeError) as raised:
        compile(recipe, word, pieces=pieces)
    assert all(message in str(raised.value) for message in messages), str(raised.value)


@pytest.mark.parametrize("function", [zeta, floor, factorial])
def test_a_function_that_no_backend_knows_is_refused_by_name(function):
    with pytest.raises(RecipeError, match=f"strange, Q.*{function.__name__}.* is no known function"):
        Recipe(
            name="strange",
            state=(theta, p, xi),
            H=U + total(p**2) / 2 + xi**2 / 2,
            D={p: 1},
            Q={(theta, p): -1 - function(xi + 2) ** 2},
        )


@pytest.mark.parametrize(
    "wrong, messages",
    [
        (dict(energy=lambda theta: theta), ["compile takes a symbolic Energy, got function"]),
        (dict(backend="torhc"), ["backend 'torhc'", "Did you mean 'torch'?"]),
        (dict(scope="galaxy"), ["no such scope"]),
    ],
)
def test_a_wrong_option_is_refused(wrong, messages):
    with pytest.raises(RecipeError) as raised:
        compile(SGHMC, **wrong)
    assert all(message in str(raised.value) for message in messages)


def test_an_energy_is_refused_where_the_recipe_has_its_own_or_other_coordinates():
    u, v = symbols("u v", real=True)
    own = Recipe(name="own", state=(x, y), target=(x, y), H=x**2 + y**2, D={x: 1, y: 1})
    with pytest.raises(RecipeError, match="the recipe's H is wholly symbolic: it needs no energy"):
        compile(own, energy=Energy((u, v), U=u**2 + v**2))
    with pytest.raises(RecipeError, match="it has 1 coordinates for 2 target blocks"):
        compile(MAGNETIC, energy=Energy(u, U=u**2))


STATE = {"theta": torch.ones(2, 3), "p": torch.ones(2, 3)}
NOISE = {"p": torch.zeros(2, 3)}


@pytest.mark.parametrize(
    "change, messages",
    [
        *(
            (dict(h=h), ["sghmc, step: the step size is a positive number, got"])
            for h in (0, 0.0, -0.1, math.nan, math.inf, "0.1", None, True, torch.tensor(0.1))
        ),
        *((dict(temperature=T), ["the temperature is a number >= 0, got"]) for T in (-1.0, math.nan, math.inf, "1")),
        *((dict(C=C), ["'C' must be positive, got"]) for C in (0.0, -1.0)),
        (dict(B=-0.1), ["'B' must be nonnegative, got -0.1"]),
        (dict(m=math.nan), ["'m' is not finite"]),
        (dict(m=math.inf), ["'m' is not finite"]),
        (dict(m="1"), ["'m' is a number or a tensor, got str"]),
        (dict(m=torch.ones(3)), ["'m' is one number, got shape (3,)", "per=theta"]),
        (dict(c=1.0), ["'c' is not a parameter"]),
        (dict(gamma=1.0), ["'gamma' is not a parameter", "Known here: B, C, m"]),
        (dict(noise={}), ["noise['p'] is missing"]),
        (dict(noise=None), ["noise['p'] is missing"]),
        (dict(state={"theta": torch.ones(2, 3)}), ["state['p'] is missing"]),
    ],
)
def test_a_wrong_argument_is_refused_before_the_step(change, messages):
    given = {"state": STATE, "h": 0.1, "noise": NOISE, "gradient": lambda theta: 1 / 0, **change}
    with pytest.raises(RecipeError) as raised:
        compile(SGHMC)(given.pop("state"), given.pop("h"), **given)
    assert all(message in str(raised.value) for message in messages), str(raised.value)


def test_a_state_of_another_dtype_than_compiled_for_is_refused():
    with pytest.raises(RecipeError, match="it was compiled for torch.float64, but the state is torch.float32"):
        compile(SGHMC, dtype=torch.float64)(STATE, 0.1, noise=NOISE, gradient=torch.sin)


def test_a_misspelled_parameter_is_corrected_and_a_missing_one_named():
    friction_rate = positive("friction", doc="no default")
    recipe = Recipe(name="bare", state=(theta, p), H=U + total(p**2) / 2, D={p: friction_rate}, Q={(theta, p): -1})
    with pytest.raises(RecipeError, match="'fricton' is not a parameter. Did you mean 'friction'?"):
        compile(recipe)(STATE, 0.1, noise=NOISE, gradient=torch.sin, fricton=1.0)
    with pytest.raises(RecipeError, match="parameter 'friction' has no default"):
        compile(recipe)(STATE, 0.1, noise=NOISE, gradient=torch.sin)


@pytest.mark.parametrize(
    "recipe, given, allowed",
    [
        (SGHMC, dict(B=0.5, C=0.4), False),
        (SGHMC, dict(B=0.5, C=0.6), True),
        (SGHMC, dict(B=0.5, C=0.6, temperature=0.5), False),
        (SGHMC, dict(B=0.0, C=0.6, temperature=0.0), True),
        (ATMC, dict(B=0.5), True),
        (ATMC, dict(B=0.5, temperature=0.5), False),
        (SGNHT, dict(temperature=0.0), True),
    ],
)
def test_the_gradient_cannot_supply_more_noise_than_there_is(recipe, given, allowed):
    if allowed:
        assert compile(recipe).check_budget(0.1, **given) is None
    else:
        with pytest.raises(RecipeError, match="supplied: T D - supplied has the eigenvalue -"):
            compile(recipe).check_budget(0.1, **given)


# ---- names of the user's and of the text's


@pytest.mark.parametrize(
    "names",
    [
        ("lambda", "import"),
        ("x_{1}", "x_{2}"),
        ("u0", "u1"),
        ("theta", "torch"),
        ("a b", "a_b"),
        ('"""\nimport os\n"""', "\\"),
        ("h", "state"),
        ("__import__('os')", "math"),
        ("1", "é"),
    ],
)
def test_any_name_of_a_coordinate_gives_the_right_gradient(names):
    """Coordinates of an Energy are plain symbols, of any name."""
    u, v = (Symbol(name, real=True) for name in names)
    step = compile(SGHMC, energy=Energy((u, v), U=sin(u + v) ** 2 * exp(u * v) + u**4))
    at = torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2)

    def energy(t):
        return torch.sin(t[0] + t[1]) ** 2 * torch.exp(t[0] * t[1]) + t[0] ** 4

    expected = torch.func.vmap(torch.func.grad(energy))(at)
    assert step.namespace["gradient"](at).numpy() == pytest.approx(expected.numpy(), rel=1e-13, abs=1e-13)
    assert load(step.standalone(), "standalone")["gradient"](at).numpy() == pytest.approx(
        expected.numpy(), rel=1e-13, abs=1e-13
    )


@pytest.mark.parametrize(
    "text", ['"""\nraise SystemExit\n"""', "\\", '"', "'''", '\\"""\nraise SystemExit', "{0}", "%s"]
)
def test_no_text_of_a_recipe_becomes_code(text):
    recipe = replace(SGHMC, doc=text, source=text, claim=text)
    step = compile(recipe)
    assert set(load(step.standalone(), "standalone")) >= {"step", "Optimizer", "math", "torch"}
    load(step.source, "source")


# ---- a Program that cannot run is refused


def program_of(word="B A O A B"):
    return compile(SGHMC, word).program


def stages(program, change):
    """The program with each stage's statements changed: change(k, statements)."""
    return replace(
        program,
        stages=tuple(
            Stage(stage.title, tuple(change(k, list(stage.statements)))) for k, stage in enumerate(program.stages)
        ),
    )


def index(program, letter, nth=0):
    return [k for k, stage in enumerate(program.stages) if stage.title.startswith(f"{letter} over")][nth]


def without(kind, stage):
    return lambda k, statements: [s for s in statements if not (k == stage and isinstance(s, kind))]


def twice(kind, stage):
    return lambda k, statements: statements + [s for s in statements if k == stage and isinstance(s, kind)]


def test_the_programs_of_stock_samplers_can_run():
    for recipe in (SGLD, SGHMC, SGNHT, MSGNHT, ATMC, UnderdampedLangevin):
        assert verify(compile(recipe).program) is None


def test_a_stale_gradient_is_refused():
    program = program_of()
    with pytest.raises(RecipeError, match="sghmc, program: the gradient g is stale: the target has moved since"):
        verify(stages(program, without(Gradient, index(program, "B", 1))))


def test_an_undefined_name_is_refused():
    program = program_of()
    with pytest.raises(RecipeError, match="decay_p is used before it is defined"):
        verify(replace(program, constants=tuple(c for c in program.constants if str(c.name) != "decay_p")))
    with pytest.raises(RecipeError, match="g is used before it is defined"):
        verify(stages(program, without(Gradient, 0)))


def test_a_draw_that_is_missing_or_used_by_two_stages_is_refused():
    program = program_of("O B A B O")
    first, last = index(program, "O", 0), index(program, "O", 1)
    with pytest.raises(RecipeError, match="is used before it is defined"):
        verify(stages(program, without(Draw, last)))
    again = replace(program, stages=program.stages + (program.stages[first],))
    with pytest.raises(RecipeError, match=r"the draw N\[p1\] is used twice"):
        verify(again)


def test_a_block_that_is_set_twice_in_one_flow_is_refused():
    program = program_of()
    with pytest.raises(RecipeError, match="p is set twice"):
        verify(stages(program, twice(Set, index(program, "O"))))


def test_a_word_with_two_gradients_has_no_optimizer_form_but_a_step():
    text = compile(SGHMC, "F A F A").standalone()
    assert "class Optimizer" not in text and "def step" in text
