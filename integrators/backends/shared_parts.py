"""Subexpressions that a statement of a kernel computes together by one function of the prelude.

Linear friction over a time reads e^x and phi1(2x) of one x; a preconditioner divides by a number and by its root.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sympy import Dummy, Expr, Mul, Pow, S, Symbol, exp, expand

from ..functions import phi1
from ..passes import is_by_site


@dataclass(frozen=True)
class Shared:
    """Names for the results of a function of the prelude at one argument."""

    function: str
    names: tuple[Symbol, ...]
    argument: Expr


def shared_parts(e: Expr, meaning: Callable[[Expr], Expr]) -> tuple[list[Shared], Expr]:
    """The shared parts of an expression, and the expression in terms of their names.

    `meaning`: function that replaces names of values by these values.

    >>> from sympy import sqrt
    >>> from recipe import vector
    >>> x, y = vector("x"), vector("y")
    >>> parts, rest = shared_parts(y*exp(-x) + sqrt(y)*sqrt(phi1(-2*x)), lambda e: e)
    >>> parts, rest
    ([Shared(function='friction', names=(_decay, _slope), argument=-x)], _decay*y + sqrt(_slope*y))
    >>> shared_parts(y/x + y/sqrt(x), lambda e: e)
    ([Shared(function='inverse_root', names=(_root,), argument=x)], _root**2*y + _root*y)
    """
    frictions, e = _frictions(e, meaning)
    roots, e = _inverse_roots(e)
    return frictions + roots, e


def _frictions(e, meaning):
    """Pairs e^x and phi1(2x) as shared parts, with sqrt(phi1(2x)) and the root of a factor joined into one root."""
    pairs = []
    for slope in sorted(e.atoms(phi1), key=str):
        for decay in sorted(e.atoms(exp), key=str):
            if expand(meaning(slope.args[0]) - 2 * meaning(decay.args[0])) == 0:
                names = Dummy("decay"), Dummy("slope")
                pairs.append(Shared("friction", names, decay.args[0]))
                e = _under_one_root(e.xreplace({decay: names[0], slope: names[1]}), names[1])
                break
    return pairs, e


def _under_one_root(e, positive):
    """The expression with sqrt(positive)*sqrt(x) as sqrt(positive*x)."""

    def is_root(x):
        return x.is_Pow and x.exp == S.Half

    def joined(product):
        roots = [x for x in product.args if is_root(x) and any(map(is_by_site, x.free_symbols))]
        others = [x for x in product.args if x not in roots and x != Pow(positive, S.Half)]
        return Mul(*others, Pow(Mul(positive, *(x.base for x in roots[:1])), S.Half), *roots[1:])

    return e.replace(lambda x: x.is_Mul and Pow(positive, S.Half) in x.args, joined)


def _inverse_roots(e):
    """Pairs x^-1 and x^(-1/2) by site as shared parts, with the expression in terms of their names."""
    roots = []
    for root in sorted(e.atoms(Pow), key=str):
        if root.exp == -S.Half and 1 / root.base in e.atoms(Pow) and any(map(is_by_site, root.free_symbols)):
            name = Dummy("root")
            roots.append(Shared("inverse_root", (name,), root.base))
            e = e.xreplace({root: name, 1 / root.base: name**2})
    return roots, e
