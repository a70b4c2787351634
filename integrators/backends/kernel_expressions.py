"""Printer of expressions in kernels, one value at a time; a dialect is a table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

from sympy import Add, And, Expr, Integer, Mul, Not, Or, Pow, S, StrictLessThan, Symbol, exp

from recipe import symbols
from recipe.symbols import Block

from ..domain_bounds import bounds
from ..passes import Unsupported
from ..variates import Uniform
from .expressions import condition_text, is_divisor, is_ratio, quotient, signed_sum


@dataclass(frozen=True)
class Dialect:
    """Syntax of a language: formats of lines, numbers, powers and choices, and the names of functions.

    `name`: the language in words; `declaration` and `assignment`: formats of lines of a name and a value; `calls`: the
    language's functions by sympy's names. Of these "sqrt" and "rsqrt", 1/sqrt, have to be there; any other that is not
    raises Unsupported. "below_exp", u < e^x without overflow, is taken where it is there.
    """

    name: str
    backend: str
    comment: str
    declaration: str
    assignment: str
    number: str
    power: Callable[[int, str], str]
    pow: str
    choice: str
    negation: str
    calls: Mapping[str, str]

    def text(self, e: Expr, name: Callable[[Symbol], str]) -> str:
        """The text of an expression; `name`: function from a symbol to its text.

        >>> from sympy import sqrt, symbols
        >>> x, y = symbols("x y")
        >>> CPP.text(x/4 - sqrt(y)*x**2/3, str)
        'x/R(4) - R(0.3333333333333333)*power<2>(x)*std::sqrt(y)'
        >>> TRITON.text(x/4 - sqrt(y)*x**2/3, str)
        'x/4 - 0.3333333333333333*(x*x)*tl.sqrt(y)'
        """
        return _Text(self, name).of(e)

    def inside(self, block: Block, name: str) -> str:
        """The text of the condition that a number is in the domain of a block.

        >>> from recipe import scalar
        >>> CPP.inside(scalar("v", domain="positive"), "v[l]")
        '(v[l] > 0)'
        """
        return " & ".join(f"({name} {sign} {self._end(end)})" for sign, end in bounds(block))

    def _end(self, end):
        """The text of an end of a domain, for comparison with a value of either precision."""
        return str(int(end)) if end == int(end) else self.number.format(repr(end))


def _powers(n, x):
    x = x if x.isidentifier() else f"({x})"
    return f"({'*'.join([x] * n)})" if n > 0 else f"(1/({'*'.join([x] * -n)}))"


OF_THE_PRELUDE = {name: name for name in ("phi1", "braked", "wrapped", "folded", "turned")}
OF_STD = ("sqrt", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc")
OF_TRITON = ("log", "sin", "cos", "sqrt", "rsqrt", "erf")

CPP = Dialect(
    name="C++",
    backend="cpp",
    comment="//",
    declaration="const R {} = {};",
    assignment="{} = {};",
    number="R({})",
    power=lambda n, x: f"power<{n}>({x})",
    pow="std::pow({}, {})",
    choice="({} ? {} : {})",
    negation="!({})",
    calls={name: f"{name}_of" for name in ("exp", "log", "sin", "cos", "tanh", "sign")}
    | {name: f"std::{name}" for name in OF_STD}
    | {"Abs": "std::abs", "rsqrt": "inverse_root", "below_exp": "below_exp"}
    | OF_THE_PRELUDE
    | {
        "wrapped": "wrapped<R>",
        "folded": "folded<R>",
        "turned": "turned<R>",
        "Max": "largest<R>",
        "Min": "smallest<R>",
    },
)
TRITON = Dialect(
    name="Triton",
    backend="triton",
    comment="#",
    declaration="{} = {}",
    assignment="{} = {}",
    number="{}",
    power=_powers,
    pow="power_of(zero + ({}), {})",
    choice="tl.where({}, zero + ({}), zero + ({}))",
    negation="~({})",
    calls={name: f"tl.{name}" for name in OF_TRITON}
    | OF_THE_PRELUDE
    | {name: f"{name}_of" for name in ("exp", "tanh", "sign")}
    | {"Abs": "tl.abs", "Max": "tl.maximum", "Min": "tl.minimum"},
)


class _Text:
    """Printer of expressions in a dialect, with a function from symbols to their texts."""

    def __init__(self, dialect, name):
        self.dialect = dialect
        self.name = name

    def of(self, e):
        match e:
            case Symbol():
                return self.name(e)
            case symbols.Total():
                return "n"
            case _ if isinstance(e, Expr) and not e.free_symbols and not e.has(symbols.Total):
                return self.number(e)
            case Add():
                return self.sum(e)
            case Mul():
                return self.product(e)
            case Pow():
                return self.power(e)
        return self.call(e)

    def number(self, e):
        """The text of a number: a small integer exactly, others as a float."""
        small = e.is_Integer and abs(int(e)) < 2**24
        try:
            return self.dialect.number.format(int(e) if small else repr(float(e)))
        except OverflowError as error:
            raise Unsupported("kernel", f"{e} is no floating-point number", do="Scale the formula.") from error

    def factor(self, e):
        return f"({self.of(e)})" if e.is_Add else self.of(e)

    def sum(self, e):
        return signed_sum(map(self.term, sorted(e.as_ordered_terms(), key=lambda t: t.could_extract_minus_sign())))

    def term(self, t):
        """Whether the sign of a term is minus, and the term's text without the sign."""
        negative = t.could_extract_minus_sign() and not t.is_Add
        return negative, self.factor(-t) if negative else self.of(t)

    def product(self, e):
        if e.could_extract_minus_sign():
            return f"-{self.factor(-e)}"
        fraction = next(filter(is_ratio, e.args), S.One)
        below = [f for f in e.args if is_divisor(f)]
        above = [f for f in e.args if f not in below and f is not fraction]
        halves = fraction.p == 1 and fraction.q & (fraction.q - 1) == 0  # compilers multiply by the inverse of 2^k
        top = [] if halves else [self.number(fraction)]
        top += map(self.factor, above)
        top += [self.of(f) for f in below if f.exp == -S.Half]
        bottom = [self.number(Integer(fraction.q))] if halves and fraction.q > 1 else []
        bottom += [self.factor(1 / f) for f in below if f.exp != -S.Half]
        return quotient("*".join(top) or self.dialect.number.format(1), bottom)

    def power(self, e):
        if e.exp == -S.Half:
            return f"{self.dialect.calls['rsqrt']}({self.of(e.base)})"
        root, p, q = self.of(e.base), *((int(e.exp.p), int(e.exp.q)) if e.exp.is_Rational else (0, 0))
        if q not in (1, 2, 4, 8) or abs(p) > 64:
            return self.dialect.pow.format(root, self.of(e.exp))
        for _ in range(q.bit_length() - 1):
            root = f"{self.dialect.calls['sqrt']}({root})"
        return root if p == 1 else self.dialect.power(p, root)

    def call(self, e):
        function = type(e).__name__
        if function == "Piecewise":
            (value, condition), *rest = e.args
            if condition == True or not rest:  # noqa: E712, a sympy truth
                return self.of(value)
            words = {And: " & ", Or: " | ", Not: self.dialect.negation}
            test = condition_text(condition, self.relation, lambda e: words)
            return self.dialect.choice.format(test, self.of(value), self.of(e.func(*rest)))
        args = [self.of(a) for a in e.args]
        if function == "Heaviside":
            one, zero = map(self.dialect.number.format, (1, 0))
            return self.dialect.choice.format(f"{args[0]} > 0", one, zero)
        call = self.dialect.calls.get(function)
        if call is None:
            raise Unsupported(
                "kernel",
                f"there is no {self.dialect.name} form of {function}: {e}",
                do=f"Known: {', '.join(self.dialect.calls)}; or use backend='torch'.",
            )
        if function in ("Max", "Min"):
            return reduce(lambda joined, a: f"{call}({joined}, {a})", args)
        return f"{call}({', '.join(args)})"

    def relation(self, e):
        if isinstance(e, StrictLessThan) and isinstance(e.lhs, Uniform) and isinstance(e.rhs, exp):
            if "below_exp" in self.dialect.calls:
                return f"{self.dialect.calls['below_exp']}({self.of(e.lhs)}, {self.of(e.rhs.args[0])})"
        return f"{self.of(e.lhs)} {e.rel_op} {self.of(e.rhs)}"
