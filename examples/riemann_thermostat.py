"""A thermostat with a metric: each parameter moves in proportion to S(theta), and absorbs its own gradient noise.

Not in the stock list. Added to mSGNHT (Gan et al. 2015) is the site-wise metric S(theta)^-2. The force enters the
momentum as S grad U, and a noisy gradient of covariance V_g brings the noise S^2 V_g: friction and thermostat carry the
same S^2, so that where V_g = diag(v) is constant the mean of xi moves to A + h v/2 and the marginal of theta stays.
D and Q depend on the state: Gamma_p = S'(theta), Gamma_xi = -S(theta)^2/mu, and without them the SDE has another law.
"""

from sympy import sqrt

from recipe import Recipe, function, numerical, positive, potential, total, vector

theta, p, xi = vector("theta"), vector("p"), vector("xi")
A = positive("A", default=1.0, doc="friction = injected noise, per unit of time")
mu = positive("mu", default=1.0, doc="thermostat mass")
l = positive("l", default=3.0, doc="distance from the centre at which the steps begin to grow")
S = function("S", theta, sign="positive")

RiemannThermostat = Recipe(
    name="riemann-thermostat",
    source="after Ma, Chen & Fox 2015 and Gan et al. 2015",
    state=(theta, p, xi),
    target=theta,
    H=potential(theta) + total(p**2) / 2 + total(mu * (xi - A) ** 2) / 2,
    D={p: A * S**2},
    Q={(theta, p): -S, (p, xi): S**2 * p / mu},
    pieces={"A": numerical(theta, "heun")},  # dtheta = S(theta) p dt has no closed form in the table
    scheme="B A C O C A B",
)

TailThermostat = RiemannThermostat.bind(S=lambda theta: sqrt(1 + (theta / l) ** 2))  # long steps in the tails
