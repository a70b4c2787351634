"""Printing a Program as C++: one step of any number of tensors, in passes over their sites.

A pass is one loop over the sites of all tensors and chains; it ends where a total of what it computes is needed. What has
one value per chain is computed between passes. A gradient is the caller's: it ends a segment, a function of its own.
"""

from dataclasses import dataclass, field

from sympy import Expr, Symbol

from recipe import symbols
from recipe.symbols import Block

from ..flow import Variate
from ..program import Adapt, Draw, Gradient, Let, Observe, Program, Set, Total
from .cpp import PRELUDE, Names, check_draws, inputs
from .cpp_expressions import Unsupported, text

STRUCT = """
typedef REAL R;
constexpr int64_t BLOCK = 256;  // sites whose noise is drawn at once

struct Sweep {  // arrays: [array][part], numbers: [number] of each chain; items are runs of sites of one part
    int64_t chains, parts, items;
    const int64_t *part, *first, *count, *sites, *offset;
    R *const *array_in, *const *array_out, *const *number_in, *const *number_out, *const *drawn, *const *per_site;
    const double* constants;
    double* sums;
    uint64_t seed, step;
    int64_t first_chain;
};

// the numbers of a run of sites within one block: those given, or drawn here
template <bool normal> static inline const R* numbers(R* buffer, const R* given, int64_t site, int64_t count, uint32_t draw,
                                                      uint32_t chain, uint64_t step, uint64_t seed) {
    if (given) return given;
    const int64_t first = site / 4, groups = (site + count + 3) / 4 - first;
    constexpr int W = 64;
    alignas(64) uint32_t w[4][W];
    for (int64_t g = 0; g < groups; g += W) {
        words<W, false>(w, first + g, draw, chain, step, seed);
        R* out = buffer + 4 * g;
        if constexpr (normal) {
#pragma omp simd
            for (int l = 0; l < W; ++l) {
                pair_of_normals(w[0][l], w[1][l], out[4 * l], out[4 * l + 1]);
                pair_of_normals(w[2][l], w[3][l], out[4 * l + 2], out[4 * l + 3]);
            }
        } else {
            for (int l = 0; l < W; ++l)
                for (int k = 0; k < 4; ++k) out[4 * l + k] = open_unit<R>(w[k][l]);
        }
    }
    return buffer + site % 4;
}

static inline R one_normal(uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {
    alignas(64) uint32_t w[4][LANES];
    words<LANES, false>(w, 0, draw, chain, step, seed);
    R x, y;
    pair_of_normals(w[0][0], w[1][0], x, y);
    return x;
}

static inline R one_uniform(uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {
    alignas(64) uint32_t w[4][LANES];
    words<LANES, false>(w, 0, draw, chain, step, seed);
    return open_unit<R>(w[0][0]);
}
"""


@dataclass
class Pass:
    """Statements by site, totals of them, then statements by chain."""

    sites: list = field(default_factory=list)
    chain: list = field(default_factory=list)

    @property
    def totals(self):
        return [s for s in self.sites if isinstance(s, Total)]


@dataclass(frozen=True)
class Segment:
    """A function of the library: the passes after a gradient or observation that the caller has supplied.

    `written` are the blocks that earlier segments have set.
    """

    before: Gradient | Observe | None
    passes: tuple[Pass, ...]
    written: frozenset = frozenset()

    @property
    def sets(self) -> frozenset:
        """The blocks that are set here."""
        return frozenset(_subject(s) for p in self.passes for s in (*p.sites, *p.chain) if isinstance(s, (Set, Adapt)))


@dataclass(frozen=True)
class SweepText:
    """The text of a step's segments, and the order of what they are given: arrays by site, numbers by chain, constants."""

    source: str
    segments: tuple[Segment, ...]
    arrays: tuple[Symbol, ...]
    numbers: tuple[Symbol, ...]
    constants: tuple[Symbol, ...]
    totals: int

    @property
    def written(self) -> frozenset:
        """The blocks that a step sets."""
        return self.segments[-1].written | self.segments[-1].sets


