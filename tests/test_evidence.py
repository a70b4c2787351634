"""The evidence is within its errors of what is known, and where it is not, it says so."""

import math
import sys
from pathlib import Path

import pytest
import torch
from covering import covering, slow
from error_budget import CLAIMS, Z
from sympy import symbols
from torch.distributions import Independent, MultivariateNormal, Normal, StudentT, Uniform

import samplers
from recipe import Energy, Recipe, RecipeError, data_total, datum, potential, scalar, total, vector
from samplers import PSGLD, SGLD, SGNHT, RelativisticSGHMC, UnderdampedLangevin
from samplers.annealing import bridges
from samplers.annealing.evidence import estimated
from samplers.schedules import Jittered
from samplers.target.targets import TARGETS

x, y, a, b = *symbols("x y", real=True), scalar("a"), scalar("b")
ROUND = Normal(torch.zeros(2, dtype=torch.float64), 1.5)
PLANE = Recipe(name="plane", state=(a, b), target=(a, b), H=potential(a, b), D={a: 1, b: 2})
GAUSSIAN = math.log(2 * math.pi * math.sqrt(3))  # of TARGETS["gaussian"]


def score(result, exact, known=0.0):
    """How far an evidence is off, in standard errors."""
    assert result.believed, result.doubts
    return (result.log_evidence - exact) / math.hypot(result.error, known)


def regression(rows, sd):
    """Inputs and outputs of a linear model with a prior N(0, 1) and noise of this size; U; the exact evidence."""
    generator = torch.Generator().manual_seed(0)
    X, w, noise = (torch.randn(n, generator=generator, dtype=torch.float64) for n in ((rows, 3), (3,), (rows,)))
    z = X @ w + sd * noise

    def U(w, batch):
        X, z = batch
        constants = len(z) * math.log(sd) + (len(z) + len(w)) * math.log(2 * math.pi) / 2
        return ((z - X @ w) ** 2).sum() / (2 * sd**2) + (w**2).sum() / 2 + constants

    covariance = sd**2 * torch.eye(rows, dtype=torch.float64) + X @ X.T
    law = MultivariateNormal(torch.zeros(rows, dtype=torch.float64), covariance)
    return (X, z), U, float(law.log_prob(z))


@pytest.mark.parametrize("recipe", [slow(UnderdampedLangevin), SGLD, slow(SGNHT)], ids=lambda r: r.name)
def test_a_conjugate_regression_has_its_evidence(recipe):
    data, U, exact = regression(20, 1.0)
    result = samplers.evidence(recipe, U, data=data, reference=Normal(torch.zeros(3, dtype=torch.float64), 1.0))
    assert CLAIMS["evidence"].failures({"regression": score(result, exact)}) == {}
    assert result.error < 0.1 and abs(result.integral - exact) < 0.3


