"""What exp(-H) says about the auxiliary blocks: their Gaussian conditionals, and the marginal of the target.

A block b in which H is quadratic, H = H_0 + total(c b + a b^2/2), is N(-c/a, T/a) given the others, and
integrating it out leaves H_0 + total(log(a)/2 - c^2/(2a)).
"""

from dataclasses import dataclass

from sympy import Expr, S, diff, expand, log

from .errors import RecipeError
from .symbols import Block, Potential, Total, total


@dataclass(frozen=True)
class Gaussian:
    """One auxiliary block given the blocks that are eliminated after it: N(mean, T/precision) at every site."""

    block: Block
    mean: Expr
    precision: Expr


def eliminate_gaussians(H: Expr, blocks: tuple[Block, ...]) -> tuple[tuple[Gaussian, ...], Expr]:
    """Integrate out, one after the other, the blocks in which H is quadratic; what is left of H.

    >>> from recipe import vector, positive, potential
    >>> theta, p, m = vector("theta"), vector("p"), positive("m")
    >>> eliminate_gaussians(potential(theta) + total(p**2/m)/2, (p,))[1]
    -log(m)*n/2 + U(theta)
    """
    found, waiting = [], list(blocks)
    while waiting:
        b = next((b for b in waiting if b.domain == "real" and _quadratic(H, b)), None)
        if b is None:
            break
        waiting.remove(b)
        a, c = _quadratic(H, b)
        over_sites = total if b.is_vector else (lambda e: e)
        found.append(Gaussian(b, expand(-c / a), a))
        H = expand(H.xreplace({b: S.Zero}) + over_sites(log(a) / 2 - c**2 / (2 * a)))
    return tuple(found), H


def refuse_jump(recipe, letter: str, b: Block) -> None:
    """Refuse to redraw a block from its law given all else where that is neither Gaussian nor a Bernoulli law."""
    where = f"{recipe.name}, jump {letter!r}"
    if b.domain == "binary":
        cost = diff(recipe.H, b)
        if expand(cost).has(b) or any(e.has(b) for e in expand(cost).atoms(Total)):
            raise RecipeError(
                where,
                f"H is not linear in the binary block {b}",
                do=f"Write H = total({b}*f + g), with f and g free of {b}.",
            )
    elif any(b in U.blocks for U in recipe.H.atoms(Potential)) or not eliminate_gaussians(recipe.H, (b,))[0]:
        raise RecipeError(
            where,
            f"the law of {b} is not Gaussian, H is not quadratic in it",
            do="Only Gaussian and binary blocks can be refreshed.",
        )


def _quadratic(H, b):
    """(a, c) with dH/db = a b + c, or None."""
    slope = expand(diff(H, b))
    a = expand(diff(slope, b))
    c = expand(slope.xreplace({b: S.Zero}))
    shared = any(t.has(b) for t in slope.atoms(Total))
    return None if a == 0 or a.has(b) or shared or expand(slope - a * b - c) != 0 else (a, c)
