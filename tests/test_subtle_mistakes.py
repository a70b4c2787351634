"""Mistakes that would run and give a wrong law in silence: each is refused, or flagged while it runs."""

import pickle

import pytest
import torch
from sympy import Piecewise, Rational, symbols

import integrators
import samplers
from recipe import Energy, Recipe, RecipeError, positive, potential, scalar, total, vector

theta, p = vector("theta"), vector("p")
x, y = scalar("x"), scalar("y")
UP, LEVEL = theta > 0, (1, True)
quick = dict(chains=20, steps=300, step_size=0.01, progress=False)


def bowl(theta):
    return (theta**2).sum() / 2


@pytest.mark.parametrize(
    "changes",
    [
        dict(D={theta: Piecewise((4, UP), LEVEL)}),
        dict(H=potential(theta) + total(Piecewise((1, UP), (0, True)))),
        dict(D={theta: 1 + Piecewise((theta, theta**2 > 1), (0, True))}),
    ],
    ids=["D", "H", "condition-not-linear"],
)
def test_a_jump_is_refused_since_its_derivative_is_not_seen(changes):
    with pytest.raises(RecipeError, match="not seen to be continuous"):
        Recipe(**dict(name="jump", state=(theta,), target=theta, H=potential(theta), D={theta: 1}) | changes)


def test_a_kink_without_a_jump_is_allowed():
    D = Piecewise((1 + theta**2, UP), LEVEL)
    assert Recipe(name="kink", state=(theta,), H=potential(theta), D={theta: D}).check().ok


def test_decimals_are_exact_in_a_proof():
    R = Recipe(
        name="decimal",
        state=(x, y),
        target=(x, y),
        H=0.3 * x**2 + 0.1 * x * y + 0.7 * y**2,
        D={x: 1},
        Q={(x, y): Rational(1, 3)},
    )
    assert R.residual() == 0
    a, b = symbols("a b", real=True)
    assert Energy((a, b), U=0.1 * a**2 + b).U == a**2 / 10 + b


def test_a_chain_that_leaves_a_positive_domain_is_frozen_and_flagged():
    w = vector("w", domain="positive")
    R = Recipe(name="half-line", state=(w,), H=potential(w), D={w: w}, scheme="Euler")
    with pytest.warns(RuntimeWarning, match="w has left its domain"):
        draws = samplers.sample(R, bowl, init=torch.full((2,), 0.8), **quick | dict(chains=64, steps=10, step_size=0.1))
    assert draws.diverged and (draws["w"] > 0).all()  # of some 27 chains


def test_correlated_noise_must_be_positive_at_the_parameters_given():
    s = vector("s")
    R = Recipe(
        name="correlated",
        state=(theta, p, s),
        H=potential(theta) + total(p**2 + s**2) / 2,
        D={p: 1, s: positive("d", default=0.3), (p, s): Rational(1, 5)},
        Q={(theta, p): -1},
        scheme="Euler",
    )
    samplers.sample(R, bowl, init=torch.zeros(2), **quick)
    with pytest.raises(RecipeError, match="eigenvalue is -|eigenvalue -"):
        samplers.sample(R, bowl, init=torch.zeros(2), d=0.001, **quick)


def test_a_likelihood_of_pairs_is_not_averaged():
    X, y = torch.ones(6, 1), torch.ones(6)
    energy = samplers.posterior(lambda w, b: (b[1][:, None] - b[0] @ w) ** 2, bowl, num_data=6)
    with pytest.raises(RecipeError, match=r"shape \(6, 6\)"):
        samplers.sample(samplers.SGLD, energy, init=torch.zeros(1), data=(X, y), **quick)


def test_the_number_of_data_is_that_of_the_data():
    energy = samplers.posterior(lambda w, X: ((X - w) ** 2).mean(), bowl, num_data=2000)
    with pytest.raises(RecipeError, match="num_data = 2000, but data= has 20 rows"):
        samplers.sample(samplers.SGLD, energy, init=torch.zeros(1), data=torch.ones(20, 1), **quick)


def test_a_parameter_named_like_an_argument_of_sample_is_refused_before_it_is_swallowed():
    R = Recipe(name="loud", state=(theta,), H=potential(theta), D={theta: positive("progress", default=2.0)})
    with pytest.raises(RecipeError, match="'progress' bears the name of an argument of sample"):
        samplers.sample(R, bowl, init=torch.zeros(2), **quick)


def test_inference_mode_is_refused_by_name():
    with torch.inference_mode(), pytest.raises(RecipeError, match="inference_mode"):
        samplers.sample(samplers.SGLD, bowl, init=torch.zeros(2), **quick)


def test_numbers_among_named_parameters_are_sampled_as_numbers():
    def energy(q):
        return bowl(q["w"]) + q["log_sigma"] ** 2

    draws = samplers.sample(samplers.SGLD, energy, init={"w": torch.zeros(2), "log_sigma": torch.tensor(0.0)}, **quick)
    assert draws["log_sigma"].shape == (20, 300) and draws["w"].shape == (20, 300, 2)


def test_steps_and_errors_travel_between_processes():
    step = integrators.compile(samplers.ATMC)
    assert step.function
    assert pickle.loads(pickle.dumps(step)).source == step.source
    error = RecipeError("here", "this happened", do="Do that.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
