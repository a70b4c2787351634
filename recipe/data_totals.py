"""Sums over data: columns of the data in an energy, and totals over their rows."""

from sympy import Add, Expr, S, diff

from .declared import Block, Supplied, check_per
from .errors import RecipeError
from .formulas import formula
from .symbols import Total, Written, is_site, masked


class Datum(Supplied):
    """A column of the data: one number for each row, or one for each row and site."""

    __slots__ = ()
    what = "datum"


def datum(name: str, *, per: Block | None = None) -> Datum:
    """A named column of the data: one number per row, or one number per row and site of the block `per`.

    Raises RecipeError if `per` is not a vector block.

    >>> from recipe import vector
    >>> theta = vector("theta")
    >>> datum("x", per=theta).is_vector, datum("y").is_vector
    (True, False)
    """
    check_per(f"datum {name!r}", per)
    return Datum(name, per is not None)


class DataTotal(Written):
    """The sum of an expression over the rows of the data.

    On a minibatch the estimate is num_data/rows times the sum over its rows, which is unbiased.
    """

    text_form, latex_form = "data_total({})", r"\sum_{{\mathrm{{data}}}} \left({}\right)"

    def __new__(cls, integrand):
        return S.Zero if integrand == 0 else Expr.__new__(cls, integrand)

    @property
    def integrand(self) -> Expr:
        """The summand of a row."""
        return self.args[0]

    def _eval_derivative(self, s):
        if not (isinstance(s, Block) and s.is_vector):
            return DataTotal(diff(self.integrand, s))
        inner, outer = masked(self.integrand, Total)
        through = (diff(inner, d) * diff(chain, s) for d, chain in outer.items())
        return DataTotal((diff(inner, s) + Add(*through)).xreplace(outer))


def data_total(integrand: Expr | float) -> Expr:
    """The sum over the rows of the data of an expression of data and coordinates.

    Raises RecipeError for an integrand with one value per site, and for a sum inside of a sum.

    >>> from recipe import total, vector
    >>> theta, x, y = vector("theta"), datum("x", per=vector("theta")), datum("y")
    >>> data_total((y - total(x*theta))**2/2).diff(theta)
    data_total(x*(-y + total(theta*x)))
    """
    integrand = formula(integrand, "data_total")
    if is_site(integrand):
        what = f"{integrand} has one value per site, not one per row"
        raise RecipeError("data_total", what, do="Wrap it in total().")
    if integrand.has(DataTotal):
        raise RecipeError("data_total", "one stands inside of another", do="Sum over the data once.")
    return DataTotal(integrand)
