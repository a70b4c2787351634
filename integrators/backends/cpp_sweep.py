"""Printing a Program as C++: one step of any number of tensors, in passes over their sites."""

from recipe import symbols
from recipe.symbols import Block

from ..flow import Variate
from ..passes import Layout, hoisted, is_by_site, is_read_first, subject
from ..program import Let, Sum
from .cpp import PRELUDE, Names, indented
from .kernel_expressions import CPP

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
    if (groups > 48) {
        fill<R, normal, 64>(buffer, first, draw, chain, step, seed);
    } else {
        for (int64_t g = 0; g < groups; g += 16) fill<R, normal, 16>(buffer + 4 * g, first + g, draw, chain, step, seed);
    }
    return buffer + site % 4;
}
"""


def sweep_text(given: Layout) -> str:
    """The C++ text of a layout, for tensors of any shape: `segment_i` for each of its segments."""
    writer, program = _Writer(given), given.program
    parts = [writer.segment(k, segment) for k, segment in enumerate(given.segments)]
    return "\n".join([PRELUDE, f"// {program.recipe.name}: {program.scheme}", STRUCT, *parts])


class _Writer:
    """Segments as text, with the names of all that they read and write."""

    def __init__(self, given):
        self.layout, self.arrays, self.numbers, self.constants = given, given.arrays, given.numbers, given.constants
        self.names, self.set = Names(), set()
        self.draws = {d: k for k, d in enumerate(given.program.draws)}

    def name(self, s):
        if isinstance(s, Variate) and s.is_vector:
            return f"{self.names.stem(s)}[i]"
        return self.names.stem(s)

    def write(self, e):
        return CPP.text(e, self.name)

    def segment(self, k, segment):
        constants = [
            f"const R {self.names.stem(s)} = R(a.constants[{j}]);"
            for j, s in enumerate(self.constants)
            if not is_by_site(s)
        ]
        if any(e.has(symbols.total(1)) for p in segment.passes for s in (*p.sites, *p.chain) for e in s.values):
            constants += ["R n = 0;", "for (int64_t p = 0; p < a.parts; ++p) n += R(a.sites[p]);"]
        body = "\n".join(self.one_pass(p) for p in segment.passes if p.sites or p.chain)
        unused = "".join(f" (void){line.split()[2]};" for line in constants if line.startswith("const"))
        return f"""
