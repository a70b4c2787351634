"""Unrolled statements of a step for chains of few sites: one name per site, one line per statement and site.

The syntax of a line depends on the language: `cpp_unrolled.py` and `triton_unrolled.py` put the lines into kernels.
"""

from collections.abc import Callable, Sequence

from sympy import Dummy, Expr, Symbol, cse, numbered_symbols

from recipe.errors import RecipeError
from recipe.symbols import Total, is_site

from ..extraction import Extraction
from ..noise import steps_of_block
from ..passes import Unsupported, check_statements, inputs, is_by_site, supplied
from ..program import Adapt, Draw, Gradient, Let, Program, Set, Sum
from .kernel_energy import check_energy, symbolic_energy
from .kernel_expressions import Dialect
from .kernel_names import Names

UNROLLED_SITES = 64  # most sites of a chain


def check_unrolled(program: Program, sites: int, language: str) -> None:
    """Refuse a Program without a text of unrolled sites, and more than UNROLLED_SITES sites."""
    check_energy(program, language)
    if program.scope != "chain" or sites > UNROLLED_SITES:
        raise Unsupported(
            f"{program.recipe.name}, {language}",
            f"{sites} sites in the scope {program.scope!r}",
            do=f"At most {UNROLLED_SITES} sites are unrolled, per chain.",
        )
    check_statements(program)


def sites_of(s: Symbol, sites: int) -> range:
    """The range of sites of a symbol: one for a scalar."""
    return range(sites if is_by_site(s) else 1)


