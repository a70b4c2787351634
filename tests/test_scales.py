"""Chains that have left every scale of their law are flagged, those of any law are not; adapted starts are safe."""

import warnings

import pytest
import sympy
import torch
from covering import covering, slow

import samplers
from recipe import Energy, RecipeError
from samplers import SGLD, AdaptiveSGHMC, Optimizer, UnderdampedLangevin

QUIET = {"progress": False}
ADAPTED = {"sghmc-adaptive": 0.01, "psgld": 1e-3, "psgld-same-step": 1e-3, "santa": 0.01, "isgd": 0.5}


def bowl(theta):
    """N((1, 0), 1/100), whose gradient at 0 is along the first coordinate alone."""
    return 50 * (theta[0] - 1) ** 2 + 50 * theta[1] ** 2


NO_MASS = {"theta": torch.zeros(2), "V": torch.tensor([1e4, 0.0]), "gbar": torch.zeros(2), "tau": torch.ones(2)}


@pytest.mark.parametrize("name", covering(ADAPTED, ["psgld", "isgd", "sghmc-adaptive"]))
def test_a_site_without_a_gradient_starts_with_the_scale_of_the_others(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = samplers.sample(name, bowl, init=torch.zeros(2), step_size=ADAPTED[name], steps=300, **QUIET)
    assert draws["theta"].abs().max() < 3
    assert draws.diverged == {}


def test_a_chain_without_any_gradient_is_refused():
    with pytest.raises(RecipeError, match="V starts as.*stationary point"):
        samplers.sample("psgld", bowl, init=torch.tensor([[0.0, 0.0], [1.0, 0.0]]), chains=2, step_size=1e-3, **QUIET)


def test_a_network_with_dead_units_goes_on():
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(generator=generator).mul_(0.3)
        model[0].bias[:4] = -100.0  # four units are dead
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = Optimizer(model.parameters(), AdaptiveSGHMC, step_size=0.01, num_data=100)
    X = torch.randn(100, 3, generator=generator)
    for _ in range(20):
        optimizer.zero_grad()
        (model(X) - X.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    moved = [float((p.detach() - b).abs().max()) for p, b in zip(model.parameters(), before)]
    assert max(moved) < 2, moved


@pytest.mark.parametrize("energy", [bowl, "symbolic"])
def test_chains_that_left_every_scale_are_flagged(energy):
    if energy == "symbolic":
        x, y = sympy.symbols("x y", real=True)
        energy = Energy((x, y), U=50 * (x - 1) ** 2 + 50 * y**2)
    with pytest.warns(RuntimeWarning, match="4 of 4 chains have left every scale.*smaller step size"):
        draws = samplers.sample(AdaptiveSGHMC, energy, init=NO_MASS, step_size=0.01, steps=200, **QUIET)
    assert draws.diverged == dict.fromkeys(range(4), 200)


def test_a_chain_that_was_far_away_is_flagged_though_it_came_back():
    def sample(most):
        schedule = {60: most, 61: 0.005}
        settings = {"init": torch.tensor([1.0, 0.0]), "steps": 100}
        return samplers.sample(SGLD, bowl, step_size=lambda k: schedule.get(k, 0.005), **settings, **QUIET)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sample(0.005).diverged == {}
    with pytest.warns(RuntimeWarning, match="4 of 4 chains have left every scale"):
        draws = sample(10.0)
    assert draws["theta"][:, -1].abs().max() < 3
    assert list(draws.diverged) == [0, 1, 2, 3]


def test_chains_without_acceptance_that_leave_the_set_of_the_density_are_told_to_be_accepted():
    def half(theta):
        return torch.where((theta > 0).all(), (theta**2).sum() / 2, torch.inf)

    with pytest.warns(RuntimeWarning, match="risen by inf.*no force leads back: take metropolis=True"):
        samplers.sample(SGLD, half, init=torch.ones(2), step_size=0.1, steps=400, **QUIET)


def cauchy(theta):
    return 1.5 * torch.log1p((theta**2).sum())


def funnel(theta):
    return theta[0] ** 2 / 18 + (theta[1:] ** 2).sum() * (-theta[0]).exp() / 2 + len(theta[1:]) * theta[0] / 2


def minima(theta):
    """Two, of which one is 1e4 higher."""
    return 5e3 * (theta[0] ** 2 - 1) ** 2 + 5e3 * (theta[0] + 1) + (theta[1:] ** 2).sum() / 2


@pytest.mark.parametrize(
    "energy, settings",
    [
        slow((cauchy, {"step_size": 5.0, "steps": 2000})),
        (funnel, {"step_size": 0.01, "steps": 500}),
        (minima, {"step_size": 1e-6, "steps": 100, "init": torch.tensor([[1.0, 0, 0]] * 2 + [[-1.0, 0, 0]] * 2)}),
        (
            minima,
            {
                "step_size": 1e-6,
                "steps": 100,
                "temperature": 1e-4,
                "init": torch.tensor([[1.0, 0, 0]] * 2 + [[-1.0, 0, 0]] * 2),
            },
        ),
        (lambda t: (t**2).sum() / 2, {"step_size": 1e-3, "steps": 100, "init": torch.full((3,), 1e3)}),
        (lambda t: (t**2).sum() / 2, {"step_size": 0.2, "steps": 100, "temperature": 0.0, "init": torch.ones(3)}),
    ],
    ids=["heavy tails", "funnel", "minima", "cold minima", "on the way", "descent"],
)
def test_no_law_is_flagged(energy, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = samplers.sample(UnderdampedLangevin, energy, **{"init": torch.zeros(3), **QUIET, **settings})
    assert draws.diverged == {}


def test_noise_of_minibatches_is_no_height():
    """U of a batch has a standard deviation of 1e5, and of the difference between states of far less."""
    X = 100 * torch.linspace(-1, 1, 1000)[:, None]

    def noisy(theta, batch):
        return 1000 * ((theta - batch[:, 0]) ** 2 / 2).mean()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = samplers.sample(
            SGLD,
            lambda t, b: noisy(t[0], b),
            data=X,
            batch_size=10,
            init=torch.zeros(1),
            step_size=1e-8,
            steps=200,
            **QUIET,
        )
    assert draws.diverged == {}
