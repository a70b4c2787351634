"""Energies that sum over data: derivatives are those of autograd, kernels make the steps of the torch text."""

import warnings
from functools import partial

import pytest
import torch
from covering import covering
from sympy import exp, log, symbols, tanh
from torch.func import grad, hessian, vmap

import integrators
import samplers
from integrators.kernels.trajectory import Trajectory
from recipe import Energy, RecipeError, data_total, datum, total, vector
from samplers.running import choice
from samplers.target.data import Data
from samplers.target.symbolic import Symbolic
from samplers.target.traced import compiled_gradient
from samplers.testing.cases import CASES

theta = vector("theta")
x, w, y, u = datum("x", per=theta), datum("w", per=theta), datum("y"), datum("u")
z = total(x * theta)
a, b = symbols("a b", real=True)
ones, softplus = torch.ones, torch.nn.functional.softplus


def mean(rows):
    return 40 * rows.mean()  # of 40 data


# U on a batch, beside the same by hand
ENERGIES = {
    "logistic": (
        Energy(theta, U=data_total(log(1 + exp(z)) - y * z) + total(theta**2) / 8, data=(x, y)),
        lambda t, X, Y: mean(softplus(X @ t) - Y * (X @ t)) + (t**2).sum() / 8,
    ),
    "logistic of signs": (
        Energy(theta, U=data_total(log(1 + exp(-y * z))), data=(x, y)),
        lambda t, X, Y: mean(softplus(-Y * (X @ t))),
    ),
    "linear": (Energy(theta, U=data_total((y - z) ** 2) / 2, data=(y, x)), lambda t, Y, X: mean((Y - X @ t) ** 2) / 2),
    "weighted": (
        Energy(theta, U=data_total(u * (y - z) ** 2), data=(x, y, u)),
        lambda t, X, Y, W: mean(W * (Y - X @ t) ** 2),
    ),
    "Poisson": (
        Energy(theta, U=data_total(exp(z / 3) - y * z / 3) + total(theta**4), data=(x, y)),
        lambda t, X, Y: mean(torch.exp(X @ t / 3) - Y * (X @ t) / 3) + (t**4).sum(),
    ),
    "two predictors": (
        Energy(theta, U=data_total((y - z) ** 2 * exp(-total(w * theta) / 5)), data=(x, w, y)),
        lambda t, X, W, Y: mean((Y - X @ t) ** 2 * torch.exp(-W @ t / 5)),
    ),
    "a site of a row": (
        Energy(theta, U=data_total(total(tanh(x * theta) ** 2 + y * theta)), data=(x, y)),
        lambda t, X, Y: mean((torch.tanh(X * t) ** 2 + Y[:, None] * t).sum(1)),
    ),
    "a total of the chain": (
        Energy(theta, U=data_total((y - total(theta**2)) ** 2) / 9, data=y),
        lambda t, Y: mean((Y - (t**2).sum()) ** 2) / 9,
    ),
    "coordinates": (
        Energy((a, b), U=data_total((y - a - b * u) ** 2) / 2 + a**2, data=(u, y)),
        lambda t, C, Y: mean((Y - t[0] - t[1] * C) ** 2) / 2 + t[0] ** 2,
    ),
}


def columns(energy, sites, rows=40, seed=0):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    return tuple(normal(rows, sites) if d.is_vector else (normal(rows) > 0).double() + 0.5 for d in energy.data)


def start(energy, chains, sites=5):
    sites = sites if energy.is_sitewise else 2
    return torch.randn(chains, sites, generator=torch.Generator().manual_seed(9), dtype=torch.float64) / 2


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("name", ENERGIES)
def test_emitted_derivatives_are_those_of_autograd(name, batch_size):
    energy, by_hand = ENERGIES[name]
    at = start(energy, 3)
    data = Data(columns(energy, at.shape[1]), batch_size, like=at)
    data = data.columns(energy, at)
    batch = (
        data.batch(data.rows_for(0, range(1), 0, 3))
        if batch_size is None
        else data.batch(data.rows_for(0, range(1), 0, 3)[0])
    )
    over = (0, *(None if batch_size is None else 0 for _ in energy.data))
    step = integrators.compile(CASES["psgld-gamma"].recipe, energy=energy)  # whose Gamma takes the Hessian
    jet = Symbolic([step], data.rows).jet(at, batch, orders={1, 2}, per_chain=batch_size is not None)
    for function, autograd in (
        ("slope", grad(by_hand)),
        ("curvature", lambda t, *d: hessian(by_hand)(t, *d).diagonal()),
    ):
        expected = vmap(autograd, in_dims=over)(at, *batch)
        result = getattr(jet, function)
        assert (result - expected).abs().max() <= 1e-11 * expected.abs().max(), function


