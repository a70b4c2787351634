"""Printer of a Program as C++: trajectories on an energy of many sites, or of data, K steps in one call.

Chains run one after the other: the lanes of the vector unit are the sites of a chain, or the rows of a batch for values
per row. The text of a pass is a loop over sites.
"""

from collections.abc import Iterable

from sympy import Symbol

from ..passes import Loop, is_by_site, plan, subject
from ..program import Gradient, Let, Program, Sum
from ..streams import BATCH
from .cpp_data import derivative_source
from .cpp_sweep import prelude_of
from .kernel_expressions import CPP
from .kernel_writer import Writer
from .template import filled, inner, template

STACKED_SITES = 4096  # most sites of a chain: its state is on the stack
RUN = template("by_site.cpp.in")
GRADIENT = template("by_site_gradient.cpp.in")


def by_site_source(program: Program, sites: int) -> str:
    """The text of `run`, which moves every chain by some steps, and of `gradient`, for a carried gradient.

    Raises Unsupported for a Program without such a text.
    """
    return _Writer(program, sites).text()


class _Writer(Writer):
    """Writer of the text.

    `rows`: the index of a symbol's first number among a chain's numbers; `places`: likewise among the constants of a
    step. `registers`: values by site that a single loop reads.
    """

    dialect = CPP

    def __init__(self, program: Program, sites: int):
        super().__init__(program)
        if program.recipe.potential is not None:
            self.energy  # refuses a gradient of the caller
        if sites > STACKED_SITES:
            do = f"A chain of a kernel has at most {STACKED_SITES}: use backend='torch'."
            raise self.refusal(f"{sites} sites", do)
        if program.energy and program.energy.data and program.needs_curvature and program.carries_gradient:
            do = "Use backend='torch', or reuse_gradient=False."
            raise self.refusal("a Hessian diagonal on the batch of a step before", do)
        self.plan = plan(program)
        self.sites = sites
        self.gradients = {s.order: s for s in program.statements if isinstance(s, Gradient)}
        self.carried = [g for _, g in program.carried]
        self.rows, self.number_of_rows = self._laid_out([*program.recipe.entries, *self.carried])
        self.places, _ = self._laid_out(self.plan.constants)
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
        return self.sites if is_by_site(s) else 1

    def text(self) -> str:
        """The whole text."""
        program = self.program
        tile = 16 if self.sites <= 64 else 64
        run = filled(
            RUN,
            title=self.title,
            sites=str(self.sites),
            wide=str(-(-self.sites // tile) * tile),
            rows=str(self.number_of_rows),
            derivatives="".join(f"\n{derivative_source(self.energy, k)}\n" for k in sorted(self.gradients)),
            places=[*self._named_rows(self.rows), *self._derivatives_of_step()],
            read=[self.let(self.stem(s), f"c[{j}]") for s, j in self.places.items() if not is_by_site(s)],
            noise=[line for d in program.draws for line in self._noise(d)],
            body=self._body(),
            entries=str(sum(map(self._count, program.recipe.entries))),
            inside=[line for b in program.recipe.entries for line in self._check_domain(b)],
        )
        gradient = f"\n{self._carried_gradient()}\n" if self.carried else ""
        return f"{prelude_of(program)}\n\n{run}\n{gradient}"

    def name(self, s: Symbol) -> str:
        """The text of a symbol, at the site i if it is by site."""
        if s in self.places and is_by_site(s):
            return f"c[{self.places[s]} + i]"
        return f"{self.stem(s)}[i]" if is_by_site(s) and s not in self.registers else self.stem(s)

    def _named_rows(self, symbols):
        """Lines that name the numbers of a chain: pointers by site, references by chain."""
        rows = [(s, self.stem(s), self.rows[s]) for s in symbols]
        return [f"R* {name} = s + {row};" if is_by_site(s) else f"R& {name} = s[{row}];" for s, name, row in rows]

    def _derivatives_of_step(self):
        """Lines that declare derivatives that are not carried."""
        derivatives = [g for names in self.program.derivatives.values() for _, g in names if g not in self.rows]
        return [self._array(g) if is_by_site(g) else f"R {self.stem(g)} = 0;" for g in derivatives]

    def _array(self, s):
        return f"alignas(64) R {self.stem(s)}[S];"

    def _check_domain(self, block):
        condition = CPP.inside(block, f"s[{self.rows[block]} + i]")
        return [f"for (int64_t i = 0; i < {self._count(block)}; ++i) ok &= {condition};"] if condition else []

    def _noise(self, draw):
        stem, number = self.stem(draw), self.draws[draw]
        if not draw.is_vector:
            return [self.let(stem, f"one_{draw.kind}<R>({number}, who, step, seed)")]
        is_normal = "true" if draw.kind == "normal" else "false"
        groups = -(-self.sites // 4)
        width = 8 if groups <= 8 else 16
        buffer = f"{stem}buffer + 4 * g, place.group + g"
        return [
            f"alignas(64) R {stem}buffer[{-(-groups // width) * 4 * width}];",
            f"for (int64_t g = 0; g < {groups}; g += {width})",
            f"    fill<R, {is_normal}, {width}>({buffer}, {number}, who, place.step, seed);",
            f"const R* {stem} = {stem}buffer + place.at;",
        ]

    def _body(self):
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
                    raise self.no_form(other)
            for p in segment.passes:
                lines += self._over_sites(p.sites) if p.sites else []
                lines += map(self._assigned, p.chain.statements, p.chain.values)
        return lines

    def _over_sites(self, loop: Loop) -> list[str]:
        """Lines of a loop over sites, after declarations of its results."""
        values = [s.name for s in loop.statements if isinstance(s, Let)]
        sums = ", ".join(map(self.stem, loop.sums))
        lines = [self._array(s) for s in loop.stores if s in values]
        lines += [f"R {self.stem(s)} = 0;" for s in loop.sums]
        self.registers = {s for s in values if s not in loop.stores}
        body = list(map(self._assigned, loop.statements, loop.values))
        lets = [self.let(self.stem(s), self.write(e)) for s, e in loop.once]
        self.registers = set()
        return [
            *lines,
            "{",
            *inner(lets),
            f"#pragma omp simd reduction(+:{sums})" if sums else "#pragma omp simd",
            "    for (int64_t i = 0; i < S; ++i) {",
            *inner(inner(body)),
            "    }",
            "}",
        ]

    def _assigned(self, statement, value):
        """The line of a statement; values of the chain, and those that no other loop reads, are declared."""
        s = subject(statement)
        text = self.write(value)
        if isinstance(statement, Sum):
            return f"{self.name(s)} += {text};"
        is_new = isinstance(statement, Let) and (s in self.registers or not is_by_site(s))
        return self.let(self.name(s), text) if is_new else self.put(self.name(s), text)

    def _evaluated(self, statement, evaluation, started="step == (uint64_t)started"):
        """Lines that evaluate U or derivatives at the present target, on the batch of this evaluation or all data."""
        order = statement.order
        blocks = [b for b, _ in statement.names] if order else self.program.recipe.targets
        slopes = [self.stem(g) for _, g in statement.names]
        rows = "*data, data->drawn ? chosen.data() : nullptr" if order else "*data, nullptr"
        at = [f"at[{j}] = {self.stem(b)};" for j, b in enumerate(blocks)]
        if is_by_site(blocks[0]):
            at = [f"std::memcpy(at, {self.stem(blocks[0])}, S * sizeof(R));"]
        choose = []
        if self.energy.data and order == 1:
            draw = f"{BATCH[0]}u - {evaluation} - ({started})"
            choose = [f"if (data->drawn) choose(chosen.data(), *data, {draw}, who, step, seed);"]
        if order == 0 or is_by_site(blocks[0]):
            out = slopes[0] if order else f"&{slopes[0]}"
            return [*choose, *at, f"derivative_{order}(at, {out}, {rows});"]
        return [
            *choose,
            "{",
            f"R out[{len(blocks)}];",
            *at,
            f"derivative_{order}(at, out, {rows});",
            *(f"{slope} = out[{j}];" for j, slope in enumerate(slopes)),
            "}",
        ]

    def _carried_gradient(self):
        """The text of `gradient`: the carried derivatives of U at the start, on the first batch of its step."""
        places = self._named_rows([*self.program.recipe.targets, *self.carried])
        lines = [line for k in self.program.carries for line in self._evaluated(self.gradients[k], 0, started="0")]
        return filled(GRADIENT, places=places, evaluation=lines)
