"""The emitted torch step against two oracles of its own Program and flows, its gradients, its standalone text."""

import ast
import copy
import io
import math
import os
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from itertools import product

import numpy as np
import pytest
import sympy
import torch
from covering import EVERY_MECHANISM, covering
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from statements import interpret
from sympy import ImmutableMatrix, Max, Min, Piecewise, Rational, exp, log, pi, sin, sqrt, symbols, tanh
from zoo import CURVED, GENERALISED_LANGEVIN, JOINT, MAGNETIC, QUARTIC_KINETIC

from integrators import compile
from integrators.backends.loading import load
from integrators.initial_state import stationary_start
from integrators.optimizer_form import optimizer_form
from recipe import (
    Energy,
    Recipe,
    euler,
    force,
    friction,
    grad,
    noise,
    nonnegative,
    numerical,
    positive,
    potential,
    real,
    scalar,
    total,
    vector,
)
from samplers import SGHMC, SGLD, SGNHT, Optimizer, UnderdampedLangevin, catalogue
from samplers.testing.cases import CASES as STOCK
from samplers.testing.interpreter import Chain, flow_by_flow, van_loan
from samplers.testing.properties import residual_is_zero
from samplers.testing.random_calls import STEP_SIZE as h
from samplers.testing.random_calls import (
    TEMPERATURE,
    asked,
    by_oracle,
    called,
    case_of,
    each,
    gradient,
    inputs,
    own_step_size,
    tensors,
    worst,
)
from samplers.testing.strategies import recipes

SHAPES = [(), (3,), (2, 2)]

theta, p, s, xi, zeta = vector("theta"), vector("p"), vector("s"), scalar("xi"), vector("zeta")
x, y, z, px, py = (scalar(name) for name in ("x", "y", "z", "px", "py"))
a, b, c, m = positive("a"), real("b"), positive("c"), positive("m", per=theta)
A, mu, nu, n = positive("A"), positive("mu"), positive("nu", per=theta), total(1)
U = potential(theta)


# ---- recipes and words

PAPER = {"G": euler(p), "R": friction(p), "W": force(p) + noise(p)}

# A Langevin friction with one thermostat per chain and another per site
SHARED_AND_PRIVATE = Recipe(
    name="shared-and-private",
    state=(theta, p, xi, zeta),
    H=U + total(p**2 / m) / 2 + n * mu * (xi - A) ** 2 / 2 + total(nu * zeta**2) / 2,
    D={p: A * m},
    Q={(theta, p): -1, (p, xi): p / (n * mu), (p, zeta): p / nu},
)
GENERALISED_LANGEVIN_PER_SITE = Recipe(
    name="gle-per-site",
    state=(theta, p, s),
    H=U + total(p**2 / m) / 2 + total(s**2) / 2,
    D={p: b**2, s: nu},
    Q={(theta, p): -1, (p, s): c},
)
# The matrix of the O piece depends on a chain-level thermostat and on a per-site parameter
GENERALISED_LANGEVIN_WITH_THERMOSTAT = Recipe(
    name="gle-thermostat",
    state=(theta, p, s, xi),
    H=U + total(p**2) / 2 + total(s**2) / 2 + n * xi**2 / 2,
    D={s: nu},
    Q={(theta, p): -1, (p, s): c, (p, xi): p / n},
)
MOVING_CURL = Recipe(
    name="moving-curl",
    state=(theta, p),
    H=U + total(p**2) / (2 * a),
    D={p: 1 + theta**2},
    Q={(theta, p): -sqrt(1 + theta**2)},
)
DENSE_2 = Recipe(
    name="dense-2",
    state=(x, y),
    target=(x, y),
    H=potential(x, y),
    D={x: 1 + y**2, (x, y): sin(x) * y, y: 2 + x**2 + y**2},
    Q={(x, y): b * x + sympy.cos(y)},
)
L = ImmutableMatrix([[1, 0, 0], [sin(x), a, 0], [y, b * z, c]])
DENSE_3 = Recipe(
    name="dense-3",
    state=(x, y, z),
    target=(x, y, z),
    H=potential(x, y, z),
    D=L * L.T,
    Q={(x, y): z, (x, z): -x * y, (y, z): exp(-(x**2))},
)
# No entry of the Cholesky factor simplifies
DENSE_3_OF_UNRELATED_ENTRIES = Recipe(
    name="dense-3-unrelated",
    state=(x, y, z),
    target=(x, y, z),
    H=potential(x, y, z),
    Q={(x, y): z},
    D={
        x: 3 + sin(y),
        y: 3 + sympy.cos(x),
        z: 3 + tanh(x * y),
        (x, y): sin(x * y) / 2,
        (x, z): sympy.cos(z) / 2,
        (y, z): exp(-(x**2)) / 2,
    },
)
# Two 2 x 2 blocks of noise that have nothing to do with each other
TWO_PAIRS = Recipe(
    name="two-pairs",
    state=(x, y, px, py),
    target=(x, y),
    H=potential(x, y) + (px**2 + py**2) / 2,
    D={x: 1 + y**2, (x, y): sin(x) * y, y: 2 + x**2, px: 2 + y**2, (px, py): y, py: 1 + exp(-(x**2))},
    Q={(x, px): -1, (y, py): -1},
)
CURL_OF_TOTALS = Recipe(
    name="curl-of-totals",
    state=(theta, p, xi),
    H=U + total(p**2) / 2 + n * mu * xi**2 / 2,
    D={p: 1 + (total(p * theta) / n) ** 2, xi: exp(-total(p**2) / n)},
    Q={(theta, p): -1 - total(p) ** 2, (p, xi): p * total(theta**2) / n, (theta, xi): sin(total(p * xi))},
)
TOTAL_OF_PARAMETERS = Recipe(
    name="total-of-parameters",
    state=(theta, p, xi),
    H=U + total(p**2 / m) / 2 + xi**2 / 2,
    D={p: m},
    Q={(theta, p): -1, (p, xi): p * total(m) / n},
)
# Correlated noise whose Cholesky factor has a pivot that may vanish: the choice hangs on a parameter alone
share = nonnegative("a")
DEGENERATE_NOISE = Recipe(
    name="degenerate",
    state=(x, y),
    target=(x, y),
    H=potential(x, y),
    D={x: share, (x, y): share * sin(x), y: 1 + share * sin(x) ** 2},
)

