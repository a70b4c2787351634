"""Models of named variables: laws that are conjugate or known by quadrature, of chains that move in free numbers."""

import math
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats
import torch
from covering import slow
from error_budget import CLAIMS, standard_score
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Dirichlet,
    Distribution,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
    InverseGamma,
    LKJCholesky,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Pareto,
    Poisson,
    StudentT,
    Uniform,
    VonMises,
    Weibull,
    Wishart,
    constraints,
)
from torch.func import jacrev, vmap

import samplers
from recipe import RecipeError
from samplers import HMC, SGLD, Metropolis, UnderdampedLangevin, model, sample, tune
from samplers.coordinates import Affine, Composed, ordered
from samplers.target.torch_state import unchecked

F64 = torch.float64


def of(*values):
    return torch.tensor(values, dtype=F64)


ZERO, ONE = of(0.0)[0], of(1.0)[0]
SMALL = dict(chains=64, step_size=0.3, metropolis=Metropolis(repeat=4), progress=False, warmup=30, steps=60)


def check(draws, statistics):
    """Means over chains of statistics of the draws, against the numbers that they are to be."""
    scores = {name: standard_score(f(draws).mean(1) - mean) for name, (f, mean) in statistics.items()}
    assert CLAIMS["coordinates"].failures(scores) == {}


# ---- eight schools. Rubin (1981)

EFFECTS = of(28, 8, -3, 7, -1, 1, 18, 12)
ERRORS = of(15, 10, 16, 11, 9, 11, 10, 18)
SCHOOLS = model(
    {"mu": Normal(ZERO, 5 * ONE), "tau": HalfCauchy(5 * ONE), "eta": Normal(torch.zeros(8, dtype=F64), ONE)},
    lambda v: Normal(v["mu"] + v["tau"] * v["eta"], ERRORS).log_prob(EFFECTS),
)
CENTRED = model(
    {
        "mu": Normal(ZERO, 5 * ONE),
        "tau": HalfCauchy(5 * ONE),
        "effect": lambda v: Normal(v["mu"], v["tau"]).expand([8]),
    },
    lambda v: Normal(v["effect"], ERRORS).log_prob(EFFECTS),
)


def schools_by_quadrature():
    """E mu, E min(tau, 20) and E of the first effect, the effects integrated by hand."""
    mu = torch.linspace(-25, 35, 601, dtype=F64)[:, None]
    tau = torch.cat([torch.linspace(0.005, 60, 6000, dtype=F64)])[None]
    variance = ERRORS.square()[:, None, None] + tau**2
    logs = -variance.log().sum(0) / 2 - ((EFFECTS[:, None, None] - mu) ** 2 / variance).sum(0) / 2
    weights = (logs - mu**2 / 50 - (1 + (tau / 5) ** 2).log()).exp()
    weights = weights / weights.sum()
    shrunk = mu + (EFFECTS[0] - mu) * tau**2 / (ERRORS[0] ** 2 + tau**2)
    return [float((weights * f).sum()) for f in (mu, tau.clamp(max=20), shrunk)]


def test_eight_schools_are_those_of_quadrature():
    mu, tau, effect = schools_by_quadrature()
    init = {"mu": ZERO, "tau": ONE, "eta": torch.zeros(8, dtype=F64)}
    draws = sample(HMC, SCHOOLS, init=init, seed=1, **SMALL)
    assert draws["eta"].shape == (64, 60, 8) and draws["tau"].shape == (64, 60) and (draws["tau"] > 0).all()
    check(
        draws,
        {
            "mu": (lambda d: d["mu"], mu),
            "tau": (lambda d: d["tau"].clamp(max=20), tau),
            "effect": (lambda d: d["mu"] + d["tau"] * d["eta"][..., 0], effect),
        },
    )


def test_a_prior_may_depend_on_those_before():
    """U of the centred schools, at the same effects, is that of the others up to what the change of effects makes."""
    eta = torch.linspace(-1, 1, 8, dtype=F64)
    here = {"mu": of(2.0)[0], "tau": of(3.0)[0]}
    other = CENTRED(here | {"effect": here["mu"] + here["tau"] * eta})
    assert float(other - SCHOOLS(here | {"eta": eta})) == pytest.approx(8 * math.log(3.0))
    draws = sample(HMC, CENTRED, step_size=0.1, steps=3, progress=False)
    assert draws["effect"].shape == (4, 3, 8)


# ---- laws that are known

WISHART = Wishart(3 * ONE, torch.eye(2, dtype=F64))


def normals(precision):
    return MultivariateNormal(torch.zeros(2, dtype=F64), precision_matrix=precision)


def test_dirichlet_and_counts():
    counts, a = of(3, 0, 7, 1), of(0.7, 1.0, 2.0, 1.5)
    exact = Dirichlet(a + counts)
    energy = model({"w": Dirichlet(a)}, lambda v: (counts * v["w"].log()).sum())
    draws = sample(HMC, energy, seed=2, **SMALL)
    torch.testing.assert_close(draws["w"].sum(-1), torch.ones(64, 60, dtype=F64))
    check(
        draws,
        {
            **{f"w[{i}]": (lambda d, i=i: d["w"][..., i], exact.mean[i]) for i in range(4)},
            "w[1]^2": (lambda d: d["w"][..., 1] ** 2, exact.variance[1] + exact.mean[1] ** 2),
        },
    )


