"""Domains of blocks: their values, and the behaviour of a chain at an end.

A domain lies between two ends. At the ends of a box a chain is reflected; the ends of a circle are one point; beyond
all other ends a chain is lost, unless a piece is reflected by request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sympy import Expr, Rational, S, SympifyError, oo, pi, sympify

from .errors import RecipeError


@lru_cache
def _in_floats(low: Expr, width: Expr) -> tuple[float, float]:
    """The low end and the width as floats, cached because sympy is slow to round."""
    return float(low), float(width)


@dataclass(frozen=True)
class Domain:
    """A named domain: the numbers between `low` and `high`, or the categories from `low` to `high`.

    `at_ends`: "lost", "reflected" or "joined"; "none" for categories.

    >>> domain_of((0, 1), "example").reflects, domain_of("periodic", "example").width
    (True, 2*pi)
    """

    name: str
    low: Expr = -oo
    high: Expr = oo
    at_ends: str = "lost"

    @property
    def is_real(self) -> bool:
        """Whether the domain is the real line."""
        return self.name == "real"

    @property
    def is_endless(self) -> bool:
        """Whether a coordinate may be any number: on the real line, or on a sphere of any radius."""
        return not (self.low.is_finite or self.high.is_finite)

    @property
    def categories(self) -> int:
        """The number of categories 0, 1, 2, ...; 0 for other domains."""
        return int(self.high) + 1 if self.at_ends == "none" else 0

    @property
    def is_discrete(self) -> bool:
        """Whether the values are categories 0, 1, 2, ..."""
        return self.categories > 0

    @property
    def is_compact(self) -> bool:
        """Whether both ends are finite, and the values are not categories."""
        return self.low.is_finite and self.high.is_finite and not self.is_discrete

    @property
    def wraps(self) -> bool:
        """Whether the domain is a circle, with its ends joined."""
        return self.at_ends == "joined"

    @property
    def is_sphere(self) -> bool:
        """Whether the sites of a vector are the coordinates of a point of the unit sphere."""
        return self.name == "sphere"

    @property
    def reflects(self) -> bool:
        """Whether every flow is reflected at the ends."""
        return self.at_ends == "reflected"

    @property
    def width(self) -> Expr:
        """The distance between the ends: the period of a circle."""
        return self.high - self.low

    @property
    def ends(self) -> tuple[tuple[float, float], ...]:
        """The finite ends, each with the direction to the inside, 1 or -1; none for a circle or categories."""
        if self.wraps or self.is_discrete:
            return ()
        sides = ((self.low, 1.0), (self.high, -1.0))
        return tuple((float(end), inside) for end, inside in sides if end.is_finite)

    @property
    def start(self) -> Expr:
        """Default initial value of a block: 0, 1 if positive, the middle of a box or fraction."""
        if self.name == "positive":
            return S.One
        return (self.low + self.high) / 2 if self.reflects or self.name == "fraction" else S.Zero

    @property
    def signs(self) -> dict[str, bool]:
        """The sympy assumptions on a symbol of this domain."""
        if self.is_discrete:
            return {"integer": True, "nonnegative": True}
        if self.name == "positive" or self.low > 0:
            return {"positive": True}
        if self.low == 0:
            return {"nonnegative": True}
        return {"negative": True} if self.high < 0 else {"real": True}

    def inside(self, share: Any) -> Any:
        """The number, or array of numbers, at a share of the width of a compact domain."""
        low, width = _in_floats(self.low, self.width)
        return low + share * width

    def contains(self, x: float) -> bool:
        """Whether a number is strictly between the ends; true for every number on a circle."""
        return self.wraps or bool(self.low < x < self.high)

    @property
    def in_words(self) -> str:
        """The values in words.

        >>> NAMED["positive"].in_words, NAMED["periodic"].in_words
        ('positive', 'from -pi to pi')
        """
        if self.is_compact:
            return f"from {self.low} to {self.high}"
        if self.is_sphere:
            return "on the unit sphere"
        return f"one of {self.categories} categories" if self.categories > 2 else self.name

    def __str__(self):
        return self.name


NAMED = {
    d.name: d
    for d in (
        Domain("real"),
        Domain("positive", S.Zero),
        Domain("nonnegative", S.Zero),
        Domain("fraction", S.Zero, S.One),
        Domain("binary", S.Zero, S.One, "none"),
        Domain("periodic", -pi, pi, "joined"),
        Domain("sphere"),
    )
}


def domain_of(spec: Any, where: str) -> Domain:
    """The domain given by a name, the ends (a, b) of a box, ("periodic", period) or ("categories", number).

    Raises RecipeError for unknown names, and for invalid ends, periods or numbers.

    >>> print(domain_of(("periodic", 24), "example"), domain_of((0, 0.5), "example").high)
    periodic(24) 1/2
    """
    if isinstance(spec, Domain):
        return spec
    if isinstance(spec, str) and spec in NAMED:
        return NAMED[spec]
    if isinstance(spec, Sequence) and not isinstance(spec, str) and len(spec) == 2:
        first, second = spec
        if first == "categories":
            return _categories(second, where)
        return _circle(second, where) if first == "periodic" else _box(first, second, where)
    raise RecipeError(
        where,
        f"unknown domain {spec!r}",
        do=f'Use one of {", ".join(NAMED)}, ("periodic", period), ("categories", number), '
        "or the two ends (a, b) of a box that reflects.",
    )


def _circle(period: Any, where: str) -> Domain:
    period = _finite(period, "the period", where)
    if not period > 0:
        raise RecipeError(where, f"the period {period} is not positive", do="Give its length, such as 24.")
    return Domain(f"periodic({period})", -period / 2, period / 2, "joined")


def _categories(number: Any, where: str) -> Domain:
    if isinstance(number, bool) or not isinstance(number, int) or number < 2:
        raise RecipeError(where, f"{number!r} is no number of categories", do="Give 2 or more.")
    return Domain(f"categories({number})", S.Zero, S(number - 1), "none")


def _box(low: Any, high: Any, where: str) -> Domain:
    low, high = _finite(low, "the lower end", where), _finite(high, "the upper end", where)
    if not low < high:
        what = f"the box ({low}, {high}) is empty"
        raise RecipeError(where, what, do="The lower end of a box is below the upper one.")
    return Domain(f"({low}, {high})", low, high, "reflected")


def _finite(value: Any, what: str, where: str) -> Expr:
    """The value as a finite real number, with floats as exact decimals."""
    if isinstance(value, float):
        value = value if value in (float("inf"), -float("inf")) or value != value else Rational(repr(value))
    try:
        number = sympify(value, strict=True)
    except (SympifyError, TypeError, ValueError, AttributeError):
        number = S.NaN
    if isinstance(value, bool) or not (isinstance(number, Expr) and number.is_number and number.is_real):
        do = 'Give a number; a half line is domain="positive", reflected by numerical(theta, "reflected").'
        raise RecipeError(where, f"{what} {value!r} is not a finite number", do=do)
    return number
