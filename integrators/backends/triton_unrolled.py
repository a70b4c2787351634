"""Printer of a Program as Triton: trajectories of many chains on a symbolic energy of few sites, K steps in one launch.

A chain is a lane, its state stays in registers: one number for each site of a vector block. In a step the kernel reads
constants from memory, and writes kept states.
"""

from collections.abc import Callable, Collection, Sequence

from sympy import Expr, Symbol

from recipe.symbols import Block, num_data

from ..data_sums import rows_in_batch, taken_apart
from ..domains import bounds
from ..functions import AT_ENDS
from ..passes import is_by_site
from ..program import Program
from ..streams import BATCH
from .kernel_energy import symbolic_energy
from .kernel_expressions import TRITON
from .template import filled, inner, template
from .unrolled import Unrolled, check_unrolled, sites_of

LANGUAGE = "triton"
MODULE = template("triton_unrolled_module.py.in")
RUN = template("triton_unrolled.py.in")
GRADIENT = template("triton_unrolled_gradient.py.in")
FUNCTIONS = [
    *("braked", "normal_of_step", "of_step", "open_unit", "pair", "phi1", "power_of", "put", "row_of", "shared_words"),
    *("sign_of", "tanh_of", "uniform_of_step", "words", "words_of_step"),
]
COUNTS = {num_data: Symbol("all_rows"), rows_in_batch: Symbol("rows_here")}


def unrolled_kernels(program: Program, sites: int) -> str:
    """The text of `run`, which moves every chain by some steps, and of `gradient`, for a carried gradient.

    Raises Unsupported for a Program without such a text, as `cpp_unrolled.unrolled_source` does.
    """
    check_unrolled(program, sites, LANGUAGE)
    return _Writer(program, sites).text()


