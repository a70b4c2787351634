"""What a wrong declaration gets: a RecipeError that says where, what and what to do, before anything runs.

One row of a table is one mistake and the key words of its message, in their order.
"""

import re

import pytest
import torch
from sympy import (
    Abs,
    Function,
    Heaviside,
    I,
    Matrix,
    Max,
    Mod,
    Symbol,
    acosh,
    besselj,
    ceiling,
    erf,
    erfc,
    floor,
    frac,
    log,
    nan,
    oo,
    sign,
    sqrt,
)
from sympy import gamma as gamma_of

from integrators import compile
from integrators.noise import Key
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    euler,
    force,
    function,
    grad,
    nonnegative,
    numerical,
    positive,
    potential,
    real,
    refresh,
    scalar,
    swap,
    total,
    vector,
)
from recipe.symbols import step_size
from samplers import Phase

theta, p, v = vector("theta"), vector("p"), vector("v")
xi, eta, x, y = scalar("xi"), scalar("eta"), scalar("x"), scalar("y")
gamma, B = positive("gamma", default=1.3), positive("B", default=2.0)
U, G = potential(theta), function("G", theta)
H = U + total(p**2) / 2


def declare(**changes):
    """Langevin dynamics, with some of its declaration changed."""
    given = dict(name="langevin", state=(theta, p), target=theta, H=H, D={p: gamma}, Q={(theta, p): -1})
    return Recipe(**given | changes)


def with_scalars(**changes):
    """The same beside two scalar blocks."""
    return declare(state=(theta, p, xi, eta), H=H + xi**2 + eta**2, **changes)


def refuses(make, *words):
    """Check that a call is refused with a message that holds the words in their order, and tells what to do."""
    with pytest.raises(RecipeError) as error:
        make()
    message = str(error.value)
    assert re.search(".*".join(map(re.escape, words)), message, re.DOTALL), message
    assert error.value.where and error.value.what and error.value.do, message
    assert len(message) < 300, message


def table(**rows):
    """Parametrise a test by rows of (changes, words...)."""
    return pytest.mark.parametrize("changes, words", [(row[0], row[1:]) for row in rows.values()], ids=rows)


def test_the_declaration_that_the_tables_change_is_right():
    assert declare().check().ok and with_scalars().check()["claim"].answer == "invariant; not ergodic"


@table(
    Q_not_skew=(dict(Q={(theta, p): -1, (p, theta): -1}), "langevin, Q", "not skew", "Q[p, theta] + Q[theta, p] = -2"),
    Q_on_the_diagonal=(dict(Q={p: 1}), "not skew", "Q[p, p] + Q[p, p] = 2"),
    Q_matrix_not_skew=(dict(Q=Matrix([[0, 1], [p, 0]])), "not skew", "Q[p, theta] + Q[theta, p] = p + 1"),
    D_not_symmetric=(
        dict(D={(theta, p): 1, (p, theta): 2, theta: 9, p: 9}),
        "langevin, D",
        "not symmetric",
        "D[p, theta] - D[theta, p] = 1",
        "one triangle",
    ),
    D_matrix_not_symmetric=(dict(D=Matrix([[1, 2], [1, 4]])), "not symmetric", "D[p, theta] - D[theta, p] = -1"),
    D_negative=(dict(D={p: -gamma}), "langevin, D", "not positive semidefinite", "eigenvalue is -", "gamma ="),
    D_negative_somewhere=(dict(D={p: theta}), "not positive semidefinite", "eigenvalue is -", "theta = -"),
    D_negative_for_a_parameter=(dict(D={p: gamma - B}), "not positive semidefinite", "B ="),
    D_indefinite=(dict(D={theta: 1, p: 1, (theta, p): 2}), "eigenvalue is -1 at every state", "D >= 0"),
    D_opaque_without_a_sign=(dict(D={p: G}), "not positive semidefinite"),
    D_too_small=(dict(D=Matrix([[1]])), "2 blocks needs a 2 x 2 matrix, got (1, 1)", "state="),
    Q_too_large=(dict(Q=Matrix.zeros(3, 3)), "langevin, Q", "2 x 2 matrix, got (3, 3)"),
    D_a_list=(dict(D=[1, 2]), "dict over blocks or a sympy Matrix, got list"),
    D_none=(dict(D=None), "dict over blocks or a sympy Matrix, got NoneType"),
    D_text=(dict(D="gamma"), "dict over blocks or a sympy Matrix, got str"),
    entry_of_a_foreign_block=(dict(D={v: 1}), "langevin, D", "v is not a block of the state", "p, theta"),
    entry_of_a_name=(dict(D={"p": 1}), "langevin, D", "a block or a pair of blocks", "'p'"),
    entry_of_three_blocks=(dict(Q={(theta, p, p): 1}), "langevin, Q", "a block or a pair of blocks", "(theta, p, p)"),
    supplied_more_than_D=(
        dict(supplied={p: 2 * gamma}),
        "langevin, supplied",
        "D - supplied is not positive",
        "eigenvalue is -1.3",
        "more noise than D",
    ),
    supplied_where_D_has_none=(dict(supplied={theta: 1}), "langevin, supplied", "eigenvalue is -1"),
    a_word_of_letters_that_are_none=(dict(scheme="B X A"), "scheme 'B X A': no piece is named 'X'", "A, B"),
    a_word_by_name_that_is_none=(dict(schemes={"paper": "BAO AB"}), "'BAO AB': no piece is named 'BAO'"),
)
def test_matrices_that_make_no_recipe_are_refused(changes, words):
    refuses(lambda: declare(**changes), *words)


