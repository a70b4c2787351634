"""Functions of the blocks whose monomials are test functions: means of these say whether a law stays.

A generator has a law for its test functions alone: those of an angle are periodic; where a diffusion is reflected, the
slope of phi vanishes at the end (Neumann); where momenta p turn, phi(p) = phi(-p) at the end. Monomials of cos and sin
of an angle, of cos(pi (x - a)/(b - a)) in a box, and of p^2 and p sin(pi (x - a)/(b - a)) beside it are such functions.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from sympy import Expr, Mul, cos, lambdify, pi, sin

from recipe import Recipe
from recipe.symbols import Block, is_site

from .sites import Sites

Features = tuple[Expr, ...]


def features_of(recipe: Recipe) -> Features:
    """The features of the blocks of a recipe.

    >>> from recipe import Recipe, total, vector
    >>> theta, p = vector("theta", domain=(0, 2)), vector("p")
    >>> features_of(Recipe(name="box", state=(theta, p), H=total(theta + p**2/2), D={p: 1}, Q={(theta, p): -1}))
    (cos(pi*theta/2), p**2, p*sin(pi*theta/2))
    """
    return features(recipe.state, recipe.reflected, recipe.turned)


def features(
    state: Sequence[Block], reflected: Sequence[Block] = (), turned: Mapping[Block, Sequence[Block]] | None = None
) -> Features:
    """The features of some blocks: themselves, but for angles, `reflected` blocks and what is `turned` with them."""
    found: list[Expr] = []
    for b in state:
        ends = [x for x in reflected if b in (turned or {}).get(x, ())]
        if b.domain.wraps:
            angle = 2 * pi / b.domain.width * b
            found += [cos(angle), sin(angle)]
        elif b in reflected:
            found.append(_even(b))
        elif ends:
            found += [b**2, b * Mul(*map(_odd, ends))]
        else:
            found.append(b)
    return tuple(found)


def _even(x: Block) -> Expr:
    """A function whose slope vanishes at the ends."""
    way = x - x.domain.low
    return cos(pi * way / x.domain.width) if x.domain.is_compact else way**2 / (1 + way**2)


def _odd(x: Block) -> Expr:
    """A function that vanishes at the ends."""
    way = x - x.domain.low
    return sin(pi * way / x.domain.width) if x.domain.is_compact else way / (1 + way**2)


def features_over(recipe: Recipe, sites: Sites) -> Features:
    """The features of a recipe as functions of the coordinates of several sites."""
    return tuple(sites.at(f, k) for f in features_of(recipe) for k in range(sites.number if is_site(f) else 1))


def evaluated(features: Features, state: Sequence[Block]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """The function from arrays of the blocks to arrays of the features."""
    function = lambdify([list(state)], list(features), "numpy")
    return lambda values: [np.asarray(v) for v in function(list(values))]
