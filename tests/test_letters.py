"""Letters that a recipe has by default, the word taken of them, and what a piece without a closed form is told."""

import pytest
from covering import covering
from sympy import sqrt

from integrators import compile
from recipe import Recipe, RecipeError, friction, noise, positive, potential, scalar, total, vector

theta, p, r = vector("theta"), vector("p"), vector("r")
gamma, mu = positive("gamma", default=0.8), positive("mu", default=1.3)
n = total(1)


def nose_hoover_chain(links):
    """Thermostats that each heat or cool the one before. Martyna, Klein & Tuckerman 1992."""
    first, *others = xi = [scalar(f"xi{k + 1}") for k in range(links)]
    H = potential(theta) + total(p**2) / 2 + n * mu * first**2 / 2 + sum(mu * x**2 / 2 for x in others)
    Q = {(theta, p): -1, (p, first): p / (n * mu)}
    Q |= {(a, b): (a if a != first else n * a) / (n * mu) for a, b in zip(xi, others)}
    return Recipe(name="chain", state=(theta, p, *xi), H=H, D={xi[-1]: gamma}, Q=Q)


def two_momenta(coupling):
    """A momentum beside another one that does not move theta."""
    H = potential(theta) + total(p**2 + r**2) / 2
    return Recipe(name="two", state=(theta, p, r), H=H, D={r: gamma}, Q={(theta, p): -1, (p, r): coupling})


WORDS = {
    "one thermostat": (lambda: nose_hoover_chain(1), "B A' O A' B"),
    "a chain of two": (lambda: nose_hoover_chain(2), "B A C1 C2 O C2 C1 A B"),
    "a chain of three": (lambda: nose_hoover_chain(3), "B A C1 C2 C3 O C3 C2 C1 A B"),
    "a linear coupling, which one letter solves": (lambda: two_momenta(-1), "B A' O A' B"),
    "a coupling that theta turns": (lambda: two_momenta(-(1 + theta**2)), "B A C O C A B"),
}


@pytest.mark.parametrize("case", covering(WORDS, ["one thermostat", "a coupling that theta turns"]))
def test_blocks_that_couple_have_letters_of_their_own_and_a_palindrome_is_made_of_them(case):
    make, word = WORDS[case]
    step = compile(make())
    assert str(step.scheme) == word and step.exact and step.order == 2


def test_a_letter_of_each_block_moves_it_alone():
    step = compile(nose_hoover_chain(2))
    moved = {letter: [b.name for b in flow.updates] for letter, flow in step.flows.items()}
    assert moved == {"B": ["p"], "A": ["theta"], "C1": ["xi1"], "C2": ["xi2"], "O": ["p"]}


def test_a_piece_whose_blocks_are_solved_alone_is_told_so():
    with pytest.raises(RecipeError, match=r'a letter, pieces=\{"C1": xi1, "C2": xi2\}'):
        compile(nose_hoover_chain(2), "B A C O C A B")


def test_a_piece_whose_drift_is_solved_without_its_noise_is_told_so():
    """dp = -gamma p/sqrt(1 + p^2) dt has a closed form, and with noise has none."""
    H = potential(theta) + total(sqrt(1 + p**2))
    fast = Recipe(name="fast", state=(theta, p), H=H, D={p: gamma}, Q={(theta, p): -1})
    with pytest.raises(RecipeError, match=r"Give the noise a letter of its own, noise\(p\)"):
        compile(fast, "B A O A B")
    assert compile(fast, "B A R W R A B", pieces={"R": friction(p), "W": noise(p)}).exact


def test_a_piece_that_no_such_cut_solves_is_told_to_be_cut_finer():
    quartic = Recipe(name="quartic", state=(theta,), H=total(theta**4) / 4 + total(theta**2), D={theta: 1})
    with pytest.raises(RecipeError, match="Cut it finer, ask for"):
        compile(quartic, "A")
