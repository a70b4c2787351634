"""Hard geometry: divergent proposals and their places, E-BFMI, chains that stand still; variables centred to a degree.

Mutants that these tests kill: a bound of another size or without T, places off by a draw, U of another chain, the
variance of U for its sd, a stay at the end alone, the volume of a centred map left out, its degree turned round.
"""

import math

import pytest
import torch
from covering import slow
from torch.distributions import HalfNormal, LKJCholesky, LogNormal, MultivariateNormal, Normal, constraints

import samplers
from recipe import Energy, total, vector
from recipe.errors import RecipeError
from samplers import Draws, Metropolis
from samplers.results.geometry import joined_geometry, longest_stay
from samplers.target import tape

F64 = torch.float64
ONE = torch.ones((), dtype=F64)
EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=F64)
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=F64)


def schools(**settings):
    priors = {
        "mu": Normal(0 * ONE, 5 * ONE),
        "tau": HalfNormal(5 * ONE),
        "effect": lambda v: Normal(v["mu"].expand(8), v["tau"]),
    }
    return samplers.model(priors, lambda v: Normal(v["effect"], ERRORS).log_prob(EFFECTS), **settings)


def ran(energy, *, recipe="hmc", repeat=8, **settings):
    settings = dict(chains=16, steps=80, warmup=20, step_size=0.3, seed=1, progress=False) | settings
    return samplers.sample(recipe, energy, metropolis=Metropolis(repeat), **settings)


# ---- the record of proposals


def wall(x):
    return (x**2).sum() / 2 + 5000 * (x.sum() > 1)


@pytest.mark.parametrize("T", [slow(1.0), 4.0])
def test_divergent_proposals_are_those_of_a_work_above_1000_T_where_they_began(T):
    draws = ran(wall, init=torch.zeros(2), keep="work", temperature=T, thin=2, warmup=7)
    far = draws["work"] > 1000 * T
    record = draws.info["divergences"]
    assert 0 < int(far.sum()) == sum(record["of_chains"]) and record["of_chains"] == far.sum(1).tolist()
    assert record["places"] == far.T.nonzero().flip(1)[:256].tolist()  # the first, in the order of draws
    assert record["proposals"] == far.numel()
    assert bool((draws["theta"].sum(2) <= 1).all())  # a divergent proposal is rejected
    between = ran(lambda x: wall(x) / 2, init=torch.zeros(2), keep="work", temperature=4.0)  # 2500 is above 1000 alone
    assert float(between["work"].max()) > 2000 and not sum(between.info["divergences"]["of_chains"])


def test_a_work_below_the_bound_is_no_divergence():
    draws = ran(lambda x: (x**2).sum() / 2 + 900 * (x.sum() > 1), init=torch.zeros(2), keep="work")
    assert float(draws["work"].max()) > 800 and not sum(draws.info["divergences"]["of_chains"])


def test_e_bfmi_is_the_fraction_of_momenta_in_the_spread_of_H():
    def quartic(x):
        return (x**4).sum() / 4

    draws = ran(quartic, init=torch.zeros(3, dtype=F64), temperature=2.0)
    U = (draws["theta"] ** 4).sum(2) / 4
    assert draws.info["e_bfmi"] == pytest.approx((3 * 4 / (3 * 4 / 2 + U.var(1))).tolist(), rel=1e-9)


def test_e_bfmi_is_that_of_energies_of_one_step_and_the_next():
    # Betancourt's sum (H_k - H_{k-1})^2 / sum (H_k - mean)^2 over trajectories with fresh momenta; the means over
    # chains differ by chance alone, by about sqrt(2/4000) and its correlation in Var[H], and by 1/250 of chains that
    # end: 0.2 is more than five standard errors
    def bowl(x):
        return (x**2).sum() / 2

    draws = ran(bowl, init=torch.zeros(2, dtype=F64), steps=250, keep="p")
    H = (draws["theta"].square().sum(2) + draws["p"].square().sum(2)) / 2
    betancourt = float((H.diff().square().sum(1) / (H - H.mean(1, keepdim=True)).square().sum(1)).mean())
    e_bfmi = sum(draws.info["e_bfmi"]) / 16
    assert e_bfmi == pytest.approx(betancourt, abs=0.2) and 0.8 < betancourt < 1.2


def test_a_run_that_goes_on_counts_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(tape, "CALLS", math.inf)  # so that each gradient is a call
    calls = []

    def breaking(x):
        calls.append(0)
        if len(calls) == 250:
            raise InterruptedError
        return wall(x)

    settings = dict(init=torch.zeros(2), steps=40, chains=2)
    whole = ran(wall, **settings)
    folder = samplers.checkpoints.Folder(tmp_path, every=0)
    with pytest.raises(InterruptedError):
        ran(breaking, checkpoint=folder, **settings)
    again = ran(breaking, checkpoint=folder, **settings)
    assert again.info["divergences"] == whole.info["divergences"] and sum(whole.info["divergences"]["of_chains"])
    assert again.info["e_bfmi"] == pytest.approx(whole.info["e_bfmi"])


