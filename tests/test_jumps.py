"""Jumps: momenta refreshed and binary blocks drawn from their law exp(-H/T) given all else, which that law survives."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from statements import interpret
from sympy import sqrt

from integrators import compile
from recipe import Recipe, RecipeError, positive, potential, real, refresh, scalar, total, vector
from samplers import SGNHT, RandomisedHMC, SGHMCSAGibbs, SGLDSAClassificationGibbs, SGLDSAGibbs
from samplers.testing.interpreter import Chain, flow_by_flow
from samplers.testing.random_calls import by_oracle, called, inputs, tensors, worst

theta, p, gamma = vector("theta"), vector("p"), vector("gamma", domain="binary")
xi, z = scalar("xi"), scalar("z", domain="binary")
b, c = real("b", default=0.3), positive("c", default=1.3)
m, nu = positive("m", default=1.7, per=theta), positive("nu", default=0.9)
U, n = potential(theta), total(1)
KINETIC = U + total(p**2 / m) / 2


def hamiltonian(**more):
    """Hamilton's equations, with some of the declaration changed."""
    given = dict(name="hamiltonian", state=(theta, p), target=theta, H=KINETIC, D={}, Q={(theta, p): -1})
    word = "B A R A B" if "R" in more.get("jumps", {}) else "B A B"
    return Recipe(**{"scheme": word, **given, **more})


def about_a_mean(rate=None):
    """A momentum about b theta, of which the refreshment takes account."""
    return hamiltonian(
        name="about-a-mean",
        H=U + total((p - b * theta) ** 2 / m) / 2,
        jumps={"R": refresh(p, rate=rate)},
        scheme="R A F R",
    )


def two_letters():
    """A momentum at one rate, a thermostat at every turn."""
    jumps = {"R": refresh(p, rate=nu), "Z": refresh(xi)}
    return replace(SGNHT, name="two-letters", jumps=jumps, scheme="R B A' Z O A' B R")


def gaussian_target():
    """A target that is redrawn too, from its own law."""
    return hamiltonian(
        name="gaussian-target",
        H=total(c * (theta - b) ** 2) / 2 + total(p**2 / m) / 2,
        jumps={"T": refresh(theta), "R": refresh(p)},
        scheme="B A T B R",
    )


def one_switch():
    """One binary number for all sites: a shift of the whole target."""
    return Recipe(
        name="one-switch",
        state=(theta, z),
        D={theta: 1},
        H=total(theta**2) / 2 - z * b * total(theta) + c * z,
        jumps={"J": refresh(z)},
        scheme="J Euler",
    )


def switches(rate=None):
    """A binary number per site, at a rate."""
    return Recipe(
        name="switches",
        state=(theta, gamma),
        H=total((1 + gamma * c) * theta**2) / 2 + b * total(gamma) * total(theta) / n,
        D={theta: 1},
        jumps={"J": refresh(gamma, rate=rate)},
        scheme="J Euler",
    )


OWN = [
    about_a_mean(),
    about_a_mean(rate=nu),
    two_letters(),
    gaussian_target(),
    one_switch(),
    switches(),
    switches(rate=nu),
]


@pytest.mark.parametrize("oracle", [interpret, flow_by_flow])
@pytest.mark.parametrize("recipe", OWN, ids=lambda R: f"{R.name} {' '.join(map(str, R.jumps.values()))}")
def test_the_emitted_jump_equals_the_oracle(recipe, oracle):
    step = compile(recipe)
    for seed, shape in enumerate([(), (3,), (2, 2)]):
        state, drawn, parameters = inputs(step, 6, shape, seed)
        assert worst(called(step, state, drawn, parameters), by_oracle(oracle, step, state, drawn, parameters)) <= 1e-12


# ---- kernels, read off the emitted step by its noise


def jumped(step, state, noise, **parameters):
    """The blocks after a word of one jump, or one whose other letters do not move what is looked at."""
    return {
        k: v.numpy()
        for k, v in step(
            tensors(state), 0.5, gradient=torch.zeros_like, noise=tensors(noise), **tensors(parameters)
        ).items()
    }


@pytest.mark.parametrize("T", [0.0, 0.8, 1.25])
def test_a_refreshed_block_is_normal_about_its_mean_with_the_variance_of_its_law(T):
    """N(b theta, m T) for p, whatever p was; the word ends with the refreshment."""
    step = compile(about_a_mean(), "A F R")
    state = {"theta": np.array([[0.3, -1.0], [2.0, 0.1]]), "p": np.array([[9.0, -7.0], [0.0, 1.0]])}
    m = np.array([0.5, 1.7])
    quiet, loud = (jumped(step, state, {"p": np.full((2, 2), w)}, temperature=T, b=0.4, m=m) for w in (0.0, 1.0))
    assert quiet["p"] == pytest.approx(0.4 * quiet["theta"], rel=1e-14)
    assert loud["p"] - quiet["p"] == pytest.approx(np.broadcast_to(np.sqrt(m * T), (2, 2)), rel=1e-14)


