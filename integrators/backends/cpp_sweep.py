"""Printer of a Program as C++: one step of any number of tensors, in passes over their sites."""

from sympy import Symbol

from ..passes import Loop, Pass, Plan, Segment, is_by_site, subject
from ..program import Let, Sum
from ..variates import Variate
from .cpp import prelude_of
from .kernel_expressions import CPP
from .kernel_names import Names
from .shared_parts import shared_parts
from .template import filled, template

FIXED = template("sweep.hpp")
SEGMENT = template("sweep_segment.cpp.in")
OVER_SITES = template("sweep_sites.cpp.in")
OVER_CHAINS = template("sweep_chains.cpp.in")
CHAIN = "(uint32_t)(a.first_chain + chain)"  # the chain index of random numbers


def sweep_source(plan: Plan) -> str:
    """The C++ text of a plan, for tensors of any shape: `segment_i` for each of its segments."""
    writer = _Writer(plan)
    segments = [writer.segment(k, segment) for k, segment in enumerate(plan.segments)]
    title = f"// {plan.program.recipe.name}: {plan.program.scheme}"
    return "\n\n".join([prelude_of(plan.program), title, f"{FIXED}\n", *segments])


class _Writer:
    """Writer of segments, with names for all symbols."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.stem = Names().stem
        self.draws = {d: k for k, d in enumerate(plan.program.draws)}

    def segment(self, number: int, segment: Segment) -> str:
        """The function of a segment: its passes in one parallel region."""
        constants = {s: j for j, s in enumerate(self.plan.constants) if not is_by_site(s)}
        lines = [f"const R {self.stem(s)} = R(a.constants[{j}]);" for s, j in constants.items()]
        if segment.counts_sites:
            lines.append("const R n = R(a.of_chain);")
        passes = [self.one_pass(p) for p in segment.passes if p.sites or p.chain]
        unused = "".join(f" (void){self.stem(s)};" for s in constants)
        return filled(SEGMENT, number=str(number), constants=lines, unused=unused, passes="\n".join(passes))

    def one_pass(self, p: Pass) -> str:
        """The loops of a pass."""
        loops = [self.over_sites(p.sites)] if p.sites else []
        loops += [self.over_chains(p.chain)] if p.chain else []
        return "".join(f"\n{loop}\n" for loop in loops)

    def over_sites(self, loop: Loop) -> str:
        """The text of a loop over the sites of an item, in blocks with noise drawn for a whole block."""
        stem = self.stem
        sums = [f"{stem(s)}sum" for s in loop.sums]
        return filled(
            OVER_SITES,
            start=self._start(loop),
            noise=[self._noise(d) for d in loop.draws if d.is_vector],
            runs=[self._run_of_noise(d) for d in loop.draws if d.is_vector],
            foreseen=[f"foresee({stem(s)}from + b, rest - b);" for s in loop.loads],
            numbers=[
                *(f"const R* {stem(d)} = {stem(d)}noise.from(b);" for d in loop.draws if d.is_vector),
                *(f"const R* {stem(s)}from = {stem(s)}per.from(b);" for s in loop.constants if is_by_site(s)),
            ],
            reduction=f" reduction(+:{', '.join(sums)})" if sums else "",
            body=self._body(loop),
            end=[f"a.sums[j * {len(sums)} + {k}] = {s};" for k, s in enumerate(sums)],
        )

    def _start(self, loop):
        """Lines before the loop over an item's sites: pointers to its values, and values per chain."""
        stem = self.stem
        row = self.plan.arrays.index
        lines = [
            f"const R* {stem(s)}from = a.array_{loop.side(s)}[{row(s)} * a.parts + part] + at;" for s in loop.loads
        ]
        lines += [f"R* {stem(s)}to = a.array_out[{row(s)} * a.parts + part] + at;" for s in loop.stores]
        lines += [f"const R {stem(s)} = {self._number(s, loop)};" for s in loop.numbers]
        lines += map(self._values_of_constant, filter(is_by_site, loop.constants))
        lines += [f"const R {stem(d)} = {self._number_of_chain(d)};" for d in loop.draws if not d.is_vector]
        lines += [f"double {stem(s)}sum = 0;" for s in loop.sums]
        return lines + [f"const R {stem(s)} = {CPP.text(e, self.name)};" for s, e in loop.once]

    def _values_of_constant(self, s):
        """The line that declares the values of a constant per site."""
        j = self.plan.constants.index(s)
        given = f"a.per_site[{j} * a.parts + part]"
        return f"const PerSite {self.stem(s)}per({given} ? {given} + first : nullptr, R(a.constants[{j}]));"

    def _body(self, loop):
        """Lines of the statements at one site."""
        stem = self.stem
        lines = [f"R {stem(s)} = {stem(s)}from[b + i];" for s in loop.loads]
        lines += [f"R {stem(s)};" for s in loop.fresh]
        lines += [f"const R {stem(s)} = {stem(s)}from[i];" for s in loop.constants if is_by_site(s)]
        for statement, value in zip(loop.statements, loop.values):
            parts, rest = shared_parts(value, lambda e: e.xreplace(dict(loop.once)))
            lines += map(self._shared, parts)
            lines.append(self._assignment(statement, rest))
        return lines + [f"{stem(s)}to[b + i] = {stem(s)};" for s in loop.stores]

    def _shared(self, part):
        """The line that computes a shared part of a statement."""
        names = [self.stem(s) for s in part.names]
        argument = CPP.text(part.argument, self.name)
        if len(names) == 1:
            return f"const R {names[0]} = {part.function}({argument});"
        return f"R {', '.join(names)}; {part.function}<R>({argument}, {', '.join(names)});"

    def over_chains(self, loop: Loop) -> str:
        """The text of a loop over the chains, which also ends the sums."""
        stem = self.stem
        lines = [line for k, s in enumerate(loop.sums) for line in self._end_of_sum(s, k, len(loop.sums))]
        lines += [f"R {stem(s)} = {self._number(s, loop)};" for s in loop.loads]
        lines += [f"R {stem(s)};" for s in loop.fresh]
        lines += [f"const R {stem(d)} = {self._number_of_chain(d)};" for d in loop.draws]
        lines += map(self._assignment, loop.statements, loop.values)
        for s in (*loop.sums, *loop.stores):
            lines.append(f"a.number_out[{self.plan.numbers.index(s)}][chain] = {stem(s)};")
        return filled(OVER_CHAINS, body=lines)

    def _end_of_sum(self, s, k, count):
        name = f"{self.stem(s)}sum"
        of_item = f"a.sums[(chain * a.items + item) * {count} + {k}]"
        return [
            f"double {name} = 0;",
            f"for (int64_t item = 0; item < a.items; ++item) {name} += {of_item};",
            f"const R {self.stem(s)} = (R){name};",
        ]

    def _number(self, s, loop):
        """The text of a number of a chain in memory."""
        return f"a.number_{loop.side(s)}[{self.plan.numbers.index(s)}][chain]"

    def _number_of_chain(self, d):
        """The text of a random number of a chain, given or drawn."""
        given = f"a.drawn[{self.draws[d]} * a.parts]"
        return f"{given} ? {given}[chain] : one_{d.kind}<R>({self.draws[d]}, {CHAIN}, a.step, a.seed)"

    def _noise(self, d):
        """The line that declares the random numbers of a draw."""
        is_normal = "true" if d.kind == "normal" else "false"
        return f"Noise<R, {is_normal}> {self.stem(d)}noise({self.draws[d]}, a.seed);"

    def _run_of_noise(self, d):
        """The line that sets the source of random numbers for a run of sites: given or drawn."""
        given = f"a.drawn[{self.draws[d]} * a.parts + part]"
        return f"{self.stem(d)}noise.run({given} ? {given} + at : nullptr, place, {CHAIN});"

    def _assignment(self, statement, value):
        name = self.stem(subject(statement))
        text = CPP.text(value, self.name)
        match statement:
            case Let():
                return f"const R {name} = {text};"
            case Sum():
                return f"{name}sum += {text};"
        return f"{name} = {text};"

    def name(self, s: Symbol) -> str:
        """The text of a symbol; of a random number by site at the site i."""
        return f"{self.stem(s)}[i]" if isinstance(s, Variate) and s.is_vector else self.stem(s)
