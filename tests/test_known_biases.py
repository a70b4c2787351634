"""What an adaptation that goes on does to the law: the biases that the docstrings of the stock samplers state.

RUNS has the figures, of E theta^2 and in percent, rounded by up to 0.5. The chains start at the target's law, and each
gives one average over time, so that averages are independent.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from covering import covering, slow
from error_budget import CLAIMS, Z, beyond
from many_steps import CoordinateLaw, normal

from integrators import compile
from samplers import (
    ISGD,
    PSGLD,
    SANTA,
    VSGD,
    AdaptiveSGHMC,
    PSGLDGamma,
    PSGLDSameStep,
    SGHMCSAClassification,
    SGHMCSAGibbs,
    SGHMCSAMarginal,
    SGLDSAClassification,
)
from samplers.testing.planted import planted
from samplers.testing.quadrature import gaussian

CHAINS = 2000
QUARTIC = CoordinateLaw(lambda z: z**4 / 4, 8.0)
SQUARE = QUARTIC.mean(lambda z: z**2)


def cube(theta):
    return theta**3


class Run(NamedTuple):
    """A sampler whose adaptation goes on, and its bias."""

    recipe: object
    bias: float  # of E theta^2, in percent
    h: float
    adapted: dict  # where the adaptation starts
    given: dict  # what the step is told
    noise: float = 0.0  # the standard deviation of the gradient
    auxiliary: dict = {}  # where the other blocks start: mean and standard deviation
    steps: int = 1000
    target: CoordinateLaw = QUARTIC
    slope: object = cube

    def states(self, *changes, freeze=()):
        """The states after a burn-in half as long; what is frozen stays from the middle of the burn-in on."""
        live, still = planted(compile(self.recipe), *changes), compile(self.recipe, freeze=freeze)
        generator = torch.Generator().manual_seed(0)

        def normals():
            return torch.randn(CHAINS, 1, generator=generator, dtype=torch.float64)

        def gradient(theta):
            return self.slope(theta) + (self.noise * normals() if self.noise else 0)

        state = {"theta": torch.as_tensor(self.target.draw(np.random.default_rng(0), (CHAINS, 1)))}
        state |= {block: mean + sd * normals() for block, (mean, sd) in self.auxiliary.items()}
        state |= {
            a.name: torch.full((CHAINS, 1) if a.is_vector else (CHAINS,), self.adapted[a.name], dtype=torch.float64)
            for a in live.recipe.adapted
        }
        for k in range(-self.steps // 2, self.steps):
            step = still if freeze and k >= -self.steps // 4 else live
            noise = {draw.name: normals() for draw in step.program.draws}
            state = step(state, self.h, gradient=gradient, noise=noise, **self.given)
            if k >= 0:
                yield state

    def excess(self, *changes, freeze=()):
        """By how many percent the average of theta^2 exceeds E theta^2, chain by chain."""
        return self.excess_of(average(self.states(*changes, freeze=freeze), lambda s: s["theta"] ** 2))

    def excess_of(self, squares):
        return 100 * (squares / self.target.mean(lambda z: z**2) - 1)


def average(states, f):
    """The mean of f over states, for each chain."""
    total, n = 0, 0
    for state in states:
        total, n = total + f(state), n + 1
    return total / n


def preconditioned(recipe, alpha, bias, noise=0.0, **more):
    given = {"lam": 0.3, "alpha": alpha} | ({"curvature": lambda theta: 3 * theta**2} if recipe is PSGLDGamma else {})
    return Run(recipe, bias, 0.01, {"V": 3 * SQUARE + noise**2}, given, noise, **more)


ALPHAS = 0.0, 0.9, 0.99, 0.999
LAGGED, WITH_GAMMA = (117, 83, 27, 3.5), (4, 69, 26, 3.5)
NORMAL = dict(target=normal(0, 1), slope=lambda theta: theta)

RUNS = {
    **{f"psgld, {a}": preconditioned(PSGLD, a, bias) for a, bias in zip(ALPHAS, LAGGED)},
    **{f"psgld-gamma, {a}": preconditioned(PSGLDGamma, a, bias) for a, bias in zip(ALPHAS, WITH_GAMMA)},
    "psgld, noisy": preconditioned(PSGLD, 0.9, 16.3, noise=3.0),
    "psgld-same-step, noisy": preconditioned(PSGLDSameStep, 0.9, 20.5, noise=3.0),
    "sghmc-adaptive": Run(
        AdaptiveSGHMC,
        19,
        0.05,
        {"V": 3.0, "gbar": 0.0, "tau": 20.0},
        {"lam": 0.3},
        noise=1.0,
        auxiliary={"p": (0.0, 1.4)},
    ),
    "santa": Run(
        SANTA, 8, 0.05, {"V": 2.0, "V_last": 2.0}, {"lam": 0.3}, auxiliary={"p": (0.0, 1.0), "xi": (0.7, 1.0)}
    ),
    "isgd": Run(ISGD, 0, 1.0, {"b": 1.5, "lam": 10.0}, {"warmup_steps": 0}, noise=2**0.5, **NORMAL),
    "isgd, clipped": Run(ISGD, 31, 1.0, {"b": 10.0, "lam": 10.0}, {"warmup_steps": 0}, noise=19**0.5, **NORMAL),
}


@cache
def averages_of(name):
    """Of theta^2 and, of the samplers whose chains have a clock of their own, of it and of theta^2 in its time."""

    def averaged(s):
        if not name.startswith("psgld,"):
            return s["theta"][None] ** 2
        rate = clock(s["V"])
        return torch.stack([s["theta"] ** 2, rate, rate * (s["theta"] ** 2 / SQUARE - 1)])

    return average(RUNS[name].states(), averaged)


def excess_of(name):
    return RUNS[name].excess_of(averages_of(name)[0])


FROZEN = {  # what is frozen, and the bias that the step itself may have
    "psgld, 0.99": ("V", 1.0),
    "psgld-same-step, noisy": ("V", 1.0),
    "sghmc-adaptive": (("V", "gbar", "tau"), 2.0),
    "santa": (("V", "V_last"), 0.5),
}


@pytest.mark.parametrize("name", covering(RUNS, ["psgld, 0.99", "isgd"]))
def test_a_running_adaptation_has_its_stated_bias(name):
    assert not CLAIMS["known bias"].failures({name: beyond(excess_of(name) - RUNS[name].bias, 0.5)})


@pytest.mark.parametrize(
    "name, other, difference",
    [
        slow(("psgld-same-step, noisy", "psgld, noisy", 4.2)),  # the batch that preconditions itself
        slow(("psgld, 0.9", "psgld-gamma, 0.9", 13.6)),
        slow(("psgld, 0.99", "psgld-gamma, 0.99", 0.6)),  # what Gamma takes away
    ],
)
def test_two_orders_on_the_same_noise_differ_by_as_much(name, other, difference):
    residuals = excess_of(name) - excess_of(other) - difference
    assert not CLAIMS["known bias"].failures({name: beyond(residuals, 0.1)})


def percents(*figures):
    return ", ".join(f"{figure:+g}" for figure in figures) + " %"


@pytest.mark.parametrize(
    "recipe, text",
    [
        (PSGLD, percents(*LAGGED)),
        (PSGLDGamma, percents(*WITH_GAMMA)),
        *[(run.recipe, percents(run.bias)) for name, run in RUNS.items() if ", 0" not in name and run.bias],
        (VSGD, percents(11.1)),
        (VSGD, percents(11.7)),
        (SGLDSAClassification, "0.053"),
        (SGLDSAClassification, "1.178"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_docstring_states_the_bias(recipe, text):
    assert text in recipe.doc


@pytest.mark.parametrize("name", covering(FROZEN, ["psgld, 0.99"]))
def test_the_bias_goes_with_the_adaptation(name):
    still, of_the_step = FROZEN[name]
    assert not CLAIMS["known bias"].failures({name: beyond(RUNS[name].excess(freeze=still), of_the_step)})
    assert beyond(excess_of(name), of_the_step) > Z


@pytest.mark.parametrize(
    "name, text, other",
    [
        slow(("psgld, 0.9", "alpha*V +", "0*V +")),  # without memory
        ("psgld-gamma, 0.9", "*x3*x4", "*0"),  # without Gamma
        slow(("santa", "sigma*V +", "0*V +")),
        slow(("sghmc-adaptive", "*tau + 1", "*0 + 1")),  # the memory of one step
        slow(("isgd", "(1 - mu)/2", "(1 - mu)")),
    ],
)
def test_a_planted_error_in_an_adaptation_is_seen(name, text, other):
    run = RUNS[name]
    assert beyond(run.excess((text, other)) - run.bias, 0.5) > Z


# ---- why: psgld is Langevin dynamics on a clock of its own


def clock(V):
    """G(V), how fast the time of a chain goes."""
    return 1 / (0.3 + V**0.5)


@pytest.mark.parametrize("name", covering(["psgld, 0.0", "psgld, 0.9", "psgld, 0.99"], ["psgld, 0.9"]))
def test_draws_of_psgld_weighted_by_their_preconditioner_have_the_law_of_the_target(name):
    """Whatever V remembers: dtheta = -G grad U dt + sqrt(2 G) dW is Langevin dynamics in the time that G counts."""
    _, clocks, residuals = averages_of(name)
    assert not CLAIMS["known bias"].failures({name: beyond(100 * residuals / clocks.mean(), 1.0)})


def test_without_memory_the_law_of_psgld_is_exp_of_minus_U_over_G():
    law = CoordinateLaw(lambda z: z**4 / 4 + np.log(clock(z**6)), 8.0)
    assert round(100 * (law.mean(lambda z: z**2) / SQUARE - 1)) == LAGGED[ALPHAS.index(0.0)]


# ---- vsgd: what adapts is the gradient's own noise


@pytest.mark.parametrize("V, percent", [(1e4, 11.1), (200.0, 11.7)])
def test_vsgd_follows_noise_that_grows_with_theta(V, percent):
    """E theta'^2 = (1 - 2/V)^2 theta^2 + 4 (1 + c theta^2)/V for a unit normal: Var theta = 1/(1 - 1/V - c)."""
    c, step, (points, weights) = 0.1, compile(VSGD), gaussian(0, 1)
    errors = torch.as_tensor(points)[:, None]

    def square(at):
        state = {"theta": torch.full_like(errors, at)}

        def noisy(theta):
            return theta + (V * (1 + c * theta**2)) ** 0.5 * errors

        out = step(state, 1.0, gradient=noisy, noise={"theta": torch.zeros_like(errors)}, V=V)
        return float(weights @ out["theta"][:, 0].numpy() ** 2)

    variance = square(0.0) / (1 - (square(1.0) - square(0.0)))
    assert variance == pytest.approx(1 / (1 - 1 / V - c), rel=1e-8)
    assert round(100 * (variance - 1), 1) == percent


