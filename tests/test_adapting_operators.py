"""Operators that adapt: what they are made of, when they are constant, the law from there on, refusals, mutants."""

import numpy as np
import pytest
import scipy
import sympy
import torch
from covering import covering
from error_budget import CLAIMS, standard_score
from test_checkpoints import stopped_after

import integrators
import samplers
import samplers.distributed
from integrators.adapting import Covariance, Fisher, KroneckerFisher
from integrators.linear_law import linear_chain
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    copies,
    operator,
    positive,
    potential,
    refresh,
    step_size,
    temperature,
    total,
    vector,
)

theta, p = vector("theta"), vector("p")
M, F = operator("M"), operator("F", kind="semidefinite")
U = potential(theta)
gamma = positive("gamma", default=1.0)
TURNS = {(theta, p): -1}
G = 1 / (1 + step_size * F / 2)
KINETIC = U + total(p * M(p)) / 2  # masses are the inverse of the covariance

RECIPES = {
    "preconditioned": Recipe(name="preconditioned", state=theta, H=U, D={theta: M}),
    "natural": Recipe(name="natural", state=theta, H=U, D={theta: 1 / M}),
    "scoring": Recipe(
        name="scoring", state=theta, H=U, D={theta: G}, supplied={theta: temperature * step_size * G**2 * F / 2}
    ),
    "dense-mass": Recipe(name="dense-mass", state=(theta, p), H=KINETIC, D={p: gamma / M}, Q=TURNS, scheme="B A O A B"),
    "hmc": Recipe(
        name="hmc",
        state=(theta, p),
        H=KINETIC,
        D={},
        Q=TURNS,
        jumps={"R": refresh(p)},
        scheme="R B A B",
        metropolis=True,
    ),
}
HESSIAN = torch.tensor([[2.0, 0.9, 0.0], [0.9, 1.0, 0.3], [0.0, 0.3, 4.0]], dtype=torch.float64)


def narrow(theta):
    """A correlated Gaussian."""
    return theta @ HESSIAN @ theta / 2


def adapted(name, value, energy=narrow, sites=3, **run):
    """Draws of a recipe whose operator adapts."""
    (M,) = RECIPES[name].operators
    run = {"step_size": 0.2, "chains": 8, "steps": 1, "warmup": 100, "progress": False} | run
    return samplers.sample(RECIPES[name], energy, init=torch.zeros(sites).double(), **{M.name: value}, **run)


# ---- what they are made of


def batches(number, chains=5, sites=6):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, chains, sites, generator=draw, dtype=torch.float64) for _ in range(number)]


def test_the_covariance_is_that_of_all_positions_and_the_start():
    value = Covariance(every=4, weight=3.0, start=2.0)
    seen = batches(4)
    assert [value.observe(x + 100) for x, _ in seen] == [False, False, False, True]
    rows = np.concatenate([x.numpy() for x, _ in seen])
    expected = (len(rows) * np.cov(rows.T, bias=True) + 6 * np.eye(6)) / (len(rows) + 3)
    assert np.abs(value.value.matrix.numpy() - expected).max() < 1e-12


def test_the_fisher_matrix_is_the_mean_product_of_gradients():
    value = Fisher(every=2, after=1, until=3, start=torch.arange(1.0, 7), growth=1e6)
    seen = batches(5)
    assert [value.observe(x, g) for x, g in seen] == [False, False, True, False, False]
    rows = torch.cat([g for _, g in seen[1:3]])
    expected = (rows.mT @ rows + torch.diag(torch.arange(1.0, 7))) / (len(rows) + 1)
    assert value.is_frozen and (value.value.matrix - expected).abs().max() < 1e-12


def kronecker_gradients():
    """Gradients whose Fisher matrix is a Kronecker product, and it."""
    draw = torch.Generator().manual_seed(3)
    A, B = (torch.randn(n, n, generator=draw, dtype=torch.float64) for n in (2, 3))
    units = torch.eye(6, dtype=torch.float64).reshape(6, 2, 3) * 6**0.5
    return (A @ units @ B.mT).reshape(6, 6), torch.kron(A @ A.mT, B @ B.mT)


def error_of_kronecker(shape):
    gradients, expected = kronecker_gradients()
    value = KroneckerFisher([shape], every=1, weight=1e-12, growth=1e6)
    value.observe(torch.zeros(6, 6), gradients)
    return float((value @ torch.eye(6, dtype=torch.float64) - expected).abs().max() / expected.abs().max())


