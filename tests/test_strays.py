"""Pilot chains in modes of no weight leave them, and those in modes that have weight stay."""

import pytest
import torch

from samplers import HMC, tune
from samplers.tuning.strays import RARE, have_weight

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


@pytest.mark.parametrize("above, kept", [(RARE - 1, True), (RARE + 1, False)])
@pytest.mark.parametrize("wide", [1.0, 10.0])
def test_a_chain_has_weight_up_to_the_ratio_of_volumes(above, kept, wide):
    """Seven chains at 0, and one whose place raises the sd of all draws by what U is greater there."""
    draws = torch.randn(8, 50, SITES, dtype=F64, generator=torch.Generator().manual_seed(0))
    draws[0] = wide * draws[0]
    U = torch.zeros(8, 50, dtype=F64)
    within = draws.std(1).median(0).values
    volumes = (draws.flatten(0, 1).std(0) / within).log().clamp(min=0).sum()
    U[0] = above + volumes
    assert have_weight(draws, U).tolist() == [kept] + [True] * 7


def test_chains_that_have_not_moved_have_weight():
    assert have_weight(torch.zeros(4, 3, 2), torch.tensor([[0.0], [0], [0], [1e6]]).expand(4, 3)).all()