def sweep_text(program: Program) -> SweepText:
    """The C++ text of a Program, for tensors of any shape. Raises Unsupported where there is none."""
    where = f"{program.recipe.name}, cpp"
    if program.scope != "chain":
        raise Unsupported(where, f"the scope {program.scope!r}", do="Use backend='torch'.")
    check_draws(program)
    segments = _segments(program, where)
    defined = [s.name for s in program.statements if isinstance(s, (Let, Total))]
    slopes = [g for s in program.statements if isinstance(s, Gradient) for _, g in s.names]
    slopes += [s.name for s in program.statements if isinstance(s, Observe)]
    known = list(dict.fromkeys([*program.recipe.entries, *slopes, *defined]))
    arrays = tuple(s for s in known if getattr(s, "is_vector", False))
    numbers = tuple(s for s in known if s not in arrays)
    writer = _Writer(program, arrays, numbers)
    parts = [writer.segment(k, segment) for k, segment in enumerate(segments)]
    totals = max((len(p.totals) for s in segments for p in s.passes), default=0)
    source = "\n".join([PRELUDE, f"// {program.recipe.name}: {program.scheme}", STRUCT, *parts])
    return SweepText(source, segments, arrays, numbers, tuple(writer.constants), totals)


def _segments(program, where):
    segments, before, passes, written = [], None, [Pass()], frozenset()
    for statement in program.statements:
        match statement:
            case Gradient() | Observe():
                if before is not None or any(p.sites or p.chain for p in passes):
                    segments.append(Segment(before, tuple(passes), written))
                    written |= segments[-1].sets
                before, passes = statement, [Pass()]
            case Draw():
                pass
            case Let() | Set() | Adapt() | Total():
                _place(statement, passes)
            case _:
                raise Unsupported(where, f"there is no C++ form of {type(statement).__name__.lower()}", do="Use backend='torch'.")
    return (*segments, Segment(before, tuple(passes), written))


def _subject(statement):
    return statement.name if isinstance(statement, (Let, Total)) else statement.block


def _place(statement, passes):
    """Put a statement into the last pass; into a new one if it goes over the sites and reads what that pass ends with."""
    by_site = isinstance(statement, Total) or getattr(_subject(statement), "is_vector", False)
    last, read = passes[-1], statement.value.free_symbols if not isinstance(statement, Total) else statement.integrand.free_symbols
    if by_site:
        if {*map(_subject, last.chain), *(t.name for t in last.totals)} & read:
            passes.append(last := Pass())
        last.sites.append(statement)
    else:
        last.chain.append(statement)


