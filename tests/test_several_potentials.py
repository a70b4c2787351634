"""Several potentials of one target: their pieces, gradients that come one by one, and multiple time steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import covering
from error_budget import CLAIMS
from same_step import all_ways_agree, noise_of, state_of
from scipy.linalg import solve_discrete_lyapunov
from sympy import symbols

import integrators
import samplers
from recipe import Energy, Recipe, RecipeError, adapted, grad, kick, positive, potential, total, vector
from recipe.pieces import force

theta, p = vector("theta"), vector("p")
gamma = positive("gamma", default=1.0)
FAST, SLOW = potential(theta, name="fast"), potential(theta, name="slow")
RESPA = Recipe(
    name="respa",
    state=(theta, p),
    H=FAST + SLOW + total(p**2) / 2,
    D={p: gamma},
    Q={(theta, p): -1},
    pieces={"F": kick("fast"), "S": kick("slow")},
    scheme="S (F A O A F)*8 S",
)
STIFF, SOFT = 40.0, 1.0  # curvatures
SLOPES = {"fast": lambda at: STIFF * at, "slow": lambda at: SOFT * at}


# ---- declared, printed


def test_a_potential_is_printed_by_its_name():
    assert str(RESPA.drift[1]) == "-gamma*p - grad(U_fast) - grad(U_slow)"
    assert r"\partial U_{\mathrm{fast}}" in RESPA.latex()
    assert 'letter F = kick("fast")' in str(RESPA)
    assert RESPA.residual() == 0
    assert RESPA.check().ok and RESPA.check()["claim"].answer == "exact"


def test_a_potential_that_is_missing_in_the_marginal_is_found():
    """Twice one of them is not the sum of the two."""
    wrong = replace(RESPA, H=2 * FAST + SLOW + total(p**2) / 2, claim="")
    assert not wrong.check().ok


def test_bound_to_energies_the_drift_is_symbolic():
    x = vector("x")
    bound = RESPA.bind(fast=Energy(x, U=20 * total(x**2)), slow=Energy(x, U=total(x**2) / 2))
    assert bound.potential is None
    assert bound.drift[1].expand() == -gamma * p - 41 * theta


# ---- steps


WORDS = ["S (F A O A F)*2 S", "B A O A B", "(F A)*2 S O", "Euler", "S F A O"]


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("word", WORDS)
def test_text_kernel_and_both_interpreters_make_the_same_step(word, reuse):
    """Two steps, so that what is carried over is read."""
    slopes = {"fast": lambda at: 3 * at + at**3, "slow": torch.sin}
    in_numpy = {"fast": lambda at: 3 * at + at**3, "slow": np.sin}
    all_ways_agree(RESPA, slopes, word, in_numpy=in_numpy, reuse_gradient=reuse)


def counted(step, steps):
    """How often each gradient is asked for, after a first step."""
    calls = dict.fromkeys(SLOPES, 0)

    def counting(name):
        def slope(at):
            calls[name] += 1
            return SLOPES[name](at)

        return slope

    slopes = {name: counting(name) for name in SLOPES}
    state = state_of(RESPA)
    state = step(state, 0.1, gradient=slopes, noise=noise_of(step, state))
    calls.update(dict.fromkeys(calls, 0))
    for _ in range(steps):
        state = step(state, 0.1, gradient=slopes, noise=noise_of(step, state))
    return calls


@pytest.mark.parametrize(("backend", "inner"), [("torch", 8), ("cpp", 2)])
def test_inner_steps_cost_one_gradient_of_the_fast_one_each_and_one_of_the_slow(backend, inner):
    step = integrators.compile(RESPA, f"S (F A O A F)*{inner} S", backend=backend)
    assert step.program.gradients_per_step == inner + 1
    assert counted(step, 5) == {"fast": 5 * inner, "slow": 5}


def covariance(step, h, slopes=SLOPES):
    """That of the stationary law of a linear step on one site, by Lyapunov's equation."""

    def after(numbers, noise):
        state = {"theta": numbers[:, :1], "p": numbers[:, 1:]}
        new = step(state, h, gradient=slopes, noise={name: noise[:, k : k + 1] for k, name in enumerate(step.draws)})
        return torch.cat([new["theta"], new["p"]], 1)

    size = len(step.draws)
    M = after(torch.eye(2, dtype=torch.float64), torch.zeros(2, size, dtype=torch.float64)).T.numpy()
    B = after(torch.zeros(size, 2, dtype=torch.float64), torch.eye(size, dtype=torch.float64)).T.numpy()
    return solve_discrete_lyapunov(M, B @ B.T)


