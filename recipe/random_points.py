"""Values of formulas at random points in high precision, however large the formulas, totals over sites included."""

import random
from typing import Any

import mpmath
from sympy import Abs, Expr, Float, Function, Heaviside, Max, Min, Piecewise, sign
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanFunction

from .declared import Block, is_fraction
from .formulas import ELEMENTARY
from .symbols import OPAQUE, Total, is_site

SITES = (2, 3, 5)  # numbers of sites of the chains, in turn
SCALES = (1.0, 0.1, 3.0, 0.01)  # of values without ends, in turn: a formula may be 0 but for rounding far from 0
FAR = (30.0, 300.0)  # further scales for formulas with kinks, which may be 0 on one side alone
POINTS = 12  # number of points for formulas with functions; rational ones have one for each of SITES
POINTS_FAR = 16  # number of further points for formulas with kinks
KINKS = (Abs, Max, Min, Heaviside, sign, Piecewise)
DIGITS = 50
ROUNDED = 1e-30  # largest value, relative to what cancels in it, that counts as 0
ROUNDED_OF_FLOATS = 1e-12  # the same for formulas with floats
FUNCTIONS = {name: getattr(mpmath, name) for name in (*ELEMENTARY, "sign")}
FUNCTIONS |= {"Abs": abs, "Max": max, "Min": min, "Heaviside": lambda x, *_: (1 + mpmath.sign(x)) / 2, "Pow": pow}
Value = tuple[Any, Any]  # a number, and the size of what cancels in it


def random_value(symbol: Expr, draw: random.Random, scale: float = 1.0) -> float:
    """A random value within the declared sign or domain of a symbol; `scale`: of values without ends."""
    if is_fraction(symbol):
        return draw.random()
    if isinstance(symbol, Block) and symbol.domain.is_compact:
        return symbol.domain.inside(draw.random())
    if isinstance(symbol, Block) and symbol.domain.is_discrete:
        return float(draw.randrange(symbol.domain.categories))
    value = scale * draw.gauss(0, 1.5)
    if symbol.is_positive:
        return 0.1 * scale + abs(value)
    return abs(value) if symbol.is_nonnegative else value


def is_zero_at_random_points(expression: Expr) -> bool:
    """Whether an expression vanishes at random states of chains of a few sites, relative to what cancels in it.

    >>> from sympy import log
    >>> from recipe import positive, total, vector
    >>> p, a = vector("p"), positive("a")
    >>> [is_zero_at_random_points(e) for e in (log(a**2) - 2*log(a), total(a*p) - a*p, (p + 1)**900 - p**900)]
    [True, False, False]
    """
    points = POINTS if expression.has(Function, Piecewise) else len(SITES)
    points = POINTS + POINTS_FAR if expression.has(*KINKS) else points
    rounded = ROUNDED_OF_FLOATS if expression.has(Float) else ROUNDED
    with mpmath.workdps(DIGITS):
        for k in range(points):
            try:
                value, size = _Chain(k).value(expression, 0)
            except (ZeroDivisionError, ValueError):
                return False
            if not abs(value) <= rounded * size:
                return False
    return True


class _Chain:
    """A chain of a few sites at a random state: the values of expressions, opaque ones drawn like symbols."""

    def __init__(self, number: int):
        self.number = number
        self.sites = SITES[number % len(SITES)]
        self.scale = SCALES[number % len(SCALES)] if number < POINTS else FAR[number % len(FAR)]
        self.known: dict[tuple[Any, int | None], Value] = {}
        self.names: dict[str, int] = {}  # symbols of one name, such as dummies, are drawn apart

    def value(self, e: Any, site: int | None) -> Value:
        """The value of an expression at a site, and the size of what cancels in it."""
        if e.is_number and not e.args:
            number = mpmath.mpf(e.p) / e.q if e.is_Rational else e._to_mpmath(mpmath.mp.prec)
            return number, abs(number)
        if isinstance(e, Total) or e.is_Symbol and not is_site(e):
            site = None
        if (e, site) not in self.known:
            self.known[e, site] = self.drawn(e, site) if self.is_drawn(e) else self.computed(e, site)
        return self.known[e, site]

    def is_drawn(self, e: Any) -> bool:
        """Whether an expression has a random value."""
        is_opaque = isinstance(e, OPAQUE) and not isinstance(e, Total)
        return e.is_Symbol or is_opaque or isinstance(e, Function) and type(e).__name__ not in (*FUNCTIONS, "Piecewise")

    def drawn(self, e: Any, site: int | None) -> Value:
        """A random value of a symbol or of an opaque expression."""
        key = (e, site if is_site(e) else None)
        if key not in self.known and isinstance(e, Block) and e.domain.is_sphere:
            self.known |= self.on_sphere(e)
        if key not in self.known:
            name = f"{e} {key[1]}"
            self.names[name] = self.names.get(name, 0) + 1
            value = random_value(e, random.Random(f"{name} {self.names[name]} {self.number}"), self.scale)
            self.known[key] = mpmath.mpf(value), abs(mpmath.mpf(value))
        return self.known[key]

    def on_sphere(self, u: Block) -> dict[tuple[Any, int | None], Value]:
        """The values of all sites of a block of the sphere."""
        draw = random.Random(f"{u} on the sphere {self.number}")
        numbers = [mpmath.mpf(draw.gauss(0, 1)) for _ in range(self.sites)]
        length = mpmath.sqrt(mpmath.fsum(x**2 for x in numbers))
        return {(u, k): (x / length, abs(x) / length) for k, x in enumerate(numbers)}

    def computed(self, e: Any, site: int | None) -> Value:
        """The value of a sum, product, function or choice of other values."""
        if isinstance(e, Total):
            return _sum([self.value(e.integrand, k) for k in range(self.sites)])
        if isinstance(e, Piecewise):
            return self.value(next(x for x, condition in e.args if self.holds(condition, site)), site)
        if not (e.is_Add or e.is_Mul or e.func.__name__ in FUNCTIONS):
            raise ValueError(f"{e} has no number")
        values = [self.value(x, site) for x in e.args]
        if e.is_Add:
            return _sum(values)
        if e.is_Mul:
            numbers, sizes = zip(*values)
            return mpmath.fprod(numbers), mpmath.fprod(sizes)
        return _image(FUNCTIONS[e.func.__name__], values)

    def holds(self, condition: Any, site: int | None) -> bool:
        """Whether a condition of a Piecewise holds."""
        if isinstance(condition, Relational):
            return bool(condition.func(*(Float(self.value(x, site)[0], DIGITS) for x in condition.args)))
        if isinstance(condition, BooleanFunction):
            return bool(condition.func(*(self.holds(x, site) for x in condition.args)))
        return bool(condition)


def _sum(values: list[Value]) -> Value:
    numbers, sizes = zip(*values)
    return mpmath.fsum(numbers), mpmath.fsum(sizes)


def _image(function: Any, values: list[Value]) -> Value:
    """The value of a function; its size: its own, and those of the arguments times its slopes."""
    step = mpmath.mpf(10) ** (-DIGITS // 2)
    numbers = [number for number, _ in values]
    at = function(*numbers)
    points = [[x + step * (i == k) for k, x in enumerate(numbers)] for i in range(len(numbers))]
    slopes = [abs(function(*shifted) - at) / step for shifted in points]
    return at, abs(at) + mpmath.fsum(size * slope for (_, size), slope in zip(values, slopes))
