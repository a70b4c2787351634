"""Printing a Program as C++: trajectories of many chains on a symbolic energy of few sites, K steps in one call.

A chain is a lane of the vector unit, its state a set of numbers: one for each site of a vector block. The text of a
step is that of one chain, with a statement for every site; the compiler makes vectors of it. Constants of the step come
from Python, in float64.
"""

from sympy import Dummy, Expr, Symbol, cse, numbered_symbols

from recipe.symbols import Total, is_site

from ..extraction import Extraction
from ..passes import Unsupported, check_draws, inputs, is_by_site, supplied
from ..program import Adapt, Draw, Gradient, Let, Program, Set, Sum
from .cpp import check_energy, is_bounded, is_inside, prelude_of, symbolic_energy
from .kernel_expressions import CPP
from .kernel_names import Names
from .template import filled, inner, template

UNROLLED_SITES = 64  # of a chain, at most
RUN = template("unrolled.cpp.in")
GRADIENT = template("unrolled_gradient.cpp.in")


def unrolled_source(program: Program, sites: int) -> str:
    """The text of `run`, which moves every chain by some steps, and of `gradient`, for a gradient that is carried.

    Raises Unsupported for a Program that has no such text: an energy that is not symbolic, observations, random numbers
    whose law depends on the state, matrices that are taken apart at every step.
    """
    check_energy(program)
    if program.scope != "chain" or sites > UNROLLED_SITES:
        raise Unsupported(
            f"{program.recipe.name}, cpp",
            f"{sites} sites in the scope {program.scope!r}",
            do=f"At most {UNROLLED_SITES} sites are unrolled, per chain.",
        )
    check_draws(program)
    return _Writer(program, sites).text()


def sites_of(s: Symbol, sites: int) -> range:
    """The sites of a symbol: one for a scalar."""
    return range(sites if is_by_site(s) else 1)