def test_blocks_drawn_together_have_their_joint_law():
    """Cov (p, q, xi) = T K^-1 for H = z.K z/2, about the least H at theta, whatever they were; in any order."""
    q = vector("q")
    K = np.array([[2.0, 0.5, 1.0], [0.5, 1.0, 0.0], [1.0, 0.0, 3.0]])
    H = U + total(2 * p**2 + q**2 + p * q - 2 * q * theta) / 2 + xi * total(p) + 3 * xi**2 / 2
    for together in ((p, q, xi), (xi, q, p)):
        jumps = {"R": refresh(together)}
        recipe = Recipe(name="together", state=(theta, p, q, xi), H=H, D={theta: 1}, jumps=jumps)
        step = compile(recipe, "Euler R")
        state = {"theta": [[0.4]], "p": [[9.0]], "q": [[-7.0]], "xi": [5.0]}
        rows = []
        for one in (None, "p", "q", "xi"):
            noise = {name: np.full((1, 1) if name != "xi" else (1,), float(name == one)) for name in step.draws}
            after = jumped(step, {k: np.array(v) for k, v in state.items()}, noise, temperature=1.3)
            rows.append([after[name].item() for name in ("p", "q", "xi")])
        mean, L = np.array(rows[0]), (np.array(rows[1:]) - rows[0]).T
        assert mean == pytest.approx(np.linalg.solve(K, [0, after["theta"].item(), 0]), rel=1e-12)
        assert L @ L.T == pytest.approx(1.3 * np.linalg.inv(K), rel=1e-12)


def test_a_refreshed_thermostat_has_the_law_of_a_shared_block():
    """N(A, T/(n mu)) for one xi with n sites."""
    step = compile(replace(two_letters(), jumps={"Z": refresh(xi)}, scheme="B A' O Z"))
    state = {"theta": np.zeros((2, 5)), "p": np.zeros((2, 5)), "xi": np.array([4.0, -3.0])}
    quiet, loud = (
        jumped(step, state, {"p": np.zeros((2, 5)), "xi": np.full(2, w)}, temperature=0.8, A=0.7, mu=1.6)
        for w in (0.0, 1.0)
    )
    assert quiet["xi"] == pytest.approx([0.7, 0.7])
    assert loud["xi"] - quiet["xi"] == pytest.approx(np.full(2, math.sqrt(0.8 / (5 * 1.6))))


@pytest.mark.parametrize(
    "word, share", [("A F R", 1.0), ("R A F R", 0.5), ([("R", 0.3), ("A", 1), ("F", 1), ("R", 0.7)], 0.7)]
)
def test_with_a_rate_a_whole_chain_jumps_with_the_probability_of_its_share_of_the_step(word, share):
    """1 - e^{-nu t}: the uniform number of a chain is on either side of it, and all its sites go together."""
    step, rate = compile(about_a_mean(rate=nu), word), 1.4
    chance = 1 - math.exp(-rate * share * 0.5)
    *first, turn, normal = step.draws
    assert [step.draws[name] for name in (turn, normal)] == ["uniform", "normal"]
    noise = {normal: np.ones((2, 3)), turn: np.array([chance - 1e-12, chance + 1e-12])}
    noise |= {name: np.full((2, 3) if step.draws[name] == "normal" else 2, 1.0) for name in first}
    state = {"theta": np.zeros((2, 3)), "p": np.full((2, 3), 7.0)}
    out = jumped(step, state, noise, nu=rate, b=0.0, m=1.7)
    assert out["p"][0] == pytest.approx(np.full(3, math.sqrt(1.7))) and (out["p"][1] == 7).all()


BINARY = {
    "one switch": (one_switch(), "z"),
    "switches": (switches(), "gamma"),
    "sgld-sa-gibbs": (SGLDSAGibbs, "gamma"),
    "sghmc-sa-gibbs": (SGHMCSAGibbs, "gamma"),
    "sgld-sa-classification-gibbs": (SGLDSAClassificationGibbs, "gamma"),
}


