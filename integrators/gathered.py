"""Terms of a Program gathered for machines whose memory is slow: less to load, and fewer products of a site."""

from collections import Counter, defaultdict
from dataclasses import replace

from sympy import Add, Expr, S, Symbol

from .passes import is_by_site
from .program import Let, Local, Program, rewritten, symbols_read


def gathered(program: Program) -> Program:
    """The Program with one load for all multiples of a parameter per site, and one term for all multiples of a product.

    >>> from integrators import compile
    >>> from samplers import SGLDSAMarginal
    >>> program = compile(SGLDSAMarginal).program
    >>> str(program).count("sparse/"), str(gathered(program)).count("sparse/")
    (5, 0)
    """
    constants, new = _without_multiples(program)
    stages = []
    for stage in program.stages:
        statements = [rewritten(s, new) for s in stage.statements]
        statements = [rewritten(s, {e: _joined(e) for e in s.values}) for s in statements]
        stages.append(replace(stage, statements=tuple(statements)))
    return replace(program, constants=constants, stages=tuple(stages))


def _without_multiples(program):
    """Constants with multiples of a parameter per site replaced by their factors; the products, by the multiples."""
    parts = {s.name: _parts(s.value) for s in program.constants if isinstance(s, Let) and is_by_site(s.name)}
    times = Counter([*symbols_read(program.statements), *(x for _, x in parts.values())])
    loads = {x for x, count in times.items() if x.is_Symbol and count > 1}
    new: dict[Symbol, Expr] = {}
    constants = []
    for s in program.constants:
        if isinstance(s, Let) and s.name in parts and parts[s.name][1] in loads:
            (factor, x), name = parts[s.name], Local(s.name.name, False, True)
            new[s.name], s = name * x, Let(name, factor)
        constants.append(rewritten(s, new))
    return tuple(constants), new


def _parts(e):
    """The factors of an expression that have one value per chain, and those that have one per site."""
    return e.as_independent(*filter(is_by_site, e.free_symbols), as_Add=False)


def _joined(e):
    """The expression with terms of sums that differ by constants joined; numbers stay apart: 1 + h would be rounded."""

    def join(whole):
        sums: dict[tuple, Expr] = defaultdict(lambda: S.Zero)
        for term in whole.args:
            factor, product = _parts(term)
            sums[product, factor.is_number] += factor
        joined = Add(*(factor * product for (product, _), factor in sums.items()))
        return joined if len(sums) < len(whole.args) else whole

    return e.replace(lambda x: x.is_Add and any(map(is_by_site, x.free_symbols)), join)
