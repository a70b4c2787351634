"""Control variates and SVRG: unbiased to the last bits, no variance at the center, and the law of a run that has them.

Energies and losses are in float64. Sums over all batches of an epoch without replacement are exact means.
"""

import io
import math
import re
import warnings
from itertools import chain, count, islice, repeat

import pytest
import torch
from covering import slow
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad

import samplers
from recipe import Energy, Recipe, RecipeError, potential, scalar, total, vector
from samplers.target.control_variates import control_variate, find_mode
from samplers.target.data import Data
from samplers.target.traced import Traced
from samplers.training.minibatches import Minibatches
from samplers.training.svrg import SVRG

F64 = torch.float64
N, B = 60, 5


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


X = normal(N, 3)
Y = (X.sum(1) + normal(N, seed=1) > 0).to(F64)


def logits_loss(w, batch):
    """One value per example of a logistic regression; `w` a tensor, or a dict of weight and bias."""
    x, y = batch
    logits = x @ w["weight"] + w["bias"] if isinstance(w, dict) else x @ w
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")


def quadratic_prior(w):
    return sum((x**2).sum() for x in w.values()) / 2 if isinstance(w, dict) else (w**2).sum() / 2


LOGISTIC = samplers.posterior(logits_loss, quadratic_prior, num_data=N)
POINTS = {
    "tensor": lambda seed: normal(3, seed=seed),
    "named": lambda seed: {"weight": normal(3, seed=seed), "bias": normal(1, seed=seed + 50)[0]},
}
forms = pytest.mark.parametrize("form", POINTS)


def flat(g):
    """A gradient as one vector."""
    return torch.cat([x.reshape(-1) for x in g.values()]) if isinstance(g, dict) else g


def between(point, other, t):
    """The point at t of the way to another."""
    return (
        {k: x + t * (other[k] - x) for k, x in point.items()}
        if isinstance(point, dict)
        else point + t * (other - point)
    )


def gradients(energy, theta, epoch=0):
    """The gradients on all batches of an epoch without replacement, (batches, sites)."""
    batches = Minibatches((X, Y), B, seed=epoch)
    return torch.stack([flat(grad(energy)(theta, batch)) for batch in batches])


def spread(g):
    """The summed variance of gradients."""
    return float(g.var(0, correction=0).sum())


# ---- control_variate


@forms
@given(st.integers(1, 99), st.integers(1, 70))
@settings(deadline=None, max_examples=8)
def test_the_mean_over_an_epoch_is_the_full_gradient(form, seed, chunk):
    c, theta = POINTS[form](0), POINTS[form](seed)
    energy = control_variate(LOGISTIC, c, (X, Y), chunk=chunk)
    full = flat(grad(LOGISTIC)(theta, (X, Y)))
    assert (gradients(energy, theta, seed).mean(0) - full).abs().max() < 1e-12 * N


@forms
def test_at_the_center_every_batch_gives_the_full_gradient(form):
    c = POINTS[form](0)
    g = gradients(control_variate(LOGISTIC, c, (X, Y), chunk=7), c)
    assert (g - flat(grad(LOGISTIC)(c, (X, Y)))).abs().max() < 1e-12 * N
    assert spread(gradients(LOGISTIC, c)) > 1


@forms
def test_near_the_center_the_variance_falls_with_the_square_of_the_distance(form):
    c, far = POINTS[form](0), POINTS[form](1)
    energy = control_variate(LOGISTIC, c, (X, Y))
    variance = [spread(gradients(energy, between(c, far, t))) for t in (1e-3, 2e-3)]
    assert variance[1] / variance[0] == pytest.approx(4, rel=1e-2)
    assert variance[1] < 1e-4 * spread(gradients(LOGISTIC, between(c, far, 2e-3)))