@table(
    unknown=(dict(D={p: gamma * Symbol("gama")}), "'gama' is unbound", "Did you mean 'gamma'?"),
    unknown_far_from_all=(dict(D={p: gamma * Symbol("wq")}), "'wq' is unbound", "Known here: gamma, p, theta"),
    plain_symbol_beside_a_parameter=(dict(D={p: gamma * Symbol("gamma")}), "'gamma' is unbound", "plain sympy symbol"),
    foreign_block=(dict(H=H + total(v**2)), "block 'v' is used but is not in the state", "Add v to state="),
    foreign_block_in_a_function=(dict(D={p: function("G", v) ** 2}), "block 'v' is used"),
    block_twice=(dict(state=(theta, p, p)), "are named 'p'", "Rename"),
    blocks_of_one_name=(dict(state=(theta, p, scalar("p"))), "are named 'p'", "Rename"),
    block_and_parameter=(dict(D={p: positive("p")}), "are named 'p'", "Rename"),
    parameters_of_one_name=(dict(D={p: gamma + positive("gamma", default=2)}), "are named 'gamma'", "Rename"),
    function_and_parameter=(dict(D={p: gamma + function("gamma", theta) ** 2}), "are named 'gamma'", "Rename"),
    function_and_block=(dict(D={p: function("p", theta) ** 2}), "are named 'p'", "Rename"),
    one_function_of_two_blocks=(dict(D={p: G**2 + function("G", p) ** 2}), "are named 'G'", "Rename"),
    hostile_function=(dict(D={p: Function("__import__('os')")(theta) ** 2}), "function", "a letter followed by"),
    potential_of_another_block=(
        dict(H=potential(p) + total(p**2)),
        "U(p) is not the potential of the target theta",
        "potential(theta)",
    ),
    two_potentials=(dict(H=H + potential(p)), "U(p) is not the potential of the target theta"),
    target_not_in_state=(dict(target=v), "langevin, target", "v is not in the state"),
    target_by_name=(dict(target="theta"), "langevin, target", "not in the state"),
    several_vector_targets=(
        dict(target=(theta, p)),
        "not the potential of the target (theta, p)",
        "potential(theta, p)",
    ),
    no_blocks=(dict(state=()), "langevin, state", "made of blocks, got ()", "vector("),
    state_by_name=(dict(state="theta"), "langevin, state", "made of blocks, got 'theta'"),
    state_none=(dict(state=None), "langevin, state", "made of blocks, got None"),
    state_of_plain_symbols=(dict(state=(theta, Symbol("p"))), "langevin, state", "made of blocks"),
    recipe_name=(dict(name="my sampler"), "recipe 'my sampler'", "a letter followed by"),
    recipe_name_that_is_a_path=(dict(name="../evil"), "recipe '../evil'", "a letter followed by"),
    recipe_name_with_a_newline=(dict(name="sgld\n"), r"recipe 'sgld\n'", "a letter followed by"),
    recipe_name_a_number=(dict(name=3), "recipe 3", "a letter followed by"),
    pieces_of_numbers=(dict(pieces={"O": 3}), "pieces", "made of blocks, force, friction and noise, got 3"),
)
def test_names_that_do_not_belong_are_refused(changes, words):
    refuses(lambda: declare(**changes), *words)