class _Writer:
    """Segments as text, with the names of all that they read and write."""

    def __init__(self, program, arrays, numbers):
        self.program, self.arrays, self.numbers = program, arrays, numbers
        self.names, self.constants, self.set = Names(), inputs(program), set()
        self.draws = {d: k for k, d in enumerate(program.draws)}
        self.later = [s for s in program.statements]

    def name(self, s):
        if isinstance(s, Variate) and s.is_vector:
            return f"{self.names.stem(s)}[i]"
        return self.names.stem(s)

    def write(self, e):
        return text(e, self.name)

    def segment(self, k, segment):
        constants = [f"const R {self.names.stem(s)} = R(a.constants[{j}]);" for j, s in enumerate(self.constants)
                     if not getattr(s, "is_vector", False)]
        if any(e.has(symbols.total(1)) for p in segment.passes for s in (*p.sites, *p.chain) for e in s.values):
            constants.append("R n = 0;\n    for (int64_t p = 0; p < a.parts; ++p) n += R(a.sites[p]);")
        body = "\n".join(self.one_pass(p) for p in segment.passes if p.sites or p.chain)
        unused = "".join(f" (void){line.split()[2]};" for line in constants if line.startswith("const"))
        return f"""
extern "C" void segment_{k}(const Sweep* given) {{
    const Sweep& a = *given;
    {chr(10).join(constants).replace(chr(10), chr(10) + "    ")}
   {unused}
#pragma omp parallel
    {{
{body}
    }}
}}"""

    def source_of(self, s, kind):
        """The table that holds a value: what came in, or what this step has written."""
        return f"a.{kind}_{'out' if s in self.set or not isinstance(s, Block) else 'in'}"

    def one_pass(self, p):
        by_site = self.sites_loop(p) if p.sites else ""
        return by_site + (self.chain_loop(p) if p.chain or p.totals else "")

    def sites_loop(self, p):
        read = set().union(*(e.free_symbols for s in p.sites for e in s.values))
        written = [s for s in map(_subject, p.sites) if getattr(s, "is_vector", False)]
        first_set = {}
        for k, s in enumerate(p.sites):
            first_set.setdefault(_subject(s), k)
        loaded = [s for s in self.arrays if s in read and self._read_before(s, p.sites)]
        mine = [s for s in written if isinstance(s, Block) or self._is_needed_later(s, p)]
        mine = list(dict.fromkeys(mine))
        lines = []
        for s in loaded:
            lines.append(f"const R* {self.names.stem(s)}_from = {self.source_of(s, 'array')}[{self.arrays.index(s)} * a.parts + part] + at;")
        for s in mine:
            lines.append(f"R* {self.names.stem(s)}_to = a.array_out[{self.arrays.index(s)} * a.parts + part] + at;")
        scalars = [s for s in self.numbers if s in read]
        lines += [f"const R {self.names.stem(s)} = {self.source_of(s, 'number')}[{self.numbers.index(s)}][chain];" for s in scalars]
        per_site = [(j, s) for j, s in enumerate(self.constants) if getattr(s, "is_vector", False) and s in read]
        lines += [f"const R* {self.names.stem(s)}_per = a.per_site[{j} * a.parts + part] + first;" for j, s in per_site]
        drawn = [d for d in self.draws if d in read]
        vectors = [d for d in drawn if d.is_vector]
        lines += [f"const R {self.names.stem(d)} = {self._one(d)};" for d in drawn if not d.is_vector]
        sums = [f"{self.names.stem(t.name)}_sum" for t in p.totals]
        lines += [f"double {s} = 0;" for s in sums]
        noise = []
        for d in vectors:
            k, stem = self.draws[d], self.names.stem(d)
            noise += [f"alignas(64) R {stem}_buffer[BLOCK + 4];",
                      f"const R* {stem} = numbers<{'true' if d.kind == 'normal' else 'false'}>({stem}_buffer, a.drawn[{k} * a.parts + part] ? "
                      f"a.drawn[{k} * a.parts + part] + at + b : nullptr, site + b, m, {k}, (uint32_t)(a.first_chain + chain), a.step, a.seed);"]
        body = [f"R {self.names.stem(s)} = {self.names.stem(s)}_from[b + i];" for s in loaded]
        body += [f"R {self.names.stem(s)};" for s in dict.fromkeys(written) if s not in loaded and isinstance(s, Block)]
        body += [f"const R {self.names.stem(s)} = {self.names.stem(s)}_per[b + i];" for _, s in per_site]
        once = []
        for s in p.sites:
            value = self.write(self._hoisted(s.value if not isinstance(s, Total) else s.integrand, once))
            target = self.names.stem(_subject(s))
            body.append(f"const R {target} = {value};" if isinstance(s, Let) else
                        f"{target}_sum += {value};" if isinstance(s, Total) else f"{target} = {value};")
        body += [f"{self.names.stem(s)}_to[b + i] = {self.names.stem(s)};" for s in mine]
        self.set |= {s for s in mine if isinstance(s, Block)}
        reduction = f" reduction(+:{', '.join(sums)})" if sums else ""
        keep = [f"a.sums[j * {len(sums)} + {k}] = {s};" for k, s in enumerate(sums)]
        join = lambda lines, n: ("\n" + " " * n).join(lines)
        return f"""
#pragma omp for schedule(static)
        for (int64_t j = 0; j < a.chains * a.items; ++j) {{
            const int64_t chain = j / a.items, item = j % a.items, part = a.part[item], first = a.first[item], count = a.count[item];
            const int64_t at = chain * a.sites[part] + first, site = a.offset[part] + first;
            {join(lines + once, 12)}
            for (int64_t b = 0; b < count;) {{
                const int64_t left = BLOCK - (site + b) % BLOCK, m = left < count - b ? left : count - b;
                {join(noise, 16)}
#pragma omp simd{reduction}
                for (int64_t i = 0; i < m; ++i) {{
                    {join(body, 20)}
                }}
                b += m;
            }}
            (void)at; (void)site;
            {join(keep, 12)}
        }}
"""

    def _hoisted(self, e, before):
        """The expression with what has one value per chain named in lines of its own, ahead of the loop."""
        by_site = lambda e: any(getattr(s, "is_vector", False) for s in e.free_symbols)
        if e.is_Atom or not isinstance(e, Expr):
            return e
        if not by_site(e):
            named = Symbol(f"once{len(before)}")
            before.append(f"const R {self.names.stem(named)} = {self.write(e)};")
            return named
        if e.is_Mul or e.is_Add:
            still = [x for x in e.args if not by_site(x)]
            moving = [self._hoisted(x, before) for x in e.args if by_site(x)]
            return e.func(self._hoisted(e.func(*still), before), *moving)
        return e.func(*(self._hoisted(x, before) for x in e.args))

    def _one(self, d):
        k = self.draws[d]
        function = "one_normal" if d.kind == "normal" else "one_uniform"
        return f"a.drawn[{k} * a.parts] ? a.drawn[{k} * a.parts][chain] : {function}({k}, (uint32_t)(a.first_chain + chain), a.step, a.seed)"

    def _read_before(self, s, statements):
        """Whether a symbol is read before a statement sets it."""
        for statement in statements:
            if any(s in e.free_symbols for e in statement.values):
                return True
            if _subject(statement) == s:
                return False
        return False

    def _is_needed_later(self, local, p):
        """Whether a local value is read outside of its pass."""
        inside = {id(s) for s in p.sites}
        return any(local in e.free_symbols for s in self.later if id(s) not in inside for e in s.values)

    def chain_loop(self, p):
        read = set().union(set(), *(e.free_symbols for s in p.chain for e in s.values))
        mine = list(dict.fromkeys(map(_subject, p.chain)))
        totals = [t.name for t in p.totals]
        loaded = [s for s in self.numbers if s in read and s not in totals and self._read_before(s, p.chain)]
        lines = []
        for k, t in enumerate(totals):
            stem = self.names.stem(t)
            lines += [f"double {stem}_sum = 0;",
                      f"for (int64_t item = 0; item < a.items; ++item) {stem}_sum += a.sums[(chain * a.items + item) * {len(totals)} + {k}];",
                      f"const R {stem} = (R){stem}_sum;"]
        lines += [f"R {self.names.stem(s)} = {self.source_of(s, 'number')}[{self.numbers.index(s)}][chain];" for s in loaded]
        lines += [f"R {self.names.stem(s)};" for s in mine if s not in loaded and isinstance(s, Block)]
        lines += [f"const R {self.names.stem(d)} = {self._one(d)};" for d in self.draws if d in read]
        for s in p.chain:
            target = self.names.stem(_subject(s))
            lines.append(f"{'const R ' * isinstance(s, Let)}{target} = {self.write(s.value)};")
        lines += [f"a.number_out[{self.numbers.index(s)}][chain] = {self.names.stem(s)};" for s in [*totals, *mine]]
        self.set |= {s for s in mine if isinstance(s, Block)}
        return f"""
#pragma omp for schedule(static)
        for (int64_t chain = 0; chain < a.chains; ++chain) {{
            {("%s%s" % (chr(10), " " * 12)).join(lines)}
        }}
"""