def test_kronecker_factors_are_those_of_a_kronecker_product():
    assert error_of_kronecker((2, 3)) < 1e-10
    assert error_of_kronecker((3, 2)) > 0.1  # the mutant: its axes in another order


GROWING = {
    "covariance": (Covariance, 1.0),
    "fisher": (Fisher, -1.0),
    "kronecker": (lambda **options: KroneckerFisher([(2, 2), (2,)], **options), -1.0),
}


@pytest.mark.parametrize("name", GROWING)
def test_along_no_direction_are_steps_more_than_twice_as_long_as_before(name):
    """Few rows of a wide spectrum; where the growth is not limited they become far longer."""
    build, sign = GROWING[name]

    def longest(**options):
        value, growths = build(every=1, weight=0.1, **options), []
        value.place(torch.zeros(1, 6))
        one = torch.eye(6, dtype=torch.float64)
        for x, g in batches(12):
            before = (value @ one).numpy()
            value.observe(x * torch.logspace(0, 3, 6), g / torch.logspace(0, 3, 6))
            growths.append((scipy.linalg.eigvalsh((value @ one).numpy(), before) ** sign).max())
        return max(growths)

    assert longest(growth=3.0) < 3 + 1e-9 and longest() < 2 + 1e-9
    assert longest(growth=1e9) > 10


def test_a_start_is_the_value_until_there_is_another():
    for value in (Covariance(start=0.3), Fisher(start=0.3), KroneckerFisher([(2, 1, 2), ()], start=0.3)):
        value.place(torch.zeros(1, 5))
        assert torch.allclose(value @ torch.ones(1, 5), torch.full((1, 5), 0.3))
        assert value.sites == 5 and torch.allclose(value.inverse() @ torch.ones(1, 5), torch.full((1, 5), 1 / 0.3))


def test_kronecker_factors_adapt_to_the_tensors_of_a_run():
    value = KroneckerFisher([(2, 3), (3,)], start=4.0)
    start = {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}
    run = dict(init=start, warmup=200, steps=1, chains=64, step_size=0.2, progress=False)

    def energy(own):
        away = own["weight"] @ HESSIAN.float()
        return (away * own["weight"]).sum() / 2 + own["bias"].square().sum()

    samplers.sample(RECIPES["scoring"], energy, F=value, **run)
    expected = torch.block_diag(torch.kron(torch.eye(2).double(), HESSIAN), 2 * torch.eye(3).double())
    found = value @ torch.eye(9, dtype=torch.float64)
    assert value.sites == 9 and value.is_frozen
    assert (found - expected).abs().max() < 1.2 < (found - expected.flip(0, 1)).abs().max()


def test_a_loop_of_its_own_shows_it_steps_and_freezes_it():
    step, value = integrators.compile(RECIPES["scoring"]), Fisher(every=5, start=4.0)
    draw = torch.Generator().manual_seed(0)
    state = {"theta": torch.zeros(16, 3).double()}
    for k in range(200):
        noise = {"theta": torch.randn(16, 3, generator=draw, dtype=torch.float64)}
        state = step(state, 0.2, gradient=lambda x: x @ HESSIAN, noise=noise, F=value)
        changed = value.observe(state["theta"], state["theta"] @ HESSIAN)
        assert changed == (k % 5 == 4 and k < 100)
        if k == 99:
            value.freeze()
    assert value.is_frozen and (value.value.matrix - HESSIAN).abs().max() < 1


def covariance_after_a_transient():
    """Of 2000 steps, the first 100 of them far away."""
    value = Covariance(every=10)
    draw = torch.Generator().manual_seed(0)
    for k in range(2000):
        x = torch.randn(4, 2, generator=draw, dtype=torch.float64)
        value.observe(x + 1000 * (k < 100))
    return float(value.eigenvalues().amax())


def test_a_transient_is_forgotten(monkeypatch):
    assert covariance_after_a_transient() < 1.5
    monkeypatch.setattr("integrators.adapting.RENEWAL", np.inf)  # the mutant remembers all
    assert covariance_after_a_transient() > 1e4