class _Writer(Unrolled):
    """Writer of the text."""

    language = LANGUAGE
    comment = "#"
    dialect = TRITON
    plain: Collection[Symbol] = ()  # symbols printed by their own name
    evaluations = 0  # evaluations of the gradient on a batch so far in the text of a step
    started = " - (step == started).to(tl.int64)"  # counts the evaluation by `gradient`

    def at(self, s: Symbol, site: int) -> str:
        """The name of a symbol at a site."""
        if s in self.plain and not isinstance(s, Block):
            return s.name
        return f"{self.names.stem(s)}s{site}" if is_by_site(s) else self.names.stem(s)

    def let(self, name: str, text: str) -> str:
        """A line that declares a name with a value."""
        return f"{name} = {text}"

    put = let

    def own(self, lines: Sequence[str]) -> list[str]:
        """Lines with names that no other line reads."""
        return list(lines)

    def value(self, e: Expr, name: Callable[[Symbol], str]) -> str:
        """The text of a value in the dtype of the state."""
        text = super().value(e, name)
        return text if e.free_symbols else f"zero + ({text})"

    def text(self) -> str:
        """The whole text."""
        program = self.program
        body = self.body()
        numbers = [self.at(s, i) for s, i in self.rows]
        run = filled(
            RUN,
            sites=str(self.sites),
            load=[self._load(r) for r in range(len(self.rows))],
            read=self._read() or ["pass"],
            words=[self._shared_words(number, d, "first_step") for number, d in enumerate(program.draws)],
            before=[f"before{r} = {x}" for r, x in enumerate(numbers)],
            noise=[line for number, d in enumerate(program.draws) for line in self._noise(number, d)],
            body=body,
            everything=" + ".join(self.at(b, i) for b, i in self.entries),
            inside="".join(f" & {TRITON.inside(b, self.at(b, i))}" for b, i in self.entries if bounds(b)),
            stay=[f"{x} = tl.where(fine, {x}, before{r})" for r, x in enumerate(numbers)],
            keep=[f"put({self.at(b, i)}, row, places, {r}, chains, mask)" for r, (b, i) in enumerate(self.entries)],
            store=[self._store(r) for r in range(len(self.rows))],
        )
        names = FUNCTIONS + (["folded", "turned", "wrapped"] if program.calls(*AT_ENDS) else [])
        module = filled(MODULE, title=f"{program.recipe.name}: {program.scheme}", functions=", ".join(names))
        return "\n\n\n".join([module, run, *([self._gradient()] if program.carries else [])]) + "\n"

    def _read(self):
        return [f"{self.at(s, i)} = tl.load(constants + {j}).to(R)" for j, (s, i) in enumerate(self.constants)]

    def _load(self, row):
        return f"{self.at(*self.rows[row])} = tl.load(state + {row} * chains + chain, mask=mask, other=0)"

    def _store(self, row):
        return f"tl.store(state + {row} * chains + chain, {self.at(*self.rows[row])}, mask=mask)"

    def _noise(self, number, draw):
        """Lines that draw the numbers of one step."""
        if self.shared(draw) > 1:
            return self._shared_noise(number, draw)
        lines = []
        for group in self.groups(draw):
            lines.append(f"w0, w1, w2, w3 = words(seed, step, tl.full((), {group}, tl.uint32), 0, {number}, who)")
            names = [self.at(draw, 4 * group + i) for i in range(self.in_group(draw, group))]
            lines += self._numbers(draw, names)
        return lines

    def _shared_noise(self, number, draw):
        """Lines that draw the numbers of one step from words that several steps share."""
        words, sites = self._kept_words(draw), self.number_of_sites(draw)
        lines = [f"if step % {self.shared(draw)} == 0:", *inner([self._shared_words(number, draw, "step")])]
        if sites == 1:
            return [*lines, f"{self.at(draw, 0)} = {draw.kind}_of_step({words}, step, R)"]
        names = [self.at(draw, i) for i in range(sites)]
        return [*lines, f"w0, w1 = of_step({words}, step, {sites})", *self._numbers(draw, names)]

    def _shared_words(self, number, draw, step):
        """A line that draws the words shared by several steps; nothing for draws without shared words."""
        if self.shared(draw) == 1:
            return ""
        return f"{self._kept_words(draw)} = shared_words(seed, {step}, {number}, who, {self.number_of_sites(draw)})"

    def _kept_words(self, draw):
        """The names of words kept from step to step."""
        return ", ".join(f"{self.names.stem(draw)}r{i}" for i in range(4))

    def _numbers(self, draw, names):
        """Lines that compute random numbers from the words of a group."""
        if draw.kind == "uniform":
            return [f"{name} = open_unit(w{i}, R)" for i, name in enumerate(names)]
        pairs = [(names[i : i + 2] + ["other"])[:2] for i in range(0, len(names), 2)]
        return [f"{one}, {other} = pair(w{2 * k}, w{2 * k + 1}, R)" for k, (one, other) in enumerate(pairs)]

    # ---- energies of data

    def _derivatives(self, names, order):
        energy = symbolic_energy(self.program, LANGUAGE)
        if not energy.data:
            return super()._derivatives(names, order)
        if order == 2:
            raise self.no_form("a Hessian diagonal of data")
        slopes = [self.at(g, i) for _, g in names for i in sites_of(g, self.sites)]
        here = self._coordinates(energy)
        sums = taken_apart([f.xreplace(here) for f in (energy.gradient if order else (energy.value,))])
        self.plain = {*here.values(), *COUNTS.values()}
        formulas = [f.xreplace(COUNTS) for f in sums.derivatives]
        values = [(formulas[0], i) for i in range(len(slopes))] if energy.is_sitewise else [(f, 0) for f in formulas]
        lines = [self.let(self.names.stem(t.name), self._sum(t.integrand)) for t in sums.chain]
        lines += self._over_rows(energy, sums, drawn=order > 0)
        lines += [self.put(slope, self.write(f, i)) for slope, (f, i) in zip(slopes, values)]
        self.plain = set()
        return lines

    def _coordinates(self, energy):
        """The text of an energy's coordinates: the block, or the names of its numbers."""
        targets = self.program.recipe.targets
        if energy.is_sitewise:
            return {energy.coordinates[0]: targets[0]}
        places = [(b, i) for b in targets for i in sites_of(b, self.sites)]
        return {x: Symbol(self.at(b, i), real=True) for x, (b, i) in zip(energy.coordinates, places)}

    def _over_rows(self, energy, sums, drawn):
        """Lines that sum over the rows of a batch, or of all data."""
        places = {s: list(sites_of(s.name, self.sites)) for s in sums.rows}
        lines = [f"{self.at(s.name, i)} = tl.zeros((LANES,), R)" for s in sums.rows for i in places[s]]
        read = []
        for k, d in enumerate(energy.data):
            column = f"tl.load(columns + {k}).to(tl.pointer_type(R)) + nth"
            of_site = f"{column} * {self.sites}" if d.is_vector else column
            read += [f"{self.at(d, i)} = tl.load({of_site} + {i})" for i in sites_of(d, self.sites)]
        read += [self.let(self.names.stem(t.name), self._sum(t.integrand)) for t in sums.row]
        for j, s in enumerate(sums.rows):
            read.append(self.let(f"weight{j}", self.write(s.weight)))
            read += [f"{self.at(s.name, i)} += weight{j}*({self.write(s.factor, i)})" for i in places[s]]
        if not drawn:
            return [*lines, "all_rows = zero + rows", "rows_here = all_rows", "for nth in range(rows):", *inner(read)]
        draw = f"{BATCH[0]} - {self.evaluations}{self.started}"
        self.evaluations += 1
        return [
            *lines,
            "all_rows = zero + rows",
            "rows_here = zero + batch",
            *(f"b{k} = tl.zeros((LANES,), tl.uint32)" for k in range(4)),
            f"draw = {draw}",
            "for r in range(batch):",
            "    nth = tl.cast(r, tl.int64)",
            "    if DRAWN:",
            "        if r % 4 == 0:",
            "            b0, b1, b2, b3 = words_of_step(seed, step, tl.cast(r // 4, tl.uint32), 0, draw, who, FEW)",
            "        nth = row_of(b0, b1, b2, b3, r, step, rows, FEW)",
            *inner(read),
        ]

    def _gradient(self):
        """The text of `gradient`: rows of the carried derivatives of U, from rows of the target."""
        targets = self.program.recipe.targets
        self.evaluations = 0
        self.started = ""
        load = [self._load(r) for r, (b, _) in enumerate(self.rows) if b in targets]
        store = [self._store(r) for r, row in enumerate(self.rows) if row in self.carried]
        return filled(GRADIENT, sites=str(self.sites), load=load, body=self.of_carried(), store=store)
