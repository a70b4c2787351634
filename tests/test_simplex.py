"""The posterior of a sparse Dirichlet prior: ten categories of weight a = 0.1, twelve counts.

omega = theta/sum(theta) is Dirichlet(a + counts), so E omega and E omega^2 are known. The Cox-Ingersoll-Ross flow keeps
the law of theta at every step size; reflected Euler hands out what it reflects to those who have next to nothing.
"""

import numpy as np
import pytest
import torch
from covering import slow
from error_budget import CLAIMS, standard_score
from orders import defect

from integrators import compile
from samplers import SGRLDCIR, SGRLDSimplex
from samplers.testing.planted import planted
from samplers.testing.quadrature import gamma

A = 0.1
COUNTS = torch.tensor([8.0, 3.0, 1.0] + [0.0] * 7, dtype=torch.float64)
WEIGHTS, UNSEEN = A + COUNTS, COUNTS == 0
MEAN = WEIGHTS / WEIGHTS.sum()
SQUARE = MEAN * (WEIGHTS + 1) / (WEIGHTS.sum() + 1)


def averages(step, h, steps, chains, **given):
    """omega/E omega and omega^2/E omega^2, averaged over time for each chain; the chains start at the target."""
    generator = torch.Generator().manual_seed(0)
    draws = {
        "normal": lambda: torch.randn(chains, len(WEIGHTS), generator=generator, dtype=torch.float64),
        "poisson": lambda: lambda rate: torch.poisson(rate, generator=generator),
        "gamma": lambda: lambda shape: torch._standard_gamma(shape, generator=generator),
    }
    state = {"theta": draws["gamma"]()(WEIGHTS.repeat(chains, 1))}
    first = second = 0
    for _ in range(steps):
        state = step(state, h, noise={d.name: draws[d.kind]() for d in step.program.draws}, a=A, **given)
        omega = state["theta"] / state["theta"].sum(1, keepdim=True)
        first, second = first + omega / MEAN, second + omega**2 / SQUARE
    return first / steps, second / steps


def flow_scores(*changes):
    """How far omega and omega^2 are off after long steps of the exact flow: in standard errors, and in parts."""
    moments = averages(planted(compile(SGRLDCIR), *changes), 3.0, 40, 20_000, counts=COUNTS)
    off = {
        (who, power): values - 1
        for power, ratio in enumerate(moments, 1)
        for who, values in (*zip("012", ratio.T), ("unseen", ratio[:, UNSEEN].mean(1)))
    }
    return {k: standard_score(x) for k, x in off.items()}, {k: float(x.mean()) for k, x in off.items()}


def test_the_exact_flow_gives_everybody_their_share_within_one_percent():
    scores, off = flow_scores()
    assert not CLAIMS["simplex"].failures(scores)
    assert max(map(abs, off.values())) < 0.01


@pytest.mark.parametrize("h, factor", [(0.05, 3.5), slow((0.01, 2.5))])
def test_reflected_euler_gives_the_unseen_several_times_their_share(h, factor):
    def likelihood(theta):
        return COUNTS.sum() / theta.sum(1, keepdim=True) - COUNTS / theta

    first, second = averages(compile(SGRLDSimplex), h, round(20 / h), 400, gradient=likelihood)
    assert first[:, UNSEEN].mean() > factor and second[:, UNSEEN].mean() > factor
    assert first[:, ~UNSEEN].mean() < 0.95


@pytest.mark.parametrize("h", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("counts", [0.0, 3.0])
def test_the_exact_flow_keeps_a_sparse_gamma_law_at_every_step_size(counts, h):
    assert np.abs(gamma_defect(compile(SGRLDCIR), counts, h)).max() < 1e-9


def gamma_defect(step, counts, h):
    """By how much a step changes the moments of Gamma(a + counts)."""
    return defect(step, {"theta": gamma(A + counts, nodes=8)}, h, None, a=A, counts=counts)


@pytest.mark.parametrize(
    "text, other", [("1/temperature*a +", "a**2 +"), ("math.exp(-h)/(", "1/(")], ids=["prior-weight", "decay-left-out"]
)
def test_a_planted_error_in_the_flow_is_seen(text, other):
    assert np.abs(gamma_defect(planted(compile(SGRLDCIR), (text, other)), 3.0, 0.5)).max() > 0.05


@pytest.mark.parametrize("h, mean", [(0.05, 0.3185), (0.01, 0.242)])
def test_the_mean_of_reflected_euler_where_nothing_is_counted(h, mean):
    """E theta = a = 0.1 is right; by the matrix of the emitted step on a grid of theta, 400 normals to a node."""
    grid, many = np.linspace(0, 5, 500) ** 2, 400
    normals = torch.special.ndtri((torch.arange(many, dtype=torch.float64) + 0.5) / many)
    noise = {"theta": (normals / normals.square().mean() ** 0.5).repeat(len(grid))[:, None]}
    state = {"theta": torch.as_tensor(grid.repeat(many))[:, None]}
    moved = compile(SGRLDSimplex)(state, h, gradient=torch.zeros_like, noise=noise, a=A)["theta"][:, 0].numpy()
    right = np.searchsorted(grid, moved).clip(1, len(grid) - 1)
    share = (moved - grid[right - 1]) / (grid[right] - grid[right - 1])
    matrix, row = np.zeros((len(grid), len(grid))), np.arange(len(grid)).repeat(many)
    np.add.at(matrix, (row, right), share / many)
    np.add.at(matrix, (row, right - 1), (1 - share) / many)
    law = np.linalg.lstsq(np.vstack([matrix.T - np.eye(len(grid)), np.ones(len(grid))]), np.eye(len(grid) + 1)[-1])[0]
    assert law @ grid == pytest.approx(mean, rel=5e-3)
