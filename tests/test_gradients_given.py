"""Energies that bring their gradient, as functions of numpy arrays: the draws of the same energy in torch."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from covering import covering

import samplers
from recipe import Energy, RecipeError
from recipe.symbols import vector
from samplers.coordinates import Affine

A = np.array([[2.0, 0.5], [0.5, 1.0]])
X = np.random.default_rng(0).normal(size=(200, 2))
Y = X @ np.array([1.0, -1.0]) + np.random.default_rng(1).normal(size=200)
DATA = (torch.tensor(X), torch.tensor(Y))
ZERO = torch.zeros(2, dtype=torch.float64)
NAMED = {"w": torch.zeros(3, 2), "b": torch.tensor(0.0)}


def value(theta):
    """theta A theta/2, of an array or a tensor."""
    return theta @ (torch.tensor(A) if torch.is_tensor(theta) else A) @ theta / 2


def slope(theta):
    return A @ theta


def slope_of_all(theta):  # (chains, 2), and of one chain too
    return theta @ A


def pair_of_all(theta):
    if theta.ndim != 2:
        raise ValueError("chains are asked for")
    return np.einsum("ci,ij,cj->c", theta, A, theta) / 2, theta @ A


def regression(theta, batch):
    """The sum over 200 rows, estimated by a batch."""
    x, y = batch
    return 200 / len(x) * ((x @ theta - y) ** 2).sum() / 2 + (theta**2).sum() / 2


def slope_of_regression(theta, batch):
    x, y = batch
    return 200 / len(x) * x.T @ (x @ theta - y) + theta


def slopes_of_regression(theta, batch):  # of all chains, each with a batch of its own
    x, y = batch
    return 200 / x.shape[1] * np.einsum("cbi,cb->ci", x, np.einsum("cbi,ci->cb", x, theta) - y) + theta


def by_name(theta):
    return (theta["w"] ** 2).sum() + theta["b"] ** 2 / 2


def slope_by_name(theta):
    return {"w": 2 * theta["w"], "b": theta["b"]}


def sample(*arguments, recipe="sgld", **settings):
    return samplers.sample(recipe, *arguments, **dict(steps=100, step_size=0.1, init=ZERO, progress=False) | settings)


# ---- the same draws


FORMS = {
    "a gradient": (None, slope),
    "a gradient of all chains": (None, slope_of_all),
    "a list": (None, lambda theta: list(slope(theta))),
    "a pair": (None, lambda theta: (value(theta), slope(theta))),
    "a pair in a list": (None, lambda theta: [value(theta), slope(theta)]),
    "a pair of all chains": (None, pair_of_all),
    "a value and a gradient": (value, slope),
}


@pytest.mark.parametrize("form", covering(FORMS, {*FORMS} - {"a list", "a gradient", "a pair"}))
def test_draws_are_those_of_the_torch_function(form):
    energy, gradient = FORMS[form]
    draws = sample(energy, gradient=gradient)
    torch.testing.assert_close(draws["theta"], sample(value)["theta"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["a pair", "a pair of all chains", "a value and a gradient"])
def test_steps_are_accepted_by_the_value_that_is_given(form):
    energy, gradient = FORMS[form]
    settings = dict(recipe="mala", metropolis=True, step_size=0.5)
    draws, own = (sample(e, gradient=g, **settings) for e, g in ((energy, gradient), (value, None)))
    torch.testing.assert_close(draws["theta"], own["theta"], rtol=1e-12, atol=1e-12)
    assert draws.info["acceptance"] == own.info["acceptance"]


@pytest.mark.parametrize("gradient", [slope_of_regression, slopes_of_regression])
def test_minibatches_are_those_of_the_torch_function(gradient):
    settings = dict(recipe="sghmc", data=DATA, batch_size=20, step_size=0.01)
    draws, own = (sample(e, gradient=g, **settings) for e, g in ((None, gradient), (regression, None)))
    torch.testing.assert_close(draws["theta"], own["theta"], rtol=1e-10, atol=1e-10)


def test_accuracy_and_report_run_again_with_the_gradient():
    draws, own = (sample(e, gradient=g) for e, g in ((None, slope), (value, None)))
    stated, expected = (run.accuracy(chains=8, steps=40) for run in (draws, own))
    assert [str(stated).splitlines()[i] for i in range(5)] == [str(expected).splitlines()[i] for i in range(5)]
    assert "gradient= brings none" in stated.divergence.reason
    assert draws.report().scalars() == pytest.approx(own.report().scalars(), rel=1e-10, abs=1e-10, nan_ok=True)


def test_parameters_by_name_and_coordinates():
    settings = dict(recipe="hmc", init=NAMED, metropolis=True, step_size=0.3)
    draws, own = (sample(by_name, gradient=g, **settings) for g in (slope_by_name, None))
    assert torch.equal(draws["w"], own["w"]) and torch.equal(draws["b"], own["b"])
    root = Affine(ZERO, torch.linalg.cholesky(torch.tensor(np.linalg.inv(A))))
    draws, own = (sample(value, gradient=g, coordinates=root) for g in (slope, None))
    torch.testing.assert_close(draws["theta"], own["theta"], rtol=1e-12, atol=1e-12)


def test_temperatures_side_by_side_and_one_chain():
    settings = dict(recipe="underdamped-langevin", gamma=1.0, temperature=[1, 2], chains=1)
    draws, own = (sample(value, gradient=g, **settings) for g in (slope, None))
    torch.testing.assert_close(draws["theta"], own["theta"], rtol=1e-12, atol=1e-12)
    assert draws.info["swaps"] == own.info["swaps"]


def test_the_mode_is_found_and_a_run_is_tuned(brief):
    mode = samplers.find_mode(regression, ZERO, DATA, gradient=slope_of_regression)
    torch.testing.assert_close(mode, samplers.find_mode(regression, ZERO, DATA), rtol=1e-6, atol=1e-6)
    draws = sample(
        value,
        recipe="mala",
        gradient=slope_of_all,
        steps=10,
        step_size="auto",
        metropolis=samplers.Metropolis(repeat=1),
    )
    assert draws.info["tuned"]["r_hat"] < 1.5 and min(draws.info["acceptance"]) > 0


def test_the_evidence_is_that_of_the_torch_function():
    reference = torch.distributions.Normal(ZERO, 1.0)
    settings = dict(reference=reference, chains=64, bridges=10, moves=1)
    results = [samplers.evidence("underdamped-langevin", value, gradient=g, **settings) for g in (slope, None)]
    assert abs(results[0].log_evidence - results[1].log_evidence) < 1e-9


@pytest.mark.filterwarnings("ignore:.*chains are lost")
def test_a_chain_at_whose_state_a_function_raises_is_lost_alone():
    def checked(theta):
        if ((theta > 5) & (theta < 9.9)).any():  # on the way from 10 to 0
            raise ValueError("too high")
        return (theta**2).sum(-1) / 2, theta

    lost, start = [], torch.tensor([[10.0, 10.0], [0.0, 0.0], [0.0, 0.0], [10.0, 10.0]])
    for gradient in (checked, lambda theta: (checked(theta)[0].item(), theta)):
        with pytest.warns(RuntimeWarning, match="ValueError: too high"):
            draws = sample(gradient=gradient, step_size=0.1, init=start, steps=40)
        lost.append(draws.info["diverged"])
    assert lost[0] == lost[1] and [*map(int, lost[0])] == [0, 3]


def test_a_function_may_change_its_argument_and_return_the_same_array_each_time():
    out = np.zeros(2)

    def buffered(theta):
        theta *= 2
        out[:] = A @ theta / 2
        return out

    torch.testing.assert_close(sample(gradient=buffered)["theta"], sample(value)["theta"], rtol=1e-12, atol=1e-12)


def test_single_precision_beside_float64_is_warned_of_once():
    with pytest.warns(RuntimeWarning, match="of single precision, and theta is float64") as record:
        sample(value, gradient=lambda theta: slope(theta).astype(np.float32), steps=5)
    assert len(record) == 1


def test_arrays_of_another_library_are_read_as_numpy_reads_them():
    class Foreign:
        def __init__(self, values):
            self.values = values

        def __array__(self, dtype=None, copy=None):
            return self.values

    draws = sample(gradient=lambda theta: (Foreign(np.asarray(value(theta))), Foreign(slope(theta))))
    torch.testing.assert_close(draws["theta"], sample(value)["theta"], rtol=1e-12, atol=1e-12)


BY_JAX = """
import jax, torch, samplers
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

