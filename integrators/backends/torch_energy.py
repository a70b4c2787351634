"""Printer of a symbolic energy and its derivatives as torch functions.

Without data they are functions of the target of all chains; with data of one chain and one batch, which torch
vectorises over chains.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Mul, Symbol, cse, numbered_symbols

from recipe import Energy
from recipe.data_totals import Datum
from recipe.symbols import Block, Total, is_site, total

from ..data_sums import OfRow, RowSum, reads_rows, taken_apart
from ..program import DERIVATIVES, Local, Program
from .expressions import derivatives_of
from .torch_expressions import TAKEN, ExpressionWriter, dict_text, free_name

IN_WORDS = {0: "The value", 1: "grad U", 2: "The Hessian diagonal"}


def energy_sources(program: Program, writer: ExpressionWriter) -> list[str]:
    """The texts of a symbolic energy's gradient, and its Hessian diagonal and value if read, as functions of theta."""
    if program.energy is None:
        return []
    orders = [1, *([2] if program.needs_curvature else []), *([0] if program.needs_value else [])]
    return [derivative_source(program, writer, order) for order in orders]


def derivative_source(program: Program, writer_of_step: ExpressionWriter, order: int) -> str:
    """The text of `value(theta)`, `gradient(theta)` or `curvature(theta)` of a symbolic energy, by the order.

    With data it is a function of (theta, data, num_data), for columns of a batch, `(rows,)` or `(rows, sites)`; sums
    over the rows are scaled to num_data.
    """
    energy = program.energy
    assert energy is not None
    writer = ExpressionWriter(program)
    function = _OfData if energy.data else _OfChains
    lines, in_words = function(program, energy, writer, order == 0).lines(derivatives_of(energy, order))
    writer_of_step.used |= writer.used
    arguments, where = ("theta, data, num_data", ": of one chain, on one batch") if energy.data else ("theta", "")
    lines = [f'"""{IN_WORDS[order]} of U = {in_words}{where}."""', *lines]
    return "\n".join([f"def {DERIVATIVES[order]}({arguments}):", *(f"    {line}" for line in lines)])


@dataclass
class _Derivative:
    """Printer of a derivative of an energy; `is_value`: of U itself, one number per chain."""

    program: Program
    energy: Energy
    writer: ExpressionWriter
    is_value: bool

    def by_block(self, values: Sequence[str]) -> str:
        """The text of a dict of values by block."""
        return dict_text({b.name: value for b, value in zip(self.program.recipe.targets, values)})


def _is_plain(s: Symbol) -> bool:
    return s.name.isidentifier() and s.name.isascii()


# ---- functions of all chains


@dataclass
class _OfChains(_Derivative):
    """Printer of a function of the target of all chains; `names`: the name of each coordinate in the text."""

    def __post_init__(self) -> None:
        plain = all(map(_is_plain, self.energy.coordinates))
        self.names: dict[Symbol, str] = {}
        for i, c in enumerate(self.energy.coordinates):
            self.names[c] = free_name(c.name if plain else f"x{i}", TAKEN, ["theta"], self.names.values())
        self.like = next(iter(self.names.values()))
        self.writer.names = {c.name: name for c, name in self.names.items() if isinstance(c, Block)}
        self.writer.like = "theta"

    def lines(self, derivatives: Sequence[Expr]) -> tuple[list[str], Expr]:
        """The lines of the function, and U in its names."""
        energy = self.energy
        U = energy.U if energy.is_sitewise else energy.U.xreplace({c: Symbol(n) for c, n in self.names.items()})
        coordinates = {c: Local(name) for c, name in self.names.items() if not isinstance(c, Block)}
        sums = taken_apart([d.xreplace(coordinates) for d in derivatives], stem="sum")
        totals = [(self.writer.name(t.name), self.writer.text(t.integrand)) for t in sums.chain]
        lines = [self._unpacked(), *(f"{name} = {self.writer.call('total', text)}" for name, text in totals)]
        lines += ["n = theta[0].numel()"] if any(d.has(Total) for d in sums.derivatives) else []
        values = [self._value(d) for d in self._without_repetitions(sums.derivatives, lines)]
        return [*lines, f"return {self._result(values)}"], U

    def _unpacked(self):
        recipe = self.program.recipe
        names = list(self.names.values())
        if len(recipe.targets) > 1:
            values = ", ".join(f'theta["{b.name}"]' for b in recipe.targets)
            return f"{', '.join(names)} = {values}"
        if self.energy.is_sitewise or not recipe.target_is_vector:
            return f"{names[0]} = theta"
        return f"{', '.join(names)}{',' if len(names) == 1 else ''} = theta.unbind(-1)"

    def _without_repetitions(self, derivatives, lines):
        """The derivatives in terms of shared subexpressions; appends lines that compute these to `lines`."""
        fresh = numbered_symbols("u", cls=Symbol, exclude={Symbol(name) for name in self.names.values()})
        shared, derivatives = cse(derivatives, symbols=fresh, order="none")
        known: dict[Symbol, Local] = {}
        for s, value in shared:
            value = value.xreplace(known)
            known[s] = Local(s.name, is_site(value), constant=self.writer.level(value) == "number")
            lines.append(f"{s.name} = {self.writer.text(value)}")
        return [d.xreplace(known) for d in derivatives]

    def _value(self, e):
        """The text of a value, as a tensor even if it is a number."""
        like = self.like
        level = "site" if self.energy.is_sitewise and not self.is_value else None
        text = self.writer.text(e, level)
        if self.writer.level(e) != "number":
            return text
        if self.is_value:
            return f"torch.full({like}.shape[:1], {text}, dtype={like}.dtype, device={like}.device)"
        return f"torch.full_like({like}, {text})"

    def _result(self, values):
        recipe = self.program.recipe
        if self.is_value or self.energy.is_sitewise or not recipe.target_is_vector:
            return values[0] if self.is_value or len(recipe.targets) == 1 else self.by_block(values)
        return f"torch.stack([{', '.join(values)}], -1)"


