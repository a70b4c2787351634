"""Printer of a Program as C++: trajectories of many chains on a symbolic energy of few sites, K steps in one call.

A chain is a lane of the vector unit, its state a set of numbers: one for each site of a vector block. The text is a
step of one chain, with a statement for every site; the compiler vectorises it over chains. Constants of the step come
from Python, in float64.
"""

from collections.abc import Callable, Sequence

from sympy import Expr, Symbol

from ..passes import hoisted, is_by_site
from ..program import Program
from ..variates import Variate
from .cpp_sweep import prelude_of
from .kernel_expressions import CPP
from .template import filled, inner, template
from .unrolled import Unrolled

RUN = template("unrolled.cpp.in")
GRADIENT = template("unrolled_gradient.cpp.in")


def unrolled_source(program: Program, sites: int) -> str:
    """The text of `run`, which moves every chain by some steps, and of `gradient`, for a carried gradient.

    Raises Unsupported as `Unrolled` does.
    """
    return _Writer(program, sites).text()


class _Writer(Unrolled):
    dialect = CPP

    def at(self, s: Symbol, site: int) -> str:
        """The name of a symbol at a site; of a random number in the buffer of a lane block, at the lane l."""
        if isinstance(s, Variate):
            return f"{self.stem(s)}[{site if s.is_vector else 0}][l]"
        return super().at(s, site)

    def scope(self, lines: Sequence[str]) -> list[str]:
        """Lines in a scope of their own."""
        return ["{", *inner(lines), "}"]

    def value(self, e: Expr, name: Callable[[Symbol], str]) -> str:
        """The text of a value; subexpressions by chain are parenthesised, as sites and lanes share them."""
        symbols: dict[Expr, Symbol] = {}
        formula = hoisted(e, symbols) if any(map(is_by_site, e.free_symbols)) else e
        shared = {s: f"({CPP.text(part, name)})" for part, s in symbols.items()}
        return CPP.text(formula, lambda s: shared.get(s) or name(s))

    def text(self) -> str:
        """The whole text."""
        program = self.program
        body = self.body()
        run = filled(
            RUN,
            title=self.title,
            sites=str(self.sites),
            rows=str(len(self.rows)),
            arrays=[f"alignas(64) R {self.stem(d)}buffer[{4 * len(self.groups(d))}][W];" for d in program.draws],
            read=[self.let(self.at(s, i), f"c[{j}]") for j, (s, i) in enumerate(self.constants)],
            noise=[line for draw in program.draws for line in self._noise(draw)],
            load=self._load(),
            body=body,
            everything=self.everything(),
            inside=self.inside(),
            store=[f"s[{r}][l] = ok ? {self.at(s, i)} : s[{r}][l];" for r, (s, i) in enumerate(self.rows)],
        )
        gradient = f"\n{filled(GRADIENT, body=self._gradient())}\n" if program.carries else ""
        return f"{prelude_of(program)}\n\n{run}\n{gradient}"

    def _load(self):
        """Lines that name the numbers of a chain, and declare derivatives that are not carried."""
        lines = [f"R {self.at(s, i)} = s[{r}][l];" for r, (s, i) in enumerate(self.rows)]
        return lines + [f"R {self.at(g, i)} = 0;" for g, i in self.slopes if (g, i) not in self.carried]

    def _noise(self, draw):
        """Lines that draw the numbers of one step for a lane block, unless an earlier step has drawn shared words."""
        stem = self.stem(draw)
        groups = self.groups(draw)
        drawn = [line for number, sites in enumerate(groups) for line in self._numbers_of_group(draw, number, sites)]
        if self.shared(draw) > 1:
            drawn = [f"if (k == 0 || {stem}place.at == 0) {{", *inner(drawn), "}"]
        return [
            f"const Place {stem}place = place_of({groups[-1].stop}, 0, first_step + k);",
            *drawn,
            f"R(* {stem})[W] = {stem}buffer + {stem}place.at;",
        ]

    def _numbers_of_group(self, draw, group, sites):
        """Lines that draw the numbers of a group of sites, for all steps that share the group."""
        stem = self.stem(draw)
        numbers = [f"{stem}buffer[{4 * group + i}][l]" for i in range(4)]
        wanted = len(sites) * self.shared(draw)
        lines = [f"{numbers[i]} = open_unit<R>(w[{i}][l]);" for i in range(wanted)]
        if draw.kind == "normal":
            pairs = range(0, wanted, 2)
            lines = [f"pair_of_normals(w[{i}][l], w[{i + 1}][l], {numbers[i]}, {numbers[i + 1]});" for i in pairs]
        who = f"{self.draws[draw]}, (uint32_t)(first_chain + chain), {stem}place.step, seed"
        return [
            f"words<W, true>(w, {stem}place.group + {group}, {who});",
            "#pragma omp simd",
            "for (int l = 0; l < W; ++l) {",
            *inner(lines),
            "}",
        ]

    def _gradient(self):
        """The statements of `gradient`: rows of the carried derivatives of U, from rows of the target."""
        rows = {(s, i): f"state[{r} * chains + chain]" for r, (s, i) in enumerate(self.rows)}
        targets = self.program.recipe.targets
        lines = [self.let(self.at(b, i), row) for (b, i), row in rows.items() if b in targets]
        lines += [f"R {self.at(g, i)} = 0;" for g, i in self.carried]
        return [*lines, *self.of_carried(), *(f"{rows[g, i]} = {self.at(g, i)};" for g, i in self.carried)]