def trajectories(name, recipe, energy, batch_size, chains=3, steps=12, dtype=torch.float64, sites=5, rows=40, **more):
    """The draws of a run in torch and by a kernel."""
    at = start(energy, chains, sites).to(dtype)
    run = dict(
        init=at,
        chains=chains,
        steps=steps,
        step_size=1e-3,
        seed=4,
        progress=False,
        batch_size=batch_size,
        data=tuple(c.to(dtype) for c in columns(energy, sites, rows)),
        **more,
    )
    runs = [samplers.sample(recipe, energy, backend=backend, **run) for backend in ("torch", "cpp")]
    assert [r.info["backend"] for r in runs] == ["torch", "cpp"]
    return runs


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize(
    "per_site, per_row",
    [
        (("rows", "row_total1", "theta", "total1", "i"), ("data", "row_sum1", "n_", "num_data_", "sum")),
        (("WIDE", "math", "double", "row_total1_"), ("out", "torch", "at", "row_total1")),
    ],
)
def test_columns_may_bear_any_name(per_site, per_row, backend):
    weights = vector("w")
    X, Y = [datum(name, per=weights) for name in per_site], [datum(name) for name in per_row]
    terms = [(y - total(x * weights)) ** 2 * exp(-(total(x * weights) ** 2) / 9) for x, y in zip(X, Y)]
    energy = Energy(weights, U=data_total(sum(terms)) + total(weights) ** 2, data=(*X, *Y))

    def by_hand(t, *given):
        pairs = zip(given[: len(X)], given[len(X) :])
        return sum(mean((B - A @ t) ** 2 * torch.exp(-((A @ t) ** 2) / 9)) for A, B in pairs) + t.sum() ** 2

    run = dict(
        init=torch.linspace(-1, 1, 40, dtype=torch.float64),
        chains=2,
        steps=3,
        step_size=1e-4,
        progress=False,
        data=columns(energy, 40),
    )  # as many rows as sites: shapes alone find no mistake
    result = samplers.sample(samplers.SGLD, energy, backend=backend, **run)["theta"]
    expected = samplers.sample(samplers.SGLD, lambda t, batch: by_hand(t, *batch), backend="torch", **run)["theta"]
    assert (result - expected).abs().max() < 1e-11


@pytest.mark.parametrize("name", covering(ENERGIES, ["two predictors", "a site of a row"]))
def test_a_kernel_makes_the_steps_of_the_torch_text(name):
    for batch_size in (None, 7, 40, 100):
        by_torch, by_kernel = trajectories(name, samplers.SGNHT, ENERGIES[name][0], batch_size, rows=130)
        assert (by_torch["theta"] - by_kernel["theta"]).abs().max() < 1e-12, batch_size


IN_TORCH = ("sgrld-cir", "sgrld-dense", "sgfs", "sgld-sa", "sghmc-sa", "sgrld-simplex", "isgd")


# what SGNHT above has not: the curvature, and a jump
OF_EACH_KIND = ("psgld-gamma", "hmc-randomised")
RECIPES = {name: case.recipe for name, case in CASES.items() if not name.startswith(IN_TORCH)}
ON_KERNELS = [name for name, R in RECIPES.items() if len(R.targets) == 1 and not R.metropolis]  # which asks all data


@pytest.mark.parametrize("case", covering(ON_KERNELS, OF_EACH_KIND))
def test_every_sampler_runs_on_a_kernel_with_data(case):
    one = CASES[case]
    positive = one.recipe.targets[0].domain.name == "positive"
    energy = Energy(theta, U=data_total((y - z) ** 2) / 20 + total(theta**2), data=(y, x))
    more = dict(one.parameters) | dict(init=start(energy, 3).abs() + 1) if positive else dict(one.parameters)
    by_torch, by_kernel = (
        samplers.sample(
            one.recipe,
            energy,
            backend=backend,
            chains=3,
            steps=9,
            step_size=1e-3,
            seed=4,
            batch_size=11,
            progress=False,
            data=columns(energy, 5),
            **{"init": start(energy, 3)} | more,
        )
        for backend in ("torch", "cpp")
    )
    assert by_kernel.info["backend"] == "cpp"
    assert (by_torch["theta"] - by_kernel["theta"]).abs().max() < 1e-12


@pytest.mark.parametrize("sites", covering([1, 2, 14, 64, 65, 300], [1, 65]))
def test_any_number_of_sites_and_rows(sites):
    for rows, batch_size in ((1, None), (9, 2), (64, 64), (65, 3), (200, 129)):
        energy, more = ENERGIES["logistic"][0], {"sites": sites, "rows": rows}
        by_torch, by_kernel = trajectories("logistic", samplers.SGHMC, energy, batch_size, **more)
        assert (by_torch["theta"] - by_kernel["theta"]).abs().max() < 1e-12, (rows, batch_size)


