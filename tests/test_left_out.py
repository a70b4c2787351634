"""Words that leave out a part of the drift, for which the acceptance makes up: pCN and its kin."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import covering
from error_budget import CLAIMS
from scipy.integrate import quad
from sympy import S, exp, lambdify, log

import integrators
from integrators import metropolis
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    kick,
    noise,
    numerical,
    operator,
    positive,
    potential,
    refresh,
    spring,
    total,
    vector,
)
from recipe.algebra import at_one_site
from samplers import sample
from samplers.testing import assert_stationary
from samplers.testing.layers import LAYERS
from samplers.testing.subject import subject_of

theta, p = vector("theta"), vector("p")
U, C = potential(theta), positive("C", default=2.0)
PRIOR = U + total(theta**2) / (2 * C)
O, K = spring(theta) + noise(theta), kick(theta)

PCN = Recipe(
    name="pcn",
    state=(theta,),
    H=PRIOR,
    marginal=PRIOR,
    D={theta: C},
    pieces={"O": O, "K": K},
    scheme="O",
    accepted={"K"},
)
PCNL = Recipe(
    name="pcnl",
    state=(theta,),
    H=PRIOR,
    marginal=PRIOR,
    D={theta: C},
    pieces={"G": numerical(theta, "exponential")},
    scheme="G",
    metropolis=True,
)
ROTATED = Recipe(
    name="rotated",
    state=(theta, p),
    target=theta,
    H=PRIOR + total(p**2) / (2 * C),
    marginal=PRIOR,
    D={},
    Q={(theta, p): -C},
    jumps={"R": refresh(p)},
    pieces={"S": (spring(p), theta), "K": kick(p)},
    scheme="R S",
    accepted={"K"},
)
x = vector("x", domain="positive")
a = positive("a", default=2.5)
GAMMA = potential(x) + total(x - (a - 1) * log(x))
GAMMA_PRIOR = Recipe(
    name="gamma-prior",
    state=(x,),
    H=GAMMA,
    marginal=GAMMA,
    D={x: x},
    pieces={"O": spring(x) + noise(x), "K": kick(x)},
    scheme="O",
    accepted={"K"},
)
ALL = {R.name: R for R in (PCN, PCNL, ROTATED, GAMMA_PRIOR)}


@pytest.mark.parametrize("name", covering(ALL, ["pcn"]))
def test_its_certificate_work_and_law_are_right(name):
    report = assert_stationary(ALL[name])
    assert ALL[name].check(temperature=0.7).exact and report.ok and not report.left_out
    assert any(r.layer == "work" for r in report.results)


@pytest.mark.parametrize("name", covering(ALL, ["pcn", "pcnl", "rotated"]))
def test_draws_have_the_law_of_a_quadrature(name):
    recipe = ALL[name]
    (z,) = recipe.targets
    energy = Energy(z, U=total((z**2 - 1) ** 2) / 2)
    step_size = 0.1 if name == "pcnl" else 0.8
    draws = sample(
        recipe,
        energy,
        init=torch.full((1,), 1.5, dtype=torch.float64),
        chains=4000,
        steps=200,
        thin=200,
        step_size=step_size,
        progress=False,
    )
    at_one = {U: (z**2 - 1) ** 2 / 2 for U in recipe.potentials}
    of_a_site = at_one_site(recipe.marginal).xreplace({**at_one, C: S(2), a: S(5) / 2})
    density = lambdify(z, exp(-of_a_site))
    low = 1e-12 if name == "gamma-prior" else -8
    whole = quad(density, low, 8)[0]
    scores = {}
    for k in (1, 2):
        value = draws[z.name].flatten().numpy() ** k
        mean = quad(lambda t: t**k * density(t), low, 8)[0] / whole
        scores[name, k] = (value.mean() - mean) / (value.std() / len(value) ** 0.5)
    assert not CLAIMS["letters left out"].failures(scores)
    assert 0.2 < np.mean(draws.info["acceptance"]) < 0.99


def test_a_flow_in_detailed_balance_for_its_part_is_accepted_by_the_rest_alone():
    for recipe in (PCN, GAMMA_PRIOR):
        step = integrators.metropolised(recipe)
        (z,) = recipe.targets
        assert step.work_formulas == {"O": f"V(z') - V(z) of V = U({z})"}
        assert f"in detailed balance but for U({z})" in str(step) and "gradient(" not in step.source
    euler = replace(PCN, pieces={"O": numerical(O, "euler"), "K": K})
    assert integrators.metropolised(euler).work_formulas["O"].startswith("H(z') - H(z) - T*total(N[theta]**2)/2")


def test_a_dense_prior_is_left_to_its_flow():
    M = operator("M")
    H = U + total(theta * M.inverse(theta)) / 2
    recipe = Recipe(name="dense", state=(theta,), H=H, marginal=H, D={theta: M}, pieces={"O": O, "K": K},
                    scheme="O", accepted={"K"})  # fmt: skip
    assert "in detailed balance but for U(theta)" in str(integrators.metropolised(recipe))
    cov = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=torch.float64)
    settings = dict(init=torch.zeros(2, dtype=torch.float64), chains=4000, steps=40, thin=40, progress=False)
    draws = sample(recipe, lambda t: (t**2).sum() / 2, step_size=0.7, M=cov, **settings)["theta"][:, 0]
    right = torch.linalg.inv(torch.linalg.inv(cov) + torch.eye(2, dtype=torch.float64))
    products = torch.stack([draws[:, 0] * draws[:, 1], draws[:, 1] ** 2])
    off = (products.mean(1) - right[:, 1]) / (products.std(1) / 4000**0.5)
    assert not CLAIMS["letters left out"].failures(dict(enumerate(off.tolist())))


MISTAKES = {
    "its own part is left in the work": lambda one: replace(one, heat=S.Zero),
    "its own part counts with the wrong sign": lambda one: replace(one, heat=-one.heat),
    "twice its own part": lambda one: replace(one, heat=2 * one.heat),
    "half of its own part": lambda one: replace(one, heat=one.heat / 2),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_part_is_seen_by_the_layer_of_the_work(mistake, monkeypatch):
    works = metropolis.works
    change = MISTAKES[mistake]
    monkeypatch.setattr(metropolis, "works", lambda *args: {k: change(one) for k, one in works(*args).items()})
    assert not all(result.ok for result in LAYERS["work"](subject_of(PCN, values={"C": 0.4})))


REFUSED = {
    "a plain step": (lambda: integrators.compile(PCN), "no piece takes .* metropolis=True"),
    "noise": (
        lambda: integrators.metropolised(replace(PCN, accepted={"K", "O"}), "K"),
        "leaves out the noise of theta",
    ),
    "a whole block": (
        lambda: integrators.metropolised(replace(ROTATED, pieces={"A": theta, "B": p}, accepted={"A"}, scheme="R B")),
        "moves nothing of theta",
    ),
    "an unknown letter": (lambda: integrators.metropolised(replace(PCN, accepted={"X"})), "no piece is named 'X'"),
    "a term of no letter": (
        lambda: integrators.metropolised(replace(PCN, pieces={"O": noise(theta), "K": K})),
        "no piece takes .*-theta",
    ),
    "a term of two letters": (
        lambda: integrators.metropolised(replace(PCN, pieces={"O": O, "K": K + spring(theta)})),
        "both take",
    ),
    "no density, and not in balance": (
        lambda: integrators.metropolised(replace(GAMMA_PRIOR, pieces={"O": noise(x), "K": (kick(x), spring(x))})),
        "no density that is known",
    ),
    "no collection": (lambda: replace(PCN, accepted="K"), "a collection of letters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_acceptance_cannot_make_up_for_is_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(RecipeError, match=message):
        make()
