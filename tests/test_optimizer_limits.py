"""At temperature 0 a sampler is an optimiser: the same weights at each of 200 steps, to 1e-12, on a nonlinear loss.

Steps are called directly, in float64. The noise handed to them is not 0: at temperature 0 it must not matter.
"""

import math
from dataclasses import dataclass, field

import pytest
import torch
from covering import slow

from integrators import compile
from samplers import (
    PSGLD,
    SANTA,
    SGHMC,
    SGLD,
    PreconditionedSGLD,
    PSGLDSameStep,
    RelativisticATMC,
    RelativisticSGHMC,
    UnderdampedLangevin,
)
from samplers.testing.planted import planted

STEPS = 200
START = torch.tensor([1.5, -2.0, 0.7], dtype=torch.float64)


def slope(w):
    """The gradient of sum w^4/4 + log(1 + (sum w - 1)^2), for one vector of weights or many."""
    s = w.sum(-1, keepdim=True) - 1
    return w**3 + 2 * s / (1 + s**2)


def sampled(step, h, start=None, steps=STEPS, temperature=0.0, **parameters):
    """The weights after every step; blocks and adapted quantities start at 0 where nothing is given."""
    state = {b.name: torch.zeros_like(START[None]) for b in step.recipe.entries} | {"theta": START[None]}
    state |= {name: torch.full_like(START[None], value) for name, value in (start or {}).items()}
    path = []
    for _ in range(steps):
        state = step(
            state,
            h,
            gradient=slope,
            noise={name: torch.ones_like(START[None]) for name in step.draws},
            temperature=temperature,
            **parameters,
        )
        path.append(state["theta"][0])
    return torch.stack(path)


def descended(optimizer, seen=None, steps=STEPS):
    """The weights after every step of a torch optimiser; `seen` puts values into its state before the first."""
    w, path = START.clone().requires_grad_(), []
    run = optimizer([w])
    for k in range(steps):
        w.grad = slope(w.detach())
        if k == 0 and seen:
            run.state[w] = {"step": torch.zeros(()), **seen(w)}
        run.step()
        path.append(w.detach().clone())
    return torch.stack(path)


def refinement(eta, alpha, sigma, lam, steps=STEPS):
    """Chen et al. (2016), the refinement of Algorithm 1: the preconditioner acts on the gradient and on the move."""
    w, u, v, path = START.clone(), torch.zeros_like(START), torch.zeros_like(START), []
    for _ in range(steps):
        f = slope(w)
        v = sigma * v + (1 - sigma) * f**2
        g = 1 / (lam + v.sqrt()).sqrt()
        u = (1 - alpha) * u - eta * g * f
        w = w + g * u
        path.append(w)
    return torch.stack(path)


@dataclass(frozen=True)
class Limit:
    """A sampler at temperature 0, the optimiser that it is, and by how many steps it comes later."""

    step: object
    h: float
    parameters: dict
    optimizer: object
    start: dict = field(default_factory=dict)
    later: int = 0

    def distance(self, step=None):
        """The largest difference between weights of the two."""
        mine = sampled(step or self.step, self.h, self.start, STEPS + self.later, **self.parameters)[self.later :]
        return float((mine - self.optimizer()).abs().max())


h, m, C, gamma = 0.07, 1.7, 1.9, 1.3


def phi1(x):
    return math.expm1(x) / x


rms = dict(lr=0.02, alpha=0.9, eps=0.3)
V0, xi, lam = 2.3, 4.0, 0.3
santa = dict(sigma=0.9, lam=lam)

LIMITS = {
    "SGLD is SGD": Limit(compile(SGLD), h, {}, lambda: descended(lambda w: torch.optim.SGD(w, lr=h))),
    "preconditioned SGLD is SGD of the rate h G": Limit(
        compile(PreconditionedSGLD), h, {"G": 0.6}, lambda: descended(lambda w: torch.optim.SGD(w, lr=0.6 * h))
    ),
    "pSGLD with the V of the same step is RMSprop": Limit(
        compile(PSGLDSameStep),
        rms["lr"],
        {"alpha": rms["alpha"], "lam": rms["eps"]},
        lambda: descended(lambda w: torch.optim.RMSprop(w, **rms)),
    ),
    "SGHMC by A G is SGD with momentum, a step later": Limit(
        compile(SGHMC, "paper"),
        h,
        {"C": C, "m": m},
        lambda: descended(lambda w: torch.optim.SGD(w, lr=h**2 / m, momentum=1 - C * h / m)),
        later=1,
    ),
    "SGHMC by G A is SGD with momentum": Limit(
        compile(SGHMC, "G A"),
        h,
        {"C": C, "m": m},
        lambda: descended(lambda w: torch.optim.SGD(w, lr=h**2 / m, momentum=1 - C * h / m)),
    ),
    "Langevin by F A is SGD with momentum": Limit(
        compile(UnderdampedLangevin, "F A"),
        h,
        {"gamma": gamma, "m": m},
        lambda: descended(lambda w: torch.optim.SGD(w, lr=h**2 / m * phi1(-gamma * h), momentum=math.exp(-gamma * h))),
    ),
    "Santa with xi frozen is the refinement of its paper": Limit(
        compile(SANTA, "euler", freeze="xi"), h, santa, lambda: refinement(h**2, h * xi, **santa), start={"xi": xi}
    ),
    "Santa with xi and V frozen is RMSprop with momentum": Limit(
        compile(SANTA, "euler", freeze=("xi", "V", "V_last")),
        h,
        santa,
        lambda: descended(
            lambda w: torch.optim.RMSprop(w, lr=h**2, alpha=1.0, eps=lam, momentum=1 - h * xi),
            lambda w: {"square_avg": V0 + 0 * w.detach(), "momentum_buffer": 0 * w.detach()},
        ),
        start={"xi": xi, "V": V0},
    ),
}
every = pytest.mark.parametrize("name", LIMITS)


