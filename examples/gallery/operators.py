"""Matrices over the sites: dense masses and preconditioners, frictions, currents, Fisher information."""

import torch
from exhibit import Exhibit

from integrators.adapting import Covariance
from integrators.operators import Field, Kronecker
from recipe import Recipe, logdet, operator, positive, potential, refresh, step_size, temperature, total, vector

theta, p = vector("theta"), vector("p")
M, J = operator("M"), operator("J", kind="skew")
U = potential(theta)
gamma = positive("gamma", default=1.0, doc="friction rate")
KINETIC = U + total(p * M.inverse(p)) / 2
TURNS = {(theta, p): -1}

# A covariance that is known beforehand. Roberts & Stramer 2002, section 2.
preconditioned = Recipe(name="dense-preconditioner", source="Roberts & Stramer 2002", state=theta, H=U, D={theta: M})

# Masses that are a matrix, in Hamiltonian dynamics and in Langevin's. Neal 2011, section 4.1.
mass = Recipe(name="dense-mass", source="Neal 2011", state=(theta, p), H=KINETIC, D={p: gamma * M}, Q=TURNS)
hamiltonian = Recipe(
    name="hmc-with-dense-mass",
    source="Neal 2011, section 4.1",
    state=(theta, p),
    H=KINETIC,
    D={},
    Q=TURNS,
    jumps={"R": refresh(p)},
    scheme="R B A B A B A B A B",
    metropolis=True,
)

# A mass that is the inverse of the warmup's covariance. Carpenter et al. 2017, section 3.4.
C = operator("C")
warmed = Recipe(
    name="hmc-that-adapts-its-mass",
    source="Carpenter et al. 2017, section 3.4",
    state=(theta, p),
    H=U + total(p * C(p)) / 2,
    D={},
    Q=TURNS,
    jumps={"R": refresh(p)},
    scheme="R B A B A B A B A B",
    metropolis=True,
)

# A metric that is a function of theta: on the banana the inverse of J^T J, with J the slope of (x, y - x^2).
# Girolami & Calderhead 2011, section 5; Xifara et al. 2014.
G_inverse = operator("G_inverse", at=theta)
manifold = Recipe(
    name="manifold-langevin", source="Girolami & Calderhead 2011, section 5", state=theta, H=U, D={theta: G_inverse}
)


def inverse_metric(theta: torch.Tensor) -> torch.Tensor:
    """The inverse of J^T J, [[1, 2x], [2x, 1 + 4x^2]]."""
    x, one = theta[0], torch.ones_like(theta[0])
    return torch.stack([torch.stack([one, 2 * x]), torch.stack([2 * x, 1 + 4 * x**2])])


def divergence_of_inverse(theta: torch.Tensor) -> torch.Tensor:
    """Its row divergence, (0, 2)."""
    return torch.tensor([0.0, 2.0], dtype=theta.dtype)


# A metric in the kinetic energy, which is that of the Hessian's absolute values, made smooth: (S^2 + 1)^(1/2).
# Girolami & Calderhead 2011, section 4; Betancourt 2013, section 3.
metric = operator("metric", at=theta)
riemannian = Recipe(
    name="riemannian-hmc",
    source="Girolami & Calderhead 2011, section 4; Betancourt 2013",
    state=(theta, p),
    H=U + total(p * metric.inverse(p)) / 2 + temperature * logdet(metric) / 2,
    D={},
    Q=TURNS,
    jumps={"R": refresh(p)},
    scheme="R L L L L",
    metropolis=True,
)


def softened_hessian(theta: torch.Tensor) -> torch.Tensor:
    """(S^2 + 1)^(1/2) of the Hessian S of the banana, by the square root of a 2 x 2 matrix in closed form."""
    x, y = theta
    S = torch.stack([1 - 2 * (y - x**2) + 4 * x**2, -2 * x, -2 * x, torch.ones_like(x)]).reshape(2, 2)
    identity = torch.eye(2, dtype=theta.dtype)
    square = S @ S + identity
    root = (square[0, 0] * square[1, 1] - square[0, 1] ** 2).sqrt()
    return (square + root * identity) / (square[0, 0] + square[1, 1] + 2 * root).sqrt()


