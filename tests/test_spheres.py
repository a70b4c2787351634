"""Blocks on the unit sphere: the proof, the flows, the work of the kick, and what is refused."""

import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from same_step import accepted_ways_agree
from scipy.integrate import solve_ivp
from scipy.special import roots_genlaguerre
from sympy import S, exp, expand, lambdify, log, symbols

import integrators
from integrators import flow_rules, metropolis
from integrators.functions import phi1
from integrators.noise import Key
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    fraction,
    nonnegative,
    numerical,
    positive,
    potential,
    project,
    real,
    recover,
    refresh,
    scalar,
    temperature,
    total,
    vector,
)
from recipe.algebra import vanishes
from recipe.certificate.case import Case
from recipe.certificate.integrals import marginal, normalisable_energy
from recipe.declared import duration
from recipe.domains import NAMED
from recipe.sites import Sites
from recipe.spheres import Projection
from samplers import sample
from samplers.results.averages import average_of
from samplers.results.temperatures import on_sphere

theta, u = vector("theta"), vector("u", domain="sphere")
U, n, P = potential(theta), total(1), project(u)
G = U.diff(theta)
eta = nonnegative("eta", default=0.4)
MICROCANONICAL = Recipe(name="microcanonical", state=(theta, u), H=U, D={u: eta * P}, Q={(u, theta): P / (n - 1)})
HAMILTONIAN = dict(name="without-noise", state=(theta, u), H=U, D={}, Q={(u, theta): P / (n - 1)})
kappa, mu = positive("kappa", default=2.0), real("mu", per=u)
VON_MISES_FISHER = Recipe(name="von-mises-fisher", state=u, H=-kappa * total(mu * u), D={u: P})
LANGEVIN = Recipe(name="langevin-on-a-sphere", state=u, H=potential(u), D={u: P})
QUARTIC = Energy(theta, U=total((theta**2 - 1) ** 2 / 4 + theta / 3))


def test_gamma_is_the_speed_and_the_law_is_proved_for_every_number_of_sites():
    along, turning = MICROCANONICAL.drift
    assert along == u and (turning + P(G) / (n - 1) + eta * (n - 1) * u).expand() == 0
    assert MICROCANONICAL.residual() == 0 and VON_MISES_FISHER.residual() == 0
    by_site = replace(MICROCANONICAL, name="rate", D={u: eta * P / (n - 1)})  # a D of n - 1, which is not negative
    assert (by_site.drift[1] + P(G) / (n - 1) + eta * u).expand() == 0
    certificate = MICROCANONICAL.check(temperature=0.7)
    assert certificate.exact and certificate["reached"].answer.startswith("all 3 directions")
    verdicts = {name: certificate[name].verdict for name in ("stationary", "normalisable", "marginal")}
    assert set(verdicts.values()) == {"proved"}
    assert VON_MISES_FISHER.check().exact and not Recipe(**HAMILTONIAN).check().exact


WRONG = {"n": -P(G) / n, "n - 2": -P(G) / (n - 2), "the sign": P(G) / (n - 1)}


@pytest.mark.parametrize("case", WRONG)
def test_drifts_of_another_dimension_are_refuted(case):
    given = dict(state=(theta, u), H=U, D={})
    assert recover(**given, drift={theta: u, u: -P(G) / (n - 1)}).Q[0, 1] == -P / (n - 1)
    answer = recover(**given, drift={theta: u, u: WRONG[case]})
    assert answer.ok is False and answer.residual.has(total(u * G))
    with pytest.raises(RecipeError, match="leads off the sphere"):
        recover(**given, drift={theta: u, u: -G / (n - 1)})


