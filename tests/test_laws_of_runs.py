"""`check`, `sample` and `assert_stationary` answer alike: a law that is not the one claimed is refused."""

import warnings

import pytest
import sympy
import torch
from certificates import RIGHT, WRONG, U, nose_hoover_langevin, overdamped, p, rate, theta, u, underdamped, v, x, y
from covering import covering

import samplers
from integrators.operators import Dense
from recipe import Energy, Recipe, RecipeError, nonnegative, operator, potential, total
from samplers import SGHMC, SGLD, SGNHT, Phase
from samplers.testing import assert_stationary

a, b = sympy.symbols("a b", real=True)


def bowl(theta):
    return (theta**2).sum() / 2


def uneven(theta):
    """A bowl without symmetry."""
    x = theta.reshape(-1)
    stiffness = torch.arange(1, len(x) + 1)
    return (stiffness * x**2).sum() / 2 + x.sum().cos()


def pendulum(angle):
    return -angle.cos().sum()


def run(recipe, energy=bowl, **settings):
    settings = {"init": torch.ones(2), "chains": 2, "steps": 4, "step_size": 0.01, "progress": False} | settings
    return samplers.sample(recipe, energy, **settings)


def steps_of(recipe):
    """Two steps of a recipe, with a Gaussian for an opaque U."""
    start = {b.name: torch.full((2, 2) if b.is_vector else (2,), 0.5 + i / 10) for i, b in enumerate(recipe.targets)}
    energy = None
    if recipe.potential is not None:
        own = [pendulum if b.domain.wraps else uneven for b in recipe.targets]
        joint = lambda z: sum(f(x) for f, x in zip(own, z.values(), strict=True))  # noqa: E731
        energy = own[0] if recipe.has_copies or len(own) == 1 else joint
    scheme = None if recipe.scheme or recipe.jumps else "Euler"
    init = start if len(start) > 1 else start[recipe.target.name]
    turns = {J.name: Dense(torch.tensor([[0.0, 1.0], [-1.0, 0.0]])) for J in recipe.operators}  # of kind "skew"
    return run(recipe, energy, init=init, scheme=scheme, steps=2, step_size=1e-3, **turns)


