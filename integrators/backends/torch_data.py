"""Printer of an energy that sums over data, and of its derivatives, as torch functions of one chain and one batch."""

from collections.abc import Sequence

from sympy import Expr, Mul, Symbol

from recipe import Energy
from recipe.data import Datum
from recipe.symbols import Block, total

from ..data_sums import OfRow, RowSum, reads_rows, taken_apart
from ..program import Local, Program
from .torch_expressions import TAKEN, Writer, free_name

OF_THE_FUNCTION = ("theta", "data", "rows")


def data_derivative_source(
    program: Program, energy: Energy, writer_of_step: Writer, function: str, derivatives: Sequence[Expr], what: str
) -> str:
    """The text of `function(theta, data, num_data)` for the target of one chain; torch vectorises over chains.

    `data`: columns of a batch, `(rows,)` or `(rows, sites)`; sums over the rows are scaled to num_data.
    """
    derivative = _Derivative(program, energy, one_number=function == "value")
    in_words = energy.U.xreplace({s: Symbol(derivative.writer.name(local)) for s, local in derivative.named.items()})
    lines = [f'"""{what} of U = {in_words}: of one chain, on one batch."""', *derivative.body(derivatives)]
    writer_of_step.used |= derivative.writer.used
    return "\n".join([f"def {function}(theta, data, num_data):", *(f"    {line}" for line in lines)])


class _Derivative:
    """Writer of a derivative, with locals for columns of the data and for coordinates.

    `one_number`: whether the result is one number per chain, such as U, instead of one per coordinate.
    """

    def __init__(self, program: Program, energy: Energy, *, one_number: bool = False):
        self.one_number = one_number
        self.recipe = program.recipe
        self.energy = energy
        self.columns = {
            d: (Local if d.is_vector else OfRow)(f"column {i}", d.is_vector) for i, d in enumerate(energy.data)
        }
        self.places = {c: _place(c, i) for i, c in enumerate(energy.coordinates)}
        self.writer = Writer(program)
        self.writer.names = {c.name: "theta" for c in energy.coordinates if isinstance(c, Block)}
        self.writer.names["num_data"] = "num_data"
        self.named = self.columns | {c: local for c, local in self.places.items() if not isinstance(c, Block)}
        self._name_locals()

    def _name_locals(self):
        """Name columns and coordinates as declared, where these names are free."""
        taken: list[str] = []
        for k, (s, local) in enumerate(self.named.items()):
            plain = s.name.isidentifier() and s.name.isascii()
            taken.append(free_name(s.name if plain else f"x{k}", TAKEN, OF_THE_FUNCTION, taken))
            self.writer.rename(local, taken[-1])

    def body(self, derivatives: Sequence[Expr]) -> list[str]:
        """The lines of the function."""
        writer = self.writer
        sums = taken_apart([e.xreplace(self.places) for e in derivatives])
        lines = self._unpacked(counts_sites=any(e.has(total(1)) for e in derivatives))
        writer.like = "theta"
        lines += [f"{writer.name(t.name)} = ({self._text(t.integrand, 'site')}).sum()" for t in sums.chain]
        writer.like = "theta[None]"
        lines += [f"{writer.name(t.name)} = {self._total_of_rows(t.integrand)}" for t in sums.row]
        lines += [f"{writer.name(s.name)} = {self._sum_over_rows(s)}" for s in sums.rows]
        writer.like = "theta"
        return [*lines, f"return {self._result([self._value(e) for e in sums.derivatives])}"]

    def _unpacked(self, counts_sites):
        """Lines that unpack the columns of the data, and the coordinates, into names."""
        columns = [self.writer.name(c) for c in self.columns.values()]
        lines = [f"{', '.join(columns)}{',' if len(columns) == 1 else ''} = data", f"rows = len({columns[0]})"]
        if self.energy.is_sitewise:
            return lines + (["n = theta.numel()"] if counts_sites else [])
        values = "theta.unbind()"
        if not self.recipe.target_is_vector:
            values = ", ".join(f'theta["{b.name}"]' for b in self.recipe.targets) + ","
        return [*lines, f"{', '.join(map(self.writer.name, self.places.values()))}, = {values}"]

    def _value(self, e):
        """The text of a derivative, as a tensor even if it is a number."""
        if self.writer.level(e) != "number":
            return self._text(e, "site" if self.energy.is_sitewise and not self.one_number else None)
        like = "theta" if self.energy.is_sitewise else self.writer.name(next(iter(self.places.values())))
        return f"{like}.new_tensor({self._text(e)})" if self.one_number else f"torch.full_like({like}, {self._text(e)})"

    def _result(self, values):
        """The text of the result: a tensor, a dict by block, or one number."""
        if self.one_number:
            return values[0]
        if self.energy.is_sitewise:
            return f"({values[0]}).expand(theta.shape)"
        if self.recipe.target_is_vector:
            return f"torch.stack([{', '.join(values)}])"
        return "{" + ", ".join(f'"{b.name}": {e}' for b, e in zip(self.recipe.targets, values)) + "}"

    def _text(self, e, level=None):
        return self.writer.text(e.xreplace(self.columns), level)

    def _total_of_rows(self, integrand):
        """The text of the sum over the sites of every row."""
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


def _place(coordinate: Symbol, number: int) -> Symbol:
    """The symbol of a coordinate in the text: a block itself, or a numbered local."""
    return coordinate if isinstance(coordinate, Block) else Local(f"coordinate {number}")


def _closed(text: str) -> str:
    return text if text.isidentifier() else f"({text})"
