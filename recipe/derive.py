"""Derivation of the SDE from (H, D, Q): the correction Gamma, the drift, the Fokker-Planck residual.

Ma, Chen & Fox (2015), eqs. (3)-(4):  dz = [-(D+Q) grad H + Gamma] dt + sqrt(2D) dW,
Gamma_i = sum_j d(D+Q)_ij/dz_j (the row divergence). Rows of vector blocks stand for every site; a sum over
the sites appears where a row of a scalar block meets a vector block.
"""

from functools import lru_cache

from sympy import Abs, Add, Dummy, Expr, Function, Heaviside, ImmutableMatrix, Max, Min, Pow, sign

from .algebra import entries, readers
from .calculus import derivative, expanded
from .declared import Block
from .fields import divergence, operators_of, outer_products
from .operators import parts, times
from .spheres import along_surface, refuse_normal
from .symbols import Crossing, Total, masked, total


def terms(expression: Expr) -> Expr:
    """The expression expanded into a sum of products, except inside functions, roots and inverses of sums.

    A drift in this form is readable when printed.

    >>> from recipe import positive
    >>> a, b = positive("a"), positive("b")
    >>> terms((a + b)**2 * (a + 1) / (a + b)**3)
    a/(a + b) + 1/(a + b)
    """
    outside, totals = masked(expression, Total, Crossing)
    sums = {x for x in outside.atoms(Pow) if x.base.is_Add and not (x.exp.is_Integer and x.exp > 0)}
    kept = {x: Dummy() for x in sums | outside.atoms(Function)}
    back = {d: x.xreplace(totals) for x, d in kept.items()}
    return expanded(outside.xreplace(kept).xreplace(totals)).xreplace(back)


def over_sites(expression: Expr, row: Block, column: Block) -> Expr:
    """The contribution of one column to one row: summed over sites if only the column has sites."""
    return total(expression) if column.is_vector and not row.is_vector else expression


def row_divergence(A: ImmutableMatrix, state: tuple[Block, ...]) -> ImmutableMatrix:
    """sum_j dA_ij/dz_j for each row i; Gamma is the row divergence of D + Q."""
    slopes: list[list[Expr]] = [[] for _ in state]
    for (i, j), a in entries(A).items():
        if a.free_symbols:
            slopes[i].append(over_sites(divergence_of_entry(a, state[j]), state[i], state[j]))
    return ImmutableMatrix([terms(Add(*summands)) for summands in slopes])


def divergence_of_entry(entry: Expr, s: Block) -> Expr:
    """The part of the row divergence from one entry and the block s of its column; (M grad c) of an operator times c.

    >>> from recipe import operator, total, vector
    >>> theta = vector("theta")
    >>> divergence_of_entry(operator("M")*(1 + total(theta**2)), theta)
    2*M(theta)
    """
    if not operators_of(entry) or outer_products(entry):
        return derivative(entry, s) + divergence(entry, s)
    products = (derivative(F, s) * c + times(F, derivative(c, s)) for F, c in parts(entry))
    return Add(*products) + divergence(entry, s)


def times_gradient(A: ImmutableMatrix, H: Expr, state: tuple[Block, ...]) -> ImmutableMatrix:
    """(A grad H)_i = sum_j A_ij dH/dz_j, for each row i."""
    slopes = gradient(H, state)
    products: list[list[Expr]] = [[] for _ in state]
    for (i, j), a in entries(A).items():
        products[i].append(over_sites(times(a, slopes[j]), state[i], state[j]))
    return ImmutableMatrix([terms(Add(*summands)) for summands in products])


@lru_cache(maxsize=64)
def gradient(H: Expr, state: tuple[Block, ...]) -> tuple[Expr, ...]:
    """dH/dz by block, cached for the drift, the current and the residual."""
    return tuple(derivative(part, z) for z, part in readers(H, state).items())


def circulation(drift: ImmutableMatrix, H: Expr, D: ImmutableMatrix, state: tuple[Block, ...]) -> ImmutableMatrix:
    """F = f - rowdiv(D) + D grad H: the stationary current divided by the density, 0 for reversible dynamics.

    `drift` is f at T = 1, a column in the order of `state`. Source: Ma, Chen & Fox (2015), Theorem 2.
    """
    return (drift - row_divergence(D, state) + times_gradient(D, H, state)).applyfunc(expanded)


def residual(drift: ImmutableMatrix, H: Expr, D: ImmutableMatrix, state: tuple[Block, ...]) -> Expr:
    """(L* rho)/rho for rho = exp(-H): sum_i(-dF_i/dz_i + F_i dH/dz_i), identically 0 iff exp(-H) is stationary.

    F and the arguments are as in `circulation`.
    """
    H = by_moduli(H)
    F = circulation(drift.applyfunc(by_moduli), H, D.applyfunc(by_moduli), state).applyfunc(by_moduli)
    slopes = tuple(map(by_moduli, gradient(H, state)))
    rows = [expanded(f * slope - _site_slope(f, block)) for f, block, slope in zip(F, state, slopes, strict=True)]
    return expanded(Add(*(Total(row) if block.is_vector else row for row, block in zip(rows, state))))


def by_moduli(e: Expr) -> Expr:
    """The formula with maxima, minima and steps as |x| and sign(x), whose derivatives cancel at a kink as elsewhere.

    >>> from recipe import scalar
    >>> from sympy import Max
    >>> x, y = scalar("x"), scalar("y")
    >>> by_moduli(Max(x, y))
    x/2 + y/2 + Abs(x - y)/2
    """
    if not e.has(Max, Min, Heaviside, sign):
        return e
    e = e.replace(lambda x: isinstance(x, Max | Min), lambda x: x.rewrite(Abs))
    e = e.replace(Heaviside, lambda x, *_: (1 + sign(x)) / 2)
    return e.replace(sign, lambda x: -sign(-x) if x.could_extract_minus_sign() else sign(x))


def _site_slope(f: Expr, block: Block) -> Expr:
    """df/dz at the site of z; on a sphere, for a tangent f, along the surface."""
    if not block.domain.is_sphere:
        return derivative(f, block)
    refuse_normal(f, block)
    return along_surface(f, derivative(f, block), block)
