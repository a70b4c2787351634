"""Initial state of chains from their target: adapted quantities at their start, auxiliary blocks from their law."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from recipe import Energy, Recipe
from recipe.errors import RecipeError
from recipe.symbols import Adapted, Partial

from .auxiliary import adaptation_word, stationary_word
from .domain_bounds import in_domain
from .lower import lower
from .noise import Key
from .step import State, Step
from .streams import START


@lru_cache(maxsize=32)
def adaptation_start(recipe: Recipe, energy: Energy | None = None, scope: str = "chain") -> Step:
    """A step that sets the adapted quantities to their initial values, from the gradient at the state."""
    word, flows = adaptation_word(recipe)
    return Step(recipe, word, flows, lower(recipe, word, flows, energy=energy, scope=scope))


@lru_cache(maxsize=32)
def stationary_start(recipe: Recipe, scope: str = "chain") -> Step:
    """A step that draws each auxiliary block in which H is quadratic from its law given the target: N(mean, T/a).

    A direction of time is 1 or -1 with probability 1/2 each. Draws have the names of their blocks; other blocks do not
    change.
    """
    word, flows = stationary_word(recipe)
    return Step(recipe, word, flows, lower(recipe, word, flows, scope=scope))


def complete_state(
    step: Step,
    init: State,
    *,
    seed: int,
    temperature: float = 1.0,
    gradient: Callable | None = None,
    observe: Mapping[str, Callable] | None = None,
    energy: object = None,
    sizes: Sequence[int] | None = None,
    parameters: Mapping[str, Any],
    first_chain: int = 0,
) -> State:
    """The state of all blocks: blocks missing in `init` start from their law given the target.

    `init`: the target at least, `(chains, *shape)`. Adapted quantities take their initial value from `gradient`, or the
    gradient of a symbolic `energy`, and `observe`. Auxiliary blocks in which H is quadratic are drawn from
    N(mean, T/precision), by the seed, the chain and the draw `streams.START`; others start at 0, or at 1 on a positive
    domain. `sizes`: sites of each tensor of the target, in the scope "tensor". Raises RecipeError for an adapted
    quantity that would start outside its domain, or at 0 in a whole chain by a vanishing gradient; single sites with a
    vanishing gradient start at the mean over sites.
    """
    recipe = step.recipe
    scope = step.program.scope
    state = init | _placeholders(step, init, sizes)
    missing = [a for a in recipe.adapted if a.name not in init]
    if missing:
        adapt = adaptation_start(recipe, energy if isinstance(energy, Energy) else None, scope)
        adapted = _as_spread(adapt, step)(state, 1.0, gradient=gradient, observe=observe, sizes=sizes, **parameters)
        state |= {a.name: adapted[a.name] for a in missing}
        for a in recipe.adapted:
            _check_first_value(step, a, state[a.name])
    draw = _as_spread(stationary_start(recipe, scope), step)
    like = state[recipe.targets[0].name]
    places = None if step.spread is None else step.spread.places
    numbers = {
        name: Key(seed, number, first_chain, places).draw(
            draw.draws[name], START, len(like), tuple(state[block.name].shape[1:]), dtype=like.dtype, device=like.device
        )
        for number, (name, block) in enumerate(draw.draw_blocks.items())
    }
    drawn = draw(state, 1.0, noise=numbers, temperature=temperature, sizes=sizes, **parameters)
    return {b.name: init.get(b.name, drawn[b.name]) for b in recipe.entries}


def _as_spread(start: Step, step: Step) -> Step:
    return start if step.spread is None else replace(start, spread=step.spread)


def per_tensor(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A value per chain, `(chains,)`, repeated for every tensor of the target: `(chains, tensors)`.

    >>> per_tensor(torch.tensor([1.0, 2.0]), sizes=[10, 5])
    tensor([[1., 1.],
            [2., 2.]])
    """
    return x[:, None].expand(-1, len(sizes)).clone()


def _placeholders(step: Step, init: State, sizes: Sequence[int] | None) -> State:
    """Values of the right shape for the blocks missing in `init`."""
    target = init[step.recipe.targets[0].name]
    chains = len(target)
    by_chain = target.reshape(chains, -1)[:, 0] if target.numel() else target.new_zeros(chains)
    if step.program.scope == "tensor":
        by_chain = per_tensor(by_chain, sizes or ())
    return {
        b.name: torch.full_like(target if b.is_vector else by_chain, float(b.domain.start))
        for b in step.recipe.entries
        if b.name not in init
    }


def _check_first_value(step: Step, a: Adapted, value: torch.Tensor) -> None:
    """Refuse an adapted quantity outside of its domain, or 0 in a whole chain by a vanishing gradient."""
    of_chains = value.reshape(len(value), -1)
    faults = ~in_domain(a, value).reshape(len(value), -1), of_chains != 0
    if step.spread is None or not a.is_vector:
        outside, nonzero = (fault.any(1) for fault in faults)
    else:
        outside, nonzero = (step.spread.total(fault.double()) > 0 for fault in faults)
    by_gradient = a.start.has(Partial)
    vanishes = a.domain.name == "nonnegative" and by_gradient and not nonzero.all()
    if outside.any() or vanishes:
        what = f"outside of its domain, {a.domain}," if outside.any() and not by_gradient else "0"
        what = f"{a} starts as {a.start}, which is {what} where the chains start"
        do = f'Start away from a stationary point of U, or give init={{..., "{a}": ...}}.'
        raise RecipeError(f"{step.recipe.name}, start", what, do=do)
