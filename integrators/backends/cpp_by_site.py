"""Printer of a Program as C++: trajectories on an energy of many sites, or of data, K steps in one call.

Chains run one after the other: the lanes of the vector unit are the sites of a chain, or the rows of a batch for values
per row. The text of a pass is a loop over sites.
"""

from collections.abc import Iterable

from sympy import Expr, Symbol

from ..domains import bounds
from ..passes import Loop, Plan, Unsupported, is_by_site, plan, subject
from ..program import Gradient, Let, Program, Sum
from ..streams import BATCH
from .cpp import LANGUAGE, prelude_of
from .cpp_data import derivative_source
from .kernel_energy import check_energy, symbolic_energy
from .kernel_expressions import CPP
from .kernel_names import Names
from .template import filled, inner, template

STACKED_SITES = 4096  # most sites of a chain: its state is on the stack
RUN = template("by_site.cpp.in")
GRADIENT = template("by_site_gradient.cpp.in")


def by_site_source(program: Program, sites: int) -> str:
    """The text of `run`, which moves every chain by some steps, and of `gradient`, for a carried gradient.

    Raises Unsupported for a Program without such a text.
    """
    where = f"{program.recipe.name}, {LANGUAGE}"
    check_energy(program, LANGUAGE)
    if sites > STACKED_SITES:
        raise Unsupported(
            where, f"{sites} sites", do=f"A chain of a kernel has at most {STACKED_SITES}: use backend='torch'."
        )
    if program.energy and program.energy.data and program.needs_curvature and program.carries_gradient:
        raise Unsupported(
            where,
            "a Hessian diagonal on the batch of a step before",
            do="Use backend='torch', or reuse_gradient=False.",
        )
    return _Writer(plan(program), sites).text()


