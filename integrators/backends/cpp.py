"""Printing a Program as C++: trajectories of many chains on a symbolic energy, K steps in one call.

A chain is a lane of the vector unit, its state a set of numbers: one for each site of a vector block. The text of a step
is that of one chain; the compiler makes vectors of it. Constants of the step come from Python, in float64.
"""

import re
from pathlib import Path

from sympy import Dummy, Symbol, cse, numbered_symbols

from recipe import symbols
from recipe.symbols import is_site

from ..extraction import Extraction
from ..flow import Variate
from ..passes import Unsupported, check_draws, inputs, is_by_site, supplied
from ..program import Adapt, Draw, Gradient, Let, Program, Set, Sum
from .kernel_expressions import CPP

PRELUDE = Path(__file__).with_name("prelude.hpp").read_text()
SITES = 64  # a trajectory is unrolled over its sites

_KEYWORDS = """alignas alignof and asm auto bitand bitor bool break case catch char class compl concept const constexpr continue
    decltype default delete do double else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not nullptr operator or private protected public register requires return short signed sizeof static
    struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    and_eq not_eq or_eq xor_eq static_assert static_cast const_cast dynamic_cast reinterpret_cast thread_local char8_t char16_t
    char32_t consteval constinit co_await co_return co_yield main unix linux""".split()
_MACROS = "REAL WIDTH NAN INFINITY HUGE_VAL HUGE_VALF HUGE_VALL".split()
_OURS = """R S W ROWS BLOCK TILE WIDE Data Sweep a at b batch before c chain chains choose chosen columns constants count data
    derivative_1 derivative_2 died draws everything first first_chain first_step given gradient group i item j k kept l left lost m n
    number_kept numbers ok out p part row rows run s seed site started state std step steps stride sum sum_of_all thin tile w weight
    who""".split()
_IN_TRITON = """tl triton zero size mask spot block group items parts key sums drawn per_site sites part_sites part_offset item_part
    item_block array_in array_out number_in number_out GROUPS GIVEN words unit pair normals uniforms total_of power_of""".split()
_RESERVED = re.compile(
    r"(M_|FP_|MATH_|math_).*|u?int\d+_t|.*_(\d+|from|to|per|buffer|sum)"
)  # macros, types, names with an ending of ours
_TAKEN = {*_MACROS, *_OURS, *_IN_TRITON, *re.findall(r"\b([A-Za-z_]\w*)[(<]", PRELUDE), *_KEYWORDS, *CPP.calls}


class Names:
    """A name in a kernel for every symbol of a Program, one for each site of a vector."""

    def __init__(self):
        self._stems: dict[Symbol, str] = {}

    def stem(self, s) -> str:
        """The name of a scalar, or what the names of a vector's sites begin with."""
        if s not in self._stems:
            stem = ("n_" if isinstance(s, Variate) else "") + s.name
            while stem in _TAKEN or stem in self._stems.values() or _RESERVED.fullmatch(stem):
                stem += "_"
            self._stems[s] = stem
        return self._stems[s]

    def at(self, site):
        """The names at a site, as a function of the symbol."""

        def name(s):
            if isinstance(s, Variate):
                return f"{self.stem(s)}[{site if s.is_vector else 0}][l]"
            return f"{self.stem(s)}_{site}" if is_by_site(s) else self.stem(s)

        return name


def sites_of(s, sites: int) -> range:
    """The sites of a symbol: one for a scalar."""
    return range(sites if is_by_site(s) else 1)


