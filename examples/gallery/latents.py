"""Blocks that are drawn from their law given all else, between the steps of the target."""

import math

from exhibit import Exhibit
from scipy.special import exp1
from sympy import exp, log

from recipe import Recipe, by_category, gibbs, laws, positive, scalar, total, vector

theta, p = vector("theta"), vector("p")
a, b = positive("a", default=2.0), positive("b", default=1.0)
n, S = total(1), total(theta**2)
LIKELIHOOD = total((theta - 1) ** 2) / 2


def langevin(name, source, latents, H, jumps, scheme="B A O A B G"):
    """Langevin dynamics of theta, with latents."""
    state, Q = (theta, p, *latents), {(theta, p): -1}
    H = H + total(p**2) / 2
    return Recipe(name=name, source=source, state=state, target=theta, H=H, D={p: 1}, Q=Q, jumps=jumps, scheme=scheme)


# The precision of the prior, as in the experiments of Chen, Fox & Guestrin (2014).
tau = scalar("tau", domain="positive")
hyperprior = langevin(
    "hyperprior",
    "Chen, Fox & Guestrin 2014, section 5",
    [tau],
    LIKELIHOOD + tau * (S / 2 + b) - (a + n / 2 - 1) * log(tau),
    {"G": gibbs(tau, laws.Gamma(a + n / 2, b + S / 2))},
)

# Student's t as a mixture over a variance for each site. West 1987.
v = vector("v", domain="positive")
scale_mixture = langevin(
    "student-prior",
    "West 1987",
    [v],
    LIKELIHOOD + total(theta**2 / v) / 2 + total((a + 1.5) * log(v) + b / v),
    {"G": gibbs(v, laws.InverseGamma(a + 0.5, b + theta**2 / 2))},
)

# The horseshoe: half-Cauchy scales by two inverse Gammas, and no step but draws. Makalic & Schmidt 2016, eqs. (4)-(5).
lam, nu = vector("lam", domain="positive"), vector("nu", domain="positive")
shrunk = lam / (1 + lam)
horseshoe = Recipe(
    name="horseshoe",
    source="Makalic & Schmidt 2016",
    state=(theta, lam, nu),
    target=theta,
    H=LIKELIHOOD + total(theta**2 / lam) / 2 + total(2 * log(lam) + 1 / (lam * nu) + 2 * log(nu) + 1 / nu),
    D={},
    jumps={
        "T": gibbs(theta, laws.Normal(shrunk, shrunk)),
        "L": gibbs(lam, laws.InverseGamma(1, 1 / nu + theta**2 / 2)),
        "N": gibbs(nu, laws.InverseGamma(1, 1 + 1 / lam)),
    },
    scheme="T L N",
)

# A spike and a slab, and the share of slabs with its Beta prior. George & McCulloch 1993.
on, share = vector("on", domain="binary"), scalar("share", domain="fraction")
v0, v1 = positive("v0", default=0.05), positive("v1", default=4.0)
cost = log(v1 / v0) / 2 - theta**2 / 2 * (1 / v0 - 1 / v1)
number = total(on)
inclusion = langevin(
    "spike-and-slab-with-share",
    "George & McCulloch 1993",
    [on, share],
    LIKELIHOOD
    + total(theta**2) / (2 * v0)
    + total(on * cost)
    - (a - 1 + number) * log(share)
    - (b - 1 + n - number) * log(1 - share),
    {
        "J": gibbs(on, laws.Bernoulli(1 / (1 + exp(cost) * (1 - share) / share))),
        "G": gibbs(share, laws.Beta(a + number, b + n - number)),
    },
    scheme="B A O A B J G",
)

# A mixture of three wells, the well drawn. Diebolt & Robert 1994.
well = vector("well", domain=("categories", 3))
CENTRES, WEIGHTS = (-2, 0, 2), (a, 1, b)
mixture = langevin(
    "mixture",
    "Diebolt & Robert 1994",
    [well],
    total((theta - by_category(well, *CENTRES)) ** 2) / 2 - total(log(by_category(well, *WEIGHTS))),
    {"G": gibbs(well, laws.Categorical(*(w * exp(-((theta - c) ** 2) / 2) for w, c in zip(WEIGHTS, CENTRES))))},
)

GALLERY = [
    Exhibit(hyperprior, steps=10_000),
    Exhibit(scale_mixture, steps=10_000, density=lambda z: (1 + z**2 / 2) ** -2.5 * math.exp(-((z - 1) ** 2) / 2)),
    Exhibit(horseshoe, steps=2000, density=lambda z: exp1(z**2 / 2) * math.exp(z**2 / 2 - (z - 1) ** 2 / 2)),
    Exhibit(inclusion, 0.05, steps=5000),
    Exhibit(mixture, steps=10_000),
]