# A current that does no work. Lelievre, Nier & Pavliotis 2013.
current = Recipe(
    name="linear-current",
    source="Lelievre, Nier & Pavliotis 2013",
    state=theta,
    H=U,
    D={theta: 1},
    Q={theta: J},
)

# A magnetic field on vectors. Tripuraneni, Rowland, Ghahramani & Turner 2017.
field = Recipe(
    name="magnetic-on-vectors",
    source="Tripuraneni et al. 2017",
    state=(theta, p),
    H=U + total(p**2) / 2,
    D={p: gamma},
    Q={**TURNS, p: J},
)

# Friction by direction: what the covariance of the gradient says is hot. Chen, Fox & Guestrin 2014, eq. (10).
B_hat = operator("B_hat", kind="semidefinite")
friction = Recipe(
    name="friction-matrix",
    source="Chen, Fox & Guestrin 2014",
    state=(theta, p),
    H=U + total(p**2) / 2,
    D={p: gamma + B_hat},
    Q=TURNS,
)

# Gradients that are smoothed along the sites by their Laplacian. Wang, Zou, Gu & Osher 2021.
L, sigma = operator("L", kind="semidefinite", doc="Laplacian"), positive("sigma", default=1.0)
smoothed = Recipe(
    name="laplacian-smoothing", source="Wang, Zou, Gu & Osher 2021", state=theta, H=U, D={theta: 1 / (1 + sigma * L)}
)

# The whole Fisher matrix, with noise that is exact on a Gaussian at every step size. Ahn, Korattikara & Welling 2012.
F, B = operator("F", kind="semidefinite", doc="Fisher information"), positive("B", default=1.0)
G = 1 / (B + step_size * F / 2)
scoring = Recipe(
    name="sgfs-with-fisher-matrix",
    source="Ahn, Korattikara & Welling 2012, eq. (16)",
    state=theta,
    H=U,
    D={theta: G},
    supplied={theta: temperature * step_size * G**2 * F / 2},
)

# A Kronecker product for each layer, damped. Marceau-Caron & Ollivier 2017; Martens & Grosse 2015.
damping = positive("damping", default=0.5)
kfac = Recipe(
    name="kfac-langevin", source="Marceau-Caron & Ollivier 2017", state=theta, H=U, D={theta: 1 / (damping + F)}
)

DENSE = torch.tensor([[1.0, 0.5], [0.5, 2.0]], dtype=torch.float64)
SKEW = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
PATH = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)

GALLERY = [
    Exhibit(preconditioned, 0.01, 40_000, values={"M": DENSE}),
    Exhibit(mass, 0.1, 10_000, values={"M": DENSE}),
    Exhibit(hamiltonian, 1.2, 5000, values={"M": DENSE}),
    Exhibit(warmed, 0.5, 5000, values={"C": Covariance()}),
    Exhibit(manifold, 0.015, 6000, values={"G_inverse": Field(inverse_metric, divergence=divergence_of_inverse)}),
    Exhibit(riemannian, 1.2, 100, values={"metric": Field(softened_hessian)}),
    Exhibit(current, 0.01, 40_000, values={"J": SKEW}),
    Exhibit(field, 0.1, 10_000, values={"J": SKEW}),
    Exhibit(friction, 0.1, 10_000, values={"B_hat": PATH}),
    Exhibit(smoothed, 0.02, 40_000, values={"L": PATH}),
    Exhibit(scoring, 0.02, 40_000, values={"F": DENSE}),
    Exhibit(kfac, 0.01, 40_000, values={"F": Kronecker([[1.5]], DENSE)}),
]