def errors(step, steps, slopes=SLOPES):
    scale = np.diag([(STIFF + SOFT) ** 0.5, 1.0])
    return [abs(scale @ covariance(step, h, slopes) @ scale - np.eye(2)).max() for h in steps]


def test_eight_inner_steps_have_order_two():
    coarse, fine = errors(integrators.compile(RESPA), (0.2, 0.1))
    assert integrators.compile(RESPA).order == 2
    assert 3.5 < coarse / fine < 4.5


def test_inner_steps_are_as_accurate_as_eight_small_steps_where_the_slow_force_is_small():
    """Of a force that is a fortieth of the other; where a single step with both has no stationary law."""
    (multiple,) = errors(integrators.compile(RESPA), [0.3])
    (single,) = errors(integrators.compile(RESPA, "B A O A B"), [0.3 / 8])
    assert multiple < 3 * single
    assert covariance(integrators.compile(RESPA, "B A O A B"), 0.33)[1, 1] < 0


@pytest.mark.parametrize("mutant", ["the fast force for the slow one", "the slow force in every inner step"])
def test_mutants_have_another_law(mutant):
    slopes = {
        "the fast force for the slow one": {"fast": SLOPES["fast"], "slow": SLOPES["fast"]},
        "the slow force in every inner step": {"fast": lambda at: (STIFF + SOFT) * at, "slow": SLOPES["slow"]},
    }[mutant]
    coarse, fine = errors(integrators.compile(RESPA), (0.1, 0.05), slopes)
    assert min(coarse, fine) > 0.02 and coarse / fine < 1.5  # of no order


def test_the_kick_of_a_momentum_is_by_all_potentials():
    step = integrators.compile(RESPA, "K A O A K", pieces={"K": kick(p)})
    assert str(step.flows["K"].equation) == str(integrators.compile(RESPA, "B A O A B").flows["B"].equation)


def test_an_adaptation_reads_the_first_gradient_of_each_potential():
    V, W = adapted("V", like=theta), adapted("W", like=theta)
    reading = replace(RESPA, D={p: gamma + V**2 + W**2}, adapt={V: grad(FAST), W: grad(SLOW)}, claim="")
    step = integrators.compile(reading, "B A O A B")
    state = state_of(RESPA)
    state |= {"V": torch.zeros_like(state["theta"]), "W": torch.zeros_like(state["theta"])}
    before = state["theta"]
    for _ in range(2):
        first = state["theta"]
        state = step(state, 0.1, gradient=SLOPES, noise=noise_of(step, state))
    assert not torch.equal(first, before)
    assert torch.equal(state["V"], SLOPES["fast"](first)) and torch.equal(state["W"], SLOPES["slow"](first))


# ---- runs


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_a_run_takes_an_energy_for_each_name(backend):
    """Against N(0, 1/41), alpha 1e-4: the variance of 200 chains at their end; the step is off by less than 1 %."""
    x, y = symbols("x y", real=True)
    energies = {"fast": Energy((x, y), U=STIFF / 2 * (x**2 + y**2)), "slow": lambda at: SOFT / 2 * (at**2).sum()}
    arguments = dict(init=torch.zeros(2), chains=200, steps=1, warmup=60, step_size=0.1, progress=False)
    draws = samplers.sample(RESPA, energies, scheme="S (F A O A F)*2 S", seed=3, backend=backend, **arguments)
    ratio = float(draws["theta"].square().mean() * (STIFF + SOFT))
    assert abs(ratio - 1) < 0.01 + 3.9 * (2 / 400) ** 0.5


@pytest.mark.parametrize("backend", covering(["torch", "cpp"], ["torch"]))
def test_a_step_is_accepted_by_the_sum_of_all_potentials(backend):
    """At a step that is far too large, 8000 chains against quadrature of exp(-z^4 - 5 z^2)."""
    energies = {"fast": lambda at: (at**4).sum() + 4 * (at**2).sum(), "slow": lambda at: (at**2).sum()}
    arguments = dict(init=torch.zeros(1), chains=8000, warmup=60, steps=1, step_size=0.5, progress=False, seed=3)
    draws = samplers.sample(RESPA, energies, scheme="S (F A O A F)*2 S", metropolis=True, backend=backend, **arguments)
    z = np.linspace(-3, 3, 3001)
    weights = np.exp(-(z**4) - 5 * z**2)
    weights /= weights.sum()
    second, fourth = weights @ z**2, weights @ z**4
    score = (float(draws["theta"].double().square().mean()) - second) / ((fourth - second**2) / 8000) ** 0.5
    assert not CLAIMS["potentials accepted"].failures({backend: score})
    assert 0.3 < np.mean(draws.info["acceptance"]) < 0.99