@every
def test_at_temperature_0(name):
    assert LIMITS[name].distance() <= 1e-12


@pytest.mark.parametrize(
    "name, text, other",
    [
        ("SGLD is SGD", "h*g", "h/2*g"),
        ("SGLD is SGD", "2*temperature*h", "2*h"),
        ("preconditioned SGLD is SGD of the rate h G", "h*G", "h*G**2"),
        ("pSGLD with the V of the same step is RMSprop", "torch.sqrt(V) + lam", "torch.sqrt(V + lam)"),
        ("pSGLD with the V of the same step is RMSprop", "(1 - alpha)/num_data**2", "alpha"),
        ("SGHMC by A G is SGD with momentum, a step later", "C/m*p", "C*p"),
        ("SGHMC by A G is SGD with momentum, a step later", "h/m*p", "h*p"),
        ("SGHMC by A G is SGD with momentum, a step later", "(temperature*C - B)", "C"),
        ("Langevin by F A is SGD with momentum", "h*phi1(-h*gamma)", "h"),
        ("Langevin by F A is SGD with momentum", "math.exp(-h*gamma)", "(1 - h*gamma)"),
        (
            "Santa with xi frozen is the refinement of its paper",
            "theta + h*p*torch.sqrt(1/(torch.sqrt(V) + lam))",
            "theta + h*p",
        ),
        ("Santa with xi frozen is the refinement of its paper", "V_last = V\n    V =", "V_last ="),
        ("Santa with xi frozen is the refinement of its paper", "p*xi", "p*xi*torch.sqrt(1/(torch.sqrt(V) + lam))"),
    ],
    ids=lambda value: value.replace(" ", "-"),
)
def test_a_mutant_is_another_optimizer(name, text, other):
    limit = LIMITS[name]
    assert limit.distance(planted(limit.step, (text, other))) > 1e-3


def test_pSGLD_with_the_V_of_the_step_before_is_not_RMSprop():
    limit = LIMITS["pSGLD with the V of the same step is RMSprop"]
    assert limit.distance(compile(PSGLD)) > 1e-2


def test_santa_is_not_RMSprop_with_momentum_while_V_moves():
    """torch divides a gradient by the root of the V of its own time; Santa takes half of that root when it moves."""
    limit = LIMITS["Santa with xi frozen is the refinement of its paper"]
    rmsprop = descended(lambda w: torch.optim.RMSprop(w, lr=h**2, alpha=0.9, eps=lam, momentum=1 - h * xi))
    assert (sampled(limit.step, h, limit.start, **santa) - rmsprop).abs().max() > 1e-2


# ---- the relativistic samplers: no weight moves by more than c h


STEEP = dict(m=0.3, c=0.8, temperature=1.0)


def fastest(step):
    """The largest move of a weight in units of c h, on a slope and with noise that would throw it further."""
    path = torch.cat([START[None], sampled(step, h, {"p": -2.0}, **STEEP)])
    return float(path.diff(dim=0).abs().max() / (STEEP["c"] * h))


@pytest.mark.parametrize("recipe", [RelativisticSGHMC, slow(RelativisticATMC)], ids=lambda recipe: recipe.name)
def test_a_relativistic_sampler_comes_near_the_speed_c_and_does_not_reach_it(recipe):
    assert 0.95 < fastest(compile(recipe)) < 1


@pytest.mark.parametrize(
    "text, other",
    [("torch.sqrt(1/(1 + 1/(c**2*m**2)*p**2))", "1"), ("h/(2*m)*p", "h/2*p")],
    ids=["speed-p/m", "speed-without-the-mass"],
)
def test_a_mutant_has_another_limit_speed(text, other):
    assert not 0.95 < fastest(planted(compile(RelativisticSGHMC), (text, other))) < 1
