"""Printing the derivatives of an energy as C++: loops over the sites of a chain, and over the rows of its batch."""

from sympy import Mul

from recipe.data import Datum
from recipe.symbols import Block, num_data

from ..data_sums import rows_in_batch, taken_apart
from ..passes import is_by_site
from .cpp import Names, indented
from .kernel_expressions import CPP


class Derivative:
    """The text of `derivative_1` or `derivative_2`, of one chain: out = dU at `at`, on the chosen rows or on all."""

    def __init__(self, energy, order):
        self.energy, self.order, self.names = energy, order, Names()
        self.sums = taken_apart(energy.gradient if order == 1 else energy.curvature)
        self.given = {c: f"at[{'i' if isinstance(c, Block) else j}]" for j, c in enumerate(energy.coordinates)}
        self.given |= {num_data: "R(data.num_data)", rows_in_batch: "R(data.batch)"}
        self.per_site = [d for d in energy.data if d.is_vector]
        self.per_row = [*(d for d in energy.data if not d.is_vector), *(t.name for t in self.sums.row)]

    def name(self, s):
        if s in self.given:
            return self.given[s]
        return f"{self.stem(s)}[i]" if is_by_site(s) else self.stem(s)

    def stem(self, s):
        return self.names.stem(s)

    def write(self, e):
        return CPP.text(e, self.name)

    def text(self):
        lines = []
        for t in self.sums.chain:
            lines += [
                f"R {self.stem(t.name)} = 0;",
                f"#pragma omp simd reduction(+:{self.stem(t.name)})",
                f"for (int64_t i = 0; i < S; ++i) {self.stem(t.name)} += {self.write(t.integrand)};",
            ]
        lines += [
            f"alignas(64) R {self.stem(s.name)}[WIDE] = {{}};" if s.name.is_vector else f"R {self.stem(s.name)} = 0;"
            for s in self.sums.rows
        ]
        if self.energy.data:
            block = [*self.read_rows(), *self.row_totals(), *self.weights(), *self.sums_by_site()]
            lines += [
                "for (int64_t first = 0; first < data.batch; first += BLOCK) {",
                "    const int64_t m = data.batch - first < BLOCK ? data.batch - first : BLOCK;",
                *inner(block),
                "}",
            ]
        if self.energy.is_sitewise:
            lines += [
                "#pragma omp simd",
                f"for (int64_t i = 0; i < S; ++i) out[i] = {self.write(self.sums.derivatives[0])};",
            ]
        else:
            lines += [f"out[{j}] = {self.write(e)};" for j, e in enumerate(self.sums.derivatives)]
        return f"""
static inline void derivative_{self.order}(const R* at, R* out, const Data& data, const int32_t* chosen) {{
    (void)data, (void)chosen;
    {indented(lines, 4)}
}}
"""

    def read_rows(self):
        """Where the rows of a block lie, and what has one number in each; the last row repeats up to a multiple of four."""
        lines = [f"const R* {self.stem(d)}_from[BLOCK];" for d in self.per_site]
        lines += [f"alignas(64) R {self.stem(s)}_from[BLOCK];" for s in self.per_row]
        read = [
            f"{self.stem(d)}_from[r] = data.columns[{k}] {'+ row * WIDE' if d.is_vector else '[row]'};"
            for k, d in enumerate(self.energy.data)
        ]
        return [
            *lines,
            "for (int64_t r = 0; r < (m + 3) / 4 * 4; ++r) {",
            "    const int64_t k = first + (r < m ? r : m - 1), row = chosen ? chosen[k] : k;",
            *inner(read),
            "}",
        ]

    def row_totals(self):
        """Sums over sites, of four rows at a time, so that they do not wait for each other."""
        lines, four = [], range(4)
        for t in self.sums.row:
            of = lambda j: (
                lambda s: (
                    f"{self.stem(s)}_{j}[i]"
                    if s in self.per_site
                    else f"{self.stem(s)}_{j}"
                    if s in self.per_row
                    else self.name(s)
                )
            )
            padded = any(
                isinstance(f, Datum) and f.is_vector for f in Mul.make_args(t.integrand)
            )  # it is 0 beyond the sites
            given = [
                f"const R{'*' * (s in self.per_site)} {self.stem(s)}_{j} = {self.stem(s)}_from[r + {j}];"
                for s in (*self.per_site, *self.per_row)
                if s in t.integrand.free_symbols
                for j in four
            ]
            lines += [
                "for (int64_t r = 0; r < m; r += 4) {",
                "    R sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0;",
                *inner(given),
                "#pragma omp simd reduction(+:sum_0, sum_1, sum_2, sum_3)",
                f"    for (int64_t i = 0; i < {'WIDE' if padded else 'S'}; ++i) {{",
                *(f"        sum_{j} += {CPP.text(t.integrand, of(j))};" for j in four),
                "    }",
                *(f"    {self.stem(t.name)}_from[r + {j}] = sum_{j};" for j in four),
                "}",
            ]
        return lines

    def weights(self):
        """The weight of each row in each sum; sums without a factor are taken here."""
        alone, weighted = (
            [s for s in self.sums.rows if bool(s.name.is_vector) is by_site] for by_site in (False, True)
        )
        read = [
            f"const R {self.stem(s)} = {self.stem(s)}_from[r];"
            for s in self.per_row
            if any(s in x.weight.free_symbols for x in self.sums.rows)
        ]
        sums = [f"{self.stem(s.name)} += {self.write(s.weight)};" for s in alone]
        sums += [f"{self.stem(s.name)}_per[r] = {self.write(s.weight)};" for s in weighted]
        reduction = f" reduction(+:{', '.join(self.stem(s.name) for s in alone)})" if alone else ""
        return [
            *(f"alignas(64) R {self.stem(s.name)}_per[BLOCK];" for s in weighted),
            f"#pragma omp simd{reduction}",
            "for (int64_t r = 0; r < m; ++r) {",
            *inner(read + sums),
            "}",
        ]

    def sums_by_site(self):
        """The sums over rows of weights times factors, a tile of sites at a time."""
        lines = []
        shifted = lambda s: "at[tile + i]" if isinstance(s, Block) else self.name(s)
        for s in (s for s in self.sums.rows if s.name.is_vector):
            read = s.factor.free_symbols
            given = [f"const R {self.stem(d)} = {self.stem(d)}_from[r];" for d in self.per_row if d in read]
            given += [f"const R* {self.stem(d)} = {self.stem(d)}_from[r] + tile;" for d in self.per_site if d in read]
            given += [f"const R weight = {self.stem(s.name)}_per[r];"]
            lines += [
                "for (int64_t tile = 0; tile < WIDE; tile += TILE) {",
                "    alignas(64) R sum[TILE] = {};",
                "    for (int64_t r = 0; r < m; ++r) {",
                '        asm volatile("" : "+r"(r));  // one row after the other keeps the sums of a tile in registers',
                *inner(inner(given)),
                "#pragma omp simd",
                f"        for (int64_t i = 0; i < TILE; ++i) sum[i] += weight*({CPP.text(s.factor, shifted)});",
                "    }",
                f"    for (int64_t i = 0; i < TILE; ++i) {self.stem(s.name)}[tile + i] += sum[i];",
                "}",
            ]
        return lines


def inner(lines) -> list[str]:
    """Lines of a text, further in."""
    return [f"    {line}" for line in lines]
