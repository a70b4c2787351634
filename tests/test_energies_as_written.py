"""Energies as users write them: they run where their gradient is that of their value, and are refused where not."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import Distribution, Gamma, MultivariateNormal, Normal, StudentT

import samplers
from recipe import RecipeError

Y = torch.linspace(-1, 2, 20)
EASY = {"steps": 3, "step_size": 1e-3, "progress": False}


@pytest.fixture(autouse=True)
def distributions_that_check(monkeypatch):
    """torch.compile, wherever it is called first, turns their checks off in all of the process."""
    monkeypatch.setattr(Distribution, "_validate_args", True)


def bowl(theta):
    return (theta**2).sum() / 2


def of_a_scale(theta):
    return -Normal(theta[0], theta[1].exp()).log_prob(Y).sum() + bowl(theta)


def of_a_tail(theta):
    return -StudentT(4.0, theta[0], theta[1].exp()).log_prob(Y).sum() + bowl(theta)


def of_a_rate(theta):
    return -Gamma(theta[0].exp(), theta[1].exp()).log_prob(torch.tensor([1.0, 2.0])).sum() + bowl(theta)


def of_a_factor(theta):
    zero, one = torch.zeros(()), torch.ones(())
    L = torch.stack([torch.stack([theta[0].exp(), zero]), torch.stack([theta[1], one])])
    return -MultivariateNormal(torch.zeros(2), scale_tril=L).log_prob(torch.ones(2)) + bowl(theta)


def of_a_cholesky(theta):
    root = torch.linalg.cholesky(torch.diag((theta / 4).exp() - 0.01))
    return root.diagonal().log().sum() + bowl(theta)


CHECKED = [of_a_scale, of_a_tail, of_a_rate, of_a_factor, of_a_cholesky]


def huber(theta):
    r = theta - 3
    return sum(x**2 / 2 if x.abs() < 1 else x.abs() - 0.5 for x in r)


def read_by_item(theta):
    assert math.isfinite(theta.detach().sum().item())
    return bowl(theta)


def read_by_numpy(theta):
    assert np.isfinite(np.asarray(theta.detach())).all()
    return bowl(theta)


def filled(theta):
    parts = torch.zeros(2)
    parts[0] = theta[0]
    parts[1] = theta[1]
    return bowl(parts)


IN_TURN = [huber, read_by_item, read_by_numpy, filled]


def with_no_grad(theta):
    with torch.no_grad():
        weights = torch.ones(2) / Y.abs().max()
    return (weights * theta**2).sum()


def with_integers(theta):
    order = torch.zeros(2, dtype=torch.long)
    order[0] = 1
    return bowl(theta[order]) + bowl(theta)


def in_place(theta):
    r = torch.stack([Y, Y * 2], 1) @ theta
    r -= Y
    return r.pow_(2).sum() / 2 + bowl(theta)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("energy", [*CHECKED, with_no_grad, with_integers, in_place])
def test_an_energy_runs_whatever_it_raises_far_out(energy, chains):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = samplers.sample(samplers.SGLD, energy, init=torch.zeros(2), chains=chains, **EASY)
        assert draws["theta"].isfinite().all()
        assert samplers.find_mode(energy, torch.zeros(2)).isfinite().all()


@pytest.mark.parametrize("metropolis", [False, True])
@pytest.mark.parametrize("energy", IN_TURN)
def test_chains_run_one_after_another_where_torch_cannot_vectorise(energy, metropolis):
    with pytest.warns(RuntimeWarning, match="run one after another"):
        draws = samplers.sample(samplers.SGLD, energy, init=torch.zeros(2), chains=3, metropolis=metropolis, **EASY)
    assert draws.diverged == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of one point it is no matter
        assert samplers.find_mode(energy, torch.zeros(2)).isfinite().all()


def test_chains_in_turn_make_the_draws_of_chains_at_once():
    settings = {"init": torch.zeros(2), "chains": 3, "steps": 20, "step_size": 0.1, "progress": False}
    with pytest.warns(RuntimeWarning, match="run one after another"):
        in_turn = samplers.sample(samplers.SGLD, huber, **settings)
    smooth = samplers.sample(
        samplers.SGLD, lambda t: torch.nn.functional.huber_loss(t, t * 0 + 3, reduction="sum"), **settings
    )
    assert torch.allclose(in_turn["theta"], smooth["theta"], atol=1e-5)


@pytest.mark.parametrize(
    "energy",
    [
        lambda theta: bowl(theta) * theta[0].item(),
        lambda theta: bowl(theta) + (theta * theta[1].item()).sum(),
        lambda theta: bowl(theta) + theta[0] * torch.as_tensor(np.asarray(theta.detach())[1]),
        lambda theta: bowl(theta) if theta[0] > 0 else bowl(theta) - 1,
    ],
)
def test_a_gradient_that_is_not_that_of_the_value_is_refused(energy):
    with pytest.raises(RecipeError, match="many chains at once"):
        samplers.sample(samplers.SGLD, energy, init=torch.tensor([0.0, 0.3]), **EASY)


def test_a_chain_whose_energy_raises_is_lost_and_the_others_go_on():
    def walled(theta):
        if theta[0] > 1:
            raise ValueError("beyond the wall")
        return -50 * theta[0]  # a step of 5, beside noise of sd 0.45

    init = torch.tensor([[-5000.0], [0.999], [-5000.0]])
    settings = EASY | {"init": init, "chains": 3, "step_size": 0.1}
    with pytest.warns(RuntimeWarning) as seen:
        draws = samplers.sample(samplers.SGLD, walled, **settings)
    assert list(draws.diverged) == [1]
    assert draws["theta"][[0, 2]].isfinite().all()
    assert any("the energy raised" in str(w.message) and "beyond the wall" in str(w.message) for w in seen)


def test_a_start_at_which_the_energy_raises_is_named():
    init = torch.tensor([[0.0, 0.0], [0.0, -200.0]])
    with pytest.raises(RecipeError, match="start of chain 1 .ValueError: Expected parameter scale"):
        samplers.sample(samplers.SGLD, of_a_scale, init=init, chains=2, **EASY)


def test_proposals_at_which_the_energy_raises_are_rejected():
    def bounded(theta):
        if not theta.abs().max() < 1:
            raise ValueError("outside of the box")
        return bowl(theta)

    with pytest.warns(RuntimeWarning) as seen:
        draws = samplers.sample(
            samplers.SGLD,
            bounded,
            init=torch.zeros(2),
            chains=4,
            steps=40,
            step_size=0.5,
            metropolis=True,
            progress=False,
        )
    assert draws["theta"].abs().max() < 1
    assert draws.diverged == {}
    assert any("the energy raised" in str(w.message) and "outside of the box" in str(w.message) for w in seen)


def test_tuning_looks_where_the_energy_raises(brief):
    settings = samplers.tune(samplers.SGLD, of_a_scale, init=torch.zeros(2))
    assert settings.arguments["step_size"] > 0


# ---- layers of networks


def of_network(network):
    """The energy of a network's parameters: squared outputs, and a prior."""

    def energy(theta):
        outputs = torch.func.functional_call(network, theta, ROWS)
        return outputs.square().sum() + sum((w**2).sum() for w in theta.values())

    return energy