LANGEVIN = [
    "Lie(A, B, O)",
    "Strang(O, B, A)",
    "A G",
    "A R W R A",
    "B A B O",
    [("A", 0.25), ("B", 0.7), ("O", 1), ("A", 0.75), ("B", 0.3)],
]
THERMOSTATTED = ["O C A B", "Strang(A', B, O)", "G A'", "A' R W R A'", [("C", 0.5), ("A", 1), ("F", 1), ("C", 0.5)]]
OWN = [
    *((UnderdampedLangevin, word, PAPER) for word in LANGEVIN),
    *((SGNHT, word, PAPER) for word in THERMOSTATTED),
    (SHARED_AND_PRIVATE, "B A' O A' B", {}),
    (SHARED_AND_PRIVATE, "A' F A'", {}),
    (SHARED_AND_PRIVATE, "Euler", {}),
    (GENERALISED_LANGEVIN, "B A O A B", JOINT),
    (GENERALISED_LANGEVIN, [("O", 0.25), ("A", 1), ("B", 1), ("O", 0.75)], JOINT),
    (GENERALISED_LANGEVIN, "A O A B", JOINT),
    (GENERALISED_LANGEVIN, "Euler", {}),
    (GENERALISED_LANGEVIN_PER_SITE, "B A O A B", {"O": (friction(p), noise(p), s)}),
    (GENERALISED_LANGEVIN_WITH_THERMOSTAT, "B X O X B", {"O": (friction(p), s), "X": (theta, xi)}),
    (QUARTIC_KINETIC, "B A O A B", {"O": numerical(friction(p) + noise(p), "heun")}),
    (MOVING_CURL, "Euler", {}),
    (DENSE_2, "Euler", {}),
    (DENSE_3, "Euler", {}),
    (DENSE_3_OF_UNRELATED_ENTRIES, "Euler", {}),
    (TWO_PAIRS, "Euler", {}),
    (MAGNETIC, "B A O A B", {}),
    (MAGNETIC, "A B O B A", {}),
    (MAGNETIC, "Euler", {}),
    (CURL_OF_TOTALS, "Euler", {}),
    (TOTAL_OF_PARAMETERS, "Euler", {}),
    (CURVED, "Euler", {}),
    (DEGENERATE_NOISE, "Euler", {}),
]


CASES = {
    f"{name} {word}": (lambda case=case, word=word: compile(case.recipe, word))
    for name, case in STOCK.items()
    for word in case.all_words
}
CASES |= {
    f"own {recipe.name} {word}": (lambda recipe=recipe, word=word, pieces=pieces: compile(recipe, word, pieces=pieces))
    for recipe, word, pieces in OWN
}


@cache
def built(case):
    return CASES[case]()


# ---- L1: the step is its Program, and the Program is its flows


# Own words of every mechanism and own pieces are asked at every change; the other words are slow.
ALWAYS = [f"{name} {STOCK[name].recipe.scheme}" for name in EVERY_MECHANISM]
ALWAYS += [case for case in CASES if case.startswith("own")]


