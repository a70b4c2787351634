"""Expressions as torch text: numbers by math, tensors by torch, chain-level values spread over sites."""

import ast
import builtins
import keyword
from pathlib import Path

from sympy import Add, And, Expr, Mul, Not, Or, Pow, S, Symbol, preorder_traversal
from sympy.core.relational import Relational

from recipe import symbols
from recipe.errors import RecipeError
from recipe.symbols import Block, is_site

from ..flow import Variate
from ..program import Draw, Local, Program

FUNCTIONS = (
    "exp",
    "log",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
)

_text = Path(__file__).with_name("torch_prelude.py").read_text()
PRELUDE = {f.name: ast.get_source_segment(_text, f) for f in ast.parse(_text).body if isinstance(f, ast.FunctionDef)}

TAKEN = {
    "math",
    "torch",
    "state",
    "gradient",
    "curvature",
    "noise",
    "observe",
    "sizes",
    "step_number",
    "step",
    "advance",
    "begin",
    "settings",
    "n",
    "self",
    "params",
    "num_data",
    "seed",
    "lr",
    "momentum",
    "weight_decay",
    "step_size",
    *PRELUDE,
    *keyword.kwlist,
    *dir(builtins),
}


def python_names(program: Program) -> dict[str, str]:
    """A name in the emitted text for each block and parameter: its own, or with _ appended where that one is taken."""
    names = {"h": "h", "T": "temperature", "num_data": "num_data", "step_number": "step_number"}
    for s in (*program.recipe.entries, *program.recipe.parameters):
        name = s.name
        while name in TAKEN or name in names.values():
            name += "_"
        names[s.name] = name
    return names


