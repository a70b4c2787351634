"""Derivatives of an energy taken apart for loops: totals of a chain, totals of a row of data, sums over rows.

With z_r = sum_i x_ri theta_i the gradient of sum_r f(z_r, y_r) is sum_r f'(z_r, y_r) x_ri: a total of each row, a weight
of each row, and the sum over rows of the weight times what the row has at each site.
"""

from dataclasses import dataclass, field

from sympy import Add, Expr, Mul, expand_mul

from recipe.data import DataTotal, Datum
from recipe.symbols import Total, is_site, num_data

from .extraction import Extraction
from .program import Local, Sum

rows_in_batch = Local("rows", constant=True)


class OfRow(Local):
    """A value of each row."""

    __slots__ = ()


@dataclass(frozen=True)
class RowSum:
    """name = the sum over rows of the weight, one number for each row, times the factor, one for each site or 1."""

    name: Local
    weight: Expr
    factor: Expr


@dataclass
class DataSums:
    """Totals of the chain, totals of each row, sums over rows, and the derivatives in terms of these."""

    chain: list[Sum] = field(default_factory=list)
    row: list[Sum] = field(default_factory=list)
    rows: list[RowSum] = field(default_factory=list)
    derivatives: tuple[Expr, ...] = ()


def reads_rows(e: Expr) -> bool:
    """Whether an expression has a value for each row."""
    return e.has(Datum, OfRow)


def taken_apart(derivatives) -> DataSums:
    """The sums that derivatives of an energy consist of, innermost first.

    >>> from recipe import Energy, data_total, datum, total, vector
    >>> theta, x, y = vector("theta"), datum("x", per=vector("theta")), datum("y")
    >>> sums = taken_apart(Energy(theta, U=data_total((y - total(x*theta))**2)/2, data=(x, y)).gradient)
    >>> sums.row[0].integrand, sums.rows[0].weight, sums.rows[0].factor, sums.derivatives
    (theta*x, 2*row_total1 - 2*y, x, (num_data*row_sum1/(2*rows),))
    """
    sums = DataSums()

    def name(e, extract):
        inside = extract(e.integrand)
        return over_rows(inside) if isinstance(e, DataTotal) else over_sites(inside)

    def over_sites(inside):
        where, kind, stem = (sums.row, OfRow, "row_total") if reads_rows(inside) else (sums.chain, Local, "total")
        where.append(Sum(kind(f"{stem}{len(where) + 1}"), inside))
        return where[-1].name

    def over_rows(inside):
        weights: dict = {}
        for term in Add.make_args(expand_mul(inside)) if is_site(inside) else [inside]:
            factors = Mul.make_args(term)
            weights.setdefault(Mul(*filter(is_site, factors)), []).append(Mul(*(e for e in factors if not is_site(e))))
        first = len(sums.rows)
        for k, (factor, terms) in enumerate(weights.items(), first + 1):
            weight = Add(*terms)
            name = Local(f"row_sum{k}", is_site(factor), constant=not (weight * factor).free_symbols)
            sums.rows.append(RowSum(name, weight, factor))
        return num_data / rows_in_batch * Add(*(s.name for s in sums.rows[first:]))

    sums.derivatives = tuple(map(Extraction(name, Total, DataTotal), derivatives))
    return sums