@table(
    H_without_total=(dict(H=U + p**2 / 2), "langevin, H", "p**2/2 has one value per site", "total(p**2/2)"),
    H_text=(dict(H="p**2/2"), "langevin, H", "got 'p**2/2'", "Text is never evaluated"),
    H_none=(dict(H=None), "langevin, H", "got NoneType", "Build it"),
    H_complex=(dict(H=H + I), "langevin, H", "not a finite real formula"),
    H_nan=(dict(H=H + nan), "langevin, H", "nan is not a finite real formula"),
    H_infinite=(dict(H=H + oo), "langevin, H", "oo is not a finite real formula"),
    D_text=(dict(D={p: "gamma"}), "langevin, D[p, p]", "got 'gamma'", "Text is never evaluated"),
    D_infinite=(dict(D={p: oo}), "langevin, D[p, p]", "oo is not a finite real formula"),
    D_nan=(dict(D={p: float("nan")}), "langevin, D[p, p]", "nan is not a finite real formula"),
    D_complex=(dict(D={p: I}), "langevin, D[p, p]", "I is not a finite real formula"),
    D_a_condition=(dict(D={p: p > 0}), "langevin, D[p, p]", "p > 0 is not a finite real formula"),
    D_a_list=(dict(D={p: [gamma]}), "langevin, D[p, p]", "got [gamma]"),
    Q_text=(dict(Q={(theta, p): "-1"}), "langevin, Q[theta, p]", "got '-1'", "Text is never evaluated"),
    H_flat=(dict(H=U), "langevin, H", "not normalisable in p", "d2H/dp2 = 0", "p**2/2"),
    H_falling=(dict(H=U - total(p**2)), "langevin, H", "not normalisable in p", "d2H/dp2 = -2"),
    H_linear=(dict(H=U + total(p)), "langevin, H", "not normalisable in p"),
    H_with_the_full_hessian=(dict(H=H + total(grad(U) ** 2)), "full Hessian of U", "keep grad(U) outside of total()"),
    Gamma_of_a_modulus=(
        dict(D={theta: 1 + Abs(theta)}),
        "langevin, Gamma[theta]",
        "undefined where theta = 0",
        "Abs(theta) + 1 has no derivative",
        "smooth",
    ),
    Gamma_of_a_root_of_a_square=(dict(D={theta: 1 + sqrt(theta**2)}), "Gamma[theta]", "undefined where theta = 0"),
    Gamma_of_a_maximum=(dict(D={theta: Max(theta, 1)}), "Gamma[theta]", "where theta - 1 = 0", "Max(1, theta)"),
    Gamma_of_a_sign=(dict(D={theta: 2 + sign(theta)}), "Gamma[theta]", "theta = 0", "because sign(theta) + 2 has no"),
    Gamma_of_Q=(dict(Q={(theta, p): Abs(p) - 1}), "Gamma[theta]", "undefined where p = 0", "Abs(p) - 1"),
    Gamma_of_the_energy=(
        dict(D={theta: 1 + Max(0, U)}),
        "Gamma[theta]",
        "undefined where U(theta) = 0",
        "because Max(0, U(theta)) + 1",
    ),
    Gamma_of_one_row_among_rough_ones=(dict(D={theta: Max(p, 0), p: 1 + Abs(p)}), "Gamma[p]", "because Abs(p) + 1"),
)
def test_formulas_that_cannot_be_meant_are_refused(changes, words):
    refuses(lambda: declare(**changes), *words)


@table(
    site_level_D_of_a_scalar=(dict(D={xi: p**2}), "langevin, D[xi, xi]", "p**2 has one value per site", "total()"),
    site_level_Q_of_scalars=(
        dict(Q={(xi, eta): theta}),
        "langevin, Q[xi, eta]",
        "theta has one value per site",
        "total()",
    ),
    noise_of_a_vector_and_a_scalar=(dict(D={p: 1, xi: 1, (p, xi): 0.5}), "langevin, D[p, xi]", "noise shared", "by Q"),
)
def test_formulas_of_scalars_have_one_value_per_chain(changes, words):
    refuses(lambda: with_scalars(**changes), *words)


