"""Chains that move in coordinates z, and draws of theta = f(z): the same law, the same draws, the same refusals."""

import pytest
import torch
from covering import covering, slow
from error_budget import CLAIMS, standard_score
from sympy import symbols

import samplers
from recipe import Energy, RecipeError, data_total, datum, total, vector
from samplers import GHMC, HMC, MALA, SGHMC, SGLD, Metropolis, RandomisedHMC, UnderdampedLangevin, sample, tune
from samplers.coordinates import Affine, Composed
from samplers.target.targets import TARGETS
from samplers.tuning import tuner
from samplers.tuning.pilot import Trial

F64 = torch.float64
SITES = 10


def rotation(sites, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(sites, sites, generator=generator, dtype=F64))[0]


Q = rotation(SITES)
ROOT = Q * torch.logspace(0, 2, SITES, dtype=F64)  # of a covariance of condition 1e4
PRECISION = torch.linalg.inv(ROOT @ ROOT.T)
CENTER = torch.linspace(-1, 1, SITES, dtype=F64)


def gaussian(theta):
    away = theta - CENTER
    return away @ PRECISION @ away / 2


def scores_of(theta):
    """Means, variances and covariances of neighbours of draws `(chains, draws, sites)`, in units of the exact ones."""
    unit = (theta - CENTER) @ torch.linalg.inv(ROOT).T
    columns = torch.cat([unit, unit**2 - 1, unit[..., 1:] * unit[..., :-1]], -1).mean(1)
    return {k: standard_score(column) for k, column in enumerate(columns.unbind(1))}


def exact_start(chains, T=1.0):
    generator = torch.Generator().manual_seed(9)
    return CENTER + T**0.5 * torch.randn(chains, SITES, generator=generator, dtype=F64) @ ROOT.T


def test_the_law_of_theta_is_left_as_it_is():
    """A Gaussian of condition 1e4, in coordinates that are off by a factor of up to 2 in every direction."""
    off = ROOT @ (torch.eye(SITES, dtype=F64) + 0.3 * rotation(SITES, 1))
    draws = sample(
        UnderdampedLangevin,
        gaussian,
        init={"theta": exact_start(400)},
        chains=400,
        steps=40,
        step_size=0.6,
        metropolis=Metropolis(repeat=3),
        progress=False,
        coordinates=Affine(torch.zeros(SITES, dtype=F64), off),
    )
    assert CLAIMS["coordinates"].failures(scores_of(draws["theta"])) == {}
    assert min(draws.info["acceptance"]) > 0.3 and draws.info["coordinates"] == "a dense linear map of 10 sites"


MATRIX = torch.tensor([[2.0, 0.5], [-1.0, 0.3]], dtype=F64)
AFFINE = Affine(torch.tensor([0.3, -0.2], dtype=F64), MATRIX)
x, y = symbols("x y", real=True)


def banana(theta):
    return theta[0] ** 2 / 2 + 5 * (theta[1] - theta[0] ** 2) ** 2


@pytest.mark.parametrize(
    "recipe", covering([SGLD, MALA, HMC, GHMC, RandomisedHMC, SGHMC, UnderdampedLangevin], [SGLD, GHMC])
)
def test_draws_are_the_map_of_those_of_the_mapped_energy(recipe):
    """Written by hand, by the mechanism of torch energies, and as formulas, in torch and in C++."""
    z = torch.tensor([[0.1, -0.3], [0.2, 0.4], [0.0, 0.0]], dtype=F64)
    how = dict(steps=12, step_size=0.003, chains=3, temperature=0.7, progress=False)
    by_hand = sample(recipe, lambda z: banana(AFFINE(z)), init=z, **how)
    theta = AFFINE(by_hand["theta"])
    here = dict(init=AFFINE(z), coordinates=AFFINE, keep=[b.name for b in recipe.momenta], **how)
    mapped = sample(recipe, banana, **here)
    torch.testing.assert_close(mapped["theta"], theta, rtol=1e-9, atol=1e-9)
    for backend in ("torch", "cpp"):
        symbolic = sample(recipe, TARGETS["banana"], backend=backend, **here)
        for name, values in mapped.items():
            torch.testing.assert_close(symbolic[name], values, rtol=1e-9, atol=1e-9)