# ---- the spike-and-slab prior: one weight, seen once


SEEN, SPREAD, SPIKE, SLAB, DELTA = 1.5, 0.3, 0.01, 4.0, 0.4  # the observation, its variance, v0, v1, delta; sigma = 1
POSTERIOR = CoordinateLaw(
    lambda w: (
        (w - SEEN) ** 2 / (2 * SPREAD)
        - np.log(
            (1 - DELTA) * np.exp(-(w**2) / (2 * SPIKE)) / SPIKE**0.5 + DELTA * np.exp(-(w**2) / (2 * SLAB)) / SLAB**0.5
        )
    ),
    8.0,
)


def self_consistent(kappa):
    """The kappa that is its own average under the normal law that it makes of w, and that law's mean."""
    points, weights = gaussian(0, 1, nodes=120)
    for _ in range(300):
        precision = 1 / SPREAD + kappa
        w = SEEN / SPREAD / precision + points / precision**0.5
        odds = (1 - DELTA) / DELTA * (SLAB / SPIKE) ** 0.5 * np.exp(-(w**2) / 2 * (1 / SPIKE - 1 / SLAB))
        kappa = 0.9 * kappa + 0.1 * weights @ ((1 / SLAB + odds / SPIKE) / (1 + odds))
    return kappa, SEEN / SPREAD / precision