def test_kernels_of_many_steps_count_divergences_too_and_leave_out_what_they_do_not_carry():
    x = vector("theta")
    quartic = Energy(x, U=total(x**4))
    draws = ran(quartic, init=torch.full((2,), 0.1), backend="cpp", step_size=0.8, repeat=3, keep="work", steps=900)
    far = (draws["work"] > 1000).sum(1).tolist()
    assert draws.info["backend"] == "cpp" and sum(far) and draws.info["divergences"]["of_chains"] == far
    assert "e_bfmi" not in draws.info


def test_a_forged_record_is_refused(tmp_path):
    for forged in (
        {"divergences": {"proposals": 4, "of_chains": [1], "places": []}},
        {"divergences": {"proposals": 4, "of_chains": [1, 0], "places": [[0, 9]]}},
        {"e_bfmi": [1.0]},
        {"edge": {"of_chains": [1], "places": [], "height": 0.0}},
        {"edge": {"of_chains": [1, 0], "places": [[0, 9]], "height": 0.0}},
        {"centred": {"z": 2.0}},
    ):
        Draws({"w": torch.randn(2, 4)}, info=forged).save(tmp_path / "draws")
        with pytest.raises(RecipeError, match="draws"):
            Draws.load(tmp_path / "draws")


# ---- edges, past which the density is 0


def within(condition, U=lambda x: 0 * x.sum()):
    return lambda x: torch.where(condition(x), U(x), math.inf)


CUT = {
    "flat on a triangle": (within(lambda x: (x > 0).all() & (x.sum() < 1)), 0.3, 0.05),
    "half of a normal law": (within(lambda x: (x > 0).all(), lambda x: (x**2).sum() / 2), 1.0, 0.6),
    "exponential, nan outside": (lambda x: x.sum() + 0 * x.log().sum(), 1.0, 0.5),
}


@pytest.mark.parametrize("energy, start, step_size", CUT.values(), ids=CUT)
def test_proposals_past_an_edge_are_rejected_and_no_fault_of_the_run(energy, start, step_size):
    settings = dict(recipe="mala", repeat=1, init=torch.full((2,), start), step_size=step_size, chains=32, steps=800)
    draws = ran(energy, keep="work", thin=4, **settings)
    edge, report = draws.info["edge"], draws.report()
    endless = draws["work"] > 1e29
    assert edge["of_chains"] == endless.sum(1).tolist() and sum(edge["of_chains"]) > 500 and edge["height"] < 5
    assert edge["places"] == endless.T.nonzero().flip(1)[:256].tolist()
    assert {f.question: f.value for f in report}["divergent proposals"] == 0
    assert [f.title for f in report.wrong] == []
    reasons = " ".join(report.unasked)
    assert f"divergence of {int(endless.sum())} proposals: they went past an edge" in reasons
    assert "configurational temperature: it is not T, as the density does not vanish at its edge" in reasons


def test_a_density_that_vanishes_at_its_edge_has_its_configurational_temperature():
    gamma = within(lambda x: (x > 0).all(), lambda x: (x - 3 * x.log()).sum())
    draws = ran(gamma, recipe="mala", repeat=1, init=torch.full((2,), 3.0), step_size=0.5, steps=1600, chains=32)
    assert 20 < draws.info["edge"]["height"] < 1000 and sum(draws.info["edge"]["of_chains"]) > 50
    assert {f.question: f.ok for f in draws.report()}["configurational temperature"]


def test_divergent_proposals_stay_divergent_beside_an_edge_and_where_U_overflows():
    def funnel(x):
        return x[0] ** 2 / 18 + x[0] / 2 + x[1] ** 2 * (-x[0]).exp() / 2

    walled = within(lambda x: x[0] < 1, funnel)
    beside = ran(walled, init=torch.zeros(2), step_size=1.0, chains=32, steps=600, keep="work")
    endless = beside["work"] > 1e29
    far = (beside["work"] > 1000) & ~endless
    divergent = {f.question: f for f in beside.report()}["divergent proposals"]
    assert beside.info["edge"]["of_chains"] == endless.sum(1).tolist() and int(endless.sum()) > 1000
    assert beside.info["divergences"]["places"] == far.T.nonzero().flip(1).tolist()
    assert divergent.ok is False and divergent.value == int(far.sum()) > 20 and "Half of them begin" in divergent.cure
    overflown = ran(lambda x: (x**4).sum(), init=torch.full((2,), 0.1), step_size=1.0, repeat=6, keep="work", steps=300)
    assert int((overflown["work"] > 1e29).sum()) > 100 and "edge" not in overflown.info
    assert {f.question: f.ok for f in overflown.report()}["divergent proposals"] is False


