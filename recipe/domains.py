"""Domains: where a block may be, and what becomes of it at an end.

A domain lies between two ends. At those of a box a chain is reflected, those of a circle are one point; no flow leads
back at all others, where a chain that comes out is lost, unless a piece is reflected by request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sympy import Expr, Rational, S, SympifyError, oo, pi, sympify

from .errors import RecipeError


@dataclass(frozen=True)
class Domain:
    """The numbers between `low` and `high`, by name, or the categories from `low` to `high`.

    `at_ends` is "lost", "reflected" or "joined", and "none" of categories.

    >>> domain_of((0, 1), "example").reflects, domain_of("periodic", "example").width
    (True, 2*pi)
    """

    name: str
    low: Expr = -oo
    high: Expr = oo
    at_ends: str = "lost"

    @property
    def is_real(self) -> bool:
        """Whether every real number is in it, and all are different."""
        return self.name == "real"

    @property
    def categories(self) -> int:
        """How many numbers there are, 0, 1, 2, ..., where these are all; else 0."""
        return int(self.high) + 1 if self.at_ends == "none" else 0

    @property
    def is_discrete(self) -> bool:
        """Whether its numbers are categories: 0, 1, 2, ..."""
        return self.categories > 0

    @property
    def is_compact(self) -> bool:
        """Whether both ends are finite."""
        return self.low.is_finite and self.high.is_finite and not self.is_discrete

    @property
    def wraps(self) -> bool:
        """Whether it is a circle: its ends are one point."""
        return self.at_ends == "joined"

    @property
    def reflects(self) -> bool:
        """Whether every flow is reflected at its ends."""
        return self.at_ends == "reflected"

    @property
    def width(self) -> Expr:
        """The distance of its ends: the period of a circle."""
        return self.high - self.low

    @property
    def ends(self) -> tuple[tuple[float, float], ...]:
        """The finite ends, each with the direction to the inside; a circle has none."""
        if self.wraps or self.is_discrete:
            return ()
        sides = ((self.low, 1.0), (self.high, -1.0))
        return tuple((float(end), inside) for end, inside in sides if end.is_finite)

    @property
    def start(self) -> Expr:
        """Where a block starts for which nothing better is known: 0, 1 if positive, the middle of an interval."""
        if self.name == "positive":
            return S.One
        return (self.low + self.high) / 2 if self.reflects or self.name == "fraction" else S.Zero

    @property
    def signs(self) -> dict[str, bool]:
        """The assumptions on a symbol of this domain."""
        if self.is_discrete:
            return {"integer": True, "nonnegative": True}
        if self.name == "positive" or self.low > 0:
            return {"positive": True}
        if self.low == 0:
            return {"nonnegative": True}
        return {"negative": True} if self.high < 0 else {"real": True}

    def inside(self, share: Any) -> Any:
        """The number of a compact domain at a share of its width, or an array of these."""
        return float(self.low) + share * float(self.width)

    def contains(self, x: float) -> bool:
        """Whether a number is strictly between the ends; of a circle every number is a point."""
        return self.wraps or bool(self.low < x < self.high)

    @property
    def in_words(self) -> str:
        """What its numbers are, in words.

        >>> NAMED["positive"].in_words, NAMED["periodic"].in_words
        ('positive', 'from -pi to pi')
        """
        if self.is_compact:
            return f"from {self.low} to {self.high}"
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
    )
}


def domain_of(spec: Any, where: str) -> Domain:
    """The domain that a word, the ends (a, b) of a box, ("periodic", period) or ("categories", number) stand for.

    Raises RecipeError for another word, and for ends, a period or a number that make none.

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
    """An angle of this period, about 0."""
    period = _finite(period, "the period", where)
    if not period > 0:
        raise RecipeError(where, f"the period {period} is not positive", do="Give its length, such as 24.")
    return Domain(f"periodic({period})", -period / 2, period / 2, "joined")


def _categories(number: Any, where: str) -> Domain:
    """The numbers 0, 1, 2, ..., so many of them."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 2:
        raise RecipeError(where, f"{number!r} is no number of categories", do="Give 2 or more.")
    return Domain(f"categories({number})", S.Zero, S(number - 1), "none")


def _box(low: Any, high: Any, where: str) -> Domain:
    """The box between two ends."""
    low, high = _finite(low, "the lower end", where), _finite(high, "the upper end", where)
    if not low < high:
        raise RecipeError(
            where, f"the box ({low}, {high}) is empty", do="The lower end of a box is below the upper one."
        )
    return Domain(f"({low}, {high})", low, high, "reflected")


def _finite(value: Any, what: str, where: str) -> Expr:
    """A finite real number, decimals meant exactly."""
    if isinstance(value, float):
        value = value if value in (float("inf"), -float("inf")) or value != value else Rational(repr(value))
    try:
        number = sympify(value, strict=True)
    except (SympifyError, TypeError, ValueError, AttributeError):
        number = S.NaN
    if isinstance(value, bool) or not (isinstance(number, Expr) and number.is_number and number.is_real):
        raise RecipeError(
            where,
            f"{what} {value!r} is not a finite number",
            do='Give a number; a half line is domain="positive", reflected by numerical(theta, "reflected").',
        )
    return number