@pytest.mark.parametrize("case", covering(CASES, ALWAYS))
def test_the_emitted_step_equals_the_program_and_its_flows(case):
    step = built(case)
    vectors = any(block.is_vector for block in step.recipe.state)
    for chains, shape in [(4, ()), *([(4, (3,)), (1, (2, 2))] if vectors else [(1, ())])]:
        state, drawn, parameters = inputs(step, chains, shape)
        emitted = called(step, state, drawn, parameters)
        for oracle in (interpret, flow_by_flow) if chains == 4 else (interpret,):
            assert worst(emitted, by_oracle(oracle, step, state, drawn, parameters)) <= 1e-12


@pytest.mark.parametrize("case", covering(CASES, ALWAYS))
def test_a_float32_step_stays_float32_and_is_close_to_float64(case):
    step = built(case)
    state, drawn, parameters = inputs(step, 4, (3,))
    single, double = (called(step, state, drawn, parameters, dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert {v.dtype for v in single.values() if torch.is_tensor(v)} == {torch.float32}
    assert worst(single, double) <= 2e-5


@pytest.mark.parametrize("case", covering(CASES, ALWAYS))
def test_a_batch_of_chains_is_the_loop_over_its_chains(case):
    step = built(case)
    state, drawn, parameters = inputs(step, 4, (3,))
    batch = called(step, state, drawn, parameters)

    def one(arrays, k):
        return each(lambda v: v[k : k + 1], arrays)

    loop = [called(step, one(state, k), one(drawn, k), parameters) for k in range(4)]
    loop = {block.name: torch.cat([chain[block.name] for chain in loop]) for block in step.recipe.entries}
    assert worst(batch, loop) <= 1e-14


@pytest.mark.parametrize("word", [*STOCK["underdamped-langevin"].all_words, *LANGEVIN, None])
def test_without_totals_a_batch_of_chains_is_the_loop_bit_for_bit(word):
    step = compile(UnderdampedLangevin if word else SGLD, word, pieces=PAPER if word else {})
    state, drawn, parameters = inputs(step, 5, (7,))

    def local(at):
        return at**3 / 4 + at / 2 - 0.4

    batch = called(step, state, drawn, parameters, gradient=local)
    for k in range(5):

        def one(arrays):
            return {name: v[k : k + 1] for name, v in arrays.items()}

        chain = called(step, one(state), one(drawn), parameters, gradient=local)
        assert all(torch.equal(chain[block.name][0], batch[block.name][k]) for block in step.recipe.state)


@pytest.mark.parametrize("case", CASES)
def test_a_step_leaves_its_inputs_alone(case):
    step = built(case)
    given = [tensors(part) for part in inputs(step, 2, (3,))]
    kept = [each(torch.clone, part) for part in given]
    out = step(given[0], own_step_size(step), gradient=gradient, noise=given[1], **asked(step), **given[2])

    def unchanged():
        return all(
            torch.equal(before[k], v)
            for before, after in zip(kept, given)
            for k, v in after.items()
            if torch.is_tensor(v)
        )

    assert unchanged() and [part.keys() for part in kept] == [part.keys() for part in given]
    for block in step.recipe.state:
        out[block.name].add_(1)
    assert unchanged()


# ---- the gradient: taken when theta has moved, and only then


def evaluations(step, steps=3):
    """The trajectory of some steps, and how often each of them evaluated the gradient."""
    state, _, parameters = inputs(step, 2, (3,))
    state, counts = tensors(state), []

    def counted(at):
        counts[-1] += 1
        return gradient(at)

    for k in range(steps):
        counts.append(0)
        drawn = tensors(inputs(step, 2, (3,), seed=k)[1])
        state = step(state, h, gradient=counted, noise=drawn, **tensors(parameters))
    return state, counts


@pytest.mark.parametrize(
    "word, fresh, first, later",
    [
        ("B A O A B", 2, 2, 1),
        ("A B O B A", 2, 1, 1),
        ("O B A B O", 2, 2, 1),
        ("F A", 1, 1, 1),
        ("A F", 1, 1, 1),
        ("F A F", 2, 2, 1),
        ("A G", 1, 1, 1),
        ("G A", 1, 1, 1),
        ("Euler", 1, 1, 1),
        ("B A B O", 2, 2, 1),
    ],
)
def test_a_gradient_serves_until_theta_moves(word, fresh, first, later):
    reused, counts = evaluations(compile(UnderdampedLangevin, word, pieces=PAPER))
    anew, all_counts = evaluations(compile(UnderdampedLangevin, word, pieces=PAPER, reuse_gradient=False))
    assert counts == [first, later, later]
    assert all_counts == [fresh] * 3
    assert "gradient" not in anew
    assert worst(reused, anew) <= 1e-12


@pytest.mark.parametrize("case", [case for case in CASES if "B A" in case])
def test_the_carried_gradient_is_the_one_where_theta_stands(case):
    step = built(case)
    state, drawn, parameters = inputs(step, 2, (3,))
    out = called(step, state, drawn, parameters)
    if step.program.carries_gradient:
        where = {block.name: out[block.name] for block in step.recipe.targets}
        expected = gradient(where if len(where) > 1 else out["theta"])
        carried = out["gradient"] if len(where) > 1 else {"theta": out["gradient"]}
        assert worst(carried, expected if len(where) > 1 else {"theta": expected}) <= 1e-14
    again = called(step, {k: v.numpy() for k, v in out.items() if torch.is_tensor(v)}, drawn, parameters)
    stands = {b.name: out[b.name].numpy() for b in step.recipe.entries}
    expected = by_oracle(flow_by_flow, step, stands, drawn, parameters)
    assert worst(again, expected) <= 1e-12


# ---- formulas as torch text: every function at every level


w = real("b")
LEVELS = {"number": w, "per site": nu - 1, "chain": xi, "site": s, "mixed": xi * s + w * nu}
FORMULAS = {
    "polynomial": lambda u: (u**3 - 2 * u + Rational(1, 3)) / 7,
    "ratio": lambda u: u / (2 + u**2) - 1 / (1 + u**4) ** 2,
    "root": lambda u: sqrt(1 + u**2) / sqrt(2 + u**2),
    "cube root": lambda u: (1 + u**2) ** Rational(-1, 3),
    "float": lambda u: 0.37 * u - 1.5e-3,
    "power of two": lambda u: 2**u,
    "log": lambda u: log(1 + u**2),
    "tan": lambda u: sympy.tan(u / 4),
    "asin": lambda u: sympy.asin(tanh(u) / 2),
    "acos": lambda u: sympy.acos(tanh(u) / 2),
    "acosh": lambda u: sympy.acosh(2 + u**2),
    "atanh": lambda u: sympy.atanh(tanh(u) / 2),
    "Max": lambda u: Max(u, 0),
    "Min": lambda u: Min(u, Rational(1, 4), 1),
    "pi": lambda u: sin(pi * u),
    "Piecewise": lambda u: Piecewise((u**2, u > 0), (-u, True)),
    "three pieces": lambda u: Piecewise((1, u < -0.5), (u, u <= 0.5), (2, True)),
}
OF_ANY_NUMBER = ("exp", "sin", "cos", "sinh", "cosh", "tanh", "atan", "asinh", "erf", "erfc", "Abs")
FORMULAS |= {name: getattr(sympy, name) for name in OF_ANY_NUMBER}
PAIRS = {
    "product": lambda u, v: u * v,
    "sum": lambda u, v: u + v - 1,
    "power": lambda u, v: (1 + u**2) ** v,
    "quotient": lambda u, v: u / (1 + v**2),
    "Max": lambda u, v: Max(u, v),
    "Min": lambda u, v: Min(u, v, 0),
    "Piecewise": lambda u, v: Piecewise((u, v > 0), (v - 1, True)),
    "root": lambda u, v: sqrt(u**2 + v**2 + 1),
    "choice": lambda u, v: Piecewise((u, v > 0), (0, True)),
    "difference": lambda u, v: (u - v) * (v - u),
    "total": lambda u, v: u * total(v * s) / n,
}


def with_curl(curl):
    """Langevin dynamics whose curl is any formula of blocks that stand still."""
    return Recipe(
        name="formula",
        state=(theta, p, s, xi),
        D={p: 1},
        Q={(theta, p): curl},
        H=U + total(p**2) / 2 + total(s**2) / 2 + xi**2 / 2,
    )


def assert_emitted(recipe, word="Euler"):
    step = compile(recipe, word)
    for shape in ((), (2, 3)):
        state, drawn, parameters = inputs(step, 4, shape)
        expected = interpret(step, state, h, gradient=gradient, noise=drawn, **parameters)
        assert worst(called(step, state, drawn, parameters), expected) <= 1e-12, step.source


EVERY_VALUE = list(product(FORMULAS, LEVELS))


@pytest.mark.parametrize("formula, level", covering(EVERY_VALUE, EVERY_VALUE[::3]))
def test_every_function_has_its_value_at_every_level(formula, level):
    assert_emitted(with_curl(FORMULAS[formula](LEVELS[level])))


EVERY_MEETING = list(product(PAIRS, LEVELS, LEVELS))
PAIRWISE = [  # every formula with every level on either side, every two levels
    (formula, first, list(LEVELS)[(i + k) % len(LEVELS)])
    for k, formula in enumerate(PAIRS)
    for i, first in enumerate(LEVELS)
]


@pytest.mark.parametrize("formula, first, second", covering(EVERY_MEETING, PAIRWISE))
def test_values_of_two_levels_meet_in_their_shapes(formula, first, second):
    assert_emitted(with_curl(PAIRS[formula](LEVELS[first], LEVELS[second])))


# ---- the matrix Ornstein-Uhlenbeck solution


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [1e-9, 1e-2, 1.0, 30.0])
def test_the_square_root_of_the_matrix_solution_has_the_van_loan_covariance(size, scale):
    random = np.random.default_rng(size)
    solution = load(compile(GENERALISED_LANGEVIN, "O A B", pieces=JOINT).source, "gle")["matrix_ou"]
    for rank in range(size + 1):
        A = random.normal(size=(size, size)) + size * np.eye(size)
        root = random.normal(size=(size, rank))
        D = root @ root.T
        out = np.array(solution(size, scale, *A.ravel(), *D.ravel())).reshape(3, size, size)
        expected = van_loan(A, D, scale / 2**8)
        for _ in range(8):  # int_0^2t = int_0^t + M_t (.) M_t^T: the plain exponential loses digits for long times
            M, J, V = expected
            expected = M @ M, J + M @ J, V + M @ V @ M.T
        for part, value in zip(expected, (out[0], out[1], out[2] @ out[2].T)):
            assert np.abs(value - part).max() <= 1e-12 * max(np.abs(part).max(), 1e-300)


# ---- the gradient of a symbolic energy


x_, y_, z_ = symbols("x y z", real=True)
a_, b_ = symbols("theta u0", real=True)
q = vector("q")
ENERGIES = {
    "a quadratic": (
        Energy((x_, y_, z_), U=x_**2 + x_ * y_ + (y_ - z_) ** 2 / 2 + 3 * z_),
        lambda t: t[0] ** 2 + t[0] * t[1] + (t[1] - t[2]) ** 2 / 2 + 3 * t[2],
    ),
    "a banana": (
        Energy((x_, y_), U=(1 - x_) ** 2 + 5 * (y_ - x_**2) ** 2),
        lambda t: (1 - t[0]) ** 2 + 5 * (t[1] - t[0] ** 2) ** 2,
    ),
    "names of the text's own": (
        Energy((a_, b_), U=sin(a_ + b_) ** 2 * exp(a_ * b_) + a_**4),
        lambda t: torch.sin(t[0] + t[1]) ** 2 * torch.exp(t[0] * t[1]) + t[0] ** 4,
    ),
    "one coordinate": (Energy(x_, U=log(1 + x_**2) + x_), lambda t: (torch.log(1 + t**2) + t).sum()),
    "a coordinate it does not read": (Energy((x_, y_), U=x_**4 / 4), lambda t: t[0] ** 4 / 4),
    "a sum over sites": (
        Energy(theta, U=total(theta**4) / 4 + total(sin(theta)) ** 2 / n),
        lambda t: (t**4).sum() / 4 + t.sin().sum() ** 2 / t.numel(),
    ),
    "a block of another name": (
        Energy(q, U=total(exp(q)) - total(q) * total(q**2) / n),
        lambda t: t.exp().sum() - t.sum() * (t**2).sum() / t.numel(),
    ),
}


@pytest.mark.parametrize("recipe", ["underdamped-langevin", "sgnht", "sgld"])
@pytest.mark.parametrize("name", ENERGIES)
def test_the_gradient_of_a_symbolic_energy_is_that_of_autograd(name, recipe):
    energy, potential_of = ENERGIES[name]
    step = compile(catalogue[recipe], energy=energy)
    shape = (2, 3) if energy.is_sitewise else (len(energy.coordinates),)
    state, drawn, parameters = inputs(step, 5, shape)
    by_autograd = torch.func.vmap(torch.func.grad(potential_of))
    expected = called(step, state, drawn, parameters, gradient=by_autograd)
    own = step(tensors(state), h, noise=tensors(drawn), **tensors(parameters))
    assert worst(own, expected) <= 1e-12


@pytest.mark.parametrize("recipe, word", [(DENSE_2, "Euler"), (MAGNETIC, "B A O A B")])
def test_an_energy_of_explicit_coordinates_is_differentiated_by_block(recipe, word):
    step = compile(recipe, word, energy=Energy((a_, b_), U=(1 - a_) ** 2 + 5 * (b_ - a_**2) ** 2 + sin(a_ * b_)))
    state, drawn, parameters = inputs(step, 5, ())

    def banana(at):
        return (1 - at["x"]) ** 2 + 5 * (at["y"] - at["x"] ** 2) ** 2 + torch.sin(at["x"] * at["y"])

    expected = called(step, state, drawn, parameters, gradient=torch.func.vmap(torch.func.grad(banana)))
    assert worst(step(tensors(state), h, noise=tensors(drawn), **tensors(parameters)), expected) <= 1e-12


# ---- the standalone file


def standalone(step):
    """The names of the standalone text, run by itself."""
    text = step.standalone()
    for node in ast.walk(ast.parse(text)):
        assert not isinstance(node, ast.ImportFrom)
        assert not isinstance(node, ast.Import) or {alias.name for alias in node.names} <= {"math", "torch"}
    return load(text, "standalone")


@pytest.mark.parametrize("case", covering(CASES, ALWAYS[: len(EVERY_MECHANISM)]))
def test_the_standalone_file_imports_only_math_and_torch_and_its_step_is_the_step(case):
    step = built(case)
    state, drawn, parameters = inputs(step, 3, (2,))
    given = step.arguments(gradient, tensors(drawn), **asked(step)) | step.spelled(tensors(parameters))
    alone = standalone(step)["step"](tensors(state), own_step_size(step), **given)
    together = called(step, state, drawn, parameters)
    assert worst(alone, together) <= 1e-15


def trained(optimizer, steps=200):
    """The parameters of a loop over a smooth loss, two tensors in two shapes."""
    first, second = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3), torch.ones(2, dtype=torch.float64)
    parameters = [first.clone().requires_grad_(), second.clone().requires_grad_()]
    optimizer = optimizer(parameters)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (parameters[0] ** 4).sum() / 4 + ((parameters[0].sum(0)[:2] - parameters[1]) ** 2).sum()
        loss.backward()
        optimizer.step()
    return torch.cat([w.detach().reshape(-1) for w in parameters])


