"""When is an expression with totals zero? Canonical form first, then random numbers, then simplification."""

import random
from itertools import permutations

from sympy import Add, Dummy, Expr, Mul, Piecewise, S, diff, expand, numer, simplify, together
from sympy.core.relational import Relational

from .symbols import OPAQUE, Block, Parameter, Total, is_fraction, is_site, masked


def integrands(expression: Expr) -> dict[int, Expr]:
    """The expression as sums over 0, 1, 2, ... independent sites: number of sites -> symmetric integrand.

    total(f) total(g) is the double sum of f(site 1) g(site 2); equal totals meet in one integrand, so that
    total(sin(p)**2) + total(cos(p)**2) - n becomes one sum whose integrand simplifies to 0.
    """
    sums: dict[int, Expr] = {}
    for term in Add.make_args(expand(expression)):
        factors, totals = [], []
        for factor in Mul.make_args(term):
            base, power = factor.as_base_exp()
            if isinstance(base, Total) and power.is_Integer and power > 0:
                totals += [base.integrand] * int(power)
            else:
                factors.append(factor)
        orders = list(permutations(totals))
        symmetric = Add(*(Mul(*(at_site(f, k) for k, f in enumerate(order))) for order in orders)) / len(orders)
        sums[len(totals)] = sums.get(len(totals), S.Zero) + Mul(*factors) * symmetric
    return sums


_copies: dict = {}


def at_site(expression: Expr, k: int) -> Expr:
    """The site-level expression with its blocks and per-site parameters renamed to those of site k."""
    frozen, back = masked(expression, Total)
    own = {
        s: _copies.setdefault((s, k), Dummy(f"{s.name}_{k}", **_signs(s)))
        for s in frozen.free_symbols
        if isinstance(s, (Block, Parameter)) and is_site(s)
    }
    return frozen.xreplace(own).xreplace(back)


def at_one_site(expression: Expr) -> Expr:
    """The expression of a chain that has a single site: every total is its integrand, and n is 1.

    >>> from recipe import vector, total
    >>> p = vector("p")
    >>> at_one_site(total(p**2)/total(1) + total(p*total(p)))
    2*p**2
    """
    if isinstance(expression, Total):
        return at_one_site(expression.integrand)
    if not expression.has(Total):
        return expression
    return expression.func(*map(at_one_site, expression.args))


def _signs(s):
    return {k: True for k in ("real", "positive", "nonnegative") if getattr(s, f"is_{k}")}


def vanishes(expression: Expr) -> str | None:
    """How an expression is known to be identically zero: "symbolic", "numeric" (at random points), or None if it is not.

    >>> from recipe import vector, total
    >>> from sympy import sin, cos
    >>> p = vector("p")
    >>> vanishes(total(sin(p)**2) + total(cos(p)**2) - total(1))
    'symbolic'
    >>> vanishes(total(p) - p) is None
    True
    """
    frozen, back = masked(expression, Total)
    if any(frozen.as_numer_denom()[1].has(d) for d in back):  # a total below the line
        expression = numer(together(frozen)).xreplace(back)
    grades = [_vanishes(e) for e in integrands(expression).values()]
    if None in grades:
        return None
    return "numeric" if "numeric" in grades else "symbolic"


def _vanishes(expression):
    expression, _ = masked(expression, *OPAQUE)
    if expression == 0 or expand(expression) == 0:
        return "symbolic"
    if not _zero_at_random_points(expression):
        return None
    return "symbolic" if simplify(expression) == 0 else "numeric"


def is_continuous(choice: Piecewise, blocks) -> bool:
    """Whether neighbouring values of a Piecewise are seen to agree where its conditions, linear in a block, switch."""
    for (value, condition), (other, _) in zip(choice.args, choice.args[1:]):
        if not condition.free_symbols & set(blocks):
            continue
        if not isinstance(condition, Relational):
            return False
        edge = condition.lhs - condition.rhs
        block = next((b for b in blocks if edge.has(b) and not diff(edge, b).has(b)), None)
        if block is None:
            return False
        at = {block: block - edge / diff(edge, block)}
        if expand(value.subs(at) - other.subs(at)) != 0 and simplify(value.subs(at) - other.subs(at)) != 0:
            return False
    return True


def random_value(symbol, draw: random.Random) -> float:
    """A random value that respects the sign a symbol is declared with."""
    if is_fraction(symbol):
        return draw.random()
    value = draw.gauss(0, 1.5)
    if symbol.is_positive:
        return 0.1 + abs(value)
    return abs(value) if symbol.is_nonnegative else value


def _zero_at_random_points(expression, points=12):
    draw = random.Random(2015)
    symbols = sorted(expression.free_symbols, key=lambda s: s.sort_key())
    terms = [t for t in Add.make_args(expression)]
    for _ in range(points):
        at = {s: S(random_value(s, draw)) for s in symbols}
        values = [complex(t.xreplace(at).evalf(40)) for t in terms]
        value = complex(expression.xreplace(at).evalf(40, maxn=200))
        scale = max(map(abs, values)) if values else 0.0
        if not abs(value) <= 1e-12 * max(scale, 1e-300):
            return False
    return True
