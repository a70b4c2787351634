"""Unrolled statements of a step for chains of few sites: one name per site, one line per statement and site.

`cpp_unrolled.py` and `triton_unrolled.py` put the lines into kernels.
"""

from collections.abc import Callable, Iterable, Sequence

from sympy import Dummy, Expr, Symbol, cse, numbered_symbols

from recipe import Energy
from recipe.symbols import Total, is_site

from ..extraction import Extraction
from ..noise import steps_of_block
from ..passes import check_statements, inputs, is_by_site, supplied
from ..program import Adapt, Draw, Gradient, Let, Program, Set, Sum
from .expressions import derivatives_of
from .kernel_writer import Writer

UNROLLED_SITES = 64  # most sites of a chain


def sites_of(s: Symbol, sites: int) -> range:
    """The range of sites of a symbol: one for a scalar."""
    return range(sites if is_by_site(s) else 1)


class Unrolled(Writer):
    """Writer of the lines of a chain's step; `rows`: the numbers of a chain, pairs of a symbol and a site.

    Raises Unsupported for an energy that is not symbolic, many sites, observations, random numbers with laws that
    depend on the state, and matrices factorised at every step.
    """

    def __init__(self, program: Program, sites: int):
        super().__init__(program)
        if program.recipe.potential is not None:
            self.energy  # refuses a gradient of the caller
        if program.scope != "chain" or sites > UNROLLED_SITES:
            what = f"{sites} sites in the scope {program.scope!r}"
            raise self.refusal(what, f"At most {UNROLLED_SITES} sites are unrolled, per chain.")
        check_statements(program)
        self.sites = sites
        self.entries = self.places(program.recipe.entries)
        self.slopes = self.places(dict.fromkeys(supplied(program)))
        self.carried = self.places(g for _, g in program.carried)
        self.rows = self.entries + self.carried
        self.constants = self.places(inputs(program))

    def places(self, symbols: Iterable[Symbol]) -> list[tuple[Symbol, int]]:
        """Pairs of each symbol and each of its sites."""
        return [(s, i) for s in symbols for i in sites_of(s, self.sites)]

    # ---- primitives of a language beside its dialect

    def at(self, s: Symbol, site: int) -> str:
        """The name of a symbol at a site."""
        return f"{self.stem(s)}s{site}" if is_by_site(s) else self.stem(s)

    def scope(self, lines: Sequence[str]) -> list[str]:
        """Lines with names that no other line reads, in a scope where the language has scopes."""
        return list(lines)

    def value(self, e: Expr, name: Callable[[Symbol], str]) -> str:
        """The text of a value in the dtype of the state."""
        return self.dialect.text(e, name)

    # ---- the lines

    def write_at(self, e: Expr, site: int = 0) -> str:
        """The text of an expression at a site."""
        return self.value(e, lambda s: self.at(s, site))

    def shared(self, draw: Symbol) -> int:
        """The number of steps that share the words of a Philox call."""
        return steps_of_block(len(sites_of(draw, self.sites)))

    def groups(self, draw: Symbol) -> list[range]:
        """The sites of a draw in groups of four, each of which takes the words of one Philox call."""
        sites = sites_of(draw, self.sites)
        return [sites[first : first + 4] for first in sites[::4]]

    def everything(self) -> str:
        """The sum of the numbers of a chain, finite only if all are."""
        return " + ".join(self.at(b, i) for b, i in self.entries)

    def inside(self) -> str:
        """The conditions that blocks are in their domains, each after "&"."""
        conditions = [self.dialect.inside(b, self.at(b, i)) for b, i in self.entries]
        return "".join(f" & {condition}" for condition in conditions if condition)

    def body(self) -> list[str]:
        """The statements of one step of one chain."""
        lines = []
        for stage in self.program.stages:
            if stage.title != "gradient":
                lines.append(f"{self.dialect.comment} {stage.title}".replace("\\", "/"))
            for statement in stage.statements:
                lines += self._statement(statement)
        return lines

    def _statement(self, statement):
        match statement:
            case Let(name, value):
                return [self.let(self.at(s, i), self.write_at(value, i)) for s, i in self.places([name])]
            case Set(block, value) | Adapt(block, value):
                return [self.put(self.at(s, i), self.write_at(value, i)) for s, i in self.places([block])]
            case Sum(name, integrand):
                return [self.let(self.stem(name), self.sum(integrand))]
            case Draw(_, None) | Gradient(_, "carried"):
                return []
            case Gradient(names, "evaluated", order):
                return self.scope(self.derivatives(names, order))
        raise self.no_form(statement)

    def of_carried(self) -> list[str]:
        """The lines that compute the carried derivatives of U at the start."""
        derivatives = self.program.derivatives
        return [line for k in self.program.carries for line in self.scope(self.derivatives(derivatives[k], k))]

    def sum(self, integrand: Expr) -> str:
        """The text of a sum over the sites, term by term."""
        if not is_site(integrand):
            return f"{self.dialect.number.format(self.sites)}*({self.write_at(integrand)})"
        return " + ".join(f"({self.write_at(integrand, i)})" for i in range(self.sites))

    def names_of(self, derivatives: Iterable[tuple[Symbol, Symbol]]) -> list[str]:
        """The names of derivatives at every site, of pairs of a block and a derivative."""
        return [self.at(g, i) for g, i in self.places(g for _, g in derivatives)]

    def coordinates(self, energy: Energy) -> dict[Symbol, Symbol]:
        """The text of an energy's coordinates: the block, or the names of its numbers."""
        targets = self.program.recipe.targets
        if energy.is_sitewise:
            return {energy.coordinates[0]: targets[0]}
        names = (self.at(b, i) for b, i in self.places(targets))
        return {x: Symbol(name, real=True) for x, name in zip(energy.coordinates, names)}

    def derivatives(self, names: Sequence[tuple[Symbol, Symbol]], order: int) -> list[str]:
        """Lines that evaluate U or the derivatives of a symbolic energy at the present target."""
        energy = self.energy
        formulas = [f.xreplace(self.coordinates(energy)) for f in derivatives_of(energy, order)]
        if energy.is_sitewise:
            lines, formula = self._without_totals(formulas[0])
            return lines + [self.put(slope, self.write_at(formula, i)) for i, slope in enumerate(self.names_of(names))]
        shared, formulas = cse(formulas, symbols=numbered_symbols("shared", cls=Symbol), order="none")
        lines = [self.let(str(s), self.value(e, str)) for s, e in shared]
        return lines + [self.put(slope, self.value(f, str)) for slope, f in zip(self.names_of(names), formulas)]

    def _without_totals(self, formula):
        """Lines that compute the totals of a formula, and the formula in terms of their names."""
        lines = []

        def name(total: Expr, extract: Extraction) -> Symbol:
            inside = extract(total.integrand)
            symbol = Dummy(f"total{len(extract.known)}")
            lines.append(self.let(self.stem(symbol), self.sum(inside)))
            return symbol

        return lines, Extraction(name, Total)(formula)
