"""Printer of expressions as torch text: numbers by math, tensors by torch, chain-level values expanded over sites."""

import ast
import builtins
import keyword
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sympy import Add, And, Expr, Mul, Not, Number, NumberSymbol, Or, Pow, S, Symbol, diff, preorder_traversal, sqrt

from recipe import symbols
from recipe.bound import Bound
from recipe.errors import RecipeError
from recipe.fields import Divergence, SlopeOfTotal, fields_of, operators_of, reads
from recipe.formulas import ELEMENTARY, KNOWN_FUNCTIONS
from recipe.operators import Applied, Diagonal
from recipe.symbols import OF_THE_STEP, RESERVED, Block, is_site

from ..functions import HalfStep
from ..program import Draw, Local, Program
from ..variates import Variate
from .expressions import condition_text, is_divisor, is_ratio, quotient, signed_sum

_text = Path(__file__).with_name("torch_prelude.py").read_text()
PRELUDE = {
    f.name: ast.get_source_segment(_text, f)
    for f in ast.parse(_text).body
    if isinstance(f, (ast.FunctionDef, ast.ClassDef))
}

# Classes of the prelude that its functions call.
NEEDED = {"operator": ("Eigen", "Dense"), "explicit": ("implicit", "are_equal"), "implicit": ("are_equal",)}

# Names in the text of a step beside those reserved for every recipe, and the arguments of its Optimizer. A test reads
# them out of the text of every stock sampler.
_OF_THE_TEXT = """math torch step advance begin settings
    self params seed lr momentum weight_decay""".split()
TAKEN = {*_OF_THE_TEXT, *RESERVED, *PRELUDE, *keyword.kwlist, *dir(builtins)}


WORDS_OF_PYTHON = {And: " and ", Or: " or ", Not: "not {}"}
WORDS_OF_TORCH = {And: " & ", Or: " | ", Not: "~{}"}
FUNCTIONS = "_functions"  # the text's dict of functions bound to networks; no other name begins with _


def free_name(name: str, *lists: Collection[str]) -> str:
    """The name, with _ appended until it is free.

    >>> free_name("step", TAKEN, ["step_"])
    'step__'
    """
    while any(name in names for names in lists):
        name += "_"
    return name


def python_names(program: Program) -> dict[str, str]:
    """Names of blocks and parameters in the emitted text: their own, with _ appended if taken."""
    names = {"h": "h", "T": "temperature", "num_data": "num_data", "step_number": "step_number"}
    entries: list[Symbol] = [*program.recipe.entries, *program.recipe.parameters]
    for s in entries:
        names[s.name] = free_name(s.name, TAKEN, names.values())
    return names


def marked_names(program: Program) -> dict[str, str]:
    """Names of blocks and parameters with _ at the end, as in kernels, so that none is a name of the text."""
    plain = {s.name for s in OF_THE_STEP}
    return {name: name_in_text if name in plain else f"{name}_" for name, name_in_text in python_names(program).items()}


def dict_text(items: Mapping[str, str]) -> str:
    """The text of a dict, from names to the texts of their values."""
    return "{" + ", ".join(f'"{name}": {value}' for name, value in items.items()) + "}"


def moves(e: Expr) -> bool:
    """Whether the value of an expression differs between chains."""
    return any(
        isinstance(s, (Block, Variate)) or isinstance(s, Local) and not s.is_constant_in_step for s in e.free_symbols
    )


def fills(e: Expr) -> bool:
    """Whether an expression reads a vector block or its noise; a parameter per site may be a single number."""
    return any(s.is_vector for s in e.free_symbols if isinstance(s, (Block, Variate)))


def _number(e):
    if e.is_Rational:
        return str(e)
    return repr(float(e))


