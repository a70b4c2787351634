"""From (H, D, Q) to the SDE: the correction Gamma, the drift, the Fokker-Planck residual.

Ma, Chen & Fox (2015), eqs. (3)-(4):  dz = [-(D+Q) grad H + Gamma] dt + sqrt(2D) dW,
Gamma_i = sum_j d(D+Q)_ij/dz_j (the row divergence). Rows of vector blocks stand for every site; a sum over
the sites appears where a row of a scalar block meets a vector block.
"""

from sympy import Dummy, Expr, Function, ImmutableMatrix, Pow, diff, expand

from .symbols import Block, Total, masked, total


def terms(expression: Expr) -> Expr:
    """The expression as a sum of products; functions, roots and inverses of sums are left as they were written.

    >>> from recipe import positive
    >>> a, b = positive("a"), positive("b")
    >>> terms((a + b)**2 * (a + 1) / (a + b)**3)
    a/(a + b) + 1/(a + b)
    """
    outside, totals = masked(expression, Total)
    kept = {
        x: Dummy()
        for x in outside.atoms(Pow, Function)
        if x.is_Function or x.base.is_Add and not (x.exp.is_Integer and x.exp > 0)
    }
    back = {d: x.xreplace(totals) for x, d in kept.items()}
    return expand(outside.xreplace(kept).xreplace(totals)).xreplace(back)


def over_sites(expression: Expr, row: Block, column: Block) -> Expr:
    """The contribution of one column to one row: summed over sites if only the column has sites."""
    return total(expression) if column.is_vector and not row.is_vector else expression


def row_divergence(A: ImmutableMatrix, state: tuple[Block, ...]) -> ImmutableMatrix:
    """sum_j dA_ij/dz_j, for each row i."""
    return ImmutableMatrix(
        [
            terms(sum(over_sites(diff(A[i, j], column), row, column) for j, column in enumerate(state)))
            for i, row in enumerate(state)
        ]
    )


def times_gradient(A: ImmutableMatrix, H: Expr, state: tuple[Block, ...]) -> ImmutableMatrix:
    """(A grad H)_i = sum_j A_ij dH/dz_j, for each row i."""
    return ImmutableMatrix(
        [
            terms(sum(over_sites(A[i, j] * diff(H, column), row, column) for j, column in enumerate(state)))
            for i, row in enumerate(state)
        ]
    )


def circulation(drift, H, D, state) -> ImmutableMatrix:
    """F = f - rowdiv(D) + D grad H: the stationary current divided by the density, 0 for reversible dynamics."""
    return (drift - row_divergence(D, state) + times_gradient(D, H, state)).applyfunc(expand)


def residual(drift, H, D, state) -> Expr:
    """(L* rho)/rho for rho = exp(-H): sum_i(-dF_i/dz_i + F_i dH/dz_i), identically 0 iff exp(-H) is stationary."""
    F = circulation(drift, H, D, state)
    terms = (expand(-diff(F[i], block) + F[i] * diff(H, block)) for i, block in enumerate(state))
    return expand(sum(total(t) if block.is_vector else t for t, block in zip(terms, state)))