def test_the_energy_itself_is_unbiased_too_and_at_the_center_as_it_was():
    c, theta = normal(3), normal(3, seed=1)
    energy = control_variate(LOGISTIC, c, (X, Y))
    mean = sum(float(energy(theta, batch)) for batch in Minibatches((X, Y), B)) / (N // B)
    assert mean == pytest.approx(float(LOGISTIC(theta, (X, Y))), rel=1e-13)
    assert float(energy(c, (X[:B], Y[:B]))) == float(LOGISTIC(c, (X[:B], Y[:B])))


# ---- a run of samplers.sample on Bayesian linear regression


class Regression:
    """y ~ N(x theta, s2), theta ~ N(0, 1/lam): the posterior, and the law of SGLD with minibatches, in closed form."""

    n, b, lam, s2, h, steps, chains = 200, 2, 1.0, 4.0, 8e-4, 80, 10_000

    def __init__(self):
        self.x = normal(self.n, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.8]], dtype=F64)
        self.y = self.x @ torch.tensor([1.0, -2.0], dtype=F64) + self.s2**0.5 * normal(self.n, seed=1)
        self.precision = self.x.T @ self.x / self.s2 + self.lam * torch.eye(2, dtype=F64)
        self.covariance = torch.linalg.inv(self.precision)
        self.mode = self.covariance @ self.x.T @ self.y / self.s2
        self.energy = samplers.posterior(
            lambda w, batch: (batch[0] @ w - batch[1]) ** 2 / (2 * self.s2),
            lambda w: self.lam * (w**2).sum() / 2,
            num_data=self.n,
        )

    def second_moment(self, center=None):
        """E (theta - mode)(theta - mode)^T after the steps of Euler's SGLD from the mode.

        With batches of b rows with replacement the gradient at mode + d adds to A d the noise n times the mean over the
        batch of (a_i - mean a) d + s_i - mean s, where a_i is the curvature of datum i and s_i its slope at the mode,
        less that at the center where there is a control variate; E d stays 0.
        """
        a = self.x[:, :, None] * self.x[:, None, :] / self.s2
        s = self.x * ((self.x @ self.mode - self.y) / self.s2)[:, None]
        if center is not None:
            s = s - self.x * ((self.x @ center - self.y) / self.s2)[:, None]
        a, s, eye = a - a.mean(0), s - s.mean(0), torch.eye(2, dtype=F64)
        contraction, S = eye - self.h * self.precision, torch.zeros(2, 2, dtype=F64)
        for _ in range(self.steps):
            noise = (a @ S @ a).mean(0) + s.T @ s / self.n
            S = contraction @ S @ contraction.T + 2 * self.h * eye + self.h**2 * self.n**2 / self.b * noise
        return S

    def products(self, energy):
        """The products of the entries of theta - mode of independent chains, (chains, 3)."""
        draws = samplers.sample(
            samplers.SGLD,
            energy,
            init=self.mode,
            chains=self.chains,
            steps=self.steps,
            thin=self.steps,
            step_size=self.h,
            data=(self.x, self.y),
            batch_size=self.b,
            seed=3,
            progress=False,
        )
        d = draws["theta"][:, -1] - self.mode
        return torch.stack([d[:, 0] ** 2, d[:, 1] ** 2, d[:, 0] * d[:, 1]], 1)


def entries(S):
    return torch.stack([S[0, 0], S[1, 1], S[0, 1]])


REGRESSION = Regression()


@pytest.fixture(scope="module")
def products():
    """Of runs with plain minibatches, with control variates at the mode and at another center: one run each."""
    kinds = {"plain": None, "mode": REGRESSION.mode, "beside": REGRESSION.mode + 0.1}

    def make(c):
        return (
            REGRESSION.energy
            if c is None
            else control_variate(REGRESSION.energy, c, (REGRESSION.x, REGRESSION.y), chunk=64)
        )

    return {name: (c, REGRESSION.products(make(c))) for name, c in kinds.items()}


@pytest.mark.parametrize("kind", ["plain", "mode", "beside"])
def test_second_moments_of_a_run_are_those_of_its_law(kind, products):
    """Means of three products over 10,000 independent chains: 7.5 standard errors, of 1.4 %, alpha = 6e-14; 9 times.

    A gradient at the center that is 10 % off would move the mean by more than a standard deviation.
    """
    center, result = products[kind]
    z = (result.mean(0) - entries(REGRESSION.second_moment(center))) / (result.std(0) / REGRESSION.chains**0.5)
    assert z.abs().max() < 7.5


