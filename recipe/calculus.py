"""Derivatives of large formulas, and expansions within a budget of terms: the same answers on every machine."""

from math import comb, prod

from sympy import Add, Dummy, Expr, Function, Mul, Pow, S, Symbol, cancel, exp, expand, log

LONG = 2000  # number of terms above which a formula is not expanded
MANY = 8  # number of symbols above which no common factors are looked for


def derivative(expression: Expr, by: Symbol) -> Expr:
    """The derivative by a symbol, equal to sympy's `diff` and faster: constant powers need no log of their base.

        d b^n = b^n (n db / b),   n constant

    >>> from sympy import diff, sin, symbols
    >>> x, y = symbols("x y", real=True)
    >>> U = (x - y**2)**2 + x*sin(x*y)
    >>> derivative(U, x), derivative(U, x) == diff(U, x)
    (x*y*cos(x*y) + 2*x - 2*y**2 + sin(x*y), True)
    """
    if by not in expression.free_symbols:
        return S.Zero
    args = expression.args
    if expression.is_Add:
        return Add(*(derivative(term, by) for term in args))
    if expression.is_Mul:
        slopes = ((i, derivative(factor, by)) for i, factor in enumerate(args))
        return Add(*(Mul(*args[:i], slope, *args[i + 1 :]) for i, slope in slopes if slope is not S.Zero))
    if expression.is_Pow and by not in expression.exp.free_symbols:
        return expression * (derivative(expression.base, by) * expression.exp / expression.base)
    if isinstance(expression, (exp, log)):
        return expression.fdiff() * derivative(args[0], by)
    return expression.diff(by)


def expanded(expression: Expr) -> Expr:
    """The expansion into a sum of products, or the expression itself if its expansion may be long.

    >>> from sympy import symbols
    >>> x, y = symbols("x y")
    >>> expanded((x + y)**2), expanded((x + y)**8000)
    (x**2 + 2*x*y + y**2, (x + y)**8000)
    """
    return expand(expression) if is_short(expression) else expression


def is_short(expression: Expr, most: int = LONG) -> bool:
    """Whether an expansion has at most `most` terms, those inside of functions, powers and denominators included.

    >>> from sympy import sin, symbols
    >>> x, y = symbols("x y")
    >>> is_short(sin((x + y)**50)), is_short(sin((x + y)**50 * (1 + x)**80))
    (True, False)
    """
    numbers: dict[Expr, int] = {}
    inside = 0

    def number(e: Expr) -> int:
        """An upper bound of the number of terms of the expansion of e."""
        nonlocal inside
        if not e.args:
            return 1
        if e not in numbers:
            of_args = [number(x) for x in e.args]
            if e.is_Add or e.is_Mul:
                numbers[e] = sum(of_args) if e.is_Add else prod(of_args)
            elif e.is_Pow and e.exp.is_Rational:
                numbers[e] = comb(of_args[0] + abs(int(e.exp)) - 1, of_args[0] - 1)
                inside += 0 if e.exp.is_Integer and e.exp > 0 else numbers[e]
            else:
                numbers[e] = 1 if e.is_Function or e.is_Pow else max(of_args)
                inside += sum(of_args)
        return numbers[e]

    return number(expression) + inside <= most


def in_lowest_terms(expression: Expr) -> Expr:
    """A rational function of symbols and functions as a fraction in lowest terms, any other formula `expanded`.

    >>> from sympy import sin, symbols
    >>> x, y = symbols("x y")
    >>> in_lowest_terms(x**2/(x + sin(y)) - sin(y)**2/(x + sin(y))), in_lowest_terms(x*(x + y)/y)
    (x - sin(y), x**2/y + x)
    """
    functions = {f: Dummy() for f in expression.atoms(Function)}
    outside = expression.xreplace(functions)
    has_sums_below = any(e.base.is_Add and e.exp.is_negative for e in outside.atoms(Pow))
    is_small = len(outside.free_symbols) <= MANY and is_short(outside, LONG // 10)
    if not (has_sums_below and is_small and outside.is_rational_function()):
        return expanded(expression)
    return cancel(outside).xreplace({name: f for f, name in functions.items()})
