"""Chains that move in log-ratios, and draws on the simplex: the map, its volume, the chain rule, a Dirichlet law."""

from dataclasses import dataclass

import pytest
import torch
from covering import slow
from error_budget import CLAIMS, standard_score
from sympy import log, symbols

import samplers
from recipe import Energy, RecipeError
from samplers import HMC, SGHMC, SGLD, Metropolis, UnderdampedLangevin, sample
from samplers.coordinates import Affine, Composed, Simplex

F64 = torch.float64
WEIGHTS = torch.tensor([0.7, 1.5, 3.0, 4.8], dtype=F64)
START = torch.full((4,), 0.25, dtype=F64)


def dirichlet(theta):
    """-log density by the first three numbers, at T = 1."""
    return -((WEIGHTS - 1) * theta.log()).sum()


def exact_start(chains, weights=WEIGHTS):
    torch.manual_seed(3)
    return torch.distributions.Dirichlet(weights).sample((chains,))


@pytest.mark.parametrize("d", [2, 3, 8])
def test_the_map_its_inverse_its_volume_and_the_chain_rule(d):
    generator = torch.Generator().manual_seed(d)
    z = 2 * torch.randn(5, d - 1, dtype=F64, generator=generator)
    g = torch.randn(d, dtype=F64, generator=generator)
    simplex = Simplex()
    theta, volume = simplex.with_volume(z)
    torch.testing.assert_close(simplex.inverse(theta), z)
    torch.testing.assert_close(theta.sum(-1), torch.ones(5, dtype=F64))
    torch.testing.assert_close(volume, theta.log().sum(-1) + torch.tensor(d).log() / 2)
    for row, at, own in zip(z, theta, volume):
        slopes = torch.autograd.functional.jacobian(simplex, row)
        torch.testing.assert_close(slopes[:-1].slogdet().logabsdet, own)
        log_slopes = slopes / at[:, None]
        torch.testing.assert_close(g @ slopes, (at * (g - at @ g)) @ log_slopes)
        centred = log_slopes - log_slopes.mean(0)  # E, orthonormal at every point
        torch.testing.assert_close(centred.T @ centred, torch.eye(d - 1, dtype=F64))