def generator_means(recipe, factor=1.0):
    """E L(phi) of monomials phi of three sites, under exp(-U) of a Gaussian and u even on the sphere, in coordinates.

    By quadrature: L(phi) = f . grad(phi) + D : hess(phi) in the ambient space, which knows no divergence on a surface.
    `factor`: of the drift of theta.
    """
    sites = Sites((theta, u), 3)
    z = sites.coordinates
    bound = recipe.bind(U=lambda x: total(x**2) / 2)
    drift = [f.xreplace({eta: S(2) / 5}) for f in sites.column(bound.drift)]
    drift[:3] = [factor * f for f in drift[:3]]
    D = [[S(2) / 5 * (int(i == j) - z[3 + i] * z[3 + j]) for j in range(3)] for i in range(3)]
    x, weights = np.polynomial.hermite_e.hermegauss(5)
    height, of_height = np.polynomial.legendre.leggauss(6)
    angles = np.arange(12) * 2 * np.pi / 12
    around = [(h, (1 - h**2) ** 0.5 * np.cos(a), (1 - h**2) ** 0.5 * np.sin(a)) for h in height for a in angles]
    on_sphere = np.repeat(of_height, 12)
    at = np.array([(*t, *s) for t in product(x, repeat=3) for s in around]).T
    weight = np.array([np.prod(w) * s for w in product(weights, repeat=3) for s in on_sphere])
    means = []
    for phi in (z[0] * z[3], z[0] ** 3 * z[3], z[0] * z[1] * z[3] * z[4], z[1] * z[4] ** 3, z[4] ** 2 * z[0] ** 2):
        L = sum(f * phi.diff(c) for f, c in zip(drift, z))
        L += sum(D[i][j] * phi.diff(z[3 + i], z[3 + j]) for i in range(3) for j in range(3))
        means.append(weight @ np.broadcast_to(lambdify(z, L)(*at), weight.shape) / weight.sum())
    return np.abs(means).max()


def test_the_generator_has_the_mean_0_in_ambient_coordinates(monkeypatch):
    assert generator_means(MICROCANONICAL) < 1e-12 and generator_means(MICROCANONICAL, factor=1.5) > 0.01
    monkeypatch.setattr(Projection, "divergence", property(lambda P: -P.on * (total(1) + 1)))  # of the ambient space
    ambient = replace(MICROCANONICAL, name="ambient")
    assert ambient.residual() != 0 and generator_means(ambient) > 0.01


def test_a_recipe_of_a_sphere_is_copied_whole_and_printed():
    again = pickle.loads(pickle.dumps(MICROCANONICAL))
    assert again.drift == MICROCANONICAL.drift and again.Q == MICROCANONICAL.Q
    assert "project(u)/(n - 1)" in str(again) and "P_{u}" in again.latex()


