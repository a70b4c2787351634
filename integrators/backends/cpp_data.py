"""Printer of an energy's derivatives as C++: loops over the sites of a chain, and over the rows of its batch."""

from collections.abc import Callable

from sympy import Mul, Symbol

from recipe import Energy
from recipe.data_totals import Datum
from recipe.symbols import Block, num_data

from ..data_sums import rows_in_batch, taken_apart
from ..passes import is_by_site
from .expressions import derivatives_of
from .kernel_expressions import CPP
from .kernel_writer import Names
from .template import filled, inner, template

DERIVATIVE = template("derivative.cpp.in")
AT_ONCE = range(4)  # rows with sums over sites taken together, for independent instructions


def derivative_source(energy: Energy, order: int) -> str:
    """The text of `derivative_k`, k = 0, 1, 2, for one chain: out = d^k U at `at`, on the chosen rows or on all."""
    return filled(DERIVATIVE, order=str(order), body=_Derivative(energy, order).body())


class _Derivative(Names):
    """Writer of a derivative; `per_row`: symbols with one number per row, data first, then totals over sites."""

    dialect = CPP

    def __init__(self, energy: Energy, order: int):
        super().__init__()
        self.energy = energy
        self.of_sites = energy.is_sitewise and order > 0
        self.sums = taken_apart(derivatives_of(energy, order))
        self.known = {c: "at[i]" if isinstance(c, Block) else f"at[{j}]" for j, c in enumerate(energy.coordinates)}
        self.known |= {num_data: "R(data.num_data)", rows_in_batch: "R(data.batch)"}
        self.per_site = [d for d in energy.data if d.is_vector]
        self.per_row = [*(d for d in energy.data if not d.is_vector), *(t.name for t in self.sums.row)]

    def name(self, s: Symbol) -> str:
        """The text of a symbol, at the site i if it is by site."""
        if s in self.known:
            return self.known[s]
        return f"{self.stem(s)}[i]" if is_by_site(s) else self.stem(s)

    def body(self) -> list[str]:
        """The lines of the function."""
        lines = [line for t in self.sums.chain for line in self._total_of_chain(t)]
        for s in self.sums.rows:
            stem = self.stem(s.name)
            lines.append(f"alignas(64) R {stem}[WIDE] = {{}};" if s.name.is_vector else f"R {stem} = 0;")
        if self.energy.data:
            lines += self._over_blocks_of_rows()
        if self.of_sites:
            value = self.write(self.sums.derivatives[0])
            return [*lines, "#pragma omp simd", f"for (int64_t i = 0; i < S; ++i) out[i] = {value};"]
        return lines + [f"out[{j}] = {self.write(e)};" for j, e in enumerate(self.sums.derivatives)]

    def _total_of_chain(self, total):
        stem = self.stem(total.name)
        return [
            f"R {stem} = 0;",
            f"#pragma omp simd reduction(+:{stem})",
            f"for (int64_t i = 0; i < S; ++i) {stem} += {self.write(total.integrand)};",
        ]

    def _over_blocks_of_rows(self):
        totals = [line for t in self.sums.row for line in self._total_of_rows(t)]
        sums = [line for s in self.sums.rows if s.name.is_vector for line in self._sum_by_site(s)]
        return [
            "for (int64_t first = 0; first < data.batch; first += BLOCK) {",
            "    const int64_t m = data.batch - first < BLOCK ? data.batch - first : BLOCK;",
            *inner([*self._read_rows(), *totals, *self._weights(), *sums]),
            "}",
        ]

    def _read_rows(self):
        """Lines that read pointers and numbers of a block's rows; the last row repeats up to a multiple of four."""
        places = [f"const R* {self.stem(d)}from[BLOCK];" for d in self.per_site]
        places += [f"alignas(64) R {self.stem(s)}from[BLOCK];" for s in self.per_row]
        read = []
        for k, d in enumerate(self.energy.data):
            of_row = "+ row * WIDE" if d.is_vector else "[row]"
            read.append(f"{self.stem(d)}from[r] = data.columns[{k}] {of_row};")
        return [
            *places,
            "for (int64_t r = 0; r < (m + 3) / 4 * 4; ++r) {",
            "    const int64_t k = first + (r < m ? r : m - 1), row = chosen ? chosen[k] : k;",
            *inner(read),
            "}",
        ]

    def _total_of_rows(self, total):
        """Lines of the sum over sites of each row; products with a padded column are 0 beyond the sites."""
        padded = any(isinstance(f, Datum) and f.is_vector for f in Mul.make_args(total.integrand))
        read = []
        for s in (s for s in (*self.per_site, *self.per_row) if s in total.integrand.free_symbols):
            kind = "const R*" if s in self.per_site else "const R"
            read += [f"{kind} {self.stem(s)}r{j} = {self.stem(s)}from[r + {j}];" for j in AT_ONCE]
        return [
            "for (int64_t r = 0; r < m; r += 4) {",
            "    R sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0;",
            *inner(read),
            "#pragma omp simd reduction(+:sum_0, sum_1, sum_2, sum_3)",
            f"    for (int64_t i = 0; i < {'WIDE' if padded else 'S'}; ++i) {{",
            *(f"        sum_{j} += {CPP.text(total.integrand, self._name_in_row(j))};" for j in AT_ONCE),
            "    }",
            *(f"    {self.stem(total.name)}from[r + {j}] = sum_{j};" for j in AT_ONCE),
            "}",
        ]

    def _name_in_row(self, j: int) -> Callable[[Symbol], str]:
        """The names in the j-th of the rows taken together."""

        def name(s: Symbol) -> str:
            if s in self.per_site:
                return f"{self.stem(s)}r{j}[i]"
            return f"{self.stem(s)}r{j}" if s in self.per_row else self.name(s)

        return name

    def _weights(self):
        """Lines of the weight of each row in each sum; sums without a factor are completed here."""
        unweighted = [s for s in self.sums.rows if not s.name.is_vector]
        weighted = [s for s in self.sums.rows if s.name.is_vector]
        needed = {x for s in self.sums.rows for x in s.weight.free_symbols}
        lines = [f"const R {self.stem(s)} = {self.stem(s)}from[r];" for s in self.per_row if s in needed]
        lines += [f"{self.stem(s.name)} += {self.write(s.weight)};" for s in unweighted]
        lines += [f"{self.stem(s.name)}per[r] = {self.write(s.weight)};" for s in weighted]
        names = ", ".join(self.stem(s.name) for s in unweighted)
        return [
            *(f"alignas(64) R {self.stem(s.name)}per[BLOCK];" for s in weighted),
            f"#pragma omp simd reduction(+:{names})" if unweighted else "#pragma omp simd",
            "for (int64_t r = 0; r < m; ++r) {",
            *inner(lines),
            "}",
        ]

    def _sum_by_site(self, s):
        """Lines of the sum over rows of a weight times a factor, tile by tile of the sites."""
        needed = s.factor.free_symbols
        read = [f"const R {self.stem(d)} = {self.stem(d)}from[r];" for d in self.per_row if d in needed]
        read += [f"const R* {self.stem(d)} = {self.stem(d)}from[r] + tile;" for d in self.per_site if d in needed]
        read += [f"const R weight = {self.stem(s.name)}per[r];"]
        return [
            "for (int64_t tile = 0; tile < WIDE; tile += TILE) {",
            "    alignas(64) R sum[TILE] = {};",
            "    for (int64_t r = 0; r < m; ++r) {",
            '        asm volatile("" : "+r"(r));  // one row after the other keeps the sums of a tile in registers',
            *inner(inner(read)),
            "#pragma omp simd",
            f"        for (int64_t i = 0; i < TILE; ++i) sum[i] += weight*({CPP.text(s.factor, self._name_in_tile)});",
            "    }",
            f"    for (int64_t i = 0; i < TILE; ++i) {self.stem(s.name)}[tile + i] += sum[i];",
            "}",
        ]

    def _name_in_tile(self, s):
        return "at[tile + i]" if isinstance(s, Block) else self.name(s)
