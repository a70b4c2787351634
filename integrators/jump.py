"""Solving a jump: a block redrawn from its law exp(-H/T) given all else, which that law leaves invariant."""

from collections.abc import Collection

from sympy import Expr, Piecewise, S, diff, exp, expand, sqrt

from recipe import Recipe
from recipe.marginal import eliminate_gaussians
from recipe.pieces import Jump
from recipe.symbols import Block
from recipe.symbols import duration as t
from recipe.symbols import temperature as T

from .flow import Flow
from .variates import Normal, Uniform, Variate


def solve_jump(recipe: Recipe, letter: str, jump: Jump, frozen: Collection[str] = ()) -> Flow:
    """The exact kernel of a jump: N(mean, T/a) where H is quadratic in the block, Bernoulli where it is binary.

    With a rate nu a chain jumps with probability 1 - e^{-nu t}. A block whose name is in `frozen` stays as it is.
    """
    b = jump.block
    if b.name in frozen:
        return Flow(letter, {}, (), "frozen", True, "nothing moves")
    new, draw, law = _bernoulli(recipe, b) if b.domain.is_binary else _gaussian(recipe, b)
    if jump.rate is None:
        return Flow(letter, {b: new}, (draw,), "jump", True, f"{b} ~ {law}")
    turn = Uniform(b, f"turn of {b}", is_vector=False)
    update = Piecewise((new, turn < 1 - exp(-jump.rate * t)), (b, True))
    return Flow(letter, {b: update}, (turn, draw), "jump", True, f"{b} ~ {law} at the rate {jump.rate}")


Redraw = tuple[Expr, Variate, str]  # the new value, its random number, and its law in words


def _gaussian(recipe: Recipe, b: Block) -> Redraw:
    """N(mean, T/precision)."""
    (law,), _ = eliminate_gaussians(recipe.H, (b,))
    draw = Normal(b)
    return law.mean + sqrt(T / law.precision) * draw, draw, f"N({law.mean}, {T / law.precision})"


def _bernoulli(recipe: Recipe, b: Block) -> Redraw:
    """1 with the odds exp(-(H(1) - H(0))/T)."""
    cost = expand(diff(recipe.H, b))
    draw = Uniform(b)
    new = Piecewise((S.One, draw * (1 + exp(cost / T)) < 1), (S.Zero, True))
    return new, draw, f"Bernoulli(1/(1 + exp({cost / T})))"
