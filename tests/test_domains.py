"""Domains that close: angles that go round, boxes that reflect; declared, proved, stepped, printed and sampled."""

import math

import numpy as np
import pytest
import torch
from covering import covering, slow
from sympy import S, cos, lambdify, pi, sin

import integrators
from integrators.flow import solve
from integrators.split import Subsystem
from recipe import Energy, Recipe, RecipeError, adapted, numerical, positive, potential, scalar, total, vector
from recipe.algebra import at_one_site
from samplers import sample
from samplers.testing import assert_stationary, check, diagnose
from samplers.testing.features import features_of
from samplers.testing.generator import generator_at_one_site
from samplers.testing.interpreter import reflections, wrapped
from samplers.testing.planted import planted

theta, phi, p = vector("theta", domain="periodic"), vector("phi", domain="periodic"), vector("p")
box, line, ray = vector("box", domain=(-1, 2)), vector("line"), vector("ray", domain="positive")
gamma = positive("gamma", default=1.0)
F64 = torch.float64


def langevin(block, H, D=1, **more):
    return Recipe(name="langevin", state=(block,), H=H, D={block: D}, **more)


def underdamped(block, H, **more):
    H = H + total(p**2) / 2
    return Recipe(name="underdamped", state=(block, p), H=H, D={p: gamma}, Q={(block, p): -1}, **more)


def isokinetic(block, H):
    """dx = cos(phi) dt, dphi = sin(phi) dH/dx dt + sqrt(2) dW: a velocity of length 1 in the plane, seen in one."""
    return Recipe(name="isokinetic", state=(block, phi), H=H, D={phi: 1}, Q={(block, phi): sin(phi)})


def von_mises(angle):
    return -total(cos(angle - 1)) * 3 / 2


def well(x):
    return total(x**2) / 2 - total(x)


SAMPLERS = {
    "Langevin on an angle": langevin(theta, von_mises(theta)),
    "Langevin on an angle, noise that varies": langevin(theta, von_mises(theta), 1 + cos(theta) / 2),
    "underdamped on an angle": underdamped(theta, von_mises(theta)),
    "isokinetic on an angle": isokinetic(theta, von_mises(theta)),
    "isokinetic on a line": isokinetic(line, well(line)),
    "Langevin in a box": langevin(box, well(box)),
    "Langevin in a box, noise that varies": langevin(box, well(box), 1 + box**2 / 4),
    "underdamped in a box": underdamped(box, well(box)),
    "reflected on a half line": langevin(ray, well(ray), pieces={"E": numerical(ray, "reflected")}, scheme="E"),
    "underdamped on a half line": underdamped(ray, well(ray), pieces={"A": numerical(ray, "reflected")}),
}


# ---- what is declared


@pytest.mark.parametrize(
    "domain, words",
    [
        ((1, 0), ["the box (1, 0) is empty", "below"]),
        ((2, 2.0), ["the box (2, 2) is empty"]),
        ((0, math.inf), ["upper end inf is not a finite number", 'domain="positive"']),
        ((-math.inf, 0), ["lower end -inf is not a finite number"]),
        ((math.nan, 0), ["is not a finite number"]),
        (("a", 1), ["lower end 'a'"]),
        ((0, 1, 2), ["unknown domain (0, 1, 2)", "box that reflects"]),
        (("periodic", 0), ["the period 0 is not positive"]),
        (("periodic", math.inf), ["the period inf is not a finite number"]),
        ("circle", ["unknown domain 'circle'", "periodic"]),
    ],
    ids=str,
)
def test_a_domain_that_is_none_is_refused(domain, words):
    with pytest.raises(RecipeError) as error:
        vector("x", domain=domain)
    assert all(word in str(error.value) for word in words), error.value


def test_blocks_of_one_name_and_other_domains_are_not_the_same():
    blocks = [vector("x", domain=d) for d in ("real", "periodic", (0, 1), (0, 2), ("periodic", 1))]
    assert len(set(blocks)) == 5 and blocks[2].is_nonnegative and blocks[4].domain.ends == ()