NEED_HEAT = {"vsgd", "isgd", "sghmc-adaptive"}  # whose gradient supplies, or may supply, all the noise of T = 1
TRAINED = {
    name: case
    for name, case in STOCK.items()
    if case.recipe.potential
    and case.recipe.target_is_vector
    and case.recipe.target.domain.is_real
    and name != "psgld-gamma"
}


OWN_WORDS = [f"{name} {case.recipe.scheme}" for name, case in TRAINED.items()]


def trained_words():
    """Of every recipe all its words."""
    for name, case in TRAINED.items():
        if name not in NEED_HEAT and not case.observe:
            words = dict.fromkeys([case.recipe.scheme, *case.recipe.schemes.values(), *case.words[-1:]])
            yield from (f"{name} {word}" for word in words)


def always_trained(case):
    """The own word of every mechanism."""
    name, word = case.split(" ", 1)
    return name in EVERY_MECHANISM and word == TRAINED[name].recipe.scheme


LOWERING = [case for case in filter(always_trained, trained_words()) if case.split()[0] in ("sghmc", "psgld-gamma")]


@pytest.mark.parametrize("case", covering(trained_words(), LOWERING))  # the steps themselves are asked next
def test_the_standalone_optimizer_lowers_a_loss(case):
    step = built(case)
    given = {
        q.name: 0.0 if q.name in ("B", "V", "K") else case_of(step.recipe).values.get(q.name, q.default)
        for q in step.recipe.parameters
    }
    optimizer = standalone(step)["Optimizer"]
    h = 0.3 if step.recipe.name == "hmc" else 0.05  # momenta that are drawn anew at every step go h^2/2 far
    before = trained(lambda w: torch.optim.SGD(w, lr=0.0), steps=1)
    after = trained(lambda w: optimizer(w, step_size=h, temperature=1e-4, **given), steps=200)
    assert after.isfinite().all() and after.abs().max() < before.abs().max() / 2


