"""What `sample` promises: shapes, seeds, starts, energies, minibatches, diverging chains, and the account it gives."""

import itertools
import math
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import EVERY_MECHANISM, covering, slow
from error_budget import CLAIMS, Z, standard_score
from sympy import sin, symbols

import samplers
from integrators import compiler, noise
from integrators.kernels.constants import Constants
from integrators.kernels.launchers import LAUNCHERS, CppLauncher
from recipe import Energy, Recipe, RecipeError, euler, grad, positive, potential, scalar, total, vector
from samplers import ATMC, SGHMC, SGLD, SGNHT, Draws, PreconditionedSGLD, UnderdampedLangevin, posterior
from samplers.running import choice, inputs
from samplers.target.data import Data
from samplers.target.targets import TARGETS
from samplers.target.traced import Traced
from samplers.testing.cases import CASES

theta, p = vector("theta"), vector("p")
x, y = scalar("x"), scalar("y")
a, b = symbols("a b", real=True)

COUPLED = Energy((a, b), U=(a**2 + a * b + b**2) / 2 + sin(a) / 3 + b**4 / 9)
double = {"dtype": torch.float64}


def coupled(theta):
    """The same energy in torch."""
    a, b = theta
    return (a**2 + a * b + b**2) / 2 + a.sin() / 3 + b**4 / 9


def bowl(theta):
    """|theta|^2/2, for any shape."""
    return (theta**2).sum() / 2


def to_rows(theta, rows):
    """The squared distance to a batch of points."""
    return ((theta - rows) ** 2).sum()


def run(recipe=UnderdampedLangevin, energy=bowl, **more):
    """A short run of 4 chains and 12 steps from zero."""
    given = {"init": torch.zeros(2, **double), "chains": 4, "steps": 12, "step_size": 0.1, "seed": 0, "progress": False}
    return samplers.sample(recipe, energy, **given | more)


def stock_run(name, **more):
    """A run of a stock recipe that keeps all its blocks and adapted quantities."""
    case = CASES[name]
    recipe, one_chain = case.recipe, lambda f: lambda theta: f(theta[None])[0]
    start, energy = torch.full((2,), 0.5, **double), coupled
    if not recipe.target_is_vector:
        start, energy = {"x": start[0], "y": start[1]}, lambda at: coupled((at["x"], at["y"]))
    given = {
        "energy": energy if recipe.potential else None,
        "init": start,
        "temperature": 1.25,
        "step_size": 0.02,
        "keep": [b.name for b in recipe.entries],
        "observe": {key: one_chain(f) for key, f in case.observe.items()},
    }
    return run(recipe, **given | case.values | more)


def same(one: Draws, other: Draws) -> bool:
    """Whether two runs have the same bits."""
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


# ---- shapes and counts


def test_integers_of_numpy_are_integers():
    def counts(kind, thin=np.int8):
        numbers = {"chains": kind(3), "warmup": kind(2), "steps": kind(8), "seed": kind(7)}
        return run(**numbers, thin=thin(2))["theta"]

    assert torch.equal(counts(np.uint8), counts(int, thin=int))
    phases = [samplers.Phase(steps=np.int32(4))]
    assert run(phases=phases, steps=1000)["theta"].shape[1] == 4
    assert noise.Key(np.int64(5), np.int64(2**40), np.int16(3)) == noise.Key(5, 2**40, 3)
    with pytest.raises(RecipeError, match="steps is an integer >= 1, got np.True_|got True"):
        run(steps=np.bool_(True))
    with pytest.raises(RecipeError, match="steps is an integer >= 1"):
        run(steps=torch.tensor(8))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("recipe", [SGLD, UnderdampedLangevin, SGNHT], ids=lambda R: R.name)
def test_draws_are_chains_by_draws_by_shape(recipe, shape):
    draws = run(recipe, init=torch.zeros(shape), chains=3, steps=10)
    assert list(draws) == ["theta"] and draws["theta"].shape == (3, 10, *shape)
    assert (draws.chains, draws.draws) == (3, 10)