@pytest.mark.parametrize(
    "declare",
    [
        lambda: langevin(theta, total(theta**2)),
        lambda: langevin(theta, -total(cos(theta / 2))),
        lambda: langevin(theta, cos(total(theta) / total(1))),  # when one of several goes round
        lambda: langevin(vector("x", domain=("periodic", 24)), -total(cos(vector("x", domain=("periodic", 24))))),
        lambda: langevin(theta, potential(theta), 2 + sin(theta / 2)),
        lambda: isokinetic(theta, potential(theta)).bind(U=lambda x: total(x**2)),
        lambda: integrators.compile(langevin(theta, potential(theta)), energy=Energy(line, U=total(line**2))),
    ],
)
def test_a_formula_of_another_period_is_refused_with_what_it_changes_by(declare):
    with pytest.raises(
        RecipeError, match="it changes by .* goes round once, by (2[*]pi|24).*Use functions of that period"
    ):
        declare()


def test_what_is_periodic_is_not_refused():
    day = vector("day", domain=("periodic", 24))
    assert langevin(day, -total(cos(pi * day / 12))).check().exact
    assert langevin(theta, -total(cos(theta)) - cos(total(sin(theta)))).check().exact
    with pytest.raises(RecipeError, match="no way back from an end"):
        V = adapted("V", like=theta, domain="periodic")
        langevin(theta, potential(theta), 2 + cos(V), adapt={V: V})


# ---- what flows do at an end


@pytest.mark.parametrize("name", ["wrapped", "folded", "turned"])
def test_the_functions_of_the_ends_are_the_motion_between_them(name):
    """Against zigzags and complex angles."""
    path = np.random.default_rng(0).uniform(-30, 30, 4000)
    ends = -1.0, 2.5
    update = {"wrapped": wrapped, "folded": lambda *a: reflections(*a)[0], "turned": lambda *a: reflections(*a)[1]}
    namespace = integrators.compile(SAMPLERS["underdamped in a box"]).namespace
    namespace |= integrators.compile(SAMPLERS["Langevin on an angle"]).namespace
    moved = namespace[name](torch.tensor(path), *ends)
    assert abs(moved.numpy() - update[name](path, *ends)).max() < 1e-12
    assert namespace[name](torch.tensor([math.nan, math.inf]), *ends)[:1].isnan().all() or name == "turned"


def solved(drift=None, noise=None, turning=None, block=box):
    diffusion = {} if noise is None else {(block, block): noise}
    return solve(Subsystem("X", {} if drift is None else {block: drift}, diffusion, {}, None, turning or {}))


def test_constant_noise_and_a_momentum_that_turns_are_reflected_exactly():
    assert solved(noise=gamma).exact
    bounce = solved(p, turning={box: (p,)})
    assert bounce.exact and set(bounce.updates) == {box, p}
    assert integrators.compile(SAMPLERS["underdamped in a box"]).order == 2
    assert not integrators.compile(SAMPLERS["Langevin in a box"]).exact


@pytest.mark.parametrize(
    "drift, noise", [(S.One, None), (-box, None), (S.One, gamma), (None, 1 + box**2), (p + 1, None)]
)
def test_what_has_no_closed_form_between_ends_is_refused(drift, noise):
    with pytest.raises(RecipeError, match="no closed form is known|reflected at the ends of box"):
        solved(drift, noise, turning={box: (p,)} if drift == p + 1 else None)


@pytest.mark.parametrize("method", ["heun", "exponential"])
def test_other_methods_are_not_folded(method):
    with pytest.raises(RecipeError, match="reflected at the ends of box.*'reflected'"):
        integrators.compile(SAMPLERS["Langevin in a box"], "X", pieces={"X": numerical(box, method)})


# ---- laws

T = 0.8


def standard_errors(recipe: Recipe, step: integrators.step.Step, size: int = 40_000, h: float = 0.02) -> float:
    """By how many standard errors the worst of four means of the target is off, 150 small steps after exact draws."""
    (b,) = recipe.targets
    random = torch.Generator().manual_seed(5)
    x, weight = law(b)
    at = torch.tensor(np.interp(torch.rand(size, 1, generator=random, dtype=F64), np.cumsum(weight), x))
    state = {b.name: at, "p": T**0.5 * torch.randn(at.shape, generator=random, dtype=F64)}
    state["phi"] = math.pi * (2 * torch.rand(at.shape, generator=random, dtype=F64) - 1)
    for _ in range(150):
        noise = {name: torch.randn(at.shape, generator=random, dtype=F64) for name in step.draws}
        state |= step(state, h, noise=noise, temperature=T)
    end = state[b.name].numpy()
    functions = (np.cos, np.sin, np.tanh, lambda x: np.cos(2 * x))
    return max(abs(f(end).mean() - weight @ f(x)) / f(end).std() for f in functions) * size**0.5