def test_a_run_that_goes_on_and_chains_of_two_processes_have_the_edge_of_one_run(tmp_path, monkeypatch):
    energy, start, step_size = CUT["flat on a triangle"]
    settings = dict(recipe="mala", repeat=1, init=torch.full((2,), start), step_size=step_size)
    whole = ran(energy, **settings)
    folder = samplers.checkpoints.Folder(tmp_path, every=0)
    ran(energy, checkpoint=folder, **settings)
    assert ran(energy, checkpoint=folder, **settings).info["edge"] == whole.info["edge"]
    parts = [ran(energy, **settings | {"chains": range(k, k + 8)}) for k in (0, 8)]
    joined = joined_geometry([part.info for part in parts], [0, 8, 16], draws=80)["edge"]
    assert joined["of_chains"] == whole.info["edge"]["of_chains"] and joined["places"] == whole.info["edge"]["places"]
    alone = joined_geometry([{}, parts[1].info], [0, 8, 16], draws=80)["edge"]
    assert alone["of_chains"] == 8 * [0] + parts[1].info["edge"]["of_chains"]


# ---- the verdict


@pytest.mark.filterwarnings("ignore:.*have accepted none")  # a chain may stay in the neck, as a funnel's do
def test_the_report_of_a_funnel_names_where_and_what_to_rewrite():
    init = {"mu": 4 * ONE, "tau": 2 * ONE, "effect": torch.full((8,), 4.0, dtype=F64)}
    draws = ran(schools(), steps=120, warmup=30, init=init)
    by_question = {f.question: f for f in draws.report()}
    divergent, fraction = by_question["divergent proposals"], by_question["E-BFMI"]
    assert divergent.ok is False and "begin at tau below" in divergent.cure
    assert "Non-centre effect: samplers.model(..., centred={'effect': 0})" in divergent.cure
    assert fraction.ok is False and fraction.value < 0.3 and "Non-centre effect" in fraction.cure
    freed = ran(schools(centred={"effect": 0}), init=init)
    assert {f.question: f.ok for f in freed.report()}["E-BFMI"]
    assert "to the degree 1" in {f.question: f.cure for f in freed.report()}["E-BFMI"]


def test_a_chain_that_stood_still_in_the_middle_is_found_with_its_place():
    x = torch.randn(3, 400, 2, generator=torch.Generator().manual_seed(0))
    x[1, 100:160] = torch.tensor([0.1, -7.0])
    assert longest_stay({"x": x}) == (59, 1, 159)
    info = {"acceptance": [0.9] * 3}
    (found,) = [f for f in Draws({"x": x}, info=info).report() if f.question.startswith("share of the run")]
    assert found.value == pytest.approx(59 / 399) and found.ok is False
    assert "Chain 1 did until draw 159, at x[1] below -7" in found.cure
    (unsaid,) = [f for f in Draws({"x": x}, info={}).report() if f.question.startswith("share of the run")]
    assert unsaid.ok  # at the end it moves, and nothing was rejected


def test_a_chain_on_a_lattice_that_comes_back_to_where_it_ends_has_not_stood_still():
    steps = 2 * torch.randint(2, (4, 500), generator=torch.Generator().manual_seed(0)) - 1
    walk = 0.1 * steps.cumsum(1).double()
    walk[:, -1] = walk[:, 100]
    (found,) = [f for f in Draws({"x": walk}, info={}).report() if f.question.startswith("share of the run")]
    assert found.ok and found.value < 2 / 499  # the draw before may be there by chance
    walk[2, 300:] = walk[2, 300]
    (found,) = [f for f in Draws({"x": walk}, info={}).report() if f.question.startswith("share of the run")]
    assert found.ok is False and found.value == pytest.approx(199 / 499)


@pytest.mark.parametrize("number, ok", [(0, True), (1, None), (20, None), (21, False)])
def test_a_divergent_proposal_of_a_thousand_leaves_the_verdict_open(number, ok):
    x = torch.randn(2, 50, 1, generator=torch.Generator().manual_seed(0))
    record = {"proposals": 20_000, "of_chains": [number, 0], "places": [[0, 3]] * number}
    draws = Draws({"x": x}, info={"acceptance": [0.9] * 2, "divergences": record})
    assert {f.question: f.ok for f in draws.report()}["divergent proposals"] is ok


