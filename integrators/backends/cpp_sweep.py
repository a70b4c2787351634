"""Printer of a Program as C++: one step of any number of tensors, in passes over their sites; the prelude of C++."""

from collections.abc import Callable
from dataclasses import dataclass

from sympy import Dummy, Expr, Mul, Pow, S, Symbol, exp, expand

from ..functions import AT_ENDS, phi1
from ..passes import Loop, LoopPlan, Pass, Segment, is_by_site, subject
from ..program import Let, Program, Sum
from ..variates import Variate
from .kernel_expressions import CPP
from .kernel_writer import Writer
from .template import filled, template

PRELUDE = "\n\n".join(map(template, ("prelude.hpp", "prelude_noise.hpp")))
AT_THE_ENDS = template("prelude_domains.hpp")
FIXED = template("sweep.hpp")
SEGMENT = template("sweep_segment.cpp.in")
OVER_SITES = template("sweep_sites.cpp.in")
OVER_CHAINS = template("sweep_chains.cpp.in")
CHAIN = "(uint32_t)(a.first_chain + chain)"  # the chain index of random numbers


def prelude_of(program: Program) -> str:
    """The prelude with the functions that the text of a Program may call."""
    return f"{PRELUDE}\n\n{AT_THE_ENDS}" if program.calls(*AT_ENDS) else PRELUDE


def sweep_source(plan: LoopPlan) -> str:
    """The C++ text of a plan, for tensors of any shape: `segment_i` for each of its segments."""
    writer = _Writer(plan)
    segments = [writer.segment(k, segment) for k, segment in enumerate(plan.segments)]
    return "\n\n".join([prelude_of(plan.program), f"// {writer.title}", f"{FIXED}\n", *segments])