@pytest.mark.parametrize("warmup, thin", [(0, 1), (5, 1), (0, 3), (5, 3), (7, 12)])
def test_warmup_and_thin_choose_among_the_steps_of_one_run(warmup, thin):
    """`steps` counts the steps after `warmup`; every thin-th of them is kept, an incomplete rest is not."""
    long = run(steps=12 + warmup)["theta"]
    kept = run(steps=12, warmup=warmup, thin=thin)["theta"]
    assert torch.equal(kept, long[:, warmup + thin - 1 :: thin][:, : 12 // thin])


def test_draws_do_not_change_when_the_run_goes_on():
    assert torch.equal(run(steps=5)["theta"], run(steps=12)["theta"][:, :5])


@pytest.mark.parametrize(
    "keep, names",
    [
        (None, ["theta"]),
        ("p", ["theta", "p"]),
        (["xi", "p"], ["theta", "xi", "p"]),
        (["theta", "xi", "xi"], ["theta", "xi"]),
    ],
)
def test_auxiliary_blocks_are_kept_when_asked(keep, names):
    draws = run(SGNHT, keep=keep)
    assert list(draws) == names
    shapes = {"theta": (4, 12, 2), "p": (4, 12, 2), "xi": (4, 12)}
    assert all(draws[name].shape == shapes[name] for name in names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("recipe", [SGNHT, slow(ATMC), PreconditionedSGLD], ids=lambda R: R.name)
def test_the_dtype_of_the_start_is_that_of_the_draws(recipe, dtype):
    draws = run(recipe, init=torch.zeros(2, dtype=dtype), keep=[b.name for b in recipe.state])
    assert {value.dtype for value in draws.values()} == {dtype}


def test_progress_is_silent_when_it_is_switched_off(capsys):
    run(progress=False)
    assert capsys.readouterr() == ("", "")
    run(progress=True)
    assert "12/12" in capsys.readouterr().err


# ---- seeds


def test_one_seed_makes_the_same_bits_and_another_makes_others():
    assert same(run(seed=1), run(seed=1))
    assert not (run(seed=1)["theta"] == run(seed=2)["theta"]).any()


@pytest.mark.parametrize(
    "more",
    [{}, {"energy": to_rows, "data": torch.arange(10.0, **double).reshape(5, 2), "batch_size": 3}],
    ids=["full", "minibatch"],
)
def test_the_run_does_not_depend_on_how_noise_is_drawn_in_blocks(more, monkeypatch):
    at_once = run(SGNHT, keep=["p", "xi"], **more)
    for size in (1, 50, 100):
        monkeypatch.setattr(inputs, "NOISE_AT_ONCE", size)
        monkeypatch.setattr(inputs, "GATHERED_AT_ONCE", size)
        assert same(run(SGNHT, keep=["p", "xi"], **more), at_once)


def test_noise_and_batches_are_drawn_for_no_more_steps_than_fit(monkeypatch):
    """Noise and rows of many chains and large batches would fill the memory if drawn for all steps."""
    drawn = []

    def counted(draw):
        def count(seed, step, number, chains, shape, **more):
            drawn.append((len(step) if isinstance(step, range) else 1) * chains * math.prod(shape))
            return draw(seed, step, number, chains, shape, **more)

        return count

    monkeypatch.setattr(inputs, "NOISE_AT_ONCE", 1000)
    for kind in ("normal", "integers"):
        monkeypatch.setitem(noise.FUNCTIONS, kind, counted(noise.FUNCTIONS[kind]))
    run(energy=to_rows, data=torch.ones(100, 2, **double), batch_size=100, steps=40)
    assert 400 <= max(drawn) <= 1000


def test_what_many_batches_hold_is_gathered_at_once(monkeypatch):
    gathered = []
    monkeypatch.setattr(Data, "batches", lambda *given, f=Data.batches: gathered.append(1) or f(*given))
    run(energy=to_rows, data=torch.ones(100, 2, **double), batch_size=3, steps=500)
    assert len(gathered) < 10


def test_a_run_by_kernels_of_one_step_computes_its_constants_once(monkeypatch):
    computed = []
    monkeypatch.setattr(Constants, "__call__", lambda *given, f=Constants.__call__: computed.append(1) or f(*given))
    run(UnderdampedLangevin, energy=lambda theta: (theta**2).sum(), backend="cpp", steps=50)
    assert len(computed) == 1


def test_one_chain_is_differentiated_as_it_is():
    """Its energy sees a leaf of autograd: nothing is vectorised, and no axis of chains is in its graph."""
    leaves = []

    def energy(theta):
        leaves.append(theta.is_leaf)
        return (theta**2).sum()

    jet = Traced(energy).jet(torch.ones(1, 3), orders={1})
    assert jet.slope.tolist() == [[2.0] * 3] and leaves == [True]
    jet = Traced(lambda at: energy(at["a"])).jet({"a": torch.ones(1, 3)}, orders={0, 1})
    assert jet.slope["a"].tolist() == [[2.0] * 3] and jet.value.tolist() == [3.0] and leaves == [True] * 2


@pytest.mark.parametrize(
    "settings, reason",
    [
        (dict(steps=12), "fewer than 100 steps"),
        (dict(steps=100, thin=100), "U is a torch function, and no block has 2,000 numbers"),
        (dict(steps=12, backend="torch"), "asked for"),
        (dict(steps=12, backend="cpp"), "each step in one call of cpp"),
        (dict(steps=12, backend="cpp", energy=TARGETS["gaussian"]), "many steps in one call of cpp"),
    ],
    ids=["short", "small", "torch", "torch energy", "symbolic energy"],
)
def test_a_run_says_which_kernel_made_its_steps_and_why(settings, reason, monkeypatch):
    monkeypatch.setattr(choice, "STEPS", 100)
    info = run(chains=1, **settings).info
    assert info["backend_reason"].startswith(reason) and info["backend"] == settings.get("backend", "torch")


def test_formulas_are_stepped_one_by_one_in_a_language_without_kernels_of_many_steps(monkeypatch):
    """And by no other language's kernel of many steps."""
    monkeypatch.setattr(compiler, "BACKENDS", (*compiler.BACKENDS, "toy"))
    monkeypatch.setitem(LAUNCHERS, "toy", CppLauncher)
    settings = dict(energy=TARGETS["gaussian"], chains=2, steps=12)
    draws, expected = run(backend="toy", **settings), run(backend="torch", **settings)
    assert draws.info["backend_reason"] == "each step in one call of toy: no kernel makes many of them"
    torch.testing.assert_close(draws["theta"], expected["theta"], rtol=1e-12, atol=1e-12)


SLOW = {"psgld-gamma", "sgrld-simplex", "sgrhmc", "santa", "sghmc-relativistic"}  # blocks like those of faster ones


@pytest.mark.parametrize("name", covering(CASES, EVERY_MECHANISM, but=SLOW))
def test_a_chain_is_the_same_whatever_the_number_of_chains(name):
    few, many = (stock_run(name, chains=chains) for chains in (4, 8))
    for block in few:
        torch.testing.assert_close(few[block], many[block][:4], rtol=0, atol=1e-13)


def test_chains_differ():
    theta = run(steps=1)["theta"]
    assert len(theta.reshape(4, 2).unique(dim=0)) == 4


def test_the_global_generators_are_not_touched():
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first = run(energy=to_rows, data=torch.ones(9, 2, **double), batch_size=2)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]
    torch.manual_seed(6)
    second = run(energy=to_rows, data=torch.ones(9, 2, **double), batch_size=2)
    assert same(first, second)


# ---- where chains start

STILL = {"steps": 1, "step_size": 1e-9, "temperature": 0.8}  # a step so short that the start can be read off


def test_a_point_is_the_start_of_every_chain():
    theta = run(init=torch.tensor([1.0, -2.0], **double), **STILL)["theta"]
    torch.testing.assert_close(theta, torch.tensor([1.0, -2.0], **double).expand(4, 1, 2), atol=1e-3, rtol=0)


def test_a_tensor_with_a_row_per_chain_starts_each_chain_on_its_own():
    start = torch.arange(8.0, **double).reshape(4, 2)
    torch.testing.assert_close(run(init=start, **STILL)["theta"][:, 0], start, atol=1e-3, rtol=0)


def test_a_start_is_left_as_it_was():
    start = torch.arange(8.0, **double).reshape(4, 2)
    run(init=start)
    assert torch.equal(start, torch.arange(8.0, **double).reshape(4, 2))


def test_numbers_and_arrays_are_starts_too():
    assert same(run(init=[1.0, 2.0]), run(init=torch.tensor([1.0, 2.0])))
    assert same(run(init=np.array([1.0, 2.0])), run(init=torch.tensor([1.0, 2.0], **double)))


def test_a_dict_by_block_starts_auxiliary_blocks_as_well():
    start = {
        "theta": torch.zeros(2, **double),
        "p": torch.arange(8.0, **double).reshape(4, 2),
        "xi": torch.arange(4.0, **double),
    }
    draws = run(SGNHT, init=start, keep=["p", "xi"], **STILL)
    for block in ("p", "xi"):
        torch.testing.assert_close(draws[block][:, 0], start[block], atol=1e-3, rtol=0)
    one = {"theta": torch.zeros(2, **double), "xi": torch.tensor(3.0, **double)}
    xi = run(SGNHT, init=one, keep=["xi"], **STILL)["xi"][:, 0]
    torch.testing.assert_close(xi, torch.full((4,), 3.0, **double), atol=1e-3, rtol=0)


def start_scores(temperature):
    """p ~ N(0, m T), site by site; xi ~ N(A, T/(n mu)), one per chain: at T = 0.8, n = 2."""
    m, A, mu = torch.tensor([1.7, 0.6]), 1.3, 0.7
    more = {**STILL, "temperature": temperature, "chains": 10_000}
    p = run(UnderdampedLangevin, keep="p", m=m, **more)["p"][:, 0] / (0.8 * m).sqrt()
    xi = (run(SGNHT, keep="xi", A=A, mu=mu, **more)["xi"][:, 0] - A) / math.sqrt(0.8 / (2 * mu))
    residuals = {
        "mean of p": p,
        "mean of xi": xi,
        "variance of p": p**2 - 1,
        "variance of xi": xi**2 - 1,
        "next site": p.prod(1),
        "next chain": p[::2] * p[1::2],
    }
    return {name: standard_score(residual) for name, residual in residuals.items()}


def test_auxiliary_blocks_start_from_their_stationary_law():
    assert not CLAIMS["start"].failures(start_scores(0.8))


def test_a_start_15_percent_too_hot_is_seen():
    scores = start_scores(0.8 * 1.15)
    assert min(scores["variance of p"], scores["variance of xi"]) > Z


def test_the_start_of_auxiliary_blocks_is_not_the_noise_of_the_first_step():
    """With h so large that p is redrawn, p after one step would repeat its start."""

    def flat(theta):
        return 0 * bowl(theta)

    start, redrawn = (run(energy=flat, keep="p", steps=1, step_size=h, temperature=1.0)["p"] for h in (1e-12, 1e3))
    assert not torch.isclose(start, redrawn, atol=1e-4).all()


LAYERS = {"weight": torch.arange(6.0, **double).reshape(2, 3), "bias": torch.ones(2, **double)}


def layered(parameters):
    """An energy of named parameters."""
    return (parameters["weight"] ** 2).sum() / 2 + ((parameters["bias"] - parameters["weight"].sum(1)) ** 2).sum()


def test_a_dict_by_parameter_name_is_what_the_energy_sees_and_names_the_draws():
    seen = []

    def energy(parameters):
        seen.append({name: tuple(value.shape) for name, value in parameters.items()})
        return layered(parameters)

    draws = run(energy=energy, init=LAYERS, keep="p")
    assert all(shapes == {"weight": (2, 3), "bias": (2,)} for shapes in seen)
    assert {name: tuple(value.shape) for name, value in draws.items()} == {
        "weight": (4, 12, 2, 3),
        "bias": (4, 12, 2),
        "p": (4, 12, 8),
    }


def test_named_parameters_are_the_entries_of_one_vector():
    flat = torch.cat([value.flatten() for value in LAYERS.values()])
    by_name, as_one = (
        run(energy=layered, init=LAYERS),
        run(energy=lambda theta: layered({"weight": theta[:6].reshape(2, 3), "bias": theta[6:]}), init=flat),
    )
    torch.testing.assert_close(by_name["weight"].flatten(2), as_one["theta"][..., :6], rtol=0, atol=1e-12)
    torch.testing.assert_close(by_name["bias"], as_one["theta"][..., 6:], rtol=0, atol=1e-12)


def test_a_module_is_a_dict_of_its_parameters_and_is_left_as_it_was():
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1)).double()
    with torch.no_grad():
        for value in network.parameters():
            value.fill_(0.5)
    inputs = torch.arange(12.0, **double).reshape(4, 3) / 10

    def energy(parameters):
        output = torch.func.functional_call(network, parameters, inputs)
        return (output**2).sum() + sum(bowl(value) for value in parameters.values())

    draws = run(energy=energy, init=network)
    assert {name: tuple(value.shape[2:]) for name, value in draws.items()} == {
        name: tuple(value.shape) for name, value in network.named_parameters()
    }
    assert same(draws, run(energy=energy, init=dict(network.named_parameters())))
    assert all(bool((value == 0.5).all()) and value.grad is None for value in network.parameters())