def test_a_state_is_all_that_there_is():
    for value, other in ((Covariance(every=3), Covariance(every=3)), (KroneckerFisher([(2, 3)]), None)):
        other = other or KroneckerFisher([(2, 3)])
        seen = batches(60)
        for x, g in seen[:31]:
            value.observe(x, g)
        other.load_state_dict(value.state_dict())
        for x, g in seen[31:]:
            assert value.observe(x, g) == other.observe(x, g)
        assert torch.equal(value @ seen[0][0], other @ seen[0][0])


# ---- what a run shows them


class Remembering(Fisher):
    """A Fisher matrix that keeps what it saw."""

    def restart(self, until=None):
        """Forget all that has been seen."""
        super().restart(until)
        self.pairs = []

    def observe(self, theta, gradient=None):
        """See a step."""
        self.pairs.append((theta, gradient))
        return super().observe(theta, gradient)


x, y, z = sympy.symbols("x y z", real=True)
SYMBOLIC = Energy((x, y, z), U=x**2 + y**4 + x * z + z**2)
QUARTIC = {"of torch": lambda t: t[0] ** 2 + t[1] ** 4 + t[0] * t[2] + t[2] ** 2, "symbolic": SYMBOLIC}


def slope(t):
    """The gradient of the quartic energy."""
    return torch.stack([2 * t[:, 0] + t[:, 2], 4 * t[:, 1] ** 3, t[:, 0] + 2 * t[:, 2]], 1)


@pytest.mark.parametrize("energy", QUARTIC)
@pytest.mark.parametrize("name", ["scoring", "dense-mass", "hmc"])
def test_gradients_are_shown_with_the_points_where_they_were_taken(name, energy):
    value = Remembering(every=10**6, start=0.3)
    adapted(name, value, QUARTIC[energy], warmup=30, steps=20, step_size=0.02)
    assert len(value.pairs) == 30
    for at, gradient in value.pairs:
        assert torch.allclose(gradient, slope(at), atol=1e-12)
    assert len({float(at.sum()) for at, _ in value.pairs}) > 20


def test_minibatches_and_lost_chains():
    value = Remembering(every=10**6, until=20, start=1.0)
    rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batched = dict(data=(rows,), batch_size=5, step_size=0.01)  # half of 1/curvature
    adapted("scoring", value, lambda t, batch: 10 * ((t - batch[0]) ** 2).sum() / 2, steps=20, warmup=20, **batched)
    assert len({float(g.sum()) for _, g in value.pairs}) == 20
    init = torch.zeros(4, 3).double()
    init[1] = 10  # a step to -1000, from which the next is beyond the numbers
    with pytest.warns(RuntimeWarning, match="1 of 4 chains are lost"):
        samplers.sample(
            RECIPES["scoring"],
            lambda t: t.cosh().sum(),
            init=init,
            F=value,
            steps=20,
            warmup=20,
            step_size=0.1,
            progress=False,
        )
    assert [len(value.pairs[k][0]) for k in (0, -1)] == [4, 3] and value.is_frozen


def moves_on_after_the_warmup():
    """Whether the matrix is another one after more steps of sampling, and how many were made in the warmup."""
    values = []
    for steps in (1, 200):
        values.append(Covariance(every=20))
        adapted("preconditioned", values[-1], steps=steps)
    return not torch.equal(values[0].value.matrix, values[1].value.matrix)


def test_the_operator_is_constant_after_the_warmup(monkeypatch):
    assert not moves_on_after_the_warmup()
    monkeypatch.setattr(Covariance, "is_frozen", False)  # the mutant goes on
    monkeypatch.setattr("samplers.running.adaptation.Adaptation.advance", Endless.advance)
    assert moves_on_after_the_warmup()


class Endless:
    """A mutant that shows all steps."""

    def advance(self, chains, stage, done, end):
        """Make a step of a stage."""
        moves = self.stepwise.advance(chains, stage, done, end)
        self._show(chains)
        return moves


def test_one_factorisation_serves_all_steps_between_two_matrices(monkeypatch):
    calls = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda A: calls.append(1) or eigh(A))
    adapted("preconditioned", Covariance(every=25), warmup=100, steps=300)
    assert 8 <= len(calls) <= 11  # of each matrix one for its growth beside