# ---- functions of one chain and one batch of data


@dataclass
class _OfData(_Derivative):
    """Printer of a function of one chain and one batch; columns of the data and coordinates are locals."""

    def __post_init__(self) -> None:
        self.columns: dict[Symbol, Local] = {}
        for i, d in enumerate(self.energy.data):
            self.columns[d] = (Local if d.is_vector else OfRow)(f"column {i}", d.is_vector)
        coordinates = enumerate(self.energy.coordinates)
        self.places = {c: c if isinstance(c, Block) else Local(f"coordinate {i}") for i, c in coordinates}
        blocks = {c.name: "theta" for c in self.places if isinstance(c, Block)}
        self.writer.names = blocks | {"num_data": "num_data"}
        self.locals = self.columns | {c: local for c, local in self.places.items() if not isinstance(c, Block)}
        names: list[str] = []
        for k, (s, local) in enumerate(self.locals.items()):
            names.append(free_name(s.name if _is_plain(s) else f"x{k}", TAKEN, ("theta", "data", "rows"), names))
            self.writer.rename(local, names[-1])

    def lines(self, derivatives: Sequence[Expr]) -> tuple[list[str], Expr]:
        """The lines of the function, and U in its names."""
        writer = self.writer
        U = self.energy.U.xreplace({s: Symbol(writer.name(local)) for s, local in self.locals.items()})
        sums = taken_apart([e.xreplace(self.places) for e in derivatives])
        lines = self._unpacked(counts_sites=any(e.has(total(1)) for e in derivatives))
        writer.like = "theta"
        lines += [f"{writer.name(t.name)} = ({self._text(t.integrand, 'site')}).sum()" for t in sums.chain]
        writer.like = "theta[None]"
        lines += [f"{writer.name(t.name)} = {self._total_of_rows(t.integrand)}" for t in sums.row]
        lines += [f"{writer.name(s.name)} = {self._sum_over_rows(s)}" for s in sums.rows]
        writer.like = "theta"
        return [*lines, f"return {self._result([self._value(e) for e in sums.derivatives])}"], U

    def _unpacked(self, counts_sites):
        columns = [self.writer.name(c) for c in self.columns.values()]
        lines = [f"{', '.join(columns)}{',' if len(columns) == 1 else ''} = data", f"rows = len({columns[0]})"]
        if self.energy.is_sitewise:
            return lines + (["n = theta.numel()"] if counts_sites else [])
        values = "theta.unbind()"
        if not self.program.recipe.target_is_vector:
            values = ", ".join(f'theta["{b.name}"]' for b in self.program.recipe.targets) + ","
        return [*lines, f"{', '.join(map(self.writer.name, self.places.values()))}, = {values}"]

    def _value(self, e):
        """The text of a derivative, as a tensor even if it is a number."""
        if self.writer.level(e) != "number":
            return self._text(e, "site" if self.energy.is_sitewise and not self.is_value else None)
        like = "theta" if self.energy.is_sitewise else self.writer.name(next(iter(self.places.values())))
        return f"{like}.new_tensor({self._text(e)})" if self.is_value else f"torch.full_like({like}, {self._text(e)})"

    def _result(self, values):
        if self.is_value:
            return values[0]
        if self.energy.is_sitewise:
            return f"({values[0]}).expand(theta.shape)"
        if self.program.recipe.target_is_vector:
            return f"torch.stack([{', '.join(values)}])"
        return self.by_block(values)

    def _text(self, e, level=None):
        return self.writer.text(e.xreplace(self.columns), level)

    def _total_of_rows(self, integrand):
        column = next((f for f in Mul.make_args(integrand) if isinstance(f, Datum) and f.is_vector), None)
        if column is None or reads_rows(integrand / column):
            return f"({self._text(integrand, 'site')}).sum(-1)"
        if integrand == column:
            return f"{self._text(column)}.sum(-1)"
        return f"{self._text(column)} @ {_closed(self._text(integrand / column))}"

    def _sum_over_rows(self, s: RowSum) -> str:
        """The text of the sum over rows of a weight times a factor."""
        by_row = reads_rows(s.weight)
        factor = s.factor
        weight = _closed(self._text(s.weight))
        if reads_rows(factor):
            inside = _closed(self._text(factor, "site"))
            return f"{weight} @ {inside}" if by_row else f"{weight}*{inside}.sum(0)"
        whole = f"{weight}.sum()" if by_row else f"rows*{weight}"
        return whole if factor == 1 else f"{whole}*{_closed(self._text(factor))}"


def _closed(text: str) -> str:
    return text if text.isidentifier() else f"({text})"