@pytest.mark.parametrize("name", ["theta", "p"])
def test_a_module_may_name_its_parameters_like_a_block(name):
    module = torch.nn.ParameterDict({name: torch.zeros(3), "offset": torch.zeros(1)})
    draws = run(energy=lambda parameters: sum(bowl(value) for value in parameters.values()), init=module)
    assert {key: tuple(value.shape) for key, value in draws.items()} == {name: (4, 12, 3), "offset": (4, 12, 1)}


def test_without_a_start_a_symbolic_energy_of_known_size_starts_at_zero():
    theta = run(energy=COUPLED, init=None, **STILL)["theta"]
    torch.testing.assert_close(theta, torch.zeros(4, 1, 2), atol=1e-3, rtol=0)


# ---- energies, symbolic and in torch


def agree(one, other, atol=1e-10):
    """Whether two runs have the same draws up to rounding."""
    assert list(one) == list(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=atol)


OF_A_POTENTIAL = [name for name, case in CASES.items() if case.recipe.potential]


# values, gradients of one block and of more, a positive target; the diagonal of the Hessian has a test below
@pytest.mark.parametrize("name", covering(OF_A_POTENTIAL, ["mala", "sgld", "sgrld-simplex", "sghmc", "sgnht"]))
def test_a_symbolic_energy_and_the_same_in_torch_give_the_same_draws(name):
    agree(stock_run(name, energy=COUPLED, steps=50), stock_run(name, steps=50))