def test_the_law_says_what_is_frozen():
    def law(**options):
        run = {"warmup": 20, "steps": 20} | options.pop("run", {})
        return adapted("preconditioned", Covariance(**options), **run).info["law"]

    assert law() == "exact" and law(until=10) == "exact"
    assert law(until=30) == "given frozen M; then exact"
    assert law(until=40) == "given frozen M"
    phases = [samplers.Phase(10), samplers.Phase(30)]
    assert law(until=30, run=dict(phases=phases, warmup=0, steps=1000)) == "given frozen M; then exact"
    draws = adapted("preconditioned", Covariance())
    assert draws.info["parameters"]["M"] == "Covariance(every=50, after=0, until=100, weight=1.0, growth=2.0)"


def test_a_run_that_is_broken_off_while_it_adapts_goes_on_bit_for_bit(tmp_path, monkeypatch):
    def drawn(**kept):
        value = Fisher(every=7, start=4.0)
        draws = adapted("scoring", value, steps=10, warmup=24, **kept)
        return draws["theta"], value.value.matrix

    whole = drawn()
    folder = dict(checkpoint=samplers.checkpoints.Folder(tmp_path, every=0.0))
    stopped_after(monkeypatch, 13, lambda: drawn(**folder))
    stopped_after(monkeypatch, 6, lambda: drawn(**folder))
    assert all(map(torch.equal, drawn(**folder), whole))
    for other in ({"every": 8}, {"growth": 3.0}, {"weight": 2.0}):
        with pytest.raises(RecipeError, match="it holds a run of parameters"):
            adapted("scoring", Fisher(**{"every": 7, "start": 4.0} | other), steps=10, warmup=24, **folder)


def test_accuracy_runs_again_with_the_matrix_of_the_run():
    value = Covariance()
    draws = adapted("preconditioned", value)
    again = draws._again.inputs.parameters["M"]
    assert torch.equal(again.matrix, value.value.matrix) and not isinstance(again, Covariance)
    value.restart()
    assert again.sites == 3


# ---- the law from there on, against the exact one of the constant operator


def standard_scores(name, draws, covariance):
    """Second moments of draws in units of a covariance."""
    root = torch.tensor(np.linalg.cholesky(covariance))
    at = torch.linalg.solve(root, draws["theta"][:, -1].double().mT)
    return {(name, i, j): standard_score(at[i] * at[j] - float(i == j)) for i in range(3) for j in range(i + 1)}


def scores_after_the_warmup(name, value, **more):
    """Second moments of draws in units of the stationary law of the step with the matrix of the run."""
    h = 0.3
    draws = adapted(name, value, warmup=100, steps=1, step_size=h, chains=20_000, **more)
    step = integrators.compile(RECIPES[name])
    (own,) = RECIPES[name].operators
    chain = linear_chain(step, h, HESSIAN, **{own.name: value.value})
    covariance = chain.covariance[:3, :3]
    return standard_scores(name, draws, covariance), torch.tensor(covariance)


ADAPTED = {
    "preconditioned": lambda: Covariance(every=10, until=40, start=0.2),
    "scoring": lambda: Fisher(every=10, until=40, start=4.0),
    "dense-mass": lambda: Covariance(every=10, until=40, start=0.2),
}


@pytest.mark.parametrize("name", covering(ADAPTED, ["dense-mass"]))
def test_draws_have_the_law_of_the_constant_operator(name):
    scores, covariance = scores_after_the_warmup(name, ADAPTED[name]())
    assert not CLAIMS["adapted operators"].failures(scores)
    if name == "scoring":  # exact with the Fisher matrix itself
        assert (covariance - torch.linalg.inv(HESSIAN)).abs().max() < 0.02


ROWS, SIZE = torch.randn(40, 3, generator=torch.Generator().manual_seed(2)).double() / 3, 5


def slope_of_batch(t, batch):
    """The gradient of a Gaussian around the mean of the rows."""
    return (t - batch[0].mean(-2)) @ HESSIAN.numpy()


def noise_of_batches():
    """The covariance of the gradient."""
    scores = (ROWS - ROWS.mean(0)) @ HESSIAN / len(ROWS)
    return len(ROWS) ** 2 / SIZE * (scores.mT @ scores) / len(ROWS)


def covariance_on_minibatches(h, F):
    """That of the stationary law of scoring with this matrix."""
    chain = linear_chain(integrators.compile(RECIPES["scoring"]), h, HESSIAN, F=F)
    K = np.linalg.solve(HESSIAN.numpy(), (np.eye(3) - chain.M).T).T  # h times the preconditioner
    noise = chain.B @ chain.B.T + K @ noise_of_batches().numpy() @ K.T
    return scipy.linalg.solve_discrete_lyapunov(chain.M, noise)


