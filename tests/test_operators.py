"""Operators on vectors: the calculus of their recipes, steps against interpreters and exact laws, refusals, mutants."""

import time

import numpy as np
import pytest
import scipy
import sympy
import torch
from covering import covering, slow
from scipy.linalg import expm

import integrators
import samplers
from integrators.linear_law import linear_chain
from integrators.operators import Blocks, Dense, Diagonal, Kronecker, LowRank
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    derive,
    friction,
    noise,
    nonnegative,
    numerical,
    operator,
    positive,
    potential,
    refresh,
    scalar,
    total,
    vector,
)
from recipe.certificate.writing import written_out
from samplers.running import choice
from samplers.testing import check

theta, p = vector("theta"), vector("p")
M, W = operator("M"), operator("W")
G, S, J = operator("G", kind="semidefinite"), operator("S", kind="symmetric"), operator("J", kind="skew")
gamma = positive("gamma", default=0.7)
U = potential(theta)
TURNS = {(theta, p): -1}
DENSE, ROUND = U + total(p * M.inverse(p)) / 2, U + total(p**2) / 2


def langevin(name, H, **formulas):
    """A recipe of theta and p."""
    return Recipe(name=name, state=(theta, p), H=H, **{"Q": TURNS, **formulas})


RECIPES = {
    "preconditioned": Recipe(name="preconditioned", state=theta, H=U, D={theta: M}),
    "non-reversible": Recipe(name="non-reversible", state=theta, H=U, D={theta: M}, Q={theta: J}),
    "dense-mass": langevin("dense-mass", DENSE, D={p: gamma}),
    "proportional": langevin("proportional", DENSE, D={p: gamma * M}),
    "magnetic": langevin("magnetic", ROUND, D={p: gamma}, Q={(theta, p): -M, p: J}),
    "two-noises": langevin("two-noises", DENSE, D={p: gamma * M, theta: G}, Q={**TURNS, p: J}),
    "friction": langevin("friction", ROUND, D={p: gamma + G}),
    "hmc-dense": langevin("hmc-dense", DENSE, D={}, jumps={"R": refresh(p)}, scheme="R B A B", metropolis=True),
}
MOMENTA = "dense-mass", "proportional", "magnetic", "friction"
WORDS = [("preconditioned", None), ("non-reversible", None), ("two-noises", "Euler"), ("hmc-dense", None)]
WORDS += [(name, word) for name in MOMENTA for word in ("B A O A B", "F A")]


def matrices(sites, seed=0):
    """A value for every operator."""
    draw = torch.Generator().manual_seed(seed)
    A, B, C = (torch.randn(sites, sites, generator=draw, dtype=torch.float64) for _ in range(3))
    one = torch.eye(sites, dtype=torch.float64)
    return {"M": A @ A.T / sites + one / 2, "W": B @ B.T / sites + one, "G": C @ C.T / sites, "J": A - A.T}


def settings(step, values):
    """What a step takes of some values."""
    return {name: value for name, value in values.items() if name in step.parameters}


# ---- the calculus


def test_sums_over_sites_know_the_adjoint():
    assert total(p * J(p)) == 0
    assert total(p * M(theta)) == total(theta * M(p)) and total(p * J(theta)) == -total(theta * J(p))
    assert M.inverse(M(p)) == p and W.inverse(M(p)) != p
    assert total(M(p) ** 2).diff(p) == 2 * M(M(p))
    assert total(sympy.cos(M(p))).diff(p) == -M(sympy.sin(M(p)))
    assert total(W(p) * M(theta)).diff(theta) == M(W(p))
    assert M(2 * gamma * p + total(p) * theta) == 2 * gamma * M(p) + total(p) * M(theta)


@pytest.mark.parametrize("name", RECIPES)
def test_the_law_is_proved_and_the_matrices_are_those_of_explicit_sites(name):
    recipe = RECIPES[name]
    assert recipe.residual() == 0 and recipe.gamma.is_zero_matrix
    certificate = recipe.check()
    assert certificate.ok and certificate["stationary"].verdict == "proved"
    explicit = written_out(recipe, 3)
    D, Q = (np.array(A, float) for A in (explicit.D, explicit.Q))
    assert np.allclose(D, D.T) and np.allclose(Q, -Q.T) and np.linalg.eigvalsh(D).min() > -1e-12