def test_a_correlation_with_an_lkj_prior_is_that_of_quadrature():
    pairs = of([1.0, 0.4], [-0.5, -1.2], [0.3, 0.9], [2.0, 1.1])
    energy = model(
        {"L": LKJCholesky(2, 2 * ONE)},
        lambda v: MultivariateNormal(torch.zeros(2, dtype=F64), scale_tril=v["L"]).log_prob(pairs),
    )
    r = torch.linspace(-1, 1, 20001, dtype=F64)[1:-1]
    x, y = pairs.T[:, :, None]
    logs = (1 - r**2).log() * (1 - 4 / 2) - ((x**2 - 2 * r * x * y + y**2) / (1 - r**2)).sum(0) / 2
    weights = torch.softmax(logs, 0)
    draws = sample(HMC, energy, seed=3, **SMALL)
    check(
        draws,
        {
            "r": (lambda d: d["L"][..., 1, 0], float((weights * r).sum())),
            "r^2": (lambda d: d["L"][..., 1, 0] ** 2, float((weights * r**2).sum())),
        },
    )


def test_the_law_of_free_numbers_of_a_precision_is_that_of_its_conjugate_law():
    """W(n, V) given normal rows x is W(n + rows, (V^-1 + x^T x)^-1), of mean n V and E S_ij^2 by Isserlis' rule."""
    rows = of([1.0, 0.4], [-0.5, -1.2], [0.3, 0.9], [2.0, 1.1])
    prior, n = torch.linalg.inv(of([2.0, 0.5], [0.5, 1.0])), len(rows) + 3
    energy = model({"S": Wishart(3 * ONE, prior)}, lambda v: normals(v["S"]).log_prob(rows))
    ends = ((-6.0, 2.4, 43), (-6.0, 2.4, 43), (-9.0, 9.0, 81))
    z = torch.cartesian_prod(*(torch.linspace(*end, dtype=F64) for end in ends))
    flat, volume = energy.coordinates.with_volume(z)
    S = flat.reshape(-1, 2, 2)
    weights = torch.softmax(volume - vmap(energy)({"S": S}), 0)[:, None, None]
    V = torch.linalg.inv(torch.linalg.inv(prior) + rows.T @ rows)
    squares = n * (V**2 + V.diagonal()[:, None] * V.diagonal()) + (n * V) ** 2
    torch.testing.assert_close((weights * S).sum(0), n * V, rtol=1e-6, atol=0)
    torch.testing.assert_close((weights * S**2).sum(0), squares, rtol=1e-6, atol=0)


def test_the_start_of_a_covariance_is_one():
    own = model({"S": WISHART}, lambda v: 0 * v["S"].sum())
    for S in (of([1.0, 2.0], [2.0, 1.0]), of([1.0, 0.5], [0.4, 1.0])):
        with pytest.raises(RecipeError, match="outside of its support"):
            sample(HMC, own, init={"S": S}, step_size=0.1, steps=1, progress=False)


def test_the_order_of_normals():
    """Three that rise are the order statistics: the mean of the last is 3/(2 sqrt(pi))."""
    energy = model(
        {"cut": Normal(torch.zeros(3, dtype=F64), ONE)},
        lambda v: 0 * v["cut"].sum(),
        constraints={"cut": ordered},
    )
    draws = sample(HMC, energy, seed=5, **SMALL)
    assert (draws["cut"].diff(dim=-1) > 0).all()
    check(
        draws,
        {
            "last": (lambda d: d["cut"][..., 2], 1.5 / math.pi**0.5),
            "middle": (lambda d: d["cut"][..., 1], 0.0),
        },
    )


def test_the_temperature_leaves_the_volume_alone():
    """exp(-U/T) of a Gamma(4, 1) at T = 2 is Gamma(2.5, 1/2), as a law of the variable and not of its log."""
    energy = model({"x": Gamma(4 * ONE, ONE)}, lambda v: 0 * v["x"])
    draws = sample(HMC, energy, seed=6, temperature=2.0, **SMALL)
    check(draws, {"x": (lambda d: d["x"], 5.0), "x^2": (lambda d: d["x"] ** 2, 35.0)})


def test_an_end_may_depend_on_one_before():
    """b ~ Gamma(3, 1), x ~ U(0, b): E x = E b/2."""
    energy = model({"b": Gamma(3 * ONE, ONE), "x": lambda v: Uniform(0 * ONE, v["b"])}, lambda v: 0 * v["x"])
    draws = sample(HMC, energy, seed=7, **SMALL)
    assert (draws["x"] < draws["b"]).all()
    check(draws, {"b": (lambda d: d["b"], 3.0), "x": (lambda d: d["x"], 1.5)})


# ---- maps

SUPPORTS = {
    "real": Normal(torch.zeros(2, dtype=F64), ONE),
    "positive": LogNormal(torch.zeros(2, dtype=F64), ONE),
    "interval": Uniform(-ONE, 3 * ONE),
    "unit interval": Beta(of(1.0, 2.0), of(2.0, 2.0)),
    "simplex": Dirichlet(torch.ones(3, dtype=F64)),
    "several simplices": Dirichlet(torch.ones(2, 3, dtype=F64)),
    "correlation": LKJCholesky(3, ONE),
    "covariance": Wishart(5 * ONE, torch.eye(3, dtype=F64)),
}