def test_a_kink_that_gamma_does_not_meet_is_allowed():
    """ATMC's max(Dmin - xi, 0) multiplies the noise of p."""
    assert declare(D={p: gamma + Max(1 - theta, 0)}).check().ok


def test_totals_need_sites():
    refuses(lambda: Recipe(name="flat", state=(x,), H=potential(x) + total(x**2), D={x: 1}), "no sites", "every block")


WORDS = {
    "the lambda": "keyword",
    "class": "keyword",
    "None": "keyword",
    "h": "the step size",
    "T": "the temperature",
    "n": "number of sites",
    "U": "the potential",
    "noise": "this name is taken",
    "state": "this name is taken",
}
HOSTILE = [
    "",
    "_",
    "__class__",
    "a b",
    "a;import os",
    "a\n",
    "a.b",
    "p'",
    "2p",
    "θ",
    "__import__('os')",
    "a" + chr(0),
    3,
    None,
]
MAKERS = {"block": vector, "parameter": positive, "function": lambda name: function(name, theta)}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    "name, word",
    [*((k.split()[-1], w) for k, w in WORDS.items()), *((name, "a letter followed by letters") for name in HOSTILE)],
    ids=repr,
)
def test_names_that_could_not_stand_in_code_are_refused(kind, name, word):
    refuses(lambda: MAKERS[kind](name), f"{kind} {name!r}", word)


@pytest.mark.parametrize(
    "entry, words",
    [
        (sqrt(theta), ["D[theta, theta]", "sqrt(theta) is not real at theta = -"]),
        (log(theta) ** 2, ["D[theta, theta]", "log(theta) is not real at theta = -"]),
        (2 + acosh(theta), ["D[theta, theta]", "acosh(theta) is not real at theta = "]),
        (1 + sqrt(gamma - 1), ["D[theta, theta]", "sqrt(gamma - 1) is not real at gamma = 0."]),
    ],
)
def test_a_diffusion_that_is_not_real_everywhere_is_refused(entry, words):
    refuses(lambda: Recipe(name="r", state=theta, H=U, D={theta: entry}), *words)


def test_a_root_of_what_is_positive_is_real():
    rate = vector("rate", domain="positive")
    assert Recipe(name="r", state=rate, H=total(rate), D={rate: sqrt(rate) + log(rate) ** 2}).gamma


@pytest.mark.parametrize("f", [floor, ceiling, frac, lambda x: Mod(x, 2), gamma_of, lambda x: besselj(0, x)])
@pytest.mark.parametrize("entry", [lambda f: {"H": U + total(f)}, lambda f: {"D": {p: 1 + f}}, lambda f: {"Q": {p: f}}])
def test_an_unknown_function_is_refused_where_it_is_declared(f, entry):
    refuses(lambda: declare(**entry(f(p) ** 2)), str(f(p)), "is no known function", "exp, log")
    refuses(lambda: Energy(theta, U=f(total(theta))), "Energy, U", "is no known function")


@pytest.mark.parametrize("f", [sign, Heaviside])
def test_an_energy_that_jumps_is_refused(f):
    refuses(lambda: declare(H=U + total(p**2 + f(p))), "H", f"{f(p)} is not continuous", "Abs")


@pytest.mark.parametrize("f", [erf, erfc])
def test_error_functions_are_known(f):
    recipe = declare(D={p: 2 + f(p)}, Q={(theta, p): -2 - f(p)})
    assert recipe.check().ok and compile(recipe, "Euler").source


@pytest.mark.parametrize("what", ["doc", "source", "claim"])
@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_a_text_that_no_file_holds_is_refused(what, character):
    refuses(lambda: declare(**{what: f"a {character} b"}), f"{what} is a text without the character")
    refuses(lambda: positive("a", doc=character), "parameter 'a'", "doc is a text without the character")


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_a_budget_that_the_step_size_breaks_is_named(backend):
    recipe = Recipe(name="r", state=theta, H=U, D={theta: 1}, supplied={theta: 100 * step_size})
    step, state = compile(recipe, backend=backend), {"theta": torch.ones(2, 3)}
    refuses(
        lambda: step(state, 0.1, gradient=lambda at: at, noise=Key(0, 0)), "r, supplied", "eigenvalue -9", "h = 0.1"
    )


