"""Thermostats: variables that heat and cool the momenta until their temperature is right."""

from exhibit import Exhibit
from sympy import exp

from recipe import Recipe, friction, noise, positive, potential, scalar, total, vector

theta, p, r, xi = vector("theta"), vector("p"), vector("r"), scalar("xi")
gamma, mu = positive("gamma", default=1.0), positive("mu", default=1.0)
A = positive("A", default=1.0, doc="friction")
U, n = potential(theta), total(1)
KINETIC = U + total(p**2) / 2
TURNS = {(theta, p): -1}

# Noise in the thermostat alone. Leimkuhler, Noorizadeh & Theil 2009.
nose_hoover_langevin = Recipe(
    name="nose-hoover-langevin",
    source="Leimkuhler, Noorizadeh & Theil 2009",
    state=(theta, p, xi),
    target=theta,
    H=KINETIC + n * mu * xi**2 / 2,
    D={xi: gamma / (n * mu)},
    Q={**TURNS, (p, xi): p / (n * mu)},
    scheme="B A O C O A B",
)


def chain(links):
    """Each thermostat has one of its own. Martyna, Klein & Tuckerman 1992, with noise at the last."""
    first, *rest = xi = [scalar(f"xi{k + 1}") for k in range(links)]
    Q = {**TURNS, (p, first): p / (n * mu)}
    Q |= {(a, b): (a if a != first else n * a) / (n * mu) for a, b in zip(xi, rest)}
    return Recipe(
        name=f"nose-hoover-chain-of-{links}",
        source="Martyna, Klein & Tuckerman 1992",
        state=(theta, p, *xi),
        target=theta,
        H=KINETIC + n * mu * first**2 / 2 + sum(mu * link**2 / 2 for link in rest),
        D={p: 0.3, xi[-1]: gamma},
        Q=Q,
    )


# The covariance of the gradient is known: its friction is taken off the thermostat's. Shang et al. 2015.
S = positive("S", default=0.3, per=theta, doc="covariance of the gradient")
ccadl = Recipe(
    name="ccadl",
    source="Shang, Zhu, Leimkuhler & Storkey 2015",
    state=(theta, p, xi),
    target=theta,
    H=KINETIC + n * mu * (xi - A) ** 2 / 2,
    D={p: A + S},
    Q={**TURNS, (p, xi): p / (n * mu)},
)

# One thermostat a site, as of multivariate SGNHT, each held by noise of its own.
by_site = Recipe(
    name="noisy-thermostats",
    source="Ding et al. 2014 with the noise of Leimkuhler et al. 2009",
    state=(theta, p, r),
    target=theta,
    H=KINETIC + total(mu * r**2) / 2,
    D={p: A / 2, r: 1},
    Q={**TURNS, (p, r): p / mu},
)

# The virial is thermostatted, not the kinetic energy: xi moves theta. Samoletov, Dettmann & Chaplain 2007.
configurational = Recipe(
    name="configurational-thermostat",
    source="Samoletov, Dettmann & Chaplain 2007",
    state=(theta, xi),
    target=theta,
    H=U + n * mu * xi**2 / 2,
    D={theta: 1, xi: gamma / (n * mu)},
    Q={(theta, xi): theta / (n * mu)},
    scheme="Euler",
)

# Kinetic and noise of friction cut apart: the word R W R about the middle.
cut = Recipe(
    name="friction-apart",
    source="Leimkuhler & Shang 2016, the symmetric word of SGNHT",
    state=(theta, p, xi),
    target=theta,
    H=KINETIC + n * mu * (xi - A) ** 2 / 2,
    D={p: A},
    Q={**TURNS, (p, xi): p / (n * mu)},
    pieces={"R": friction(p), "W": noise(p)},
    scheme="B A' R W R A' B",
)

# Friction and noise of two particles are along their difference, with one thermostat. Leimkuhler & Shang 2016.
x, y, px, py = (scalar(name) for name in ("x", "y", "px", "py"))
near = exp(-((x - y) ** 2) / 8)
pairwise = Recipe(
    name="pairwise-thermostat",
    source="Leimkuhler & Shang 2016",
    state=(x, y, px, py, xi),
    target=(x, y),
    H=potential(x, y) + (px**2 + py**2) / 2 + mu * xi**2 / 2,
    D={px: gamma * near, py: gamma * near, (px, py): -gamma * near},
    Q={(x, px): -1, (y, py): -1, (px, xi): near * (px - py) / mu, (py, xi): near * (py - px) / mu},
    scheme="B A C O C A B",
)

GALLERY = [
    Exhibit(nose_hoover_langevin),
    Exhibit(chain(2)),
    Exhibit(chain(3)),
    Exhibit(ccadl),
    Exhibit(by_site),
    Exhibit(configurational, 0.005),
    Exhibit(cut),
    Exhibit(pairwise, steps=10_000),
]