@pytest.mark.parametrize("case", covering(OWN_WORDS, filter(always_trained, OWN_WORDS)))
def test_the_standalone_optimizer_goes_on_as_the_step_of_its_word_turned_to_the_gradient(case):
    """Three steps with the same numbers for noise, from where the first call of the optimizer has left its state."""
    step = built(case)
    turned = optimizer_form(step.recipe, step.scheme, step.flows, step.recipe.adapt).scheme
    same = compile(step.recipe, list(turned.moves))
    size, (_, _, parameters) = own_step_size(step), inputs(step, 1, ())
    of_the_run = {"temperature": TEMPERATURE, "num_data": 3}
    given = {q.name: float(parameters[q.name]) for q in step.recipe.parameters}
    weights = torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64, requires_grad=True)
    optimizer = standalone(step)["Optimizer"]([weights], step_size=size, **of_the_run, **given)
    optimizer.draw = lambda kind, like: torch.full_like(like, 0.4)
    drawn = {d.name: torch.full((1, 3) if d.is_vector else (1,), 0.4, dtype=torch.float64) for d in same.program.draws}
    state = None
    for k in range(4):
        weights.grad = gradient(weights.detach()[None])[0] / 3
        optimizer.step(**({"observe": case_of(step.recipe).observe} if step.observations else {}))
        if state is not None:
            state = same(
                state,
                size,
                gradient=gradient,
                noise=drawn,
                observe=case_of(step.recipe).observe,
                step_number=k,
                **of_the_run,
                **given,
            )
            assert (weights.detach() - state["theta"][0]).abs().max() <= 1e-12
        else:
            kept = optimizer.state[weights]
            state = {b.name: kept[b.name].clone() for b in step.recipe.entries if b not in step.recipe.targets}
            state["theta"] = weights.detach()[None].clone()