def test_a_sitewise_energy_serves_any_shape():
    energy = Energy(theta, U=total(theta**4) / 4 + total(theta) ** 2)

    def in_torch(theta):
        return (theta**4).sum() / 4 + theta.sum() ** 2

    for shape in [(3,), (2, 3)]:
        start = torch.full(shape, 0.2, **double)
        agree(run(SGNHT, energy, init=start), run(SGNHT, in_torch, init=start))


EXPLICIT = Recipe(
    name="explicit", state=(x, y), target=(x, y), H=potential(x, y), D={x: 1, (x, y): x, y: 1 + x**2}, Q={(x, y): y / 3}
)


@pytest.mark.parametrize(
    "start", [{"x": 0.0, "y": 0.0}, {"x": 0.5, "y": [0.0, 0.5, 1.0, 1.5]}], ids=["point", "per-chain"]
)
def test_explicit_coordinates_take_dicts_by_block(start):
    start = {name: torch.tensor(value, **double) for name, value in start.items()}
    in_torch = run(EXPLICIT, lambda z: coupled((z["x"], z["y"])), init=start, steps=50, step_size=0.02)
    symbolic = run(EXPLICIT, COUPLED, init=start, steps=50, step_size=0.02)
    assert {name: tuple(value.shape) for name, value in in_torch.items()} == {"x": (4, 50), "y": (4, 50)}
    agree(in_torch, symbolic)


