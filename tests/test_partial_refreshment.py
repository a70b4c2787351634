"""Momenta refreshed in part, p <- m + c (p - m) + sqrt((1 - c^2) v) N: their law stays, and the pair is symmetric."""

import numpy as np
import pytest
import torch
from covering import slow
from sympy import S

import integrators
from integrators import jump
from integrators.relaxation import relaxation_steps
from recipe import Recipe, RecipeError, fraction, positive, potential, real, refresh, scalar, total, vector
from samplers.testing import assert_stationary
from samplers.testing.layers import LAYERS
from samplers.testing.subject import subject_of

theta, p, q = vector("theta"), vector("p"), vector("q", domain="binary")
xi = scalar("xi")
c, b, nu = fraction("c", default=0.8), real("b", default=0.3), positive("nu", default=0.9)
m = positive("m", default=1.7, per=theta)
U = potential(theta)


def horowitz(**more):
    """Guided HMC, with the share of the momenta that stays."""
    given = dict(
        name="horowitz",
        state=(theta, p),
        target=theta,
        H=U + total(p**2 / m) / 2,
        D={},
        Q={(theta, p): -1},
        jumps={"R": refresh(p, persistence=c)},
        scheme="R B A B R",
        metropolis=True,
    )
    return Recipe(**given | more)


def about_a_mean(**more):
    """Momenta about b theta, at random times."""
    H = U + total((p - b * theta) ** 2 / m) / 2
    return horowitz(**dict(H=H, jumps={"R": refresh(p, rate=nu, persistence=c)}, scheme="R A F R") | more)


@pytest.mark.parametrize(
    "recipe", [horowitz(), slow(about_a_mean(metropolis=False))], ids=["every step", "about a mean"]
)
def test_the_law_is_that_of_H_and_every_layer_agrees(recipe):
    report = assert_stationary(recipe)
    assert recipe.check(temperature=0.7).exact and "no work" in str(integrators.metropolised(horowitz()))
    assert "persistence=c" in str(recipe) and any(r.layer == "stationary start" for r in report.results)


def test_moments_after_a_refreshment_are_those_before_and_the_share_that_stays_is_c():
    p0 = torch.randn(2, 100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    step = integrators.compile(about_a_mean(jumps={"R": refresh(p, persistence=c)}, scheme="R A F"))
    free = Recipe(name="free", state=(p,), H=total(p**2) / 2, D={}, jumps={"R": refresh(p, persistence=c)}, scheme="R")
    alone = integrators.compile(free)
    noise = {
        name: torch.randn(2, 100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        for name in alone.draws
    }
    new = alone({"p": 0.7**0.5 * p0}, 0.1, noise=noise, temperature=0.7)["p"]
    assert abs(new.var() / 0.7 - 1) < 0.02 and abs((new * p0).mean() / 0.7**0.5 - 0.8) < 0.02
    assert "0.8" not in step.source.split('"""')[2] and step.parameters["c"] == 0.8
    whole = alone({"p": p0}, 0.1, noise=noise, c=0.0)["p"]
    assert torch.equal(whole, noise["p"])


MISTAKES = {
    "noise of 1 - c": lambda b, law, c: (c * b, S(1) - c),
    "noise of the whole law": lambda b, law, c: (c * b, S(1)),
    "no noise": lambda b, law, c: (c * b, S.Zero),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("layer", ["one-step defect", "work"])
def test_a_refreshment_with_another_noise_is_seen(mistake, layer, monkeypatch):
    right = jump._redrawn

    def wrong(b, law, kept=S.Zero):
        new, draws = right(b, law)
        mean, share = MISTAKES[mistake](b, law, kept)
        return mean + share**S.Half * new, draws

    monkeypatch.setattr(jump, "_redrawn", wrong)
    recipe = horowitz(name=f"wrong-{mistake.replace(' ', '-')}")
    assert not all(result.ok for result in LAYERS[layer](subject_of(recipe, values={"c": 0.6})))


def test_how_long_momenta_stay_is_counted_in_steps():
    kept = relaxation_steps(horowitz(), 0.1, {"c": 0.8})["p"]
    at_times = relaxation_steps(horowitz(jumps={"R": refresh(p, rate=2.0, persistence=0.5)}), 0.1, {})["p"]
    assert np.isclose(kept, -1 / np.log(0.8)) and np.isclose(at_times, 10)
    assert relaxation_steps(horowitz(), 0.1, {"c": 0.0})["p"] == 0


REFUSED = {
    "more than all": (dict(jumps={"R": refresh(p, persistence=1.5)}), r"outside of \[0, 1\)"),
    "all of it": (dict(jumps={"R": refresh(p, persistence=1)}), r"outside of \[0, 1\)"),
    "less than nothing": (dict(jumps={"R": refresh(p, persistence=-0.5)}), r"outside of \[0, 1\)"),
    "what may be anything": (dict(jumps={"R": refresh(p, persistence=b)}), r"outside of \[0, 1\)"),
    "its own block": (dict(jumps={"R": refresh(p, persistence=1 / (1 + p**2))}), "that the jump leaves"),
    "two blocks": (
        dict(state=(theta, p, xi), H=U + total(p**2) / 2 + xi**2 / 2, jumps={"R": refresh((p, xi), persistence=c)}),
        "not one normal block",
    ),
    "a switch": (
        dict(state=(theta, p, q), H=U + total(p**2 + q) / 2, jumps={"R": refresh(q, persistence=c)}),
        "not one normal block",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_persistence_is_refused(case):
    changes, message = REFUSED[case]
    with pytest.raises(RecipeError, match=message):
        horowitz(**changes)
