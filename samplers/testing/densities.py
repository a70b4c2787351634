"""The law exp(-H/T) of one site of every vector block, as points and weights.

Blocks between which H is a sum are independent, and have grids of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sympy import Add, Expr, Rational, cos, diff, expand, pi, sin
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import connected_components

from recipe import Energy, RecipeError
from recipe.algebra import at_one_site
from recipe.formulas import formula
from recipe.symbols import Block, Partial, Potential, is_site, total
from recipe.symbols import temperature as T

from .grids import LEAST, Points, law_of


def density(
    H: Expr,
    state: Sequence[Block],
    *,
    temperature: float = 1.0,
    values: Mapping[Any, Any] | None = None,
    energy: Any = None,
    integrands: Sequence[Expr] = (),
    nodes: int | None = None,
    degree: int = 6,
) -> tuple[Points, np.ndarray]:
    """Points by block and weights of the density exp(-H/T) of one site: E f = sum of weights f(points).

    Points and weights are of shape (N,), the weights sum to 1; moments up to `degree` are accurate to 1e-10, in units
    of E|z|^k. `values`: numbers by name for parameters and adapted quantities; by default the declared ones.
    `energy`: U of the target blocks, an Energy or a formula, or formulas by potential; by default x^4/4 + x^2/2 - 2x/5
    of each block. `integrands`: formulas f whose means are
    accurate to 1e-9 E|f|, and whose kinks split panels too. `nodes`: of a panel, by default as many as this accuracy
    takes. Raises RecipeError where a value is missing, exp(-H) or a moment has no finite integral, or more than three
    blocks are coupled.

    >>> from recipe import vector, positive, potential, total
    >>> theta, p, m = vector("theta"), vector("p"), positive("m")
    >>> points, weights = density(potential(theta) + total(p**2)/m/2, (theta, p), values={"m": 1.7}, temperature=0.5)
    >>> round(float(weights @ points[p]**2), 10)
    0.85
    """
    number = closed(temperature=temperature, values=values, energy=energy)
    H, *integrands = (at_one_site(number(e)) for e in (H, *integrands))
    points: Points = {}
    weights = size = np.ones(1)
    for e, blocks in separate(H, state):
        axes, w, extent = law_of(e, blocks, temperature, integrands, nodes, degree)
        sizes = np.maximum.outer(size, extent)
        i, j = np.nonzero(np.multiply.outer(weights, w) * sizes**degree > LEAST)
        points = {b: x[i] for b, x in points.items()} | {b: x[j] for b, x in axes.items()}
        weights, size = weights[i] * w[j], sizes[i, j]
    return {b: points[b] for b in state}, weights / weights.sum()


def closed(*, temperature: float = 1.0, values: Mapping | None = None, energy: Any = None) -> Callable[[Any], Expr]:
    """The function that puts U and numbers into a formula, and returns an expression of blocks and their totals.

    `temperature`, `values`, `energy`: as for `density`.

    >>> from recipe import vector, positive, potential, total
    >>> theta, p, m = vector("theta"), vector("p"), positive("m", default=1.7)
    >>> closed(energy=theta**2 / 2)(potential(theta) + total(p**2)/m)
    10*total(p**2)/17 + total(theta**2)/2
    """
    values = {getattr(s, "name", s): v for s, v in (values or {}).items()}

    def value_of(s):
        value = temperature if s == T else values.get(s.name, getattr(s, "default", None))
        if value is None:
            raise RecipeError("density", f"'{s}' has no value", do=f"Give values={{{s.name!r}: ...}}.")
        return formula(value, f"density, values[{s.name!r}]")

    def with_numbers(e):
        e = _with_energy(formula(e, "density"), energy)
        if e.has(AppliedUndef):
            opaque = next(iter(e.atoms(AppliedUndef)))
            raise RecipeError("density", f"{opaque} is opaque", do="Give it, by recipe.bind.")
        named = [s for s in e.free_symbols if not isinstance(s, Block) or s.name in values or hasattr(s, "start")]
        return e.xreplace({s: value_of(s) for s in named})

    return with_numbers


def _with_energy(e, energy):
    """A formula with U, a sum over sites, and its derivatives replaced by those of an energy."""
    for U in {p.U for p in e.atoms(Partial)} | e.atoms(Potential):
        V = energy[U] if isinstance(energy, Mapping) else wells(U.blocks) if energy is None else energy
        V = V.on(U.blocks) if isinstance(V, Energy) else formula(V, "density, energy")
        V = total(V) if is_site(V) else V
        e = e.xreplace({g: diff(V, *g.variables) for g in e.atoms(Partial) if g.U == U} | {U: V}).doit()
    return e


# One well and two, neither even nor quadratic: of a number, and of an angle from -pi to pi, to which a box is scaled.
WELLS: dict[str, tuple[Callable[[Any], Expr], Callable[[Any], Expr]]] = {
    "quartic": (lambda x: x**4 / 4 + x**2 / 2 - Rational(2, 5) * x, lambda a: -cos(a - Rational(2, 5))),
    "double well": (lambda x: (x**2 - 1) ** 2 + x / 5, lambda a: cos(2 * a) + sin(a - Rational(1, 3)) / 2),
}


def wells(blocks: Sequence[Block], name: str = "quartic") -> Expr:
    """An energy of WELLS, summed over blocks.

    >>> from recipe import vector
    >>> wells([vector("theta")])
    theta**4/4 + theta**2/2 - 2*theta/5
    """
    of_number, of_angle = WELLS[name]

    def well(b):
        if not b.domain.is_compact:
            return of_number(b)
        return of_angle(2 * pi / b.domain.width * (b - (b.domain.low + b.domain.high) / 2))

    return Add(*map(well, blocks))


# ---- independent groups


def separate(H: Expr, state: Sequence[Block]) -> list[tuple[Expr, tuple[Block, ...]]]:
    """H as a sum over groups of blocks, (energy, blocks) for each; terms are expanded only to separate groups.

    >>> from recipe import scalar
    >>> x, y, u = scalar("x"), scalar("y"), scalar("u")
    >>> separate((y - x)**2 + (y + u)**2 - 2*u*y, (x, u, y))
    [(y**2 + (-x + y)**2, (x, y)), (u**2, (u,))]
    """
    for s in H.free_symbols - set(state):
        raise RecipeError("density, H", f"'{s}' is not a block of the state", do=f"Add {s} to the state.")
    links = [[b for b in state if t.has(b)] for t in _terms(H)]
    together = connected_components((list(state), [(link[0], b) for link in links for b in link[1:]]))
    groups = sorted((tuple(b for b in state if b in g) for g in together), key=lambda g: state.index(g[0]))
    whole = [t for t in Add.make_args(H) if any(t.free_symbols <= set(g) for g in groups)]
    terms = [*whole, *_terms(H - Add(*whole))]
    return [(Add(*(t for t in terms if t.free_symbols & set(g))), g) for g in groups]


def _terms(e):
    return Add.make_args(expand(e, power_exp=False, power_base=False, log=False))
