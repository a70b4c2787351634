"""Proposals of a part of H or of the data, or of a law of one's own, accepted or rejected by all of U."""

import torch
from exhibit import BANANA, Exhibit
from sympy import exp

from recipe import (
    Energy,
    Recipe,
    fraction,
    kick,
    laws,
    noise,
    numerical,
    positive,
    potential,
    propose,
    refresh,
    scalar,
    spring,
    temperature,
    total,
    vector,
)
from recipe import step_size as h
from samplers import Metropolis

x, y, px, py = (scalar(name) for name in ("x", "y", "px", "py"))
C = 4  # variance of the prior
H = potential(x, y) + (x**2 + y**2) / (2 * C)
X, Y = BANANA.coordinates
LIKELIHOOD = Energy((X, Y), U=BANANA.U - (X**2 + Y**2) / (2 * C))  # of which, with the prior, the banana is made
PRIOR, FORCE = (spring(x) + noise(x), spring(y) + noise(y)), (kick(x), kick(y))

# The prior's own diffusion, accepted by the likelihood. Cotter, Roberts, Stuart & White 2013, (4.2).
pcn = Recipe(
    name="pcn",
    source="Cotter et al. 2013",
    state=(x, y),
    target=(x, y),
    H=H,
    marginal=H,
    D={x: C, y: C},
    pieces={"O": PRIOR, "K": FORCE},
    scheme="O",
    accepted={"K"},
)

# The force of the likelihood in it, held still for a step. Cotter, Roberts, Stuart & White 2013, (4.6), in closed form.
pcnl = Recipe(
    name="pcnl",
    source="Cotter et al. 2013",
    state=(x, y),
    target=(x, y),
    H=H,
    marginal=H,
    D={x: C, y: C},
    pieces={"X": numerical(x, "exponential"), "Y": numerical(y, "exponential")},
    scheme="X Y",
    metropolis=True,
)

# Momenta of the prior's law, turned by the prior and kicked by the likelihood. Beskos, Pinski, Sanz-Serna & Stuart
# 2011, "Hybrid Monte Carlo on Hilbert spaces".
hilbert = Recipe(
    name="hmc-on-hilbert-spaces",
    source="Beskos et al. 2011",
    state=(x, y, px, py),
    target=(x, y),
    H=H + (px**2 + py**2) / (2 * C),
    marginal=H,
    D={},
    Q={(x, px): -C, (y, py): -C},
    jumps={"R": refresh((px, py))},
    pieces={"S": (x, y, spring(px), spring(py)), "K": (kick(px), kick(py))},
    scheme="K S K R",
    metropolis=True,
)

# Momenta that keep nine tenths of themselves, and turn round at a rejection. Horowitz 1991.
theta, p = vector("theta"), vector("p")
c = fraction("c", default=0.9, doc="share of the momenta that stays")
persistent = Recipe(
    name="persistent-momenta",
    source="Horowitz 1991",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2) / 2,
    D={},
    Q={(theta, p): -1},
    jumps={"R": refresh(p, persistence=c)},
    scheme="R B A B",
    metropolis=True,
)

# The sign of the noise is tilted by the force, whose size a far start does not overshoot. Livingstone & Zanella 2022.
barker = Recipe(
    name="barker",
    source="Livingstone & Zanella 2022",
    state=(theta,),
    H=potential(theta),
    D={theta: 1},
    pieces={"G": numerical(theta, "barker")},
    scheme="G",
    metropolis=True,
)

# The drift moves no coordinate by more than 1, however steep U is. Brosse, Durmus, Moulines & Sabanis 2019, accepted.
tamed = Recipe(
    name="tamed-langevin",
    source="Brosse et al. 2019, accepted",
    state=(theta,),
    H=potential(theta),
    D={theta: 1},
    pieces={"G": numerical(theta, "tamed")},
    scheme="G",
    metropolis=True,
)

# Of every category the first term of H decides, and all sites move together. Zhang, Liu & Liu 2022, (4).
c = vector("c", domain=("categories", 5))
slope = (c**3 - 4 * c**2 + 3 * c) / 2  # of H, as if c were a number
discrete = Recipe(
    name="discrete-langevin",
    source="Zhang, Liu & Liu 2022",
    state=c,
    H=total(c**4 / 8 - 2 * c**3 / 3 + 3 * c**2 / 4),
    D={},
    jumps={
        "P": propose(
            c,
            laws.Categorical(*(exp(-slope * (k - c) / (2 * temperature) - (k - c) ** 2 / (2 * h)) for k in range(5))),
        )
    },
    scheme="P",
)

# Gradients of minibatches, and U of all data once in four steps. Zhang, Cooper & De Sa 2020, with an exact friction.
gamma = positive("gamma", default=1.0, doc="friction rate")
amagold = Recipe(
    name="amagold",
    source="Zhang, Cooper & De Sa 2020",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2) / 2,
    D={p: gamma},
    Q={(theta, p): -1},
    scheme="A F A",
)

ROWS = torch.linspace(-4, 4, 20)  # of mean 0: all of them make the banana, a few a banana on a slope
ON_FOUR_ROWS = {"data": ROWS, "batch_size": 4, "metropolis": Metropolis(repeat=4, minibatches=True)}


def of_batch(z: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """U of a batch."""
    return z[0] ** 2 / 2 + (z[1] - z[0] ** 2) ** 2 / 2 + (rows * (z[0] - z[1])).mean()


GALLERY = (
    Exhibit(pcn, step_size=0.1, steps=40_000, energy=LIKELIHOOD),
    Exhibit(pcnl, step_size=0.05, steps=40_000, energy=LIKELIHOOD),
    Exhibit(hilbert, step_size=0.5, steps=40_000, energy=LIKELIHOOD),
    Exhibit(barker, step_size=0.3, steps=40_000),
    Exhibit(tamed, step_size=0.3, steps=40_000),
    Exhibit(discrete, step_size=2.0, steps=40_000),
    Exhibit(persistent, step_size=0.4, steps=40_000),
    Exhibit(amagold, step_size=0.15, steps=4_000, energy=of_batch, values=ON_FOUR_ROWS),
)
