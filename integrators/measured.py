"""The value of a formula at states of chains: of blocks, adapted quantities, parameters and U itself."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sympy import Expr, S

from recipe import Recipe
from recipe.scheme import once_each
from recipe.symbols import Adapted, Block

from .flow import Flow
from .lower import lower
from .step import State, Step

if TYPE_CHECKING:
    from torch import Tensor

VALUE = Adapted("value_of_U", False, "real", S.Zero)
LEVEL = Adapted("value_of_formula", False, "real", S.Zero)


def measured(recipe: Recipe, formula: Expr, state: State, U: "Tensor", settings: Mapping[str, Any]) -> "Tensor":
    """A formula of one number per chain at the states of all chains, `(chains,)`.

    `state`: the blocks that the formula reads, and one vector block at least where the recipe has one; `U`: the value
    of U there, `(chains,)`; `settings`: temperature, num_data and parameters by name.

    >>> import torch
    >>> from samplers import UnderdampedLangevin as R
    >>> measured(R, R.H, {"theta": torch.ones(1, 2), "p": torch.ones(1, 2)}, torch.tensor([3.0]), {"m": 2.0})
    tensor([3.5000])
    """
    like = next(iter(state.values()))
    site = next((state[b.name] for b in recipe.entries if b.is_vector and b.name in state), like)
    at = {b.name: state.get(b.name, site if b.is_vector else U) for b in recipe.entries}
    step = _measuring(recipe, formula)
    return after(step, at | {VALUE.name: U, LEVEL.name: U}, settings)[LEVEL.name]


@lru_cache(maxsize=32)
def _measuring(recipe: Recipe, formula: Expr) -> Step:
    U = recipe.potential
    value = formula.xreplace({U: VALUE}) if U else formula
    return of_flows(recipe, {LEVEL.name: assignment(LEVEL, value, "level")}, (VALUE, LEVEL))


def assignment(b: Block, value: Expr, rule: str) -> Flow:
    """The flow that gives a block a value at once."""
    return Flow(b.name, {b: value}, (), rule, True, f"{b} <- {value}")


def of_flows(recipe: Recipe, flows: dict[str, Flow], quantities: tuple[Adapted, ...]) -> Step:
    """A step of the flows; its state has the entries of the recipe and the adapted `quantities`."""
    recipe = replace(recipe, adapt={**recipe.adapt, **{a: a for a in quantities}}, claim=recipe.claim)
    word = once_each("measured", flows)
    return Step(recipe, word, flows, lower(recipe, word, flows))


def after(step: Step, state: State, settings: Mapping[str, Any]) -> State:
    """The state after a step without noise and gradient; the arguments are not checked again."""
    return step.function(state, 1.0, **step.arguments(gradient=None, noise={}), **step.spelled(settings))