class ExpressionWriter:
    """Writer of expressions as Python text; chain-level factors are joined before expansion over sites.

    `sites`: the number of sites of a chain, if its tensors hold only some of them.
    """

    def __init__(self, program: Program, sites: int | None = None):
        self.program = program
        self.sites = sites
        self.names = python_names(program)
        self.used: set[str] = set()
        self._locals: dict[Local, str] = {}
        draws = (s for s in program.statements if isinstance(s, Draw))
        self.drawn = {s.name: self._drawn(s.name) for s in draws if s.parameter is not None}
        self.by_tensor = program.scope == "tensor"
        self.like = next((self.names[b.name] for b in program.recipe.state if b.is_vector), "")

    def name(self, local: Local) -> str:
        """The name of a local value in the text, different from every other name."""
        if local not in self._locals:
            self._locals[local] = self._free(local.name)
        return self._locals[local]

    def rename(self, local: Local, text: str) -> None:
        """Set the text of a local value."""
        self._locals[local] = text

    def _free(self, name):
        return free_name(name, TAKEN, self.names.values(), self._locals.values())

    def _drawn(self, variate):
        """The local value of a random number with a law that depends on the state."""
        local = Local(f"drawn {variate.name}", variate.is_vector)
        self.rename(local, self._free(f"drawn_{variate.name}"))
        return local

    def level(self, e: Expr) -> str:
        """ "site" or "chain" for a tensor with one value per site or chain, else "number"."""
        if is_site(e):
            return "site"
        counts = self.by_tensor and e.has(symbols.Total)
        return "chain" if counts or moves(e) else "number"

    def text(self, e: Expr, level: str | None = None) -> str:
        """The text of an expression, expanded to one value per site if `level` is "site"."""
        if level == "site" and self.level(e) == "chain":
            return self.call("sites", self.text(e), self.like)
        write = next((TEXTS[kind] for kind in type(e).__mro__ if kind in TEXTS), ExpressionWriter._call)
        return write(self, e, self.level(e))

    def call(self, function: str, *arguments: str) -> str:
        """The text of a call of a prelude function; `sites` and `total` in the program's scope."""
        if self.by_tensor and function in ("sites", "total"):
            function, arguments = f"{function}_by_tensor", (arguments[0], "sizes")
        self.used |= {function, *NEEDED.get(function, ())}
        return f"{function}({', '.join(arguments)})"

    def operator(self, F: Expr) -> str:
        """The text of a formula of an operator: its root, its inverse, or a function of its eigenvalues."""
        (M,) = operators_of(F)
        name = self.text(M)
        known = {sqrt(M): f"{name}.root()", 1 / M: f"{name}.inverse()", 1 / sqrt(M): f"{name}.inverse().root()"}
        if F in known:
            return known[F]
        of_eigenvalues = WriterOfEigenvalues(self, M)
        text = f"{name}.function(lambda {name}: {of_eigenvalues.text(F)})"
        self.used |= of_eigenvalues.used
        return text

    def _matrix(self, F: Expr) -> str:
        """The text of an operator, or of a formula of one."""
        return self.text(F) if F.is_Symbol else self.operator(F)

    def _half_step(self, e: HalfStep) -> str:
        """The text of a half step; what does not change with the block is added before an iteration or after it."""
        b = e.block
        moving = Add(*(term for term in Add.make_args(e.change) if reads(term, b)))
        fields = [self.text(M) for M in sorted((M for M in fields_of(moving) if M.at == b), key=str)]
        function = f"lambda {', '.join([self.text(b), *fields])}: {self.text(moving, 'site')}"
        rest = e.change - moving
        if e.is_implicit:
            return self.call("implicit", function, self.text(b + rest), *fields)
        stepped = self.call("explicit", function, self.text(b), *fields)
        return f"{stepped} + {self._factor(rest)}" if rest != 0 else stepped

    def _slope(self, e: SlopeOfTotal) -> str:
        """The text of the slope of a total through a field G: of w.F(e), or of tr F with the matrix F'(G)."""
        (M,) = fields_of(e.args[0])
        if e.form is None:
            (trace,) = e.args[0].integrand.atoms(Diagonal)
            return f"{self.text(M)}.slope_of_trace({self._matrix(diff(trace.args[0], M))})"
        w, F, x = e.form
        text = f"{self.text(M)}.slope({self.text(w, 'site')}, {self.text(x, 'site')}"
        return f"{text}, of_inverse=True)" if F == 1 / M else f"{text})"

    def _grouped(self, e, level):
        """The arguments as (numbers, chain-level, site-level), so that the first two are joined before expansion."""
        levels = [[a for a in e.args if self.level(a) == k] for k in ("number", "chain", "site")]
        return levels if level == "site" else [levels[0], levels[1] + levels[2], []]

    def _sum(self, e, level):
        terms = list(e.as_ordered_terms())
        if level == "site":
            chain = [t for t in terms if self.level(t) == "chain"]
            if len(chain) > 1:
                terms = [t for t in terms if t not in chain] + [Add(*chain)]
        terms.sort(key=lambda t: (not isinstance(t, Block), t.could_extract_minus_sign()))
        return signed_sum(self._term(t, level) for t in terms)

    def _term(self, t, level):
        """Whether the sign of a term is minus, and the term's text without the sign."""
        if t.is_Add or not t.could_extract_minus_sign():
            return False, self.text(t, level)
        text = self.text(-t, level)
        return True, f"({text})" if (-t).is_Add else text

    def _product(self, e, level):
        sign, e = ("-", -e) if e.could_extract_minus_sign() else ("", e)
        if not e.is_Mul:
            return sign + self._factor(e, level)
        numbers, chain, site = self._grouped(e, level)
        parts = [self._ratio(numbers)] if numbers else []
        if chain:
            joined = Mul(*chain)
            if site:
                parts.append(self.text(joined, "site"))
            elif len(chain) == 1 and not numbers:
                parts.append(self._factor(joined, level))
            else:
                parts.append(self._ratio(chain))
        if site:
            parts.append(self._ratio(site))
        first, *rest = [p for p in parts if p != "1"] or ["1"]
        return sign + first + "".join(p[1:] if p.startswith("1/") else f"*{p}" for p in rest)

    def _ratio(self, factors):
        """The text of a product of factors of one level, with square roots joined and negative powers as divisors."""
        factors = sorted(factors, key=lambda f: not getattr(f, "is_constant_in_step", False))
        roots = [f for f in factors if f.is_Pow and abs(f.exp) == S.Half]
        below = [f for f in factors if is_divisor(f) and f not in roots]
        fraction = next(filter(is_ratio, factors), S.One)
        above = [f for f in factors if f not in (*roots, *below, fraction, S.One)]
        top = [] if fraction.p == 1 else [str(fraction.p)]
        top += map(self._factor, above)
        if roots:
            top.append(self._root(Mul(*(f**2 for f in roots))))
        bottom = [] if fraction.q == 1 else [str(fraction.q)]
        bottom += [self._factor(1 / f) for f in below]
        return quotient("*".join(top) or "1", bottom)

    def _factor(self, e, level=None):
        text = self.text(e, level)
        return f"({text})" if e.is_Add or is_ratio(e) or text.startswith("-") else text

    def _power(self, e, level):
        if e.exp == S.Half:
            return self._root(e.base)
        if e.exp == -S.Half:
            return f"1/{self._root(e.base)}"
        if is_divisor(e):
            return self._ratio([e])
        base, exponent = self.text(e.base, level), self.text(e.exp, level)
        plain = e.exp.is_Integer and e.exp.is_nonnegative or exponent.isidentifier()
        return f"{base if base.isidentifier() else f'({base})'}**{exponent if plain else f'({exponent})'}"

    def _root(self, e):
        return f"{'math' if self.level(e) == 'number' else 'torch'}.sqrt({self.text(e)})"

    def _call(self, e, level):
        name = type(e).__name__
        is_number = level == "number"
        if name == "Piecewise":
            return self._choice(e.args, level)
        args = [self.text(a, level) for a in e.args]
        if isinstance(e, Bound):
            return f"{FUNCTIONS}[{name!r}]({', '.join(args)})"
        match name:
            case "phi1" | "braked" | "wrapped" | "folded" | "turned":
                return self.call(name, *args)
            case "Abs":
                return f"abs({args[0]})"
            case "Max" | "Min":
                return f"{name.lower()}({', '.join(args)})" if is_number else self._extreme(name, e.args, args)
            case "Heaviside" if is_number:
                return f"float({args[0]} > 0)"
            case "Heaviside":
                return f"torch.heaviside({args[0]}, torch.zeros_like({args[0]}))"
            case "sign":
                return f"math.copysign({args[0]} != 0, {args[0]})" if is_number else f"torch.sign({args[0]})"
        if name in ELEMENTARY:
            return f"{'math' if is_number else 'torch'}.{name}({args[0]})"
        do = f"Known functions: {', '.join(KNOWN_FUNCTIONS)}, sqrt, Max, Min."
        raise RecipeError(f"{self.program.recipe.name}, torch", f"there is no torch lowering for {name}: {e}", do=do)

    def _extreme(self, name, values, texts):
        """The text of the largest or smallest of values, of which some are tensors."""
        function = name.lower()
        numbers = [t for t, v in zip(texts, values) if self.level(v) == "number"]
        text, *tensors = [t for t, v in zip(texts, values) if self.level(v) != "number"]
        for t in tensors:
            text = f"torch.{function}imum({text}, {t})"
        if not numbers:
            return text
        limit = numbers[0] if len(numbers) == 1 else f"{function}({', '.join(numbers)})"
        return f"torch.clamp({text}, {'min' if name == 'Max' else 'max'}={limit})"

    def _choice(self, pieces, level):
        """The text of a Piecewise: the value of the first piece with a true condition."""
        (value, condition), *rest = pieces
        if condition == True or not rest:  # noqa: E712, a sympy truth
            return self.text(value, level)
        this, other = self.text(value, level), self._choice(rest, level)
        test = condition_text(
            condition, lambda e: f"{self.text(e.lhs, level)} {e.rel_op} {self.text(e.rhs, level)}", self._words
        )
        if self.level(condition) == "number":
            return f"({this} if {test} else {other})"
        if (value, [v for v, _ in rest]) == (1, [0]) and self.like:
            return f"({test}).to({self.like}.dtype)"
        if self.level(value) == "number" and all(self.level(v) == "number" for v, _ in rest):
            tensor = next(a for a in preorder_traversal(condition) if isinstance(a, Expr) and self.level(a) != "number")
            this = f"torch.full_like({self.text(tensor, level)}, {this})"
        return f"torch.where({test}, {this}, {other})"

    def _words(self, condition):
        """The words between conditions: of Python for numbers, of torch for tensors."""
        is_number = self.level(condition) == "number"
        return WORDS_OF_PYTHON if is_number else WORDS_OF_TORCH


