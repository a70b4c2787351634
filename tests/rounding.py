"""How far rounding moves the gradient of a network energy: other threads, other widths of vmap, other sums.

python tests/rounding.py
"""

import torch

from samplers.running.probe import FAR, NEAR, difference, sketch
from samplers.target.layout import Layout
from samplers.target.traced import Traced

ROWS = 600
CHAINS = 6


def dense(activation, *sizes):
    layers = [x for a, b in zip(sizes, sizes[1:]) for x in (torch.nn.Linear(a, b), activation())]
    return torch.nn.Sequential(*layers[:-1])


def convolved():
    one, other = torch.nn.Conv2d(1, 8, 3), torch.nn.Conv2d(8, 8, 3)
    pool, relu = torch.nn.AvgPool2d(2), torch.nn.ReLU()
    picture = torch.nn.Unflatten(1, (1, 14, 14))
    return torch.nn.Sequential(picture, one, relu, pool, other, relu, torch.nn.Flatten(), torch.nn.Linear(128, 10))


NETWORKS = {
    "linear": lambda: dense(torch.nn.Tanh, 196, 10),
    "tanh": lambda: dense(torch.nn.Tanh, 196, 100, 10),
    "deep relu": lambda: dense(torch.nn.ReLU, 196, 64, 64, 64, 64, 10),
    "convolved": convolved,
}


def energy_of(network, parts):
    """Cross entropy on the sum scale and a normal prior, with the sum over the rows in so many parts."""

    def energy(theta, batch):
        x, labels = batch
        prior = sum((w**2).sum() for w in theta.values()) / 2
        losses = [
            torch.nn.functional.cross_entropy(torch.func.functional_call(network, theta, (a,)), b, reduction="sum")
            for a, b in zip(x.tensor_split(parts), labels.tensor_split(parts))
        ]
        return sum(losses) * ROWS / len(x) + prior

    return energy


def setting(name, dtype):
    """A network, its data, the layout of its weights, and the states of some chains near the weights it starts with."""
    torch.manual_seed(0)
    network = NETWORKS[name]().to(dtype)
    x = torch.randn(ROWS, 196, dtype=dtype)
    labels = (x @ torch.randn(196, 10, dtype=dtype)).argmax(1)
    layout = Layout({k: tuple(w.shape) for k, w in network.named_parameters()})
    flat = torch.cat([w.detach().reshape(-1) for w in network.parameters()])
    return network, (x, labels), layout, flat + 0.05 * torch.randn(CHAINS, len(flat), dtype=dtype)


def descended(gradient, states, batch, steps):
    """The states after some steps of Adam: near a mode, where large terms cancel."""
    at = states.clone()
    optimizer = torch.optim.Adam([at], lr=0.005)
    for _ in range(steps):
        at.grad = gradient(at, batch)
        optimizer.step()
    return at


def sketches(gradient, states, batch, *, width=CHAINS, threads=1):
    """The sketches at the points of a probe, of so many chains at once."""
    torch.set_num_threads(threads)
    points = []
    for shift in (*NEAR, *FAR):
        there = states * (1 + shift) + abs(shift) / 3
        points.append(torch.cat([sketch(gradient(some, batch)) for some in there.split(width)]))
    torch.set_num_threads(1)
    return torch.stack(points)


def rounding(name, dtype, steps):
    """How far the gradients of the same energy are apart, by what differs in how they are computed."""
    network, batch, layout, states = setting(name, dtype)
    energies = [Traced(layout.energy(energy_of(network, parts))) for parts in (1, 7)]
    gradient, in_parts = [lambda at, batch, U=U: U.jet(at, batch, orders={1}).slope for U in energies]
    states = descended(gradient, states, batch, steps)
    functional = energies[0].gradient(per_chain=False, has_data=True)
    plain = sketches(gradient, states, batch)
    others = {
        "8 threads": sketches(gradient, states, batch, threads=8),
        "4 chains at once": sketches(gradient, states, batch, width=4),
        "1 chain at once": sketches(gradient, states, batch, width=1),
        "7 parts of the data": sketches(in_parts, states, batch),
        "torch.func": sketches(functional, states, batch),
        "all of these": sketches(in_parts, states, batch, width=1, threads=8),
    }
    return {what: float(difference(other, plain).max()) for what, other in others.items()}


def main():
    for dtype in (torch.float32, torch.float64):
        for name in NETWORKS:
            for steps in (0, 150):
                result = rounding(name, dtype, steps)
                print(
                    f"{dtype}, {name}, {steps} steps:", *(f"{what} {x:.1e}," for what, x in result.items()), flush=True
                )


if __name__ == "__main__":
    main()
