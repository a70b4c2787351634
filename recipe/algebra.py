"""Zero tests of expressions with totals: canonical form first, then random numbers, then simplification."""

from collections.abc import Collection, Iterable
from itertools import permutations
from math import factorial

from sympy import (
    Abs,
    Add,
    Dummy,
    Expr,
    ImmutableMatrix,
    Mul,
    Piecewise,
    Pow,
    S,
    Symbol,
    degree,
    expand,
    numer,
    roots,
    simplify,
    together,
)
from sympy import factor as factored
from sympy.core.relational import Relational

from .calculus import LONG, expanded, is_short
from .declared import Block, Parameter, signs_of
from .ensembles import Outer
from .random_points import is_zero_at_random_points
from .symbols import OPAQUE, Crossing, Total, is_site, masked

SIMPLE = 200  # number of operations above which a formula is not simplified


def integrands(expression: Expr) -> dict[int, Expr]:
    """The expression as sums over 0, 1, 2, ... independent sites: symmetric integrands by number of sites.

    total(f) total(g) is the double sum of f(site 1) g(site 2); equal numbers of totals join in one integrand, so that
    total(sin(p)**2) + total(cos(p)**2) - n becomes one sum with an integrand that simplifies to 0.

    >>> from recipe import scalar, total, vector
    >>> p, xi = vector("p"), scalar("xi")
    >>> integrands(xi**2 + xi*total(p))
    {0: xi**2, 1: _p_0*xi}
    """
    sums: dict[int, Expr] = {}
    for term in Add.make_args(expand(expression)):
        factors, totals = _sums_apart(term)
        orders = list(permutations(totals))
        symmetric = Add(*(Mul(*(at_site(f, k) for k, f in enumerate(order))) for order in orders)) / len(orders)
        sums[len(totals)] = sums.get(len(totals), S.Zero) + Mul(*factors) * symmetric
    return sums


def _sums_apart(term: Expr) -> tuple[list[Expr], list[Expr]]:
    """The factors of a product that are no totals, and the integrands of its totals."""
    factors: list[Expr] = []
    totals: list[Expr] = []
    for factor in Mul.make_args(term):
        base, power = factor.as_base_exp()
        if isinstance(base, Total) and power.is_Integer and power > 0:
            totals += [base.integrand] * int(power)
        else:
            factors.append(factor)
    return factors, totals


# Symbols of blocks and of applied operators at a site; cached, so that equal expressions stay equal.
_copies: dict[tuple[Expr, int], Dummy] = {}


def at_site(expression: Expr, k: int) -> Expr:
    """The site-level expression with blocks and per-site parameters renamed for site k."""
    outside, back = masked(expression, Total, Crossing)
    copies = {
        s: _copies.setdefault((s, k), Dummy(f"{s.name}_{k}", **signs_of(s)))
        for s in outside.free_symbols
        if isinstance(s, (Block, Parameter)) and is_site(s)
    }
    crossing = {d: e for d, e in back.items() if isinstance(e, Crossing)}
    back |= {d: _copies.setdefault((e, k), Dummy(f"{e}_{k}", real=True)) for d, e in crossing.items()}
    return outside.xreplace(copies).xreplace(back)


def at_one_site(expression: Expr) -> Expr:
    """The expression for a chain with a single site: every total is its integrand, and n is 1.

    >>> from recipe import vector, total
    >>> p = vector("p")
    >>> at_one_site(total(p**2)/total(1) + total(p*total(p)))
    2*p**2
    """
    if isinstance(expression, Total):
        return at_one_site(expression.integrand)
    if isinstance(expression, (Crossing, Outer)):
        return at_one_site(expression.at_one_site())
    if not expression.has(Total, Crossing, Outer):
        return expression
    return expression.func(*map(at_one_site, expression.args))


def factors(e: Expr) -> set[Expr]:
    """The factors of an expression, without powers and numbers.

    >>> from sympy import sin, symbols
    >>> x, y = symbols("x y", real=True)
    >>> sorted(map(str, factors(2*x**2*sin(y) - x**3*sin(y))))
    ['sin(y)', 'x', 'x - 2']
    """
    parts = Mul.make_args(factored(e) if is_short(e) else e)
    return {x.base if isinstance(x, Pow) and x.exp.is_number else x for x in parts if not x.is_number}