# The text of an expression by its class, its writer and its level.
TEXTS: dict[type, Callable[[ExpressionWriter, Any, str], str]] = {
    Variate: lambda w, e, _: w.name(w.drawn[e]) if e in w.drawn else f'noise["{e.name}"]',
    Local: lambda w, e, _: w.name(e),
    Symbol: lambda w, e, _: w.names.get(e.name, e.name),
    symbols.Total: lambda w, e, _: "n",
    Divergence: lambda w, e, _: f"{w.text(e.args[0])}.divergence",
    Applied: lambda w, e, _: f"({w._matrix(e.formula)} @ {w._factor(e.argument)})",
    Diagonal: lambda w, e, _: f"{w._matrix(e.args[0])}.diagonal({w.like})",
    SlopeOfTotal: lambda w, e, _: w._slope(e),
    HalfStep: lambda w, e, _: w._half_step(e),
    Number: lambda w, e, _: _number(e),
    NumberSymbol: lambda w, e, _: _number(e),
    Add: ExpressionWriter._sum,
    Mul: ExpressionWriter._product,
    Pow: ExpressionWriter._power,
}


class WriterOverSteps(ExpressionWriter):
    """Writer of expressions in which h, temperature and the step's number are tensors of many steps."""

    def __init__(self, program: Program):
        super().__init__(program)
        self.varying: set[Symbol] = {symbols.step_size, symbols.temperature, symbols.step_number}
        for constant in program.constants:
            if any(e.free_symbols & self.varying for e in constant.values):
                self.varying.update(constant.defines)

    def level(self, e: Expr) -> str:
        """ "site" also for a tensor with a value per step."""
        return "site" if e.free_symbols & self.varying else super().level(e)


class WriterOfEigenvalues(ExpressionWriter):
    """Writer of an operator's formulas, with its name for the tensor of its eigenvalues."""

    def __init__(self, writer: ExpressionWriter, operator: Symbol):
        super().__init__(writer.program, writer.sites)
        self.names = writer.names
        self._locals = writer._locals
        self.eigenvalues = operator
        self.is_complex = getattr(operator, "matrix_kind", "") == "skew"

    def level(self, e: Expr) -> str:
        """ "site" for expressions that read the eigenvalues."""
        return "site" if self.eigenvalues in e.free_symbols else super().level(e)

    def call(self, function: str, *arguments: str) -> str:
        """The text of a call of a prelude function, in its complex form for complex eigenvalues."""
        return super().call(
            f"{function}_of_complex" if self.is_complex and function == "phi1" else function, *arguments
        )