def test_float32_agrees_to_its_rounding():
    by_torch, by_kernel = trajectories("logistic", samplers.SGHMC, ENERGIES["logistic"][0], 20, dtype=torch.float32)
    assert (by_torch["theta"] - by_kernel["theta"]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "recipe", covering([samplers.SGLD, samplers.UnderdampedLangevin], [samplers.UnderdampedLangevin])
)
def test_phases_carry_the_gradient_of_the_last_batch(recipe):
    """A fresh gradient at the start of a phase would be of another batch."""
    phases = [samplers.Phase(5, keep=False), samplers.Phase(8, step_size=2e-3), samplers.Phase(3)]
    energy = ENERGIES["logistic"][0]
    run = dict(
        init=start(energy, 2),
        chains=2,
        step_size=1e-3,
        phases=phases,
        data=columns(energy, 5),
        batch_size=6,
        progress=False,
    )
    by_torch, by_kernel = (
        samplers.sample(recipe, energy, backend=backend, **run)["theta"] for backend in ("torch", "cpp")
    )
    assert (by_torch - by_kernel).abs().max() < 1e-12


def test_launches_of_any_length_make_one_trajectory():
    energy = ENERGIES["logistic"][0]
    step, data = integrators.compile(samplers.UnderdampedLangevin, energy=energy), columns(energy, 5)
    state = {"theta": start(energy, 4), "p": start(energy, 4)}
    whole, cut = (Trajectory(step.program, state, 3, {"num_data": 40}, data=data, batch_size=9) for _ in range(2))
    whole.run(0, [(1e-2, 1.0)] * 20)
    for first in (0, 1, 7):
        cut.run(first, [(1e-2, 1.0)] * ({0: 1, 1: 6, 7: 13}[first]))
    assert torch.equal(whole.numbers, cut.numbers)


def test_every_step_of_a_launch_is_rounded_alike():
    """Also in float32, before the first state that is kept and after it."""
    energy = ENERGIES["logistic"][0]
    step = integrators.compile(samplers.SGNHT, energy=energy)
    data = tuple(column.float() for column in columns(energy, 4))
    state = {"theta": start(energy, 3, 4).float(), "p": start(energy, 3, 4).float(), "xi": torch.ones(3)}
    how = {"data": data, "batch_size": 10}
    whole, cut = (Trajectory(step.program, state, 3, {"A": 1.0, "mu": 1.0, "num_data": 40}, **how) for _ in range(2))
    whole.run(0, [(2e-2, 1.0)] * 300, thin=50, first_kept=49, keep=["theta"])
    for first in range(0, 300, 30):
        cut.run(first, [(2e-2, 1.0)] * 30, thin=50, first_kept=20, keep=["theta"])
    assert torch.equal(whole.numbers, cut.numbers)


def test_an_energy_of_many_sites_without_data_has_a_kernel():
    energy = Energy(theta, U=total(theta**4) / 16 + total(theta) ** 2 / 200)
    runs = [
        samplers.sample(
            samplers.SGNHT,
            energy,
            init=torch.zeros(200, dtype=torch.float64),
            steps=20,
            step_size=0.1,
            backend=backend,
            progress=False,
        )["theta"]
        for backend in ("torch", "cpp")
    ]
    assert (runs[0] - runs[1]).abs().max() < 1e-12


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("sign", [1, -1])
def test_logistic_regression_does_not_overflow(backend, sign):
    """exp(z) is beyond float32 at |z| = 500, where its ratio to 1 + exp(z) is 0 or 1."""
    energy = Energy(theta, U=data_total(log(1 + exp(z)) - y * z), data=(x, y))
    draws = samplers.sample(
        samplers.SGLD,
        energy,
        init=torch.full((1,), 500.0 * sign),
        chains=2,
        steps=3,
        step_size=1e-3,
        temperature=0.0,
        data=(torch.ones(2, 1), torch.tensor([0, 1])),
        backend=backend,
        progress=False,
    )
    assert torch.allclose(draws["theta"][:, -1], torch.tensor(500.0 * sign - 3e-3 * sign))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_chains_are_lost_at_the_same_steps_by_every_backend():
    """Those that start where a step of the quartic throws them further out; those near its bottom stay."""
    energy = Energy(theta, U=data_total((y - z) ** 4), data=(y, x))
    lost = []
    for backend in ("torch", "cpp"):
        with warnings.catch_warnings(record=True):
            run = samplers.sample(
                samplers.SGLD,
                energy,
                init=torch.linspace(0, 8, 40, dtype=torch.float64)[:, None].expand(40, 5),
                chains=40,
                steps=60,
                step_size=1e-4,
                data=columns(energy, 5),
                batch_size=5,
                backend=backend,
                progress=False,
            )
        lost.append((run.diverged, run["theta"][:, -1]))
    assert 0 < len(lost[0][0]) < 40 and lost[0][0] == lost[1][0]
    assert torch.allclose(lost[0][1], lost[1][1], rtol=1e-6)


