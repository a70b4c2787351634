"""Pilot chains in modes of no weight leave them, and those in modes that have weight stay."""

import math

import pytest
import torch

from samplers import HMC, tune
from samplers.tuning.strays import have_weight

F64 = torch.float64
SITES = 3


def two_modes(sd, log_weight):
    """U of N(0, 1) and of N(30, sd^2) of so much weight beside it, and 32 starts, of which 8 are in the second mode."""
    starts = torch.randn(32, SITES, dtype=F64, generator=torch.Generator().manual_seed(0))
    starts[::4] = 30 + sd * starts[::4]

    def U(theta):
        logs = [
            -(theta**2).sum() / 2,
            log_weight - (((theta - 30) / sd) ** 2).sum() / 2 - SITES * torch.tensor(sd).log(),
        ]
        return -torch.logaddexp(*logs)

    return U, starts


@pytest.mark.filterwarnings("ignore:.*have not met")
@pytest.mark.parametrize(
    "sd, log_weight, left",
    [
        pytest.param(1.0, -60.0, True, id="of no weight"),
        pytest.param(1.0, -3.0, False, id="of some weight"),
        pytest.param(100.0, 0.0, False, id="wide, of the same weight"),  # U is 14 greater there
    ],
)
def test_chains_leave_a_mode_of_no_weight_alone(brief, sd, log_weight, left):
    U, starts = two_modes(sd, log_weight)
    settings = tune(HMC, U, init=starts, chains=32, budget=5_000, seed=1, progress=False)
    assert ("had no weight" in settings.reasons["init"]) == left
    assert (settings.arguments["init"].point["theta"].max() < 10) == left


@pytest.mark.parametrize("sites", [5, 50, 200])
@pytest.mark.parametrize("sd", [1.0, 3.0, 30.0])
@pytest.mark.parametrize("of_weight", [True, False])
def test_one_chain_of_many_in_a_wide_place_stays_where_it_has_weight(sites, sd, of_weight):
    """31 chains are in N(0, 1), one in N(0, sd^2) of half of the weight, or of e^-40 beside the freedom of widths."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(32, 16, sites, dtype=F64, generator=generator)
    draws[0] *= sd
    far = 0.0 if of_weight else 40.0 + 2 * sites
    squares = draws.square().sum(-1) / 2
    U = -torch.logaddexp(-squares, -squares / sd**2 - sites * math.log(sd) - far)
    U[0] = squares[0] / sd**2 + sites * math.log(sd) + far  # of its place alone
    assert have_weight(draws, U).tolist() == [of_weight] + [True] * 31


def test_a_site_at_a_point_does_not_keep_a_chain():
    draws = torch.randn(8, 16, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    draws[..., 1] = 3.0
    assert have_weight(draws, torch.tensor([1e6] + [0.0] * 7).expand(16, 8).T).tolist() == [False] + [True] * 7


def test_chains_that_have_not_moved_have_weight():
    draws = torch.arange(4.0).reshape(4, 1, 1).expand(4, 3, 2)
    assert have_weight(draws, torch.tensor([0.0, 0, 0, 1e6]).expand(3, 4).T).all()
