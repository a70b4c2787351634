"""Drifts as somebody may write them down, with one mistake each: an energy, a diffusion and what the drift lacks."""

from sympy import diff, sqrt

from recipe import function, grad, positive, potential, scalar, total, vector

theta, p, v, xi = vector("theta"), vector("p"), vector("v"), scalar("xi")
A, B, m, mu, c = (positive(name) for name in ("A", "B", "m", "mu", "c"))
U, n, slope = potential(theta), total(1), grad(potential(theta))
alpha = function("alpha", v, sign="nonnegative")

gaussian = U + total(p**2 / m) / 2
relativistic = U + total(m * c**2 * sqrt(1 + p**2 / (m * c) ** 2))
speed = p / (m * sqrt(1 + p**2 / (m * c) ** 2))
private, shared = total(mu * (v - B / m / 2) ** 2) / 2, n * mu * (xi - A) ** 2 / 2
noise = {p: alpha * m + B / 2}

# the energy, the drift, D, what is missing in the drift, and words of the diagnosis
WRONG = {
    "naive SGHMC": (
        gaussian,
        {theta: p / m, p: -slope},
        {p: A},
        {p: -A * p / m},
        "the drift has 0 times the friction D grad H of p",
    ),
    "naive relativistic SGHMC": (
        relativistic,
        {theta: speed, p: -slope},
        {p: A},
        {p: -A * speed},
        "the drift has 0 times the friction D grad H of p",
    ),
    "noise doubled": (
        gaussian,
        {theta: p / m, p: -slope - A * p / m},
        {p: 2 * A},
        {p: -A * p / m},
        "the drift has 1/2 times the friction D grad H of p",
    ),
    "friction doubled": (
        gaussian,
        {theta: p / m, p: -slope - 2 * A * p / m},
        {p: A},
        {p: A * p / m},
        "the drift has 2 times the friction",
    ),
    "noise without the mass": (
        gaussian + private,
        {theta: p / m, p: -slope - (alpha + v) * p, v: (p**2 / m - 1) / mu},
        {p: alpha + B / 2},
        {p: alpha * p - alpha * p / m},
        "cools",
    ),
    "friction without the thermostat": (
        gaussian + private,
        {theta: p / m, p: -slope - alpha * p, v: (p**2 / m - 1) / mu},
        noise,
        {p: -v * p},
        "worst",
    ),
    "thermostat p^2 - 1": (
        gaussian + private,
        {theta: p / m, p: -slope - (alpha + v) * p, v: (p**2 - 1) / mu},
        noise,
        {v: (p**2 / m - p**2) / mu},
        "alpha(v) =",
    ),
    "thermostat p^2/m - 2": (
        gaussian + shared,
        {theta: p / m, p: -slope - xi * p, xi: (total(p**2 / m) / n - 2) / mu},
        {p: A * m},
        {xi: 1 / mu},
        "the drift has 2 times Gamma[xi] = -1/mu",
    ),
    "shared Gamma without 1/n": (
        gaussian + shared,
        {theta: p / m, p: -slope - xi * p, xi: (total(p**2 / m) / n - n) / mu},
        {p: A * m},
        {xi: (n - 1) / mu},
        "it takes several",
    ),
    "Gaussian thermostat": (
        relativistic + private,
        {theta: speed, p: -slope - m * (alpha + v) * speed, v: (p**2 / m - 1) / mu},
        noise,
        {v: (m * speed**2 - m * diff(speed, p) - p**2 / m + 1) / mu},
        "worst",
    ),
    "Gamma dropped": (
        U,
        {theta: -(1 + theta**2) * slope},
        {theta: 1 + theta**2},
        {theta: 2 * theta},
        "the drift has 0 times Gamma[theta] = 2*theta",
    ),
    "Q of one sign in both rows": (gaussian, {theta: -p / m, p: -slope - A * p / m}, {p: A}, {p: 2 * slope}, "worst"),
}
