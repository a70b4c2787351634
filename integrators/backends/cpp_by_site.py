"""Printing a Program as C++: trajectories on an energy of many sites, or of data, K steps in one call.

One chain after the other: the lanes of the vector unit are the sites of a chain, and the rows of a batch where a row has
one number. The text of a pass is a loop over sites.
"""

from ..noise import BATCH
from ..passes import Layout, Unsupported, hoisted, is_by_site, layout, subject
from ..program import Gradient, Let, Program, Sum
from .cpp import INSIDE, PRELUDE, Names, indented, is_inside
from .cpp_data import Derivative, inner
from .kernel_expressions import CPP

SITES = 4096  # of a chain, whose state is on the stack


def by_site_source(program: Program, sites: int) -> str:
    """The text of `run`, which moves every chain by some steps, and of `gradient`, for a gradient that is carried.

    Raises Unsupported for a Program that has no such text.
    """
    where = f"{program.recipe.name}, cpp"
    if program.recipe.potential is not None and program.energy is None:
        raise Unsupported(where, "the energy is not symbolic", do="Pass a recipe.Energy.")
    if sites > SITES:
        raise Unsupported(where, f"{sites} sites", do=f"A chain of a kernel has at most {SITES}: use backend='torch'.")
    if program.energy and program.energy.data and program.needs_curvature and program.carries_gradient:
        raise Unsupported(
            where,
            "a Hessian diagonal on the batch of a step before",
            do="Use backend='torch', or reuse_gradient=False.",
        )
    return _Writer(program, layout(program), sites).text()


