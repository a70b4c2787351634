"""Diffusions whose D and Q are small networks: whatever these are, the law is exp(-H)."""

import torch
from exhibit import Exhibit

from integrators.networks import network
from recipe import Recipe, function, potential, total, vector

theta, p = vector("theta"), vector("p")


def net(seed: int) -> torch.nn.Module:
    """Sixteen tanh units of a site's (theta, p), the output between 1/2 and 3/2."""
    generator = torch.Generator().manual_seed(seed)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1), torch.nn.Sigmoid())
    with torch.no_grad():
        for weights in layers.parameters():
            weights.copy_(0.7 * torch.randn(weights.shape, generator=generator))
    return torch.nn.Sequential(layers, Shifted())


class Shifted(torch.nn.Module):
    """x + 1/2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its value."""
        return x + 0.5


# The meta-learned sampler: friction and coupling are networks of what a site sees. Here they see theta in the place of
# the energy and of its gradient. Gong, Li & Hernandez-Lobato 2019.
friction, coupling = function("friction", theta, p, sign="positive"), function("coupling", theta, p, sign="positive")
open_recipe = Recipe(
    name="meta-learned",
    source="Gong, Li & Hernandez-Lobato 2019, section 3",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2) / 2,
    D={p: friction},
    Q={(theta, p): -coupling},
    scheme="Euler",
)
meta = open_recipe.bind(
    friction=network(net(1), name="friction", sign="positive"),
    coupling=network(net(2), name="coupling", sign="positive"),
)

GALLERY = [Exhibit(meta, 0.02, steps=6000)]
