"""The law exp(-H/T) of one site of every vector block, as points and weights.

Blocks between which H is a sum are independent, and have grids of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sympy import Add, Expr, Rational, cos, diff, expand, pi
from sympy.core.function import AppliedUndef

from recipe import Energy, RecipeError
from recipe.algebra import at_one_site
from recipe.symbols import Block, Partial, Potential, formula, is_site, total
from recipe.symbols import temperature as T

from .charts import LEAST
from .grids import law_of


def density(
    H: Expr,
    state: Sequence[Block],
    *,
    temperature: float = 1.0,
    values: Mapping | None = None,
    energy: Energy | Expr | None = None,
    integrands: Sequence[Expr] = (),
    nodes: int | None = None,
    degree: int = 6,
) -> tuple[dict[Block, np.ndarray], np.ndarray]:
    """Points by block and weights of the density exp(-H/T) of one site: E f = sum of weights f(points).

    Points and weights are of shape (N,), the weights sum to 1; moments up to `degree` are accurate to 1e-10, in units
    of E|z|^k. `values`: numbers by name for parameters and adapted quantities; by default the declared ones.
    `energy`: U of the target blocks, by default x^4/4 + x^2/2 - 2x/5 of each. `integrands`: formulas f whose means are
    accurate to 1e-9 E|f|, and whose kinks split panels too. `nodes`: of a panel, by default as many as this accuracy
    takes. Raises RecipeError where a value is missing, exp(-H) or a moment has no finite integral, or more than three
    blocks are coupled.

    >>> from recipe import vector, positive, potential, total
    >>> theta, p, m = vector("theta"), vector("p"), positive("m")
    >>> points, weights = density(potential(theta) + total(p**2)/m/2, (theta, p), values={"m": 1.7}, temperature=0.5)
    >>> round(float(weights @ points[p]**2), 10)
    0.85
    """
    number = one_site(temperature=temperature, values=values, energy=energy)
    H = number(H)
    integrands = [number(e) for e in integrands]
    laws = [law_of(e, blocks, temperature, [H, *integrands], nodes, degree) for e, blocks in separate(H, state)]
    points: dict[Block, np.ndarray] = {}
    weights = size = np.ones(1)
    for axes, w, sizes in laws:
        points = {b: np.repeat(x, len(w)) for b, x in points.items()}
        points |= {b: np.tile(x, len(weights)) for b, x in axes.items()}
        weights, size = np.multiply.outer(weights, w).ravel(), np.maximum.outer(size, sizes).ravel()
        kept = weights * size**degree > LEAST
        points, weights, size = {b: x[kept] for b, x in points.items()}, weights[kept], size[kept]
    return {b: points[b] for b in state}, weights / weights.sum()


def one_site(
    *, temperature: float = 1.0, values: Mapping | None = None, energy: Energy | Expr | None = None
) -> Callable[[Any], Expr]:
    """The function from a formula to its value at one site, a sympy expression of the blocks alone.

    `temperature`, `values`, `energy`: as for `density`.

    >>> from recipe import vector, positive, potential, grad, total
    >>> theta, p, m = vector("theta"), vector("p"), positive("m", default=1.7)
    >>> one_site()(total(p**2)/m - grad(potential(theta)))
    10*p**2/17 - theta**3 - theta + 2/5
    """
    with_numbers = closed(temperature=temperature, values=values, energy=energy)
    return lambda e: at_one_site(with_numbers(e))


def closed(
    *, temperature: float = 1.0, values: Mapping | None = None, energy: Energy | Expr | None = None
) -> Callable[[Any], Expr]:
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
        V = usual_energy(U.blocks) if energy is None else energy
        V = V.on(U.blocks) if isinstance(V, Energy) else formula(V, "density, energy")
        V = total(V) if is_site(V) else V
        e = e.xreplace({g: diff(V, *g.variables) for g in e.atoms(Partial)} | {U: V}).doit()
    return e


def usual_energy(blocks: Sequence[Block]) -> Expr:
    """x^4/4 + x^2/2 - 2x/5, summed over the blocks, -cos(x - 2/5) of an angle: neither even nor quadratic.

    >>> from recipe import vector
    >>> usual_energy([vector("theta")])
    theta**4/4 + theta**2/2 - 2*theta/5
    """

    def well(b: Block) -> Expr:
        if b.domain.wraps:
            return -cos(2 * pi / b.domain.width * b - Rational(2, 5))
        return b**4 / 4 + b**2 / 2 - Rational(2, 5) * b

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
    groups = _coupled(_terms(H), state)
    whole = [t for t in Add.make_args(H) if any(t.free_symbols <= set(g) for g in groups)]
    terms = [*whole, *_terms(H - Add(*whole))]
    return [(Add(*(t for t in terms if t.free_symbols & set(g))), g) for g in groups]


def _terms(e):
    return Add.make_args(expand(e, power_exp=False, power_base=False, log=False))


def _coupled(terms, state):
    """The blocks in groups, in the order of the state; blocks that occur in one term are in one group."""
    groups: list[set] = [{b} for b in state]
    for term in terms:
        touched = [g for g in groups if g & term.free_symbols]
        if touched:
            groups = [g for g in groups if g not in touched] + [set().union(*touched)]
    in_order = [tuple(b for b in state if b in g) for g in groups]
    return sorted(in_order, key=lambda g: state.index(g[0]))
