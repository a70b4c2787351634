"""How far one emitted step moves exp(-H/T), on a quartic: order 3 for palindromes, 2 if consistent, 1 if wrong (B.5).

U = theta^4/4 + theta^2/2 - 0.4 theta; mass, temperature, friction and thermostat mass are all away from 1.
"""

import pytest
from invariance import boltzmann, defect, gaussian, planted, slopes, thermostat

from integrators import compile
from recipe import Recipe, euler, force, friction, noise, numerical, positive, potential, total, vector
from samplers import ATMC, MSGNHT, SGHMC, SGLD, SGNHT, SGRLD, UnderdampedLangevin

T, m, gamma, A, mu, Dmin = 1.25, 1.7, 1.1, 0.7, 4.0, 0.8
U, gradient = lambda x: x**4 / 4 + x**2 / 2 - 0.4 * x, lambda x: x**3 + x - 0.4
theta, p, s, c = vector("theta"), vector("p"), vector("s"), positive("c")
WORDS = {"G": euler(p), "R": friction(p), "W": force(p) + noise(p)}

QUARTIC = {"theta": boltzmann(U, T, -4.3, 4.3, 40)}
LANGEVIN = QUARTIC | {"p": gaussian(0, m * T)}
NOSE = QUARTIC | {"p": gaussian(0, T, 8), "xi": gaussian(A, T / mu, 8)}
KINKED = QUARTIC | {"p": gaussian(0, m * T, 8), "xi": thermostat(0, T / mu, Dmin, 9)}

Metric = SGRLD.bind(inverse_metric=lambda t: 1 / (1 + t**2))
QuarticKinetic = Recipe(name="quartic-kinetic", state=(theta, p), target=theta, D={p: c}, Q={(theta, p): -1},
                        H=potential(theta) + total(p**4) / 4)
Memory = Recipe(name="memory", state=(theta, p, s), target=theta, D={s: c}, Q={(theta, p): -1, (p, s): c},
                H=potential(theta) + total(p**2) / 2 + total(s**2) / 2)

# recipe, law, parameters
SAMPLERS = {
    "sgld": (SGLD, QUARTIC, {}),
    "sgrld": (Metric, QUARTIC, {}),
    "langevin": (UnderdampedLangevin, LANGEVIN, {"m": m, "gamma": gamma}),
    "sghmc": (SGHMC, LANGEVIN, {"m": m, "C": gamma * m}),
    "sgnht": (SGNHT, NOSE, {"A": A, "mu": mu}),
    "msgnht": (MSGNHT, NOSE, {"A": A, "mu": mu}),
    "atmc": (ATMC, KINKED, {"m": m, "mu": mu, "Dmin": Dmin}),
    "quartic kinetic": (QuarticKinetic, QUARTIC | {"p": boltzmann(lambda x: x**4 / 4, T, -4.3, 4.3, 40)}, {"c": 0.25}),
    "memory": (Memory, QUARTIC | {"p": gaussian(0, T, 8), "s": gaussian(0, T, 8)}, {"c": 1.3}),
}
HEUN = {"O": numerical(friction(p) + noise(p), "heun")}
JOINT = {"O": (friction(p), s)}

PALINDROMES = [
    *(("langevin", word, WORDS) for word in
      ("B A O A B", "A B O B A", "O B A B O", "O A B A O", "A F A", "F A F", "A R W R A")),
    ("sghmc", "B A O A B", {}),
    *((name, word, WORDS) for name in ("sgnht", "msgnht", "atmc") for word in ("B A' O A' B", "A' F A'")),
    ("sgnht", "A' R W R A'", WORDS), ("sgnht", "O C A B A C O", {}),
    ("quartic kinetic", "B A O A B", HEUN), ("memory", "B A O A B", JOINT),
]
CONSISTENT = [
    *(("langevin", word, WORDS) for word in ("Euler", "F A", "A F", "A G", "G A", "B O A", "B A O", "B A O B")),
    *((name, word, WORDS) for name in ("sgnht", "msgnht", "atmc") for word in ("Euler", "F A'", "G A'")),
    ("sgld", "Euler", {}), ("sgrld", "Euler", {}), ("sghmc", "A G", WORDS), ("sghmc", "F A", {}),
    ("quartic kinetic", "B A O A B", {"O": numerical(friction(p) + noise(p), "euler")}),
    ("memory", "Euler", {}), ("memory", "O A B", JOINT),
]


def slopes_of(name, word, pieces, hs, *changes):
    recipe, law, parameters = SAMPLERS[name]
    step = compile(recipe, word, pieces=pieces)
    return slopes(planted(step, *changes), law, gradient, hs, draw_nodes=6, temperature=T, **parameters)


@pytest.mark.parametrize("name, word, pieces", PALINDROMES)
def test_a_palindrome_of_exact_flows_has_a_defect_of_third_order(name, word, pieces):
    assert slopes_of(name, word, pieces, (0.1, 0.025))[0] >= 2.9


@pytest.mark.parametrize("name, word, pieces", CONSISTENT)
def test_a_consistent_step_has_a_defect_of_second_order(name, word, pieces):
    assert 1.9 <= slopes_of(name, word, pieces, (0.0125, 0.00625))[0] <= 2.5


@pytest.mark.parametrize("name, word, old, new", [
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
])
def test_a_planted_error_has_a_defect_of_first_order(name, word, old, new):
    assert 0.8 <= slopes_of(name, word, WORDS, (0.0125, 0.00625), (old, new))[0] <= 1.2


def test_the_defect_of_a_wrong_step_is_h_times_the_generator_of_its_sde():
    """Noise of variance T h for 2 T h: E[L phi] of phi = p^2 is -gamma m T, of the others of degree 2 it is 0."""
    step, h = compile(UnderdampedLangevin, "B A O A B"), 1e-4
    wrong = planted(step, ("math.sqrt(2*temperature", "math.sqrt(temperature"))
    found = defect(wrong, LANGEVIN, h, gradient, degree=2, temperature=T, m=m, gamma=gamma) / h
    of_p, of_p_squared, of_theta, of_theta_p, of_theta_squared = found
    assert of_p_squared == pytest.approx(-gamma * m * T, rel=1e-3)
    assert max(map(abs, (of_p, of_theta, of_theta_p, of_theta_squared))) < 1e-3


def test_the_quadrature_knows_the_moments_of_the_quartic():
    points, weights = boltzmann(U, 1.0, -4.3, 4.3, 48)
    moments = [float(weights @ points**k) for k in range(1, 5)]
    assert moments == pytest.approx([0.185854832046, 0.492700712470, 0.214145167954, 0.581641220348], abs=1e-11)