def test_places_are_of_chains_that_are_not_lost():
    x = torch.randn(3, 50, 1, generator=torch.Generator().manual_seed(0))
    record = {"proposals": 150, "of_chains": [5, 0, 1], "places": [[0, 3]] * 5 + [[2, 40]]}
    info = {"acceptance": [0.9] * 3, "divergences": record, "e_bfmi": [0.1, 0.9, 0.5], "diverged": {0: 7}}
    found = {f.question: f for f in Draws({"x": x}, info=info).report()}
    assert found["divergent proposals"].value == 1 and f"{float(x[2, 40, 0]):.3g}" in found["divergent proposals"].cure
    assert found["E-BFMI"].value == 0.5


# ---- centring


def jacobian(model, z):
    full = torch.func.jacrev(lambda z: model.coordinates(z))(z)
    return float(torch.linalg.slogdet(full).logabsdet)


@pytest.mark.parametrize("degree", [0, 0.3, 1])
@pytest.mark.parametrize("law", [Normal, LogNormal])
def test_a_centred_variable_moves_in_its_own_units_and_has_its_volume(law, degree):
    priors = {"m": Normal(0 * ONE, ONE), "s": HalfNormal(ONE), "x": lambda v: law(v["m"].expand(3), v["s"])}
    model = samplers.model(priors, lambda v: -v["x"].square(), centred={"x": degree})
    z = torch.tensor([0.7, -0.4, 0.5, -1.0, 0.2], dtype=F64)
    theta, volume = model.coordinates.with_volume(z)
    m, s = theta[0], theta[1]
    if degree < 1 or law is Normal:
        x = m + s ** (1 - degree) * (z[2:] - degree * m)
        assert torch.allclose(theta[2:], x if law is Normal else x.exp())
    assert float(volume) == pytest.approx(jacobian(model, z))
    assert torch.allclose(model.coordinates.inverse(theta), z)
    assert model.centred == {"x": degree}


def test_what_depends_on_no_variable_is_not_advised_to_be_non_centred():
    priors = {
        "s": HalfNormal(ONE),
        "z": lambda v: Normal(torch.zeros(3, dtype=F64), ONE),
        "x": lambda v: Normal(0 * ONE, v["s"]),
    }
    assert samplers.model(priors, lambda v: v["z"] * v["s"] + v["x"]).centred == {"x": 1.0}


def test_a_normal_vector_is_non_centred_by_its_factor():
    priors = {
        "s": HalfNormal(torch.ones(2, dtype=F64)),
        "L": LKJCholesky(2, ONE),
        "x": lambda v: MultivariateNormal(torch.ones(3, 2, dtype=F64), scale_tril=v["s"][:, None] * v["L"]),
    }
    model = samplers.model(priors, lambda v: -v["x"].square(), centred={"x": 0})
    z = torch.linspace(-1, 1, 9, dtype=F64)
    theta, volume = model.coordinates.with_volume(z)
    values = {"s": theta[:2], "L": theta[2:6].reshape(2, 2), "x": theta[6:].reshape(3, 2)}
    root = values["s"][:, None] * values["L"]
    assert torch.allclose(values["x"], 1 + z[3:].reshape(3, 2) @ root.T)
    whole = samplers.model(priors, lambda v: -v["x"].square())
    apart = volume - whole.coordinates.with_volume(whole.coordinates.inverse(theta))[1]
    assert float(apart) == pytest.approx(3 * float(root.logdet()))
    assert torch.allclose(model.coordinates.inverse(theta), z) and model(values) == whole(values)


@pytest.mark.slow
def test_centring_leaves_the_law_as_it_is():
    # means of 8 numbers by 24 chains in each of three coordinates: a difference above 4.9 standard errors has the
    # probability 1e-6, 2e-5 over 20 comparisons of one seed
    means, errors = [], []
    for degree in (0.0, 0.5):
        model = schools(centred={"effect": degree})
        draws = ran(model, chains=24, steps=150, warmup=50, repeat=6, step_size=0.35)
        x = torch.cat([draws["effect"], draws["mu"][..., None], draws["tau"].log()[..., None]], -1)
        of_chains = x.mean(1)
        means.append(of_chains.mean(0))
        errors.append(of_chains.std(0) / math.sqrt(24))
    z = (means[0] - means[1]) / (errors[0].square() + errors[1].square()).sqrt()
    assert float(z.abs().max()) < 6, z


@pytest.mark.parametrize(
    "settings, said",
    [
        (dict(centred={"nobody": 0}), "the variable 'nobody' has a degree of centring and no prior"),
        (dict(centred={"effect": 1.5}), "centred\\['effect'\\]"),
        (dict(centred={"tau": 0}), "centred to the degree 0, and its prior"),
        (dict(centred={"mu": 0}, constraints={"mu": constraints.positive}), "or its constraint, has no such map"),
    ],
)
def test_centring_that_has_no_map_is_refused(settings, said):
    with pytest.raises(RecipeError, match=said):
        schools(**settings)
