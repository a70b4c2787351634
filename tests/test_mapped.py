"""Recipes in other coordinates: the volume of the map, Ito's formula, energies, starts and draws of the user."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from covering import covering
from error_budget import CLAIMS, standard_score
from same_step import all_ways_agree
from sympy import Abs, Symbol, diff, exp, log, simplify, sin, sinh, sqrt, symbols, tanh

import samplers
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    adapted,
    function,
    grad,
    mapped,
    operator,
    positive,
    potential,
    scalar,
    temperature,
    total,
    vector,
)
from samplers import Metropolis
from samplers.target.coordinates import Mapped
from samplers.tuning import tune

theta, z, p = vector("theta"), vector("z"), vector("p")
above = vector("theta", domain="positive")
share = vector("theta", domain="fraction")
gamma, mass = positive("gamma", default=1.5), positive("mass", default=2.0, per=theta)
CIR = Recipe(name="cir", state=above, H=total(above - 2 * log(above)), D={above: above})
LANGEVIN = Recipe(
    name="langevin",
    state=(theta, p),
    H=potential(theta) + total(p**2 / mass) / 2,
    D={p: gamma},
    Q={(theta, p): -1},
    scheme="B A O A B",
)
RIEMANN = Recipe(name="riemann", state=theta, H=potential(theta), D={theta: 1 + theta**2}, scheme="Euler")


def softplus(x):
    return log(1 + exp(x))


def sigmoid(x):
    return 1 / (1 + exp(-x))


MAPS = {"exp": exp, "softplus": softplus, "tanh": tanh, "sigmoid": sigmoid, "sinh": sinh, "falling": lambda x: -exp(-x)}


# ---- the formulas


EVERY_MAP = [*product([LANGEVIN, RIEMANN], MAPS, [False, True])]
EACH_MAP_ONCE = [
    (LANGEVIN, "exp", False),
    (LANGEVIN, "sinh", False),
    (LANGEVIN, "falling", True),
    (RIEMANN, "sigmoid", False),
    (RIEMANN, "softplus", False),
    (RIEMANN, "tanh", True),
]
EACH_FORM_ONCE = [case for case in EACH_MAP_ONCE if case[1] in ("exp", "falling", "sigmoid")]


@pytest.mark.parametrize(
    "recipe, name, carried", covering(EVERY_MAP, EACH_FORM_ONCE), ids=lambda value: getattr(value, "name", str(value))
)
def test_the_law_is_proved(recipe, name, carried):
    other = mapped(recipe, theta=z, by=MAPS[name], carried=carried)
    assert other.residual() == 0
    assert other.check().ok, other.check()


@pytest.mark.parametrize("name", covering(MAPS, ["tanh", "sinh"]))  # an interval, all of the line
def test_the_claim_names_the_range_of_a_map_that_is_not_all_of_the_domain(name):
    claim = mapped(LANGEVIN, theta=z, by=MAPS[name]).check()["claim"].answer
    assert (claim == "exact") == (name == "sinh") and claim.startswith("exact")


def test_a_map_onto_all_of_the_domain_leaves_the_claim_as_it_is():
    within = Recipe(name="within", state=share, H=potential(share), D={share: 1})
    assert mapped(within, theta=z, by=sigmoid).check()["claim"].answer == "exact"


def test_an_auxiliary_block_has_coordinates_of_its_own():
    spread = vector("s", domain="positive")
    H = potential(theta) + total(spread - 2 * log(spread))
    wide = Recipe(name="wide", state=(theta, spread), H=H, D={theta: spread, spread: spread}, scheme="Euler")
    moved = mapped(wide, s=z, by=exp)
    assert moved.state == (theta, z) and not moved.maps and moved.D[0, 0] == exp(z)
    assert moved.check().exact


@pytest.mark.parametrize("name", MAPS)
def test_the_energy_of_z_has_the_volume_at_every_temperature(name):
    """-log of exp(-U(f(z))/T) |f'(z)| is H'(z)/T, up to a constant."""
    volume = mapped(RIEMANN, theta=z, by=MAPS[name]).H - potential(z)
    slope = diff(MAPS[name](z), z)
    expected = -temperature * diff(slope, z) / slope
    for x in (-3.0, -0.4, 0.0, 2.0):
        assert abs(value(volume.diff(z) - expected, x)) < 1e-12


def value(e, x):
    """A formula of z at a number, at the temperature 1.7."""
    return complex(e.xreplace({z: Symbol("x")}).subs({"x": x, temperature: 1.7}).evalf(30))


def ito(recipe, other):
    """What the drift and the noise of theta = f(z) are off, by Ito's formula, at a temperature."""
    (own,) = other.maps.values()
    j = other.state.index(own.z)
    slope, curvature = diff(own.image, own.z), diff(own.image, own.z, 2)
    drift = slope * other.tempered_drift[j] + temperature * curvature * other.D[j, j]
    return [drift - recipe.tempered_drift[j].xreplace({own.theta: own.image}), slope**2 * other.D[j, j]]


