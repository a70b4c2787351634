"""The whole state of chains from their target: adapted quantities at their first value, auxiliary blocks from their law."""

import torch

from recipe import Energy, Recipe
from recipe.errors import RecipeError
from recipe.symbols import Partial

from . import noise
from .auxiliary import adaptation_word, stationary_word
from .domains import INSIDE
from .lower import lower
from .step import Step


def adaptation_start(recipe: Recipe, energy: Energy | None = None, scope: str = "chain") -> Step:
    """A step that gives the adapted quantities their first values, from the gradient at the state."""
    word, flows = adaptation_word(recipe)
    return Step(recipe, word, flows, lower(recipe, word, flows, energy=energy, scope=scope))


def stationary_start(recipe: Recipe, scope: str = "chain") -> Step:
    """A step that draws each auxiliary block in which H is quadratic from its law given the target: N(mean, T/a).

    Its draws bear the blocks' names; blocks of another law are left as they are.
    """
    word, flows = stationary_word(recipe)
    return Step(recipe, word, flows, lower(recipe, word, flows, scope=scope))


def complete_state(
    step: Step, given, layout, *, seed, temperature, gradient, observe, energy, arguments, first_chain=0
):
    """The whole state: adapted quantities at their start, auxiliary blocks drawn from their law given the target.

    That law is N(mean, T/precision) where H is quadratic; other blocks start at 0, or at 1 on a positive domain.
    """
    recipe = step.recipe
    target = given[recipe.targets[0].name]
    chains = len(target)
    per_chain = target.reshape(chains, -1)[:, 0] if target.numel() else target.new_zeros(chains)
    if step.program.scope == "tensor":
        per_chain = spread(per_chain, layout)
    state = dict(given)
    for b in recipe.entries:
        if b.name not in given:
            state[b.name] = torch.full_like(
                target if b.is_vector else per_chain, 1.0 if b.domain == "positive" else 0.0
            )
    if any(a.name not in given for a in recipe.adapted):
        start = adaptation_start(recipe, energy if isinstance(energy, Energy) else None, step.program.scope)
        started = start(state, 1.0, gradient=gradient, observe=observe, sizes=layout.sizes, **arguments)
        state |= {a.name: started[a.name] for a in recipe.adapted if a.name not in given}
        for a in recipe.adapted:
            inside = INSIDE.get(a.domain, torch.isfinite)(state[a.name]).all()
            if not inside or a.domain == "nonnegative" and a.start.has(Partial) and not state[a.name].any():
                value = "0" if inside or a.start.has(Partial) else f"outside of its domain, {a.domain},"
                raise RecipeError(
                    f"{recipe.name}, start",
                    f"{a} starts as {a.start}, which is {value} where the chains start",
                    do=f'Start away from a stationary point of U, or give init={{..., "{a}": ...}}.',
                )
    start = stationary_start(recipe, step.program.scope)
    drawn = {
        name: noise.normal(
            seed,
            i,
            noise.INITIAL,
            chains,
            tuple(state[b.name].shape[1:]),
            dtype=target.dtype,
            device=target.device,
            first_chain=first_chain,
        )
        for i, (name, b) in enumerate(start.draw_blocks.items())
    }
    started = start(state, 1.0, noise=drawn, temperature=temperature, sizes=layout.sizes, **arguments)
    return {b.name: given.get(b.name, started[b.name]) for b in recipe.entries}


def spread(x, layout):
    """One value per chain, for every tensor of the target."""
    return x[:, None].expand(-1, len(layout.shapes)).clone()