def test_minibatches_are_seen_by_the_energies_that_take_them():
    data = torch.arange(12.0)[:, None]
    seen = []

    def slow(at, batch):
        seen.append(batch.shape)
        return ((at - batch) ** 2).sum() / 2

    energies = {"fast": lambda at: STIFF / 2 * (at**2).sum(), "slow": slow}
    arguments = dict(init=torch.zeros(1), chains=2, steps=3, step_size=0.01, progress=False)
    watched = []
    draws = samplers.sample(RESPA, energies, data=data, batch_size=4, **arguments | {"progress": watched.append})
    assert watched and "configurational_temperature.fast" not in watched[-1]
    assert draws["theta"].shape == (2, 3, 1)
    assert set(seen) == {torch.Size([4, 1])}


# ---- refusals


@pytest.mark.parametrize(
    ("energy", "message"),
    [
        (torch.sum, "the recipe has the potentials fast, slow"),
        ({"fast": torch.sum}, "that of the potential 'slow' is missing"),
        ({"fast": torch.sum, "slow": torch.sum, "slwo": torch.sum}, "there is no potential 'slwo'. Did you mean"),
        ({"fast": torch.sum, "slow": 3}, "energy 'slow': one of several energies is a torch function, got int"),
        (None, "no energy is given"),
    ],
)
def test_energies_that_do_not_fit_are_refused(energy, message):
    with pytest.raises(RecipeError, match=message.replace("(", r"\(")):
        samplers.sample(RESPA, energy, init=torch.zeros(2), step_size=0.1)


def test_a_dict_is_refused_for_one_potential():
    with pytest.raises(RecipeError, match="the recipe has one U"):
        samplers.sample("sgld", {"fast": torch.sum}, init=torch.zeros(2), step_size=0.1)


def test_what_compares_one_value_of_u_is_refused():
    energies = {"fast": torch.sum, "slow": torch.sum}
    with pytest.raises(RecipeError, match="this is for one U of the target"):
        samplers.sample(RESPA, energies, init=torch.zeros(2), step_size=0.1, temperature=[1.0, 2.0])


@pytest.mark.parametrize("data", [{}, {"data": torch.ones(9), "batch_size": 3}], ids=["whole", "minibatches"])
def test_a_checkpoint_is_of_each_energy_and_not_of_their_sum(data, tmp_path):
    """The short kicks of the one would go on with those of the other, between which the sum stays as it was."""
    slow = (lambda theta, x: x.mean() * theta.square().sum() / 2) if data else lambda theta: theta.square().sum() / 2
    energies = {"fast": lambda theta: 4 * theta.square().sum(), "slow": slow}
    run = {"init": torch.ones(2), "steps": 8, "step_size": 0.1, "progress": False, "checkpoint": tmp_path} | data
    draws = samplers.sample(RESPA, energies, **run)
    assert torch.equal(samplers.sample(RESPA, dict(energies), **run)["theta"], draws["theta"])
    shifted = {"fast": lambda theta: 4 * theta.square().sum() + theta.sum()}
    shifted["slow"] = lambda theta, *x: slow(theta, *x) - theta.sum()
    with pytest.raises(RecipeError, match="a run of another energy: its gradient by slow differs"):
        samplers.sample(RESPA, shifted, **run)


@pytest.mark.parametrize(
    ("word", "pieces", "message"),
    [
        ("F A O A F", {}, r'no piece takes "-grad\(U_slow\)" in the drift of p .* kick\("slow"\)'),
        ("X S A O", {"X": kick("fats")}, 'kick\\("fats"\\) names "fats", and no potential'),
        ("B S A O", {}, r"pieces 'B' and 'S' both take \"-grad\(U_slow\)\""),
        ("S (F A O)*0 S", {}, "stands for 0 times"),
        ("S F A O *2", {}, "stands beside no group"),
    ],
)
def test_words_that_do_not_fit_are_refused(word, pieces, message):
    with pytest.raises(RecipeError, match=message):
        integrators.compile(RESPA, word, pieces=pieces)


def test_a_name_of_two_things_is_refused():
    with pytest.raises(RecipeError, match="named 'p'"):
        replace(RESPA, H=potential(theta, name="p") + total(p**2) / 2, pieces={}, scheme=None)
    with pytest.raises(RecipeError, match="its argument is a block"):
        force("fast")


def test_functions_that_are_no_dict_are_refused_by_a_step():
    step, state = integrators.compile(RESPA), state_of(RESPA)
    with pytest.raises(RecipeError, match="It is a dict by potential: fast, slow"):
        step(state, 0.1, gradient={"fast": torch.sin}, noise=noise_of(step, state))