@pytest.mark.parametrize("name", ["exp", "softplus"])
def test_what_is_carried_over_is_the_same_sde(name):
    other = mapped(CIR, theta=z, by=MAPS[name], carried=True)
    off, noise = ito(CIR, other)
    for x in (-3.0, -0.4, 0.0, 2.0):
        assert abs(value(off, x)) < 1e-12
        assert abs(value(noise - MAPS[name](z), x)) < 1e-12


def test_a_momentum_that_is_carried_over_moves_theta_as_before():
    other = mapped(LANGEVIN, theta=z, by=exp, carried=True)
    of_z = dict(zip(other.state, other.tempered_drift))
    per_z = next(s for s in other.parameters if s.name == "mass")
    assert per_z.per == z
    assert simplify(of_z[z] * exp(z) - p / per_z) == 0
    assert simplify(of_z[p] * exp(z) + gamma * p * exp(z) / per_z + grad(potential(z))) == 0


@pytest.mark.parametrize("mutant", ["no volume", "the volume of the wrong sign", "D over f' alone"])
def test_mutants_are_no_longer_the_same_sde(mutant):
    other = mapped(CIR, theta=z, by=exp, carried=True)
    volume = temperature * total(z)
    wrong = {
        "no volume": dict(H=other.H + volume),
        "the volume of the wrong sign": dict(H=other.H + 2 * volume),
        "D over f' alone": dict(D=other.D * exp(z)),
    }[mutant]
    assert abs(value(ito(CIR, replace(other, **wrong))[0], 0.3)) > 0.1


def test_adapted_quantities_and_bound_energies_are_of_the_new_block():
    V = adapted("V", like=theta, start=grad(potential(theta)) ** 2, domain="positive")
    recipe = Recipe(
        name="adaptive",
        state=theta,
        H=potential(theta),
        D={theta: 1 / (1 + V)},
        adapt={V: (V + grad(potential(theta)) ** 2) / 2},
    )
    other = mapped(recipe, theta=z, by=exp)
    (new,) = other.adapted
    assert new.start == grad(potential(z)) ** 2 and other.adapt[new] == (new + grad(potential(z)) ** 2) / 2
    bound = mapped(RIEMANN, theta=z, by=exp).bind(U=lambda x: total(x**2) / 2)
    assert bound.H == total(exp(2 * z)) / 2 - temperature * total(z)
    assert bound.check().ok


def test_the_map_is_printed():
    assert "map     theta = exp(z); energies, starts and draws are of theta, and U(z) is U(theta)" in str(
        mapped(LANGEVIN, theta=z, by=exp)
    )


# ---- steps and runs


STEPPED = {
    "softplus": (LANGEVIN, dict(by=softplus)),
    "carried": (RIEMANN, dict(by=softplus, carried=True)),
    "shares": (
        LANGEVIN,
        dict(by=lambda x: exp(x) / (1 + total(exp(x))), inverse=lambda x: log(x / (1 - total(x)))),
    ),
}


@pytest.mark.parametrize("name", STEPPED)
def test_text_kernel_and_both_interpreters_make_the_same_step(name):
    recipe, ways = STEPPED[name]
    all_ways_agree(mapped(recipe, theta=z, **ways), lambda x: x**3)


a, b = symbols("a b", real=True)
ENERGIES = {
    "torch": lambda x: (x - 2 * torch.log(x)).sum(),
    "by coordinates": Energy((a, b), U=a - 2 * log(a) + b - 2 * log(b)),
    "by site": Energy(above, U=total(above - 2 * log(above))),
}