class Writer:
    """Expressions as Python text; chain-level factors meet before they are spread over sites."""

    def __init__(self, program: Program):
        self.program, self.names, self.used, self._locals = program, python_names(program), set(), {}
        self.drawn = {
            s.name: Local(f"drawn_{s.name.name}", s.name.is_vector)
            for s in program.statements
            if isinstance(s, Draw) and s.parameter is not None
        }
        self.by_tensor = program.scope == "tensor"
        self.like = next((self.names[b.name] for b in program.recipe.state if b.is_vector), None)

    def name(self, local: Local) -> str:
        """The text of a local value's name, kept apart from every other name."""
        if local.name not in self._locals:
            name, others = local.name, {*TAKEN, *self.names.values(), *self._locals.values()}
            while name in others:
                name += "_"
            self._locals[local.name] = name
        return self._locals[local.name]

    def rename(self, local: Local, text: str) -> None:
        """Let a local value be written as this text."""
        self._locals[local.name] = text

    def level(self, e: Expr) -> str:
        """ "site" or "chain" for a tensor with one value per site or chain, else "number"."""
        if is_site(e):
            return "site"
        tensors = (
            any(
                isinstance(s, (Block, Variate)) or isinstance(s, Local) and not s.is_constant_in_step
                for s in e.free_symbols
            )
            or self.by_tensor
            and e.has(symbols.Total)
        )
        return "chain" if tensors else "number"

    def text(self, e: Expr, level: str | None = None) -> str:
        """The expression as text; as one value per site where `level` asks for it."""
        own = self.level(e)
        if level == "site" and own == "chain":
            return self.call("sites", self.text(e), self.like)
        match e:
            case Variate() if e in self.drawn:
                return self.name(self.drawn[e])
            case Variate():
                return f'noise["{e.name}"]'
            case Local():
                return self.name(e)
            case Symbol():
                return self.names[e.name] if e.name in self.names else e.name
            case symbols.Total():
                return "n"
            case _ if e.is_Number:
                return str(int(e)) if e.is_Integer else f"{e.p}/{e.q}" if e.is_Rational else repr(float(e))
            case _ if e.is_NumberSymbol:
                return repr(float(e))
            case Add():
                return self._sum(e, own)
            case Mul():
                return self._product(e, own)
            case Pow():
                return self._power(e, own)
        return self._call(e, own)

    def call(self, function: str, value: str, *others: str) -> str:
        """A call of `sites` or `total` in the program's scope."""
        function, others = (f"{function}_by_tensor", ["sizes"]) if self.by_tensor else (function, others)
        self.used.add(function)
        return f"{function}({', '.join([value, *others])})"

    def _grouped(self, e, own):
        """The arguments as (numbers, chain-level, site-level), the first two joined to meet the third once."""
        levels = [[a for a in e.args if self.level(a) == k] for k in ("number", "chain", "site")]
        return levels if own == "site" else [levels[0], levels[1] + levels[2], []]

    def _sum(self, e, own):
        terms = list(e.as_ordered_terms())
        if own == "site":
            chain = [t for t in terms if self.level(t) == "chain"]
            if len(chain) > 1:
                terms = [t for t in terms if t not in chain] + [Add(*chain)]
        terms.sort(key=lambda t: (not isinstance(t, Block), t.could_extract_minus_sign()))
        text = ""
        for t in terms:
            negative = t.could_extract_minus_sign() and not t.is_Add
            part = self.text(-t if negative else t, own)
            if negative and (-t).is_Add:
                part = f"({part})"
            text += (f" - {part}" if negative else f" + {part}") if text else (f"-{part}" if negative else part)
        return text

    def _product(self, e, own):
        sign, e = ("-", -e) if e.could_extract_minus_sign() else ("", e)
        if not e.is_Mul:
            return sign + self._factor(e, own)
        numbers, chain, site = self._grouped(e, own)
        parts = [self._ratio(numbers)] if numbers else []
        if chain:
            joined = Mul(*chain)
            if site:
                parts.append(self.text(joined, "site"))
            elif len(chain) == 1 and not numbers:
                parts.append(self._factor(joined, own))
            else:
                parts.append(self._ratio(chain))
        if site:
            parts.append(self._ratio(site))
        first, *rest = [p for p in parts if p != "1"] or ["1"]
        return sign + first + "".join(p[1:] if p.startswith("1/") else f"*{p}" for p in rest)

    def _ratio(self, factors):
        """A product of factors of one level, square roots joined and negative powers below the line."""
        factors = sorted(factors, key=lambda f: not getattr(f, "is_constant_in_step", False))
        halves = [f for f in factors if f.is_Pow and abs(f.exp) == S.Half]
        factors = [f for f in factors if f not in halves]
        below = [f for f in factors if f.is_Pow and f.exp.is_Rational and f.exp.is_negative]
        above = [f for f in factors if f not in below]
        top = [self._factor(f) for f in above if not (f.is_Rational and f.p == 1)]
        bottom = [self._factor(1 / f) for f in below]
        for f in above:
            if f.is_Rational and not f.is_Integer:
                top = [t for t in top if t != self._factor(f)]
                top = ([str(f.p)] if f.p != 1 else []) + top
                bottom = [str(f.q)] + bottom
        if halves:
            top.append(self._root(Mul(*(f**2 for f in halves))))
        line = "*".join(top) or "1"
        if not bottom:
            return line
        return f"{line}/{bottom[0]}" if len(bottom) == 1 else f"{line}/({'*'.join(bottom)})"

    def _factor(self, e, own=None):
        text = self.text(e, own)
        return f"({text})" if e.is_Add or e.is_Rational and not e.is_Integer or text.startswith("-") else text

    def _power(self, e, own):
        if e.exp == S.Half:
            return self._root(e.base)
        if e.exp == -S.Half:
            return f"1/{self._root(e.base)}"
        if e.exp.is_Rational and e.exp.is_negative:
            return self._ratio([e])
        level = own if own == "site" else None
        base, exponent = self.text(e.base, level), self.text(e.exp, level)
        plain = e.exp.is_Integer and e.exp.is_nonnegative or exponent.isidentifier()
        return f"{base if base.isidentifier() else f'({base})'}**{exponent if plain else f'({exponent})'}"

    def _root(self, e):
        return f"{'math' if self.level(e) == 'number' else 'torch'}.sqrt({self.text(e)})"

    def _call(self, e, own):
        name, where = type(e).__name__, f"{self.program.recipe.name}, torch"
        if name == "Piecewise":
            return self._choice(e.args, own)
        args = [self.text(a, own if own == "site" else None) for a in e.args]
        if name in ("phi1", "braked"):
            self.used.add(name)
            return f"{name}({', '.join(args)})"
        if name in FUNCTIONS:
            return f"{'math' if own == 'number' else 'torch'}.{name}({args[0]})"
        if name == "Abs":
            return f"abs({args[0]})"
        if name in ("Max", "Min") and own == "number":
            return f"{name.lower()}({', '.join(args)})"
        if name in ("Max", "Min"):
            bound = "min" if name == "Max" else "max"
            numbers = [t for t, a in zip(args, e.args) if self.level(a) == "number"]
            tensors = [t for t, a in zip(args, e.args) if self.level(a) != "number"]
            text = tensors[0]
            for t in tensors[1:]:
                text = f"torch.{name.lower()}imum({text}, {t})"
            limit = numbers[0] if len(numbers) == 1 else f"{name.lower()}({', '.join(numbers)})"
            return f"torch.clamp({text}, {bound}={limit})" if numbers else text
        if name == "Heaviside":
            return (
                f"torch.heaviside({args[0]}, torch.zeros_like({args[0]}))"
                if own != "number"
                else f"float({args[0]} > 0)"
            )
        if name == "sign":
            return f"torch.sign({args[0]})" if own != "number" else f"math.copysign({args[0]} != 0, {args[0]})"
        raise RecipeError(
            where,
            f"there is no torch lowering for {name}: {e}",
            do=f"Known functions: {', '.join(FUNCTIONS)}, sqrt, Abs, Max, Min, Piecewise.",
        )

    def _choice(self, pieces, own):
        """The value of the first piece whose condition holds, the last one's condition being True."""
        (value, condition), *rest = pieces
        level = own if own == "site" else None
        if condition == True or not rest:  # noqa: E712, a sympy truth
            return self.text(value, level)
        this, other = self.text(value, level), self._choice(rest, own)
        test = self._condition(condition, level)
        if self.level(condition) == "number":
            return f"({this} if {test} else {other})"
        if (value, [v for v, _ in rest]) == (1, [0]) and self.like:
            return f"({test}).to({self.like}.dtype)"
        if self.level(value) == "number" and all(self.level(v) == "number" for v, _ in rest):
            tensor = next(a for a in preorder_traversal(condition) if isinstance(a, Expr) and self.level(a) != "number")
            this = f"torch.full_like({self.text(tensor, level)}, {this})"
        return f"torch.where({test}, {this}, {other})"

    def _condition(self, e, level):
        if isinstance(e, Relational):
            return f"{self.text(e.lhs, level)} {e.rel_op} {self.text(e.rhs, level)}"
        words = ("and", "or", "not ") if self.level(e) == "number" else ("&", "|", "~")
        join = {And: f" {words[0]} ", Or: f" {words[1]} "}.get(type(e))
        parts = [f"({self._condition(a, level)})" for a in e.args]
        if join:
            return join.join(parts)
        if isinstance(e, Not):
            return words[2] + parts[0]
        raise RecipeError(
            f"{self.program.recipe.name}, torch",
            f"there is no torch lowering for the condition {e}",
            do="Use comparisons, And, Or and Not.",
        )