def test_explicit_coordinates_start_at_zero_without_init():
    agree(run(EXPLICIT, COUPLED, init=None), run(EXPLICIT, COUPLED, init={"x": torch.zeros(()), "y": torch.zeros(())}))


def test_a_wholly_symbolic_recipe_needs_no_energy():
    k = positive("k", default=2.0)

    def recipe(U):
        return Recipe(name="langevin", state=(theta, p), H=U + total(p**2) / 2, D={p: 1}, Q={(theta, p): -1})

    more = {"init": torch.tensor([0.5, -0.2], **double)}
    agree(
        run(recipe(k * total(theta**4) / 4), None, k=3.0, **more),
        run(recipe(potential(theta)), lambda theta: 3 * (theta**4).sum() / 4, **more),
    )


def test_the_hessian_diagonal_is_found_where_gamma_asks_for_it():
    """D = 1/(1 + (grad U)^2), with U'' in its Gamma."""
    U = potential(theta)
    recipe = Recipe(name="curved", state=(theta,), H=U, D={theta: 1 / (1 + grad(U) ** 2)})
    agree(run(recipe, coupled, step_size=0.02), run(recipe, COUPLED, step_size=0.02))


# ---- temperature, schedules, parameters


def test_noise_grows_with_the_root_of_the_temperature():
    one, four = (run(SGLD, temperature=T)["theta"] for T in (1.0, 4.0))
    torch.testing.assert_close(four, 2 * one, rtol=1e-12, atol=1e-12)