@pytest.mark.parametrize("name", ["sgnht", "msgnht"])
def test_the_standalone_optimizer_starts_auxiliary_blocks_from_the_law_of_the_library(name):
    recipe = STOCK[name].recipe
    state, _, parameters = inputs(compile(recipe), 1, (3,))
    start, state = stationary_start(recipe), tensors(state)
    drawn = {d.name: torch.full_like(state[d.block.name], 0.4) for d in start.program.draws}
    given = tensors(parameters) | {"temperature": 1.7}
    begun = standalone(compile(recipe))["begin"](state, h, gradient=None, noise=drawn, **start.spelled(given))
    assert worst(begun, start(state, h, noise=drawn, **given)) == 0 and not torch.equal(begun["p"], state["p"])


def test_the_optimizer_repeats_its_seed_and_no_other():
    optimizer = standalone(compile(SGHMC, "F A"))["Optimizer"]
    runs = [trained(lambda w: optimizer(w, step_size=0.03, seed=seed), steps=5) for seed in (4, 4, 5)]
    assert torch.equal(runs[0], runs[1]) and (runs[0] - runs[2]).abs().min() > 0


LIKE_THE_LIBRARY = ["sgld", "psgld-same-step", "sghmc", "sgnht", "msgnht", "atmc", "underdamped-langevin", "santa"]