def test_what_is_no_recipe_has_a_residual():
    lost = RECIPES["magnetic"]
    drift = lost.drift.xreplace({J: 2 * J})  # turns as fast again, and does no work
    assert derive.residual(drift, lost.H, lost.D, lost.state) == 0
    drift = lost.drift.xreplace({M: 2 * M}).extract([0], [0]).col_join(lost.drift.extract([1], [0]))
    assert derive.residual(drift, lost.H, lost.D, lost.state) != 0
    preconditioned = RECIPES["preconditioned"]
    assert derive.residual(preconditioned.drift, U, sympy.ImmutableMatrix([[2 * M]]), (theta,)) != 0


FACTORED = {  # Gamma of an operator times a factor of the state, M grad c
    "noise": (Recipe(name="noise", state=theta, H=U, D={theta: M * (1 + total(theta**2))}), [2 * M(theta)]),
    "turn": (langevin("turn", ROUND, D={p: gamma}, Q={**TURNS, p: J * (1 + total(p**2))}), [0, 2 * J(p)]),
    "mass": (langevin("mass", ROUND, D={p: gamma}, Q={(theta, p): -M * (1 + total(theta**2))}), [0, 2 * M(theta)]),
}


@pytest.mark.parametrize("name", FACTORED)
def test_an_operator_acts_on_the_slope_of_its_factor(name):
    recipe, gamma_of_state = FACTORED[name]
    assert recipe.gamma == sympy.ImmutableMatrix(gamma_of_state)
    assert recipe.check()["stationary"].verdict == "proved"
    step = integrators.compile(recipe, "Euler", backend="torch", dtype=torch.float64)
    v, h = matrices(3), 0.1
    z = {b.name: torch.arange(3.0, dtype=torch.float64)[None] / (2 + k) for k, b in enumerate(recipe.state)}
    still = {name: torch.zeros(1, 3, dtype=torch.float64) for name in step.draws}
    moved = step(z, h, gradient=lambda x: x, noise=still, **settings(step, v))
    if name == "noise":
        x = z["theta"][0]
        D = v["M"] * (1 + x @ x)
        assert torch.allclose(moved["theta"][0], x + h * (2 * v["M"] @ x - D @ x))
    else:
        x, u = z["theta"][0], z["p"][0]
        turn = v["M"] * (1 + x @ x) if name == "mass" else torch.eye(3, dtype=torch.float64)
        J_p = v["J"] * (1 + u @ u) if name == "turn" else 0 * v["J"]
        divergence = 2 * (v["J"] @ u if name == "turn" else v["M"] @ x)
        assert torch.allclose(moved["theta"][0], x + h * turn @ u)
        assert torch.allclose(moved["p"][0], u + h * (divergence - turn @ x - J_p @ u - 0.7 * u))


# ---- the law of steps on correlated Gaussians, against matrices by hand

BY_HAND = {  # D, Q and the Hessian of H over blocks, of K = grad grad U and the operators
    "preconditioned": lambda K, v, g: (v["M"], 0 * K, K),
    "non-reversible": lambda K, v, g: (v["M"], v["J"], K),
    "dense-mass": lambda K, v, g: _kinetic(K, 0 * K, g * np.eye(len(K)), np.eye(len(K)), 0 * K, np.linalg.inv(v["M"])),
    "proportional": lambda K, v, g: _kinetic(K, 0 * K, g * v["M"], np.eye(len(K)), 0 * K, np.linalg.inv(v["M"])),
    "magnetic": lambda K, v, g: _kinetic(K, 0 * K, g * np.eye(len(K)), v["M"], v["J"], np.eye(len(K))),
    "two-noises": lambda K, v, g: _kinetic(K, v["G"], g * v["M"], np.eye(len(K)), v["J"], np.linalg.inv(v["M"])),
    "friction": lambda K, v, g: _kinetic(K, 0 * K, g * np.eye(len(K)) + v["G"], np.eye(len(K)), 0 * K, np.eye(len(K))),
}


def _kinetic(K, D_theta, D_p, turn, J_p, inverse_mass):
    zero = np.zeros_like(K)
    D = np.block([[D_theta, zero], [zero, D_p]])
    return D, np.block([[zero, -turn], [turn.T, J_p]]), np.block([[K, zero], [zero, inverse_mass]])


def over(time, A, D, exact):
    """e^{-At} and the covariance of dz = -A z dt + sqrt(2D) dW, or those of an Euler step."""
    n = len(A)
    if not exact:
        return np.eye(n) - time * A, 2 * time * D
    E = expm(time * np.block([[-A, 2 * D], [np.zeros((n, n)), A.T]]))
    return E[:n, :n], E[:n, n:] @ E[:n, :n].T