def minimal(theta, name):
    """As many numbers of theta as are free."""
    if name.endswith(("simplex", "simplices")):
        return theta.reshape(-1, 3)[:, :-1].reshape(-1)
    if name == "correlation":
        return theta.reshape(3, 3)[*torch.tril_indices(3, 3, -1)]
    if name == "covariance":
        return theta.reshape(3, 3)[*torch.tril_indices(3, 3)]
    return theta


@pytest.mark.parametrize("name", SUPPORTS)
def test_the_volume_of_a_map_is_that_of_its_derivative(name):
    coordinates = model({"x": SUPPORTS[name]}, lambda v: v["x"].sum()).coordinates
    z = torch.linspace(-1, 0.7, sum(torch.Size(s).numel() for s in coordinates.free.values()), dtype=F64)
    theta, volume = coordinates.with_volume(z)
    slogdet = torch.linalg.slogdet(jacrev(lambda z: minimal(coordinates(z), name))(z))[1]
    torch.testing.assert_close(volume, slogdet)
    torch.testing.assert_close(coordinates.inverse(theta), z)
    several = z.repeat(2, 3, 1)
    torch.testing.assert_close(coordinates(several), theta.repeat(2, 3, 1))


def test_a_dense_map_goes_on_top_of_that_of_a_model():
    energy = model({"x": LogNormal(torch.zeros(2, dtype=F64), ONE)}, lambda v: 0 * v["x"].sum())
    affine = Affine(of(0.1, 0.2), of([1.0, 0.3], [0.0, 2.0]))
    z = of([0.3, -0.4])
    how = dict(steps=5, step_size=0.05, chains=1, progress=False)
    plain = sample(SGLD, lambda z: (affine(z) ** 2).sum() / 2, init=z, **how)["theta"]
    coordinates = Composed(energy.coordinates, affine)
    mapped = sample(SGLD, energy, init={"x": affine(z).exp()}, coordinates=coordinates, **how)["x"]
    torch.testing.assert_close(mapped, affine(plain).exp())
    with pytest.raises(RecipeError, match="Composed"):
        sample(SGLD, energy, coordinates=affine, **how)


# ---- runs


