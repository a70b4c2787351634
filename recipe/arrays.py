"""Formulas as functions of numpy arrays."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

from sympy import lambdify
from sympy.printing.numpy import NumPyPrinter

from .bound import Bound
from .logs import LogSumExp, with_stable_logs

POWER = "_whole_power"  # the name of whole_power in the text of a function


def of_arrays(symbols: Any, expressions: Any, *, cse: bool = False) -> Callable:
    """A numpy function of `symbols`, or of lists of symbols, that evaluates an expression or a list of expressions.

    >>> from sympy import erf, symbols
    >>> x = symbols("x", real=True)
    >>> float(of_arrays([x], 2*erf(x))(0.0))
    0.0
    """
    from numpy import logaddexp, vectorize

    is_one = not isinstance(expressions, (list, tuple))
    formulas = [with_stable_logs(e) for e in ([expressions] if is_one else expressions)]
    functions: dict[str, Callable] = {name: vectorize(getattr(math, name), otypes=[float]) for name in ("erf", "erfc")}
    functions |= {POWER: whole_power, LogSumExp.__name__: lambda *terms: reduce(logaddexp, terms)}
    functions |= {type(f).__name__: f.on_arrays for e in formulas for f in e.atoms(Bound)}
    printer = _Printer(
        {
            "fully_qualified_modules": False,
            "inline": True,
            "allow_unknown_functions": True,
            "user_functions": {name: name for name in functions},
        }
    )
    return lambdify(symbols, formulas[0] if is_one else formulas, [functions, "numpy"], printer=printer, cse=cse)


def whole_power(x: Any, exponent: int) -> Any:
    """x**n for n >= 1 by squaring; numpy's power takes a hundred times as long for n > 2.

    >>> [whole_power(2.0, n) for n in (1, 2, 3, 10)]
    [2.0, 4.0, 8.0, 1024.0]
    """
    if exponent == 1:
        return x
    root = whole_power(x, exponent // 2)
    return root * root * x if exponent % 2 else root * root


class _Printer(NumPyPrinter):
    """Printer of whole powers as calls of whole_power."""

    def _print_Pow(self, expr, rational=False):
        base, exponent = expr.as_base_exp()
        if not exponent.is_Integer or abs(exponent) < 3:
            return super()._print_Pow(expr, rational=rational)
        power = f"{POWER}({self._print(base)}, {abs(exponent)})"
        return power if exponent > 0 else f"(1/{power})"