def test_simplices_in_rows_have_the_sum_of_their_volumes():
    z = torch.randn(3, 2, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    theta, volume = Simplex(2).with_volume(z)
    assert theta.shape == (3, 2, 5) and volume.shape == (3,)
    torch.testing.assert_close(volume, Simplex().with_volume(z)[1].sum(-1))
    torch.testing.assert_close(Simplex(2).with_volume(z[0])[1], volume[0])


AXIS = torch.full((4,), 0.5, dtype=F64) - torch.eye(4, dtype=F64)[3]
E = (torch.eye(4, dtype=F64) - 2 * torch.outer(AXIS, AXIS) / AXIS.square().sum())[:, :3]  # a Householder reflection


def by_hand(z):
    """U(softmax(E z)) - T log|det|, at T = 0.7."""
    theta = (E @ z).softmax(0)
    return dirichlet(theta) - 0.7 * theta.log().sum()


@pytest.mark.parametrize("recipe", [SGLD, SGHMC, HMC, UnderdampedLangevin])
def test_draws_are_the_map_of_those_of_an_energy_with_its_volume(recipe):
    how = dict(steps=12, step_size=0.05, chains=3, temperature=0.7, seed=4, progress=False)
    start = exact_start(3)
    z = sample(recipe, by_hand, init=Simplex().inverse(start), **how)["theta"]
    theta = sample(recipe, dirichlet, init=start, coordinates=Simplex(), **how)["theta"]
    torch.testing.assert_close(theta, Simplex()(z), rtol=1e-9, atol=1e-12)


def scores_after(coordinates, temperature=1.0):
    """Means and mean squares of chains that begin at the law and are accepted or rejected."""
    weights = (WEIGHTS - 1) / temperature + 1
    draws = sample(
        UnderdampedLangevin,
        dirichlet,
        init={"theta": exact_start(4000, weights)},
        chains=4000,
        steps=30,
        thin=3,
        step_size=0.4,
        metropolis=True,
        temperature=temperature,
        coordinates=coordinates,
        progress=False,
    )
    theta, mean = draws["theta"], weights / weights.sum()
    square = mean * (weights + 1) / (weights.sum() + 1)
    assert float((theta.sum(-1) - 1).abs().max()) < 1e-12 and sum(draws.info["acceptance"]) / 4000 > 0.8
    columns = torch.cat([theta / mean - 1, theta**2 / square - 1], -1).mean(1)
    return {k: standard_score(column) for k, column in enumerate(columns.unbind(1))}


@pytest.mark.parametrize("temperature", [1.0, 1.4])
def test_the_law_is_dirichlet(temperature):
    assert CLAIMS["coordinates"].failures(scores_after(Simplex(), temperature)) == {}


@dataclass(frozen=True, eq=False)
class Mutant(Simplex):
    """A volume that is another one."""

    numbers: float = 0.0  # of log theta that count

    def placed(self, theta, where):
        return self

    def with_volume(self, z):
        theta, volume = super().with_volume(z)
        return theta, self.numbers * volume


@pytest.mark.parametrize("part", [slow(0.0), 0.75, slow(1.25)])
def test_a_volume_that_is_left_out_or_counts_other_numbers_is_another_law(part):
    """3 of the 4 logarithms, or 5, are what a wrong number of free coordinates would have."""
    scores = scores_after(Mutant(numbers=part))
    assert max(map(abs, scores.values())) > 12


def test_one_of_minibatches_by_rows_and_in_composed_coordinates():
    counts = torch.tensor([[3.0, 0.0, 1.0], [0.0, 5.0, 2.0], [2.0, 2.0, 2.0], [1.0, 0.0, 7.0]], dtype=F64)

    def energy(theta, batch):
        return -2 * (batch.sum(0) * theta.log()).sum() * 4 / len(batch)

    start = torch.full((2, 3), 1 / 3, dtype=F64)
    wide = Affine(torch.zeros(2, 2, dtype=F64), 0.5 * torch.eye(4, dtype=F64))
    how = dict(data=counts, init=start, step_size=0.01, steps=10, progress=False)
    plain = sample(SGLD, energy, batch_size=2, coordinates=Simplex(), **how)["theta"]
    assert plain.shape[2:] == (2, 3) and float((plain.sum(-1) - 1).abs().max()) < 1e-12
    full = sample(SGLD, energy, coordinates=Composed(Simplex(), wide), **how)["theta"]
    assert full.shape == plain.shape and float((full.sum(-1) - 1).abs().max()) < 1e-12


@pytest.mark.slow
def test_a_run_goes_on_and_is_tuned(tmp_path):
    how = dict(init=START, steps=20, step_size=0.1, progress=False, coordinates=Simplex())
    whole = sample(SGHMC, dirichlet, checkpoint=tmp_path / "run", **how)["theta"]
    again = sample(SGHMC, dirichlet, checkpoint=tmp_path / "run", **how)["theta"]
    assert torch.equal(whole, again)
    settings = samplers.tune(
        UnderdampedLangevin, dirichlet, init=START, coordinates=Simplex(), metropolis=Metropolis(repeat=2), seed=1
    )
    draws = sample(UnderdampedLangevin, dirichlet, steps=50, seed=2, progress=False, **settings.arguments)
    assert float((draws["theta"].sum(-1) - 1).abs().max()) < 1e-12


def test_a_symbolic_energy_a_spread_and_a_target_with_ends_are_refused():
    x, y = symbols("x y", real=True)
    half = torch.tensor([0.5, 0.5])
    how = dict(init=half, steps=2, step_size=0.1, progress=False, coordinates=Simplex())
    with pytest.raises(RecipeError, match="a softmax of log-ratios has no formula"):
        sample(SGLD, Energy((x, y), U=-log(x) - log(y)), **how)
    with pytest.raises(RecipeError, match="off the simplex: .* leave spread out"):
        sample(SGLD, torch.sum, **how | {"init": samplers.Start(how["init"], spread=0.1)})
    with pytest.raises(RecipeError, match="has ends, and coordinates go anywhere"):
        sample(samplers.SGRLDSimplex, torch.sum, **how)


BAD_STARTS = {
    "a sum that is not 1": (torch.tensor([0.5, 0.6]), "off the simplex: along the last axis its numbers sum to 1.1"),
    "a corner": (torch.tensor([0.0, 1.0]), "least number is 0"),
    "a number below 0": (torch.tensor([-0.5, 1.5]), "least number is -0.5"),
    "one number": (torch.ones(1), r"shape \(1,\), and a simplex two numbers"),
    "no axis": (torch.tensor(1.0), r"shape \(\), and a simplex two numbers"),
}


@pytest.mark.parametrize("case", BAD_STARTS)
def test_a_start_off_the_simplex_is_refused(case):
    start, words = BAD_STARTS[case]
    with pytest.raises(RecipeError, match=words):
        sample(
            SGLD, lambda theta: theta.sum(), init=start, steps=2, step_size=0.1, progress=False, coordinates=Simplex()
        )