# ---- energies in torch


@pytest.mark.parametrize("compiler", covering(["inductor", "aot_eager", "eager"], ["eager"]))
def test_a_compiled_gradient_makes_the_run_of_a_plain_one(compiler, monkeypatch):
    """Traced and differentiated by torch.compile; the C++ that inductor writes of it is compiled in the slow tests."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    monkeypatch.setattr(choice, "STEPS_OF_GRAPHS", 20)
    energy, by_hand = ENERGIES["logistic"]
    run = dict(
        init=start(energy, 2),
        chains=2,
        steps=30,
        step_size=lambda k: 1e-3,
        data=columns(energy, 5),
        batch_size=6,
        progress=False,
    )
    compiled, plain = (
        samplers.sample(samplers.SGLD, lambda t, batch: by_hand(t, *batch), backend=backend, **run)["theta"]
        for backend in ("auto", "torch")
    )
    assert (compiled - plain).abs().max() < 1e-12


@pytest.mark.parametrize("broken", ["raises", "wrong"])
def test_a_gradient_that_torch_cannot_compile_runs_as_it_is_and_says_so(monkeypatch, broken):
    def compile(gradient, **_):
        return (lambda *given: 2 * gradient(*given)) if broken == "wrong" else lambda *given: 1 / 0

    monkeypatch.setattr(torch, "compile", compile)
    with pytest.warns(RuntimeWarning, match="its numbers differ" if broken == "wrong" else "ZeroDivisionError"):
        gradient = compiled_gradient(lambda t: 3 * t, lambda t: 3 * t, "here")
        assert [gradient(ones(2)).tolist() for _ in range(2)] == [[3.0, 3.0]] * 2


# ---- bad input


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Energy(theta, U=data_total(y * z), data=(x,)), "'y' is not among its columns"),
        (lambda: Energy(theta, U=total(theta**2), data=(y,)), "U reads no data"),
        (lambda: Energy(theta, U=y * total(theta), data=(y,)), "outside of data_total"),
        (lambda: Energy(theta, U=log(data_total(y * z)), data=(x, y)), "not a sum over the data"),
        (lambda: Energy(theta, U=data_total(y * z), data=(x, x, y)), "each once"),
        (lambda: Energy(theta, U=data_total(datum("x") * z), data=(x, datum("x"))), "bear one name"),
        (lambda: Energy(theta, U=data_total(datum("theta") * total(theta)), data=(datum("theta"),)), "bear one name"),
        (lambda: Energy(theta, U=data_total(y * z), data="xy"), "its columns are data"),
        (lambda: Energy((a, b), U=data_total(total(x) * a * b), data=(x,)), "needs a vector block"),
        (lambda: data_total(x * theta), "one value per site"),
        (lambda: data_total(data_total(y)), "inside of another"),
        (lambda: data_total("y"), "Text is never evaluated"),
        (lambda: datum("x", per="theta"), "is not a vector block"),
        (lambda: datum("lambda"), "keyword"),
    ],
)
def test_an_energy_that_is_no_sum_over_data_is_refused(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


@pytest.mark.parametrize(
    "more, message",
    [
        (dict(), r"has the columns x, y.*Pass data=\(x, y\)"),
        (dict(data=ones(9, 3)), "1 tensors for the columns"),
        (dict(data=(ones(9, 4), ones(9))), r"column x has the shape \(9, 4\), not \(9, 3\)"),
        (dict(data=(ones(9, 3), ones(9, 1))), r"column y has the shape \(9, 1\), not \(9,\)"),
        (dict(data=(ones(9, 3).double(), ones(9))), "float64, but the parameters are torch.float32"),
        (dict(data=(ones(9, 3), ones(8))), "8 rows"),
        (dict(data=(ones(9, 3), ones(9)), batch_size=10), "for 9 data"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_the_first_step(more, message):
    with pytest.raises(RecipeError, match=message):
        samplers.sample(
            samplers.SGLD, ENERGIES["logistic"][0], init=torch.zeros(3), steps=3, step_size=1e-3, progress=False, **more
        )


def test_data_for_an_energy_without_columns_is_refused():
    with pytest.raises(RecipeError, match="reads no data"):
        samplers.sample(
            samplers.SGLD, Energy(theta, U=total(theta**2)), init=torch.zeros(3), steps=3, step_size=1e-3, data=ones(9)
        )