def readers(expression: Expr, symbols: Iterable[Symbol]) -> dict[Symbol, Expr]:
    """The terms of a sum that read each symbol, by symbol; the derivative by a symbol needs these terms only."""
    terms: dict[Symbol, list[Expr]] = {s: [] for s in symbols}
    for term in Add.make_args(expression):
        for s in term.free_symbols & terms.keys():
            terms[s].append(term)
    return {s: Add(*summands) for s, summands in terms.items()}


def entries(matrix: ImmutableMatrix) -> dict[tuple[int, int], Expr]:
    """The nonzero entries of a matrix, by (row, column) in order."""
    return dict(sorted(matrix.todok().items(), key=lambda item: item[0]))


def vanishes(expression: Expr) -> str | None:
    """The grade of proof that an expression is identically zero: "symbolic", "numeric" (at random points), or None.

    None: the expression is not zero.

    >>> from recipe import vector, total
    >>> from sympy import sin, cos
    >>> p = vector("p")
    >>> vanishes(total(sin(p)**2) + total(cos(p)**2) - total(1))
    'symbolic'
    >>> vanishes(total(p) - p) is None
    True
    """
    if expression == 0 or expanded(expression) == 0:
        return "symbolic"
    if not is_zero_at_random_points(expression):
        return None
    return "symbolic" if _is_zero_by_form(expression) else "numeric"


def weakest(*grades: str | None) -> str | None:
    """The weakest of grades of proof: None, "numeric" or "symbolic"."""
    return min(grades, key=(None, "numeric", "symbolic").index)


def _is_zero_by_form(expression: Expr) -> bool:
    """Whether expansion and simplification, of formulas that are short, show that an expression is zero."""
    if not is_short(expression):
        return False
    outside, back = masked(expression, Total)
    if outside.as_numer_denom()[1].has(*back):
        # A total in a denominator.
        expression = numer(together(outside)).xreplace(back)
    if not is_short(expression):
        return False
    orders = (factorial(len(_sums_apart(term)[1])) for term in Add.make_args(expand(expression)))
    if sum(orders) > LONG:
        return False
    sums = [masked(e, *OPAQUE)[0] for e in integrands(expression).values()]
    return all(map(_is_zero_at_a_site, sums))


def _is_zero_at_a_site(e: Expr) -> bool:
    """Whether a formula without opaque parts is shown to be zero."""
    if expand(e) == 0 or expanded(numer(together(e))) == 0:
        return True
    return e.count_ops() <= SIMPLE and simplify(e) == 0


def is_continuous(choice: Piecewise, blocks: Collection[Block]) -> bool:
    """Whether neighbouring pieces of a Piecewise are known to agree where a condition switches.

    Conditions are polynomials of a block or of its absolute value, of degree 1 or 2.

    >>> from recipe import vector
    >>> from sympy import Abs, S
    >>> p = vector("p")
    >>> is_continuous(Piecewise((p, p > 0), (0, True)), [p]), is_continuous(Piecewise((1, p > 0), (0, True)), [p])
    (True, False)
    >>> is_continuous(Piecewise((p**2 / 2, Abs(p) < 1), (Abs(p) - S.Half, True)), [p])
    True
    """
    return all(
        _agree(value, other, condition, blocks)
        for (value, condition), (other, _) in zip(choice.args, choice.args[1:])
        if condition.free_symbols & set(blocks)
    )


def _agree(value: Expr, other: Expr, condition: Expr, blocks: Collection[Block]) -> bool:
    """Whether two expressions are known to be equal on the edge of a condition."""
    if not isinstance(condition, Relational):
        return False
    edge = condition.lhs - condition.rhs
    sides = [edge.replace(Abs, lambda x: x), edge.replace(Abs, lambda x: -x)]
    block = next((b for b in blocks if edge.has(b) and all(x.is_polynomial(b) for x in sides)), None)
    if block is None or any(degree(x, block) > 2 for x in sides):
        return False
    places = {x for side in sides for x in roots(side, block) if x.is_real is not False}
    jumps = [value.subs(block, x) - other.subs(block, x) for x in places]
    return all(expand(jump) == 0 or simplify(jump) == 0 for jump in jumps)