def test_a_run_with_control_variates_is_closer_to_the_posterior_than_one_without(products):
    """By more than 7.5 standard errors of both, where minibatches alone treble the variances."""
    far, error = {}, {}
    for kind in ("plain", "mode"):
        result = products[kind][1]
        far[kind] = (result.mean(0) - entries(REGRESSION.covariance)).abs()[:2]
        error[kind] = 7.5 * result.std(0)[:2] / REGRESSION.chains**0.5
    assert (far["mode"] + error["mode"] < far["plain"] - error["plain"]).all()
    assert (far["mode"] - error["mode"] < 0.1 * entries(REGRESSION.covariance)[:2]).all()


@pytest.mark.parametrize("recipe", [samplers.SGHMC, samplers.SGNHT], ids=["sghmc", "sgnht"])
@pytest.mark.parametrize("chains", [1, 3])
def test_a_run_of_named_parameters_is_as_with_full_data_where_the_curvatures_are_equal(recipe, chains):
    """Data that differ in their slopes alone: the control variate leaves no noise, the draws are those of all data."""
    x = normal(12, 2)
    energy = samplers.posterior(
        lambda q, batch: ((batch - q["m"]) ** 2).sum(1) / 2, lambda q: (q["m"] ** 2).sum() / 2, num_data=12
    )

    def run(energy, **batches):
        return samplers.sample(
            recipe,
            energy,
            init={"m": torch.zeros(2, dtype=F64)},
            chains=chains,
            steps=20,
            step_size=0.05,
            data=x,
            progress=False,
            **batches,
        )["m"]

    full, plain = run(energy), run(energy, batch_size=2)
    corrected = run(control_variate(energy, {"m": normal(2, seed=9)}, x), batch_size=2)
    assert (corrected - full).abs().max() < 1e-12 and (plain - full).abs().max() > 1e-3


def test_explicit_coordinates_have_a_center_by_block():
    x, y = scalar("x"), scalar("y")
    recipe = Recipe(name="explicit", state=(x, y), target=(x, y), H=potential(x, y), D={x: 1, y: 1})
    energy = samplers.posterior(
        lambda at, rows: (rows - at["x"] * at["y"]) ** 2 / 2, lambda at: (at["x"] ** 2 + at["y"] ** 2) / 2, num_data=N
    )
    c = {"x": torch.tensor(0.5, dtype=F64), "y": torch.tensor(1.0, dtype=F64)}

    def run(energy, **batches):
        return samplers.sample(
            recipe, energy, init=c, steps=1, step_size=1e-3, data=X[:, 0], progress=False, **batches
        )["x"]

    assert (run(control_variate(energy, c, X[:, 0]), batch_size=1) - run(energy)).abs().max() < 1e-12
    assert (run(energy, batch_size=1) - run(energy)).abs().max() > 1e-3


def test_all_derivatives_that_a_run_may_ask_for_are_there():
    """Eager and functional gradients agree; the diagonal of the Hessian is that of the plain energy."""
    theta, data = normal(4, 3), Data((X, Y), B, like=X)
    batch, energy = data.batch(torch.arange(4 * B).reshape(4, B)), control_variate(LOGISTIC, normal(3), (X, Y))
    eager = Traced(energy).jet(theta, batch, orders={1}, per_chain=True).slope
    functional = Traced(energy).gradient(per_chain=True, has_data=True)(theta, batch)
    assert (eager - functional).abs().max() < 1e-12
    curvature = [Traced(U).jet(theta, batch, orders={2}, per_chain=True).curvature for U in (LOGISTIC, energy)]
    assert (curvature[0] - curvature[1]).abs().max() < 1e-12


# ---- find_mode


@forms
@pytest.mark.parametrize("chunk", [7, 4096])
def test_the_mode_is_where_the_full_gradient_vanishes(form, chunk):
    start = POINTS[form](3)
    c = find_mode(LOGISTIC, start, (X, Y), chunk=chunk)
    assert flat(grad(LOGISTIC)(c, (X, Y))).abs().max() < 1e-4 * flat(grad(LOGISTIC)(start, (X, Y))).abs().max()
    assert not flat(c).requires_grad and torch.equal(flat(start), flat(POINTS[form](3)))


