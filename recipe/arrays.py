"""Formulas as functions of numpy's arrays."""

import math
from collections.abc import Callable
from typing import Any

from sympy import lambdify


def of_arrays(symbols: Any, expressions: Any, *, cse: bool = False) -> Callable:
    """The function of arrays that an expression, or a list of them, is of symbols, or lists of them.

    >>> from sympy import erf, symbols
    >>> x = symbols("x", real=True)
    >>> float(of_arrays([x], 2*erf(x))(0.0))
    0.0
    """
    from numpy import vectorize

    error_functions = {name: vectorize(getattr(math, name), otypes=[float]) for name in ("erf", "erfc")}
    return lambdify(symbols, expressions, [error_functions, "numpy"], cse=cse)