class _Writer:
    """Writer of the text, with names for all symbols.

    `rows`: the index of a symbol's first number among a chain's numbers; `places`: likewise among the constants of a
    step. `registers`: values by site that a single loop reads.
    """

    def __init__(self, plan: Plan, sites: int):
        self.plan = plan
        self.program = plan.program
        self.sites = sites
        self.stem = Names().stem
        self.gradients = {s.order: s for s in self.program.statements if isinstance(s, Gradient)}
        self.carried = [g for _, g in self.program.carried]
        self.rows, self.number_of_rows = self._laid_out([*self.program.recipe.entries, *self.carried])
        self.places, _ = self._laid_out(plan.constants)
        self.registers: set[Symbol] = set()

    def _laid_out(self, symbols: Iterable[Symbol]) -> tuple[dict[Symbol, int], int]:
        """The first index of each symbol, with their numbers stored consecutively, and the total number."""
        begin: dict[Symbol, int] = {}
        end = 0
        for s in symbols:
            begin[s] = end
            end += self._count(s)
        return begin, end

    def _count(self, s):
        """The number of values per chain of a symbol."""
        return self.sites if is_by_site(s) else 1

    def text(self) -> str:
        """The whole text."""
        program = self.program
        tile = 16 if self.sites <= 64 else 64
        derivatives = [f"\n{self._derivative(order)}\n" for order in sorted(self.gradients)]
        noise = [line for number, d in enumerate(program.draws) for line in self._noise(number, d)]
        run = filled(
            RUN,
            title=f"{program.recipe.name}: {program.scheme}",
            sites=str(self.sites),
            wide=str(-(-self.sites // tile) * tile),
            rows=str(self.number_of_rows),
            derivatives="".join(derivatives),
            places=[*self._named_rows(self.rows), *self._derivatives_of_step()],
            read=[f"const R {self.stem(s)} = c[{j}];" for s, j in self.places.items() if not is_by_site(s)],
            noise=noise,
            body=self._body(),
            entries=str(sum(map(self._count, program.recipe.entries))),
            inside=[self._check_domain(b) for b in program.recipe.entries if bounds(b)],
        )
        gradient = f"\n{self._carried_gradient()}\n" if self.carried else ""
        return f"{prelude_of(program)}\n\n{run}\n{gradient}"

    def name(self, s: Symbol) -> str:
        """The text of a symbol, at the site i if it is by site."""
        stem = self.stem(s)
        if s in self.places:
            return f"c[{self.places[s]} + i]" if is_by_site(s) else stem
        return f"{stem}[i]" if is_by_site(s) and s not in self.registers else stem

    def write(self, e: Expr) -> str:
        """The text of an expression, at the site i."""
        return CPP.text(e, self.name)

    def _derivative(self, order):
        """The text of a function for a derivative of the energy."""
        return derivative_source(symbolic_energy(self.program, LANGUAGE), order)

    def _named_rows(self, symbols):
        """Lines that name the numbers of a chain: pointers by site, references by chain."""
        lines = []
        for s in symbols:
            by_site, by_chain = f"R* {self.stem(s)} = s + {self.rows[s]};", f"R& {self.stem(s)} = s[{self.rows[s]}];"
            lines.append(by_site if is_by_site(s) else by_chain)
        return lines

    def _derivatives_of_step(self):
        """Lines that declare derivatives that are not carried."""
        lines = []
        for g in (g for names in self.program.derivatives.values() for _, g in names if g not in self.rows):
            lines.append(f"alignas(64) R {self.stem(g)}[S];" if is_by_site(g) else f"R {self.stem(g)} = 0;")
        return lines

    def _check_domain(self, block):
        condition = CPP.inside(block, f"s[{self.rows[block]} + i]")
        return f"for (int64_t i = 0; i < {self._count(block)}; ++i) ok &= {condition};"

    def _noise(self, number, draw):
        """Lines that draw the numbers of one step."""
        stem = self.stem(draw)
        if not draw.is_vector:
            return [f"const R {stem} = one_{draw.kind}<R>({number}, who, step, seed);"]
        is_normal = "true" if draw.kind == "normal" else "false"
        groups = -(-self.sites // 4)
        width = 8 if groups <= 8 else 16
        here = f"{stem}buffer + 4 * g, place.group + g"
        return [
            f"alignas(64) R {stem}buffer[{-(-groups // width) * 4 * width}];",
            f"for (int64_t g = 0; g < {groups}; g += {width})",
            f"    fill<R, {is_normal}, {width}>({here}, {number}, who, place.step, seed);",
            f"const R* {stem} = {stem}buffer + place.at;",
        ]

    def _body(self):
        """The statements of one step of one chain."""
        lines = []
        evaluations = 0
        for segment in self.plan.segments:
            match segment.before:
                case Gradient(_, "evaluated", order) as statement:
                    lines += self._evaluated(statement, evaluations)
                    evaluations += order == 1
                case Gradient(_, "carried") | None:
                    pass
                case other:
                    raise Unsupported(
                        f"{self.program.recipe.name}, cpp",
                        f"there is no C++ form of {type(other).__name__.lower()}",
                        do="Use backend='torch'.",
                    )
            for p in segment.passes:
                lines += self._over_sites(p.sites) if p.sites else []
                lines += self._of_chain(p.chain)
        return lines

    def _over_sites(self, loop: Loop) -> list[str]:
        """Lines of a loop over sites, after declarations of its results."""
        values = [s.name for s in loop.statements if isinstance(s, Let)]
        self.registers = {s for s in values if s not in loop.stores}
        sums = ", ".join(map(self.stem, loop.sums))
        lines = [f"alignas(64) R {self.stem(s)}[S];" for s in loop.stores if s in values]
        lines += [f"R {self.stem(s)} = 0;" for s in loop.sums]
        body = list(map(self._assignment, loop.statements, loop.values))
        once = [f"const R {self.stem(s)} = {self.write(e)};" for s, e in loop.once]
        self.registers = set()
        return [
            *lines,
            "{",
            *inner(once),
            f"#pragma omp simd reduction(+:{sums})" if sums else "#pragma omp simd",
            "    for (int64_t i = 0; i < S; ++i) {",
            *inner(inner(body)),
            "    }",
            "}",
        ]

    def _assignment(self, statement, value):
        target = self.name(subject(statement))
        text = self.write(value)
        if subject(statement) in self.registers:
            return f"const R {target} = {text};"
        return f"{target} += {text};" if isinstance(statement, Sum) else f"{target} = {text};"

    def _of_chain(self, loop: Loop) -> list[str]:
        """Lines of the statements by chain."""
        lines = []
        for s, value in zip(loop.statements, loop.values):
            text = f"{self.name(subject(s))} = {self.write(value)};"
            lines.append(f"const R {text}" if isinstance(s, Let) else text)
        return lines

    def _evaluated(self, statement, evaluation, started="step == (uint64_t)started"):
        """Lines that evaluate derivatives at the present target, on the batch of this evaluation."""
        blocks, slopes = zip(*statement.names)
        rows = "*data, data->drawn ? chosen.data() : nullptr"
        choose = []
        if statement.order == 0:
            return self._value_of_U(blocks[0], slopes[0])
        if symbolic_energy(self.program, LANGUAGE).data and statement.order == 1:
            draw = f"{BATCH[0]}u - {evaluation} - ({started})"
            choose.append(f"if (data->drawn) choose(chosen.data(), *data, {draw}, who, step, seed);")
        if is_by_site(blocks[0]):
            return [
                *choose,
                f"std::memcpy(at, {self.stem(blocks[0])}, S * sizeof(R));",
                f"derivative_{statement.order}(at, {self.stem(slopes[0])}, {rows});",
            ]
        return [
            *choose,
            "{",
            f"R out[{len(blocks)}];",
            *(f"at[{j}] = {self.stem(b)};" for j, b in enumerate(blocks)),
            f"derivative_{statement.order}(at, out, {rows});",
            *(f"{self.stem(g)} = out[{j}];" for j, g in enumerate(slopes)),
            "}",
        ]

    def _value_of_U(self, block, U):
        """Lines that evaluate U at the present target, on all data."""
        targets = self.program.recipe.targets
        at = [f"std::memcpy(at, {self.stem(block)}, S * sizeof(R));"]
        if not is_by_site(block):
            at = [f"at[{j}] = {self.stem(b)};" for j, b in enumerate(targets)]
        return [*at, f"derivative_0(at, &{self.stem(U)}, *data, nullptr);"]

    def _carried_gradient(self):
        """The text of `gradient`: the carried derivatives of U at the start, on the first batch of its step."""
        places = self._named_rows([*self.program.recipe.targets, *self.carried])
        lines = [line for k in self.program.carries for line in self._evaluated(self.gradients[k], 0, started="0")]
        return filled(GRADIENT, places=places, evaluation=lines)