def test_the_mode_of_a_regression_is_that_of_the_normal_equations():
    r = REGRESSION
    with torch.no_grad():
        c = find_mode(r.energy, torch.zeros(2, dtype=F64), (r.x, r.y))
    assert (c - r.mode).abs().max() < 1e-5
    single = find_mode(r.energy, torch.zeros(2), (r.x.float(), r.y.float()))
    assert (single - r.mode).abs().max() < 1e-3


def test_the_mode_of_a_module_is_a_dict_that_a_run_can_start_from():
    model = torch.nn.Linear(3, 1, dtype=F64)

    def loss(q, batch):
        return logits_loss({"weight": q["weight"][0], "bias": q["bias"]}, batch)

    energy = samplers.posterior(loss, quadratic_prior, num_data=N)
    before = model.weight.detach().clone()
    mode = find_mode(energy, model, (X, Y))
    draws = samplers.sample(
        samplers.SGLD,
        control_variate(energy, mode, (X, Y)),
        init=mode,
        steps=5,
        step_size=1e-3,
        data=(X, Y),
        batch_size=B,
        progress=False,
    )
    assert draws["weight"].shape == (4, 5, 1, 3) and torch.equal(model.weight, before)


def test_a_line_search_that_is_lost_ends_at_once():
    """Where no number is left torch's would take ten evaluations for every step that is allowed."""
    calls = []

    def energy(theta):
        calls.append(theta)
        return -(theta**2).sum() - (theta**4).sum()

    with pytest.raises(RecipeError, match="not finite"):
        find_mode(energy, torch.ones(2, dtype=F64), steps=1000)
    assert len(calls) < 200


