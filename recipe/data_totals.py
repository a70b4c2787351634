"""Sums over data: columns of the data in an energy, and totals over their rows."""

from itertools import product

from sympy import Add, Expr, S, diff, exp

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


def bounded(e: Expr) -> Expr:
    """The expression with exp(z)/(1 + exp(z)) as 1/(1 + exp(-z)), which does not overflow.

    >>> from sympy import Symbol
    >>> z = Symbol("z", real=True)
    >>> bounded(exp(2*z)/(1 + exp(z))**2)
    (1 + exp(-z))**(-2)
    """
    if not e.has(exp):
        return e
    if e.args:
        e = e.func(*map(bounded, e.args))
    overflow = _overflow(e)
    if overflow is None:
        return e
    above, below, g, times = overflow
    divided = Add(*(t / g for t in below.base.args))
    return e / above / below * divided**-times * below.base ** (below.exp + times)


def _overflow(e: Expr) -> tuple[Expr, Expr, Expr, Expr] | None:
    """A factor g^k, a factor (g + ...)^-m with k <= m, the exponential g, and k; None without such factors."""
    if not e.is_Mul:
        return None
    numerators = [f for f in e.args if isinstance(f, exp)]
    denominators = [f for f in e.args if f.is_Pow and f.exp.is_Integer and f.exp < 0 and f.base.is_Add]
    for below in denominators:
        exponentials = [t for t in below.base.args if isinstance(t, exp)]
        for above, g in product(numerators, exponentials):
            times = above.args[0] / g.args[0]
            if times.is_Integer and 0 < times <= -below.exp:
                return above, below, g, times
    return None