def warned(call):
    """What a call returns or raises, and the texts of its RuntimeWarnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            answer = call()
        except (RecipeError, AssertionError) as error:
            answer = error
    return answer, [str(w.message) for w in caught if w.category is RuntimeWarning]


UNSTARTED = "reach: a wall in momenta of a long chain of thermostats"  # H is infinite where momenta start, at 0
NAMES = [*(name for name, (topic, _) in WRONG.items() if topic != "declaration" and name != UNSTARTED), *RIGHT]
SLOW = {"Nose-Hoover chain with noise at its end"}  # takes two seconds
OF_EACH_TOPIC = {(name.partition(":")[0], WRONG[name][0]): name for name in NAMES if name in WRONG} | {
    # cheaper cases of topics whose last case takes half a second or more
    ("marginal", "marginal"): "marginal: U twice",
    ("reach", "reached"): "reach: Hamiltonian motion",
    ("definite", "definite"): "definite: noise negative one sd from the middle",
}


@pytest.mark.parametrize(
    "name", covering(NAMES, {*OF_EACH_TOPIC.values(), *list(RIGHT)[10::8], "an open metric"}, but=SLOW)
)
def test_check_sample_and_assert_stationary_answer_alike(name):
    recipe = RIGHT[name]() if name in RIGHT else WRONG[name][1]()
    if name == "an open metric":
        recipe = recipe.bind(G=lambda theta: 1 + theta**2)
    certificate = recipe.check()
    failed = [f for f in certificate.findings if f.verdict == "failed"]
    kinds = {("warning", f.topic) for f in certificate.findings} - {("warning", "claim")} | {("open", "reached")}
    doubts = [f.question for f in certificate.findings if (f.verdict, f.topic) in kinds]
    scheme = None if recipe.scheme or recipe.jumps else "Euler"
    draws, of_run = warned(lambda: steps_of(recipe))
    report, of_checks = warned(lambda: assert_stationary(recipe, scheme=scheme, layers="symbolic"))
    if failed:
        assert isinstance(draws, RecipeError) and failed[0].question in str(draws) and failed[0].answer in str(draws)
        assert isinstance(report, AssertionError)
        assert failed[0].topic == "stationary" or failed[0].answer in str(report)
        assert of_run == of_checks == []
    else:
        assert draws.info["law"] == certificate["claim"].answer
        assert report.ok and len(report.doubts) == len(doubts)
        for messages in (of_run, of_checks):
            assert len(messages) == bool(doubts) and all(doubt in messages[0] for doubt in doubts)


def test_a_run_warns_once_where_it_is_open_whether_noise_reaches_every_block():
    gap = underdamped(U + total(p**2) / 2, sympy.Max(0, theta - 1))
    certificate = gap.check()
    assert certificate["reached"].verdict == "open" and certificate["claim"].answer == "invariant; ergodicity open"
    _, (message,) = warned(lambda: run(gap, scheme="Euler", temperature=lambda k: 1.0 + k))
    assert certificate["reached"].in_words in message and "Compare chains from far starts by R-hat" in message


# ---- what is asked about is what runs: parameters, temperature, energies, frozen blocks


def test_parameters_are_those_of_the_run():
    recipe = underdamped(U + total(p**2) / 2, nonnegative("C", default=1.0, per=theta))
    assert run(recipe, scheme="Euler").info["law"] == "exact"
    for still in (0.0, torch.tensor([1.0, 0.0])):
        with pytest.warns(RuntimeWarning, match="the noise reaches every block.*never"):
            assert run(recipe, scheme="Euler", C=still).info["law"] == "invariant; not ergodic"


def of_planes(z):
    return z["x"] ** 2 / 2 + z["y"] ** 4 / 4


def of_one_momentum():
    """Two coordinates with momenta, of which one has noise."""
    H, D = potential(x, y) + (u**2 + v**2) / 2, {u: 1}
    return Recipe(name="one-momentum", state=(x, y, u, v), target=(x, y), H=H, D=D, Q={(x, u): -1, (y, v): -1})


B = operator("B", kind="semidefinite")
PAIR = {"x": torch.zeros(2), "y": torch.zeros(2)}
MOTIONS = {  # recipe, energy, settings, whether noise reaches all
    "springs alike, one thermostat": (nose_hoover_langevin(), bowl, {"init": torch.zeros(4)}, False),
    "uneven springs, one thermostat": (nose_hoover_langevin(), uneven, {"init": torch.zeros(4)}, True),
    "noise on one of two that U leaves apart": (of_one_momentum(), of_planes, {"init": PAIR}, False),
    "noise on one of two that U couples": (
        of_one_momentum(),
        lambda z: of_planes(z) + (z["x"] - z["y"]) ** 2,
        {"init": PAIR},
        True,
    ),
    "friction of one site": (underdamped(U + total(p**2) / 2, B), bowl, {"B": torch.tensor([[1.0, 0], [0, 0]])}, False),
    "friction of a site that U couples": (
        underdamped(U + total(p**2) / 2, B),
        uneven,
        {"B": torch.tensor([[1.0, 0], [0, 0]])},
        True,
    ),
    "a regular semidefinite matrix": (overdamped(B), bowl, {"B": torch.tensor([[1.0, 0], [0, 2]])}, True),
    "a singular semidefinite matrix": (overdamped(B), bowl, {"B": torch.tensor([[1.0, 0], [0, 0]])}, False),
}


PAIRS = [*MOTIONS][2:4] + [*MOTIONS][-2:]  # of an energy and of a matrix, by which noise reaches all or not


@pytest.mark.parametrize("name", covering(MOTIONS, PAIRS))
def test_noise_reaches_or_not_under_the_energy_and_the_operators_of_the_run(name):
    recipe, energy, settings, reaches = MOTIONS[name]
    draws, warnings = warned(lambda: run(recipe, energy, **settings))
    assert draws.info["law"] == ("exact" if reaches else "invariant; not ergodic")
    assert [("the noise reaches every block?" in w) for w in warnings] == [True] * (not reaches)


def test_of_the_default_words_acceptance_takes_the_first_that_has_a_work():
    third = RIGHT["third-order Langevin"]()
    assert run(third).info["scheme"] == "B A' O A' B"
    draws = run(third, metropolis=True)
    assert draws.info["scheme"] == "B A C O C A B" and draws.info["law"] == "exact"


def test_noise_that_explodes_from_three_sites_on_is_refused_there_without_advice_on_steps():
    wild = overdamped(sympy.exp(U))
    assert run(wild, init=torch.ones(2)).info["law"] == "exact"
    with pytest.raises(RecipeError, match="run off to infinity.*along rays of 3.*No step size mends this"):
        run(wild, init=torch.ones(3))


@pytest.mark.parametrize(
    "energy",
    [
        Energy((a, b), U=0.9 * sympy.log(1 + a**2 + b**2)),
        Energy((a, b), U=-sympy.log(1 + a**2 + b**4)),
        Energy((a, b), U=(a - b) ** 2),
        Energy((a, b), U=(a**2 - 1) ** 2 - b),
        Energy(theta, U=-total(theta**4)),
        Energy(theta, U=total(sympy.log(1 + theta**2)) / 4),
    ],
    ids=lambda energy: str(energy.U),
)
def test_a_symbolic_energy_without_a_finite_integral_is_refused(energy):
    with pytest.raises(RecipeError, match="is normalisable.*no finite integral.*-log density.*prior"):
        run(SGLD, energy)


def test_a_heavy_tail_is_refused_at_the_temperature_at_which_it_is_too_heavy():
    heavy = Energy(theta, U=total(sympy.log(1 + theta**2)))
    assert run(SGLD, heavy).info["law"] == "exact"
    with pytest.raises(RecipeError, match="no finite integral at temperature 3"):
        run(SGLD, heavy, temperature=3.0)
    with pytest.raises(RecipeError, match="no finite integral at temperature 3"):
        run(SGLD, heavy, temperature=lambda k: 3.0 - 0.5 * k)


@pytest.mark.parametrize("recipe, still", [(SGNHT, "xi"), (SGHMC, "p")], ids=["sgnht", "sghmc"])
def test_a_block_that_is_held_still_is_refused_unless_the_temperature_is_0_or_no_draws_are_kept(recipe, still):
    for phases in ([Phase(2, freeze=still)], [Phase(2), Phase(2, freeze=(still,))]):
        with pytest.raises(RecipeError, match=f"while {still} is held still.*Let {still} move.*temperature 0"):
            run(recipe, steps=1000, phases=phases)
    burn_in, cold = Phase(2, freeze=(still,), keep=False), Phase(2, freeze=(still,), temperature=0.0)
    assert run(recipe, steps=1000, phases=[burn_in, Phase(2)]).info["law"] == "exact"
    refined = run(recipe, steps=1000, phases=[Phase(2), cold])
    assert refined.info["law"] == "exact; then none: at temperature 0 chains descend to a mode"


def test_a_symbolic_energy_with_a_finite_integral_is_taken():
    assert run(SGLD, Energy((a, b), U=sympy.log(1 + a**2 + b**4))).info["law"] == "exact"


def test_a_boundary_that_no_step_size_mends_is_not_answered_by_a_smaller_step():
    with pytest.raises(RecipeError, match="stay inside of their domains.*No step size mends this: let D vanish") as e:
        run(overdamped(1, total(rate - sympy.log(rate) / 2), rate), None)
    assert "smaller step" not in str(e.value)


def test_many_chains_that_diverge_are_named_in_one_warning():
    start = torch.zeros(60, 2, dtype=torch.float64)
    start[:30] = 50.0
    with pytest.warns(RuntimeWarning, match="30 of 60 chains are lost.*chain 0 diverged.*and 22 others") as caught:
        draws = run(SGLD, lambda theta: (theta**4).sum() / 4, init=start, chains=60, steps=20, step_size=0.1)
    assert len(caught) == 1 and len(draws.diverged) == 30
    assert "and 22 others" in repr(draws)
    with pytest.warns(RuntimeWarning, match="leaves out 30 of 60 chains"):
        assert draws.average("theta", torch.square).max() < 10