@pytest.mark.parametrize("name", covering(LIKE_THE_LIBRARY, ["sgld", "sghmc", "sgnht", "santa"]))
def test_learning_rates_schedules_and_weight_decay_are_those_of_the_library_optimizer(name):
    """At temperature 0, where both start at rest and make the same steps; the rate falls, and is 0 for a while."""
    recipe = catalogue[name]
    rate = dict(lr=0.02, momentum=0.8) if "lr, momentum" in recipe.conversions else dict(lr=0.002)
    how = rate | dict(num_data=50, weight_decay=0.3, temperature=0.0)

    def run(kind):
        weights = torch.nn.Parameter(torch.tensor([[0.3, -1.2], [0.8, 0.1]], dtype=torch.float64))
        optimizer = kind(weights)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.0 if 5 <= k < 8 else 0.9**k)
        for _ in range(20):
            optimizer.zero_grad()
            (weights**4).sum().backward()
            optimizer.step()
            schedule.step()
        return weights.detach()

    ours = run(lambda w: standalone(compile(recipe))["Optimizer"]([w], **how))
    theirs = run(lambda w: Optimizer([w], recipe, backend="torch", **how))
    assert (ours - theirs).abs().max() <= 1e-12 and (
        ours - run(lambda w: torch.optim.SGD([w], lr=0.0))
    ).abs().max() > 1e-3


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(), "give lr and momentum, or step_size"),
        (dict(lr=0.1, step_size=0.1), "give lr and momentum, or step_size"),
        (dict(lr=0.1, C=2.0), "C, m follow from lr and momentum"),
        (dict(lr=math.nan), "none below 0"),
        (dict(step_size=-1.0), "none below 0"),
        (dict(lr=0.1, weight_decay=-1.0), "none below 0"),
        (dict(lr=0.1, num_data=0), "num_data is a positive"),
        (dict(lr=0.1, momentum=1.0), "from 0 to 1"),
    ],
)
def test_settings_that_fit_no_step_are_refused_for_every_group(given, message):
    optimizer, weights = standalone(compile(SGHMC))["Optimizer"], torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=message):
        optimizer([weights], **given)
    if "lr" in given and "step_size" not in given:
        with pytest.raises(ValueError, match=message):
            optimizer([weights], lr=0.2).add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], **given})