def test_a_schedule_gives_the_step_size_of_every_step_from_the_warmup_on():
    asked = []

    def schedule(k):
        asked.append(k)
        return 0.1 / (1 + k)

    theta = run(SGLD, temperature=0.0, init=torch.ones(2, **double), step_size=schedule, steps=5, warmup=3)["theta"]
    assert asked[-8:] == list(range(8)) and set(asked) == set(range(8))
    expected = torch.cumprod(torch.tensor([1 - 0.1 / (1 + k) for k in range(8)], **double), 0)[3:]
    torch.testing.assert_close(theta[0, :, 0], expected, rtol=1e-13, atol=0)


def test_a_constant_schedule_is_the_step_size():
    assert same(run(step_size=lambda k: 0.1), run(step_size=0.1))


def test_a_scheme_and_pieces_are_those_of_compile():
    draws = run(replace(SGHMC, pieces={"G": euler(p)}), scheme="A G")
    assert draws.info["scheme"] == "A G" and not same(draws, run(SGHMC))


def test_a_parameter_per_site_is_a_tensor_of_the_shape_of_the_target():
    """With grad U = 0 at the start, one step of SGLD scales with the root of G, one of Langevin's p with that of m."""
    G = torch.tensor([1.0, 4.0])
    theta = [run(PreconditionedSGLD, steps=1, G=g)["theta"] for g in (1.0, G)]
    torch.testing.assert_close(theta[1], theta[0] * G.sqrt(), rtol=1e-12, atol=0)
    p = [run(energy=lambda t: 0 * bowl(t), keep="p", m=m)["p"] for m in (1.0, G)]
    torch.testing.assert_close(p[1], p[0] * G.sqrt(), rtol=1e-12, atol=0)


def test_a_parameter_per_site_has_the_shape_of_a_matrix_target():
    m = torch.arange(1.0, 7.0).reshape(2, 3)
    draws = run(init=torch.zeros(2, 3, **double), m=m)
    flat = run(init=torch.zeros(6, **double), m=m.flatten())
    torch.testing.assert_close(draws["theta"].flatten(2), flat["theta"], rtol=0, atol=1e-13)


# ---- data and minibatches


ONE_HOT = torch.eye(10, **double)


def counting(**more):
    """How often each row is in the batch, for every chain and step: (chains, steps, 10).

    SGLD at T = 0 with step size 1 moves against the gradient, which is the sum of the batch.
    """
    theta = run(
        SGLD,
        lambda theta, rows: (theta * rows.sum(0)).sum() * 1.0,
        temperature=0.0,
        step_size=1.0,
        init=torch.zeros(10, **double),
        data=ONE_HOT,
        **more,
    )["theta"]
    return -torch.diff(theta, dim=1, prepend=torch.zeros_like(theta[:, :1]))


def test_without_a_batch_size_the_gradient_sees_all_data():
    assert torch.equal(counting(), torch.ones(4, 12, 10, **double))


