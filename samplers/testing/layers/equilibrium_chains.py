"""Chains of a subject at equilibrium, from independent draws of exp(-H/T), and their steps."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from integrators import noise, streams
from integrators.direction import ACCEPTED, DIRECTION, WORK
from integrators.step import Step
from recipe import Recipe
from recipe.symbols import Total

from ..features import evaluated, features_of
from ..one_step import Powers, monomial
from ..random_calls import stepped
from ..subject import Subject

State = dict[str, Any]  # tensors by name, (chains, sites), of scalar blocks (chains,)


def sites_of_a_run(subject: Subject) -> int:
    """The number of sites in chains of a subject: of its law, or 2 where sites are independent, else 1."""
    if subject.sites.number > 1:
        return subject.sites.number
    recipe = subject.recipe
    totals = any(t.integrand.free_symbols for e in (*recipe.drift, *recipe.D) for t in e.atoms(Total))
    is_coupled = totals or recipe.swaps  # swaps are of all sites at once
    return 1 if is_coupled or not all(b.is_vector for b in recipe.state) else 2


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
    arguments = subject.arguments(energy)
    slope = arguments.pop("gradient", None)
    generator = torch.Generator().manual_seed(subject.seed)

    def noisy_slope(theta):
        at = {b: state[b.name].numpy() for b in subject.recipe.state}
        spread = np.sqrt(np.broadcast_to(subject.gradient_variance(h, at), theta.shape))
        errors = sign * torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        return slope(theta) + torch.as_tensor(spread) * errors

    gradient = noisy_slope if any(subject.recipe.supplied) else slope
    for numbers in noise_of_steps:
        state = stepped(subject.still, state, h, noise=numbers, gradient=gradient, **arguments)
    return state


def accepted_chains(
    subject: Subject, step: Step, energy: str, start: State, h: float, noise_of_steps: Iterable[Any]
) -> Iterator[State]:
    """Yields the states of steps that are accepted or rejected; half of the chains run in each direction of time."""
    chains = len(start[subject.recipe.state[0].name])
    zero = torch.zeros(chains, dtype=torch.float64)
    turn = noise.uniform(subject.seed, 0, streams.START, chains, (), dtype=torch.float64)
    state = start | {DIRECTION.name: torch.where(turn < 0.5, 1.0, -1.0).double(), WORK.name: zero, ACCEPTED.name: zero}
    arguments = subject.arguments(energy, step)
    for numbers in noise_of_steps:
        state = step(state, h, noise=numbers, **arguments)
        yield state


def mirrored_chains(subject: Subject, energy: str, start: State, h: float) -> list[State]:
    """The states after one step with the same random numbers, the normal ones and errors of gradients of both signs."""
    (numbers,) = noise_of(subject, 1, len(start[subject.recipe.state[0].name]))
    normal = {d.name for d in subject.still.program.draws if d.kind == "normal"}
    opposite = {name: -v if name in normal else v for name, v in numbers.items()}
    return [moved_chains(subject, energy, start, h, [one], sign) for sign, one in ((1, numbers), (-1, opposite))]


# ---- moments of chains


def features_by_site(recipe: Recipe, state: Mapping[str, Any]) -> list[np.ndarray]:
    """The features of all blocks, (chains, sites) each."""
    arrays = [np.asarray(state[b.name]) for b in recipe.state]
    return evaluated(features_of(recipe), recipe.state)([x.reshape(len(x), -1) for x in arrays])


@np.errstate(over="ignore", invalid="ignore")  # wrong chains may go beyond the largest number
def worst_moment(
    recipe: Recipe,
    start: State,
    end: State,
    powers: Iterable[Powers],
    expected: Mapping[Powers, float] | None = None,
    allowed: Mapping[Powers, float] | None = None,
) -> tuple[float, str]:
    """The largest error of a moment, a mean over sites, beyond what is `allowed`, in standard errors, and its name.

    Errors are from the `expected` moments, or where these are not known, from the start of the same chains.
    """
    before, after = (features_by_site(recipe, side) for side in (start, end))
    worst = 0.0
    name = ""
    for power in powers:
        first, values = (monomial(side, power).mean(-1) for side in (before, after))
        if expected is None:
            values, centre = values - first, 0.0
            spread = values.std()
        else:  # the deviation of the start, since wrong chains may scatter so far that no error stands out
            centre = expected[power]
            spread = first.std()
        off = max(abs(values.mean() - centre) - (allowed[power] if allowed else 0.0), 0)
        error = spread / len(values) ** 0.5
        score = off / error if error else (np.inf if off else 0.0)
        if not score <= worst:
            worst = score
            name = "*".join(f"{f}^{n}" for f, n in zip(features_of(recipe), power) if n)
    return float(worst), name or "phi"
