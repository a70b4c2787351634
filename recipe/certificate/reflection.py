"""Tests whether reflection at the ends of a domain keeps the law exp(-H): no probability may flow through an end.

The current of exp(-H/T) along a coordinate x is (-Q grad H + T rowdiv Q)_x exp(-H/T), without a term from D. If the
current vanishes at an end, a diffusion is reflected there along D, which is along x if D couples x to no other
coordinate. If x has no noise of its own, its current is odd in the momenta p that move it, and H is even in p, then x
is reflected with p -> -p: the outflow with p equals the inflow with -p.
"""

from sympy import Expr

from ..algebra import vanishes
from ..declared import Block
from .explicit import Explicit


def leak(explicit: Explicit, block: Block) -> str:
    """The reason why probability flows through a reflecting end of a block; "" if there is none."""
    i = explicit.blocks.index(block)
    x = explicit.coordinates[i]
    for end in (block.domain.low, block.domain.high):
        if end.is_finite:
            reason = _through(explicit, i, {x: end})
            if reason:
                return f"{x} is reflected at {end}, {reason}"
    return ""


def _through(explicit: Explicit, i: int, at_end: dict) -> str:
    """The reason why probability flows through one end of coordinate i; "" if there is none."""
    others = [j for j in range(explicit.size) if j != i]
    z = explicit.coordinates
    shared = [z[j] for j in others if not _is_zero(explicit.D[i, j], at_end)]
    if shared:
        return f"but shares its noise with {shared[0]}, which is not reflected with it"
    if _is_zero(explicit.curl[i], at_end):
        return ""
    return _not_turned_back(explicit, i, [j for j in others if explicit.Q[i, j] != 0], at_end)


def _not_turned_back(explicit: Explicit, i: int, movers: list[int], at_end: dict) -> str:
    """The reason why reversing other coordinates does not reverse their current through an end; "" if it does."""
    z = explicit.coordinates
    names = ", ".join(str(z[j]) for j in movers)
    if explicit.D[i, i] != 0:
        return f"where {names} carries it through beside its noise: give it the one or the other"
    if any(explicit.blocks[j].is_vector != explicit.blocks[i].is_vector for j in movers):
        return f"but {names} moves other coordinates too, and cannot turn with this one"
    turn = {z[j]: -z[j] for j in movers}
    current = explicit.curl[i]
    if not _is_zero(explicit.H - explicit.H.xreplace(turn), at_end):
        return f"but H is not even in {names}, which turns there"
    if not _is_zero(current + current.xreplace(turn), at_end):
        return f"but its velocity is not odd in {names}, which turns there"
    return ""


def _is_zero(e: Expr, at_end: dict) -> bool:
    """Whether an expression vanishes at an end for all values of the other coordinates."""
    e = e.subs(at_end)
    return bool(e == 0 or vanishes(e))