def composed(word, h, A, D, sites):
    """The matrices of a word: A moves theta, B is the force on p, O the rest of p, F both of p."""
    n = len(A)
    of_theta, of_p = np.arange(n) < sites, np.arange(n) >= sites
    rows = {"A": np.outer(of_theta, of_theta | of_p), "B": np.outer(of_p, of_theta), "O": np.outer(of_p, of_p)}
    rows["F"] = rows["B"] + rows["O"]
    rows["Euler"] = np.ones((n, n))
    mean, covariance = np.eye(n), np.zeros((n, n))
    for letter in word.split():
        share, exact = h / word.split().count(letter), letter != "Euler"
        noise = 0 * D if letter in "AB" else D * rows[letter]
        decay, spread = over(share, A * rows[letter], noise, exact)
        mean, covariance = decay @ mean, decay @ covariance @ decay.T + spread
    return mean, covariance


@pytest.mark.parametrize("name, word", [(n, w) for n, w in WORDS if n in BY_HAND])
def test_the_linear_law_of_a_correlated_gaussian(name, word):
    sites, h, T = 5, 0.03, 1.3  # stable, whatever the matrices
    values = matrices(sites, seed=1)
    K = np.diag([0.5, 1.0, 1.5, 2.0, 3.0]) + 0.2
    step = integrators.compile(RECIPES[name], word, reuse_gradient=False)
    chain = linear_chain(step, h, K, temperature=T, **settings(step, values))
    D, Q, hessian = BY_HAND[name](K, {k: v.numpy() for k, v in values.items()}, 0.7)
    mean, covariance = composed(step.scheme.text, h, (D + Q) @ hessian, T * D, sites)
    assert np.abs(chain.M - mean).max() < 1e-10
    assert np.abs(chain.B @ chain.B.T - covariance).max() < 1e-10
    expected = scipy.linalg.solve_discrete_lyapunov(mean, covariance)
    assert np.abs(chain.covariance - expected).max() < 1e-10 * np.abs(expected).max()


STIFF = np.logspace(0, 4, 100)