class Recurrent(torch.nn.Module):
    """A layer that torch does not vectorise."""

    def __init__(self, kind):
        super().__init__()
        self.layer = kind(2, 3, batch_first=True)

    def forward(self, rows):
        return self.layer(rows[:, None])[0]


ROWS = torch.linspace(-1, 1, 8).reshape(4, 2)
SHORT = {"steps": 3, "step_size": 1e-3, "chains": 2, "progress": False}


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_networks_run_one_chain_after_another(kind):
    torch.manual_seed(0)
    network = Recurrent(kind)
    with pytest.warns(RuntimeWarning, match="Batching rule not implemented.*run one after another") as record:
        draws = samplers.sample(samplers.SGLD, of_network(network), init=network, **SHORT)
    assert len(record) == 1 and draws.diverged == {}


LAYERS = {
    "batch norm": (torch.nn.BatchNorm1d(2), "a BatchNorm1d in its network couples the examples of a batch.*eval"),
    "its batches": (
        torch.nn.BatchNorm1d(2, track_running_stats=False).eval(),
        "a BatchNorm1d in its network couples.*running statistics",
    ),
    "dropout": (torch.nn.Dropout(0.5), "a Dropout in its network is random in training mode.*eval"),
    "attention": (
        torch.nn.TransformerEncoderLayer(2, 1, 4, dropout=0.1),
        "a TransformerEncoderLayer|a MultiheadAttention.*random",
    ),
}


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_couple_rows_or_are_random_are_refused_by_name(name, chains):
    layer, words = LAYERS[name]
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), layer)
    with pytest.raises(RecipeError, match=words):
        samplers.sample(samplers.SGLD, of_network(network), init=network, **SHORT | {"chains": chains})


def test_layers_that_are_still_are_taken():
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 2)).eval()
    assert samplers.sample(samplers.SGLD, of_network(network), init=network, **SHORT).diverged == {}
    assert torch.nn.Dropout(0.5)(torch.ones(3)).shape == (3,)  # nothing is left behind that looks at modules