@pytest.mark.parametrize("h", [0.01, 0.3, 3.0])
def test_scoring_is_exact_on_gaussians_where_its_fisher_matrix_has_the_noise_of_the_gradient(h):
    """SGFS: F = K + S, S the covariance of the gradient; with F = K it is too wide."""
    exact, S = torch.linalg.inv(HESSIAN).numpy(), noise_of_batches()
    assert covariance_on_minibatches(h, HESSIAN + S) == pytest.approx(exact, rel=1e-10, abs=1e-10)
    assert (np.linalg.eigvalsh(covariance_on_minibatches(h, HESSIAN) - exact) > 1e-3 * h / (1 + h)).all()


def test_the_fisher_matrix_of_a_run_on_minibatches_is_of_their_gradients():
    given, value = [], Remembering(until=20, start=8.0, growth=1e6)

    def slope(t, batch):
        given.append((t.tolist(), slope_of_batch(t, batch).tolist()))
        return slope_of_batch(t, batch)

    adapted("scoring", value, None, gradient=slope, warmup=20, data=(ROWS,), batch_size=SIZE)
    assert all((at.tolist(), seen.tolist()) in given for at, seen in value.pairs)
    gradients = torch.cat([g for _, g in value.pairs])
    expected = (gradients.mT @ gradients + 8 * torch.eye(3)) / (len(gradients) + 1)
    assert len(gradients) == 20 * 8 and torch.allclose(value.value.matrix, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_scoring_on_minibatches_has_the_noise_of_the_gradient_in_its_fisher_matrix():
    """The adapted matrix is near the exact one, and the draws have the law of the steps with it."""
    h, value = 0.3, Fisher(every=10, until=80, start=8.0)
    run = dict(warmup=120, step_size=h, chains=10_000, data=(ROWS,), batch_size=SIZE)
    draws = adapted("scoring", value, None, gradient=slope_of_batch, **run)
    assert (value.value.matrix - (HESSIAN + noise_of_batches())).abs().max() < 0.03 * HESSIAN.max()
    expected = covariance_on_minibatches(h, value.value)
    assert np.abs(expected - np.linalg.inv(HESSIAN.numpy())).max() < 0.03
    centred = {"theta": draws["theta"] - ROWS.mean(0)}
    assert not CLAIMS["adapted operators"].failures(standard_scores("minibatches", centred, expected))


STIFF = np.logspace(0, 4, 100)


@pytest.fixture(scope="module")
def stiff():
    """The Hessian of a Gaussian in 100 dimensions whose condition number is 10^4."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(100, 100)))[0]
    return torch.tensor((turn * STIFF) @ turn.T)


def share(step, h, hessian, **parameters):
    """ESS per gradient of the slowest mode of the mean."""
    rho = linear_chain(step, h, hessian, **parameters).spectral_radius
    return (1 - rho) / (1 + rho)


@pytest.mark.slow
def test_an_adapted_covariance_makes_up_for_a_condition_of_10000(stiff):
    """The start is the step of the identity, so that nothing is known beforehand but a stable step."""
    h = 0.3
    value = Covariance(start=1 / STIFF.max())
    adapted("preconditioned", value, lambda t: t @ (stiff @ t) / 2, sites=100, step_size=h, warmup=2000)
    step = integrators.compile(RECIPES["preconditioned"])
    assert share(step, h, stiff, M=value.value) > 1000 * share(step, 1 / STIFF.max(), stiff, M=1.0)


@pytest.mark.slow
def test_an_adapted_fisher_matrix_makes_up_for_it_too_where_its_steps_grow_slowly(stiff):
    """After 100 steps all it has seen are some ten independent states: of most directions next to nothing is known."""

    def of(**options):
        value = Fisher(start=STIFF.max(), **options)
        adapted("natural", value, lambda t: t @ (stiff @ t) / 2, sites=100, step_size=h, warmup=1000)
        return share(integrators.compile(RECIPES["natural"]), h, stiff, M=value.value)

    h = 0.3
    identity = share(integrators.compile(RECIPES["preconditioned"]), 1 / STIFF.max(), stiff, M=1.0)
    assert of() > 900 * identity  # 1035 on average, with an sd of 30 over seeds
    with pytest.raises(RecipeError, match="after step 100: .*it is not symmetric and positive definite"):
        of(growth=1e9)  # the mutant diverges


# ---- bad input

replicas = Recipe(name="replicas", state=(theta, p), target=(theta, p), H=sum(copies(theta, p)), D={theta: M, p: M})

BAD = {
    "it adapts in the warmup, and there is none": dict(value=lambda: Covariance(), warmup=0),
    "it adapts from step 50 to step 30 of 31": dict(value=lambda: Covariance(after=50), warmup=30),
    "it adapts from step 0 to step 300 of 101": dict(value=lambda: Covariance(until=300)),
    "made of 3 states, 1 of each step, and has 3 rows": dict(
        value=lambda: Covariance(until=3), chains=1, energy=narrow
    ),
    "it adapts to one temperature": dict(value=lambda: Covariance(), temperature=[1.0, 2.0]),
    "it has 6 rows, but a chain has 3 sites": dict(value=lambda: KroneckerFisher([(2, 3)])),
    "an integer >= 1, got 0": dict(value=lambda: Covariance(every=0)),
    "until is an integer >= 6": dict(value=lambda: Covariance(after=5, until=5)),
    "growth is a number > 1, got 1.0": dict(value=lambda: Covariance(growth=1.0)),
    "weight is a number > 0": dict(value=lambda: Fisher(weight=0.0)),
    "Fisher, start: it is not symmetric and positive definite": dict(value=lambda: Fisher(start=-1.0)),
    "start is a number > 0": dict(value=lambda: KroneckerFisher([(3,)], start=0.0)),
    "tensors are the shapes": dict(value=lambda: KroneckerFisher([3])),
    "it is of no tensors": dict(value=lambda: KroneckerFisher([])),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_adapt_is_refused_before_the_first_step(message):
    options = dict(BAD[message])
    with pytest.raises(RecipeError, match=message):
        adapted("preconditioned", options.pop("value")(), **{"energy": lambda t: t / 0} | options)


def test_other_refusals(monkeypatch):
    skew = Recipe(name="skew", state=theta, H=U, D={theta: 1}, Q={theta: operator("J", kind="skew")})
    run = dict(init=torch.zeros(3), steps=10, warmup=10, step_size=0.1, progress=False)
    with pytest.raises(RecipeError, match="it is not skew"):
        samplers.sample(skew, narrow, J=Covariance(), **run)
    with pytest.raises(RecipeError, match="it adapts to one target, and there are theta, p"):
        samplers.sample(replicas, narrow, M=Covariance(), **run)
    halves = potential(theta, name="fast") + potential(theta, name="slow")
    several = Recipe(name="several", state=theta, H=halves, D={theta: M})
    with pytest.raises(RecipeError, match="a step takes none, or those of parts of it"):
        samplers.sample(several, {"fast": narrow, "slow": narrow}, M=Fisher(), **run)
    optimizer = samplers.Optimizer
    with pytest.raises(RecipeError, match="adapts to the chains of samplers.sample alone"):
        optimizer([torch.zeros(3, requires_grad=True)], RECIPES["preconditioned"], lr=0.1, num_data=10, M=Fisher())
    monkeypatch.setattr(samplers.distributed, "begin", lambda: (0, 2))
    with pytest.raises(RecipeError, match="would adapt to the chains of each rank apart"):
        samplers.distributed.sample(RECIPES["preconditioned"], narrow, M=Covariance(), **run)
    with pytest.raises(RecipeError, match="it is made of gradients, and there are none"):
        Fisher().observe(torch.zeros(1, 2))
    with pytest.raises(RecipeError, match="what it sees is not finite"):
        Covariance().observe(torch.full((1, 2), float("nan")))


def test_a_matrix_that_the_steps_cannot_have_is_refused_at_the_switch():
    greedy = Recipe(name="greedy", state=theta, H=U, D={theta: 1}, supplied={theta: F / 1000})
    with pytest.raises(RecipeError, match=r"after step 20: .*T D - supplied has the eigenvalue"):
        samplers.sample(
            greedy,
            lambda t: 2000 * (t**2).sum() / 2,
            init=torch.ones(2),
            F=Fisher(every=20, start=0.1),
            steps=5,
            warmup=50,
            step_size=0.0005,
            progress=False,
        )
