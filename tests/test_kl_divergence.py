"""The KL of the law of draws from exp(-H/T), from the work of steps, is the exact one to leading order.

The law of a Gaussian's OBABO is that of a linear map with noise, iterated; that of SGLD on a quartic the eigenvector of
its kernel on a grid. Sites are independent, so that their KLs add up.
"""

import numpy as np
import pytest
import torch
from error_budget import CLAIMS

import samplers
from recipe import Energy, total, vector
from samplers.results.kl_divergence import KLDivergence
from samplers.running.backward_work import Stretches

SITES, CHAINS = 20, 2000
K, MASS, GAMMA, COLD = 2.3, 1.7, 1.0, 0.3
MARGIN = 0.15  # by which orders beyond the leading one may change it

theta = vector("theta")
BOWL = Energy(theta, U=K * total(theta**2) / 2)
QUARTIC = Energy(theta, U=total(theta**4) / 4)


def run(recipe, energy, h, **others):
    start = torch.zeros(SITES, dtype=torch.float64)
    setting = dict(init=start, step_size=h, chains=40, steps=100, warmup=100, progress=False)
    return samplers.sample(recipe, energy, **setting | others)


def langevin(h, **others):
    return run(samplers.UnderdampedLangevin, BOWL, h, **dict(scheme="O B A B O", m=MASS, gamma=GAMMA) | others)


def divergence(draws, steps, chains=CHAINS):
    """That of stretches of so many steps and more, without the pairs that `accuracy` runs beside."""
    numbers = torch.arange(chains)
    start = draws._again.start_at(draws, numbers % 40, numbers % 100)
    return draws._again.divergence(start, steps=steps, most=8 * steps)


def kl(S, P):
    ratio = np.linalg.solve(P, S)
    return (np.trace(ratio) - len(S) - np.log(np.linalg.det(ratio))) / 2


def exact_of_langevin(h):
    """Of one site; it is the same at any temperature."""
    kick, drift = np.array([[1, 0], [-K * h / 2, 1]]), np.array([[1, h / MASS], [0, 1]])
    c = np.exp(-GAMMA * h / 2)
    shrunk, noise = np.diag([1, c]), np.diag([0, (1 - c * c) * MASS])
    step = shrunk @ kick @ drift @ kick @ shrunk
    middle = shrunk @ kick @ drift @ kick
    S = np.eye(2)
    for _ in range(2000):
        S = step @ S @ step.T + middle @ noise @ middle.T + noise
    return kl(S, np.diag([1 / K, MASS]))


def exact_of_quartic(h):
    """Of one site at T = 1."""
    x = np.linspace(-5, 5, 801)
    kernel = np.exp(-((x[None] - x[:, None] + h * x[:, None] ** 3) ** 2) / (4 * h))
    kernel /= kernel.sum(1, keepdims=True)
    target = np.exp(-(x**4) / 4)
    target /= target.sum()
    law = target.copy()
    for _ in range(int(20 / h)):
        law = law @ kernel
    seen = law > 1e-14
    return float((law[seen] * np.log(law[seen] / target[seen])).sum())


def score(estimate, exact):
    """In standard errors, beyond the margin."""
    off = estimate.value - SITES * exact
    return np.sign(off) * max(abs(off) - MARGIN * SITES * exact, 0.0) / estimate.error


def test_it_is_the_closed_form_of_a_gaussian():
    """At T = 0.3, so that a work that is not divided by T, or of another sign, or from wrong starts, is seen."""
    estimate = divergence(langevin(0.6, temperature=COLD), 20)
    assert estimate.settled and not estimate.lost and not estimate.doubts
    assert not CLAIMS["divergence"].failures({"OBABO": score(estimate, exact_of_langevin(0.6))})
    assert estimate.value > 10 * estimate.error


