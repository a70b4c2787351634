"""Sums, quotients and conditions as text, for the printers of expressions."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from sympy import And, Expr, Not, Or
from sympy.core.relational import Relational

from recipe import Energy

from ..passes import Unsupported


def is_divisor(e: Expr) -> bool:
    """Whether a factor is a divisor: a negative power.

    >>> from sympy import Symbol
    >>> x = Symbol("x")
    >>> is_divisor(1/x), is_divisor(x**2)
    (True, False)
    """
    return bool(e.is_Pow and e.exp.is_Rational and e.exp.is_negative)


def is_ratio(e: Expr) -> bool:
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


Words = Mapping[type, str]  # what joins the parts of And and of Or, and a format of Not


def condition_text(e: Expr, relation: Callable[[Expr], str], words: Callable[[Expr], Words]) -> str:
    """The text of a condition; `relation`: function from a comparison to its text; `words`: those of a condition.

    >>> from sympy.abc import x
    >>> condition_text(And(x > 0, x < 2), str, lambda e: {And: " & "})
    '(x > 0) & (x < 2)'
    """
    if isinstance(e, Relational):
        return relation(e)
    if not isinstance(e, (And, Or, Not)):
        raise Unsupported("backend", f"there is no text of the condition {e}", do="Use comparisons, And, Or and Not.")
    parts = [f"({condition_text(a, relation, words)})" for a in e.args]
    word = words(e)[type(e)]
    return word.format(*parts) if isinstance(e, Not) else word.join(parts)


def derivatives_of(energy: Energy, order: int) -> Sequence[Expr]:
    """U, for order 0, or the derivatives of an energy of order 1, or those of its Hessian diagonal, of order 2."""
    if order == 0:
        return (energy.value,)
    return energy.gradient if order == 1 else energy.curvature