@pytest.mark.parametrize("energy", ENERGIES)
def test_draws_and_starts_are_of_theta(energy):
    """Against Gamma(3, 1), alpha 1e-4 each for mean and square: 2 x 300 chains at their end."""
    recipe = mapped(LANGEVIN, theta=z, by=exp)
    draws = samplers.sample(
        recipe,
        ENERGIES[energy],
        init={"theta": torch.full((2,), 3.0)},
        mass=1.0,
        chains=300,
        warmup=100,
        steps=1,
        step_size=0.15,
        progress=False,
        seed=1,
    )
    assert list(draws) == ["theta"]
    x = draws["theta"]
    assert (x > 0).all()
    assert abs(float(x.mean()) - 3) < 3.9 * (3 / 600) ** 0.5 + 0.03
    assert abs(float(x.square().mean()) - 12) < 3.9 * (216 / 600) ** 0.5 + 0.2


def test_an_accepted_step_of_z_has_the_law_of_theta():
    """The temperature 2: Gamma(2, 1/2) has mean 4, alpha 1e-4."""
    draws = samplers.sample(
        mapped(LANGEVIN, theta=z, by=softplus),
        ENERGIES["torch"],
        init=torch.ones(2),
        mass=1.0,
        chains=300,
        warmup=80,
        steps=1,
        step_size=0.4,
        temperature=2.0,
        metropolis=True,
        progress=False,
    )
    assert abs(float(draws["theta"].mean()) - 4) < 3.9 * (8 / 600) ** 0.5


@pytest.mark.parametrize("name", MAPS)
def test_a_map_and_its_inverse_are_those_of_torch_and_do_not_overflow(name):
    own = next(iter(mapped(LANGEVIN, theta=z, by=MAPS[name]).maps.values()))
    coordinates = Mapped(own)
    at = torch.linspace(-3, 3, 7, dtype=torch.float64)
    assert torch.allclose(coordinates.inverse(coordinates(at)), at, atol=1e-9)
    _, volume = coordinates.with_volume(at)
    slopes = torch.func.vmap(torch.func.grad(coordinates))(at)
    assert torch.allclose(volume, slopes.abs().log().sum())
    if name in ("softplus", "tanh", "sigmoid"):
        assert coordinates(torch.tensor([-200.0, 200.0])).isfinite().all()


