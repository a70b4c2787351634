"""Features of the blocks, whose monomials are test functions phi of an invariant law: E[L phi] = 0.

E[L phi] = 0 holds only for phi in the domain of the generator L: periodic in an angle; of vanishing slope at an end
where a diffusion is reflected (Neumann); with phi(p) = phi(-p) at an end where momenta p turn. Such functions are the
monomials of cos and sin of an angle, of cos(pi (x - a)/(b - a)) in a box, and of p^2 and p sin(pi (x - a)/(b - a)).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from sympy import Expr, Mul, cos, lambdify, pi, sin

from recipe import Recipe
from recipe.sites import Sites
from recipe.symbols import Block, is_site

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
    """The features of some blocks: the blocks, except angles, `reflected` blocks and blocks `turned` with these."""
    functions: list[Expr] = []
    for b in state:
        ends = [x for x in reflected if b in (turned or {}).get(x, ())]
        if b.domain.wraps:
            angle = 2 * pi / b.domain.width * b
            functions += [cos(angle), sin(angle)]
        elif b in reflected:
            functions.append(_even(b))
        elif ends:
            functions += [b**2, b * Mul(*map(_odd, ends))]
        else:
            functions.append(b)
    return tuple(functions)


def _even(x):
    """A function whose slope vanishes at the ends."""
    way = x - x.domain.low
    return cos(pi * way / x.domain.width) if x.domain.is_compact else way**2 / (1 + way**2)


def _odd(x):
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
