"""Chains of a subject that start from independent draws of exp(-H/T), and their steps."""

from typing import Any

import numpy as np
import torch

from integrators import noise
from integrators.step import Step
from recipe import Recipe
from recipe.symbols import Total

from ..devices import stepped
from ..subject import Subject

State = dict[str, Any]  # tensors by name, (chains, sites), of scalar blocks (chains,)


def sites_of_a_run(subject: Subject) -> int:
    """The number of sites in chains of a subject: of its law, or 2 where sites are independent, else 1."""
    if subject.sites.number > 1:
        return subject.sites.number
    return 2 if subject.recipe.target_is_vector and not _coupled(subject.recipe) else 1


def _coupled(recipe: Recipe) -> bool:
    """Whether the sites of a chain are coupled, by totals or scalar blocks."""
    totals = any(t.integrand.free_symbols for e in (*recipe.drift, *recipe.D) for t in e.atoms(Total))
    return totals or any(not b.is_vector for b in recipe.state)


def exact_start(subject: Subject, energy: str, chains: int) -> State:
    """A state drawn from exp(-H/T), with adapted quantities at their constants."""
    law = subject.laws[energy]
    sites = sites_of_a_run(subject)
    if subject.sites.number > 1:
        points = subject.sites.arrays(law.draws((chains,), subject.seed))
    else:
        points = law.draws((chains, sites), subject.seed)

    def shaped(block, values):
        return torch.as_tensor(values if block.is_vector or values.ndim == 1 else values[:, 0])

    start = {b.name: shaped(b, np.asarray(points[b])) for b in subject.recipe.state}
    size = (chains, sites)
    frozen = {a.name: shaped(a, np.full(size, subject.constants[a.name])) for a in subject.recipe.adapted}
    return start | frozen


def noise_of(subject: Subject, steps: int, chains: int, step: Step | None = None) -> list[dict[str, Any]]:
    """The random numbers of each step, by name of the draw, for the frozen step of a subject or a given `step`."""
    kinds = noise.KINDS | noise.STATE_DEPENDENT
    sites = sites_of_a_run(subject)
    drawn: dict[str, Any] = {}
    for i, draw in enumerate((step or subject.still).program.draws):
        shape = (sites,) if draw.is_vector else ()
        drawn[draw.name] = kinds[draw.kind](subject.seed, range(steps), i, chains, shape, dtype=torch.float64)
    return [{name: v[k] for name, v in drawn.items()} for k in range(steps)]


def moved_chains(
    subject: Subject, energy: str, state: State, h: float, noise_of_steps: list[dict[str, Any]], sign: int = 1
) -> State:
    """The state after one step for each entry of the noise.

    Gradients have errors of `sign`, of the variance that the recipe's budget states.
    """
    step = subject.still
    slope = subject.derivative(energy, 1)
    generator = torch.Generator().manual_seed(subject.seed)

    def noisy_slope(theta):
        at = {b: state[b.name].numpy() for b in subject.recipe.state}
        spread = np.sqrt(np.broadcast_to(subject.gradient_variance(h, at), theta.shape))
        errors = sign * torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        return slope(theta) + torch.as_tensor(spread) * errors

    gradient = noisy_slope if any(subject.recipe.supplied) else slope
    slopes = {"gradient": gradient, **subject.curvature(energy)}
    for numbers in noise_of_steps:
        state = stepped(step, state, h, noise=numbers, **slopes, **subject.settings)
    return state


def opposite(subject: Subject, numbers: dict[str, Any]) -> dict[str, Any]:
    """The random numbers of a step, with the signs of the normal ones reversed."""
    normal = {d.name for d in subject.still.program.draws if d.kind == "normal"}
    return {name: -v if name in normal else v for name, v in numbers.items()}