def test_a_mode_that_is_not_reached_is_told():
    with pytest.warns(RuntimeWarning, match="U still falls after 2 iterations"):
        find_mode(LOGISTIC, normal(3), (X, Y), steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_mode(LOGISTIC, normal(3), (X, Y))


# ---- SVRG


class Net(torch.nn.Module):
    """A network with tied weights, a frozen one, dropout, and a buffer that counts the calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3, dtype=F64), torch.nn.Linear(3, 3, dtype=F64)
        self.second.weight = self.first.weight
        self.last, self.norm, self.dropout = (
            torch.nn.Linear(3, 1, dtype=F64),
            torch.nn.BatchNorm1d(3, dtype=F64),
            torch.nn.Dropout(0.5),
        )
        self.scale = torch.nn.Parameter(torch.tensor(1.3, dtype=F64), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(normal(*p.shape, seed=i) if p.dim() else p)
        self.norm.eval()
        self.dropout.eval()

    def forward(self, x):
        self.calls += 1
        x = self.dropout(torch.tanh(self.norm(self.first(x))))
        return self.scale * self.last(torch.tanh(self.second(x)))[:, 0]


def net_loss(model, batch):
    x, y = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)


def list_loss(weights, batch):
    x, y = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(weights[2] * torch.tanh(x @ weights[0]) @ weights[1], y)


def dict_loss(weights, batch):
    return list_loss([weights["a"], weights["b"], weights["c"]], batch)


def weights():
    """Two tensors, and a third that is not trained."""
    return [torch.nn.Parameter(normal(3, 4)), torch.nn.Parameter(normal(4, seed=1)), torch.tensor(1.3, dtype=F64)]


MODELS = {
    "module": (Net, net_loss),
    "list": (weights, list_loss),
    "dict": (lambda: dict(zip("abc", weights())), dict_loss),
}
models = pytest.mark.parametrize("kind", MODELS)


def trained(model):
    parameters = (
        model.parameters()
        if isinstance(model, torch.nn.Module)
        else model.values()
        if isinstance(model, dict)
        else model
    )
    return [p for p in parameters if p.requires_grad]


def slope(model, loss, batch, svrg=None):
    """The gradient on a batch as one vector, corrected or not."""
    for p in trained(model):
        p.grad = None
    loss(model, batch).backward()
    if svrg is not None:
        svrg.correct(batch)
    return torch.cat([p.grad.reshape(-1) for p in trained(model)])


def moved(model, by=0.1):
    with torch.no_grad():
        for i, p in enumerate(trained(model)):
            p.add_(normal(*p.shape, seed=i + 20), alpha=by)


def snapshot_of(kind, data=(X, Y), every=10**6, chunk=7, by=0.1):
    """A model that has moved on since the only snapshot of it."""
    make, loss = MODELS[kind]
    model = make()
    svrg = SVRG(model, loss, data, every=every, chunk=chunk)
    slope(model, loss, (X[:B], Y[:B]), svrg)
    moved(model, by)
    return model, loss, svrg


@models
@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_the_mean_of_corrected_gradients_over_an_epoch_is_the_full_gradient(kind, chunk):
    model, loss, svrg = snapshot_of(kind, chunk=chunk)
    corrected = torch.stack([slope(model, loss, batch, svrg) for batch in Minibatches((X, Y), B)])
    assert (corrected.mean(0) - slope(model, loss, (X, Y))).abs().max() < 1e-12
    assert spread(corrected) > 1e-6  # no batch gives it alone


@models
def test_while_the_weights_are_the_snapshot_every_batch_gives_the_full_gradient(kind):
    model, loss, svrg = snapshot_of(kind, by=0.0)
    full = slope(model, loss, (X, Y))
    for batch in Minibatches((X, Y), B):
        assert (
            (slope(model, loss, batch, svrg) - full).abs().max()
            < 1e-12
            < (slope(model, loss, batch) - full).abs().max()
        )


@models
def test_near_the_snapshot_the_variance_falls_with_the_square_of_the_way_from_it(kind):
    def of(model, loss, svrg):
        return spread(torch.stack([slope(model, loss, batch, svrg) for batch in Minibatches((X, Y), B)]))

    near, far = snapshot_of(kind, by=1e-4), snapshot_of(kind, by=2e-4)
    assert of(*far) / of(*near) == pytest.approx(4, rel=1e-2)
    assert of(*far) < 1e-4 * of(*far[:2], None)


@pytest.mark.parametrize(
    "data",
    [(X, Y), Minibatches((X, Y), B), torch.utils.data.TensorDataset(X, Y)],
    ids=["tensors", "minibatches", "dataset"],
)
def test_the_full_gradient_may_be_read_from_anywhere(data):
    model, loss, svrg = snapshot_of("module", data, by=0.0)
    assert (slope(model, loss, (X[:3], Y[:3]), svrg) - slope(model, loss, (X, Y))).abs().max() < 1e-12


def test_snapshots_are_taken_every_so_many_steps_and_only_then():
    model, loss = weights(), list_loss
    svrg, exact = SVRG(model, loss, (X, Y), every=3), []
    for batch in list(Minibatches((X, Y), B))[:8]:
        exact.append(bool((slope(model, loss, batch, svrg) - slope(model, loss, (X, Y))).abs().max() < 1e-12))
        moved(model)
    assert exact == [True, False, False, True, False, False, True, False] and svrg.steps == 8


def test_a_correction_adds_to_what_else_is_in_the_gradient():
    model, loss, svrg = snapshot_of("list")
    plain = slope(model, loss, (X[:B], Y[:B]), svrg)
    slope(model, loss, (X[:B], Y[:B]))
    for p in trained(model):
        p.grad += 0.3 * p.detach()
    svrg.correct((X[:B], Y[:B]))
    decay = torch.cat([0.3 * p.detach().reshape(-1) for p in trained(model)])
    assert (torch.cat([p.grad.reshape(-1) for p in trained(model)]) - plain - decay).abs().max() < 1e-12


def test_weights_buffers_modes_and_torchs_generator_stay_as_they_are():
    model, loss = Net(), net_loss
    model.norm.running_mean += 0.1
    svrg = SVRG(model, loss, (X, Y), every=1, chunk=7)
    loss(model, (X[:B], Y[:B])).backward()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    modes, tensors, random = (
        [m.training for m in model.modules()],
        [p.data_ptr() for p in model.parameters()],
        torch.get_rng_state(),
    )
    svrg.correct((X[:B], Y[:B]))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert modes == [m.training for m in model.modules()] and tensors == [p.data_ptr() for p in model.parameters()]
    assert torch.equal(torch.get_rng_state(), random)


def started():
    """A model, its minibatches, SVRG and SGLD: all that a loop has to save."""
    model, batches = Net(), Minibatches((X, Y), 7, seed=1, drop_last=False)
    svrg = SVRG(model, net_loss, batches, every=5)
    return (
        model,
        batches,
        svrg,
        samplers.Optimizer(trained(model), samplers.SGLD, lr=0.05, num_data=N, seed=2, backend="torch"),
    )


def trained_with(parts, steps):
    """The parts after some steps of an ordinary loop."""
    model, batches, svrg, optimizer = parts
    for batch in islice(chain.from_iterable(repeat(batches)), steps):
        optimizer.zero_grad()
        net_loss(model, batch).backward()
        svrg.correct(batch)
        optimizer.step()
    return parts


@pytest.mark.parametrize("at", [1, 5, slow(8), slow(9), slow(13)])
def test_a_loop_broken_off_and_resumed_goes_on_bit_for_bit(at):
    """At a snapshot, between two, at the end of an epoch; the weights themselves are in the model's state."""
    first, second, file = trained_with(started(), at), started(), io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    for part, state in zip(second, torch.load(file, weights_only=True)):
        part.load_state_dict(state)
    model, whole = trained_with(second, 22 - at)[0], trained_with(started(), 22)[0]
    assert all(torch.equal(x, whole.state_dict()[name]) for name, x in model.state_dict().items())


def test_a_state_is_a_copy():
    model, loss, svrg = snapshot_of("list")
    state = svrg.state_dict()
    first = slope(model, loss, (X[:B], Y[:B]), svrg)
    for x in (*state["snapshot"].values(), *state["gradient"].values()):
        x.zero_()
    assert torch.equal(slope(model, loss, (X[:B], Y[:B]), svrg), first)
    state = svrg.state_dict()
    svrg.load_state_dict(state)
    for x in (*state["snapshot"].values(), *state["gradient"].values()):
        x.zero_()
    assert torch.equal(slope(model, loss, (X[:B], Y[:B]), svrg), first)


# ---- bad input


class Named(torch.nn.Module):
    """A linear model with a layer beside it."""

    def __init__(self, layer, training=True):
        super().__init__()
        self.linear, self.layer = torch.nn.Linear(3, 3, dtype=F64), layer
        self.train(training)

    def forward(self, x):
        return self.layer(self.linear(x)).mean(1)


def with_layer(layer, training=True):
    return lambda: SVRG(Named(layer, training), net_loss, (X, Y), every=2)


def corrected(loss=list_loss, claimed=None, prepare=lambda model: None, model=weights, batch=(X[:B], Y[:B])):
    """A step in which `claimed` is told to be the loss."""

    def call():
        given = model()
        svrg = SVRG(given, claimed or loss, (X, Y), every=2)
        loss(given, batch).backward()
        prepare(given)
        svrg.correct(batch)

    return call


def loaded(**changes):
    return lambda: SVRG(weights(), list_loss, (X, Y), every=10**6).load_state_dict(
        snapshot_of("list")[2].state_dict() | changes
    )


def unsteady(loss, calls=count(1)):
    """A loss that is another at every call, as a random one."""
    return lambda weights, batch: loss(weights, batch) * next(calls)


V = vector("v")


def SUM(w, batch):
    return LOGISTIC(w, batch) * len(batch[0]) / N


C = torch.zeros(3, dtype=F64)


def centred(energy=LOGISTIC, center=C, data=(X, Y), **more):
    return lambda: control_variate(energy, center, data, **more)


def elsewhere():
    corrected, run = control_variate(LOGISTIC, C, (X, Y)), dict(init=C, step_size=0.1, batch_size=B, progress=False)
    samplers.sample(samplers.SGLD, corrected, data=(X[1:], Y[1:]), **run)


WRONG = {
    # control_variate and find_mode
    "an energy of text": (centred("U"), ["control_variate, energy", "'U'"]),
    "an energy without a batch": (centred(lambda w: (w**2).sum()), ["control_variate, energy", "2 argument(s)"]),
    "an energy of many values": (centred(lambda w, batch: w**2), ["control_variate, energy", "one number"]),
    "an energy that is a sum": (centred(SUM), ["control_variate, energy", "halves", "num_data times the mean"]),
    "an energy with .item()": (
        centred(lambda w, b: (w * w[0].item()).sum() + (b[0] @ w).mean()),
        ["control_variate, energy", "many chains"],
    ),
    "a symbolic energy": (centred(Energy(V, U=total(V**2))), ["control_variate, energy", "torch function"]),
    "a posterior of other data": (centred(data=(X[1:], Y[1:])), ["control_variate, energy", "60", "59"]),
    "a run on other data": (elsewhere, ["sample, energy", "60", "59"]),
    "data of different lengths": (centred(data=(X, Y[1:])), ["control_variate, data", "59"]),
    "data of another type": (centred(data=(X.float(), Y)), ["control_variate, data", "float32", "float64"]),
    "a center of integers": (centred(center=torch.zeros(3).long()), ["control_variate, center", "real"]),
    "a center that is not finite": (centred(center=C + math.inf), ["control_variate, center", "finite"]),
    "no center": (centred(center={}), ["control_variate, center", "no tensors"]),
    "a center at a kink": (
        centred(lambda w, b: w.abs().sqrt().sum() + (b[0] @ w).mean() * N),
        ["control_variate, center", "not finite"],
    ),
    "a center of another shape": (
        lambda: centred(lambda w, b: (w**2).sum(), torch.zeros(4, dtype=F64))()(C, (X, Y)),
        ["control_variate, center", "(4,)", "(3,)"],
    ),
    "a center of other names": (
        lambda: centred(center=POINTS["named"](0))()(C, (X, Y)),
        ["control_variate, center", "weight", "(3,)"],
    ),
    "no chunk": (centred(chunk=0), ["control_variate, chunk", "0"]),
    "a mode at infinity": (
        lambda: find_mode(lambda w: -(w**2).sum() - (w**4).sum(), C + 1),
        ["find_mode", "not finite"],
    ),
    "a mode of a sum in chunks": (lambda: find_mode(SUM, C, (X, Y), chunk=20), ["find_mode, energy", "halves"]),
    "half a step to the mode": (lambda: find_mode(LOGISTIC, C, (X, Y), steps=0.5), ["find_mode, steps", "0.5"]),
    # what SVRG is made of
    "no loss": (lambda: SVRG(weights(), None, (X, Y), every=2), ["SVRG, loss", "None"]),
    "never a snapshot": (lambda: SVRG(weights(), list_loss, (X, Y), every=0), ["SVRG, every", "0"]),
    "a lone tensor": (lambda: SVRG(weights()[0], list_loss, (X, Y), every=2), ["SVRG, model", "list or dict"]),
    "weights that are no tensors": (lambda: SVRG([1.0], list_loss, (X, Y), every=2), ["SVRG, model", "no tensor"]),
    "nothing to train": (lambda: SVRG([X], list_loss, (X, Y), every=2), ["SVRG, model", "requires a gradient"]),
    "no data": (lambda: SVRG(weights(), list_loss, (X[:0], Y[:0]), every=2), ["SVRG, data", "none"]),
    "a list of data": (lambda: SVRG(weights(), list_loss, [X, Y], every=2), ["SVRG, data", "list"]),
    # modules in training mode
    "dropout": (with_layer(torch.nn.Dropout(0.1)), ["SVRG, model", "layer", "Dropout", "random", "eval()"]),
    "alpha dropout": (with_layer(torch.nn.AlphaDropout(0.1)), ["layer", "AlphaDropout", "random"]),
    "random leaks": (with_layer(torch.nn.RReLU()), ["layer", "RReLU", "random"]),
    "dropout of attention": (
        with_layer(torch.nn.MultiheadAttention(2, 1, dropout=0.1)),
        ["layer", "MultiheadAttention", "random"],
    ),
    "dropout of an LSTM": (with_layer(torch.nn.LSTM(3, 3, num_layers=2, dropout=0.1)), ["layer", "LSTM", "random"]),
    "batch normalisation": (with_layer(torch.nn.BatchNorm1d(3)), ["layer", "BatchNorm1d", "couples", "eval()"]),
    "batch normalisation without statistics": (
        with_layer(torch.nn.BatchNorm1d(3, track_running_stats=False), training=False),
        ["layer", "BatchNorm1d", "couples", "running statistics"],
    ),
    # a step
    "training mode since": (
        corrected(net_loss, model=Net, prepare=torch.nn.Module.train),
        ["SVRG, model", "norm", "couples"],
    ),
    "before backward": (
        corrected(prepare=lambda model: setattr(model[1], "grad", None)),
        ["SVRG, correct", "weight 1", "no gradient", "backward"],
    ),
    "a loss that is a sum": (
        corrected(lambda w, b: list_loss(w, b) * len(b[0])),
        ["SVRG, loss", "halves", "the mean over the batch"],
    ),
    "a loss per example": (corrected(claimed=lambda w, b: (b[0] @ w[0]).sum(1)), ["SVRG, loss", "shape", "0-dim"]),
    "a loss of numbers": (corrected(claimed=lambda w, b: 1.0), ["SVRG, loss", "float"]),
    "a loss of other weights": (corrected(claimed=lambda w, b: b[0].mean()), ["SVRG, loss", "does not depend"]),
    "another loss": (corrected(claimed=lambda w, b: 2 * list_loss(w, b)), ["SVRG, correct", "p.grad differs"]),
    "gradients not zeroed": (
        corrected(prepare=lambda model: [p.grad.mul_(2) for p in trained(model)]),
        ["SVRG, correct", "p.grad differs", "zero"],
    ),
    "an unsteady loss": (corrected(unsteady(list_loss)), ["SVRG, loss", "halves", "random"]),
    # states
    "no state": (
        lambda: SVRG(weights(), list_loss, (X, Y), every=2).load_state_dict({"steps": 1}),
        ["SVRG, load_state_dict", "no state"],
    ),
    "another every": (loaded(every=3), ["SVRG, load_state_dict", "every = 3"]),
    "another model": (loaded(snapshot={"0": X}), ["SVRG, load_state_dict", "(60, 3)", "(3, 4)"]),
    "no snapshot": (loaded(snapshot={}), ["SVRG, load_state_dict", "{}"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused(name):
    call, words = WRONG[name]
    with pytest.raises(RecipeError, match=".*".join(map(re.escape, words))):
        call()


@pytest.mark.parametrize(
    "layer",
    [torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3, dtype=F64), torch.nn.RReLU()],
    ids=lambda layer: type(layer).__name__,
)
def test_in_eval_mode_they_are_let_through(layer):
    with_layer(layer, training=False)()
    with_layer(torch.nn.Dropout(0.0))()


# ---- rounding


def steep(w, X, Y):
    """Half the squared residuals of very many data, far from 0: in float32 it is rounded to 512."""
    return 1e5 * ((X @ w - Y.to(w)) ** 2).mean() + 5e9


def test_a_mode_in_float32_is_that_of_float64_where_the_energy_takes_it():
    x = X.float()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        single = find_mode(lambda w: steep(w, x.to(w), Y), torch.zeros(3))
    double = find_mode(lambda w: steep(w, x.to(w), Y), torch.zeros(3, dtype=F64))
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), double, rtol=3e-7, atol=1e-7)


def test_a_mode_that_rounding_hides_is_told():
    x = X.float()

    def slope(w):
        w = w.double().requires_grad_()
        return torch.autograd.grad(steep(w, x.double(), Y), w)[0].norm()

    with pytest.warns(RuntimeWarning, match="the gradient is still .* long.*float32.*Start in float64"):
        mode = find_mode(lambda w: steep(w, x, Y), torch.zeros(3))
    assert slope(mode) > 1
