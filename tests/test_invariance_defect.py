"""How far one emitted step moves exp(-H/T), on a quartic: order 3 for palindromes, 2 if consistent, 1 if wrong.

U = theta^4/4 + theta^2/2 - 0.4 theta; mass, temperature, friction and thermostat mass are all away from 1. Adapted
quantities are frozen at values away from 0 and 1, and a budget for gradient noise is met by a noisy gradient.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pytest
from orders import defect, slopes
from spike_and_slab import LATENTS, PRIOR, SPIKE, drawn, mixed, others, shrunk, sigma
from zoo import GENERALISED_LANGEVIN, JOINT, QUARTIC_KINETIC, compiled

from integrators import compile
from recipe import Recipe, euler, force, friction, noise, numerical, positive, vector
from samplers import UnderdampedLangevin, catalogue
from samplers.testing.cases import DENSE, METRIC
from samplers.testing.planted import planted
from samplers.testing.quadrature import boltzmann, gaussian
from samplers.testing.quadrature import gamma as gamma_law

T, m, gamma, A, mu, Dmin, B, light = 1.25, 1.7, 1.1, 0.7, 4.0, 0.8, 0.3, 1.3
V, V_last, root, N = 0.7, 1.9, 0.3, 3
U, gradient = lambda x: x**4 / 4 + x**2 / 2 - 0.4 * x, lambda x: x**3 + x - 0.4


def curvature(x):
    return 3 * x**2 + 1


theta, p, s, c = vector("theta"), vector("p"), vector("s"), positive("c")
WORDS = {"G": euler(p), "R": friction(p), "W": force(p) + noise(p)}


# ---- laws


def quartic(nodes=40, extra=lambda x: 0, scale=1.0):
    """theta under U/scale and more."""
    return {"theta": boltzmann(lambda x: U(x) / scale + extra(x), T, -4.3, 4.3, nodes)}


def thermostat(mean, variance, kink, nodes):
    """A normal law whose integrand has a kink."""
    reach = 8.5 * variance**0.5
    return boltzmann(lambda x: (x - mean) ** 2 / 2, variance, mean - reach, mean + reach, 2 * nodes, [kink])


def relativistic():
    """The momentum m c sinh(u) under the kinetic energy m c^2 (cosh(u) - 1)."""
    mass = m * light**2
    reach = np.arccosh(1 + 45 * T / mass)
    u, weights = boltzmann(lambda u: mass * (np.cosh(u) - 1) - T * np.log(np.cosh(u)), T, -reach, reach, 30)
    return m * light * np.sinh(u), weights


QUARTIC = quartic()
LANGEVIN = QUARTIC | {"p": gaussian(0, m * T)}
NOSE = QUARTIC | {"p": gaussian(0, T, 8), "xi": gaussian(A, T / mu, 8)}
KINKED = QUARTIC | {"p": gaussian(0, m * T, 8), "xi": thermostat(0, T / mu, Dmin, 9)}
EINSTEIN = {"p": relativistic()}

PLANE = {"x": QUARTIC["theta"], "y": gaussian(0, T / 1.2, 16)}  # and the energy .3 x y


def plane_gradient(at):
    return {"x": gradient(at["x"]) + 0.3 * at["y"], "y": 1.2 * at["y"] + 0.3 * at["x"]}


WEIGHT = 9.0  # large: near 0 a reflection is of no order
SIMPLEX = {"theta": boltzmann(lambda x: 0.3 * (x - 6) ** 2 + x - (WEIGHT - 1) * np.log(x), T, 0, 16, 40)}


def simplex_gradient(x):
    return 0.6 * (x - 6)


BINARY = {"gamma": (np.arange(2.0), np.full(2, 0.5))}


# ---- samplers


@dataclass(frozen=True)
class Sampler:
    """A recipe or the name of a stock sampler, its law at T, its parameters, and how the defect is taken."""

    declared: Recipe | str
    law: dict
    parameters: dict = field(default_factory=dict)
    gradient: object = gradient
    options: dict = field(default_factory=dict)
    bind: dict | None = None

    @cached_property
    def recipe(self):
        declared = self.declared if isinstance(self.declared, Recipe) else catalogue[self.declared]
        return declared.bind(**self.bind) if self.bind else declared

    def slope(self, word, pieces, hs, *changes):
        frozen = [a.name for a in self.recipe.adapted]
        step = planted(compiled(self.recipe, word, pieces=pieces, freeze=tuple(frozen)), *changes)
        return slopes(
            step, self.law, self.gradient, hs, **{"draw_nodes": 6, "temperature": T}, **self.parameters, **self.options
        )[0]


def sampler(
    name,
    law=QUARTIC,
    gradient=gradient,
    *,
    bind=None,
    at=None,
    constants=None,
    coupling=None,
    gradient_noise=0.0,
    degree=4,
    **parameters,
):
    options = dict(at=at, constants=constants, coupling=coupling, gradient_noise=gradient_noise, degree=degree)
    return Sampler(name, law, parameters, gradient, options, bind)


THERMOSTAT, FRICTION = {"mu": mu, "A": A}, {"m": m, "C": gamma * m}
ADAPTED = {"V": V, "gbar": 0.2, "tau": 3.0}


def VARYING(h):
    return {"gradient_noise": 2 * B / h}  # which a friction B makes up for, to the leading order


G2 = (root + V_last**0.5) ** -0.5

SAMPLERS = {
    "sgld": sampler("sgld"),
    "sgld-preconditioned": sampler("sgld-preconditioned", G=0.6, V=V, K=0.4, gradient_noise=V),
    "sgld-preconditioned, noisy": sampler(
        "sgld-preconditioned", G=0.6, K=0.4, at=lambda h: {"V": B / h, "gradient_noise": B / h}
    ),
    "psgld": sampler("psgld", lam=root, constants={"V": V}, num_data=N),
    "psgld-same-step": sampler("psgld-same-step", lam=root, constants={"V": V}, num_data=N),
    "psgld-gamma": sampler("psgld-gamma", lam=root, alpha=0.8, constants={"V": V}, num_data=N, curvature=curvature),
    "sgrld": sampler("sgrld", bind=METRIC),
    "sgrld-dense": sampler(
        "sgrld-dense", PLANE, plane_gradient, bind=DENSE, degree=3, coupling=lambda x, y: 0.3 * x * y
    ),
    "sgrld-simplex": sampler("sgrld-simplex", SIMPLEX, simplex_gradient, a=WEIGHT),
    "sgrld-cir": sampler("sgrld-cir", {"theta": gamma_law(1 + (0.6 + 1.3 - 1) / T, T, 5)}, a=0.6, counts=1.3),
    "sgfs": sampler("sgfs", B=1.4, b=1.7, num_data=N, constants={"I1": 0.4}, gradient_noise=N**2 * 0.4 / 1.7),
    "vsgd": sampler("vsgd", V=2.6, gradient_noise=2.6),
    "vsgd at 1": sampler("vsgd", at=lambda h: {"h": 1.0, "V": 2 / h, "gradient_noise": 2 / h}),
    "isgd-ideal at 1": sampler(
        "isgd-ideal", at=lambda h: {"h": 1.0, "lam": 1 / h, "B": B / h, "gradient_noise": 2 * B / h}
    ),
    "isgd": sampler("isgd", at=lambda h: {"constants": {"b": B / h, "lam": 1.4}, "gradient_noise": 2 * B / h}),
    "langevin": sampler("underdamped-langevin", LANGEVIN, m=m, gamma=gamma),
    "sghmc": sampler("sghmc", LANGEVIN, **FRICTION),
    "sghmc, noisy": sampler("sghmc", LANGEVIN, **FRICTION, B=B, at=VARYING),
    "sghmc-adaptive": sampler(
        "sghmc-adaptive",
        QUARTIC | {"p": gaussian(0, (root + V**0.5) * T)},
        gamma=gamma,
        lam=root,
        constants=ADAPTED,
        gradient_noise=V,
    ),
    "sgrhmc": sampler("sgrhmc", QUARTIC | {"p": gaussian(0, T)}, bind=METRIC),
    "sghmc-relativistic": sampler("sghmc-relativistic", QUARTIC | EINSTEIN, **FRICTION, c=light),
    "sghmc-relativistic, noisy": sampler(
        "sghmc-relativistic", QUARTIC | EINSTEIN, **FRICTION, c=light, B=B, at=VARYING
    ),
    "mala": sampler("mala", QUARTIC, G=0.6),
    "hmc": sampler("hmc", LANGEVIN, m=m),
    "hmc-randomised": sampler("hmc-randomised", LANGEVIN, m=m, nu=0.9),
    "ghmc": sampler("ghmc", LANGEVIN, m=m, gamma=gamma),
    "sgnht": sampler("sgnht", NOSE, **THERMOSTAT),
    "msgnht": sampler("msgnht", NOSE, **THERMOSTAT),
    "atmc": sampler("atmc", KINKED, m=m, mu=mu, Dmin=Dmin),
    "atmc, noisy": sampler(
        "atmc",
        quartic(30) | {"p": gaussian(0, m * T, 8), "xi": thermostat(B / (2 * m), T / mu, Dmin, 9)},
        m=m,
        mu=mu,
        Dmin=Dmin,
        B=B,
        at=lambda h: {"gradient_noise": B / h},
    ),
    "atmc-relativistic": sampler(
        "atmc-relativistic", quartic(30) | EINSTEIN | {"xi": KINKED["xi"]}, m=m, c=light, mu=mu, Dmin=Dmin
    ),
    "santa": sampler(
        "santa",
        QUARTIC | {"p": gaussian(0, T, 8), "xi": gaussian(G2, T, 8)},
        lam=root,
        num_data=N,
        constants={"V": V, "V_last": V_last},
    ),
}
for likelihood, scale in {"": sigma**2, "-classification": 1.0}.items():  # of a classification U stands as it is
    latents = dict(law=quartic(40, shrunk, scale), **SPIKE, constants=LATENTS)
    priors = dict(law=quartic(60, mixed, scale), **PRIOR)
    drawn_anew = dict(law=quartic(40, others, scale) | BINARY, **PRIOR, coupling=lambda x, *at: drawn(x, at[-1]))
    for mode, given in {"": latents, "-marginal": priors, "-gibbs": drawn_anew}.items():
        over, under = f"sgld-sa{likelihood}{mode}", f"sghmc-sa{likelihood}{mode}"
        momenta = {"p": gaussian(0, m * T, 9) if mode == "-gibbs" else LANGEVIN["p"]}
        SAMPLERS[over] = sampler(over, **given)
        SAMPLERS[under] = sampler(under, **given | {"law": given["law"] | momenta}, **FRICTION)

SAMPLERS |= {
    "quartic kinetic": Sampler(
        QUARTIC_KINETIC, QUARTIC | {"p": boltzmann(lambda x: x**4 / 4, T, -4.3, 4.3, 40)}, {"c": 0.25}
    ),
    "memory": Sampler(
        GENERALISED_LANGEVIN, QUARTIC | {"p": gaussian(0, T, 8), "s": gaussian(0, T, 8)}, {"a": 1.3, "c": 1.3}
    ),
}
HEUN = {"O": numerical(friction(p) + noise(p), "heun")}

PALINDROMES = [
    *(
        ("langevin", word, WORDS)
        for word in ("B A O A B", "A B O B A", "O B A B O", "O A B A O", "A F A", "F A F", "A R W R A")
    ),
    *((name, word, WORDS) for name in ("sgnht", "msgnht", "atmc") for word in ("B A' O A' B", "A' F A'")),
    ("sgnht", "A' R W R A'", WORDS),
    ("sgnht", "O C A B A C O", {}),
    ("sghmc", "B A O A B", {}),
    ("sghmc, noisy", "A F A", {}),
    ("sghmc, noisy", "A B O B A", {}),
    ("sghmc-adaptive", "A F A", {}),
    ("sghmc-adaptive", "A B O B A", {}),
    ("atmc, noisy", "A' F A'", {}),
    ("sgrhmc", "B A O A B", {}),  # A by Heun's rule, of order 2
    ("sghmc-relativistic", None, {}),
    ("sghmc-relativistic, noisy", None, {}),
    ("atmc-relativistic", None, {}),
    ("hmc-randomised", "B A R A B", {}),
    ("hmc", None, {}),
    ("ghmc", None, {}),
    ("hmc-randomised", "leapfrog", {}),  # R leaves the law as it is, wherever it stands
    ("santa", None, {}),
    *((f"sghmc-sa{mode}", None, {}) for mode in ("", "-classification", "-marginal", "-gibbs")),
    *((f"sghmc-sa-classification-{mode}", None, {}) for mode in ("marginal", "gibbs")),
    ("quartic kinetic", "B A O A B", HEUN),
    ("memory", "B A O A B", JOINT),
]
FIRST_ORDER = ("sgld", "psgld", "sgrld", "sgfs", "vsgd", "isgd", "mala")
CONSISTENT = [
    *((name, None, {}) for name in SAMPLERS if name.startswith(FIRST_ORDER) and name != "sgrld-cir"),
    *(("langevin", word, WORDS) for word in ("Euler", "F A", "A F", "A G", "G A", "B O A", "B A O", "B A O B")),
    *((name, word, WORDS) for name in ("sgnht", "msgnht", "atmc") for word in ("Euler", "F A'", "G A'")),
    ("sghmc", "paper", WORDS),
    ("sghmc", "F A", {}),
    ("sghmc, noisy", "paper", {}),
    ("sghmc-adaptive", "paper", {}),
    ("sghmc-relativistic", "W R A", {}),
    ("atmc-relativistic", "A' W R", {}),
    ("sgrhmc", "paper", {}),
    ("santa", "euler", {}),
    ("sghmc-sa", "paper", {}),
    ("sghmc-sa-gibbs", "J B A O", {}),
    ("quartic kinetic", "B A O A B", {"O": numerical(friction(p) + noise(p), "euler")}),
    ("memory", "Euler", {}),
    ("memory", "O A B", JOINT),
]


def test_every_law_is_asked_of_a_word():
    assert {name for name, *_ in PALINDROMES + CONSISTENT} == set(SAMPLERS) - {"sgrld-cir"}  # which has no defect


@pytest.mark.parametrize("name, word, pieces", PALINDROMES)
def test_a_palindrome_of_exact_flows_has_a_defect_of_third_order(name, word, pieces):
    assert SAMPLERS[name].slope(word, pieces, (0.1, 0.025)) >= 2.9


@pytest.mark.parametrize("name, word, pieces", CONSISTENT)
def test_a_consistent_step_has_a_defect_of_second_order(name, word, pieces):
    assert 1.9 <= SAMPLERS[name].slope(word, pieces, (0.0125, 0.00625)) <= 2.5


def cir_defect(h, *changes):
    """The largest defect of the Cox-Ingersoll-Ross process; its Poisson and Gamma numbers are summed over."""
    cir = SAMPLERS["sgrld-cir"]
    step = planted(compile(cir.recipe), *changes)
    return np.abs(defect(step, cir.law, h, None, temperature=T, draw_nodes=4, **cir.parameters)).max()


@pytest.mark.parametrize("h", [0.2, 1.0, 4.0])
def test_one_exact_flow_has_no_defect_at_any_step_size(h):
    assert cir_defect(h) <= 1e-10


@pytest.mark.parametrize(
    "old, new",
    [
        ("math.exp(-h)/", "math.exp(-h/2)/"),
        ("1 + 1/temperature*a", "1/temperature*a"),
        ("1/temperature*counts", "counts"),
        ("temperature*h*phi1(-h)", "h*phi1(-h)"),
    ],
)
def test_an_error_planted_in_the_exact_flow_has_a_defect(old, new):
    assert cir_defect(1.0, (old, new)) > 0.05


GC = "/num_data**2*c*g*x3*x4"


@pytest.mark.parametrize(
    "name, word, old, new",
    [
        ("sgld", "Euler", "math.sqrt(2*temperature*h)", "math.sqrt(temperature*h)"),
        ("sgld", "Euler", "math.sqrt(2*temperature*h)", "math.sqrt(2*h)"),
        ("sgrld", "Euler", "-2*temperature*theta", "2*temperature*theta"),
        ("sgrld", "Euler", "-2*temperature*theta", "0*theta"),
        ("sgrld", "Euler", "-2*temperature*theta", "-temperature*theta"),
        ("sgrld", "Euler", "-2*temperature*theta", "-2*theta"),
        ("langevin", "B A O A B", "math.sqrt(2*temperature", "math.sqrt(temperature"),
        ("langevin", "B A O A B", "math.exp(-h*gamma)", "math.exp(h*gamma)"),
        ("langevin", "B A O A B", "torch.sqrt(m)", "torch.ones_like(m)"),
        ("langevin", "B A O A B", "h/2/m", "h/m"),
        ("langevin", "B A O A B", "math.exp(-h*gamma)", "math.exp(-h*gamma/m)"),
        ("langevin", "F A", "phi1(-h*gamma)", "0.5"),
        ("sgnht", "B A' O A' B", "temperature/mu", "(-temperature/mu)"),
        ("sgnht", "B A' O A' B", "temperature/mu", "1/mu"),
        ("sgnht", "B A' O A' B", "temperature/mu", "0"),
        ("sgnht", "B A' O A' B", "torch.exp(-h*xi)", "torch.exp(h*xi)"),
        ("sgnht", "B A' O A' B", "math.sqrt(2*temperature*h*A)", "math.sqrt(4*temperature*h*A)"),
        ("msgnht", "A' F A'", "1/mu*p**2", "1/mu*p"),
        ("atmc", "B A' O A' B", "m*torch.clamp", "torch.clamp"),
        ("atmc", "B A' O A' B", "temperature/mu", "2*temperature/mu"),
        ("atmc", "A' F A'", "p*torch.exp(h*(-xi", "p*torch.exp(h*(xi"),
        ("sgld-preconditioned, noisy", None, "(temperature*K + V)", "temperature*K"),
        ("sgld-preconditioned, noisy", None, "h/2*G**2", "h*G**2"),
        ("psgld", None, "torch.sqrt(1/x1)", "1/x1"),
        ("psgld-gamma", None, f"temperature*alpha{GC} - temperature{GC}", "0*x4"),
        ("psgld-gamma", None, f"temperature*alpha{GC} - temperature{GC}", f"temperature{GC} - temperature*alpha{GC}"),
        ("sgrld-dense", None, "temperature/4*x*x1 + temperature/3*x", "0*x"),
        ("sgrld-simplex", None, "temperature + a - 1", "a - 1"),
        ("sgrld-simplex", None, "temperature + a - 1", "a"),
        ("sgfs", None, "torch.sqrt(temperature*x2", "torch.sqrt(x2"),
        ("vsgd at 1", None, "2*temperature/V - 2*h/V", "2*temperature/V"),
        ("isgd-ideal at 1", None, "temperature/lam - h*B/lam**2", "temperature/lam"),
        ("isgd-ideal at 1", None, "h*B/lam**2", "h*B/lam**2/2"),
        ("isgd", None, "h*sites(1/lam**2, theta)*b", "h*sites(1/lam, theta)*b"),
        ("sghmc, noisy", "paper", "(temperature*C - B)", "temperature*(C - B)"),
        ("sghmc, noisy", "A F A", "**2*B/phi1", "**2*0/phi1"),
        ("sghmc-adaptive", "A F A", "x1 - spread_p", "temperature*gamma - spread_p"),
        ("sgrhmc", None, "-temperature*theta/", "0*theta/"),
        ("sgrhmc", None, "-temperature*theta/", "temperature*theta/"),
        ("sghmc-relativistic", None, "c*m*braked(1/(c*m)*p, h*C/(2*m))", "p*math.exp(-h*C/(2*m))"),
        ("sghmc-relativistic", None, "p*torch.sqrt(1/(1 + 1/(c**2*m**2)*p**2))", "p"),
        ("atmc-relativistic", None, "c*m*braked(1/(c*m)*p, h/2*(", "p*torch.exp(-h/2*("),
        ("atmc-relativistic", None, "temperature/mu*x2/(x2 + 1)**(3/2) + ", ""),
        ("atmc-relativistic", None, "1/(m*mu)*x1/(x2 + 1)", "1/(m*mu)*x1"),
        ("atmc, noisy", "A' F A'", "- B/2*x1**2/x2", ""),
        ("hmc-randomised", None, "*torch.sqrt(m), p)", ", p)"),
        ("santa", None, "torch.sqrt(V_last)", "torch.sqrt(V)"),
        ("santa", None, "(p**2 - temperature)", "(p**2 - 1)"),
        ("sgld-sa", None, "kappa*theta*sparse", "kappa*theta"),
        ("sgld-sa", None, "1/sigma**2", "1/sigma"),
        ("sgld-sa-classification", None, "h*(kick_theta*theta - g", "h*(kick_theta*theta - sites(1/sigma**2, theta)*g"),
        ("sgld-sa-marginal", None, "(1 - delta)*math.sqrt(1/v0)", "delta*math.sqrt(1/v0)"),
        ("sghmc-sa-gibbs", None, "kick_p3*theta*gamma", "kick_p2*theta*gamma"),
    ],
)
def test_a_planted_error_has_a_defect_of_first_order(name, word, old, new):
    assert 0.95 <= SAMPLERS[name].slope(word, WORDS, (1e-3, 5e-4), (old, new)) <= 1.05


@pytest.mark.parametrize("word, order", [("leapfrog", 3), ("B A R A B", 2)])
def test_refreshment_at_another_rate_is_another_valid_sampler(word, order):
    """A share of 3 in 10 in every step, however short: half the leapfrogs then end where the momentum is new."""
    slope = SAMPLERS["hmc-randomised"].slope(word, {}, (0.0125, 0.00625), ("1 - math.exp(-h*nu)", "0.3"))
    assert slope == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize(
    "old, new", [("math.log(v1)/2", "math.log(v1)"), ("1/temperature*", ""), ("1/(2*sigma**2*v0)", "1/v0")]
)
def test_wrong_odds_of_a_jump_have_a_defect_of_order_zero(old, new):
    """The jump is as large as ever, however small h."""
    assert abs(SAMPLERS["sgld-sa-gibbs"].slope(None, {}, (1e-3, 5e-4), (old, new))) <= 0.05


def test_a_palindrome_that_forgets_the_noise_of_its_gradient_is_of_second_order():
    change = ("torch.minimum(x1, h/2*V)", "0*x1")
    assert 1.9 <= SAMPLERS["sghmc-adaptive"].slope("A F A", {}, (0.0125, 0.00625), change) <= 2.1


def test_the_defect_of_a_wrong_step_is_h_times_the_generator_of_its_sde():
    """Noise of variance T h for 2 T h: E[L phi] of phi = p^2 is -gamma m T, of the others of degree 2 it is 0."""
    step, h = compile(UnderdampedLangevin, "B A O A B"), 1e-4
    wrong = planted(step, ("math.sqrt(2*temperature", "math.sqrt(temperature"))
    result = defect(wrong, LANGEVIN, h, gradient, degree=2, temperature=T, m=m, gamma=gamma) / h
    of_theta, of_p, of_theta_squared, of_theta_p, of_p_squared = result
    assert of_p_squared == pytest.approx(-gamma * m * T, rel=1e-3)
    assert max(map(abs, (of_p, of_theta, of_theta_p, of_theta_squared))) < 1e-3


def test_the_quadrature_knows_the_moments_of_the_quartic():
    points, weights = boltzmann(U, 1.0, -4.3, 4.3, 48)
    moments = [float(weights @ points**k) for k in range(1, 5)]
    assert moments == pytest.approx([0.185854832046, 0.492700712470, 0.214145167954, 0.581641220348], abs=1e-11)