@pytest.fixture(scope="module")
def stiff():
    """A Gaussian in 100 dimensions whose condition number is 10^4: its Hessian and its covariance."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(100, 100)))[0]
    return tuple(torch.tensor((A + A.T) / 2) for A in ((turn * STIFF) @ turn.T, (turn / STIFF) @ turn.T))


def test_a_dense_preconditioner_makes_up_for_a_condition_of_10000(stiff):
    """By the slowest mode rho of the linear steps: of the mean an ESS per gradient of (1 - rho)/(1 + rho)."""
    hessian, covariance = stiff
    h, share = 0.1, {}
    step = integrators.compile(RECIPES["preconditioned"])
    for value, time_step in ((covariance, h), (1.0, h / STIFF.max())):
        chain = linear_chain(step, time_step, hessian, M=value)
        rho = np.abs(np.linalg.eigvals(chain.M)).max()
        share[id(value)] = (1 - rho) / (1 + rho)
        if value is covariance:
            expected = covariance.numpy() / (1 - h / 2)
            assert np.abs(chain.covariance - expected).max() < 1e-10 * np.abs(expected).max()
    dense, identity = share.values()
    assert dense > 1000 * identity > 0


def test_baoab_with_the_hessian_for_a_mass_has_the_exact_covariance(stiff):
    hessian, covariance = stiff
    chain = linear_chain(integrators.compile(RECIPES["proportional"], "B A O A B"), 0.5, hessian, M=hessian, gamma=2.0)
    of_theta = [i for i, name in enumerate(chain.names) if name == "theta"]
    found = chain.covariance[np.ix_(of_theta, of_theta)]
    assert np.abs(found - covariance.numpy()).max() < 1e-10 * covariance.abs().max()


# ---- the emitted text


# each term of D and Q; other masses and words have their laws above
EACH_TERM = [
    ("two-noises", "Euler"),
    ("magnetic", "F A"),
    ("friction", "B A O A B"),
]


@pytest.mark.parametrize("name, word", covering(WORDS, EACH_TERM))
def test_layers_of_checks_pass(name, word):
    layers = ["symbolic", "generator", "differential", "linear law", "one-step defect", "work"]
    report = check(RECIPES[name], word, layers=layers)
    assert report.ok and not report.left_out, str(report)


def test_the_text_reads_as_mathematics():
    text = integrators.compile(RECIPES["non-reversible"]).source
    assert 'theta = theta + h*(-(J @ g) - (M @ g)) + spread_theta*(root_M @ noise["theta"])' in text
    text = integrators.compile(RECIPES["dense-mass"]).source
    assert "decay_p_by_M = M.function(lambda M: torch.exp(-h*gamma/M))" in text
    assert "theta = theta + h/2*(inverse_M @ p)" in text
    assert r"\left(J \left(\frac{\partial U}{\partial \theta}\right)" not in RECIPES["magnetic"].latex()
    assert "J p" in RECIPES["magnetic"].latex() and "(1/M)(p)" in str(RECIPES["dense-mass"])


def test_a_standalone_text_needs_torch_alone_and_takes_a_tensor():
    recipe = RECIPES["preconditioned"]
    step = integrators.compile(recipe)
    namespace = {}
    exec(compile(step.standalone(), "standalone", "exec"), namespace)
    state, noise = {"theta": torch.ones(2, 3).double()}, {"theta": torch.ones(2, 3).double()}
    matrix = matrices(3)["M"]
    arguments = dict(gradient=lambda x: x**3, noise=noise, M=matrix)
    assert torch.allclose(namespace["step"](state, 0.1, **arguments)["theta"], step(state, 0.1, **arguments)["theta"])


def test_kernels_say_no_and_auto_takes_torch(monkeypatch):
    run = dict(init=torch.zeros(3), steps=5, step_size=0.1, M=torch.eye(3), chains=1)
    with pytest.raises(RecipeError, match="a site reads others by an operator. Use backend='torch'"):
        samplers.sample(RECIPES["preconditioned"], bowl, backend="cpp", **run)
    monkeypatch.setattr(choice, "too_short", lambda *arguments: "")
    banana = Energy(sympy.symbols("x y z", real=True), U=sum(s**2 for s in sympy.symbols("x y z", real=True)))
    draws = samplers.sample(RECIPES["preconditioned"], banana, **run)
    assert draws.info["backend"] == "torch"


def bowl(theta):
    """A round Gaussian."""
    return (theta**2).sum() / 2


def test_one_factorisation_serves_all_steps_of_any_size(monkeypatch):
    calls = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda A: calls.append(1) or eigh(A))
    step = integrators.compile(RECIPES["dense-mass"])
    value, other = Dense(matrices(4)["M"]), Dense(matrices(4, seed=5)["M"])
    state = {name: torch.ones(1, 4).double() for name in ("theta", "p")}
    noise = {"p": torch.ones(1, 4).double()}
    moved = [step(state, h, gradient=lambda x: x, noise=noise, M=value)["p"] for h in (0.1, 0.2, 0.1)]
    assert len(calls) == 1
    assert torch.equal(moved[0], moved[2]) and not torch.equal(moved[0], moved[1])
    again = step(state, 0.1, gradient=lambda x: x, noise=noise, M=other)["p"]
    assert len(calls) == 2 and not torch.equal(again, moved[0])


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.parametrize("name", ["preconditioned", slow("non-reversible"), "two-noises", slow("hmc-dense")])
def test_steps_have_jacobians_and_kept_factorisations_serve_them(name, transform):
    step = integrators.compile(RECIPES[name])
    values = {name: Dense(value) for name, value in settings(step, matrices(4)).items()}
    noise = {draw: torch.ones(1, 4).double() for draw in step.draws}

    def moved(x):
        state = dict(zip(["theta", "p"], x.reshape(-1, 1, 4)))
        return torch.cat(
            [*step(state, 0.1, gradient=lambda theta: 2 * theta, noise=noise, **values).values()]
        ).flatten()

    x = torch.arange(4.0 * len(step.recipe.state)).double()
    by_differences = torch.stack(
        [moved(x + one) - moved(x) for one in torch.eye(len(x)).double()], 1
    )  # steps are affine
    for _ in range(2):
        torch.testing.assert_close(transform(moved)(x)[: len(x)], by_differences[: len(x)])
    assert torch.equal(moved(x), moved(x.clone()))


def test_compiling_takes_less_than_a_second():
    begun = time.process_time()
    recipe = Recipe(name="fresh", state=(theta, p), H=DENSE, D={p: gamma * M, theta: G}, Q={**TURNS, p: J})
    integrators.compile(recipe, "Euler").source
    assert time.process_time() - begun < 1


# ---- mutants: planted errors that the exact law sees


def transposed_matrix(source):
    return source.replace("self.matrix.to(x.dtype).mT", "self.matrix.to(x.dtype)")


def without_root(source):
    return source.replace("root_M = M.root()", "root_M = M")


def stale(source):
    return source.replace("decay_p_by_M = M.function(", "decay_p_by_M = kept(M.function, ")


KEPT = []


def kept(function, f):
    """What is found once, and not when h changes."""
    if not KEPT:
        KEPT.append(function(f))
    return KEPT[0]


MUTANTS = [("non-reversible", None, transposed_matrix), ("preconditioned", None, without_root)]
MUTANTS += [("dense-mass", "B A O A B", stale)]


@pytest.mark.parametrize("name, word, change", MUTANTS)
def test_mutants_are_seen(name, word, change):
    values = {k: v for k, v in matrices(4).items()}
    step = integrators.compile(RECIPES[name], word)
    wrong = change(step.source)
    assert wrong != step.source
    namespace = {"kept": kept}
    exec(compile(wrong, "mutant", "exec"), namespace)
    draw = torch.Generator().manual_seed(0)
    state = {b.name: torch.randn(2, 4, generator=draw, dtype=torch.float64) for b in step.recipe.state}
    noise = {k: torch.randn(2, 4, generator=draw, dtype=torch.float64) for k in step.draws}
    errors = []
    for h in (0.1, 0.2):
        arguments = dict(gradient=lambda x: x**3, noise=noise, **settings(step, values))
        right, moved = step(state, h, **arguments), namespace["step"](state, h, **arguments)
        errors.append(max((right[b] - moved[b]).abs().max().item() for b in state))
    assert max(errors) > 1e-3


# ---- where operators go


@pytest.mark.parametrize("name", ["matrix", "diagonal", "low rank", "blocks"])
def test_the_state_of_a_training_loop_is_loaded_as_weights_only(name, tmp_path):
    made = {
        "matrix": lambda: matrices(3)["M"],
        "diagonal": lambda: Diagonal([1.0, 2.0, 3.0]),
        "low rank": lambda: LowRank(1.0, torch.ones(3, 1)),
        "blocks": lambda: Blocks(Kronecker(torch.eye(1), matrices(2)["M"]), LowRank(2.0, [[0.5]])),
    }
    net = torch.nn.Linear(2, 1)

    def trained(optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.ones(4, 2)).square().mean().backward()
            optimizer.step()
        return torch.cat([w.detach().clone().reshape(-1) for w in net.parameters()])

    def new(M):
        return samplers.Optimizer(net.parameters(), RECIPES["preconditioned"], lr=0.01, num_data=100, M=M)

    first = new(made[name]())
    trained(first, 2)
    torch.save({"optimizer": first.state_dict(), "net": net.state_dict()}, tmp_path / "state.pt")
    expected = trained(first, 3)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    net.load_state_dict(state["net"])
    second = new(Diagonal([1.0, 1.0, 1.0]))
    second.load_state_dict(state["optimizer"])
    assert torch.equal(trained(second, 3), expected)


def test_a_training_loop_factorises_once_and_refuses_other_sizes(monkeypatch):
    calls = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda A: calls.append(1) or eigh(A))
    net = torch.nn.Linear(2, 1)

    def trained(M, steps):
        optimizer = samplers.Optimizer(net.parameters(), RECIPES["preconditioned"], lr=0.01, num_data=100, M=M)
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.ones(4, 2)).square().mean().backward()
            optimizer.step()
        assert "M " in repr(optimizer) and str(optimizer.report())
        return len(calls)

    assert trained(matrices(3)["M"], 2) == trained(matrices(3)["M"], 20) / 2
    trained(Blocks(Kronecker(torch.eye(1), matrices(2)["M"]), torch.eye(1)), 3)
    with pytest.raises(RecipeError, match="it has 4 rows, but a chain has 3 sites"):
        trained(torch.eye(4), 1)


def test_a_run_goes_on_with_its_own_matrix_alone(tmp_path):
    run = dict(init=torch.zeros(3), steps=20, step_size=0.1, progress=False, checkpoint=str(tmp_path / "run"))
    draws = samplers.sample(RECIPES["dense-mass"], bowl, M=matrices(3)["M"], **run)
    again = samplers.sample(RECIPES["dense-mass"], bowl, M=matrices(3)["M"], **run)
    assert torch.equal(draws["theta"], again["theta"]) and draws.info["parameters"] == {"M": "Dense((3, 3))"}
    with pytest.raises(RecipeError, match="it holds a run of parameters"):
        samplers.sample(RECIPES["dense-mass"], bowl, M=matrices(3, seed=1)["M"], **run)


def test_steps_of_operators_are_not_tuned():
    with pytest.raises(RecipeError, match="steps are not found for what the operator M makes of U"):
        samplers.tune(RECIPES["dense-mass"], bowl, init=torch.zeros(3), M=torch.eye(3))


# ---- values


STRUCTURES = {
    "number": lambda: (2.5, 2.5 * torch.eye(6)),
    "vector": lambda: (torch.arange(1.0, 7), torch.diag(torch.arange(1.0, 7))),
    "low rank": lambda: _low_rank(torch.tensor(0.7)),
    "diagonal and low rank": lambda: _low_rank(torch.linspace(0.5, 2, 6)),
    "Kronecker": lambda: (Kronecker(*_factors()), torch.kron(*_factors())),
    "blocks": lambda: (Blocks(Kronecker([[2.0]], _factors()[0]), Diagonal([1.0]), _factors()[1]), _three_blocks()),
}


def _factors():
    return matrices(2)["M"], matrices(3)["M"]


def _three_blocks():
    return torch.block_diag(2 * _factors()[0], torch.eye(1), _factors()[1])


def _low_rank(diagonal):
    factor = torch.randn(6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return LowRank(diagonal, factor), diagonal * torch.eye(6) + factor @ factor.T


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("recipe", ["preconditioned", "dense-mass", "friction"])
def test_structures_have_the_law_of_their_matrix(name, recipe):
    value, matrix = STRUCTURES[name]()
    step = integrators.compile(RECIPES[recipe], None if recipe == "preconditioned" else "B A O A B")
    (operator_name,) = {"M", "G"} & {*step.parameters}
    if name == "diagonal and low rank" and recipe != "preconditioned":
        with pytest.raises(RecipeError, match="only products, roots and inverses are known"):
            linear_chain(step, 0.1, torch.ones(6), **{operator_name: value})
        return
    K = torch.linspace(0.3, 2, 6).double()
    own, dense = (linear_chain(step, 0.1, K, **{operator_name: v}) for v in (value, matrix.double()))
    assert np.abs(own.M - dense.M).max() < 1e-12
    assert np.abs(own.B @ own.B.T - dense.B @ dense.B.T).max() < 1e-12


def test_roots_and_inverses_of_a_diagonal_and_a_low_rank():
    value, matrix = _low_rank(torch.linspace(0.5, 2, 6))
    one = torch.eye(6).double()
    root, inverse = value.root() @ one, value.inverse() @ one
    assert torch.allclose(root.T @ root, matrix) and torch.allclose(inverse, torch.linalg.inv(matrix))
    of_inverse = value.inverse().root() @ one
    assert torch.allclose(of_inverse.T @ of_inverse, torch.linalg.inv(matrix))


# ---- bad input


BAD_VALUES = {
    "has no default": None,
    "it has 3 rows, but a chain has 4 sites": torch.eye(3),
    "it is no square matrix": torch.ones(4, 3),
    "it is not symmetric and positive definite: M - M\\^T": torch.eye(4) + torch.ones(4, 4).triu(1),
    "an eigenvalue is -1": -torch.eye(4),
    "an eigenvalue is 0": torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0])),
    "is not made of numbers": "M",
    "its matrix is the class LowRank": LowRank,
    "not made of finite real numbers": torch.full((4, 4), float("nan")),
    "made of finite real numbers": torch.eye(4, dtype=torch.cfloat),
    "Kronecker|rows": Kronecker(torch.eye(2), torch.eye(3)),
}


@pytest.mark.parametrize("message", BAD_VALUES)
def test_bad_values_are_refused_before_the_first_step(message):
    values = {} if BAD_VALUES[message] is None else {"M": BAD_VALUES[message]}
    with pytest.raises(RecipeError, match=message):
        samplers.sample(
            RECIPES["preconditioned"], lambda x: x / 0, init=torch.zeros(4), steps=3, step_size=0.1, **values
        )


def test_other_bad_values():
    state = {"theta": torch.ones(1, 2)}
    noise = {"theta": torch.ones(1, 2)}
    step = integrators.compile(RECIPES["non-reversible"])
    with pytest.raises(RecipeError, match="operator J: it is not skew"):
        step(state, 0.1, gradient=lambda x: x, noise=noise, M=torch.eye(2), J=torch.eye(2))
    singular = Recipe(name="singular", state=(theta, p), H=U + total(p * G.inverse(p)) / 2, D={p: gamma}, Q=TURNS)
    step = integrators.compile(singular, "B A O A B")
    state = {"theta": torch.ones(1, 2), "p": torch.ones(1, 2)}
    with pytest.raises(RecipeError, match="1/G does not exist: it has an eigenvalue of 0"):
        step(state, 0.1, gradient=lambda x: x, noise={"p": torch.ones(1, 2)}, G=torch.ones(2, 2))
    budget = nonnegative("B", default=0.0)
    noisy = Recipe(name="noisy", state=theta, H=U, D={theta: M}, supplied={theta: budget})
    step = integrators.compile(noisy)
    with pytest.raises(RecipeError, match="T D - supplied has the eigenvalue"):
        step.check_budget(0.1, M=torch.eye(2), B=1.5)
    for wrong in (lambda: LowRank(0.0, torch.ones(3, 1)), lambda: LowRank(1.0, torch.ones(3)), lambda: Kronecker()):
        with pytest.raises(RecipeError):
            wrong()


x, xi, positive_block = scalar("x"), scalar("xi"), vector("q", domain="positive")
scale = positive("scale", per=theta)
BAD_RECIPES = {
    "M: it stands in H as if it were a number": dict(H=U + M, D={theta: 1}),
    "the operators in M\\*W do not commute": dict(D={theta: M * W}),
    "the square root of M \\+ W is not known": dict(D={theta: M + W}),
    "not symmetric": dict(D={theta: J}),
    "not skew": dict(D={theta: 1}, Q={theta: M}),
    "scale varies by site, and does not commute with M": dict(D={theta: scale * M}),
    "theta\\*\\*2 varies by site": dict(D={theta: theta**2 * M}),
    "M\\(theta\\) \\+ 1 is no matrix": dict(D={theta: 1 + M(theta)}),
    "not positive semidefinite": dict(D={theta: -M}),
    "it is not positive semidefinite: an eigenvalue": dict(D={theta: S}),
    "of which a scalar has none": dict(state=(theta, x), H=U + x**2 / 2, D={theta: 1, x: M}),
    "two vectors share": dict(state=(theta, p), H=U + total(p**2) / 2, D={p: M, theta: 1, (p, theta): M}),
    "changes with xi": dict(state=(theta, xi), H=U + xi**2 / 2, D={theta: 1 / (xi**2 + M), xi: 1}),
    "Operators act on vectors of real numbers": dict(
        state=positive_block, H=potential(positive_block), D={positive_block: M}
    ),
}


@pytest.mark.parametrize("message", BAD_RECIPES)
def test_bad_recipes_are_refused(message):
    with pytest.raises(RecipeError, match=message):
        Recipe(**{"name": "bad", "state": (theta,), "H": U, **BAD_RECIPES[message]})


def test_an_operator_has_a_name_and_a_kind():
    with pytest.raises(RecipeError, match="unknown kind 'round'"):
        operator("M", kind="round")
    with pytest.raises(RecipeError, match="a name is a letter"):
        operator("2M")
    with pytest.raises(RecipeError, match="Text is never evaluated"):
        M("theta")


def test_a_piece_whose_operators_do_not_commute_is_not_solved():
    recipe = Recipe(name="other", state=(theta, p), H=U + total(p * W(p)) / 2, D={p: M}, Q=TURNS)
    with pytest.raises(RecipeError, match="no closed form is known for piece 'O'"):
        integrators.compile(recipe, "B A O A B")
    cut = {"R": friction(p), "W": noise(p)}
    with pytest.raises(RecipeError, match="no closed form is known for piece 'R'"):
        integrators.compile(recipe, "B A R W A B", pieces=cut)


@pytest.mark.parametrize("method", ["heun", "stochastic runge-kutta", "randomised midpoint"])
def test_forces_at_predicted_points_are_under_the_operator(method):
    report = check(RECIPES["non-reversible"], "X", pieces={"X": numerical(theta, method)}, layers=["differential"])
    assert report.ok, str(report)