def trajectory_source(program: Program, sites: int) -> str:
    """The text of `run`, which moves every chain by some steps, and of `gradient`, for a gradient that is carried.

    Raises Unsupported for a Program that has no such text: an energy that is not symbolic, observations, random numbers
    whose law depends on the state, matrices that are taken apart at every step.
    """
    where = f"{program.recipe.name}, cpp"
    if program.recipe.potential is not None and program.energy is None:
        raise Unsupported(where, "the energy is not symbolic", do="Pass a recipe.Energy.")
    if program.scope != "chain" or sites > SITES:
        raise Unsupported(
            where, f"{sites} sites in the scope {program.scope!r}", do=f"At most {SITES} sites are unrolled, per chain."
        )
    check_draws(program)
    names = Names()
    entries = [(b, i) for b in program.recipe.entries for i in sites_of(b, sites)]
    slopes = list(dict.fromkeys(supplied(program)))
    rows = entries + [(g, i) for g in (slopes if program.carries_gradient else ()) for i in sites_of(g, sites)]
    body = _body(program, names, sites)
    at = lambda s, i: names.at(i)(s)
    load = [f"R {at(s, i)} = s[{r}][l];" for r, (s, i) in enumerate(rows)]
    load += [f"R {at(g, i)} = 0;" for g in slopes if not program.carries_gradient for i in sites_of(g, sites)]
    given = [(s, i) for s in inputs(program) for i in sites_of(s, sites)]
    read = [f"const R {at(s, i)} = R(c[{j}]);" for j, (s, i) in enumerate(given)]
    everything = " + ".join(at(b, i) for b, i in entries)
    inside = "".join(f" & {is_inside(b, at(b, i))}" for b, i in entries if b.domain in INSIDE)
    store = [f"s[{r}][l] = ok ? {at(s, i)} : s[{r}][l];" for r, (s, i) in enumerate(rows)]
    noise = [line for number, d in enumerate(program.draws) for line in _noise(d, number, names, sites)]
    arrays = [f"alignas(64) R {names.stem(d)}[{4 * _groups(d, sites)}][W];" for d in program.draws]
    gradient = _gradient(program, names, sites, rows, slopes) if program.carries_gradient else ""
    return f"""{PRELUDE}
// {program.recipe.name}: {program.scheme}

typedef REAL R;
constexpr int W = WIDTH, ROWS = {len(rows)};  // chains of a lane block, numbers of a chain
constexpr R n = R({sites});

extern "C" void run(R* state, R* draws, const double* constants, int64_t stride, int64_t chains, int64_t first_chain, int64_t steps,
                    int64_t first_step, uint64_t seed, int64_t thin, int64_t first_kept, const int64_t* kept, int64_t number_kept,
                    int64_t* died) {{
#pragma omp parallel for schedule(static)
    for (int64_t chain = 0; chain < chains; chain += W) {{
        alignas(64) R s[ROWS][W];
        alignas(64) Bits<R>::I lost[W];
        alignas(64) uint32_t w[4][W];
        {indented(arrays, 8)}
        for (int r = 0; r < ROWS; ++r)
            for (int l = 0; l < W; ++l) s[r][l] = state[r * chains + chain + l];
        for (int l = 0; l < W; ++l) lost[l] = died[chain + l] >= 0 ? -2 : -1;
        (void)w;
        for (int64_t k = 0; k < steps; ++k) {{
            const double* c = constants + k * stride;
            {indented(read, 12)}
            {indented(noise, 12)}
            (void)c;
#pragma omp simd
            for (int l = 0; l < W; ++l) {{
                {indented(load, 16)}
                {indented(body, 16)}
                const R sum_of_all = {everything};
                const bool ok = (lost[l] == -1) & (sum_of_all - sum_of_all == 0){inside};
                {indented(store, 16)}
                lost[l] = (lost[l] == -1) & !ok ? (Bits<R>::I)k : lost[l];
            }}
            if (k >= first_kept && (k - first_kept) % thin == 0) {{
                R* row = draws + (k - first_kept) / thin * number_kept * chains + chain;
                for (int64_t r = 0; r < number_kept; ++r)
                    for (int l = 0; l < W; ++l) row[r * chains + l] = s[kept[r]][l];
            }}
        }}
        for (int r = 0; r < ROWS; ++r)
            for (int l = 0; l < W; ++l) state[r * chains + chain + l] = s[r][l];
        for (int l = 0; l < W; ++l) died[chain + l] = lost[l] >= 0 ? first_step + lost[l] : died[chain + l];
    }}
}}
{gradient}"""


def indented(lines, indent: int) -> str:
    """Lines of a text, all but the first behind so many spaces."""
    return ("\n" + " " * indent).join(lines)


INSIDE = {"positive": "{0} > 0", "nonnegative": "{0} >= 0", "fraction": "{0} >= 0) & ({0} <= 1"}


def is_inside(block, name: str) -> str:
    """The condition that a number is in the domain of its block."""
    return f"({INSIDE[block.domain].format(name)})"