def law(b):
    """Points and weights of exp(-U/T) between the ends of a block, by the midpoint rule."""
    low, high = max(float(b.domain.low), -9.0), min(float(b.domain.high), 9.0)
    x = low + (high - low) * (np.arange(20_000) + 0.5) / 20_000
    energy = lambdify([b], at_one_site(von_mises(b) if b.domain.wraps else well(b)), "numpy")
    weight = np.exp(-energy(x) / T)
    return x, weight / weight.sum()


# whose domain and motion are, each for itself, those of faster cases
SLOW = [
    "Langevin on an angle, noise that varies",
    "underdamped on an angle",
    "isokinetic on a line",
    "underdamped on a half line",
    "Langevin in a box",
]


@pytest.mark.parametrize("name", covering(SAMPLERS, but=SLOW))
def test_small_steps_have_the_law_that_quadrature_gives(name):
    """40,000 independent ends; the bias of h = 0.02 is below two standard errors."""
    recipe = SAMPLERS[name]
    assert standard_errors(recipe, integrators.compile(recipe)) < 4.5


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("Langevin in a box", "box = folded(", "box = torch.clamp("),
        slow(("Langevin in a box, noise that varies", "box = folded(", "box = torch.clamp(")),
        ("underdamped in a box", "*turned(", "+0*turned("),
        ("reflected on a half line", "ray = abs(", "ray = torch.relu("),
    ],
)
def test_a_clamp_in_the_place_of_a_fold_and_a_momentum_that_does_not_turn_are_seen(name, right, wrong):
    recipe = SAMPLERS[name]
    assert standard_errors(recipe, planted(integrators.compile(recipe), (right, wrong))) > 10


# ---- the layers of checks


EVERY_END = [
    "Langevin on an angle",
    "underdamped on an angle",
    "Langevin in a box",
    "Langevin in a box, noise that varies",
    "reflected on a half line",
]


@pytest.mark.parametrize("name", covering(SAMPLERS, EVERY_END))
def test_right_samplers_pass_the_deterministic_layers(name):
    report = check(SAMPLERS[name], layers=["symbolic", "generator", "differential"])
    assert report.ok and "generator" not in str(report.notes), report


@pytest.mark.parametrize(
    "name", covering(SAMPLERS, ["Langevin on an angle", "Langevin in a box", "reflected on a half line"])
)
def test_right_samplers_pass_all_layers(name):
    assert_stationary(SAMPLERS[name])


def test_a_generator_has_its_law_for_functions_that_fit_the_ends():
    """phi = theta is no test function of a reflected diffusion: E[L phi] = E[-U'] is the density at the ends."""
    recipe = SAMPLERS["Langevin in a box"]
    features = features_of(recipe)
    assert [str(f) for f in features] == ["cos(pi*(box/3 + 1/3))"]
    defects = {}
    for phi in (features, recipe.state):
        generator = generator_at_one_site(recipe.drift, recipe.D, recipe.H, recipe.state)
        found = generator.defects(features=phi, degree=1)
        defects[phi] = abs(next(iter(found.values())))
    assert defects[features] < 1e-9 < 0.05 < defects[recipe.state]


def test_a_drift_of_a_box_is_diagnosed_by_functions_that_fit_its_ends():
    recipe = SAMPLERS["underdamped in a box"]
    right = diagnose(recipe.state, recipe.H, recipe.drift, recipe.D, parameters={"gamma": 1})
    wrong = diagnose(recipe.state, recipe.H, {box: p, p: 1 - box}, recipe.D, parameters={"gamma": 1})
    assert right.ok and right.results and not wrong.ok


@pytest.mark.parametrize(
    "name, declare",
    [
        ("a curl that flows through the ends", lambda: two({x: 1, y: 1}, {(x, y): 1})),
        ("noise that two coordinates share", lambda: two({x: 1, y: 1, (x, y): 0.5}, {})),
        ("a momentum about 1", lambda: moved_by(total((p - 1) ** 2) / 2)),
        ("momenta whose sum has an energy", lambda: moved_by(total(p**2) / 2 + total(p) ** 2 / 4)),
        slow(("an angle for a momentum", lambda: isokinetic(box, well(box)))),
    ],
)
def test_reflections_that_are_wrong_fail_the_certificate_and_the_generator(name, declare):
    """Two opinions: the current through an end by formulas, E[L phi] by quadrature."""
    recipe = declare()
    assert recipe.check()["boundary"].verdict == "failed"
    if "sum" not in name:  # of several sites, which the quadrature has not
        assert not check(recipe, layers=["generator"]).ok
    with pytest.raises(RecipeError, match="stay inside of their domains.*is reflected at"):
        sample(recipe, steps=1, step_size=0.1, init=start_of(recipe))