class _Writer:
    """The parts of the text, with the names of all that they read and write."""

    def __init__(self, program: Program, given: Layout, sites: int):
        self.program, self.layout, self.sites, self.names = program, given, sites, Names()
        self.energy, self.registers = program.energy, set()  # the latter: values by site that one loop alone reads
        self.gradients = {s.order: s for s in program.statements if isinstance(s, Gradient)}
        self.carried = [g for _, g in self.gradients[1].names] if program.carries_gradient else []
        self.rows, at = {}, 0  # where a chain's numbers lie, one after the other
        for s in (*program.recipe.entries, *self.carried):
            self.rows[s], at = at, at + self.count(s)
        self.number_of_rows = at
        self.given, at = {}, 0
        for s in given.constants:
            self.given[s], at = at, at + self.count(s)

    def count(self, s):
        """How many numbers of a chain a symbol stands for."""
        return self.sites if is_by_site(s) else 1

    def name(self, s):
        """The text of a symbol, at the site i where it has sites."""
        stem = self.names.stem(s)
        if s in self.given:
            return f"R(c[{self.given[s]} + i])" if is_by_site(s) else stem
        return f"{stem}[i]" if is_by_site(s) and s not in self.registers else stem

    def write(self, e):
        return CPP.text(e, self.name)

    def text(self):
        program, energy = self.program, self.energy
        wide = -(-self.sites // 16) * 16 if self.sites <= 64 else -(-self.sites // 64) * 64
        derivatives = [Derivative(energy, order).text() for order in sorted(self.gradients)] if energy else []
        noise = [line for number, d in enumerate(program.draws) for line in self.noise(number, d)]
        entries = sum(map(self.count, program.recipe.entries))
        inside = [
            f"for (int64_t i = 0; i < {self.count(b)}; ++i) ok &= {is_inside(b, f's[{self.rows[b]} + i]')};"
            for b in program.recipe.entries
            if b.domain in INSIDE
        ]
        places = self.places(self.rows)
        places += [
            f"alignas(64) R {self.names.stem(g)}[S];" if is_by_site(g) else f"R {self.names.stem(g)} = 0;"
            for s in self.gradients.values()
            for _, g in s.names
            if g not in self.rows
        ]
        read = [f"const R {self.names.stem(s)} = R(c[{j}]);" for s, j in self.given.items() if not is_by_site(s)]
        body = self.body()
        return f"""{PRELUDE}
#include <vector>
// {program.recipe.name}: {program.scheme}

typedef REAL R;
constexpr int64_t S = {self.sites}, WIDE = {wide}, TILE = WIDE < 64 ? WIDE : 64, ROWS = {self.number_of_rows}, BLOCK = 64;
constexpr R n = R(S);

struct Data {{  // columns: one number for each row, or WIDE of them, 0 beyond the sites
    const R* const* columns;
    int64_t rows, batch, drawn;  // drawn: whether the rows of a batch are
    double num_data;
}};

// the rows of a batch: uniform with replacement
static void choose(int32_t* chosen, const Data& data, uint32_t draw, uint32_t chain, uint64_t step, uint64_t seed) {{
    alignas(64) uint32_t w[4][8];
    for (int64_t group = 0; 4 * group < data.batch; group += 8) {{
        words<8, false>(w, group, draw, chain, step, seed);
        for (int64_t j = 0; j < 32 && 4 * group + j < data.batch; ++j)
            chosen[4 * group + j] = (int32_t)((uint64_t)w[j % 4][j / 4] * (uint64_t)data.rows >> 32);
    }}
}}
{"".join(derivatives)}
extern "C" void run(R* state, R* draws, const double* constants, int64_t stride, int64_t chains, int64_t first_chain, int64_t steps,
                    int64_t first_step, uint64_t seed, int64_t thin, int64_t first_kept, const int64_t* kept, int64_t number_kept,
                    int64_t* died, const Data* data, int64_t started) {{
#pragma omp parallel for schedule(static)
    for (int64_t chain = 0; chain < chains; ++chain) {{
        alignas(64) R s[ROWS], before[ROWS], at[WIDE] = {{}};
        std::vector<int32_t> chosen(data->drawn ? data->batch : 0);
        bool lost = died[chain] >= 0;
        for (int64_t r = 0; r < ROWS; ++r) s[r] = state[r * chains + chain];
        {indented(places, 8)}
        (void)at;
        for (int64_t k = 0; k < steps; ++k) {{
            if (!lost) {{
                const double* c = constants + k * stride;
                const uint64_t step = first_step + k;
                const uint32_t who = (uint32_t)(first_chain + chain);
                std::memcpy(before, s, sizeof s);
                {indented(read, 16)}
                {indented(noise, 16)}
                {indented(body, 16)}
                R everything = 0;
                for (int64_t r = 0; r < {entries}; ++r) everything += s[r];
                bool ok = everything - everything == 0;
                {indented(inside, 16)}
                if (!ok) {{
                    std::memcpy(s, before, sizeof s);
                    died[chain] = first_step + k;
                    lost = true;
                }}
                (void)c, (void)step, (void)who;
            }}
            if (k >= first_kept && (k - first_kept) % thin == 0) {{
                R* row = draws + (k - first_kept) / thin * number_kept * chains + chain;
                for (int64_t r = 0; r < number_kept; ++r) row[r * chains] = s[kept[r]];
            }}
        }}
        for (int64_t r = 0; r < ROWS; ++r) state[r * chains + chain] = s[r];
    }}
}}
{self.carried_gradient() if self.carried else ""}"""

    def places(self, symbols):
        """Lines that name where numbers of a chain lie."""
        return [
            f"R* {self.names.stem(s)} = s + {self.rows[s]};"
            if is_by_site(s)
            else f"R& {self.names.stem(s)} = s[{self.rows[s]}];"
            for s in symbols
        ]

    def noise(self, number, draw):
        """Lines that draw the numbers of one step."""
        stem, kind = self.names.stem(draw), "true" if draw.kind == "normal" else "false"
        if not draw.is_vector:
            return [f"const R {stem} = one_{draw.kind}<R>({number}, who, step, seed);"]
        groups = -(-self.sites // 4)
        width = 8 if groups <= 8 else 16
        return [
            f"alignas(64) R {stem}[{-(-groups // width) * 4 * width}];",
            f"for (int64_t g = 0; g < {groups}; g += {width}) fill<R, {kind}, {width}>({stem} + 4 * g, g, {number}, who, step, seed);",
        ]

    def body(self):
        """The statements of one step of one chain."""
        lines, evaluations = [], 0
        for segment in self.layout.segments:
            match segment.before:
                case Gradient(_, "evaluated", order) as statement:
                    lines += self.evaluated(statement, evaluations)
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
                lines += self.sites_loop(p) if p.sites else []
                self.registers = set()
                lines += [
                    f"{'const R ' * isinstance(s, Let)}{self.name(subject(s))} = {self.write(s.value)};"
                    for s in p.chain
                ]
        return lines

    def sites_loop(self, p):
        self.registers = {s.name for s in p.sites if isinstance(s, Let) and not self.layout.outlives(s.name, p)}
        kept = dict.fromkeys(s.name for s in p.sites if isinstance(s, Let) and s.name not in self.registers)
        lines = [f"alignas(64) R {self.names.stem(s)}[S];" for s in kept]
        lines += [f"R {self.names.stem(t.name)} = 0;" for t in p.totals]
        inside, once = [], {}
        for s in p.sites:
            value = self.write(hoisted(s.values[0], once))
            sign = " +=" if isinstance(s, Sum) else " ="
            inside.append(f"{'const R ' * (subject(s) in self.registers)}{self.name(subject(s))}{sign} {value};")
        sums = f" reduction(+:{', '.join(self.names.stem(t.name) for t in p.totals)})" if p.totals else ""
        return [
            *lines,
            "{",
            *(f"    const R {self.names.stem(s)} = {self.write(e)};" for e, s in once.items()),
            f"#pragma omp simd{sums}",
            "    for (int64_t i = 0; i < S; ++i) {",
            *inner(inner(inside)),
            "    }",
            "}",
        ]

    def evaluated(self, statement, evaluation, started="step == (uint64_t)started"):
        """Lines that give the derivatives their values where the target is."""
        lines = []
        if self.energy.data and statement.order == 1:
            lines.append(
                f"if (data->drawn) choose(chosen.data(), *data, {BATCH}u - {evaluation} - ({started}), who, step, seed);"
            )
        blocks = [b for b, _ in statement.names]
        if is_by_site(blocks[0]):
            lines.append(f"std::memcpy(at, {self.names.stem(blocks[0])}, S * sizeof(R));")
            out = self.names.stem(statement.names[0][1])
        else:
            lines += [
                "{",
                f"R out[{len(blocks)}];",
                *(f"at[{j}] = {self.names.stem(b)};" for j, b in enumerate(blocks)),
            ]
            out = "out"
        lines.append(f"derivative_{statement.order}(at, {out}, *data, data->drawn ? chosen.data() : nullptr);")
        if out == "out":
            lines += [*(f"{self.names.stem(g)} = out[{j}];" for j, (_, g) in enumerate(statement.names)), "}"]
        return lines

    def carried_gradient(self):
        """The text of `gradient`: that of the start, on the first batch of its step."""
        places = self.places([*self.program.recipe.targets, *self.carried])
        return f"""
extern "C" void gradient(R* state, int64_t chains, int64_t first_chain, uint64_t step, uint64_t seed, const Data* data) {{
    std::vector<int32_t> chosen(data->drawn ? data->batch : 0);
    for (int64_t chain = 0; chain < chains; ++chain) {{
        alignas(64) R s[ROWS], at[WIDE] = {{}};
        const uint32_t who = (uint32_t)(first_chain + chain);
        for (int64_t r = 0; r < ROWS; ++r) s[r] = state[r * chains + chain];
        {indented(places, 8)}
        {indented(self.evaluated(self.gradients[1], 0, started="0"), 8)}
        for (int64_t r = 0; r < ROWS; ++r) state[r * chains + chain] = s[r];
        (void)who, (void)step, (void)seed;
    }}
}}
"""
