"""Derivatives of an energy split into sums for loops: totals of a chain, totals of a row of data, sums over rows.

With z_r = sum_i x_ri theta_i the gradient of sum_r f(z_r, y_r) is sum_r f'(z_r, y_r) x_ri: a total of each row, a
weight of each row, and the sum over rows of the weight times the row's entry at each site.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Add, Expr, Mul, expand_mul

from recipe.data_totals import DataTotal, Datum
from recipe.symbols import Total, is_site, num_data

from .extraction import Extraction
from .program import Local, Sum

rows_in_batch = Local("rows", constant=True)


class OfRow(Local):
    """A local variable with one value per row of data."""

    __slots__ = ()


@dataclass(frozen=True)
class RowSum:
    """name = the sum over rows of the weight, one number for each row, times the factor, one for each site or 1."""

    name: Local
    weight: Expr
    factor: Expr


@dataclass(frozen=True)
class DataSums:
    """Totals of the chain, totals of each row, sums over rows, and the derivatives in terms of all three."""

    chain: tuple[Sum, ...]
    row: tuple[Sum, ...]
    rows: tuple[RowSum, ...]
    derivatives: tuple[Expr, ...]


def reads_rows(e: Expr) -> bool:
    """Whether an expression has a value for each row."""
    return e.has(Datum, OfRow)


def taken_apart(derivatives: Sequence[Expr], stem: str = "total") -> DataSums:
    """The sums inside the derivatives of an energy, innermost first; `stem`: of the names of totals of the chain.

    >>> from recipe import Energy, data_total, datum, total, vector
    >>> theta, x, y = vector("theta"), datum("x", per=vector("theta")), datum("y")
    >>> sums = taken_apart(Energy(theta, U=data_total((y - total(x*theta))**2)/2, data=(x, y)).gradient)
    >>> sums.row[0].integrand, sums.rows[0].weight, sums.rows[0].factor, sums.derivatives
    (theta*x, 2*row_total1 - 2*y, x, (num_data*row_sum1/(2*rows),))
    """
    chain: list[Sum] = []
    row: list[Sum] = []
    rows: list[RowSum] = []

    def name(e: Expr, extract: Extraction) -> Expr:
        inside = extract(e.integrand)
        if isinstance(e, DataTotal):
            return over_rows(inside)
        if reads_rows(inside):
            row.append(Sum(OfRow(f"row_total{len(row) + 1}"), inside))
            return row[-1].name
        chain.append(Sum(Local(f"{stem}{len(chain) + 1}"), inside))
        return chain[-1].name

    def over_rows(inside: Expr) -> Expr:
        """The mean over rows times num_data, with one sum for each factor with sites."""
        names = []
        for factor, weight in _weights(inside).items():
            is_constant = not (weight * factor).free_symbols
            names.append(Local(f"row_sum{len(rows) + 1}", is_site(factor), constant=is_constant))
            rows.append(RowSum(names[-1], weight, factor))
        return num_data / rows_in_batch * Add(*names)

    of_names = tuple(map(Extraction(name, Total, DataTotal), derivatives))
    return DataSums(tuple(chain), tuple(row), tuple(rows), of_names)


def _weights(e: Expr) -> dict[Expr, Expr]:
    """The factors with sites in the terms of an expression, each with its coefficient."""
    weights: dict[Expr, list[Expr]] = {}
    for term in Add.make_args(expand_mul(e)) if is_site(e) else [e]:
        factors = Mul.make_args(term)
        factor = Mul(*(x for x in factors if is_site(x)))
        weights.setdefault(factor, []).append(Mul(*(x for x in factors if not is_site(x))))
    return {factor: Add(*terms) for factor, terms in weights.items()}