x, y = scalar("x", domain=(-1, 1)), scalar("y")


def two(D, Q):
    return Recipe(name="two", state=(x, y), target=(x, y), H=x**2 - x + y**2 / 2 + x * y / 2, D=D, Q=Q)


def moved_by(kinetic):
    return Recipe(name="moved", state=(box, p), H=well(box) + kinetic, D={p: 1}, Q={(box, p): -1})


def start_of(recipe):
    return None if len(recipe.targets) > 1 else torch.zeros(2)


def test_a_curl_that_vanishes_at_the_ends_is_right():
    assert two({x: 1, y: 1}, {(x, y): 1 - x**2}).check().exact
    assert check(two({x: 1, y: 1}, {(x, y): 1 - x**2}), layers=["generator"]).ok


# ---- runs


@pytest.mark.parametrize(
    "name, sites",
    [
        ("underdamped in a box", 3),
        ("underdamped in a box", 90),
        ("isokinetic on an angle", 3),
        ("Langevin on an angle, noise that varies", 90),
        ("underdamped on a half line", 3),
    ],
)
def test_kernels_are_the_torch_step(name, sites):
    """Trajectories of few and of many sites, at steps so large that paths cross several ends."""
    recipe = SAMPLERS[name]
    at = torch.full((sites,), float(recipe.targets[0].domain.start), dtype=F64)
    small = "half line" in name  # a step from the start of a sampler that is not reflected at every end
    runs = [
        sample(recipe, init=at, steps=12, step_size=0.1 if small else 0.9, backend=backend, seed=4, progress=False)
        for backend in ("torch", "cpp")
    ]
    b = recipe.targets[0].name
    assert not runs[0].diverged and runs[0][b].isfinite().all()
    assert (runs[0][b] - runs[1][b]).abs().max() < 1e-9


def test_a_sweep_is_the_torch_step():
    for name in ("underdamped in a box", "isokinetic on an angle"):
        recipe = SAMPLERS[name]
        state = {b.name: torch.linspace(-0.9, 1.9, 40, dtype=F64).reshape(4, 10) for b in recipe.state}
        results = [
            integrators.compile(recipe, backend=backend)(state, 1.7, noise=integrators.noise.Key(3, 1), gradient=None)
            for backend in ("torch", "cpp")
        ]
        assert all((results[0][b] - results[1][b]).abs().max() < 1e-12 for b in state)


def test_draws_of_a_torch_energy_stay_in_the_domain_and_starts_outside_are_refused():
    recipe = langevin(theta, potential(theta))

    def energy(at):
        return -torch.cos(at - 1).sum()

    draws = sample(recipe, energy, init=torch.zeros(2), steps=200, step_size=1.0, progress=False)
    assert draws["theta"].abs().max() <= math.pi and draws["theta"].abs().max() > 3
    with pytest.raises(RecipeError, match="theta is from -pi to pi, but the start is not.*values from -pi to pi"):
        sample(recipe, energy, init=torch.full((2,), 4.0), steps=1, step_size=0.1)
    with pytest.raises(RecipeError, match="the energy is not periodic in theta: its gradient .* changes by 6.28"):
        sample(recipe, lambda at: (at**2).sum() / 2, init=torch.zeros(2), steps=1, step_size=0.1)


def test_a_scalar_without_a_start_begins_in_the_middle_of_its_box():
    z = scalar("z", domain=(4, 6))
    draws = sample(langevin(z, z), steps=50, step_size=0.1, progress=False)
    assert 4 <= draws["z"].min() < 5 < draws["z"].max() <= 6


def test_the_file_of_its_own_holds_what_it_calls():
    text = integrators.compile(SAMPLERS["underdamped in a box"]).standalone()
    assert "def folded(" in text and "def turned(" in text and "def wrapped(" not in text