@pytest.mark.parametrize("size", [1, 3, 10])
def test_a_batch_has_its_size_and_is_drawn_with_replacement(size):
    counts = counting(batch_size=size, chains=50)
    assert bool((counts.sum(-1) == size).all())
    assert bool((counts > 1).any()) == (size > 1)


def batch_scores():
    """Residuals of the counts of 3 rows of 10, whose mean is 0.3 each."""
    residual = counting(batch_size=3, chains=400, steps=50) - 0.3
    scores = {f"row {i}": standard_score(residual[..., i]) for i in range(10)}
    first = residual[..., 0]
    pairs = {"next chain": first[::2] * first[1::2], "next step": first[:, ::2] * first[:, 1::2]}
    return scores | {name: standard_score(products) for name, products in pairs.items()}


def test_batches_are_uniform_and_independent_of_chain_and_step():
    assert not CLAIMS["batches"].failures(batch_scores())


@pytest.mark.parametrize(
    "spoil, statistic",
    [
        (lambda rows: torch.where((rows == 7) & (torch.arange(rows.numel()).view_as(rows) % 6 == 0), 8, rows), "row 7"),
        (lambda rows: rows[:, :1].expand_as(rows), "next chain"),
        (lambda rows: rows[:1].expand_as(rows), "next step"),
    ],
    ids=["row-7-a-sixth-too-seldom", "shared-by-chains", "shared-by-steps"],
)
def test_spoilt_batches_are_seen(spoil, statistic, monkeypatch):
    true = noise.integers
    monkeypatch.setitem(noise.FUNCTIONS, "integers", lambda *arguments, **more: spoil(true(*arguments, **more)))
    assert abs(batch_scores()[statistic]) > Z


def test_the_two_gradients_of_one_step_see_different_batches():
    """Each of the two kicks of p shows the row that its gradient saw: 50 chains do not see one row twice by chance."""
    start = {"theta": torch.zeros(10, **double), "p": torch.zeros(10, **double)}
    p = run(
        SGHMC,
        lambda theta, rows: (theta * rows.sum(0)).sum(),
        scheme="A B A B O",
        init=start,
        data=ONE_HOT,
        batch_size=1,
        temperature=0.0,
        keep="p",
        chains=50,
        steps=1,
    )["p"][:, 0]
    assert (p != 0).sum(1).max() == 2


DATA = (torch.linspace(-1, 2, 20, **double).reshape(10, 2), torch.linspace(0, 1, 10, **double))


def misfit(theta, batch):
    """A squared error for each example."""
    X, y = batch
    return (X @ theta - y) ** 2


def mean_misfit(theta, batch):
    """Its mean."""
    return misfit(theta, batch).mean()


@pytest.mark.parametrize("likelihood", [misfit, mean_misfit])
def test_posterior_scales_the_likelihood_and_not_the_prior(likelihood):
    theta = torch.tensor([0.4, -0.3], **double)

    def prior(theta):
        return (theta**4).sum()

    energy, batch = posterior(likelihood, prior, num_data=10), tuple(t[:4] for t in DATA)
    for data, scale in ((DATA, 1), (batch, 10 / 4)):
        whole = scale * misfit(theta, data).sum() + prior(theta)
        torch.testing.assert_close(energy(theta, data), whole, rtol=1e-14, atol=0)


def test_all_data_in_a_closure_and_as_data_are_the_same_run():
    energy = posterior(misfit, bowl, num_data=10)
    agree(run(energy=energy, data=DATA), run(energy=lambda theta: misfit(theta, DATA).sum() + bowl(theta)), atol=1e-12)


def test_a_single_tensor_of_data_is_handed_over_as_it_is():
    seen = []
    run(energy=lambda theta, rows: seen.append(rows.shape) or ((theta - rows) ** 2).sum(), data=DATA[0], batch_size=3)
    assert set(seen) == {(3, 2)}


def test_integer_labels_stay_integers():
    labels = torch.arange(10) % 2

    def energy(theta, batch):
        return (batch[0] @ theta * batch[1]).sum() + bowl(theta)

    draws = run(energy=energy, data=(DATA[0], labels), batch_size=4)
    assert draws["theta"].isfinite().all()


# ---- diverging chains