def test_a_group_holds_tensors_of_one_kind_and_the_same_ones_at_every_step():
    optimizer, weights = standalone(compile(SGHMC))["Optimizer"], [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    with pytest.raises(ValueError, match="differ in dtype"):
        optimizer([weights[0], torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))], lr=0.1)
    running = optimizer(weights, lr=0.1)
    weights[0].grad = torch.ones(3)
    running.step()
    weights[0].grad, weights[1].grad = None, torch.ones(3)
    with pytest.raises(RuntimeError, match="other parameters have a gradient"):
        running.step()


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("twin", ["copy", "state"])
def test_a_copy_of_the_standalone_optimizer_has_the_same_noise_to_come(twin, before):
    module = standalone(compile(SGNHT))
    weights = torch.nn.Parameter(torch.zeros(4))

    def moved(optimizer, steps):
        w = optimizer.param_groups[0]["params"][0]
        for _ in range(steps):
            w.grad = w.detach() - 1
            optimizer.step()
        return w.detach().clone()

    optimizer = module["Optimizer"]([weights], lr=0.1, num_data=9, seed=3)
    moved(optimizer, before)
    kept, at = copy.deepcopy(optimizer.state_dict()), weights.detach().clone()
    other = copy.deepcopy(optimizer)
    expected = moved(optimizer, 4)
    if twin == "state":
        other = module["Optimizer"]([torch.nn.Parameter(at)], lr=0.1, num_data=9, seed=7)
        other.load_state_dict(kept)
        optimizer.load_state_dict(kept)
        weights.data.copy_(at)
        assert torch.equal(moved(optimizer, 4), expected)
    assert torch.equal(moved(other, 4), expected)


# ---- recipes nobody wrote: Euler's step is the SDE


def assert_euler_is_the_sde(recipe, shape):
    """z' = z + h f(z) + w with w ~ N(0, 2 h T D(z)), f and D taken from the recipe."""
    step = compile(recipe, "Euler")
    state, drawn, parameters = inputs(step, 3, shape)
    for oracle in (interpret, flow_by_flow):
        expected = oracle(step, state, h, gradient=gradient, noise=drawn, **parameters)
        assert worst(called(step, state, drawn, parameters), expected) <= 1e-12
    at = Chain(recipe, state, h, parameters)
    at.at |= {grad(recipe.potential, block): value for block, value in at.ask(gradient).items()}
    quiet = called(step, state, {name: 0 * v for name, v in drawn.items()}, parameters)
    for i, block in enumerate(recipe.state):
        moved = at.lift(quiet[block.name].numpy() - state[block.name], block)
        drift = np.broadcast_to(at.value(recipe.tempered_drift[i]), moved.shape)
        assert np.abs(moved - h * drift).max() <= 1e-12 * max(1, np.abs(drift).max())
    columns = {}
    for name, block in step.draw_blocks.items():
        unit = called(step, state, {k: np.full_like(v, k == name) for k, v in drawn.items()}, parameters)
        columns[block] = {b: at.lift((unit[b.name] - quiet[b.name]).numpy(), b) for b in recipe.state}
    for i, row in enumerate(recipe.state):
        for j, column in enumerate(recipe.state):
            covariance = sum((noise[row] * noise[column] for noise in columns.values()), 0.0)
            expected = 2 * h * TEMPERATURE * at.value(recipe.D[i, j])
            assert np.abs(covariance - expected).max() <= 1e-10 * max(1, np.abs(expected).max())


few = settings(max_examples=3, derandomize=True, deadline=None, phases=(Phase.explicit, Phase.generate))


@given(recipes("explicit"))
@few
def test_the_euler_step_of_any_explicit_recipe_is_its_sde(recipe):
    residual_is_zero(recipe)
    assert_euler_is_the_sde(recipe, ())


@pytest.mark.slow
@given(recipes("sites"), st.sampled_from(SHAPES))
@few
def test_the_euler_step_of_any_recipe_of_sites_is_its_sde(recipe, shape):
    residual_is_zero(recipe)
    assert_euler_is_the_sde(recipe, shape)


TEXTS = """
import integrators, samplers
from integrators.backends.cpp_sweep import sweep_source
from integrators.passes import plan
for name in ("sgnht", "santa"):
    step = integrators.compile(samplers.catalogue[name])
    print(step.standalone(), sweep_source(plan(step.program)))
"""


def test_the_same_text_is_emitted_by_every_process():
    """Hashes differ by process: an order that follows them would round the steps of a resumed run differently."""
    here = io.StringIO()
    with redirect_stdout(here):
        exec(TEXTS, {})
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "-c", TEXTS], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout == here.getvalue() != ""