class _Writer(Writer):
    dialect = CPP

    def __init__(self, plan: LoopPlan):
        super().__init__(plan.program)
        self.plan = plan

    def name(self, s: Symbol) -> str:
        """The text of a symbol; of a random number by site at the site i."""
        return f"{self.stem(s)}[i]" if isinstance(s, Variate) and s.is_vector else self.stem(s)

    def segment(self, number: int, segment: Segment) -> str:
        """The function of a segment: its passes in one parallel region."""
        constants = {self.stem(s): j for j, s in enumerate(self.plan.constants) if not is_by_site(s)}
        lines = [self.let(name, f"R(a.constants[{j}])") for name, j in constants.items()]
        if segment.counts_sites:
            lines.append("const R n = R(a.of_chain);")
        passes = [self.one_pass(p) for p in segment.passes if p.sites or p.chain]
        unused = "".join(f" (void){name};" for name in constants)
        return filled(SEGMENT, number=str(number), constants=lines, unused=unused, passes="\n".join(passes))

    def one_pass(self, p: Pass) -> str:
        """The loops of a pass."""
        loops = [self.over_sites(p.sites)] if p.sites else []
        loops += [self.over_chains(p.chain)] if p.chain else []
        return "".join(f"\n{loop}\n" for loop in loops)

    def over_sites(self, loop: Loop) -> str:
        """The text of a loop over the sites of an item, in blocks with noise drawn for a whole block."""
        sums = [f"{self.stem(s)}sum" for s in loop.sums]
        loads = list(map(self.stem, loop.loads))
        drawn = {self.stem(d): d for d in loop.draws if d.is_vector}
        by_site = [self.stem(s) for s in loop.constants if is_by_site(s)]
        return filled(
            OVER_SITES,
            start=self._start(loop),
            noise=[self._noise(name, d) for name, d in drawn.items()],
            runs=[self._run_of_noise(name, d) for name, d in drawn.items()],
            foreseen=[f"foresee({name}from + b, rest - b);" for name in loads],
            numbers=[
                *(f"const R* {name} = {name}noise.from(b);" for name in drawn),
                *(f"const R* {name}from = {name}per.from(b);" for name in by_site),
            ],
            reduction=f" reduction(+:{', '.join(sums)})" if sums else "",
            body=[
                *(f"R {name} = {name}from[b + i];" for name in loads),
                *(f"R {self.stem(s)};" for s in loop.fresh),
                *(f"const R {name} = {name}from[i];" for name in by_site),
                *self._statements(loop),
                *(f"{name}to[b + i] = {name};" for name in map(self.stem, loop.stores)),
            ],
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
        lines += [self.let(stem(s), self._number(s, loop.side(s))) for s in loop.numbers]
        lines += map(self._values_of_constant, filter(is_by_site, loop.constants))
        lines += [self.let(stem(d), self._number_of_chain(d)) for d in loop.draws if not d.is_vector]
        lines += [f"double {stem(s)}sum = 0;" for s in loop.sums]
        return lines + [self.let(stem(s), self.write(e)) for s, e in loop.once]

    def _values_of_constant(self, s):
        j = self.plan.constants.index(s)
        pointer = f"a.per_site[{j} * a.parts + part]"
        return f"const PerSite {self.stem(s)}per({pointer} ? {pointer} + first : nullptr, R(a.constants[{j}]));"

    def _statements(self, loop):
        lines = []
        for statement, value in zip(loop.statements, loop.values):
            parts, rest = shared_parts(value, lambda e: e.xreplace(dict(loop.once)))
            lines += [*map(self._shared, parts), self._assigned(statement, rest)]
        return lines

    def _shared(self, part):
        """The line that computes a shared part of a statement."""
        names = ", ".join(map(self.stem, part.names))
        argument = self.write(part.argument)
        if len(part.names) == 1:
            return self.let(names, f"{part.function}({argument})")
        return f"R {names}; {part.function}<R>({argument}, {names});"

    def over_chains(self, loop: Loop) -> str:
        """The text of a loop over the chains, which also ends the sums."""
        lines = [line for k, s in enumerate(loop.sums) for line in self._end_of_sum(s, k, len(loop.sums))]
        lines += [f"{self._type(s)} {self.stem(s)} = {self._number(s, loop.side(s))};" for s in loop.loads]
        lines += [f"R {self.stem(s)};" for s in loop.fresh]
        lines += [self.let(self.stem(d), self._number_of_chain(d)) for d in loop.draws]
        lines += map(self._assigned, loop.statements, loop.values)
        for s in (*loop.sums, *loop.stores):
            lines.append(f"{self._number(s, 'out')} = {self.stem(s)};")
        return filled(OVER_CHAINS, body=lines)

    def _end_of_sum(self, s, k, count):
        name = f"{self.stem(s)}sum"
        of_item = f"a.sums[(chain * a.items + item) * {count} + {k}]"
        return [
            f"double {name} = 0;",
            f"for (int64_t item = 0; item < a.items; ++item) {name} += {of_item};",
            self.let(self.stem(s), f"(R){name}"),
        ]

    def _number(self, s, side):
        numbers = f"a.number_{side}[{self.plan.numbers.index(s)}]"
        return f"((double*){numbers})[chain]" if s in self.program.in_float64 else f"{numbers}[chain]"

    def _type(self, s):
        return "double" if s in self.program.in_float64 else "R"

    def _number_of_chain(self, d):
        pointer = f"a.drawn[{self.draws[d]} * a.parts]"
        return f"{pointer} ? {pointer}[chain] : one_{d.kind}<R>({self.draws[d]}, {CHAIN}, a.step, a.seed)"

    def _noise(self, name, d):
        is_normal = "true" if d.kind == "normal" else "false"
        return f"Noise<R, {is_normal}> {name}noise({self.draws[d]}, a.seed);"

    def _run_of_noise(self, name, d):
        """The line that sets the source of random numbers for a run of sites: given or drawn."""
        pointer = f"a.drawn[{self.draws[d]} * a.parts + part]"
        return f"{name}noise.run({pointer} ? {pointer} + at : nullptr, place, {CHAIN});"

    def _assigned(self, statement, value):
        name = self.stem(subject(statement))
        text = self.write(value)
        if isinstance(statement, Sum):
            return f"{name}sum += {text};"
        if subject(statement) in self.program.in_float64 and isinstance(statement, Let):
            return f"const double {name} = {text};"
        return self.let(name, text) if isinstance(statement, Let) else self.put(name, text)


# ---- subexpressions that a statement computes together by one function of the prelude: linear friction over a time
# reads e^x and phi1(2x) of one x, a preconditioner divides by a number and by its root


@dataclass(frozen=True)
class Shared:
    """Names for the results of a function of the prelude at one argument."""

    function: str
    names: tuple[Symbol, ...]
    argument: Expr


def shared_parts(e: Expr, meaning: Callable[[Expr], Expr]) -> tuple[list[Shared], Expr]:
    """The shared parts of an expression, and the expression in terms of their names.

    `meaning`: function that replaces names of values by these values.

    >>> from sympy import sqrt
    >>> from recipe import vector
    >>> x, y = vector("x"), vector("y")
    >>> parts, rest = shared_parts(y*exp(-x) + sqrt(y)*sqrt(phi1(-2*x)), lambda e: e)
    >>> parts, rest
    ([Shared(function='friction', names=(_decay, _slope), argument=-x)], _decay*y + sqrt(_slope*y))
    >>> shared_parts(y/x + y/sqrt(x), lambda e: e)
    ([Shared(function='inverse_root', names=(_root,), argument=x)], _root**2*y + _root*y)
    """
    frictions, e = _frictions(e, meaning)
    roots, e = _inverse_roots(e)
    return frictions + roots, e


def _frictions(e, meaning):
    """Pairs e^x and phi1(2x) as shared parts, with sqrt(phi1(2x)) and the root of a factor joined into one root."""
    pairs = []
    for slope in sorted(e.atoms(phi1), key=str):
        for decay in sorted(e.atoms(exp), key=str):
            if expand(meaning(slope.args[0]) - 2 * meaning(decay.args[0])) == 0:
                names = Dummy("decay"), Dummy("slope")
                pairs.append(Shared("friction", names, decay.args[0]))
                e = _under_one_root(e.xreplace({decay: names[0], slope: names[1]}), names[1])
                break
    return pairs, e


def _under_one_root(e, positive):
    """The expression with sqrt(positive)*sqrt(x) as sqrt(positive*x)."""

    def is_root(x):
        return x.is_Pow and x.exp == S.Half

    def joined(product):
        roots = [x for x in product.args if is_root(x) and any(map(is_by_site, x.free_symbols))]
        factors = [x for x in product.args if x not in roots and x != Pow(positive, S.Half)]
        return Mul(*factors, Pow(Mul(positive, *(x.base for x in roots[:1])), S.Half), *roots[1:])

    return e.replace(lambda x: x.is_Mul and Pow(positive, S.Half) in x.args, joined)


def _inverse_roots(e):
    """Pairs x^-1 and x^(-1/2) by site as shared parts, with the expression in terms of their names."""
    roots = []
    for root in sorted(e.atoms(Pow), key=str):
        if root.exp == -S.Half and 1 / root.base in e.atoms(Pow) and any(map(is_by_site, root.free_symbols)):
            name = Dummy("root")
            roots.append(Shared("inverse_root", (name,), root.base))
            e = e.xreplace({root: name, 1 / root.base: name**2})
    return roots, e