extern "C" void segment_{k}(const Sweep* given) {{
    const Sweep& a = *given;
    {indented(constants, 4)}
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
        read = p.reads(p.sites)
        written = [s for s in map(subject, p.sites) if is_by_site(s)]
        loaded = [s for s in self.arrays if s in read and is_read_first(s, p.sites)]
        mine = [s for s in written if isinstance(s, Block) or self.layout.outlives(s, p)]
        mine = list(dict.fromkeys(mine))
        lines = []
        for s in loaded:
            lines.append(
                f"const R* {self.names.stem(s)}_from = {self.source_of(s, 'array')}[{self.arrays.index(s)} * a.parts + part] + at;"
            )
        for s in mine:
            lines.append(f"R* {self.names.stem(s)}_to = a.array_out[{self.arrays.index(s)} * a.parts + part] + at;")
        scalars = [s for s in self.numbers if s in read]
        lines += [
            f"const R {self.names.stem(s)} = {self.source_of(s, 'number')}[{self.numbers.index(s)}][chain];"
            for s in scalars
        ]
        per_site = [(j, s) for j, s in enumerate(self.constants) if is_by_site(s) and s in read]
        lines += [f"const R* {self.names.stem(s)}_per = a.per_site[{j} * a.parts + part] + first;" for j, s in per_site]
        drawn = [d for d in self.draws if d in read]
        vectors = [d for d in drawn if d.is_vector]
        lines += [f"const R {self.names.stem(d)} = {self._one(d)};" for d in drawn if not d.is_vector]
        sums = [f"{self.names.stem(t.name)}_sum" for t in p.totals]
        lines += [f"double {s} = 0;" for s in sums]
        noise = []
        for d in vectors:
            k, stem = self.draws[d], self.names.stem(d)
            noise += [
                f"alignas(64) R {stem}_buffer[BLOCK + 4];",
                f"const R* {stem} = numbers<{'true' if d.kind == 'normal' else 'false'}>({stem}_buffer, a.drawn[{k} * a.parts + part] ? "
                f"a.drawn[{k} * a.parts + part] + at + b : nullptr, site + b, m, {k}, (uint32_t)(a.first_chain + chain), a.step, a.seed);",
            ]
        body = [f"R {self.names.stem(s)} = {self.names.stem(s)}_from[b + i];" for s in loaded]
        body += [f"R {self.names.stem(s)};" for s in dict.fromkeys(written) if s not in loaded and isinstance(s, Block)]
        body += [f"const R {self.names.stem(s)} = {self.names.stem(s)}_per[b + i];" for _, s in per_site]
        once = {}
        for s in p.sites:
            value = self.write(hoisted(s.values[0], once))
            target = self.names.stem(subject(s))
            body.append(
                f"const R {target} = {value};"
                if isinstance(s, Let)
                else f"{target}_sum += {value};"
                if isinstance(s, Sum)
                else f"{target} = {value};"
            )
        body += [f"{self.names.stem(s)}_to[b + i] = {self.names.stem(s)};" for s in mine]
        self.set |= {s for s in mine if isinstance(s, Block)}
        reduction = f" reduction(+:{', '.join(sums)})" if sums else ""
        keep = [f"a.sums[j * {len(sums)} + {k}] = {s};" for k, s in enumerate(sums)]
        lines += [f"const R {self.names.stem(s)} = {self.write(e)};" for e, s in once.items()]
        return f"""
#pragma omp for schedule(static)
        for (int64_t j = 0; j < a.chains * a.items; ++j) {{
            const int64_t chain = j / a.items, item = j % a.items, part = a.part[item], first = a.first[item], count = a.count[item];
            const int64_t at = chain * a.sites[part] + first, site = a.offset[part] + first;
            {indented(lines, 12)}
            for (int64_t b = 0; b < count;) {{
                const int64_t left = BLOCK - (site + b) % BLOCK, m = left < count - b ? left : count - b;
                {indented(noise, 16)}
#pragma omp simd{reduction}
                for (int64_t i = 0; i < m; ++i) {{
                    {indented(body, 20)}
                }}
                b += m;
            }}
            (void)at; (void)site;
            {indented(keep, 12)}
        }}
"""

    def _one(self, d):
        k = self.draws[d]
        function = "one_normal<R>" if d.kind == "normal" else "one_uniform<R>"
        return f"a.drawn[{k} * a.parts] ? a.drawn[{k} * a.parts][chain] : {function}({k}, (uint32_t)(a.first_chain + chain), a.step, a.seed)"

    def chain_loop(self, p):
        read = p.reads(p.chain)
        mine = list(dict.fromkeys(map(subject, p.chain)))
        totals = [t.name for t in p.totals]
        loaded = [s for s in self.numbers if s in read and s not in totals and is_read_first(s, p.chain)]
        lines = []
        for k, t in enumerate(totals):
            stem = self.names.stem(t)
            lines += [
                f"double {stem}_sum = 0;",
                f"for (int64_t item = 0; item < a.items; ++item) {stem}_sum += a.sums[(chain * a.items + item) * {len(totals)} + {k}];",
                f"const R {stem} = (R){stem}_sum;",
            ]
        lines += [
            f"R {self.names.stem(s)} = {self.source_of(s, 'number')}[{self.numbers.index(s)}][chain];" for s in loaded
        ]
        lines += [f"R {self.names.stem(s)};" for s in mine if s not in loaded and isinstance(s, Block)]
        lines += [f"const R {self.names.stem(d)} = {self._one(d)};" for d in self.draws if d in read]
        for s in p.chain:
            target = self.names.stem(subject(s))
            lines.append(f"{'const R ' * isinstance(s, Let)}{target} = {self.write(s.value)};")
        lines += [f"a.number_out[{self.numbers.index(s)}][chain] = {self.names.stem(s)};" for s in [*totals, *mine]]
        self.set |= {s for s in mine if isinstance(s, Block)}
        return f"""
#pragma omp for schedule(static)
        for (int64_t chain = 0; chain < a.chains; ++chain) {{
            {indented(lines, 12)}
        }}
"""
