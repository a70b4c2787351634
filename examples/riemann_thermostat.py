"""A Riemannian Nose-Hoover thermostat: long moves in the tails, and gradient noise of unknown size absorbed.

The site-wise metric S(theta)^-2, S = sqrt(1 + (theta/l)^2), lets each parameter move in proportion to its distance from
the centre. The force then enters the momentum as S grad U, and so does its noise, with covariance S^2 V_g: friction and
thermostat carry the same S^2, so that for a gradient of covariance diag(V_g) the mean of xi moves to A + h V_g/2 and the
marginal of theta stays. Gamma_p = S'(theta) and Gamma_xi = -S(theta)^2/mu; the SDE without them has another law.
"""

from sympy import sqrt

from recipe import Recipe, numerical, positive, potential, total, vector

theta, p, xi = vector("theta"), vector("p"), vector("xi")
A = positive("A", default=1.0, doc="friction = injected noise, per unit of time")
mu = positive("mu", default=1.0, doc="thermostat mass")
l = positive("l", default=3.0, doc="length beyond which the moves grow with theta")
S = sqrt(1 + (theta / l)**2)

RiemannThermostat = Recipe(
    name="riemann-thermostat", source="this file, after Ma, Chen & Fox 2015 and Gan et al. 2015",
    state=(theta, p, xi), target=theta,
    H=potential(theta) + total(p**2) / 2 + total(mu * (xi - A)**2) / 2,
    D={p: A * S**2},
    Q={(theta, p): -S, (p, xi): S**2 * p / mu},
    pieces={"A": numerical(theta, "heun")},   # dtheta = S(theta) p dt is not in the table of closed forms
    scheme="B A C O C A B",
)