@pytest.mark.slow
def test_a_logistic_regression_has_the_evidence_of_a_long_bridge(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    kind = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        demo = pytest.importorskip("demo")
        model = demo.breast_cancer()
        near = demo.gaussian_approximation(model)
        constant = 31 * math.log(demo.PRIOR_SD * math.sqrt(2 * math.pi))

        def U(theta, batch):
            X, y = batch
            logits = X @ theta
            likelihood = torch.nn.functional.softplus(logits).sum() - logits @ y
            return likelihood + theta.square().sum() / (2 * demo.PRIOR_SD**2) + constant

        wide = MultivariateNormal(near.centre, scale_tril=1.2 * near.scale)
        result = samplers.evidence(UnderdampedLangevin, U, data=(model.X, model.y), reference=wide, moves=3)
    finally:
        torch.set_default_dtype(kind)
    # 96,000 draws of the demo's HMC in 64 chains, and a Student proposal of 8 degrees of freedom, give -71.468 +- 0.005
    assert CLAIMS["evidence"].failures({"bridge": score(result, -71.468, 0.005)}) == {} and result.error < 0.05
    sys.modules.pop("demo", None)


QUADRATIC = Energy((x, y), U=x**2 / 4 + y**2 / 12 - x * y / 20)
REFERENCES = {
    "normal": ROUND,
    "a covariance": MultivariateNormal(torch.zeros(2), torch.tensor([[2.0, 0.5], [0.5, 5.0]])),
    "independent": Independent(Normal(torch.zeros(2), torch.tensor([1.5, 2.5])), 1),
    "student": StudentT(torch.full((2,), 5.0), 0.0, 1.5),
    "quadratic energy": QUADRATIC,
}


@pytest.mark.parametrize("name", covering(REFERENCES, ["student"]))
def test_every_reference_leads_to_one_evidence(name):
    result = samplers.evidence(
        UnderdampedLangevin, TARGETS["gaussian"], reference=REFERENCES[name], chains=128, moves=2
    )
    assert CLAIMS["evidence"].failures({name: score(result, GAUSSIAN)}) == {}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_reference_that_is_the_law_itself_has_the_evidence_of_its_constant(size):
    unit = Normal(torch.zeros(size, dtype=torch.float64), 1.0)
    result = samplers.evidence("underdamped-langevin", lambda x: (x**2).sum() / 2, reference=unit, gamma=1.0)
    assert result.log_evidence == pytest.approx(size * math.log(2 * math.pi) / 2, abs=1e-9)


def test_energies_of_named_tensors_and_of_explicit_coordinates():
    run = dict(chains=128, moves=2)

    def named(w):
        return (w["a"] ** 2).sum() / 2 + ((w["b"] - 1) ** 2).sum()

    parts = {"a": Normal(torch.zeros(2, 2), 2.0), "b": MultivariateNormal(torch.zeros(2), torch.eye(2))}
    by_name = samplers.evidence(UnderdampedLangevin, named, reference=parts, **run)
    numbers = {"a": Normal(torch.tensor(0.0), 1.5), "b": Normal(torch.tensor(0.0), 2.5)}
    explicit = samplers.evidence(PLANE, TARGETS["gaussian"], reference=numbers, **run)
    scores = {
        "named": score(by_name, 3 * math.log(2 * math.pi) - math.log(2)),
        "explicit": score(explicit, GAUSSIAN),
    }
    assert CLAIMS["evidence"].failures(scores) == {}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # four bridges are too few to be believed
def test_a_symbolic_energy_on_data_has_the_evidence_of_the_function():
    data, U, _ = regression(10, 1.0)
    w = vector("w")
    row, out = datum("row", per=w), datum("out")
    constant = 13 * math.log(2 * math.pi) / 2
    on_data = Energy(w, U=data_total((out - total(row * w)) ** 2) / 2 + total(w**2) / 2 + constant, data=(row, out))
    prior = Normal(torch.zeros(3, dtype=torch.float64), 1.0)
    run = dict(data=data, reference=prior, bridges=4, chains=64, moves=1)
    symbolic, function = (samplers.evidence(UnderdampedLangevin, energy, **run) for energy in (on_data, U))
    assert symbolic.log_evidence == pytest.approx(function.log_evidence, abs=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_evidence_is_a_function_of_the_seed_and_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    run = dict(reference=REFERENCES["student"], chains=64, moves=1, bridges=10)
    one, again, other = (samplers.evidence(UnderdampedLangevin, TARGETS["gaussian"], seed=s, **run) for s in (1, 1, 2))
    assert one == again and one.log_evidence != other.log_evidence
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_pilot_begins_with_a_step_size_of_tune_as_with_its_mean():
    run = dict(reference=REFERENCES["student"], chains=64, moves=1, bridges=4)
    sizes = 0.1, Jittered(0.1)
    one, other = (samplers.evidence(UnderdampedLangevin, TARGETS["gaussian"], step_size=h, **run) for h in sizes)
    assert one == other


def test_the_integral_over_bridges_and_its_error_are_those_of_the_weights_for_chains_that_stand_still():
    """Both estimates are log mean exp(-(U - R)) then: what is left is the quadrature over a dozen bridges."""
    x = 2 * torch.special.ndtri((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000)
    still = (x**4 / 4 - x**2 / 8 - math.log(2 * math.sqrt(2 * math.pi))).expand(12, -1)
    plan = bridges.AnnealingPath(tuple((k / 11) ** 2 for k in range(12)), (1.0,) * 12, 1.0)
    result = estimated(still, plan, 1.0)
    weights = (-still[0]).softmax(0)
    exact = float((weights - 1 / 4000).square().sum().sqrt())
    assert abs(result.integral - result.log_evidence) < 0.2 * exact
    assert exact < result.integral_error < 1.1 * exact


# ---- mistakes


def few():
    """The score of six bridges between laws that are apart, whose weights matter."""
    wide = Normal(torch.zeros(2, dtype=torch.float64), 3.0)
    result = samplers.evidence(UnderdampedLangevin, TARGETS["gaussian"], reference=wide, bridges=6, chains=4000)
    return (result.log_evidence - GAUSSIAN) / math.sqrt(1 / result.ess - 1 / result.chains)


def test_a_few_bridges_are_enough_for_many_chains():
    assert CLAIMS["evidence"].failures({"few": few()}) == {}


def later(annealing, schedule):
    """Weighs the gap after the move to a bridge."""
    gaps = list(bridges.annealed(annealing, schedule))
    return [*gaps[1:], gaps[-1]]


@pytest.mark.filterwarnings("ignore:.*do not keep up")
def test_wrong_weights_are_seen(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("samplers.annealing.evidence.annealed", later)
        assert abs(few()) > Z
    with monkeypatch.context() as patch:
        patch.setattr("samplers.annealing.references.Reference.log_volume", 0.0)
        assert abs(few()) > Z
    with monkeypatch.context() as patch:
        patch.setattr(
            bridges.Place, "value", lambda self, b: 0 * self.U.value
        )  # every proposal is accepted by its momenta
        patch.setattr(bridges, "ACCEPTED", (0.0, 1.0))
        assert abs(few()) > Z


# ---- it does not believe itself


def test_few_weights_and_estimates_that_differ_are_not_believed():
    narrow = Normal(torch.full((2,), 5.0, dtype=torch.float64), 0.1)
    with pytest.warns(RuntimeWarning, match="weights count"):
        result = samplers.evidence(UnderdampedLangevin, TARGETS["gaussian"], reference=narrow, bridges=2, moves=1)
    assert not result.believed and result.error == math.inf and "is not to be believed" in str(result)


def test_a_large_energy_in_float32_is_not_believed():
    law = Normal(torch.zeros(2), 2.0)
    with pytest.warns(RuntimeWarning, match=r"U is 1e\+07, and rounded to 1 in float32"):
        result = samplers.evidence(samplers.MALA, lambda x: (x**2).sum() / 2 + 1e7, reference=law, chains=64)
    assert result.error == math.inf


def test_weights_without_a_variance_are_not_believed():
    plan = bridges.AnnealingPath((0.0, 1.0), (1.0, 1.0), 1.0)
    u = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    gaps = torch.stack([0.9 * u.log(), 0 * u])  # weights u^-.9
    assert any("Pareto index" in doubt for doubt in estimated(gaps, plan, 1.0).doubts)
    assert not any("Pareto index" in doubt for doubt in estimated(gaps / 9, plan, 1.0).doubts)


@pytest.mark.parametrize(
    "reference, message",
    [
        (lambda z: (z**2).sum(), "is a function.*not known to be normalisable"),
        (None, "is a NoneType.*Pass torch.distributions.Normal"),
        (Normal(torch.zeros(2), math.inf), "not normalisable: a mean or a variance is not finite"),
        (Energy((x, y), U=x * y), "not normalisable.*not positive definite"),
        (Energy((x, y), U=x**2), "not normalisable.*not positive definite"),
        (Energy((x, y), U=x**4 + y**2), "not quadratic"),
        (Energy(vector("w"), U=total(vector("w") ** 2)), "any number of sites"),
        (Uniform(torch.zeros(2), 1.0), "theta is real.*positive wherever the target may be"),
        (Normal(torch.zeros(3), 1.0), "it has 3 coordinates, and the energy 2"),
        ({}, "a law of nothing, and the target is theta"),
        ({"theta": 3}, "the law of theta is a int"),
    ],
)
def test_a_reference_that_is_none_is_refused(reference, message):
    with pytest.raises(RecipeError, match=message):
        samplers.evidence(UnderdampedLangevin, TARGETS["gaussian"], reference=reference)


@pytest.mark.parametrize(
    "recipe, energy, settings, message",
    [
        (PLANE, TARGETS["gaussian"], {}, "the target is a, b"),
        (PLANE, TARGETS["gaussian"], {"reference": {"a": ROUND}}, "a law of a, and the target is a, b"),
        (UnderdampedLangevin, lambda z: (z - torch.zeros(3)).square().sum(), {}, r"shape \(2,\): .* the reference"),
        (UnderdampedLangevin, lambda z: z.missing.sum(), {}, "no attribute 'missing'"),
        (UnderdampedLangevin, lambda z: z[0] ** 2, {}, "no finite integral: U grows too slowly along coordinate 1"),
        (UnderdampedLangevin, lambda z: -(z**2).sum(), {}, "no finite integral"),
        (UnderdampedLangevin, lambda z: (z**2 + 0 * z.log()).sum(), {}, "not a number at .* draws of the reference"),
        (PSGLD, TARGETS["gaussian"], {}, "steps adapt V"),
        (RelativisticSGHMC, TARGETS["gaussian"], {}, "no path leads back"),
        (UnderdampedLangevin, TARGETS["gaussian"], {"gama": 1.0}, "Did you mean 'gamma'"),
        (UnderdampedLangevin, TARGETS["gaussian"], {"temperature": 2.0}, "temperature 1. Leave temperature out"),
        (UnderdampedLangevin, TARGETS["gaussian"], {"chains": 3}, "chains is an integer >= 64"),
        (UnderdampedLangevin, TARGETS["gaussian"], {"bridges": 0}, "bridges is an integer >= 1"),
        (UnderdampedLangevin, TARGETS["gaussian"], {"moves": 0.5}, "moves is an integer >= 1"),
        (UnderdampedLangevin, TARGETS["gaussian"], {"step_size": 0}, "step_size"),
        (UnderdampedLangevin, None, {}, "no energy is given"),
    ],
)
def test_what_has_no_evidence_is_refused(recipe, energy, settings, message):
    with pytest.raises(RecipeError, match=message):
        samplers.evidence(recipe, energy, **{"reference": Normal(torch.zeros(2), 1.0)} | settings)


def test_progress_is_a_bar_of_bridges_or_a_function_of_scalars(capsys, monkeypatch):
    monkeypatch.setattr("samplers.results.bar.EVERY", 0.0)
    settings = dict(reference=ROUND, chains=64, bridges=60)
    seen = []

    def flat(z):
        return (z**2).sum() / 8

    told = samplers.evidence("mala", flat, progress=seen.append, **settings)
    assert capsys.readouterr().err == ""
    bridges = [scalars["bridge"] for scalars in seen]
    pilot = bridges[: bridges.index(1.0) + 1]
    assert pilot == sorted(pilot) and pilot[0] == 0.0 and bridges[len(pilot) : -1] == sorted(bridges[len(pilot) : -1])
    assert [scalars["number"] for scalars in seen[:-1]] == list(range(1, len(pilot) + told.bridges + 2))
    assert seen[-1] == seen[-2] and all(0 <= scalars["acceptance"] <= 1 for scalars in seen)
    assert samplers.evidence("mala", flat, **settings) == told
    shown = capsys.readouterr().err
    assert "mala, evidence: 100%" in shown and f"{len(pilot) + 61}/{len(pilot) + 61}" in shown and "bridge 1" in shown
    samplers.evidence("mala", flat, progress=False, **settings)
    assert capsys.readouterr().err == ""
    with pytest.raises(RecipeError, match="progress is True, False, or a function of a dict of scalars, got 'yes'"):
        samplers.evidence("mala", flat, progress="yes", **settings)
