"""Proposals of one's own: the log ratio of their densities in the work, Langevin's on categories, refusals."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from covering import covering
from same_step import accepted_ways_agree
from scipy.special import logsumexp
from sympy import exp, expand

import integrators
from integrators import metropolis
from integrators.noise import Key
from recipe import Recipe, RecipeError, grad, laws, mapped, potential, propose, scalar, total, vector
from recipe.declared import step_size
from recipe.declared import temperature as T
from samplers import MALA, sample
from samplers.testing import LeftOut, assert_stationary

theta, c = vector("theta"), vector("c", domain=("categories", 3))
g = grad(potential(theta))


def proposing(law, block=theta, H=None, **more):
    H = potential(block) if H is None else H
    own = dict(name="proposing", state=block, H=H, D={}, jumps={"P": propose(block, law)}, scheme="P")
    return Recipe(**own | more)


def langevin(block, K):
    """A categorical law of the first terms of U at the categories. Zhang, Liu & Liu 2022, eq. (4)."""
    slope = grad(potential(block)) / (2 * T)
    return laws.Categorical(*(exp(-slope * (k - block) - (k - block) ** 2 / (2 * step_size)) for k in range(K)))


DISCRETE = proposing(langevin(c, 3), c, name="discrete-langevin")
NORMAL = laws.Normal(theta - step_size * g, 2 * step_size * T)


def quartic(x):
    return x**3, (x**4).sum(1) / 4


def spins(x):
    """U and its gradient, of two sites that are coupled."""
    return 1.2 * x - 0.9 * x.flip(1) + 0.3, (0.6 * x**2 + 0.3 * x).sum(1) - 0.9 * x[:, 0] * x[:, 1]


def unaccepted(recipe):
    return integrators.metropolised(recipe, accept=False)


@pytest.fixture(scope="module")
def discrete():
    return unaccepted(DISCRETE)


def moved(step, z, U, noise, h=0.8, temperature=0.7):
    """The state after an unaccepted step, and its work."""
    (block,) = step.recipe.targets
    state = {block.name: z, "direction": z[:, 0] * 0 + 1, "work": z[:, 0] * 0, "accepted": z[:, 0] * 0}
    given = {} if U is None else dict(gradient=lambda x: U(x)[0], value=lambda x: U(x)[1])
    noise = Key(noise, 0) if isinstance(noise, int) else noise
    own = step(state, h, noise=noise, temperature=temperature, **given)
    return own[block.name], own["work"]


def test_malas_proposal_is_mala():
    x, draws = torch.tensor([[0.3, -1.1], [0.9, 2.0]]).double(), torch.tensor([[0.2, -0.5], [1.5, -1.0]]).double()
    own = moved(unaccepted(proposing(NORMAL)), x, quartic, {"theta": draws}, h=0.2)
    stock = moved(unaccepted(MALA), x, quartic, {"theta": draws}, h=0.2)
    for one, other in zip(own, stock):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


STATES = torch.tensor([*product(range(3), repeat=2)]).double()


def log_densities(h=0.8, temperature=0.7):
    """log q(z -> z') of all pairs of states, by hand."""
    slope, apart = spins(STATES)[0][:, None], torch.arange(3.0).double()[:, None] - STATES[:, None, :]
    of_site = -slope / (2 * temperature) * apart - apart**2 / (2 * h)  # (states, categories, sites)
    of_site = of_site.numpy() - logsumexp(of_site.numpy(), axis=1, keepdims=True)
    at = STATES.long().numpy()
    return sum(of_site[:, at[:, k], k] for k in range(2))


def defect(step, temperature=0.7):
    """The largest defect of detailed balance of all pairs of states, with the proposal by hand, the work by the step.

    Zero where none of 4000 proposals from each state got.
    """
    z = STATES.repeat(4000, 1)
    after, work = moved(step, z, spins, 1)
    n, number = len(STATES), (STATES @ torch.tensor([3.0, 1.0]).double())
    assert number.tolist() == [*range(n)]
    pair = (z @ torch.tensor([3.0, 1.0]).double() * n + after @ torch.tensor([3.0, 1.0]).double()).long()
    works = torch.full((n * n,), torch.nan).double()
    works[pair] = work
    assert (works[pair] - work).abs().max() < 1e-12 and works.isfinite().sum() > 60
    accepted = np.minimum(1, np.exp(-works.reshape(n, n).numpy() / temperature))
    flow = np.exp(-spins(STATES)[1].numpy() / temperature)[:, None] * np.exp(log_densities()) * accepted
    return np.nanmax(abs(flow - flow.T))


MISTAKES = {
    "no log ratio": lambda returned: 0 * returned,
    "the ratio upside down": lambda returned: -returned,
    "no temperature": lambda returned: returned / T,
}


def test_langevins_proposal_on_categories_is_in_detailed_balance(discrete):
    assert defect(discrete) < 1e-12


@pytest.mark.parametrize("mistake", covering(MISTAKES, ["no log ratio"]))
def test_a_wrong_ratio_breaks_detailed_balance(mistake, monkeypatch):
    works, change = metropolis.works, MISTAKES[mistake]
    monkeypatch.setattr(
        metropolis, "works", lambda *a: {k: replace(w, returned=change(w.returned)) for k, w in works(*a).items()}
    )
    assert defect(unaccepted(DISCRETE)) > 1e-3


def test_a_categorical_draw_has_its_law(discrete):
    """The share of every pair of states among draws, within six standard errors."""
    after, _ = moved(discrete, STATES.repeat(4000, 1), spins, 2)
    number = (after @ torch.tensor([3.0, 1.0]).double()).long().reshape(4000, 9)
    q = np.exp(log_densities())
    shares = np.array([np.bincount(number[:, k], minlength=9) for k in range(9)]) / 4000
    assert (abs(shares - q) <= 6 * (q / 4000) ** 0.5 + 1e-9).all()


tau = vector("tau", domain="positive")
share = vector("share", domain="fraction")
KERNELS = {  # law, energy of a site, -log q(x -> y), z
    "a spread of its own": (
        theta,
        laws.Normal(theta / 2, 1 + theta**2),
        lambda x: x**4 / 4,
        lambda x, y: (y - x / 2) ** 2 / (2 * (1 + x**2)) + np.log(1 + x**2) / 2,
    ),
    "a spread of all sites": (
        theta,
        laws.Normal(0, 1 + total(theta**2)),
        lambda x: x**4 / 4,
        lambda x, y: y**2 / (2 * (1 + (x**2).sum(1, keepdims=True))) + np.log(1 + (x**2).sum(1, keepdims=True)) / 2,
    ),
    "Gamma's": (tau, laws.Gamma(3, 3 / tau), lambda x: 2 * x, lambda x, y: 3 * y / x - 2 * np.log(y) + 3 * np.log(x)),
    "the inverse Gamma's": (
        tau,
        laws.InverseGamma(4, 3 * tau),
        lambda x: 2 * x,
        lambda x, y: 5 * np.log(y) + 3 * x / y - 4 * np.log(3 * x),
    ),
    "Beta's": (share, laws.Beta(2, 3), lambda x: 2 * x, lambda x, y: -np.log(y) - 2 * np.log(1 - y)),
}


@pytest.mark.parametrize("case", KERNELS)
def test_the_work_has_the_ratio_of_densities(case):
    block, law, energy, surprise = KERNELS[case]
    x = torch.tensor([[0.3, 0.8], [0.9, 0.5], [0.2, 0.1]]).double()
    recipe = proposing(law, block, total(energy(block)))
    y, work = moved(unaccepted(recipe), x, None, 3)
    x, y = x.numpy(), y.numpy()
    by_hand = energy(y) - energy(x) + 0.7 * (surprise(y, x) - surprise(x, y))
    np.testing.assert_allclose(work, by_hand.sum(1), rtol=1e-9, atol=1e-9)
    assert recipe.check(temperature=0.7)["proposal"].verdict == "proved"


def test_a_step_in_cpp_is_that_in_torch():
    zero = torch.zeros(9).double()
    state = {"c": STATES, "direction": zero + 1, "work": zero, "accepted": zero}
    of_U = dict(gradient=lambda x: spins(x)[0], value=lambda x: spins(x)[1])
    accepted_ways_agree(DISCRETE, state, 0.8, temperature=0.8, **of_U)


def test_its_certificate_is_exact():
    assert DISCRETE.metropolis and DISCRETE.check().exact and proposing(NORMAL).check(temperature=0.7).exact


def test_layers_check_the_accepted_step_of_a_proposal_and_leave_out_those_of_a_plain_step(monkeypatch):
    report = assert_stationary(proposing(NORMAL))
    assert {r.layer for r in report.results} == {"symbolic", "generator", "work"}
    assert all("accepted steps" in reason for _, reason in report.inapplicable)
    with pytest.warns(LeftOut, match="work: the target is of categories"):
        assert not assert_stationary(DISCRETE).failures
    works = metropolis.works
    monkeypatch.setattr(
        metropolis, "works", lambda *a: {k: replace(w, returned=w.returned * 0) for k, w in works(*a).items()}
    )
    with pytest.raises(AssertionError, match="Crooks"):
        assert_stationary(proposing(NORMAL, name="without-the-ratio"))


def test_a_run_on_categories():
    start = dict(init=torch.zeros(2), chains=16, steps=60, step_size=1.0, progress=False)
    draws = sample(DISCRETE, lambda x: ((x - 1) ** 2).sum(), **start)
    assert set(draws["c"].unique().tolist()) == {0.0, 1.0, 2.0}
    assert draws.info["law"] == "exact" and "copy" not in str(draws)
    with pytest.raises(RecipeError, match="one of 3"):
        sample(DISCRETE, lambda x: x.sum(), **start | {"init": torch.full((2,), 0.5)})


REFUSED = {
    "a step without acceptance": (lambda: integrators.compile(DISCRETE), "without its acceptance"),
    "a variance of 0 at a state": (lambda: proposing(laws.Normal(theta, theta**2 - 2 * theta + 1)), "is 0 at some"),
    "a variance with a root": (
        lambda: proposing(laws.Normal(theta, (theta - 3) ** 2 * (theta**2 + 1))),
        "is 0 at some",
    ),
    "another support": (lambda: proposing(laws.Gamma(2, 1)), "no number of Gamma"),
    "too few categories": (lambda: proposing(langevin(c, 2), c), "no number of Categorical"),
    "a shape that moves": (lambda: proposing(laws.Gamma(1 + tau, 1), tau), "the shape of Gamma.* moves"),
    "a variance below 0": (lambda: proposing(laws.Normal(0, theta)), "may be below 0"),
    "a value per site of one number": (
        lambda: Recipe(
            name="x", state=(theta, scalar("x")), H=1, D={}, jumps={"P": propose(scalar("x"), laws.Normal(theta, 1))}
        ),
        "but x is one number",
    ),
    "no law": (lambda: propose(theta, 2), "of a block and a law"),
    "categories that nobody proposes": (
        lambda: Recipe(name="x", state=c, H=total(c), D={}, jumps={}),
        "and has no gradient.*propose",
    ),
    "a mapped block": (
        lambda: mapped(proposing(laws.Gamma(3, 3 / tau), tau), tau=theta, by=exp),
        "in other coordinates",
    ),
}


def test_a_variance_that_is_an_even_power_without_a_root_is_declared():
    assert proposing(laws.Normal(theta, expand((theta**2 + 2 * theta + 2) ** 2))).proposals


def test_what_is_proposed_is_not_said_to_drift():
    assert proposing(NORMAL).check()["reached"].answer == "every block has a jump that redraws it"
    both = proposing(laws.Normal(theta, 4), D={theta: 1}, scheme="P Euler")
    assert both.check()["reached"].answer == "every block has noise of its own"


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    make, message = REFUSED[case]
    with pytest.raises(RecipeError, match=message):
        make()
