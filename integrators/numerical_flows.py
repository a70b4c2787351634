"""Flows that are not exact, by request only: what `numerical(piece, "name")` of a recipe names."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from sympy import Dummy, S, expand

from recipe.errors import RecipeError
from recipe.symbols import Partial, Total

from .flow_rules import Solution, brownian, ornstein_uhlenbeck
from .split import Subsystem


def euler(piece: Subsystem) -> Solution:
    """x' = x + t f(x) + sqrt(2 t D(x)) N  (Euler-Maruyama)."""
    return brownian(piece, piece.drift)


def reflected(piece: Subsystem) -> Solution:
    """x' = |x + t f(x) + sqrt(2 t D(x)) N|, for blocks that are positive, or folded at both ends of a domain."""
    if not all(b.domain.ends for b in piece.moving):
        raise RecipeError(
            f"numerical(..., 'reflected') for {piece.letter!r}",
            "it moves a block that may be negative, and has no ends",
            do='Declare it with domain="positive", or the ends (a, b) of a box, or use "euler".',
        )
    return brownian(piece, piece.drift)


def heun(piece: Subsystem) -> Solution:
    """y = x + t f(x) + w,  x' = x + t (f(x) + f(y))/2 + w, with additive noise w."""
    where = f"numerical(..., 'heun') for {piece.letter!r}"
    if any(e.has(*piece.moving) for e in piece.diffusion.values()):
        raise RecipeError(where, "its noise depends on the blocks it moves", do="Use 'euler', or another split.")
    if any(p.U.has(*piece.moving) for f in piece.drift.values() for p in f.atoms(Partial)):
        raise RecipeError(where, "it would need grad U at a predicted point", do="Put the force into another piece.")
    predicted, draws = brownian(piece, piece.drift)
    mean = {b: (f + f.xreplace(predicted)) / 2 for b, f in piece.drift.items()}
    updates, _ = brownian(piece, mean)
    return updates, draws


def exponential(piece: Subsystem) -> Solution:
    """dx = (c - a(x) x) dt + s dW at the rate a(x) of its start:  the Ornstein-Uhlenbeck flow of that rate."""
    where = f"numerical(..., 'exponential') for {piece.letter!r}"
    if len(piece.moving) != 1:
        raise RecipeError(where, "it moves several blocks", do="Give every block a piece of its own.")
    (x,) = piece.moving
    drift = piece.drift.get(x, S.Zero)
    hidden = any(e.has(x) for e in drift.atoms(Total, Partial))
    c = S.NaN if hidden else drift.subs(x, 0)
    if c.has(S.NaN, S.ComplexInfinity):
        raise RecipeError(where, f"{drift} is not c - a({x}) {x}, with c and a finite", do="Use 'euler'.")
    rate = expand((c - drift) / x)
    a = Dummy("a", real=True)
    solution = ornstein_uhlenbeck(replace(piece, drift={x: c - a * x}))
    if solution is None:
        raise RecipeError(where, "its noise depends on the block it moves", do="Use 'euler', or another split.")
    updates, draws = solution
    return {x: updates[x].xreplace({a: rate})}, draws


class Method(NamedTuple):
    """A numerical flow, and its weak order."""

    advance: Callable[[Subsystem], Solution]
    order: int


METHODS: dict[str, Method] = {
    "euler": Method(euler, order=1),
    "heun": Method(heun, order=2),
    "reflected": Method(reflected, order=1),
    "exponential": Method(exponential, order=1),
}