@pytest.mark.slow
def test_it_is_that_of_the_kernel_on_a_grid():
    estimate = divergence(run(samplers.SGLD, QUARTIC, 0.05), 20, chains=40_000)
    print(f"\nSGLD: {estimate.value / SITES:.5f} +- {estimate.error / SITES:.5f}, exact {exact_of_quartic(0.05):.5f}")
    assert not CLAIMS["divergence"].failures({"SGLD": score(estimate, exact_of_quartic(0.05))})
    assert estimate.value > 7 * estimate.error


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.3, 0.6, 0.9])
def test_it_follows_the_closed_form_over_two_orders_of_magnitude(h):
    estimate = divergence(langevin(h), 40, chains=20_000)
    print(f"\nh = {h}: {estimate.value / SITES:.5f} +- {estimate.error / SITES:.5f}, exact {exact_of_langevin(h):.5f}")
    assert not CLAIMS["divergence"].failures({h: score(estimate, exact_of_langevin(h))})


@pytest.mark.slow
def test_kernels_state_the_same():
    both = [divergence(langevin(0.6, backend=backend), 20, chains=200) for backend in ("torch", "cpp")]
    assert both[0].value == pytest.approx(both[1].value, rel=1e-6)


def test_stretches_go_backwards_in_time(monkeypatch):
    """Those of exp(-H/T) start from chains of both directions, those of the law of the run from chains of its own."""
    calls = []
    moved = Stretches._moved

    def recording(self, step, state, h, steps):
        calls.append((step.accepts, set(state["direction"].tolist()), steps, self.number))
        return moved(self, step, state, h, steps)

    monkeypatch.setattr(Stretches, "_moved", recording)
    divergence(langevin(0.3), 10, chains=20)
    exact, own, *stretches = calls[:4]
    assert exact[:3] == (True, {1.0, -1.0}, 20) and own[:3] == (False, {1.0}, 10)
    assert [s[:3] for s in stretches] == [(False, {-1.0}, 10)] * 2
    assert stretches[0][3] == stretches[1][3]  # with the same noise


def test_accuracy_shows_it():
    result = langevin(0.6).accuracy(chains=100, steps=40)
    assert str(result.divergence) in str(result) and "(Pinsker)" in str(result)
    assert result.to_dict()["divergence"]["value"] == result.divergence.value
    assert result.divergence.chains == 100


def energy_of_data(t, batch):
    return (t**2).sum() / 2 + 9 * ((batch - t.mean()) ** 2).mean()


NONE = {
    "exact": (dict(metropolis=True), "accepted or rejected"),
    "minibatches": (dict(data=torch.ones(9, dtype=torch.float64), batch_size=3), "a step on minibatches has no work"),
    "tensors": (dict(scope="tensor", init={"a": torch.zeros(2)}), "there is no work of one tensor"),
}


@pytest.mark.parametrize("name", NONE)
def test_where_there_is_none_the_reason_is_said(name):
    others, reason = NONE[name]
    energy = {"minibatches": energy_of_data, "tensors": lambda t: (t["a"] ** 2).sum() / 2}.get(name, BOWL)
    recipe = samplers.SGNHT if name == "tensors" else samplers.SGLD
    parameters = dict(A=1.0) if name == "tensors" else {}
    result = run(recipe, energy, 0.2, **others, **parameters).accuracy(chains=10, steps=20)
    assert result.divergence.value is None and reason in result.divergence.reason
    assert f"is not stated: {result.divergence.reason}." in str(result)


def test_it_says_when_it_is_not_to_be_believed():
    unsettled = divergence(langevin(0.6, gamma=0.05), 2, chains=500)
    assert not unsettled.settled and "has not settled in stretches of 16 steps" in unsettled.doubts[0]
    wild = divergence(langevin(0.6, scheme="A O B O A"), 20, chains=200)
    assert wild.variance > 20 and any("too much for the KL" in doubt for doubt in wild.doubts)
    assert "3 of the chains of the KL are lost" in KLDivergence(0.1, 0.01, lost=3).doubts[0]
    assert KLDivergence(-0.1, 0.02).bound == pytest.approx(0.02**0.5)
    assert "not stated" in str(KLDivergence(1.9, 0.1)) and "e+10" not in str(KLDivergence(2.6e10, 1e9))
    assert "1.9 +- 0.04" in str(KLDivergence(1.9, 0.04))
