"""Expressions as C++ text over one number type R, one value at a time."""

from collections.abc import Callable

from sympy import Add, And, Expr, Mul, Not, Or, Pow, Symbol
from sympy.core.relational import Relational

from recipe import symbols
from recipe.errors import RecipeError

CALLS = {"exp": "exp_of", "log": "log_of", "sin": "sin_of", "cos": "cos_of", "tanh": "tanh_of", "phi1": "phi1", "braked": "braked",
         "Abs": "std::abs", "sign": "sign_of",
         **{name: f"std::{name}" for name in ("tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc")}}


class Unsupported(RecipeError):
    """A Program has a statement or function that a backend cannot print."""


def text(e: Expr, name: Callable[[Symbol], str]) -> str:
    """The expression; `name` gives the text of a symbol.

    >>> from sympy import symbols, sqrt
    >>> x, y = symbols("x y")
    >>> text(x/3 - sqrt(y)*x**2, str)
    'x/R(3) - power<2>(x)*std::sqrt(y)'
    """
    write = lambda e: text(e, name)
    factor = lambda e: f"({write(e)})" if e.is_Add else write(e)
    match e:
        case Symbol():
            return name(e)
        case symbols.Total():
            return "n"
        case _ if e.is_Integer:
            return f"R({int(e)})"
        case _ if e.is_Rational:
            return f"R({int(e.p)}.0/{int(e.q)})"
        case _ if e.is_Number or e.is_NumberSymbol:
            return f"R({float(e)!r})"
        case Add():
            return _sum(e, write)
        case Mul():
            return _product(e, write, factor)
        case Pow() if e.exp.is_Integer:
            return f"power<{int(e.exp)}>({write(e.base)})"
        case Pow() if e.exp.is_Rational and e.exp.q in (2, 4, 8):
            root = write(e.base)
            for _ in range(int(e.exp.q).bit_length() - 1):
                root = f"std::sqrt({root})"
            return root if e.exp.p == 1 else f"power<{int(e.exp.p)}>({root})"
        case Pow():
            return f"std::pow({write(e.base)}, {write(e.exp)})"
    return _call(e, write)


def _sum(e, write):
    terms = sorted(e.as_ordered_terms(), key=lambda t: t.could_extract_minus_sign())
    out = ""
    for t in terms:
        negative = t.could_extract_minus_sign() and not t.is_Add
        part = write(-t if negative else t)
        part = f"({part})" if negative and (-t).is_Add else part
        out += (f" - {part}" if negative else f" + {part}") if out else (f"-{part}" if negative else part)
    return out


def _product(e, write, factor):
    if e.could_extract_minus_sign():
        return f"-{factor(-e)}"
    below = [f for f in e.args if f.is_Pow and f.exp.is_Rational and f.exp.is_negative]
    above = [f for f in e.args if f not in below]
    number = next((f for f in above if f.is_Rational and not f.is_Integer), None)
    top = [factor(f) for f in above if f is not number]
    bottom = [factor(1 / f) for f in below]
    if number is not None:
        top = ([f"R({int(number.p)})"] if number.p != 1 else []) + top
        bottom = [f"R({int(number.q)})", *bottom]
    line = "*".join(top) or "R(1)"
    return line if not bottom else f"{line}/{bottom[0]}" if len(bottom) == 1 else f"{line}/({'*'.join(bottom)})"


def _call(e, write):
    function = type(e).__name__
    if function == "Piecewise":
        (value, condition), *rest = e.args
        if condition == True or not rest:  # noqa: E712, a sympy truth
            return write(value)
        return f"({_condition(condition, write)} ? {write(value)} : {_call(e.func(*rest), write) if len(rest) > 1 else write(rest[0][0])})"
    args = [write(a) for a in e.args]
    if function in CALLS:
        return f"{CALLS[function]}({', '.join(args)})"
    if function in ("Max", "Min"):
        joined = args[0]
        for a in args[1:]:
            joined = f"{'largest' if function == 'Max' else 'smallest'}<R>({joined}, {a})"
        return joined
    if function == "Heaviside":
        return f"({args[0]} > 0 ? R(1) : R(0))"
    raise Unsupported("cpp", f"there is no C++ form of {function}: {e}", do=f"Known: {', '.join(CALLS)}; or use backend='torch'.")


def _condition(e, write):
    if isinstance(e, Relational):
        return f"{write(e.lhs)} {e.rel_op} {write(e.rhs)}"
    join = {And: " & ", Or: " | "}.get(type(e))
    parts = [f"({_condition(a, write)})" for a in e.args]
    if join:
        return join.join(parts)
    if isinstance(e, Not):
        return f"!{parts[0]}"
    raise Unsupported("cpp", f"there is no C++ form of the condition {e}", do="Use comparisons, And, Or and Not.")