class _Writer:
    """The parts of the text, with the names of all that they read and write; `rows` are the numbers of a chain."""

    def __init__(self, program: Program, sites: int):
        self.program, self.sites, self.names = program, sites, Names()
        self.entries = [(b, i) for b in program.recipe.entries for i in sites_of(b, sites)]
        self.slopes = [(g, i) for g in dict.fromkeys(supplied(program)) for i in sites_of(g, sites)]
        self.carried = [(g, i) for _, g in program.carried for i in sites_of(g, sites)]
        self.rows = self.entries + self.carried

    def text(self) -> str:
        """The whole text."""
        program = self.program
        body = self._body()
        run = filled(
            RUN,
            title=f"{program.recipe.name}: {program.scheme}",
            sites=str(self.sites),
            rows=str(len(self.rows)),
            arrays=[f"alignas(64) R {self.names.stem(d)}[{4 * self._groups(d)}][W];" for d in program.draws],
            read=self._constants(),
            noise=[line for number, d in enumerate(program.draws) for line in self._noise(number, d)],
            load=self._load(),
            body=body,
            everything=" + ".join(self.at(b, i) for b, i in self.entries),
            inside="".join(f" & {is_inside(b, self.at(b, i))}" for b, i in self.entries if is_bounded(b)),
            store=[f"s[{r}][l] = ok ? {self.at(s, i)} : s[{r}][l];" for r, (s, i) in enumerate(self.rows)],
        )
        gradient = f"\n{filled(GRADIENT, body=self._gradient())}\n" if program.carries else ""
        return f"{prelude_of(program)}\n\n{run}\n{gradient}"

    def at(self, s: Symbol, site: int) -> str:
        """The name of a symbol at a site."""
        return self.names.at(site)(s)

    def write(self, e: Expr, site: int = 0) -> str:
        """The text of an expression at a site."""
        return CPP.text(e, self.names.at(site))

    def _load(self):
        """Lines that name the numbers of a chain; a derivative that is not carried has none yet."""
        lines = [f"R {self.at(s, i)} = s[{r}][l];" for r, (s, i) in enumerate(self.rows)]
        return lines + [f"R {self.at(g, i)} = 0;" for g, i in self.slopes if (g, i) not in self.carried]

    def _constants(self):
        values = [(s, i) for s in inputs(self.program) for i in sites_of(s, self.sites)]
        return [f"const R {self.at(s, i)} = R(c[{j}]);" for j, (s, i) in enumerate(values)]

    def _groups(self, draw):
        """The groups of four sites that share the words of one Philox call."""
        return -(-len(sites_of(draw, self.sites)) // 4)

    def _noise(self, number, draw):
        """Lines that draw the numbers of one step for all chains of a lane block."""
        lines = []
        for group in range(self._groups(draw)):
            wanted = min(4, len(sites_of(draw, self.sites)) - 4 * group)
            chain, step = "(uint32_t)(first_chain + chain)", "(uint64_t)(first_step + k)"
            lines += [
                f"words<W, true>(w, {group}, {number}, {chain}, {step}, seed);",
                "#pragma omp simd",
                "for (int l = 0; l < W; ++l) {",
                *inner(self._numbers_of_group(draw, 4 * group, wanted)),
                "}",
            ]
        return lines

    def _numbers_of_group(self, draw, first, wanted):
        def number(i):
            return f"{self.names.stem(draw)}[{first + i}][l]"

        if draw.kind == "uniform":
            return [f"{number(i)} = open_unit<R>(w[{i}][l]);" for i in range(wanted)]
        pairs = range(0, wanted, 2)
        return [f"pair_of_normals(w[{i}][l], w[{i + 1}][l], {number(i)}, {number(i + 1)});" for i in pairs]

    def _body(self):
        """The statements of one step of one chain."""
        lines = []
        for stage in self.program.stages:
            if stage.title != "gradient":
                lines.append(f"// {stage.title}".replace("\\", "/"))
            for statement in stage.statements:
                lines += self._statement(statement)
        return lines

    def _statement(self, statement):
        match statement:
            case Let(name, value):
                return [f"const R {self.at(name, i)} = {self.write(value, i)};" for i in sites_of(name, self.sites)]
            case Set(block, value) | Adapt(block, value):
                return [f"{self.at(block, i)} = {self.write(value, i)};" for i in sites_of(block, self.sites)]
            case Sum(name, integrand):
                return [f"const R {self.names.stem(name)} = {self._sum(integrand)};"]
            case Draw(_, None) | Gradient(_, "carried"):
                return []
            case Gradient(names, "evaluated", order):
                return ["{", *inner(self._derivatives(names, order)), "}"]
        raise Unsupported(
            f"{self.program.recipe.name}, cpp",
            f"there is no C++ form of {type(statement).__name__.lower()}",
            do="Use backend='torch'.",
        )

    def _sum(self, integrand):
        """The sum over the sites, term by term."""
        if not is_site(integrand):
            return f"R({self.sites})*({self.write(integrand)})"
        return " + ".join(f"({self.write(integrand, i)})" for i in range(self.sites))

    def _derivatives(self, names, order):
        """Lines that give U or the derivatives of a symbolic energy their values at the target as it stands."""
        energy = symbolic_energy(self.program)
        if order == 0:
            return self._value(energy, names[0][1])
        formulas = energy.gradient if order == 1 else energy.curvature
        if not energy.is_sitewise:
            return self._derivatives_by_coordinates(names, energy.coordinates, formulas)
        block, slope = names[0]
        return self._derivatives_by_site(slope, formulas[0].xreplace({energy.coordinates[0]: block}))

    def _value(self, energy, U):
        """Lines that give U its value."""
        if energy.is_sitewise:
            block = self.program.recipe.targets[0]
            lines, formula = self._without_totals(energy.value.xreplace({energy.coordinates[0]: block}))
            return [*lines, f"{self.names.stem(U)} = {self.write(formula)};"]
        here = {x: Symbol(self.at(b, i), real=True) for x, (b, i) in zip(energy.coordinates, self._places())}
        fresh = numbered_symbols("shared", cls=Symbol)
        shared, (formula,) = cse([energy.value.xreplace(here)], symbols=fresh, order="none")
        lines = [f"const R {s} = {CPP.text(e, str)};" for s, e in shared]
        return [*lines, f"{self.names.stem(U)} = {CPP.text(formula, str)};"]

    def _places(self):
        """The coordinates of the target: block and site."""
        return [(b, i) for b in self.program.recipe.targets for i in sites_of(b, self.sites)]

    def _without_totals(self, formula):
        """Lines that compute the totals of a formula, and the formula in terms of these."""
        lines = []

        def name(total: Expr, extract: Extraction) -> Symbol:
            inside = extract(total.integrand)
            own = Dummy(f"total{len(extract.known)}")
            lines.append(f"const R {self.names.stem(own)} = {self._sum(inside)};")
            return own

        return lines, Extraction(name, Total)(formula)

    def _derivatives_by_site(self, slope, formula):
        lines, formula = self._without_totals(formula)
        return lines + [f"{self.at(slope, i)} = {self.write(formula, i)};" for i in range(self.sites)]

    def _derivatives_by_coordinates(self, names, coordinates, formulas):
        places = [(b, g, i) for b, g in names for i in sites_of(b, self.sites)]
        here = {x: Symbol(self.at(b, i), real=True) for x, (b, _, i) in zip(coordinates, places)}
        fresh = numbered_symbols("shared", cls=Symbol)
        shared, formulas = cse([f.xreplace(here) for f in formulas], symbols=fresh, order="none")
        lines = [f"const R {s} = {CPP.text(value, str)};" for s, value in shared]
        return lines + [f"{self.at(g, i)} = {CPP.text(f, str)};" for f, (_, g, i) in zip(formulas, places)]

    def _gradient(self):
        """The statements of `gradient`: the rows of what is carried of U, from those of the target."""
        rows = {(s, i): f"state[{r} * chains + chain]" for r, (s, i) in enumerate(self.rows)}
        lines = [
            f"const R {self.at(b, i)} = {row};" for (b, i), row in rows.items() if b in self.program.recipe.targets
        ]
        lines += [f"R {self.at(g, i)} = 0;" for g, i in self.carried]
        for order in self.program.carries:
            lines += ["{", *inner(self._derivatives(self.program.derivatives[order], order)), "}"]
        return lines + [f"{rows[g, i]} = {self.at(g, i)};" for g, i in self.carried]
