"""Printer of a Program as Triton: trajectories of many chains on a symbolic energy of few sites, K steps in one launch.

A chain is a lane, its state stays in registers: one number for each site of a vector block. In a step the kernel reads
constants from memory, and writes kept states.
"""

from collections.abc import Callable, Collection, Sequence

from sympy import Expr, Symbol

from recipe.symbols import Block, num_data

from ..data_sums import rows_in_batch, taken_apart
from ..functions import AT_ENDS
from ..program import Program
from ..streams import BATCH
from .expressions import derivatives_of
from .kernel_expressions import TRITON
from .template import filled, inner, template
from .unrolled import Unrolled, sites_of

MODULE = template("triton_unrolled_module.py.in")
RUN = template("triton_unrolled.py.in")
GRADIENT = template("triton_unrolled_gradient.py.in")
FUNCTIONS = [
    *("braked", "normal_of_step", "of_step", "open_unit", "pair", "phi1", "power_of", "put", "row_of", "shared_words"),
    *("exp_of", "sign_of", "tanh_of", "uniform_of_step", "words", "words_of_step"),
]
COUNTS = {num_data: Symbol("all_rows"), rows_in_batch: Symbol("rows_here")}


def unrolled_kernels(program: Program, sites: int) -> str:
    """The text of `run`, which moves every chain by some steps, and of `gradient`, for a carried gradient.

    Raises Unsupported as `Unrolled` does, and for a Hessian diagonal of data.
    """
    return _Writer(program, sites).text()