def test_tensors_by_name_and_minibatches_are_mapped_too():
    X = torch.linspace(-1, 1, 12, dtype=F64)
    init = {"a": torch.ones(1, dtype=F64), "b": torch.zeros(1, dtype=F64)}

    def energy(theta, batch):
        return 12 * ((batch * theta["a"] - theta["b"]) ** 2).mean() + theta["a"].sum() ** 2

    def by_hand(z, batch):
        theta = AFFINE(z)
        return energy({"a": theta[:1], "b": theta[1:]}, batch)

    how = dict(data=X, batch_size=3, steps=8, step_size=0.01, progress=False)
    mapped = sample(SGLD, energy, init=init, coordinates=AFFINE, **how)
    z = sample(SGLD, by_hand, init=AFFINE.inverse(torch.tensor([1.0, 0.0], dtype=F64)), **how)["theta"]
    torch.testing.assert_close(torch.cat([mapped["a"], mapped["b"]], -1), AFFINE(z), rtol=1e-9, atol=1e-9)


def test_a_symbolic_energy_on_data_is_mapped():
    d = datum("d")
    energy = Energy((x, y), U=data_total((d - x - y) ** 2) / 2 + x**2 / 2, data=(d,))

    def same(theta, batch):
        return ((batch - theta.sum()) ** 2).sum() / 2 + theta[0] ** 2 / 2

    data = torch.linspace(0, 1, 5, dtype=F64)
    how = dict(data=data, init=torch.zeros(2, dtype=F64), steps=9, step_size=0.02, progress=False, coordinates=AFFINE)
    one, other = (sample(SGLD, U, **how)["theta"] for U in (energy, same))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_maps_compose_and_a_target_may_have_any_shape():
    wide = Affine(torch.ones(2, 1, dtype=F64), MATRIX)
    both = Composed(wide, wide)
    z = torch.randn(3, 2, 1, dtype=F64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(both(z), wide(wide(z)))
    torch.testing.assert_close(both.inverse(both(z)), z)
    draws = sample(
        SGLD, lambda t: (t**2).sum(), init=torch.zeros(2, 1, dtype=F64), steps=5, step_size=0.01, coordinates=both,
        progress=False,
    )  # fmt: skip
    assert draws["theta"].shape == (4, 5, 2, 1) and draws.info["coordinates"].count("2 sites") == 2


def test_the_bias_that_is_stated_is_that_of_theta():
    """Euler steps of a unit Gaussian in z have the variance 1/(1 - h/2); theta = L z has L L^T times it."""
    h = 0.2
    inverse = torch.linalg.inv(MATRIX)
    draws = sample(
        SGLD,
        lambda theta: (inverse @ theta).square().sum() / 2,
        init=torch.zeros(2, dtype=F64),
        chains=50,
        steps=800,
        warmup=50,
        step_size=h,
        progress=False,
        coordinates=Affine(torch.zeros(2, dtype=F64), MATRIX),
    )
    accuracy = draws.accuracy(chains=200, steps=200)
    stated = accuracy.by_name()
    for i in range(2):
        sd = float(MATRIX[i].norm())
        bias = stated[f"theta[{i}]", "sd"]
        assert bias.step == pytest.approx(sd * ((1 - h / 2) ** -0.5 - 1), rel=0.3)
        assert bias.law == pytest.approx(sd * (1 - h / 2) ** -0.5, rel=0.1)
    assert accuracy.divergence.value is not None


def test_a_run_goes_on_in_its_coordinates_alone(tmp_path):
    how = dict(init=torch.zeros(2, dtype=F64), steps=20, step_size=0.01, progress=False, checkpoint=tmp_path / "run")
    first = sample(UnderdampedLangevin, banana, coordinates=AFFINE, **how)
    again = sample(UnderdampedLangevin, banana, coordinates=AFFINE, **how)
    assert torch.equal(first["theta"], again["theta"])
    other = Affine(AFFINE.center, 2 * MATRIX)
    for coordinates in (other, None):
        with pytest.raises(RecipeError, match="settings"):
            sample(UnderdampedLangevin, banana, coordinates=coordinates, **how)


ONE = torch.eye(2, dtype=F64)
theta = vector("theta")
BAD_MAPS = {
    "singular": (dict(matrix=torch.ones(2, 2)), "singular"),
    "not square": (dict(matrix=torch.ones(2, 3)), r"shape \(2, 3\)"),
    "of another size": (dict(matrix=torch.eye(3)), "center 2 sites"),
    "not finite": (dict(matrix=torch.full((2, 2), torch.nan)), "finite numbers"),
    "integers": (dict(center=torch.tensor([1, 2])), "center is no tensor"),
    "a list": (dict(center=[0.0, 1.0]), "center is no tensor"),
}


@pytest.mark.parametrize("case", BAD_MAPS)
def test_a_map_that_is_none_is_refused(case):
    how, words = BAD_MAPS[case]
    with pytest.raises(RecipeError, match=words):
        Affine(**{"center": torch.zeros(2), "matrix": torch.eye(2)} | how)


BAD_RUNS = {
    "no map": (dict(coordinates=ONE), "theta = f"),
    "another shape": (dict(coordinates=Affine(torch.zeros(3), torch.eye(3))), r"shape \(3,\)"),
    "explicit coordinates": (
        dict(recipe=samplers.SGRLDDense, init={"x": 0.0, "y": 0.0}, energy=TARGETS["banana"]),
        "explicit coordinates",
    ),
    "ends": (dict(recipe=samplers.SGRLDCIR, init=torch.ones(2)), "H is wholly symbolic|has ends"),
    "an energy of one site": (dict(energy=Energy(theta, U=total(theta**2) / 2)), "mixes sites"),
    "more coordinates": (dict(energy=TARGETS["quartic"]), "1 coordinates, and the map 2"),
    "a scope": (dict(scope="tensor", init={"a": torch.zeros(2)}), "not per tensor"),
    "an observation per site": (
        dict(recipe=samplers.SGFS, observe={"score_variance": lambda t: t}),
        "value per site",
    ),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_a_run_that_has_no_such_coordinates_is_refused(case):
    how, words = BAD_RUNS[case]
    how = dict(recipe=SGLD, energy=banana, init=torch.zeros(2), coordinates=Affine(torch.zeros(2), torch.eye(2))) | how
    with pytest.raises(RecipeError, match=words):
        sample(how.pop("recipe"), how.pop("energy"), steps=2, step_size=0.1, progress=False, **how)


# ---- tuning


@pytest.mark.slow
def test_dense_coordinates_are_chosen_where_they_pay_and_their_draws_are_right():
    settings = tune(HMC, gaussian, init=CENTER + 1, chains=60, metropolis=Metropolis(repeat=3), seed=1)
    assert "dense, by the shrunk covariance" in str(settings) and "m" not in settings.arguments
    whitened = torch.linalg.solve(settings.arguments["coordinates"].matrix, ROOT)
    widths = torch.linalg.svdvals(whitened)
    assert widths.max() < 1.3 and widths.min() > 0.75
    draws = sample(HMC, gaussian, warmup=20, steps=100, seed=2, progress=False, **settings.arguments)
    assert CLAIMS["coordinates"].failures(scores_of(draws["theta"])) == {}


@pytest.mark.parametrize("ratio, is_dense", [(0.8, True), (0.5, False)])
def test_dense_coordinates_that_the_covariance_asks_for_are_taken_unless_they_are_clearly_worse(
    ratio, is_dense, brief, monkeypatch
):
    def trial(pilot, step_size, repeat, axes):
        return Trial(step_size, repeat, 0.9, 0.1 if pilot.coordinates is None else 0.1 * ratio)

    monkeypatch.setattr(tuner, "trial", trial)
    correlated = Energy((x, y), U=(x**2 + y**2 - 1.8 * x * y) * 5)
    settings = tune(HMC, correlated, init=torch.zeros(2, dtype=F64), metropolis=Metropolis(repeat=3))
    assert ("coordinates" in settings.arguments) == is_dense


def test_scales_are_kept_where_sites_are_independent(brief):
    scales = torch.logspace(0, 2, 4, dtype=F64)
    settings = tune(
        UnderdampedLangevin, lambda t: ((t / scales) ** 2).sum() / 2, init=scales, metropolis=Metropolis(repeat=2)
    )
    assert "coordinates" not in settings.arguments and "the covariance has the condition 1" in str(settings)


@pytest.mark.parametrize("given", [{"m": 1.0}, slow({})], ids=["m", "nothing"])
def test_scales_of_a_correlated_energy_are_kept_where_their_parameter_is_given(given):
    correlated = Energy((x, y), U=(x**2 + y**2 - 1.9 * x * y) * 5)
    how = dict(init=torch.zeros(2, dtype=F64), metropolis=Metropolis(repeat=2))
    arguments = tune(UnderdampedLangevin, correlated, **how, **given).arguments
    assert ("coordinates" in arguments) is not bool(given)
    assert given or isinstance(arguments["coordinates"], Affine)
    assert sample(UnderdampedLangevin, correlated, steps=5, progress=False, **arguments)["theta"].shape[2] == 2
