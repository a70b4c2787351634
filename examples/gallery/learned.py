"""Diffusions whose D and Q are small networks: whatever these are, the law is exp(-H)."""

import torch
from exhibit import Exhibit

from integrators.networks import network
from recipe import Recipe, grad, numerical, potential, total, vector

theta, p = vector("theta"), vector("p")
U = potential(theta)


def net(seed: int, inputs: int) -> torch.nn.Module:
    """Ten tanh units of what a site sees, the output between 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    layers = torch.nn.Linear(inputs, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1), torch.nn.Sigmoid()
    module = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for weights in module.parameters():
            weights.copy_(0.7 * torch.randn(weights.shape, generator=generator))
    return module


# The meta-learned sampler: the coupling Q sees the energy and the momentum of a site, the friction D its gradient, too.
# Q = beta + q(U, p) and D = alpha Q^2 + d(U, p, grad U) + c, with weights that nobody has trained here: whatever they
# are, Gamma makes the law right. Gong, Li & Hernandez-Lobato 2019.
alpha, beta, c = 1.0, 0.5, 0.1
Q = beta + network(net(1, 2), name="q", sign="positive")(U, p)
D = alpha * Q**2 + network(net(2, 3), name="d", sign="positive")(U, p, grad(U)) + c
meta = Recipe(
    name="meta-learned",
    source="Gong, Li & Hernandez-Lobato 2019, section 3, with weights at random",
    state=(theta, p),
    target=theta,
    H=U + total(p**2) / 2,
    D={p: D},
    Q={(theta, p): -Q},
    pieces={"B": numerical(p, "euler"), "A": numerical(theta, "euler")},
    scheme="B A",
)

GALLERY = [Exhibit(meta, 0.02, steps=40_000)]
