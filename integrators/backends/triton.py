"""Printer of a Program as Triton: one step of any number of tensors, in passes over their sites.

Every pass is a kernel over blocks of sites, then a kernel over chains. Blocks are cut from the global sites into whole
groups of four, each served by one Philox call.
"""

from ..functions import AT_ENDS
from ..passes import Loop, Plan, is_by_site, subject
from ..program import Sum
from .kernel_expressions import TRITON
from .kernel_names import Names
from .template import filled, inner, template

MODULE = template("triton_module.py.in")
KERNEL = template("triton_kernel.py.in")
PLACE_OF_SITES = template("triton_sites.py.in").splitlines()
PLACE_OF_CHAINS = template("triton_chains.py.in").splitlines()


def triton_source(plan: Plan, number: str = "fp32") -> str:
    """The text of the kernels of a plan: `sites_i_j` and `chain_i_j` for pass j of segment i.

    `number`: Triton's name for the dtype of the state, "fp32" or "fp64". Constants of a step are arguments of this
    dtype.
    """
    writer = _Writer(plan)
    constants = "".join(f', constant{k}: "{number}"' for k, _ in enumerate(plan.constants))
    kernels = []

    def kernel(name, place, body):
        return filled(KERNEL, name=name, constants=constants, place=place, body=body)

    for i, segment in enumerate(plan.segments):
        for j, p in enumerate(segment.passes):
            if p.sites:
                body = writer.over_sites(p.sites)
                kernels.append(kernel(f"sites_{i}_{j}", PLACE_OF_SITES, body))
            if p.chain:
                body = writer.over_chains(p.chain)
                kernels.append(kernel(f"chain_{i}_{j}", PLACE_OF_CHAINS, body))
    title = f"{plan.program.recipe.name}: {plan.program.scheme}"
    module = filled(MODULE, title=title)
    if plan.program.calls(*AT_ENDS):
        module += "\nfrom integrators.backends.triton_prelude import folded, turned, wrapped"
    return "\n\n\n".join([module + "\n", *kernels]) + "\n"


class _Writer:
    """Writer of loops, with names for all symbols."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.stem = Names().stem
        self.draws = {d: k for k, d in enumerate(plan.program.draws)}

    def over_sites(self, loop: Loop) -> list[str]:
        """The lines of a loop over sites, for one block of sites."""
        stem = self.stem
        lines = self._constants(loop)
        for s in filter(is_by_site, loop.constants):
            address = self._begin("per_site", self.plan.constants.index(s), "begin")
            lines.append(f"{stem(s)} = tl.load({address} + at, mask=mask, other=1)")
        lines += [f"{stem(s)} = tl.load({self._number(s, loop.side(s))})" for s in loop.numbers]
        lines += [f"{stem(s)} = tl.load({self._array(s, loop.side(s))}, mask=mask, other=1)" for s in loop.loads]
        lines += [line for d in loop.draws for line in self._draw(d)]
        lines += [f"{stem(s)} = {self._write(e)}" for s, e in loop.once]
        lines += [self._assignment(s, value, loop) for s, value in zip(loop.statements, loop.values)]
        return lines + [f"tl.store({self._array(s, 'out')}, {stem(s)}, mask=mask)" for s in loop.stores]

    def over_chains(self, loop: Loop) -> list[str]:
        """The lines of a loop over chains, for one block of chains."""
        stem = self.stem
        count = len(loop.sums)
        lines = self._constants(loop)
        sums = enumerate(loop.sums)
        lines += [f"{stem(s)} = total_of(sums, items, chain, {count}, {k}, CHAINS).to(R)" for k, s in sums]
        lines += [f"{stem(s)} = tl.load({self._number(s, loop.side(s))})" for s in loop.loads]
        lines += [line for d in loop.draws for line in self._draw_of_chain(d)]
        lines += [self._assignment(s, value, loop) for s, value in zip(loop.statements, loop.values)]
        stored = (*loop.sums, *loop.stores)
        return lines + [f"tl.store({self._number(s, 'out')}, {stem(s)}, mask=mask)" for s in stored]

    def _constants(self, loop):
        numbers = [s for s in loop.constants if not is_by_site(s)]
        lines = [f"{self.stem(s)} = zero + constant{self.plan.constants.index(s)}" for s in numbers]
        return lines + (["n = zero + sites"] if loop.counts_sites else [])

    def _begin(self, table, row, start="start"):
        """The text of the address of a block's values."""
        return f"begin_of({table}, {row}, parts, part, {start}, R, ALIGNED)"

    def _array(self, s, side):
        return f"{self._begin(f'array_{side}', self.plan.arrays.index(s))} + spot"

    def _number(self, s, side):
        return f"tl.load(number_{side} + {self.plan.numbers.index(s)}).to(tl.pointer_type(R)) + chain"

    def _draw(self, d):
        """Lines that load or draw a random number, by site or by chain."""
        if not d.is_vector:
            return self._draw_of_chain(d)
        k = self.draws[d]
        loaded = f"tl.load({self._begin('drawn', k)} + spot, mask=mask, other=0)"
        return self._given_or_drawn(d, loaded, f"{d.kind}s(seed, step, group, above, {k}, chain_of_group, FEW, R)")

    def _draw_of_chain(self, d):
        k = self.draws[d]
        loaded = f"tl.load(tl.load(drawn + {k} * parts).to(tl.pointer_type(R)) + chain)"
        return self._given_or_drawn(d, loaded, f"one_{d.kind}(seed, step, {k}, first_chain + chain, R)")

    def _given_or_drawn(self, d, loaded, drawn):
        name = self.stem(d)
        return ["if GIVEN:", *inner([f"{name} = {loaded}"]), "else:", *inner([f"{name} = {drawn}"])]

    def _assignment(self, statement, value, loop):
        text = self._typed(value)
        if not isinstance(statement, Sum):
            return f"{self.stem(subject(statement))} = {text}"
        of_block = f"tl.where(mask, (zero + ({text})).to(tl.float64), 0.0)"
        place = f"sums, row, rows, {len(loop.sums)}, {loop.sums.index(statement.name)}"
        return f"put_total({of_block}, {place}, GROUPS // WIDTH)"

    def _typed(self, e):
        """The text of a value of type R, also for a literal."""
        return self._write(e) if e.free_symbols else f"zero + ({self._write(e)})"

    def _write(self, e):
        return TRITON.text(e, self.stem)
