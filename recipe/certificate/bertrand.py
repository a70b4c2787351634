"""Bertrand's test: whether the integral of exp(-K) up to infinity is finite, by the leading order of exp(K).

An order k x^a (log x)^b (log log x)^c ... is that of exp(K) where K is a sum of logs. The integral of its inverse is
finite iff the first of a, b, c, ... that is not 1 is larger. Source: Bromwich 1908, An Introduction to the Theory of
Infinite Series, section 11.
"""

from collections.abc import Callable
from functools import reduce

from sympy import Abs, Add, Expr, Mul, Pow, S, Symbol, atan, cos, exp, log, sin, tanh, together

from ..domains import Domain

DEPTH = 5  # number of powers: of x, and of its logs, nested
Order = tuple[Expr, tuple[Expr, ...]]  # the factor k, and the powers
NEGLIGIBLE: Order = (S.Zero, ())  # of what falls faster than every power
BOUNDED = (sin, cos, tanh, atan)


def is_finite(H: Expr, x: Symbol, domain: Domain, *, at_high: bool) -> bool | None:
    """Whether the integral of exp(-H) is finite towards the high or the low end of a domain; None if not known.

    >>> from sympy import symbols
    >>> from recipe.domains import NAMED
    >>> x, line = symbols("x", real=True), NAMED["real"]
    >>> tails = (log(2 + x**2)/2 + b*log(log(3 + x**2)) for b in (1, 2))  # 1/(x log x) and 1/(x log(x)^2)
    >>> [is_finite(H, x, line, at_high=True) for H in tails]
    [False, True]
    """
    z = Symbol("z", positive=True)
    end, inside = (domain.high, -1) if at_high else (domain.low, 1)
    is_endless = not end.is_finite
    return converges(H.xreplace({x: -inside * z if is_endless else end + inside / z}), z, 0 if is_endless else 2)


def converges(K: Expr, z: Symbol, first: int = 0) -> bool | None:
    """Whether the integral of z^-first exp(-K) up to infinity is finite; None if the order of exp(K) is not known."""
    powers = _powers(K, z, first)
    return None if powers is None else next((bool(p > 1) for p in powers if p != 1), False)


def _powers(K: Expr, z: Symbol, first: int) -> list[Expr] | None:
    """The powers of the order of exp(K) times a first power of z, or None."""
    powers = [S(first), *[S.Zero] * (DEPTH - 1)]
    for term in Add.make_args(K):
        c, rest = term.as_independent(z, as_Add=False)
        if isinstance(rest, log):
            leading = order(rest.args[0], z)
            if leading is None or leading == NEGLIGIBLE or not leading[0].is_positive:
                return None
            powers = [p + c * q for p, q in zip(powers, leading[1], strict=True)]
        elif not _is_bounded(rest, z):
            return None
    return powers if all(p.is_number and p.is_real for p in powers) else None


def _is_bounded(e: Expr, z: Symbol) -> bool:
    """Whether a formula is bounded at infinity, by its form."""
    if isinstance(e, BOUNDED) and e.args[0].is_extended_real:
        return True
    leading = order(e, z)
    return leading is not None and (leading == NEGLIGIBLE or not _first(leading) > 0)


def order(e: Expr, z: Symbol) -> Order | None:
    """The leading order of a formula of z towards infinity, or None."""
    constant = (S.Zero,) * DEPTH
    if z not in e.free_symbols:
        return (e, constant) if e.is_number and e.is_finite and e.is_nonzero else None
    match e:
        case Symbol():
            return S.One, (S.One, *constant[1:])
        case Add():
            return reduce(_or_none(_sum), (order(x, z) for x in e.args))
        case Mul():
            return reduce(_or_none(_product), (order(x, z) for x in e.args))
        case Pow() if e.exp.is_Rational:
            return _power(order(e.base, z), e.exp)
        case Abs():
            leading = order(e.args[0], z)
            return leading and (abs(leading[0]), leading[1])
        case log():
            leading = order(e.args[0], z)
            return order(together(e.args[0] - 1), z) if leading == (S.One, constant) else _log(leading)
        case exp():
            return _exp(order(e.args[0], z))
    return None


def _first(a: Order) -> Expr:
    """The first power that is not 0, or 0."""
    return next((p for p in a[1] if p != 0), S.Zero)


def _or_none(of_two: Callable[[Order, Order], Order | None]) -> Callable:
    """The function of two orders, None where one of them is."""
    return lambda a, b: None if a is None or b is None else of_two(a, b)


def _sum(a: Order, b: Order) -> Order | None:
    if NEGLIGIBLE in (a, b):
        return a if b == NEGLIGIBLE else b
    if a[1] == b[1]:
        return (a[0] + b[0], a[1]) if (a[0] + b[0]).is_nonzero else None
    p, q = next((p, q) for p, q in zip(a[1], b[1], strict=True) if p != q)
    return a if p > q else b


def _product(a: Order, b: Order) -> Order:
    if NEGLIGIBLE in (a, b):
        return NEGLIGIBLE
    return a[0] * b[0], tuple(p + q for p, q in zip(a[1], b[1], strict=True))


def _power(a: Order | None, p: Expr) -> Order | None:
    if a is None or a == NEGLIGIBLE or not (a[0].is_positive or p.is_integer):
        return None
    return a[0] ** p, tuple(q * p for q in a[1])


def _log(a: Order | None) -> Order | None:
    if a is None or a == NEGLIGIBLE or not a[0].is_positive:
        return None
    first = next((i for i, p in enumerate(a[1]) if p != 0), None)
    if first is None:  # towards a constant
        return log(a[0]), a[1]
    if first + 1 == DEPTH:
        return None
    return a[1][first], tuple(S(int(i == first + 1)) for i in range(DEPTH))


def _exp(a: Order | None) -> Order | None:
    if a is None or a == NEGLIGIBLE:
        return a and (S.One, (S.Zero,) * DEPTH)
    if _first(a) < 0:
        return S.One, (S.Zero,) * DEPTH
    is_fast = a[1][0] > 0 or a[1][0] == 0 and a[1][1] > 1
    return NEGLIGIBLE if is_fast and a[0].is_negative else None