def test_a_kinetic_energy_that_is_open_is_no_quadratic():
    k = function("k", theta, p)
    assert declare(H=U + total(k + p**2 / 2)).check()["stationary"].verdict == "proved"


def test_a_precision_that_vanishes_at_a_point_is_one():
    """N(0, 1/theta^2) has a density wherever theta is not 0."""
    right = declare(H=U + total(p**2 * theta**2 - log(theta**2)) / 2).check()
    assert "precision" not in str(right) and not right.failures
    wrong = declare(H=U + total(p**2 * Max(theta, 0)) / 2).check()
    assert wrong.failures and "precision 0 of p at theta = -" in str(wrong)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: positive("a", default=-1), ["parameter 'a'", "-1.0 is not positive"]),
        (lambda: positive("a", default=0), ["parameter 'a'", "0.0 is not positive"]),
        (lambda: nonnegative("a", default=-1e-9), ["parameter 'a'", "-1e-09 is not nonnegative"]),
        (lambda: real("a", default=float("inf")), ["parameter 'a'", "inf is not real"]),
        (lambda: real("a", default=float("nan")), ["parameter 'a'", "nan is not real"]),
        (lambda: positive("a", default="1"), ["parameter 'a'", "'1' is not a number"]),
        (lambda: positive("a", default=[1.0]), ["parameter 'a'", "[1.0] is not a number"]),
        (lambda: positive("a", per=xi), ["parameter 'a'", "per=xi is not a vector block", "per=theta"]),
        (lambda: positive("a", per="theta"), ["parameter 'a'", "per=theta is not a vector block"]),
        (lambda: vector("a", domain="complex"), ["block 'a'", "domain 'complex'", "real, positive, nonnegative"]),
        (lambda: function("F", theta, sign="odd"), ["function 'F'", "sign 'odd'"]),
        (lambda: function("F", "theta"), ["function 'F'", "arguments are blocks", "theta"]),
        (lambda: function("F"), ["function 'F'", "arguments are blocks"]),
        (lambda: total("p"), ["total", "got 'p'", "Text is never evaluated"]),
        (lambda: total(10**400 * theta**4), ["total", "10**400", "no float holds"]),
        (lambda: Energy(theta, U=total(theta**4) / 10**400), ["Energy, U", "10**-400", "no float holds"]),
        (lambda: potential("theta"), ["potential", "target's blocks", "theta"]),
        (lambda: potential(), ["potential", "target's blocks"]),
        (lambda: grad(theta), ["grad", "theta, not a potential"]),
        (lambda: grad(potential(x, y)), ["grad", "several blocks", "grad(U, x)"]),
        (lambda: grad(U, p), ["grad", "U(theta) does not depend on p", "theta"]),
        (lambda: numerical(p, "rk4"), ["'rk4'", "unknown method", "euler, heun"]),
        (lambda: numerical(p, "heun") + euler(theta), ["one numerical method"]),
        (lambda: force("p"), ["force(p)", "its argument is a block"]),
        (lambda: refresh(p, keep=0.5), ["refresh", "there is no argument 'keep'", "refresh it in part"]),
        (lambda: swap(x, y, rte=2), ["swap", "there is no argument 'rte'", "Did you mean 'rate'?"]),
        (lambda: Phase(10, sg=1), ["Phase", "there is no argument 'sg'", "parameters are those of the run"]),
        (lambda: Energy((Symbol("x"),), U=Symbol("y")), ["Energy", "'y' in U is not a coordinate"]),
        (lambda: Energy((Symbol("x"),), U="x**2"), ["Energy, U", "Text is never evaluated"]),
        (lambda: Energy("x", U=1), ["Energy", "coordinates are sympy symbols, got 'x'"]),
        (lambda: Energy((Symbol("x"), Symbol("x")), U=1), ["Energy", "occurs twice"]),
        (lambda: Energy((theta, Symbol("x")), U=total(theta)), ["Energy", "vector block cannot stand beside"]),
        (lambda: Energy(theta, U=theta**2), ["Energy", "one value per site", "total()"]),
    ],
)
def test_wrong_words_of_the_language_are_refused(make, words):
    refuses(make, *words)