def U(theta):
    return (theta["w"]**2).sum() + (theta["b"] - theta["w"].sum())**2/2

def V(theta, x):
    return 100*((x - theta)**2).sum(-1).mean()/2

init = {"w": torch.zeros(3, dtype=torch.float64), "b": torch.tensor(0.0, dtype=torch.float64)}
run = dict(init=init, steps=20, step_size=0.2, metropolis=True, progress=False)
own = samplers.sample("hmc", U, **run)
for pair in (jax.value_and_grad(U), jax.vmap(jax.value_and_grad(U))):
    draws = samplers.sample("hmc", gradient=jax.jit(pair), **run)
    assert (draws["w"] - own["w"]).abs().max() < 1e-12 and draws.info["acceptance"] == own.info["acceptance"]

X = torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
run = dict(init=torch.zeros(3, dtype=torch.float64), data=X, batch_size=10, steps=20, step_size=1e-3, progress=False)
own = samplers.sample("sgld", V, **run)
draws = samplers.sample("sgld", gradient=jax.jit(jax.vmap(jax.grad(V))), **run)
assert (draws["theta"] - own["theta"]).abs().max() < 1e-12
print("the same draws")
"""


def test_numpy_warns_of_no_point_where_no_chain_is():
    def slope_of_cosh(theta):
        return np.sinh(theta)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        sample(gradient=slope_of_cosh, step_size=0.01)
    assert not [w for w in heard if w.category is RuntimeWarning]


@pytest.mark.slow
@pytest.mark.needs("jax")
def test_functions_of_jax_bring_values_and_gradients():
    """In a process of its own: jax has threads, and other tests fork."""
    result = subprocess.run([sys.executable, "-c", BY_JAX], capture_output=True, text=True)
    assert result.stdout == "the same draws\n", result.stderr


# ---- refused


def noisy(theta):
    return theta + np.random.default_rng().normal(size=2)


MINIBATCH = dict(recipe="sghmc", data=DATA, batch_size=20, step_size=0.01)


def given(words, gradient, energy=None, **settings):
    return dict(gradient=gradient, **settings), energy, words


WRONG = {
    "the log density's": given("-1 times.*log density.*return minus that", lambda t: -slope(t), value),
    "another factor": given("0.02 times the derivative of U", lambda t: slope(t) / 50, value),
    "no factor": given("its slope is .* differences of U say", lambda t: slope(t) + [0, 1], value),
    "a missing prior": given(
        "its slope is .* differences of U say",
        lambda t, b: slope_of_regression(t, b) - 100 * t,
        regression,
        **MINIBATCH,
    ),
    "a curl": given("the gradient of no U: v J w", lambda t: t @ np.array([[1.0, 2.0], [0.0, 1.0]]).T),
    "a curl in single precision": given(
        "the gradient of no U", lambda t: t @ np.array([[1, 2], [0, 1]], dtype="float32"), init=torch.zeros(2)
    ),
    "a curl on minibatches": given(
        "the gradient of no U", lambda t, b: slope_of_regression(t, b) + [30 * t[1], 0], **MINIBATCH
    ),
    "a curl between parameters": given(
        "the gradient of no U", lambda t: {"w": t["w"] + t["b"], "b": t["b"]}, init=NAMED
    ),
    "a mean": given(
        "a mean over 200 data, where U is a sum. Return 200 times that",
        lambda t, b: slope_of_regression(t, b) / 200,
        regression,
        **MINIBATCH,
    ),
    "a mean of the log density": given(
        "a mean of the log density over 200 data",
        lambda t, b: -slope_of_regression(t, b) / 200,
        regression,
        **MINIBATCH,
    ),
    "a pair of another energy": given("0.5 times the derivative of U", lambda t: (value(t) * 2, slope(t))),
    "shape": given(r"theta of shape \(2,\), the gradient has the shape \(1,\)", lambda t: t[:1]),
    "shape of the value": given(r"the value has the shape \(2,\), not \(\)", slope, lambda t: t),
    "whole numbers": given("int64 numbers", lambda t: t.astype(int)),
    "complex": given("complex128 numbers", lambda t: t * 1j),
    "nothing": given("object numbers", lambda t: None),
    "names": given("dict of w, b, and it returns a ndarray", lambda t: t["w"], init=NAMED),
    "other names": given(r"returns \['w'\]", lambda t: {"w": t["w"]}, init=NAMED),
    "raises": given("ZeroDivisionError: division by zero", lambda t: 1 / 0),
    "no batch": given("With data the batch is its second argument", slope, data=np.ones((5, 2)), batch_size=2),
    "float64 data": given(
        "X.astype of numpy, or init to torch.float64",
        slope_of_regression,
        init=torch.zeros(2),
        data=np.ones((5, 2)),
        batch_size=2,
    ),
    "arguments": given("missing 1 required positional argument", lambda t, b: t),
    "random": given("other numbers each time", noisy),
    "not finite": given("not finite at the start of chain 0", lambda t: t * np.nan),
    "no function": given("beside gradient= it is a function of numpy arrays, got 3", 3),
    "no energy": given("beside gradient= it is a function of numpy arrays, got 3", slope, 3),
    "symbolic": given("the energy is a Energy, whose gradient is derived", slope, Energy(vector("t"), U=1)),
    "no value to accept by": given("gradient= brings none", slope, recipe="mala", metropolis=True),
    "no value to compare": given(
        "compares values of U, and gradient= brings none",
        slope,
        recipe="underdamped-langevin",
        gamma=1.0,
        temperature=[1, 2],
    ),
    "no value to tune by": given("gradient= brings none", slope, step_size="auto"),
    "second derivatives": given("second derivatives", slope, value, recipe="psgld-gamma", step_size=0.01),
}


NORMAL = np.arange(200) % 3 - 1.0
GRADIENTS = {
    "of a sine of a sum": lambda t: np.cos(t @ NORMAL) * NORMAL,
    "of the Laplace law": np.sign,
    "of Huber's loss": lambda t: np.clip(t, -0.01, 0.01),
    "of a cube across a diagonal": lambda t: abs(t @ NORMAL) * (t @ NORMAL) * NORMAL,
    "of a kink across a diagonal": lambda t: t + np.sign(t @ NORMAL) * NORMAL,
    "of large numbers": lambda t: 1e12 * (t + t.sum()) + 1e12,
}


@pytest.mark.parametrize("of", GRADIENTS)
def test_a_gradient_without_U_is_taken_where_its_Jacobian_is_symmetric(of):
    for dtype in (torch.float32, torch.float64):
        start = torch.zeros(200, dtype=dtype)
        sample(None, gradient=GRADIENTS[of], init=start, step_size=1e-16, steps=2)


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_before_the_first_step(case):
    settings, energy, words = WRONG[case]
    with pytest.raises(RecipeError, match=f"(?s){words}"):
        sample(energy, **settings)


def test_the_energy_beside_a_pair_is_the_one_that_accepts():
    """A pair whose value is of other constants, or of nothing, does not change the draws."""

    def run(gradient):
        settings = dict(init=np.zeros(3), step_size=0.6, steps=50, chains=2, progress=False)
        return samplers.sample("hmc", lambda x: float((x**2).sum()), gradient=gradient, **settings)["theta"]

    assert (run(lambda x: (0.0, 2 * x)) == run(lambda x: 2 * x)).all()