def _groups(draw, sites):
    return -(-len(sites_of(draw, sites)) // 4)


def _noise(draw, number, names, sites):
    """Lines that draw the numbers of one step for all chains of a lane block."""
    stem, lines = names.stem(draw), []
    for group in range(_groups(draw, sites)):
        lines.append(
            f"words<W, true>(w, {group}, {number}, (uint32_t)(first_chain + chain), (uint64_t)(first_step + k), seed);"
        )
        lines += ["#pragma omp simd", "for (int l = 0; l < W; ++l) {"]
        wanted = min(4, len(sites_of(draw, sites)) - 4 * group)
        if draw.kind == "uniform":
            lines += [f"    {stem}[{4 * group + i}][l] = open_unit<R>(w[{i}][l]);" for i in range(wanted)]
        else:
            lines += [
                f"    pair_of_normals(w[{i}][l], w[{i + 1}][l], {stem}[{4 * group + i}][l], {stem}[{4 * group + i + 1}][l]);"
                for i in range(0, wanted, 2)
            ]
        lines.append("}")
    return lines


def _body(program, names, sites):
    """The statements of one step of one chain."""
    lines = []
    for stage in program.stages:
        lines += [f"// {stage.title}".replace("\\", "/")] if stage.title != "gradient" else []
        for statement in stage.statements:
            lines += _statement(statement, program, names, sites)
    return lines


def _statement(statement, program, names, sites):
    write = lambda e, i=0: CPP.text(e, names.at(i))
    match statement:
        case Let(name, value):
            return [f"const R {names.at(i)(name)} = {write(value, i)};" for i in sites_of(name, sites)]
        case Set(block, value) | Adapt(block, value):
            return [f"{names.at(i)(block)} = {write(value, i)};" for i in sites_of(block, sites)]
        case Sum(name, integrand):
            return [f"const R {names.stem(name)} = {_total(integrand, names, sites)};"]
        case Draw(_, None):
            return []
        case Gradient(_, "carried"):
            return []
        case Gradient(of, "evaluated", order):
            return ["{", *(f"    {line}" for line in _derivatives(of, order, program, names, sites)), "}"]
    raise Unsupported(
        f"{program.recipe.name}, cpp",
        f"there is no C++ form of {type(statement).__name__.lower()}",
        do="Use backend='torch'.",
    )


def _total(integrand, names, sites):
    if not is_site(integrand):
        return f"R({sites})*({CPP.text(integrand, names.at(0))})"
    return " + ".join(f"({CPP.text(integrand, names.at(i))})" for i in range(sites))


def _derivatives(of, order, program, names, sites):
    """Lines that give the derivatives of a symbolic energy their values at the target as it stands."""
    energy, lines = program.energy, []
    formulas = energy.gradient if order == 1 else energy.curvature
    if energy.is_sitewise:
        (slope,), (block, g) = formulas, of[0]
        slope = slope.xreplace({energy.coordinates[0]: block})

        def name(total, extract):
            inside = extract(total.integrand)
            own = Dummy(f"total{len(extract.known)}")
            lines.append(f"const R {names.stem(own)} = {_total(inside, names, sites)};")
            return own

        slope = Extraction(name, symbols.Total)(slope)
        return [*lines, *(f"{names.at(i)(g)} = {CPP.text(slope, names.at(i))};" for i in range(sites))]
    places = [(b, g, i) for b, g in of for i in sites_of(b, sites)]
    here = {x: Symbol(names.at(i)(b), real=True) for x, (b, _, i) in zip(energy.coordinates, places)}
    shared, reduced = cse(
        [f.xreplace(here) for f in formulas], symbols=numbered_symbols("shared", cls=Symbol), order="none"
    )
    lines += [f"const R {s} = {CPP.text(value, str)};" for s, value in shared]
    return [*lines, *(f"{names.at(i)(g)} = {CPP.text(f, str)};" for f, (_, g, i) in zip(reduced, places))]


def _gradient(program, names, sites, rows, slopes):
    """The text of `gradient`: the rows of a gradient that is carried, from those of the target."""
    at = lambda s, i: names.at(i)(s)
    of = next(s.names for s in program.statements if isinstance(s, Gradient) and s.order == 1)
    targets = [(r, b, i) for r, (b, i) in enumerate(rows) if b in program.recipe.targets]
    carried = [(r, g, i) for r, (g, i) in enumerate(rows) if g in slopes]
    lines = [f"const R {at(b, i)} = state[{r} * chains + chain];" for r, b, i in targets]
    lines += [f"R {at(g, i)} = 0;" for _, g, i in carried]
    lines += ["{", *(f"    {line}" for line in _derivatives(of, 1, program, names, sites)), "}"]
    lines += [f"state[{r} * chains + chain] = {at(g, i)};" for r, g, i in carried]
    return f"""
extern "C" void gradient(R* state, int64_t chains) {{
    for (int64_t chain = 0; chain < chains; ++chain) {{
        {indented(lines, 8)}
    }}
}}
"""