def test_starts_are_draws_of_the_prior_of_each_chain_and_touch_no_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = SCHOOLS.starts(6, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(SCHOOLS.starts(4, 3, first_chain=2), one[2:]) and len(one.unique(dim=0)) == 6
    assert not torch.equal(SCHOOLS.starts(6, seed=4), one)
    x = SCHOOLS.starts(200, seed=0)[:, 2:].flatten()
    assert abs(float(x.mean())) < 6.7 * len(x) ** -0.5


def test_minibatches_are_scaled_up_and_the_prior_is_not():
    X = torch.linspace(0, 1, 10, dtype=F64)
    energy = model({"mu": Normal(ZERO, ONE)}, lambda v, batch: Normal(v["mu"], ONE).log_prob(batch), num_data=len(X))
    at = {"mu": of(0.3)[0]}
    parts = [energy(at, half) for half in (X[:5], X[5:])]
    torch.testing.assert_close(sum(parts) / 2, energy(at, X))
    whole = -Normal(at["mu"], ONE).log_prob(X).sum() - Normal(ZERO, ONE).log_prob(at["mu"])
    torch.testing.assert_close(energy(at, X), whole)
    draws = sample(SGLD, energy, data=X, batch_size=4, steps=3, step_size=1e-3, progress=False)
    assert draws["mu"].shape == (4, 3)


def test_a_model_is_tuned_and_goes_on_from_a_checkpoint(tmp_path, brief):
    counts = of(3, 5, 7)
    energy = model({"w": Dirichlet(torch.ones(3, dtype=F64))}, lambda v: (counts * v["w"].log()).sum())
    settings = tune(UnderdampedLangevin, energy, chains=6, metropolis=Metropolis(repeat=2))
    assert settings.arguments["init"].point["w"].shape == (6, 3)
    how = dict(steps=30, progress=False, checkpoint=tmp_path / "run") | settings.arguments
    first, again = (sample(UnderdampedLangevin, energy, **how) for _ in range(2))
    assert torch.equal(first["w"], again["w"]) and first["w"].shape == (6, 30, 3)
    assert len({float(x) for x in first["w"][:, 0, 0]}) == 6


@pytest.mark.slow
def test_the_errors_that_are_stated_are_of_the_variables():
    energy = model({"s": Gamma(3 * ONE, ONE)}, lambda v: 0 * v["s"])
    draws = sample(UnderdampedLangevin, energy, steps=150, warmup=50, step_size=0.4, chains=40, progress=False)
    figures = draws.accuracy(chains=80, steps=30).by_name()
    assert figures["s", "mean"].law == pytest.approx(3.0, rel=0.2)


def test_the_evidence_is_of_free_variables():
    prior = Normal(ZERO, ONE)
    energy = model({"mu": prior}, lambda v: Normal(v["mu"], ONE).log_prob(ONE))
    result = samplers.evidence(HMC, energy, reference={"mu": prior}, chains=100, bridges=4, moves=1)
    assert abs(result.log_evidence - float(Normal(ZERO, 2**0.5 * ONE).log_prob(ONE))) < 6.7 * result.error
    with pytest.raises(RecipeError, match="variables with constraints"):
        samplers.evidence(HMC, SCHOOLS, reference={"mu": prior})


COUNTS = of(2, 0, 3)
RATE = {"rate": Gamma(2 * ONE, ONE)}  # of counts, whose law is a negative binomial


@pytest.mark.parametrize("reference", [None, slow({"rate": LogNormal(ZERO, ONE)})], ids=["the prior", "another law"])
def test_the_evidence_of_a_constrained_variable_is_that_of_its_conjugate_law(reference):
    energy = model(RATE, lambda v: Poisson(v["rate"]).log_prob(COUNTS))
    total, n = COUNTS.sum(), len(COUNTS)
    exact = torch.lgamma(2 + total) - (2 + total) * math.log(1 + n) - torch.lgamma(COUNTS + 1).sum()
    result = samplers.evidence(HMC, energy, reference=reference, chains=100, bridges=8, moves=2)
    assert abs(result.log_evidence - float(exact)) < 6.7 * result.error and result.error < 0.1


@pytest.mark.parametrize("law", [Dirichlet(torch.tensor([2.0, 3.0, 4.0])), slow(LKJCholesky(3)), WISHART, Beta(2, 3)])
def test_a_constant_likelihood_is_the_evidence_whatever_the_prior_is_mapped_from(law):
    energy = model({"x": law}, lambda v: 0 * v["x"].sum() - 1.5)
    assert samplers.evidence(HMC, energy, chains=64, bridges=1, moves=1).log_evidence == pytest.approx(-1.5, abs=1e-5)


@pytest.mark.parametrize("degree", [slow(0), 1])
def test_the_evidence_is_the_same_however_a_variable_is_centred(degree):
    """x ~ N(m, 2), m ~ N(0, 1), y ~ N(x, 1): y is N(0, 1 + 4 + 1)."""
    priors = {"m": Normal(ZERO, ONE), "x": lambda v: Normal(v["m"], 2 * ONE)}
    energy = model(priors, lambda v: Normal(v["x"], ONE).log_prob(of(1.5)), centred={"x": degree})
    assert energy.is_free and not SCHOOLS.is_free
    result = samplers.evidence(HMC, energy, chains=100, bridges=8, moves=2)
    assert abs(result.log_evidence - float(Normal(ZERO, 6**0.5).log_prob(of(1.5)))) < 6.7 * result.error


@pytest.mark.parametrize("reference", [None, {"x": Gamma(ONE, 2 * ONE)}], ids=["the prior", "another law"])
def test_the_evidence_is_of_the_prior_within_a_constraint(reference):
    """x ~ N(0, 1) above 0, y ~ N(x, 1): p(y) = 2 N(y; 0, 2) Phi(y/sqrt 2)."""
    priors, above = {"x": Normal(ZERO, ONE)}, {"x": constraints.positive}
    energy = model(priors, lambda v: Normal(v["x"], ONE).log_prob(of(-0.5)), constraints=above)
    result = samplers.evidence(HMC, energy, reference=reference, chains=100, bridges=8, moves=2)
    density = Normal(ZERO, 2**0.5).log_prob(of(-0.5)) + math.log(2) + scipy.stats.norm.logcdf(-(0.5**1.5))
    assert abs(result.log_evidence - float(density)) < 6.7 * result.error and result.error < 0.1


WHOLE = {
    "a turn": (lambda v: VonMises(v["m"], 2 * ONE), constraints.interval(-math.pi, math.pi)),
    "another turn": (lambda v: VonMises(v["m"], 2 * ONE), constraints.interval(0.0, 2 * math.pi)),
    "all numbers": (lambda v: StudentT(3 * ONE, v["m"]), constraints.real),
    "all positive numbers": (lambda v: Gamma(v["m"].exp(), ONE), constraints.positive),
    "all of several": (lambda v: Independent(Gamma(v["m"].exp().expand(2), ONE), 1), constraints.positive),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_constraint_that_cuts_nothing_leaves_a_prior_of_other_variables_whole(case):
    law, constraint = WHOLE[case]
    energy = model({"m": Normal(ZERO, ONE), "x": law}, lambda v: v["x"], constraints={"x": constraint})
    energy.check_prior("evidence", "")
    at = {"m": of(0.3)[0], "x": of(0.7).squeeze() if case != "all of several" else of(0.7, 1.5)}
    torch.testing.assert_close(energy.log_prior(at), Normal(ZERO, ONE).log_prob(at["m"]) + law(at).log_prob(at["x"]))


@pytest.mark.parametrize("of_several", [False, True])
def test_draws_of_an_angle_are_within_the_turn_of_its_constraint(of_several):
    """With the mean direction pi half of the draws are above it."""
    turn, law = {"x": constraints.interval(0.0, 2 * math.pi)}, VonMises(math.pi * torch.ones(2, dtype=F64), 9 * ONE)
    law = Independent(law, 1) if of_several else law
    x = model({"x": law}, lambda v: v["x"].sum(), constraints=turn).prior(100)["x"]
    assert ((x > 0) & (x < 2 * math.pi)).all()
    assert 60 < (x > math.pi).sum() < 140  # 100 +- 7


def test_numbers_in_increasing_order_are_one_of_all_orders():
    """Numbers of one law rise in one of n! orders; with other locations the mass is not known."""
    rising = {"x": ordered}
    energy = model({"x": Normal(of(1.0, 1.0), ONE)}, lambda v: v["x"], constraints=rising)
    x = of(0.5, 2.0)
    torch.testing.assert_close(energy.log_prior({"x": x}), Normal(ONE, ONE).log_prob(x).sum() + math.log(2))
    energy.check_prior("evidence", "")
    many = model({"x": Normal(torch.zeros(12), 1.0)}, lambda v: v["x"], constraints=rising)  # 12! orders
    assert (many.prior(20)["x"].diff(dim=-1) > 0).all()
    apart = model({"x": Normal(of(1.0, 2.0), ONE)}, lambda v: v["x"], constraints=rising)
    with pytest.raises(RecipeError, match="leaves of the prior of 'x' is not known"):
        apart.check_prior("evidence", "")


@pytest.mark.parametrize(
    "priors, how, message",
    [
        ({"x": StudentT(ONE)}, dict(constraints={"x": constraints.positive}), "leaves of the prior of 'x'.*HalfNormal"),
        (RATE, dict(reference={"rate": Normal(-9 * ONE, ONE)}), "'rate' is outside of its support"),
        (RATE, dict(reference={"rate": Gamma(ONE.expand(2), ONE)}), r"and rate has the shape \(\)"),
        (RATE, dict(reference={"shape": Gamma(ONE, ONE)}), "with constraints, rate, and the reference is of shape"),
    ],
)
def test_a_reference_that_is_none_of_the_variables_is_refused(priors, how, message):
    energy = model(priors, lambda v: sum(v.values()), constraints=how.get("constraints"))
    with pytest.raises(RecipeError, match=message):
        samplers.evidence(HMC, energy, reference=how.get("reference"))


# ---- data by name

PARTS = Categorical(of(0.3, 0.7)), Normal(of(-2.0, 1.0), of(0.5, 1.0))
GAP = {"y": (lambda v: Normal(v["mu"], ONE), of(1.0, math.nan, 3.0)), "twice": lambda v: 2 * v["mu"]}


def test_data_by_name_are_the_likelihood_that_is_written_by_hand_and_what_is_missing_is_left_out():
    by_name = model({"mu": Normal(ZERO, ONE)}, GAP)
    by_hand = model({"mu": Normal(ZERO, ONE)}, lambda v: Normal(v["mu"], ONE).log_prob(of(1.0, 3.0)))
    how = dict(steps=5, step_size=0.1, progress=False)
    torch.testing.assert_close(sample(HMC, by_name, **how)["mu"], sample(HMC, by_hand, **how)["mu"])


class Zeros(Distribution):
    """Counts that are 0 beside those of Poisson's law: a law of a caller's own, which has no method but this."""

    arg_constraints = {}

    def __init__(self, share, rate):
        self.share, self.rate = share, rate
        super().__init__(rate.shape)

    def log_prob(self, y):
        by_rate = (1 - self.share) * Poisson(self.rate).log_prob(y).exp()
        return torch.log(torch.where(y == 0, self.share + by_rate, by_rate))


def test_a_law_of_the_callers_own_needs_its_density_alone_until_data_are_drawn():
    one = model({"mu": Normal(ZERO, ONE)}, {"y": (lambda v: Zeros(0.5, v["mu"].exp().expand(2)), of(0.0, 2.0))})
    prior, share = Normal(ZERO, ONE).log_prob(ZERO), math.exp(-1) / 2
    torch.testing.assert_close(-one({"mu": ZERO}), prior + math.log(0.5 + share) + math.log(share / 2))
    with pytest.raises(RecipeError, match="its law, Zeros, has no method `sample`"):
        one.predictive(one.prior(2))


def series(y, index):
    import pandas  # slow to import, at every collection

    return pandas.Series(y, index)


@pytest.mark.parametrize("law, y", [(Bernoulli, [0.0, 1.0, 1.0]), (Poisson, [3.0, 0.0, 1.0])])
@pytest.mark.parametrize(
    "given",
    [
        list,
        np.array,
        lambda y: np.array(y, dtype=int),
        lambda y: torch.tensor(y).long(),
        lambda y: series(y, index=[2, 0, 1]),  # read by position: by its labels it would be another vector
        lambda y: torch.tensor(y) if max(y) > 1 else torch.tensor(y).bool(),
    ],
)
def test_data_are_those_of_numpy_pandas_and_lists_and_whole_numbers_and_truths_are_numbers(law, y, given):
    rates = of(0.2, 0.3, 0.9)
    one = model({"mu": Beta(ONE, ONE)}, {"y": (lambda v: law(v["mu"] * rates), given(y))})
    theta = {"mu": 0.5 * ONE}
    torch.testing.assert_close(
        -one(theta), law(0.5 * rates).log_prob(of(*y)).sum() + Beta(ONE, ONE).log_prob(0.5 * ONE)
    )


def test_data_that_are_predicted_have_their_law_given_the_draws_and_noise_of_their_own():
    """y ~ N(mu, 1) at draws of mu ~ N(0, 1): y - mu and mu are not correlated, nor are two values of y - mu."""
    one = model({"mu": Normal(ZERO, ONE)}, GAP)
    draws = one.prior(3000, seed=3)
    says = one.predictive(draws, seed=3)
    assert says["y"].shape == (1, 3000, 3) and torch.equal(says["twice"], 2 * draws["mu"])
    noise = torch.cat([says["y"] - draws["mu"][..., None], draws["mu"][..., None]], -1)[0]
    second_moments = noise.T @ noise / len(noise)
    assert (second_moments - torch.eye(4)).abs().max() < 6.7 * (2 / len(noise)) ** 0.5
    assert torch.equal(one.predictive(draws, seed=3)["y"], says["y"])
    assert not torch.equal(one.predictive(draws, seed=4)["y"], says["y"])


def test_a_mixture_is_a_prior_on_the_support_of_its_parts():
    law = MixtureSameFamily(*PARTS)
    draws = sample(HMC, model({"x": law}, lambda v: 0 * v["x"]), seed=8, **SMALL)
    second = float((PARTS[0].probs * (PARTS[1].variance + PARTS[1].mean ** 2)).sum())
    check(draws, {"x": (lambda d: d["x"], float(law.mean)), "x^2": (lambda d: d["x"] ** 2, second)})
    positive = model({"x": MixtureSameFamily(PARTS[0], Gamma(of(2.0, 5.0), of(1.0, 1.0)))}, lambda v: 0 * v["x"])
    assert (sample(HMC, positive, steps=9, step_size=1.0, progress=False)["x"] > 0).all()


@pytest.mark.parametrize(
    "data, message",
    [
        ({"mu": (lambda v: Normal(v["mu"], ONE), ONE)}, "the name of a variable too"),
        ({"y": (lambda v: v["mu"], ONE)}, "data have a law, and the function gives a Tensor"),
        ({"y": (lambda v: Normal(v["mu"], ONE), "three")}, r"its data are a str, .* Write \{'y': \(lambda v"),
        ({"y": (lambda v: Normal(v["mu"], ONE), [[1.0], [2.0, 3.0]])}, "its data are a list, of which torch makes no"),
        ({"y": (lambda v: Normal(v["mu"], ONE), of(1.0, math.inf))}, "inf is outside of .*, Normal"),
        (
            {"y": (lambda v: MultivariateNormal(v["mu"].expand(2), torch.eye(2, dtype=F64)), of(1.0, math.inf))},
            "inf. is outside of .*, MultivariateNormal",
        ),
        ({"y": (lambda v: Normal(torch.ones(2, 3) @ v["mu"], ONE), ONE)}, r"fails: RuntimeError: .*mu \(\) of .*64"),
        ({"y": (lambda v: Poisson(v["mu"].exp()), of(2.0, 1.5))}, "1.5 is outside of the support of its law, Poisson"),
        ({"y": (lambda v: Categorical(torch.ones(2)), torch.tensor([1, 2]))}, "2 is outside of .*, Categorical"),
        ({"twice": lambda v: 2 * v["mu"]}, "no data are given with a law"),
        ({"y": (lambda v: Normal(v["mu"], torch.ones(2)), torch.ones(3))}, r"shape \(2,\), its data \(3,\)"),
        (GAP | {"half": lambda v: 0.5}, "the function gives a float"),
        ({"y": (lambda v: Normal(v["nu"], ONE), ONE)}, "no variable 'nu'"),
        (
            {"y": (lambda v: MultivariateNormal(v["mu"].expand(2), torch.eye(2, dtype=F64)), of(1.0, math.nan))},
            "missing, and its law is of .* Give what is missing a name",
        ),
    ],
)
def test_data_by_name_that_have_no_law_are_refused(data, message):
    with pytest.raises(RecipeError, match=message):
        model({"mu": Normal(ZERO, ONE)}, data)(dict(mu=ZERO))


def test_a_likelihood_that_fails_is_refused_with_the_shapes_that_it_is_given():
    def of_four(v):
        return Normal(torch.ones(40, 4, dtype=F64) @ v["w"], ONE).log_prob(torch.zeros(40, dtype=F64))

    with pytest.raises(RecipeError, match=r"fails at a draw of the priors: RuntimeError: .* w \(3,\) of torch.f"):
        model({"w": Normal(torch.zeros(3, dtype=F64), ONE)}, of_four)
    model({"w": Normal(-9 * ONE, ONE)}, lambda v: torch.linalg.cholesky(v["w"] * torch.eye(2, dtype=F64)).sum())


COLUMN = torch.zeros(7, 1, dtype=F64)
ROW = COLUMN.T


@pytest.mark.parametrize(
    ("log_likelihood", "warns"),
    [
        (lambda v: Normal(v["mu"].expand(7), ONE).log_prob(COLUMN), True),
        (lambda v: Bernoulli(logits=v["mu"].expand(7)).log_prob(COLUMN).sum() + v["mu"], True),
        (lambda v: torch.sum(Poisson(v["mu"].exp().expand(7, 1)).log_prob(COLUMN[:, 0])), True),
        (lambda v: Normal(v["mu"].expand(7), ONE).log_prob(COLUMN[:, 0]), False),
        (lambda v: Normal(v["mu"] * (COLUMN + ROW), ONE).log_prob(torch.zeros(7, 7, dtype=F64)), False),
        (lambda v: Normal(v["mu"].expand(7), ONE).log_prob(COLUMN).logsumexp(1), False),
        (lambda v: v["mu"] * ((COLUMN[:, 0] - COLUMN) ** 2).sum(), False),
        (lambda v: v["mu"] * ((COLUMN[:, 0].detach() - COLUMN) ** 2).sum(), False),
        (lambda v: torch.linalg.cholesky((-((COLUMN - ROW) ** 2)).exp() + torch.eye(7)) @ v["mu"].expand(7), False),
    ],
)
def test_a_sum_over_pairs_of_data_and_laws_is_warned_of(log_likelihood, warns):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model({"mu": Normal(ZERO, ONE)}, log_likelihood)
    assert ["sum over 7 x 7 terms" in str(one.message) for one in heard] == [True] * warns


def test_predictions_ask_for_laws_and_for_draws_of_the_model():
    one = model({"mu": Normal(ZERO, ONE)}, GAP)
    with pytest.raises(RecipeError, match="no draws of 'mu'"):
        one.predictive({"nu": torch.zeros(1, 2)})
    with pytest.raises(RecipeError, match=r"draws of 'mu' have the shape \(4,\)"):
        one.predictive({"mu": torch.zeros(1, 2, 4)})
    with pytest.raises(RecipeError, match="the likelihood is a function of the variables"):
        SCHOOLS.predictive(SCHOOLS.prior(2))
    with pytest.raises(RecipeError, match="the run has others. Leave data out"):
        sample(SGLD, one, data=of(1, 2), batch_size=2, steps=1, step_size=0.1, progress=False)
    with pytest.raises(RecipeError, match="prior of 'mu' is not within its constraint. Take a prior with more"):
        model({"mu": Gumbel(-9 * ONE, ONE)}, GAP, constraints={"mu": constraints.positive}).prior(3)


def test_cutpoints_and_what_is_cut_off_have_a_prior_predictive():
    priors = {"cut": Normal(torch.zeros(4), 1.0), "x": Normal(torch.zeros(9), 1.0)}
    cuts = {"cut": ordered, "x": constraints.positive}
    one = model(priors, {"y": (lambda v: Normal(v["x"].sum(), 1.0), ONE)}, constraints=cuts)
    draws = one.prior(50)
    assert (draws["cut"].diff(dim=-1) > 0).all() and (draws["x"] > 0).all()
    assert one.predictive(draws)["y"].shape == (1, 50)


# ---- refusals


class Flat(Normal):
    """A density of some user that has forgotten its constant, or all of its law."""

    def log_prob(self, value):
        return 0 * value


FLAT = Normal(torch.zeros(3, dtype=F64), ONE)
REFUSED = {
    "no priors": (dict(priors={}), "dict by the names"),
    "a number": (dict(priors={"mu": 3.0}), "a distribution of torch.distributions"),
    "discrete values": (dict(priors={"mu": Poisson(ONE)}), "discrete"),
    "coins": (dict(priors={"mu": Bernoulli(0.5 * ONE)}), "discrete"),
    "no map": (
        dict(priors={"mu": Normal(torch.zeros(2, 2), 1.0)}, constraints={"mu": constraints.symmetric}),
        "Say where it is, constraints={'mu'",
    ),
    "a later variable": (
        dict(priors={"mu": lambda v: Normal(v["sd"], 1.0), "sd": HalfNormal(ONE)}),
        "no variable 'sd'",
    ),
    "a prior that fails": (dict(priors={"mu": lambda v: Normal()}), "its prior fails: TypeError"),
    "a constraint alone": (dict(constraints={"nu": constraints.positive}), "'nu' has a constraint and no prior"),
    "no constraint": (dict(constraints={"mu": "positive"}), "torch.distributions.constraints"),
    "another support": (
        dict(priors={"mu": Beta(ONE, ONE)}, constraints={"mu": constraints.positive}),
        "outside of the support",
    ),
    "a wider support": (
        dict(priors={"mu": HalfNormal(ONE)}, constraints={"mu": constraints.real}),
        "outside of the support",
    ),
    "another shape": (dict(constraints={"mu": constraints.simplex}), "is of 1 axes"),
    "a vector that rises": (dict(constraints={"mu": ordered}), "is of 1 axes"),
    "no number inside": (dict(constraints={"mu": constraints.interval(1.0, 1.0)}), "no number between its ends"),
    "ends of too many": (
        dict(priors={"mu": FLAT}, constraints={"mu": constraints.interval(torch.zeros(2), torch.ones(2))}),
        r"an end of its constraint has the shape \(2,\), and the variable \(3,\)",
    ),
    "an infinite end": (
        dict(priors={"mu": FLAT}, constraints={"mu": constraints.interval(0.0, of(1.0, 1.0, math.inf))}),
        "has an infinite end. Write constraints.greater_than",
    ),
    "a cut that varies": (
        dict(
            priors={"mu": Normal(ZERO, ONE), "x": lambda v: StudentT(3 * ONE, v["mu"])},
            constraints={"x": constraints.positive},
        ),
        "not a constant. Take a law of this support, or a Normal, Cauchy or Laplace law",
    ),
    "no upper end": (
        dict(priors={"mu": HalfNormal(ONE), "x": lambda v: Endless(v["mu"])}),
        r"its support, .*, has no upper end and depends on other variables.*loc \+ scale \* z",
    ),
    "an angle": (dict(priors={"mu": VonMises(ZERO, ONE)}), "integral of its prior .* is inf, not 1"),
    "a narrow angle": (dict(priors={"mu": lambda v: VonMises(ZERO, 1e4 * ONE)}), "is inf, not 1"),
    "two turns of an angle": (
        dict(priors={"mu": VonMises(ZERO, ONE)}, constraints={"mu": constraints.interval(-math.pi, 3 * math.pi)}),
        "is 2, not 1",
    ),
    "no density": (dict(priors={"mu": Flat(torch.zeros(2, dtype=F64), ONE)}), "integral of its prior"),
    "a likelihood of another variable": (dict(log_likelihood=lambda v: v["nu"]), "no variable 'nu'"),
    "no likelihood": (dict(log_likelihood=3.0), "log likelihood is a function"),
    "no number of data": (dict(num_data=0), "num_data"),
}


PROPER = [
    *(
        Normal(torch.tensor([0.0, 1e6]), torch.tensor([1e-4, 1.0])),
        StudentT(0.3 * ONE),
        HalfCauchy(ONE),
        Gamma(0.1, 1.0),
    ),
    *(InverseGamma(0.3 * ONE, ONE), Beta(0.1, 0.1), LogNormal(0.0, 3.0), Pareto(ONE, 0.3), Weibull(1.0, 0.3)),
]


class Endless(HalfNormal):
    """A law whose support torch calls an interval up to infinity, as that of GeneralizedPareto."""

    support = constraints.independent(constraints.interval(ZERO, torch.tensor(math.inf)), 0)


def test_an_interval_without_an_upper_end_is_that_of_greater_numbers():
    z = torch.linspace(-3, 3, 7, dtype=F64)[:, None]
    one, other = (model({"x": law(ONE)}, lambda v: v["x"]).coordinates.with_volume(z) for law in (Endless, HalfNormal))
    assert torch.equal(torch.stack([one[0][:, 0], one[1]]), torch.stack([other[0][:, 0], other[1]]))


@pytest.mark.parametrize("prior", PROPER, ids=lambda prior: type(prior).__name__)
def test_a_proper_prior_of_any_tail_is_taken(prior):
    assert model({"x": prior}, lambda v: v["x"].sum()).shapes == {"x": tuple(prior.batch_shape)}


def test_an_angle_is_sampled_between_its_ends():
    angle = model(
        {"phi": VonMises(ZERO, 4 * ONE)},
        lambda v: torch.zeros((), dtype=F64),
        constraints={"phi": constraints.interval(-math.pi, math.pi)},
    )
    draws = sample(HMC, angle, **SMALL)["phi"]
    mean = 0.8635  # I_1(4)/I_0(4) of cos phi
    check({"phi": draws}, {"cos": (lambda d: d["phi"].cos(), mean)})


def test_checks_of_torch_are_on_again_after_threads_that_end_in_any_order(monkeypatch):
    monkeypatch.setattr(Distribution, "_validate_args", True)  # torch.compile leaves them off
    inside, first_has_left = threading.Barrier(2, timeout=10), threading.Event()

    def first():
        with unchecked:
            inside.wait()
        first_has_left.set()

    def second():
        with unchecked:
            inside.wait()
            first_has_left.wait(10)
            assert not Distribution._validate_args

    with ThreadPoolExecutor(2) as threads:
        for thread in [threads.submit(first), threads.submit(second)]:
            thread.result()
    assert Distribution._validate_args


def test_starts_are_the_same_in_threads():
    energy = model({"mu": Normal(0.0, 1.0), "tau": HalfNormal(1.0)}, lambda v: v["mu"])
    alone = energy.starts(40, seed=1)
    with ThreadPoolExecutor(8) as threads:
        assert all(torch.equal(each, alone) for each in threads.map(lambda _: energy.starts(40, seed=1), range(8)))


def test_a_model_prints_its_variables():
    energy = model({"mu": Normal(0.0, 1.0), "eta": Normal(torch.zeros(8), 1.0)}, lambda v: v["mu"])
    assert repr(energy) == "Model(mu: (), eta: (8,))"


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_is_none_is_refused(case):
    how, words = REFUSED[case]
    how = dict(priors={"mu": Normal(ZERO, ONE)}, log_likelihood=lambda v: v["mu"]) | how
    with pytest.raises(RecipeError, match=words):
        model(how.pop("priors"), how.pop("log_likelihood"), **how)


BAD_RUNS = {
    "a tensor": (dict(init=torch.zeros(3)), "dict by variable"),
    "another variable": (dict(init={"nu": 0.0}), "no variable 'nu'"),
    "a likelihood that is no tensor": (
        dict(energy=model({"mu": FLAT}, lambda v: 1.0)),
        "a float, not a tensor",
    ),
    "a variable less": (dict(init={"mu": 0.0, "tau": 1.0}), "no start is given for the variable 'eta'"),
    "another shape": (
        dict(init={"mu": 0.0, "tau": 1.0, "eta": torch.zeros(7)}),
        r"shape \(7,\), and the variable \(8,\)",
    ),
    "starts of a tuning of fewer chains": (
        dict(init={"mu": torch.zeros(3), "tau": 1.0, "eta": torch.zeros(8)}, chains=64),
        r"starts of 3 chains: take as many, or those of tune\(\.\.\., chains=64\)",
    ),
    "out of the support": (
        dict(init={"mu": ZERO, "tau": -ONE, "eta": torch.zeros(8, dtype=F64)}),
        "start of the variable 'tau' is outside",
    ),
    "several temperatures": (dict(temperature=[1, 2]), "one temperature"),
    "a temperature that changes": (dict(temperature=lambda k: 1.0 + k), "one temperature"),
    "a temperature that seldom changes": (dict(temperature=lambda k: 1.0 + (k == 1), steps=10_001), "one temperature"),
    "data whose number is not known": (dict(data=torch.zeros(5, dtype=F64)), "num_data"),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_a_run_of_a_model_that_does_not_fit_is_refused(case):
    how, words = BAD_RUNS[case]
    energy = how.get("energy", SCHOOLS)
    if "data" in how:
        energy = model({"mu": Normal(ZERO, ONE)}, lambda v, batch: Normal(v["mu"], ONE).log_prob(batch))
    rest = {name: x for name, x in how.items() if name != "energy"}
    with pytest.raises(RecipeError, match=words):
        sample(samplers.SGLD, energy, **dict(steps=2, step_size=0.1, progress=False) | rest)