class Unrolled:
    """Writer of the lines of a chain's step, with names for all symbols; `rows`: the numbers of a chain."""

    language: str
    comment: str
    dialect: Dialect

    def __init__(self, program: Program, sites: int):
        self.program = program
        self.sites = sites
        self.names = Names()
        self.entries = [(b, i) for b in program.recipe.entries for i in sites_of(b, sites)]
        self.slopes = [(g, i) for g in dict.fromkeys(supplied(program)) for i in sites_of(g, sites)]
        self.carried = [(g, i) for _, g in program.carried for i in sites_of(g, sites)]
        self.rows = self.entries + self.carried
        self.constants = [(s, i) for s in inputs(program) for i in sites_of(s, sites)]

    # ---- the syntax of a language

    def at(self, s: Symbol, site: int) -> str:
        """The name of a symbol at a site."""
        raise NotImplementedError

    def let(self, name: str, text: str) -> str:
        """A line that declares a name with a value."""
        raise NotImplementedError

    def put(self, name: str, text: str) -> str:
        """A line that assigns a value to a name."""
        raise NotImplementedError

    def own(self, lines: Sequence[str]) -> list[str]:
        """Lines in a scope of their own."""
        raise NotImplementedError

    def value(self, e: Expr, name: Callable[[Symbol], str]) -> str:
        """The text of a value in the dtype of the state."""
        return self.dialect.text(e, name)

    # ---- the lines

    def write(self, e: Expr, site: int = 0) -> str:
        """The text of an expression at a site."""
        return self.value(e, lambda s: self.at(s, site))

    def number_of_sites(self, draw: Symbol) -> int:
        """The number of sites of a draw."""
        return len(sites_of(draw, self.sites))

    def shared(self, draw: Symbol) -> int:
        """The number of steps that share the words of a Philox call."""
        return steps_of_block(self.number_of_sites(draw))

    def groups(self, draw: Symbol) -> range:
        """The groups of four sites that share the words of one Philox call."""
        return range(-(-self.number_of_sites(draw) // 4))

    def in_group(self, draw: Symbol, group: int) -> int:
        """The number of a draw's sites in a group."""
        return min(4, self.number_of_sites(draw) - 4 * group)

    def body(self) -> list[str]:
        """The statements of one step of one chain."""
        lines = []
        for stage in self.program.stages:
            if stage.title != "gradient":
                lines.append(f"{self.comment} {stage.title}".replace("\\", "/"))
            for statement in stage.statements:
                lines += self._statement(statement)
        return lines

    def _statement(self, statement):
        match statement:
            case Let(name, value):
                return [self.let(self.at(name, i), self.write(value, i)) for i in sites_of(name, self.sites)]
            case Set(block, value) | Adapt(block, value):
                return [self.put(self.at(block, i), self.write(value, i)) for i in sites_of(block, self.sites)]
            case Sum(name, integrand):
                return [self.let(self.names.stem(name), self._sum(integrand))]
            case Draw(_, None) | Gradient(_, "carried"):
                return []
            case Gradient(names, "evaluated", order):
                return self.own(self._derivatives(names, order))
        raise self.no_form(type(statement).__name__.lower())

    def no_form(self, what: str) -> RecipeError:
        """The error for a statement without a form in the language."""
        return Unsupported(
            f"{self.program.recipe.name}, {self.language}",
            f"there is no {self.dialect.name} form of {what}",
            do="Use backend='torch'.",
        )

    def of_carried(self) -> list[str]:
        """The lines that compute the carried derivatives of U at the start."""
        derivatives = self.program.derivatives
        return [line for k in self.program.carries for line in self.own(self._derivatives(derivatives[k], k))]

    def _sum(self, integrand):
        """The text of the sum over the sites, term by term."""
        if not is_site(integrand):
            return f"{self.dialect.number.format(self.sites)}*({self.write(integrand)})"
        return " + ".join(f"({self.write(integrand, i)})" for i in range(self.sites))

    def _derivatives(self, names, order):
        """Lines that evaluate U or the derivatives of a symbolic energy at the present target."""
        energy = symbolic_energy(self.program, self.language)
        if order == 0:
            return self._value_of(energy, names[0][1])
        formulas = energy.gradient if order == 1 else energy.curvature
        if not energy.is_sitewise:
            places = [(b, g, i) for b, g in names for i in sites_of(b, self.sites)]
            here = {x: (b, i) for x, (b, _, i) in zip(energy.coordinates, places)}
            return self._by_coordinates(here, [self.at(g, i) for _, g, i in places], formulas)
        block, slope = names[0]
        lines, formula = self._without_totals(formulas[0].xreplace({energy.coordinates[0]: block}))
        return lines + [self.put(self.at(slope, i), self.write(formula, i)) for i in range(self.sites)]

    def _value_of(self, energy, U):
        """Lines that evaluate U."""
        targets = self.program.recipe.targets
        if not energy.is_sitewise:
            places = [(b, i) for b in targets for i in sites_of(b, self.sites)]
            return self._by_coordinates(dict(zip(energy.coordinates, places)), [self.names.stem(U)], [energy.value])
        lines, formula = self._without_totals(energy.value.xreplace({energy.coordinates[0]: targets[0]}))
        return [*lines, self.put(self.names.stem(U), self.write(formula))]

    def _without_totals(self, formula):
        """Lines that compute the totals of a formula, and the formula in terms of their names."""
        lines = []

        def name(total: Expr, extract: Extraction) -> Symbol:
            inside = extract(total.integrand)
            own = Dummy(f"total{len(extract.known)}")
            lines.append(self.let(self.names.stem(own), self._sum(inside)))
            return own

        return lines, Extraction(name, Total)(formula)

    def _by_coordinates(self, coordinates, names, formulas):
        """Lines that assign the values of formulas to names, with shared subexpressions computed once.

        `coordinates`: block and site of each name.
        """
        here = {x: Symbol(self.at(b, i), real=True) for x, (b, i) in coordinates.items()}
        fresh = numbered_symbols("shared", cls=Symbol)
        shared, formulas = cse([f.xreplace(here) for f in formulas], symbols=fresh, order="none")
        lines = [self.let(str(s), self.value(e, str)) for s, e in shared]
        return lines + [self.put(name, self.value(f, str)) for name, f in zip(names, formulas)]