@pytest.mark.parametrize("recipe", [SGLD, UnderdampedLangevin, SGNHT], ids=lambda R: R.name)
def test_a_diverging_chain_is_frozen_flagged_and_named_and_the_others_go_on(recipe):
    calm = torch.full((4, 2), 0.5, **double)
    wild = calm.clone()
    wild[2] = 50.0

    def energy(theta):
        return (theta**4).sum() / 4

    with pytest.warns(RuntimeWarning) as caught:
        draws = run(recipe, energy, init=wild)
    assert list(draws.diverged) == [2] and len(caught) == 1
    step, message = draws.diverged[2], str(caught[0].message)
    assert f"chain 2 diverged at step {step}, " in message and "is not finite" in message and "step size" in message
    assert message.split(f"step {step}, ")[1].split()[0] in [b.name for b in recipe.state]
    assert draws["theta"].isfinite().all() and bool((draws["theta"][2, step:] == draws["theta"][2, step - 1]).all())
    assert f"chain 2 at step {step}" in repr(draws)
    undisturbed = run(recipe, energy, init=calm)["theta"]
    for chain in (0, 1, 3):
        assert torch.equal(draws["theta"][chain], undisturbed[chain])


def test_a_chain_that_diverges_at_once_keeps_its_start():
    start = torch.zeros(4, 2, **double)
    start[1] = 1e100
    with pytest.warns(RuntimeWarning, match="chain 1 diverged at step 0"):
        draws = run(SGLD, lambda theta: (theta**4).sum() / 4, init=start, steps=1, step_size=1e10)
    assert draws.diverged == {1: 0} and torch.equal(draws["theta"][1, 0], start[1])


def test_no_chain_is_flagged_when_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run().diverged == {}


# ---- the account of a run


def test_info_says_what_was_run():
    draws = run(
        SGHMC,
        to_rows,
        data=torch.ones(5, 2, **double),
        batch_size=2,
        C=2.0,
        B=0.5,
        temperature=0.9,
        warmup=3,
        thin=2,
        seed=4,
    )
    info = dict(draws.info)
    assert info.pop("seconds") >= 0
    assert info.pop("report").startswith("Change first: ")
    assert list(info.pop("averages")["kinetic_temperature"]) == ["p"]
    assert info == {
        "recipe": "sghmc",
        "scheme": "B A O A B",
        "step_size": 0.1,
        "steps": 12,
        "warmup": 3,
        "thin": 2,
        "seed": 4,
        "law": "exact",
        "temperature": 0.9,
        "batch_size": 2,
        "parameters": {"C": 2.0, "B": 0.5},
        "diverged": {},
        "backend": "torch",
        "backend_reason": "fewer than 10,000 steps, and 20 million updates of numbers",
    }


def test_parameters_per_site_are_listed_in_info():
    assert run(m=torch.tensor([1.0, 2.0])).info["parameters"] == {"m": [1.0, 2.0]}


def test_a_statistic_is_asked_for_by_any_phase():
    """SGFS with its I1 frozen at first."""
    draws = samplers.sample(
        samplers.catalogue["sgfs"],
        lambda theta: (theta**2).sum() / 2,
        init=torch.zeros(2),
        chains=2,
        step_size=0.1,
        seed=0,
        progress=False,
        phases=[samplers.Phase(3, freeze=("I1",)), samplers.Phase(3)],
        B=1.4,
        b=1.7,
        observe={"score_variance": lambda theta: 0.5 + theta**2},
    )
    assert draws["theta"].shape == (2, 6, 2)


def test_a_warning_is_of_the_callers_line():
    with pytest.warns(RuntimeWarning, match="falls without bound") as warned:
        samplers.sample(SGLD, lambda x: -(x**2).sum() / 2, init=torch.ones(2), steps=5, step_size=0.01, progress=False)
    assert [w.filename for w in warned] == [__file__]


@pytest.mark.parametrize("number", [random.Random(0).random, itertools.count(1).__next__], ids=["random", "counter"])
def test_an_energy_with_other_numbers_each_time_is_refused(number):
    with pytest.raises(RecipeError, match="another gradient by theta each time it is asked"):
        run(energy=lambda x: number() * (x - 7).square().sum())