class _Writer(Unrolled):
    """Writer of the text.

    `plain`: symbols printed by their own name; `evaluations`: of the gradient on a batch so far in the text of a step;
    `started`: counts the evaluation by `gradient`.
    """

    dialect = TRITON
    plain: Collection[Symbol] = ()
    evaluations = 0
    started = " - (step == started).to(tl.int64)"

    def at(self, s: Symbol, site: int) -> str:
        """The name of a symbol at a site."""
        return s.name if s in self.plain and not isinstance(s, Block) else super().at(s, site)

    def value(self, e: Expr, name: Callable[[Symbol], str]) -> str:
        """The text of a value in the dtype of the state, also of a literal."""
        text = super().value(e, name)
        return text if e.free_symbols else f"zero + ({text})"

    def text(self) -> str:
        """The whole text."""
        program = self.program
        body = self.body()
        numbers = [self.at(s, i) for s, i in self.rows]
        constants = enumerate(self.constants)
        run = filled(
            RUN,
            sites=str(self.sites),
            load=[self._load(r) for r in range(len(self.rows))],
            read=[f"{self.at(s, i)} = tl.load(constants + {j}).to(R)" for j, (s, i) in constants] or ["pass"],
            words=[self._shared_words(d, "first_step") if self.shared(d) > 1 else "" for d in program.draws],
            before=[f"before{r} = {x}" for r, x in enumerate(numbers)],
            noise=[line for draw in program.draws for line in self._noise(draw)],
            body=body,
            everything=self.everything(),
            inside=self.inside(),
            stay=[f"{x} = tl.where(fine, {x}, before{r})" for r, x in enumerate(numbers)],
            keep=[f"put({self.at(b, i)}, row, places, {r}, chains, mask)" for r, (b, i) in enumerate(self.entries)],
            store=[self._store(r) for r in range(len(self.rows))],
        )
        names = FUNCTIONS + (["folded", "turned", "wrapped"] if program.calls(*AT_ENDS) else [])
        module = filled(MODULE, title=self.title, functions=", ".join(names))
        return "\n\n\n".join([module, run, *([self._gradient()] if program.carries else [])]) + "\n"

    def _load(self, row):
        return f"{self.at(*self.rows[row])} = tl.load(state + {row} * chains + chain, mask=mask, other=0)"

    def _store(self, row):
        return f"tl.store(state + {row} * chains + chain, {self.at(*self.rows[row])}, mask=mask)"

    def _noise(self, draw):
        groups = self.groups(draw)
        if self.shared(draw) > 1:
            return self._shared_noise(draw, groups[0])
        lines = []
        for group, sites in enumerate(groups):
            place = f"tl.full((), {group}, tl.uint32), 0, {self.draws[draw]}, who"
            lines += [f"w0, w1, w2, w3 = words(seed, step, {place})", *self._numbers(draw, sites)]
        return lines

    def _shared_noise(self, draw, sites):
        """Lines that draw the numbers of one step from words that several steps share."""
        words = self._kept_words(draw)
        lines = [f"if step % {self.shared(draw)} == 0:", *inner([self._shared_words(draw, "step")])]
        if len(sites) == 1:
            return [*lines, f"{self.at(draw, 0)} = {draw.kind}_of_step({words}, step, R)"]
        return [*lines, f"w0, w1 = of_step({words}, step, {len(sites)})", *self._numbers(draw, sites)]

    def _shared_words(self, draw, step):
        """A line that draws the words shared by several steps."""
        sites = len(sites_of(draw, self.sites))
        return f"{self._kept_words(draw)} = shared_words(seed, {step}, {self.draws[draw]}, who, {sites})"

    def _kept_words(self, draw):
        return ", ".join(f"{self.stem(draw)}r{i}" for i in range(4))

    def _numbers(self, draw, sites):
        """Lines that compute the random numbers of some sites from the words of their group."""
        names = [self.at(draw, i) for i in sites]
        if draw.kind == "uniform":
            return [f"{name} = open_unit(w{i}, R)" for i, name in enumerate(names)]
        pairs = [(names[i : i + 2] + ["other"])[:2] for i in range(0, len(names), 2)]
        return [f"{one}, {other} = pair(w{2 * k}, w{2 * k + 1}, R)" for k, (one, other) in enumerate(pairs)]

    # ---- energies of data

    def derivatives(self, names: Sequence[tuple[Symbol, Symbol]], order: int) -> list[str]:
        """Lines that evaluate U or its gradient, with sums over the rows of a batch or of all data."""
        energy = self.energy
        if not energy.data:
            return super().derivatives(names, order)
        if order == 2:
            raise self.refusal("there is no Triton form of a Hessian diagonal of data")
        coordinates = self.coordinates(energy)
        sums = taken_apart([f.xreplace(coordinates) for f in derivatives_of(energy, order)])
        self.plain = {*coordinates.values(), *COUNTS.values()}
        formulas = [f.xreplace(COUNTS) for f in sums.derivatives]
        slopes = self.names_of(names)
        values = [(formulas[0], i) for i in range(len(slopes))] if energy.is_sitewise else [(f, 0) for f in formulas]
        lines = [self.let(self.stem(t.name), self.sum(t.integrand)) for t in sums.chain]
        lines += self._over_rows(energy, sums, drawn=order > 0)
        lines += [self.put(slope, self.write_at(f, i)) for slope, (f, i) in zip(slopes, values)]
        self.plain = ()
        return lines

    def _over_rows(self, energy, sums, drawn):
        """Lines that sum over the rows of a batch, or of all data."""
        lines = [f"{self.at(s, i)} = tl.zeros((LANES,), R)" for s, i in self.places(s.name for s in sums.rows)]
        read = []
        for k, d in enumerate(energy.data):
            column = f"tl.load(columns + {k}).to(tl.pointer_type(R)) + nth"
            of_site = f"{column} * {self.sites}" if d.is_vector else column
            read += [f"{self.at(d, i)} = tl.load({of_site} + {i})" for _, i in self.places([d])]
        read += [self.let(self.stem(t.name), self.sum(t.integrand)) for t in sums.row]
        for j, s in enumerate(sums.rows):
            read.append(self.let(f"weight{j}", self.write_at(s.weight)))
            terms = [(self.at(name, i), self.write_at(s.factor, i)) for name, i in self.places([s.name])]
            read += [f"{name} += weight{j}*({factor})" for name, factor in terms]
        if not drawn:
            return [*lines, "all_rows = zero + rows", "rows_here = all_rows", "for nth in range(rows):", *inner(read)]
        self.evaluations += 1
        return [
            *lines,
            "all_rows = zero + rows",
            "rows_here = zero + batch",
            *(f"b{k} = tl.zeros((LANES,), tl.uint32)" for k in range(4)),
            f"draw = {BATCH[0]} - {self.evaluations - 1}{self.started}",
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
