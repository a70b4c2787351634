"""Printing a Program as Triton: one step of any number of tensors, in passes over their sites.

Every pass is a kernel over blocks of sites, then one over chains. Blocks are cut from the global sites, so that each holds
whole groups of four, which share the words of one Philox call.
"""

from recipe import symbols
from recipe.symbols import Block

from ..passes import Layout, hoisted, is_by_site, is_read_first, subject
from ..program import Sum
from .cpp import Names, indented
from .kernel_expressions import TRITON

HEAD = '''"""{title}"""

import triton
import triton.language as tl

from integrators.backends.triton_prelude import (braked, normals, one_normal, one_uniform, phi1, power_of, sign_of, tanh_of,
                                                 total_of, uniforms)
'''
GIVEN = """item_part, item_block, part_sites, part_offset, array_in, array_out, number_in, number_out, drawn, per_site,
         constants, sums, key, parts, items, first_chain, sites, R: tl.constexpr, GROUPS: tl.constexpr, GIVEN: tl.constexpr"""


def triton_source(given: Layout) -> str:
    """The text of the kernels of a layout: `sites_i_j` and `chain_i_j` for pass j of segment i."""
    writer, program = _Writer(given), given.program
    kernels = [
        kernel
        for i, segment in enumerate(given.segments)
        for j, p in enumerate(segment.passes)
        for kernel in (writer.over_sites(f"{i}_{j}", p), writer.over_chains(f"{i}_{j}", p))
        if kernel
    ]
    return "\n\n".join([HEAD.format(title=f"{program.recipe.name}: {program.scheme}"), *kernels]) + "\n"


class _Writer:
    def __init__(self, given):
        self.layout, self.names, self.set = given, Names(), set()
        self.draws = {d: k for k, d in enumerate(given.program.draws)}

    def write(self, e):
        return TRITON.text(e, self.names.stem)

    def number(self, e):
        """The text of a value, which is of the type R even if it is a literal."""
        return self.write(e) if e.free_symbols else f"zero + ({self.write(e)})"

    def table(self, s, kind):
        return f"{kind}_{'out' if s in self.set or not isinstance(s, Block) else 'in'}"

    def constants(self, read, statements):
        lines = ["zero = tl.load(key).to(R)*0"]
        lines += [
            f"{self.names.stem(s)} = tl.load(constants + {j}).to(R)"
            for j, s in enumerate(self.layout.constants)
            if s in read and not is_by_site(s)
        ]
        if any(e.has(symbols.total(1)) for s in statements for e in s.values):
            lines.append("n = sites.to(R)")
        return lines

    def one(self, d):
        """The number of a chain, given or drawn."""
        k, stem = self.draws[d], self.names.stem(d)
        return [
            f"if GIVEN:\n        {stem} = tl.load(tl.load(drawn + {k} * parts).to(tl.pointer_type(R)) + chain)\n"
            f"    else:\n        {stem} = one_{d.kind}(key, {k}, first_chain + chain, R)"
        ]

    def over_sites(self, name, p):
        if not p.sites:
            return ""
        read = p.reads(p.sites)
        written = list(dict.fromkeys(s for s in map(subject, p.sites) if is_by_site(s)))
        loaded = [s for s in self.layout.arrays if s in read and is_read_first(s, p.sites)]
        mine = [s for s in written if isinstance(s, Block) or self.layout.outlives(s, p)]
        address = lambda table, k: f"tl.load({table} + {k} * parts + part).to(tl.pointer_type(R))"
        index = self.layout.arrays.index
        lines = self.constants(read, p.sites)
        lines += [
            f"{self.names.stem(s)} = tl.load({address('per_site', j)} + at, mask=mask, other=1)"
            for j, s in enumerate(self.layout.constants)
            if s in read and is_by_site(s)
        ]
        lines += [
            f"{self.names.stem(s)} = tl.load(tl.load({self.table(s, 'number')} + {k}).to(tl.pointer_type(R)) + chain)"
            for k, s in enumerate(self.layout.numbers)
            if s in read
        ]
        lines += [
            f"{self.names.stem(s)} = tl.load({address(self.table(s, 'array'), index(s))} + spot, mask=mask, other=1)"
            for s in loaded
        ]
        for d, k in self.draws.items():
            if d in read and is_by_site(d):
                lines.append(
                    f"if GIVEN:\n        {self.names.stem(d)} = tl.load({address('drawn', k)} + spot, mask=mask, other=0)\n"
                    f"    else:\n        {self.names.stem(d)} = {d.kind}s(key, group, {k}, first_chain + chain, R)"
                )
            elif d in read:
                lines += self.one(d)
        body, once, totals = [], {}, p.totals
        for s in p.sites:
            value = self.number(hoisted(s.values[0], once))
            if isinstance(s, Sum):
                body.append(
                    f"tl.store(sums + (chain * items + item) * {len(totals)} + {totals.index(s)}, "
                    f"tl.sum(tl.where(mask, (zero + ({value})).to(tl.float64), 0.0)))"
                )
            else:
                body.append(f"{self.names.stem(subject(s))} = {value}")
        body += [f"tl.store({address('array_out', index(s))} + spot, {self.names.stem(s)}, mask=mask)" for s in mine]
        self.set |= {s for s in mine if isinstance(s, Block)}
        lines += [f"{self.names.stem(s)} = {self.write(e)}" for e, s in once.items()]
        return f"""
@triton.jit
def sites_{name}({GIVEN}):
    item, chain = tl.program_id(0).to(tl.int64) % items, tl.program_id(0).to(tl.int64) // items
    part, block = tl.load(item_part + item), tl.load(item_block + item)
    group = block // 4 + tl.arange(0, GROUPS)
    at = block + tl.arange(0, 4 * GROUPS) - tl.load(part_offset + part)
    size = tl.load(part_sites + part)
    mask, spot = (at >= 0) & (at < size), chain * size + at
    {indented(lines + body, 4)}"""

    def over_chains(self, name, p):
        if not (p.chain or p.totals):
            return ""
        read, mine, totals = p.reads(p.chain), list(dict.fromkeys(map(subject, p.chain))), [t.name for t in p.totals]
        index = self.layout.numbers.index
        lines = self.constants(read, p.chain)
        lines += [
            f"{self.names.stem(t)} = total_of(sums, items, chain, {len(totals)}, {k}).to(R)"
            for k, t in enumerate(totals)
        ]
        lines += [
            f"{self.names.stem(s)} = tl.load(tl.load({self.table(s, 'number')} + {k}).to(tl.pointer_type(R)) + chain)"
            for k, s in enumerate(self.layout.numbers)
            if s in read and s not in totals and is_read_first(s, p.chain)
        ]
        lines += [line for d in self.draws if d in read for line in self.one(d)]
        lines += [f"{self.names.stem(subject(s))} = {self.number(s.value)}" for s in p.chain]
        lines += [
            f"tl.store(tl.load(number_out + {index(s)}).to(tl.pointer_type(R)) + chain, {self.names.stem(s)})"
            for s in [*totals, *mine]
        ]
        self.set |= {s for s in mine if isinstance(s, Block)}
        return f"""
@triton.jit
def chain_{name}({GIVEN}):
    chain = tl.program_id(0).to(tl.int64)
    {indented(lines or ["pass"], 4)}"""
