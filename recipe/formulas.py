"""Formulas as a user gives them: sympy expressions and numbers, of known functions, finite, real and exact."""

from collections.abc import Iterable
from typing import Any

from sympy import Expr, Float, Function, Rational, S, SympifyError, sympify
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.function import AppliedUndef

from .bound import Bound
from .errors import RecipeError

# The functions known to every backend, beside sums, products, powers, Max and Min.
ELEMENTARY = "exp log sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh erf erfc".split()
KNOWN_FUNCTIONS = (*ELEMENTARY, "Abs", "sign", "Heaviside", "Piecewise")
_NOT_FINITE_AND_REAL = (S.NaN, S.Infinity, S.NegativeInfinity, S.ComplexInfinity, S.ImaginaryUnit)


def formula(expression: Any, where: str) -> Expr:
    """The sympy expression of an expression or a number, with exact decimals: 0.3 is 3/10.

    Raises RecipeError for text, which is never parsed, for values that are not finite and real, and for unknown
    functions.

    >>> formula(0.3, "example")
    3/10
    """
    if isinstance(expression, str) or isinstance(expression, Iterable) and not isinstance(expression, Expr):
        what = f"a formula is a sympy expression or a number, got {expression!r}"
        raise RecipeError(where, what, do="Text is never evaluated: build the formula from blocks and parameters.")
    try:
        value = sympify(expression, strict=True)
    except (SympifyError, TypeError, ValueError, AttributeError) as error:
        what = f"a formula is a sympy expression or a number, got {type(expression).__name__}"
        raise RecipeError(where, what, do="Build it from blocks and parameters.") from error
    if not isinstance(value, Expr) or value.has(*_NOT_FINITE_AND_REAL):
        raise RecipeError(where, f"{value} is not a finite real formula", do="Build it from blocks and parameters.")
    for x in value.atoms(Rational):
        if not _is_of_floats(x):
            what = f"a number of about 10**{len(str(abs(x.p))) - len(str(x.q))} stands there, which no float holds"
            raise RecipeError(where, what, do="Choose other units.")
    for part in value.atoms(Function, ExprWithLimits):
        if not isinstance(part, (AppliedUndef, Bound)) and type(part).__name__ not in KNOWN_FUNCTIONS:
            known = ", ".join((*KNOWN_FUNCTIONS, "sqrt", "Max", "Min"))
            raise RecipeError(where, f"{part} is no known function", do=f"Write it with {known}.")
    # exact, so that proofs have no rounding errors
    return value.xreplace({x: Rational(repr(float(x))) for x in value.atoms(Float)})


def _is_of_floats(x: Rational) -> bool:
    """Whether floats can represent a rational number approximately, without overflow or underflow."""
    try:
        return x == 0 or int(x.p) / int(x.q) != 0
    except OverflowError:
        return False