@pytest.mark.parametrize("name", BINARY)
def test_the_odds_of_a_binary_block_are_the_ratio_of_the_two_laws(name):
    """1 where u < 1/(1 + exp((H(1) - H(0))/T)), site by site, with H taken at the other blocks as they stand."""
    recipe, block = BINARY[name]
    step = compile(recipe, recipe.scheme.removesuffix(" J"))
    state, drawn, parameters = inputs(step, 4, (3,))
    z = next(b for b in recipe.state if b.name == block)
    chain = Chain(recipe, state, 0.1, parameters)
    chain.at[recipe.potential] = 0.0

    def energy(value, site):
        at = state[block].copy()
        at[(slice(None), site) if z.is_vector else slice(None)] = value
        chain.at[z] = chain.lift(at, z)
        return chain.value(recipe.H).ravel()

    costs = np.stack([energy(1, k) - energy(0, k) for k in range(3 if z.is_vector else 1)], -1)
    chance = (1 / (1 + np.exp(costs / parameters["temperature"]))).reshape(state[block].shape)
    assert 1e-6 < chance.min() and chance.max() < 1 - 1e-6  # of which 1e-9 is more than a rounding
    for u, expected in ((chance * (1 - 1e-9), 1.0), (chance * (1 + 1e-9), 0.0)):
        out = called(step, state, drawn | {block: u}, parameters)
        assert (out[block].numpy() == expected).all()


@pytest.mark.parametrize("cost", [-1e6, 1e6])
def test_extreme_odds_are_certain_and_finite(cost):
    step = compile(one_switch())
    given = {"theta": torch.zeros(3, 2), "z": torch.tensor([0.0, 1.0, 1.0])}
    drawn = {"z": torch.tensor([1e-7, 0.5, 1 - 1e-7]), "theta": torch.zeros(3, 2)}
    out = (
        step(given, 0.1, noise=drawn, c=abs(cost), b=0.0)
        if cost > 0
        else step(given | {"theta": torch.full((3, 2), 1e3)}, 0.1, noise=drawn, c=1.0, b=500.0)
    )
    assert out["z"].tolist() == [float(cost < 0)] * 3


# ---- a Gaussian target


def stationary_moments(word, k, h, nu, m, T):
    """E theta^2, E theta p, E p^2 of the word on U = k theta^2/2: S = (1 - q) M S M^T + q (N S N^T + B B^T).

    The matrices M of a step without a jump and N, B of one with it are those of the emitted step.
    """
    step, q = compile(RandomisedHMC, word), 1 - math.exp(-nu * h)

    def image(theta, p, u, eta):
        given = {"theta": np.array([[theta]]), "p": np.array([[p]])}
        numbers = {"uniform": np.array([u]), "normal": np.array([[eta]])}
        drawn = {name: numbers[kind] for name, kind in step.draws.items()}
        out = step(tensors(given), h, gradient=lambda at: k * at, noise=tensors(drawn), nu=nu, m=m, temperature=T)
        return np.array([out["theta"].item(), out["p"].item()])

    M, N = (np.stack([image(1.0, 0.0, u, 0.0), image(0.0, 1.0, u, 0.0)], 1) for u in (1.0, 0.0))
    B = image(0.0, 0.0, 0.0, 1.0)
    transfer = (1 - q) * np.kron(M, M) + q * np.kron(N, N)
    assert abs(np.linalg.eigvals(transfer)).max() < 1
    S = np.linalg.solve(np.eye(4) - transfer, q * np.kron(B, B))
    return S[[0, 1, 3]]


AT = [dict(k=k, h=h, nu=nu, m=1.7, T=0.8) for k in (0.7, 2.3) for h in (0.05, 0.6) for nu in (0.4, 1.4)]