def weight(recipe, h, steps, chains=1000):
    """E w as each chain has it, the first half left out; of what adapts, sigma and delta stand still."""
    step = compile(recipe, freeze=("sigma", "delta") if recipe.adapt else ())
    generator = torch.Generator().manual_seed(0)

    def draw(kind):
        return getattr(torch, kind)(chains, 1, generator=generator, dtype=torch.float64)

    start = {"theta": SEEN, "p": 0.0, "gamma": 1.0, "rho": 0.5, "kappa": 50.0, "sigma": 1.0, "delta": DELTA}
    state = {
        b.name: torch.full((chains, 1) if b.is_vector else (chains,), start[b.name], dtype=torch.float64)
        for b in recipe.entries
    }
    # a gain at which no chain strays into the slab, which the averages leave only slowly
    given = {"A": 3.0} if recipe.adapt else {"sigma": 1.0, "delta": DELTA}
    total = 0
    for k in range(steps):
        noise = {d.name: draw({"uniform": "rand", "normal": "randn"}[d.kind]) for d in step.program.draws}
        gain = {"step_number": k} if recipe.adapt else {}
        state = step(state, h, gradient=lambda w: (w - SEEN) / SPREAD, noise=noise, v0=SPIKE, v1=SLAB, **given, **gain)
        total = total + state["theta"] * (k >= steps // 2)
    return total / (steps // 2)


def test_the_self_consistent_law_is_one_and_far_from_the_posterior():
    limits = [self_consistent(kappa) for kappa in (1 / SLAB, 50.0, 1 / SPIKE)]
    assert limits == [pytest.approx((91.506175, 0.053), rel=0.01)] * 3 and np.ptp(limits, axis=0).max() < 1e-8
    assert POSTERIOR.mean(lambda w: w) == pytest.approx(1.178, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, h, steps",
    [slow((SGLDSAClassification, 0.002, 6000)), (SGHMCSAClassification, 0.05, 1000)],
)
def test_the_averages_of_sa_lock_the_signal_into_the_spike(recipe, h, steps):
    means = weight(recipe, h, steps)
    assert not CLAIMS["known bias"].failures({recipe.name: beyond(means - self_consistent(50.0)[1], 0.001)})
    assert means.mean() < POSTERIOR.mean(lambda w: w) / 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", covering([SGHMCSAMarginal, SGHMCSAGibbs], [SGHMCSAGibbs]), ids=lambda recipe: recipe.name
)
def test_the_other_modes_find_the_posterior(recipe):
    means = weight(recipe, 0.05, 1000)
    assert not CLAIMS["known bias"].failures({recipe.name: beyond(means - POSTERIOR.mean(lambda w: w), 0.01)})
