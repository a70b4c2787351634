"""Targets of several blocks, each with dynamics of its own, and copies of a target with one energy at each."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from same_step import all_ways_agree
from scipy.linalg import solve_discrete_lyapunov
from sympy import log

import integrators
import samplers
from integrators.backends.loading import load
from recipe import Energy, Recipe, RecipeError, copies, euler, laws, positive, potential, scalar, total, vector
from recipe.pieces import gibbs

w, v, p, x, y = (vector(name) for name in ("w", "v", "p", "x", "y"))
tau = scalar("tau")
gamma, k = positive("gamma", default=1.0), positive("k", default=2.0)
U = potential(w, tau)

# weights by underdamped Langevin dynamics, the log of a precision by SGLD
MIXED = Recipe(
    name="mixed",
    state=(w, p, tau),
    target=(tau, w),
    H=U + total(p**2) / 2,
    D={p: gamma, tau: 1},
    Q={(w, p): -1},
    pieces={"X": w, "Y": euler(tau)},
    scheme="B X O X B Y",
)
AT_X, AT_Y = copies(x, y)
COUPLED = Recipe(
    name="coupled", state=(x, y), target=(x, y), H=AT_X + AT_Y + k * total((x - y) ** 2) / 2, D={x: 1, y: 1}
)
# x sees the energy where y is: Chaudhari et al. 2017, "Entropy-SGD"
LOCAL_ENTROPY = Recipe(
    name="local-entropy",
    state=(x, y),
    target=(x, y),
    H=potential(y, name="loss") + k * total((x - y) ** 2) / 2,
    D={x: 1, y: 1},
    marginal=potential(y, name="loss") + k * total((x - y) ** 2) / 2,
)
TWO_VECTORS = Recipe(
    name="two-vectors",
    state=(w, p, v),
    target=(w, v),
    H=potential(w, v) + total(p**2) / 2,
    D={p: gamma, v: 1},
    Q={(w, p): -1},
    pieces={"X": w, "Y": euler(v)},
    scheme="B X O X B Y",
)


def slopes_of_mixed(at):
    """Of e^tau |w|^2/2 - n tau/2 + tau^2/2."""
    e = np.exp if isinstance(at["tau"], np.ndarray) else torch.exp
    precision = e(at["tau"])
    w = at["w"]
    return {"w": precision[:, None] * w, "tau": precision * (w**2).sum(1) / 2 - w.shape[1] / 2 + at["tau"]}


def slopes_of_two(at):
    return {"w": at["w"] ** 3 + at["v"], "v": at["w"] + 2 * at["v"]}


CASES = {
    "mixed": (MIXED, slopes_of_mixed),
    "coupled": (COUPLED, lambda at: at**3 + at),
    "local-entropy": (LOCAL_ENTROPY, {"loss": lambda at: at**3}),
    "two-vectors": (TWO_VECTORS, slopes_of_two),
}


@pytest.mark.parametrize("name", CASES)
def test_the_law_is_proved(name):
    recipe, _ = CASES[name]
    assert recipe.residual() == 0
    assert recipe.check().exact, recipe.check()


@pytest.mark.parametrize("name", CASES)
def test_text_kernel_and_both_interpreters_make_the_same_step(name):
    all_ways_agree(*CASES[name])


def test_copies_are_printed_with_their_blocks():
    assert str(COUPLED.drift[0]) == "-k*x + k*y - grad(U, x)"
    assert str(COUPLED.drift[1]) == "k*x - k*y - grad(U, y)"
    assert "U(x) + U(y)" in str(COUPLED)


def test_copies_are_bound_to_one_energy():
    z = vector("z")
    bound = COUPLED.bind(U=Energy(z, U=total(z**4) / 4))
    assert (bound.H - (total(x**4) / 4 + total(y**4) / 4 + k * total((x - y) ** 2) / 2)).expand() == 0


# ---- the law of copies, by Lyapunov's equation


def covariance(move, h):
    """That of one site of the coupled copies of |z|^2/2."""

    def after(numbers, noise):
        state = {"x": numbers[:, :1], "y": numbers[:, 1:]}
        new = move(state, h, gradient=lambda z: z, noise={"x": noise[:, :1], "y": noise[:, 1:]})
        return torch.cat([new["x"], new["y"]], 1)

    unit, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    M, B = after(unit, zero).T.numpy(), after(zero, unit).T.numpy()
    return solve_discrete_lyapunov(M, B @ B.T)


def error(move, h):
    return abs(covariance(move, h) - np.linalg.inv([[3.0, -2.0], [-2.0, 3.0]])).max()


def test_copies_have_their_joint_law_up_to_the_order_of_euler():
    step = integrators.compile(COUPLED)
    assert 1.8 < error(step, 0.02) / error(step, 0.01) < 2.2


def test_a_mutant_with_the_gradient_of_the_second_copy_at_the_first_has_another_law():
    step = integrators.compile(COUPLED)
    assert step.source.count("gradient(y)") == 2  # one of them in its docstring
    mutant = load(step.source.replace("gradient(y)", "gradient(x)"), "<mutant>")["step"]
    assert error(mutant, 0.001) > 0.05 > 10 * error(step, 0.001)


# ---- runs


def test_a_vector_and_a_scalar_are_sampled_together():
    """tau ~ N(0, 1) and e^{tau/2} w ~ N(0, 1), alpha 1e-4 each: 400 chains at their end, one site."""

    def energy(at):
        return at["tau"].exp() * (at["w"] ** 2).sum() / 2 - at["w"].numel() * at["tau"] / 2 + at["tau"] ** 2 / 2

    start = {"w": torch.zeros(1), "tau": torch.zeros(())}
    draws = samplers.sample(
        MIXED, energy, init=start, chains=400, warmup=150, steps=1, step_size=0.05, progress=False, seed=2
    )
    assert draws["w"].shape == (400, 1, 1) and draws["tau"].shape == (400, 1)
    last, scaled = draws["tau"][:, -1], draws["w"][:, -1, 0] * (draws["tau"][:, -1] / 2).exp()
    for z in (last, scaled):
        assert abs(float(z.mean())) < 3.9 / 20 + 0.05
        assert abs(float(z.square().mean()) - 1) < 3.9 * (2 / 400) ** 0.5 + 0.1


def test_a_scalar_of_the_target_is_drawn_by_a_jump_beside_two_vectors():
    law = laws.Gamma(1 + total(1) / 2, 1 + total(x**2) / 2)
    precision = scalar("precision", domain="positive")
    prior = precision * total(x**2) / 2 - total(1) / 2 * log(precision) + precision
    recipe = replace(
        COUPLED,
        state=(x, y, precision),
        H=COUPLED.H + prior,
        D={x: 1, y: 1},
        Q={},
        supplied={},
        jumps={"G": gibbs(precision, law)},
    )
    recipe = replace(recipe, scheme=[("Euler", 1), ("G", 1)], claim="")
    assert recipe.check().exact, recipe.check()
    start = {"x": torch.ones(2), "y": torch.ones(2)}
    arguments = dict(steps=5, step_size=0.01, progress=False, keep=["precision"])
    draws = samplers.sample(recipe, lambda z: (z**2).sum() / 2, init=start, **arguments)
    assert (draws["precision"] > 0).all()


# ---- refusals


def test_potentials_without_names_beside_others_are_refused():
    with pytest.raises(RecipeError, match="stands beside other potentials.* copies"):
        replace(COUPLED, H=potential(x) + potential(y) + total((x - y) ** 2))


@pytest.mark.parametrize("blocks", [(x,), (x, x), (x, tau)])
def test_what_is_no_set_of_copies_is_refused(blocks):
    with pytest.raises(RecipeError, match="two blocks or more of one kind"):
        copies(*blocks)


def test_a_block_twice_in_the_target_is_refused():
    with pytest.raises(RecipeError, match="stands twice"):
        replace(COUPLED, target=(x, x))


def test_a_symbolic_energy_of_coordinates_is_refused_for_a_vector_beside_others():
    with pytest.raises(RecipeError, match="of which w is a vector"):
        integrators.compile(MIXED, energy=Energy((tau, scalar("q")), U=tau**2))


def test_vectors_of_two_shapes_are_refused():
    start = {"x": torch.zeros(2), "y": torch.zeros(3)}
    with pytest.raises(RecipeError, match="Give all of them the target's shape"):
        samplers.sample(COUPLED, lambda z: (z**2).sum(), init=start, step_size=0.1)