def state_of(chains, sites, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x, v = torch.randn(2, chains, sites, generator=draw, dtype=torch.float64)
    ones = torch.ones(chains, dtype=torch.float64)
    return {"theta": x, "u": v / v.norm(dim=1, keepdim=True), "direction": ones, "work": 0 * ones, "accepted": 0 * ones}


@pytest.mark.parametrize("time", [0.3, 40.0])
def test_the_kick_is_the_solution_of_its_equation(time):
    recipe = replace(MICROCANONICAL, name=f"kicked-for-{time:g}")  # steps of the same recipe are remembered
    step = integrators.compile(recipe, [("B", 1), ("A", 1), ("O", 1)])
    start = state_of(3, 4)
    g = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.0, 0.0, 0.0, 0.0], [1e-9, 0.0, 0.0, 0.0]]).double()
    still = {"noise": {"u": torch.zeros(3, 4).double()}, "eta": 0.0, "gradient": lambda x: g}
    end = step({k: start[k] for k in ("theta", "u")}, time, **still)
    for k in range(3):
        f = -g[k].numpy() / 3
        path = solve_ivp(lambda t, v, f=f: f - v * (v @ f), (0, time), start["u"][k].numpy(), rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(end["u"][k].numpy(), path.y[:, -1], atol=1e-8)
    np.testing.assert_allclose((end["theta"] - start["theta"]).numpy(), time * end["u"].numpy(), atol=1e-12)


def decays(kick, sites, d, is_tangent=False):
    """The error of E P_1 and E P_2 of the cosine of u and its new value, for a spread of the noise at n sites."""
    z, of_z = np.polynomial.hermite_e.hermegauss(60)
    half, of_half = roots_genlaguerre(60, (sites - 3) / 2)
    ahead, aside = 1 + (0 if is_tangent else kick) * z[:, None], kick**2 * 2 * half
    square = ahead**2 / (ahead**2 + aside)
    weight = of_z[:, None] * of_half / (of_z.sum() * of_half.sum())
    cosine = np.sign(ahead) * square**0.5
    right = np.exp(-(sites - 1) * d), np.exp(-2 * sites * d)
    own = (weight * cosine).sum(), (weight * (sites * square - 1)).sum() / (sites - 1)
    return max(abs(a - b) for a, b in zip(own, right))


@pytest.mark.parametrize("sites", [2, 3, 7])
def test_the_noise_has_the_weak_order_2(sites):
    (flow,) = (f for f in integrators.compile(MICROCANONICAL, "B A O A B").flows.values() if f.draws)
    spread = flow.updates[u].args[0].coeff(flow.draws[0])

    def error(d):
        kick = spread.xreplace({n: S(sites), eta: S.One, temperature: S.One, duration: S(d)})
        return decays(float(kick.replace(phi1, lambda x: S(phi1.value(float(x))))), sites, d)

    assert 7 < error(0.01) / error(0.005) < 9 and not flow.exact and flow.even


@pytest.mark.parametrize("sites", [2, 3, 7])
def test_the_noise_of_eulers_step_has_the_weak_order_2(sites):
    (flow,) = integrators.compile(VON_MISES_FISHER, "Euler").flows.values()
    line, draw = flow.updates[u].args[0], flow.draws[0]
    spread = expand(line).coeff(draw) / line.xreplace({draw: S.Zero, kappa: S.Zero}) * u

    def error(d):
        return decays(float(spread.xreplace({n: S(sites), temperature: S.One, duration: S(d)})), sites, d, True)

    assert 7 < error(0.01) / error(0.005) < 9


MISTAKES = {
    "no volume": lambda heat: 0 * heat,
    "a sign": lambda heat: -heat,
    "n in place of n - 1": lambda heat: heat * n / (n - 1),
    "no temperature": lambda heat: heat / temperature,
}


def lost_volume(T=0.7):
    """The largest difference of the work and H' - H - T log|det| of a step, by autograd on the tangent spaces."""
    step = integrators.metropolised(Recipe(**HAMILTONIAN), "B A B", energy=QUARTIC, accept=False)
    start = state_of(1, 3)

    def moved(z):
        return step(start | {"theta": z[None, :3], "u": z[None, 3:]}, 0.8, noise={}, temperature=T)

    def flat(z):
        end = moved(z)
        return torch.cat([end["theta"][0], end["u"][0]])

    z = torch.cat([start["theta"][0], start["u"][0]])
    jacobian, end = torch.autograd.functional.jacobian(flat, z), moved(z)
    there, here = (torch.linalg.svd(v)[2][1:] for v in (start["u"], end["u"]))
    turn = [torch.block_diag(torch.eye(3).double(), basis) for basis in (there, here)]
    volume = torch.linalg.slogdet(turn[1] @ jacobian @ turn[0].T)[1]
    rise = sum(sign * ((x**2 - 1) ** 2 / 4 + x / 3).sum() for sign, x in ((1, end["theta"]), (-1, start["theta"])))
    back = step(end | {"direction": -start["direction"]}, 0.8, noise={}, temperature=T)
    for name in ("theta", "u"):
        torch.testing.assert_close(back[name], start[name], rtol=0, atol=1e-12)
    assert abs(float(back["work"] + end["work"])) < 1e-12
    return abs(float(end["work"] - rise + T * volume))


def test_the_work_of_the_kick_is_its_volume(monkeypatch):
    assert lost_volume() < 1e-12
    works = metropolis.works
    for name, change in MISTAKES.items():
        monkeypatch.setattr(
            metropolis, "works", lambda *a, c=change: {k: replace(w, heat=c(w.heat)) for k, w in works(*a).items()}
        )
        assert lost_volume() > 1e-3, name


def test_a_kick_of_another_length_is_another_flow(monkeypatch):
    great_circle = flow_rules.great_circle

    def mistaken(piece):
        solution = great_circle(piece)
        if solution is None:
            return None
        return {b: e + flow_rules.kicked(piece)[0] for b, e in solution[0].items()}, ()

    monkeypatch.setitem(flow_rules.ROUND_RULES, "great circle", mistaken)
    with pytest.raises(AssertionError):
        test_the_kick_is_the_solution_of_its_equation(0.3)


def test_an_accepted_step_in_cpp_is_that_in_torch():
    accepted_ways_agree(MICROCANONICAL, state_of(16, 5), 0.7, word="B A O A B", energy=QUARTIC, temperature=0.8)


def test_chains_start_evenly_and_stay_on_the_sphere():
    c = fraction("c", default=0.9)
    own = HAMILTONIAN | dict(name="in-part", jumps={"R": refresh(u, persistence=c)}, scheme="R B A B")
    settings = dict(steps=20, chains=500, step_size=0.3, progress=False, keep=["u"], init=torch.zeros(3).double())
    v = torch.as_tensor(sample(Recipe(**own), QUARTIC, **settings, backend="torch")["u"])
    torch.testing.assert_close(v.norm(dim=-1), torch.ones(500, 20).double())
    assert v[:, 0].mean(0).abs().max() < 0.4  # ten standard errors
    start = dict(init=torch.eye(3).double()[0], mu=torch.ones(3), steps=20, step_size=0.1, chains=4, progress=False)
    v = torch.as_tensor(sample(VON_MISES_FISHER, **start, backend="torch")["u"])
    torch.testing.assert_close(v.norm(dim=-1), torch.ones(4, 20).double())


def test_esh_is_microcanonical_with_weights():
    """In its own time energy-sampling Hamiltonian dynamics is u' = -P grad U/n. Ver Steeg & Galstyan 2021, eq. (10)."""

    def esh(weights):
        own = dict(name="esh", state=(theta, u), H=U * (n - 1) / n, D={u: eta * P}, Q={(u, theta): P / (n - 1)})
        return Recipe(**own, weights=weights)

    right = esh(exp(-U / (n * temperature)))
    assert vanishes(right.drift[1] + P(G) / n + eta * (n - 1) * u)
    assert right.residual() == 0 and marginal(Case(right, 0.7, (), {}))[2] == "proved"
    for wrong in (exp(-U / ((n - 1) * temperature)), exp(U / (n * temperature)), None):
        assert marginal(Case(esh(wrong), 0.7, (), {}))[2] == "failed", wrong


def density(v, w, h, T, of=2.0):
    """log of the density on S^2 of Euler's step from v to w on the sphere, by hand, by its law in the tangent plane."""
    a, slope = (1 + 5 * T * h) ** -0.5, of * np.array([0.25, -0.5, 1.0])
    cosine = (v * w).sum(-1, keepdims=True)
    apart = a * (w / cosine - v) - h * (slope - v * (v * slope).sum(-1, keepdims=True))
    kernel = -(apart**2).sum(-1) / (4 * h * T) - np.log(4 * np.pi * h * T / a**2)
    return np.where(cosine[..., 0] > 0, kernel - 3 * np.log(abs(cosine[..., 0])), -np.inf)


def test_the_density_by_hand_has_the_integral_1():
    height, weights = np.polynomial.legendre.leggauss(200)
    angles = np.arange(200) * 2 * np.pi / 200
    across = (1 - height[:, None] ** 2) ** 0.5
    w = np.stack([across * np.cos(angles), across * np.sin(angles), height[:, None] + 0 * angles], -1)
    v = np.array([0.6, 0.0, 0.8])
    for h in (0.05, 0.2):
        mass = (weights[:, None] * np.exp(density(v, w, h, 0.7))).sum() * 2 * np.pi / 200
        assert abs(mass - 1) < 1e-3


def lost_ratio(T=0.7, h=0.5):
    """The largest difference of the work of Euler's step on the sphere and H' - H + T log of the ratio by hand."""
    step = integrators.metropolised(VON_MISES_FISHER, "Euler", accept=False)
    start = {k: x for k, x in state_of(500, 3).items() if k != "theta"}
    slope = torch.tensor([0.25, -0.5, 1.0]).double()
    end = step(start, h, noise=Key(4, 0), temperature=T, kappa=2.0, mu=slope)
    v, w = start["u"].numpy(), end["u"].numpy()
    by_hand = 2 * (v - w) @ slope.numpy() + T * (density(v, w, h, T) - density(w, v, h, T))
    assert np.exp(-by_hand / T).clip(max=1).mean() > 0.5  # accepted
    return (abs(end["work"].numpy() - by_hand) / (1 + abs(by_hand))).max()


def test_eulers_step_on_a_sphere_is_accepted_by_its_work(monkeypatch):
    assert lost_ratio() < 1e-9
    works = metropolis.works
    mistakes = {"no ratio": lambda e: 0 * e, "no temperature": lambda e: e / temperature, "a sign": lambda e: -e}
    for name, change in mistakes.items():
        monkeypatch.setattr(
            metropolis,
            "works",
            lambda *a, c=change: {k: replace(w, returned=c(w.returned)) for k, w in works(*a).items()},
        )
        assert lost_ratio() > 1e-2, name


def measured(T, of, slope):
    """The configurational temperature of points of S^2 by quadrature, twice, weighted by exp(-U/T)."""
    height, weights = np.polynomial.legendre.leggauss(40)
    angles = np.arange(80) * 2 * np.pi / 80 + 0.3
    across = (1 - height[:, None] ** 2) ** 0.5
    points = np.stack([across * np.cos(angles), across * np.sin(angles), height[:, None] + 0 * angles], -1)
    x = torch.tensor(points.reshape(1, -1, 3)).repeat(2, 1, 1)
    w = torch.tensor(np.repeat(weights, 80)) * torch.exp(-of(x) / T)
    w = w / w.mean()
    return float((w * on_sphere(x, slope(x), 1.0, w)).mean())


@pytest.mark.parametrize("T", [0.7, 1.3])
def test_the_configurational_temperature_on_a_sphere_is_that_of_the_law(T):
    def of(x):
        return 1.5 * x[..., 0] ** 2 - 2 * x[..., 2]

    def slope(x):
        return torch.stack([3 * x[..., 0], 0 * x[..., 1], 0 * x[..., 2] - 2], -1)

    assert abs(measured(T, of, slope) - T) < 1e-12
    assert abs(measured(T, of, lambda x: slope(x) + 5 * x) - T) < 1e-12  # what leads off the sphere does no work
    even = torch.randn(20, 100, 50, generator=torch.Generator().manual_seed(0))
    even /= even.norm(dim=2, keepdim=True)
    assert average_of(on_sphere(even, 0 * even, 1.0)).error > 0.3  # of a law without mean and spread nothing is known


x, y, z = symbols("x y z", real=True)


@pytest.mark.parametrize(
    "U, verdict",
    [
        (x**2 - 3 * y * z - 2 * x, "proved"),  # falls without end in space
        (-4 * sum(symbols("x:20", real=True)), "proved"),
        (5 * log(2 - x - y) - z, "open"),  # whose pole is beside the sphere
        (2 * log(x**2), "open"),  # which has no integral
    ],
    ids=str,
)
def test_an_energy_on_a_sphere_is_normalisable_where_it_is_finite(U, verdict):
    energy = Energy(sorted(U.free_symbols, key=str), U=U)
    assert normalisable_energy(energy, NAMED["sphere"]).verdict == verdict


def test_chains_run_on_a_sphere_whose_energy_falls_without_end_in_space():
    energy = Energy((x, y, z), U=x**2 - 3 * y * z - 2 * x)
    draws = sample(LANGEVIN, energy, init=torch.eye(3)[2], steps=10, step_size=0.1, progress=False)
    assert draws["u"].norm(dim=-1).allclose(torch.ones(()))


@pytest.mark.slow
def test_the_report_of_a_run_on_a_sphere_has_its_temperature():
    north = torch.eye(10)[9]
    settings = dict(init=north, chains=20, steps=1000, step_size=0.5, progress=False)
    report = sample(LANGEVIN, lambda x: 4 * x[0] ** 2 - 2 * x[9], **settings).report()
    (finding,) = (f for f in report if f.question == "configurational temperature")
    assert finding.ok is False and finding.value < finding.low


REFUSED = {
    "no projection in Q": (lambda: Recipe(**HAMILTONIAN | dict(Q={(u, theta): 1 / (n - 1)})), "no number times"),
    "no projection in D": (lambda: Recipe(**HAMILTONIAN | dict(D={u: 1})), "no number times"),
    "a projection elsewhere": (lambda: Recipe(**HAMILTONIAN | dict(D={theta: P})), "no number times"),
    "values by site": (lambda: Recipe(**HAMILTONIAN | dict(D={u: P * theta**2})), "no number times"),
    "a projection in H": (lambda: Recipe(**HAMILTONIAN | dict(H=U + total(theta * P))), "as if it were a number"),
    "a scalar": (lambda: Recipe(**HAMILTONIAN | dict(state=(theta, u, scalar("v", domain="sphere")))), "of a vector"),
    "the projection of a real block": (lambda: project(theta), "of no sphere"),
    "another method": (
        lambda: integrators.compile(MICROCANONICAL, "X", pieces={"X": numerical((theta, u), "heun")}),
        "off its sphere",
    ),
    "one site": (
        lambda: sample(MICROCANONICAL, QUARTIC, init=torch.zeros(1), steps=1, step_size=0.1),
        "two points",
    ),
    "a start off the sphere": (
        lambda: sample(
            MICROCANONICAL, QUARTIC, init={"theta": torch.zeros(2), "u": torch.ones(2)}, steps=1, step_size=0.1
        ),
        "has the length 1.41",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_leaves_the_sphere_is_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(RecipeError, match=message):
        make()
