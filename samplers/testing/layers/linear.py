"""The layer of the linear law: the stationary covariance of a step on a quadratic energy."""

import numpy as np
import sympy
from scipy.linalg import solve_discrete_lyapunov

from integrators.linear_law import is_affine, linear_chain
from integrators.split import split
from recipe.algebra import at_one_site
from recipe.scheme import all_letters
from recipe.symbols import Partial, Total, step_size

from ..check_results import Inapplicable, Result, Results
from ..interpreter import van_loan
from ..subject import Subject

STIFFNESSES = (0.7, 2.3)
STEP_SIZE = 0.17


def linear_law(subject: Subject) -> Results:
    """Compares the covariance of an affine step on U = k theta^2/2, probed, with the composed law of its pieces.

    The law of a piece is by its matrix exponential. The gradient is exact, and budgets for its noise are 0.
    """
    recipe = subject.recipe
    step = subject.still
    if not is_affine(recipe) or any(e.has(Total) for e in recipe.drift):
        return Inapplicable("the step is not affine for a quadratic U, site by site")
    budgets = _budgets(recipe)
    pieces = split(recipe, step.scheme, all_letters(recipe, subject.pieces))
    numerical = any(piece.method not in (None, "euler") for piece in pieces.values())
    if numerical or any(e.xreplace(budgets) != 0 for e in recipe.supplied):
        return Inapplicable("a budget reads what moves, or a piece is numerical")
    numbers = {**subject.numbers, **budgets, step_size: STEP_SIZE}
    settings = subject.settings(step) | {s.name: v for s, v in budgets.items()}
    for k in STIFFNESSES:
        M, V = np.eye(len(recipe.state)), np.zeros((len(recipe.state), len(recipe.state)))
        for letter, fraction in step.scheme.moves:
            A, D = _matrices(pieces[letter], recipe, numbers, k)
            decay, spread = _over(float(fraction) * STEP_SIZE, A, D, pieces[letter])
            M, V = decay @ M, decay @ V @ decay.T + spread
        if abs(np.linalg.eigvals(M)).max() > 1 - 1e-9:
            return Inapplicable(
                "the law of the linear step depends on its start: noise or a jump has to reach every block"
            )
        yield Result(
            "linear law",
            "relative error of the stationary covariance",
            _error(linear_chain(step, STEP_SIZE, [k], **settings), solve_discrete_lyapunov(M, V)),
            1e-10,
            "S = M S M^T + V, M and V of exp(-A t) and 2 (T D - supplied)",
            subject=f"{step.scheme}, k = {k}",
        )
    return None


def _budgets(recipe):
    """0 for every parameter that only states the noise of the gradient."""
    used = {s for e in (*recipe.drift, *recipe.D) for s in e.free_symbols}
    supplied = {s for e in recipe.supplied for s in e.free_symbols & set(recipe.parameters)}
    return {s: 0.0 for s in supplied if s not in used}


def _matrices(piece, recipe, numbers, k):
    """A and D of a linear piece, dx = -A x dt + sqrt(2 D) dW, where grad U = k theta."""

    def number(e):
        return float(sympy.sympify(e).xreplace(numbers))

    def settled(e):
        return e.xreplace({p: k * recipe.targets[0] for p in e.atoms(Partial)})

    rows = {b: settled(at_one_site(piece.drift.get(b, sympy.S.Zero))) for b in recipe.state}
    A = -np.array([[number(sympy.diff(rows[a], b)) for b in recipe.state] for a in recipe.state])
    D = np.array([[number(piece.injected.get((a, b), 0)) for b in recipe.state] for a in recipe.state])
    return A, D


def _over(time, A, D, piece):
    """The matrices e^{-At} and 2 int_0^t e^{-As} D e^{-A's} ds of a linear piece, or Euler's."""
    if piece.method == "euler":
        return np.eye(len(A)) - A * time, 2 * D * time
    M, _, V = van_loan(A, D, time)
    return M, V


def _error(chain, expected):
    """The relative error of the stationary covariance of a probed step; infinite for an unstable step."""
    if chain.spectral_radius >= 1:
        return np.inf
    covariance = chain.covariance[: len(expected), : len(expected)]
    return float(np.abs(covariance - expected).max() / expected.max())
