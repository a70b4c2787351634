"""Logarithms and exponentials in forms that compare, and in forms that do not overflow."""

from itertools import product

from sympy import (
    Abs,
    Add,
    Expr,
    Function,
    Max,
    Mul,
    Pow,
    cosh,
    default_sort_key,
    exp,
    expand_log,
    expand_mul,
    log,
    sinh,
    together,
)

from .symbols import Total, masked


def logs_apart(expression: Expr) -> Expr:
    """The expression with the log of a product of positive factors as the sum of their logs.

    >>> from sympy import log, symbols
    >>> x, y = symbols("x y", real=True)
    >>> logs_apart(log((1 + x**2)*(1 + y**2)) + log(x*y))
    log(x*y) + log(x**2 + 1) + log(y**2 + 1)
    """
    products = [e for e in expression.atoms(log) if e.args[0].is_Mul and all(f.is_positive for f in e.args[0].args)]
    return expression.xreplace({e: Add(*map(log, e.args[0].args)) for e in products})


def log_of(e: Expr) -> Expr:
    """log |e|, with the logs of the factors, powers and exponentials of e apart.

    >>> from sympy import exp, symbols
    >>> x = symbols("x", real=True)
    >>> log_of(exp(-x**2)*(1 + x**2)**3)
    -x**2 + 3*log(x**2 + 1)
    """
    match e:
        case exp():
            return e.args[0]
        case Mul():
            return Add(*map(log_of, e.args))
        case Pow() if e.exp.is_Rational:
            return e.exp * log_of(e.base)
    return log(Abs(e))


def with_stable_logs(e: Expr) -> Expr:
    """The formula with the logs of sums of exponentials as LogSumExp, which does not overflow.

    >>> from sympy import cosh, exp, symbols
    >>> x = symbols("x", real=True)
    >>> with_stable_logs(log(1 + exp(2*x)) - log(cosh(x)))
    LogSumExp(0, 2*x) - LogSumExp(-x - 0.693147180559945, x - 0.693147180559945)
    """
    if not (e.has(log) and e.has(exp, cosh, sinh)):
        return e
    return e.replace(log, _log_of_sum)


class LogSumExp(Function):
    """log(exp(a) + exp(b) + ...)."""

    is_real = True


def _log_of_sum(argument: Expr) -> Expr:
    inside = argument.args[0] if isinstance(argument, Abs) else argument
    terms = expand_mul(inside.replace(cosh, lambda a: (exp(a) + exp(-a)) / 2))
    if not isinstance(terms, Add) or not terms.has(exp) or not all(t.is_positive for t in terms.args):
        return log(argument)
    logs = [a.xreplace({x: x.evalf() for x in a.atoms(log) if x.is_number}) for a in map(log_of, terms.args)]
    return LogSumExp(*sorted(logs, key=default_sort_key))


def with_short_logs(e: Expr) -> Expr:
    """The formula with logs simplified against cancellation, such as log(1 - S/(1 + S)) = -log(1 + S).

    >>> from sympy import exp, log
    >>> from recipe import total, vector
    >>> z = vector("z")
    >>> S = total(exp(z))
    >>> with_short_logs(log(1 - S/(1 + S)) + total(log(exp(z)/(1 + S))))
    -log(total(exp(z)) + 1)*n - log(total(exp(z)) + 1) + total(z)
    """

    def is_log(x: Expr) -> bool:
        return isinstance(x, log)

    def short(x: Expr) -> Expr:
        inside, sums = masked(x.args[0], Total)
        return expand_log(log(together(inside))).xreplace(sums)

    outside, sums = masked(e, Total)
    values = {name: Total(whole.integrand.replace(is_log, short)) for name, whole in sums.items()}
    return outside.xreplace(values).replace(is_log, short)


def without_overflow(e: Expr) -> Expr:
    """The expression with log(1 + exp(z)) as Max(z, 0) + log(1 + exp(-|z|)).

    >>> from sympy import Symbol
    >>> z = Symbol("z", real=True)
    >>> without_overflow(log(1 + exp(z)))
    log(1 + exp(-Abs(z))) + Max(0, z)
    """
    return e.replace(is_softplus, lambda x: softplus((x.args[0] - 1).args[0]))


def softplus(z: Expr) -> Expr:
    """log(1 + exp(z)), of any size."""
    return Max(z, 0) + log(1 + exp(-Abs(z)))


def is_softplus(e: Expr) -> bool:
    """Whether an expression is log(1 + exp(z))."""
    return isinstance(e, log) and isinstance(e.args[0] - 1, exp)


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