def test_pilots_of_a_mapped_recipe_begin_as_those_of_the_energy_of_z(monkeypatch):
    """Starts, U and its gradient there are those of U(exp z) - total(z), at a temperature that multiplies the sum."""

    class Begun(Exception):
        pass

    def begun(problem, pilot, *_):
        U = problem.value(None)(at := pilot.theta.requires_grad_())
        raise Begun(at.detach(), U.detach(), *torch.autograd.grad(U.sum(), at))

    def start(recipe, energy, init):
        init = torch.tensor(init, dtype=torch.float64)
        with pytest.raises(Begun) as found:
            samplers.tune(recipe, energy, init=init, temperature=1.5, progress=False)
        return found.value.args

    monkeypatch.setattr(tune, "preconditioned", begun)
    of_theta = start(mapped(samplers.SGLD, theta=z, by=exp), ENERGIES["torch"], [1.0, 3.0])
    of_z = start(samplers.SGLD, lambda x: ENERGIES["torch"](x.exp()) - 1.5 * x.sum(), [0.0, np.log(3.0)])
    torch.testing.assert_close(of_theta, of_z, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_mapped_recipe_is_tuned_as_the_energy_of_z(brief):
    """The settings are those of LANGEVIN at U(exp z) - total(z); starts are of theta, and the run takes them."""
    how = dict(mass=1.0, metropolis=Metropolis(repeat=2), chains=16, seed=1)
    of_theta = samplers.tune(
        mapped(LANGEVIN, theta=z, by=exp), ENERGIES["torch"], init={"theta": torch.ones(2, dtype=torch.float64)}, **how
    )
    of_z = samplers.tune(
        LANGEVIN, lambda x: ENERGIES["torch"](torch.exp(x)) - x.sum(), init=torch.zeros(2, dtype=torch.float64), **how
    )
    settings = [(s.arguments["step_size"].step_size, s.arguments["gamma"]) for s in (of_theta, of_z)]
    assert settings[0] == pytest.approx(settings[1], rel=1e-6)
    ((_, start),), ((_, logs),) = (s.arguments["init"].point.items() for s in (of_theta, of_z))
    assert torch.allclose(start.log(), logs, atol=1e-6)
    draws = samplers.sample(
        mapped(LANGEVIN, theta=z, by=exp), ENERGIES["torch"], steps=2, progress=False, **of_theta.arguments
    )
    assert (draws["theta"] > 0).all()


# ---- maps that read sums over the sites


def shares(x):
    """The first d - 1 of d shares, by additive log-ratios."""
    return exp(x) / (1 + total(exp(x)))


def ratios(x):
    return log(x / (1 - total(x)))


def ball(x):
    """A common shift, then a projection into the ball: three sums, n among them."""
    n = total(1)
    return (x + total(x) / 2) / sqrt(1 + total(x**2) + total(x) ** 2 * (1 + n / 4))


def ball_inverse(x):
    return (x - total(x) / (2 + total(1))) / sqrt(1 - total(x**2))


SUMS = {
    "shares": (shares, ratios),
    "ball": (ball, ball_inverse),
    "shift": (lambda x: x + total(x) / 2, lambda x: x - total(x) / (2 + total(1))),
}


def of_sums(recipe, name):
    by, inverse = SUMS[name]
    return mapped(recipe, theta=z, by=by, inverse=inverse)


BOTH = [*product([LANGEVIN, RIEMANN], SUMS)]


@pytest.mark.parametrize(
    "recipe, name",
    covering(BOTH, [(LANGEVIN, "shares"), (RIEMANN, "shift")]),
    ids=lambda value: getattr(value, "name", value),
)
def test_the_law_is_proved_where_sites_mix(recipe, name):
    other = of_sums(recipe, name)
    assert other.residual() == 0 and other.check().ok


@pytest.mark.parametrize("name", covering(SUMS, but=["ball"]))
def test_the_volume_is_that_of_the_whole_jacobian(name):
    """By the matrix determinant lemma, and by autograd over all sites; of the diagonal alone it is another."""
    (own,) = of_sums(LANGEVIN, name).maps.values()
    at = torch.tensor([[0.3, -1.0, 2.0], [0.1, 0.2, -0.7]], dtype=torch.float64)
    coordinates = Mapped(own).placed(Mapped(own)(at), "here")
    theta, volume = coordinates.with_volume(at)
    jacobian = torch.func.vmap(torch.func.jacrev(coordinates))(at)
    assert torch.allclose(volume, torch.linalg.slogdet(jacobian)[1], rtol=1e-12)
    assert torch.allclose(coordinates.inverse(theta), at, atol=1e-12)
    diagonal = jacobian.diagonal(dim1=1, dim2=2)
    assert (volume - diagonal.abs().log().sum(1)).abs().min() > 0.1


def test_sums_are_over_all_axes_of_a_point():
    (own,) = of_sums(LANGEVIN, "shares").maps.values()
    at = torch.randn(5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    coordinates = Mapped(own).placed(torch.full((5, 2, 3), 0.1, dtype=torch.float64), "here")
    flat = Mapped(own)(at.flatten(1))
    assert torch.allclose(coordinates(at).flatten(1), flat) and float(flat.sum(1).max()) < 1


def dirichlet(x):
    """Of the weights 2, 3, 4, as a function of its first two shares."""
    return -torch.log(x[0]) - 2 * torch.log(x[1]) - 3 * torch.log(1 - x.sum())


EVEN = Energy(share, U=-total(log(share)) - 3 * log(1 - total(share)))  # of the weights 2, 2, 4
DIRICHLETS = {
    "torch": (dirichlet, (2, 3, 4)),
    "by coordinates": (Energy((a, b), U=-log(a) - 2 * log(b) - 3 * log(1 - a - b)), (2, 3, 4)),
    "by site": (EVEN, (2, 2, 4)),
}


@pytest.mark.parametrize("energy", covering(DIRICHLETS, ["by coordinates"]))
def test_shares_have_their_dirichlet_law(energy):
    """Accepted steps: means over 60 steps of 500 chains, and of squares."""
    energy, weights = DIRICHLETS[energy]
    draws = samplers.sample(
        of_sums(LANGEVIN, "shares"),
        energy,
        init={"theta": torch.full((2,), 0.3)},
        mass=1.0,
        chains=500,
        warmup=100,
        steps=60,
        step_size=0.4,
        metropolis=True,
        progress=False,
    )
    x, w, whole = draws["theta"].double(), torch.tensor(weights[:2]), sum(weights)
    assert (x > 0).all() and (x.sum(-1) < 1).all()
    residuals = torch.cat([x - w / whole, x**2 - w * (w + 1) / (whole * (whole + 1))], -1).mean(1)
    scores = {k: standard_score(column) for k, column in enumerate(residuals.unbind(1))}
    assert CLAIMS["coordinates"].failures(scores) == {}


def test_a_bound_energy_cancels_nowhere():
    """1 - total(theta) is 1/(1 + total(exp(z))), whatever z is."""
    bound = of_sums(LANGEVIN, "shares").bind(U=lambda x: -total(log(x)) - 3 * log(1 - total(x)))
    assert bound.check().ok
    expected = 3 * log(1 + total(exp(z))) + log(1 + total(exp(z))) * total(1) - total(z)
    assert simplify(bound.H - of_sums(LANGEVIN, "shares").H.xreplace({potential(z): expected})) == 0


@pytest.mark.parametrize(
    ("recipe", "how", "message"),
    [
        (LANGEVIN, dict(by=shares), "is not looked for, as it mixes sites. Pass inverse="),
        (LANGEVIN, dict(by=shares, inverse=log), "is not the inverse of"),
        (LANGEVIN, dict(by=shares, inverse=ratios, carried=True), "no formulas of one site of z. Leave carried out"),
        (LANGEVIN, dict(by=lambda x: x - 2 * total(x) / (1 + total(1)), inverse=log), "Jacobian is singular somewhere"),
        (LANGEVIN, dict(by=lambda x: gamma * x + total(x), inverse=log), "is of gamma"),
        (LANGEVIN, dict(by=lambda x: x + total(exp(x + total(x))), inverse=log), "no function of a site and of sums"),
        (CIR, dict(by=lambda x: x + total(x) / 2, inverse=log), "at z = -2, 1, and theta is positive"),
    ],
)
def test_maps_of_sums_that_are_none_are_refused(recipe, how, message):
    with pytest.raises(RecipeError, match=message):
        mapped(recipe, theta=z, **how)


# ---- refusals


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (lambda x: x**2, "is not monotone"),
        (lambda x: x**3, "vanishes or changes its sign"),
        (sin, "is not monotone"),
        (Abs, "the Jacobian of .* is missing"),
        (lambda x: function("f", x), "the Jacobian of .* is missing"),
        (lambda x: 1 / x, "has no slope at z = 0"),
        (lambda x: 3, "not of z alone"),
        (lambda x: gamma * x, "is of gamma"),
        (lambda x: exp(x) / total(exp(x)), r"mixes sites.*samplers.coordinates.Simplex\(\) is softmax"),
        (operator("M"), "mixes sites"),
        (lambda x: x + exp(x), "the inverse of .* is not found"),
        (3, "by is a function of z, got 3"),
    ],
)
def test_maps_that_are_none_are_refused(by, message):
    with pytest.raises(RecipeError, match=message):
        mapped(LANGEVIN, theta=z, by=by)


def test_other_mistakes_are_refused():
    with pytest.raises(RecipeError, match="and theta is positive"):
        mapped(CIR, theta=z, by=tanh)
    with pytest.raises(RecipeError, match="is not the inverse of"):
        mapped(CIR, theta=z, by=exp, inverse=lambda x: x)
    with pytest.raises(RecipeError, match="'q' is no block"):
        mapped(LANGEVIN, q=z, by=exp)
    with pytest.raises(RecipeError, match="is no real vector"):
        mapped(LANGEVIN, theta=scalar("s"), by=exp)
    with pytest.raises(RecipeError, match="the name 'p' is taken"):
        mapped(LANGEVIN, theta=vector("p"), by=exp)
    with pytest.raises(RecipeError, match="one block is mapped once"):
        mapped(mapped(LANGEVIN, theta=z, by=exp), z=vector("y"), by=exp)
    with pytest.raises(RecipeError, match="the start is out of the range of theta = exp"):
        samplers.sample(mapped(LANGEVIN, theta=z, by=exp), ENERGIES["torch"], init=-torch.ones(2), step_size=0.1)
