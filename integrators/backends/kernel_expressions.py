"""Printer of expressions in kernels, one value at a time; a dialect is a table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sympy import Add, And, Expr, Integer, Mul, Not, Or, Pow, S, Symbol, exp
from sympy.core.relational import Relational, StrictLessThan

from recipe import symbols
from recipe.symbols import Block

from ..domains import bounds
from ..passes import Unsupported
from ..variates import Uniform
from .expressions import is_divisor, is_fraction, quotient, signed_sum


@dataclass(frozen=True)
class Dialect:
    """Syntax of a language: formats of numbers, powers, choices and calls."""

    name: str
    number: str
    power: Callable[[int, str], str]
    pow: str
    choice: str
    negation: str
    both: str
    either: str
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


_STD = ("tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc")

CPP = Dialect(
    "C++",
    "R({})",
    lambda n, x: f"power<{n}>({x})",
    "std::pow({}, {})",
    "({} ? {} : {})",
    "!({})",
    " & ",
    " | ",
    {
        "exp": "exp_of",
        "below_exp": "below_exp",
        "log": "log_of",
        "sin": "sin_of",
        "cos": "cos_of",
        "tanh": "tanh_of",
        "phi1": "phi1",
        "braked": "braked",
        "wrapped": "wrapped<R>",
        "folded": "folded<R>",
        "turned": "turned<R>",
        "Abs": "std::abs",
        "sign": "sign_of",
        "sqrt": "std::sqrt",
        "rsqrt": "inverse_root",
        "Max": "largest<R>",
        "Min": "smallest<R>",
        **{name: f"std::{name}" for name in _STD},
    },
)


def _powers(n, x):
    return f"({'*'.join([x] * n)})" if n > 0 else f"(1/({'*'.join([x] * -n)}))"


TRITON = Dialect(
    "Triton",
    "{}",
    lambda n, x: _powers(n, x if x.isidentifier() else f"({x})"),
    "power_of(zero + ({}), {})",
    "tl.where({}, zero + ({}), zero + ({}))",
    "~({})",
    " & ",
    " | ",
    {
        "exp": "tl.exp",
        "log": "tl.log",
        "sin": "tl.sin",
        "cos": "tl.cos",
        "tanh": "tanh_of",
        "phi1": "phi1",
        "braked": "braked",
        "wrapped": "wrapped",
        "folded": "folded",
        "turned": "turned",
        "Abs": "tl.abs",
        "sign": "sign_of",
        "sqrt": "tl.sqrt",
        "rsqrt": "tl.rsqrt",
        "erf": "tl.erf",
        "Max": "tl.maximum",
        "Min": "tl.minimum",
    },
)


class _Text:
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
        fraction = next(filter(is_fraction, e.args), S.One)
        below = [f for f in e.args if is_divisor(f)]
        above = [f for f in e.args if f not in below and f is not fraction]
        halves = fraction.p == 1 and fraction.q & (fraction.q - 1) == 0  # compilers multiply by the inverse of 2^k
        top = [] if halves else [self.number(fraction)]
        top += map(self.factor, above)
        top += [self.of(f) for f in below if self.is_inverse_root(f)]
        bottom = [self.number(Integer(fraction.q))] if halves and fraction.q > 1 else []
        bottom += [self.factor(1 / f) for f in below if not self.is_inverse_root(f)]
        return quotient("*".join(top) or self.dialect.number.format(1), bottom)

    def is_inverse_root(self, e):
        """Whether e is x^(-1/2), in a language with a function for inverse roots."""
        return e.is_Pow and e.exp == -S.Half and "rsqrt" in self.dialect.calls

    def power(self, e):
        if self.is_inverse_root(e):
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
            return self.dialect.choice.format(self.condition(condition), self.of(value), self.of(e.func(*rest)))
        args = [self.of(a) for a in e.args]
        if function == "Heaviside":
            return self.dialect.choice.format(
                f"{args[0]} > 0", self.dialect.number.format(1), self.dialect.number.format(0)
            )
        if function not in self.dialect.calls:
            raise Unsupported(
                "kernel",
                f"there is no {self.dialect.name} form of {function}: {e}",
                do=f"Known: {', '.join(self.dialect.calls)}; or use backend='torch'.",
            )
        joined = args[0]
        call = self.dialect.calls[function]
        if function in ("Max", "Min"):
            for a in args[1:]:
                joined = f"{call}({joined}, {a})"
            return joined
        return f"{call}({', '.join(args)})"

    def condition(self, e):
        if isinstance(e, StrictLessThan) and isinstance(e.lhs, Uniform) and isinstance(e.rhs, exp):
            if "below_exp" in self.dialect.calls:
                return f"{self.dialect.calls['below_exp']}({self.of(e.lhs)}, {self.of(e.rhs.args[0])})"
        if isinstance(e, Relational):
            return f"{self.of(e.lhs)} {e.rel_op} {self.of(e.rhs)}"
        join = {And: self.dialect.both, Or: self.dialect.either}.get(type(e))
        parts = [f"({self.condition(a)})" for a in e.args]
        if join:
            return join.join(parts)
        if isinstance(e, Not):
            return self.dialect.negation.format(parts[0])
        raise Unsupported(
            "kernel",
            f"there is no {self.dialect.name} form of the condition {e}",
            do="Use comparisons, And, Or and Not.",
        )
