"""From a symptom to the equation: a Nose-Hoover thermostat that forgets its mass.

It has dxi = (p^2 - 1)/mu dt for (p^2/m - 1)/mu dt. At m = 1 nobody sees it. At m = 2 the weights are too cold, at
every step size; the audit of the black box says that the law is wrong, the diagnosis of the SDE says in which
equation, and what is missing there.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from recipe import Recipe, grad, positive, potential, total, vector
from samplers.testing import Audit, Diagnosis, Report, audit, check, diagnose

theta, p, xi = vector("theta"), vector("p"), vector("xi")
m, mu, A = positive("m", default=1.0), positive("mu", default=1.0), positive("A", default=1.0)
U = potential(theta)
M, MU, FRICTION = 2.0, 1.0, 1.0


def thermostatted(
    energy: Callable, init: Tensor, *, steps: int, step_size: float, temperature: float, seed: int
) -> Tensor:
    """The sampler as it was written: Euler in p, then theta, then xi."""
    random = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(init.shape, generator=random, dtype=init.dtype)

    h = step_size
    theta = init.clone()
    p = (M * temperature) ** 0.5 * normal()
    xi = torch.full_like(init, FRICTION)
    for _ in range(steps):
        at = theta.requires_grad_()
        (force,) = torch.autograd.grad(energy(at).sum(), at)
        p = p - h * force - h * xi * p + (2 * FRICTION * M * temperature * h) ** 0.5 * normal()
        theta = theta.detach() + h * p / M
        xi = xi + h / MU * (p**2 - temperature)
    return theta


def main(chains: int = 4096) -> tuple[Audit, Diagnosis, Report]:
    """The symptom, the diagnosis, and the right sampler from three formulas."""
    print("1. The symptom\n")
    symptom = audit(thermostatted, step_size=0.1, chains=chains)
    print("\n".join(str(symptom).splitlines()[:4]), "\n")

    print("2. The equation\n")
    H = U + total(p**2 / m) / 2 + total(mu * (xi - A) ** 2) / 2
    drift = {theta: p / m, p: -grad(U) - xi * p, xi: (p**2 - 1) / mu}
    diagnosis = diagnose((theta, p, xi), H, drift, {p: A * m})
    print(diagnosis, "\n")

    print("3. The remedy\n")
    right = Recipe(
        name="thermostat",
        state=(theta, p, xi),
        target=theta,
        H=H,
        D={p: A * m},
        Q={(theta, p): -1, (p, xi): p / mu},
        scheme="B A' O A' B",
    )
    report = check(right, m=M)
    print(f"dxi = {right.drift[2]} dt\n{report}")
    return symptom, diagnosis, report


if __name__ == "__main__":
    main()
