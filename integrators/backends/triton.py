"""Printing a Program as Triton: one step of any number of tensors, in passes over their sites.

Every pass is a kernel over blocks of sites, then one over chains. Blocks are cut from the global sites, so that each
holds whole groups of four, which share the words of one Philox call.
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
PLACE_OF_CHAIN = ["chain = tl.program_id(0).to(tl.int64)"]


def triton_source(plan: Plan) -> str:
    """The text of the kernels of a plan: `sites_i_j` and `chain_i_j` for pass j of segment i."""
    writer = _Writer(plan)
    kernels = []
    for i, segment in enumerate(plan.segments):
        for j, p in enumerate(segment.passes):
            if p.sites:
                body = writer.over_sites(p.sites)
                kernels.append(filled(KERNEL, name=f"sites_{i}_{j}", place=PLACE_OF_SITES, body=body))
            if p.chain:
                body = writer.over_chains(p.chain)
                kernels.append(filled(KERNEL, name=f"chain_{i}_{j}", place=PLACE_OF_CHAIN, body=body))
    title = f"{plan.program.recipe.name}: {plan.program.scheme}"
    module = filled(MODULE, title=title)
    if plan.program.calls(*AT_ENDS):
        module += "\nfrom integrators.backends.triton_prelude import folded, turned, wrapped"
    return "\n\n\n".join([module + "\n", *kernels]) + "\n"


class _Writer:
    """The lines of loops, with the names of all that they read and write."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.stem = Names().stem
        self.draws = {d: k for k, d in enumerate(plan.program.draws)}

    def over_sites(self, loop: Loop) -> list[str]:
        """The lines of a loop over sites, for a block of them."""
        stem = self.stem
        lines = self._constants(loop)
        for s in filter(is_by_site, loop.constants):
            address = self._address("per_site", self.plan.constants.index(s))
            lines.append(f"{stem(s)} = tl.load({address} + at, mask=mask, other=1)")
        lines += [f"{stem(s)} = tl.load({self._number(s, loop.side(s))})" for s in loop.numbers]
        lines += [f"{stem(s)} = tl.load({self._array(s, loop.side(s))}, mask=mask, other=1)" for s in loop.loads]
        lines += [line for d in loop.draws for line in self._draw(d)]
        lines += [f"{stem(s)} = {self._write(e)}" for s, e in loop.once]
        lines += [self._assignment(s, value, loop) for s, value in zip(loop.statements, loop.values)]
        return lines + [f"tl.store({self._array(s, 'out')}, {stem(s)}, mask=mask)" for s in loop.stores]

    def over_chains(self, loop: Loop) -> list[str]:
        """The lines of a loop over chains, for one of them."""
        stem, count = self.stem, len(loop.sums)
        lines = self._constants(loop)
        lines += [f"{stem(s)} = total_of(sums, items, chain, {count}, {k}).to(R)" for k, s in enumerate(loop.sums)]
        lines += [f"{stem(s)} = tl.load({self._number(s, loop.side(s))})" for s in loop.loads]
        lines += [line for d in loop.draws for line in self._draw_of_chain(d)]
        lines += [self._assignment(s, value, loop) for s, value in zip(loop.statements, loop.values)]
        return lines + [f"tl.store({self._number(s, 'out')}, {stem(s)})" for s in (*loop.sums, *loop.stores)]

    def _constants(self, loop):
        lines = ["zero = tl.load(key).to(R)*0"]
        for s in loop.constants:
            if not is_by_site(s):
                lines.append(f"{self.stem(s)} = tl.load(constants + {self.plan.constants.index(s)}).to(R)")
        return lines + (["n = sites.to(R)"] if loop.counts_sites else [])

    def _address(self, table, row):
        """Where the values of a part begin."""
        return f"tl.load({table} + {row} * parts + part).to(tl.pointer_type(R))"

    def _array(self, s, side):
        return f"{self._address(f'array_{side}', self.plan.arrays.index(s))} + spot"

    def _number(self, s, side):
        return f"tl.load(number_{side} + {self.plan.numbers.index(s)}).to(tl.pointer_type(R)) + chain"

    def _draw(self, d):
        """Lines that load or draw a random number, of each site or of the chain."""
        if not d.is_vector:
            return self._draw_of_chain(d)
        k = self.draws[d]
        given = f"tl.load({self._address('drawn', k)} + spot, mask=mask, other=0)"
        return self._given_or_drawn(d, given, f"{d.kind}s(key, group, {k}, first_chain + chain, R)")

    def _draw_of_chain(self, d):
        k = self.draws[d]
        given = f"tl.load(tl.load(drawn + {k} * parts).to(tl.pointer_type(R)) + chain)"
        return self._given_or_drawn(d, given, f"one_{d.kind}(key, {k}, first_chain + chain, R)")

    def _given_or_drawn(self, d, given, drawn):
        name = self.stem(d)
        return ["if GIVEN:", *inner([f"{name} = {given}"]), "else:", *inner([f"{name} = {drawn}"])]

    def _assignment(self, statement, value, loop):
        text = self._typed(value)
        if not isinstance(statement, Sum):
            return f"{self.stem(subject(statement))} = {text}"
        place = f"sums + (chain * items + item) * {len(loop.sums)} + {loop.sums.index(statement.name)}"
        return f"tl.store({place}, tl.sum(tl.where(mask, (zero + ({text})).to(tl.float64), 0.0)))"

    def _typed(self, e):
        """The text of a value, which is of the type R even if it is a literal."""
        return self._write(e) if e.free_symbols else f"zero + ({self._write(e)})"

    def _write(self, e):
        return TRITON.text(e, self.stem)
