"""Printer of a Program as Triton: one step of any number of tensors, in passes over their sites.

Every pass is a kernel over blocks of sites, then a kernel over chains. Blocks are cut from the global sites into whole
groups of four, each served by one Philox call.
"""

from ..functions import AT_ENDS
from ..passes import Loop, LoopPlan, is_by_site, subject
from ..program import Sum
from .kernel_expressions import TRITON
from .kernel_writer import Writer
from .template import filled, template

MODULE = template("triton_module.py.in")
KERNEL = template("triton_kernel.py.in")
PLACE_OF_SITES = template("triton_sites.py.in").splitlines()
PLACE_OF_CHAINS = template("triton_chains.py.in").splitlines()


def triton_source(plan: LoopPlan, number: str = "fp32", half: str = "") -> str:
    """The text of the kernels of a plan: `sites_i_j` and `chain_i_j` for pass j of segment i.

    `number`: Triton's name for the dtype of the state, "fp32" or "fp64". Constants of a step are arguments of this
    dtype. `half`: the dtype of gradients and of weights into which the target is also rounded, "bfloat16" say.
    """
    writer = _Writer(plan, half)
    constants = "".join(f', constant{k}: "{number}"' for k, _ in enumerate(plan.constants))
    module = filled(MODULE, title=writer.title)
    if plan.program.calls(*AT_ENDS):
        module += "\nfrom integrators.backends.triton_prelude import folded, turned, wrapped"
    texts = [f"{module}\n"]
    for i, segment in enumerate(plan.segments):
        for j, p in enumerate(segment.passes):
            of_sites = "sites", p.sites, PLACE_OF_SITES, writer.over_sites
            of_chains = "chain", p.chain, PLACE_OF_CHAINS, writer.over_chains
            for kind, loop, place, write in (of_sites, of_chains):
                if loop:
                    name = f"{kind}_{i}_{j}"
                    texts.append(filled(KERNEL, name=name, constants=constants, place=place, body=write(loop)))
    return "\n\n\n".join(texts) + "\n"


class _Writer(Writer):
    dialect = TRITON

    def __init__(self, plan: LoopPlan, half: str):
        super().__init__(plan.program)
        self.plan = plan
        self.half = half
        self.gradients = {g for statement in plan.program.gradients for _, g in statement.names} if half else set()
        self.target = plan.program.recipe.targets[0]
        stores = [p.sites for segment in plan.segments for p in segment.passes if self.target in p.sites.stores]
        self.last = stores[-1] if half and stores else None  # the loop that rounds the target

    def over_sites(self, loop: Loop) -> list[str]:
        """The lines of a loop over sites, for one block of sites."""
        lines = self._constants(loop)
        lines += [line for s in filter(is_by_site, loop.constants) for line in self._constant_by_site(s)]
        lines += self._loaded(loop.numbers, loop)
        lines += [f"{self.stem(s)} = {self._loaded_by_site(s, loop)}" for s in loop.loads]
        lines += [line for d in loop.draws for line in self._draw(d)]
        lines += [self.let(self.stem(s), self.write(e)) for s, e in loop.once]
        lines += self._statements(loop)
        lines += [f"tl.store({self._array(s, 'out')}, {self.stem(s)}, mask=mask)" for s in loop.stores]
        if loop is self.last:
            pointer = self._begin("array_out", len(self.plan.arrays), number=f"tl.{self.half}")
            rounded = f"{self.stem(self.target)}.to(tl.{self.half})"
            lines.append(f"tl.store({pointer} + spot, {rounded}, mask=mask)")
        return lines

    def _loaded_by_site(self, s, loop):
        is_half = s in self.gradients
        place = self._array(s, loop.side(s), f"tl.{self.half}" if is_half else "R")
        return f"tl.load({place}, mask=mask, other=1)" + (".to(R)" if is_half else "")

    def over_chains(self, loop: Loop) -> list[str]:
        """The lines of a loop over chains, for one block of chains."""
        lines = self._constants(loop)
        count = len(loop.sums)
        for k, s in enumerate(loop.sums):
            lines.append(f"{self.stem(s)} = total_of(sums, items, chain, {count}, {k}, ROUND).to(R)")
        lines += self._loaded(loop.loads, loop)
        lines += [line for d in loop.draws for line in self._draw_of_chain(d)]
        lines += self._statements(loop)
        stored = (*loop.sums, *loop.stores)
        return lines + [f"tl.store({self._number(s, 'out')}, {self.stem(s)}, mask=mask)" for s in stored]

    def _constants(self, loop):
        numbers = [s for s in loop.constants if not is_by_site(s)]
        lines = [f"{self.stem(s)} = zero + constant{self.plan.constants.index(s)}" for s in numbers]
        return lines + (["n = zero + sites"] if loop.counts_sites else [])

    def _constant_by_site(self, s):
        name, k = self.stem(s), self.plan.constants.index(s)
        loaded = f"tl.load({self._begin('per_site', k, 'begin')} + at, mask=mask, other=1)"
        return [f"if BY_SITE >> {k} & 1:", f"    {name} = {loaded}", "else:", f"    {name} = zero + constant{k}"]

    def _loaded(self, numbers, loop):
        return [f"{self.stem(s)} = tl.load({self._number(s, loop.side(s))})" for s in numbers]

    def _begin(self, table, row, start="start", number="R"):
        return f"begin_of({table}, {row}, parts, part, {start}, {number}, ALIGNED)"

    def _array(self, s, side, number="R"):
        return f"{self._begin(f'array_{side}', self.plan.arrays.index(s), number=number)} + spot"

    def _number(self, s, side):
        number = "tl.float64" if s in self.program.in_float64 else "R"
        return f"tl.load(number_{side} + {self.plan.numbers.index(s)}).to(tl.pointer_type({number})) + chain"

    def _draw(self, d):
        if not d.is_vector:
            return self._draw_of_chain(d)
        k = self.draws[d]
        source = f"{self._begin('drawn', k)} + spot, mask=mask, other=0"
        return self._lines_of_draw(d, source, f"{d.kind}s(seed, step, group, above, {k}, chain_of_group, FEW, R)")

    def _draw_of_chain(self, d):
        k = self.draws[d]
        source = f"tl.load(drawn + {k} * parts).to(tl.pointer_type(R)) + chain"
        return self._lines_of_draw(d, source, f"one_{d.kind}(seed, step, {k}, first_chain + chain, R)")

    def _lines_of_draw(self, d, source, drawn):
        name = self.stem(d)
        return ["if GIVEN:", f"    {name} = tl.load({source})", "else:", f"    {name} = {drawn}"]

    def _statements(self, loop):
        """Lines of the statements; literals are of type R."""
        lines = []
        for statement, value in zip(loop.statements, loop.values):
            text = self.write(value) if value.free_symbols else f"zero + ({self.write(value)})"
            if isinstance(statement, Sum):
                of_block = f"tl.where(mask, (zero + ({text})).to(tl.float64), 0.0)"
                place = f"sums, row, rows, {len(loop.sums)}, {loop.sums.index(statement.name)}"
                lines.append(f"put_total({of_block}, {place}, GROUPS // WIDTH)")
                continue
            wide = self.program.in_float64
            if value.free_symbols & wide and subject(statement) not in wide:
                text = f"({text}).to(R)"
            lines.append(self.let(self.stem(subject(statement)), text))
        return lines
