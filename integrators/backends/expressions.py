"""Sums and quotients as text, for the printers of expressions."""

from collections.abc import Iterable, Sequence

from sympy import Expr


def is_divisor(e: Expr) -> bool:
    """Whether a factor is a divisor: a negative power.

    >>> from sympy import Symbol
    >>> x = Symbol("x")
    >>> is_divisor(1/x), is_divisor(x**2)
    (True, False)
    """
    return bool(e.is_Pow and e.exp.is_Rational and e.exp.is_negative)


def is_fraction(e: Expr) -> bool:
    """Whether a factor is a rational number with a denominator."""
    return bool(e.is_Rational and not e.is_Integer)


def signed_sum(terms: Iterable[tuple[bool, str]]) -> str:
    """The sum of terms, each with whether its sign is minus.

    >>> signed_sum([(True, "x"), (False, "y"), (True, "2")])
    '-x + y - 2'
    """
    text = ""
    for negative, term in terms:
        if text:
            text += f" - {term}" if negative else f" + {term}"
        else:
            text = f"-{term}" if negative else term
    return text


def quotient(top: str, bottom: Sequence[str]) -> str:
    """The quotient of a product and a product of factors.

    >>> quotient("x", []), quotient("x", ["y"]), quotient("x", ["2", "y"])
    ('x', 'x/y', 'x/(2*y)')
    """
    if not bottom:
        return top
    return f"{top}/{bottom[0]}" if len(bottom) == 1 else f"{top}/({'*'.join(bottom)})"