@pytest.mark.parametrize("at", AT, ids=str)
def test_the_leapfrog_with_refreshments_has_the_variance_of_its_shadow_energy(at):
    """T/(k (1 - h^2 k/(4 m))) for theta at every rate, and m T for p."""
    shadow = 1 - at["h"] ** 2 * at["k"] / (4 * at["m"])
    expected = at["T"] / (at["k"] * shadow), 0, at["m"] * at["T"]
    assert stationary_moments("leapfrog", **at) == pytest.approx(np.array(expected), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("at", AT, ids=str)
def test_refreshments_between_two_half_drifts_are_exact(at):
    """T/k for theta at every step size and rate."""
    variance, correlation, _ = stationary_moments("B A R A B", **at)
    assert (variance, correlation) == pytest.approx((at["T"] / at["k"], 0), rel=1e-10, abs=1e-12)


# ---- what is frozen, and what is refused


def test_a_frozen_block_does_not_jump_and_its_letter_may_be_left_out():
    for word in ("J Euler", "Euler"):
        step = compile(switches(), word, freeze="gamma")
        assert list(step.draws) == ["theta"]
        state, drawn, parameters = inputs(step, 4, (3,))
        out = called(step, state, drawn, parameters)
        assert (out["gamma"].numpy() == state["gamma"]).all() and (out["theta"].numpy() != state["theta"]).all()


def test_gibbs_draws_have_no_limit_at_temperature_0():
    step = compile(one_switch())
    given = {"theta": torch.zeros(1, 2), "z": torch.zeros(1)}
    drawn = {"z": torch.full((1,), 0.5), "theta": torch.zeros(1, 2)}
    with pytest.raises(RecipeError, match="no limit at temperature 0"):
        step(given, 0.1, noise=drawn, temperature=0.0)


relativistic = U + total(sqrt(1 + p**2))
REFUSED = {
    "a law that is not Gaussian": (
        lambda: compile(hamiltonian(H=relativistic, jumps={"R": refresh(p)})),
        ["hamiltonian, jump 'R'", "not Gaussian", "Only Gaussian and binary"],
    ),
    "H not linear in a binary block": (
        lambda: compile(replace(switches(), H=total(gamma) ** 2 + total(theta**2))),
        ["switches, jump 'J'", "not linear in the binary block gamma"],
    ),
    "a word without the jump": (
        lambda: compile(RandomisedHMC, "B A B"),
        ["leaves out the jump 'R'", "scheme='B A B R'"],
    ),
    "noise of a binary block": (
        lambda: replace(switches(), D={theta: 1, gamma: 1}),
        ["switches, gamma", "no drift and no noise", "refresh(gamma)"],
    ),
    "a curl of a binary block": (lambda: replace(switches(), Q={(theta, gamma): 1}), ["no drift and no noise"]),
    "a block that is not there": (
        lambda: hamiltonian(jumps={"R": refresh(xi)}),
        ["jumps['R']", "xi is not in the state"],
    ),
    "a block by name": (lambda: refresh("p"), ["refresh(p)", "its argument is a block"]),
    "a rate in words": (lambda: refresh(p, rate="1"), ["refresh(p), rate", "Text is never evaluated"]),
    "no jump": (
        lambda: hamiltonian(jumps={"R": p}),
        ["jumps['R']", "a jump is a refresh, gibbs, propose, swap, flip or involution, got p"],
    ),
    "the letter of a piece": (lambda: hamiltonian(pieces={"R": p}, jumps={"R": refresh(p)}), ["names a piece too"]),
    "a letter that is none": (lambda: hamiltonian(jumps={"R S": refresh(p)}), ["'R S' is no name of a piece"]),
    "a piece of the default letters": (
        lambda: compile(hamiltonian(jumps={"A": refresh(p)}), "B A B"),
        ["no piece takes", "in the drift of theta"],
    ),
    "a jump backwards": (
        lambda: compile(RandomisedHMC, [("R", 1.5), ("A", 1), ("B", 1), ("R", -0.5)]),
        ["cannot run backwards"],
    ),
    "a rate that reads the block": (lambda: compile(hamiltonian(jumps={"R": refresh(p, rate=p**2)})), ["rate"]),
    "a rate below 0": (lambda: compile(hamiltonian(jumps={"R": refresh(p, rate=-nu)})), ["rate"]),
    "a rate of an unknown symbol": (
        lambda: hamiltonian(jumps={"R": refresh(p, rate=xi)}),
        ["'xi' is used but is not in"],
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_jump_that_would_not_keep_the_law_is_refused(mistake):
    make, words = REFUSED[mistake]
    with pytest.raises(RecipeError) as raised:
        make()
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_a_rate_may_read_the_blocks_that_stay():
    step = compile(hamiltonian(jumps={"R": refresh(p, rate=nu * total(theta**2))}))
    state, drawn, parameters = inputs(step, 4, (3,))
    for oracle in (interpret, flow_by_flow):
        assert worst(called(step, state, drawn, parameters), by_oracle(oracle, step, state, drawn, parameters)) <= 1e-12


def test_one_binary_number_may_jump_at_a_rate():
    """Its two uniform numbers, of the turn and of the value, are not the same number."""
    step = compile(replace(one_switch(), jumps={"J": refresh(z, rate=nu)}))
    assert sorted(step.draws.values()) == ["normal", "uniform", "uniform"]
    state, drawn, parameters = inputs(step, 6, (3,))
    assert worst(called(step, state, drawn, parameters), by_oracle(interpret, step, state, drawn, parameters)) <= 1e-12


def test_what_jumps_says_so():
    assert str(RandomisedHMC.jumps["R"]) == "refresh(p, rate=nu)" and str(refresh(gamma)) == "refresh(gamma)"
    assert "p ~ N(0, T*m) at the rate nu  [jump]" in str(compile(RandomisedHMC))
    assert (
        "through the drift, to all" in str(RandomisedHMC.check())
        and RandomisedHMC.latents == ()
        and SGLDSAGibbs.latents == (gamma,)
    )
    assert "there is no noise" in str(hamiltonian().check())
