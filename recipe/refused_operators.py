"""Refusals of operators: taken for numbers, of several in one entry, of unknown divergence or root; outer products."""

from collections.abc import Iterable, Iterator

from sympy import Add, Expr, S, diff, expand

from .algebra import entries
from .declared import Block
from .dynamics import Dynamics
from .ensembles import Outer
from .operators import Applied, bare, fields_of, operators_of, outer_products, parts
from .refused_jumps import Refusals
from .spheres import is_multiple, projections_of
from .symbols import Crossing, is_site


def named_entries(recipe: Dynamics) -> Iterator[tuple[str, Block, Block, Expr]]:
    """The nonzero entries of D and Q: place, row, column, entry."""
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q)):
        for (i, j), entry in entries(matrix).items():
            a, b = recipe.state[i], recipe.state[j]
            yield f"{label}[{a}, {b}]", a, b, entry


def operators(recipe: Dynamics) -> Refusals:
    """Refuse operators used as numbers, and entries that are no matrices over the sites of real vectors."""
    if not recipe.operators:
        return
    updates = (("an update", e) for e in recipe.adapt.values())
    for what, e in (("H", recipe.H), *updates, *(("a jump", e) for e in recipe.formulas_of_jumps)):
        for M in sorted(bare(e), key=str):
            do = f"Apply it to a vector: {M}(p), {M}.inverse(p)."
            yield f"operator {M}", f"it stands in {what} as if it were a number", do
        for x in e.atoms(Applied):
            yield from _operator_formula(f"{x}", x.formula, [b for b in recipe.state if x.argument.has(b)])
    for where, a, b, entry in named_entries(recipe):
        if where[0] == "D":
            entry += recipe.supplied[recipe.state.index(a), recipe.state.index(b)]
        if entry.has(Crossing):
            do = "Write the operator alone, {theta: M}."
            yield where, f"{entry} is no matrix: an operator is applied in it", do
        if operators_of(entry) and not outer_products(entry):
            yield from _matrix_over_sites(where, a, b, entry)


def products(recipe: Dynamics) -> Refusals:
    """Refuse outer products but for nonnegative numbers times them, on the diagonal of D, alone in their row."""
    others = (recipe.H, *recipe.supplied, *recipe.transport, *recipe.adapt.values(), *recipe.formulas_of_jumps)
    for e in (e for e in others if outer_products(e)):
        yield "", f"an outer product stands in {e}", "It is an entry of D: D={theta: outer(v)}."
    for where, a, b, entry in named_entries(recipe):
        own = dict.fromkeys(outer_products(entry), S.Zero)
        if not own:
            continue
        i = recipe.state.index(a)
        if where[0] == "Q" or a != b or not a.is_vector or len(entries(recipe.D[i, :])) > 1:
            yield where, f"{entry} is the noise of one vector alone", "Put it on the diagonal of D, alone in its row."
        rest = entry.xreplace(own)
        if operators_of(rest) or recipe.supplied[i, i] != 0:
            what = f"the square root of {entry} is not known beside an operator, or less supplied noise"
            yield where, what, "Leave the other out."
        terms = expand(entry)
        numbers = {x: terms.coeff(x) for x in own}
        if expand(entry - rest - Add(*(c * x for x, c in numbers.items()))) != 0:
            yield where, f"{entry} is no sum of numbers times outer products", "Let each stand alone in a term."
        for x, c in numbers.items():
            if not c.is_nonnegative or is_site(c) or c.free_symbols & {*recipe.state} or c.has(Outer):
                what = f"it has {c} times {x}, and not a number from 0 on"
                yield where, what, f"Let what moves be in the vector: outer(sqrt(c)*({x.vector}))."
            yield from _operator_formula(where, S.One, [s for s in x.vector.free_symbols if s in recipe.state])


def fields(recipe: Dynamics) -> Refusals:
    """Refuse fields in updates, jumps and supplied noise, and entries of D and Q whose divergence does not follow."""
    for M in recipe.fields:
        where = f"operator {M}"
        if M.at not in recipe.state:
            yield where, f"it is a function of {M.at}, which is no block", "Put it into the state."
        others = (*recipe.supplied, *recipe.adapt.values(), *recipe.formulas_of_jumps)
        if any(M in e.free_symbols for e in others):
            what = f"it stands in supplied, in an update or in a jump, and moves with {M.at}"
            yield where, what, f"A function of {M.at} stands in H, D or Q."
        forms = {x.formula for x in recipe.H.atoms(Applied) if M in x.free_symbols} - {M, 1 / M}
        if forms:
            what = f"H has {min(map(str, forms))}, whose slope by {M.at} is not known"
            yield where, what, f"Apply {M} or its inverse, of a momentum."
    for where, a, b, entry in named_entries(recipe):
        for M in sorted(fields_of(entry), key=str):
            if M.at not in (a, b):
                continue
            if a != b:
                what = f"{M} is a function of {M.at}, and stands in the row of {a} and the column of {b}"
                yield where, what, f"Let it stand in the row and the column of {M.at}, or in neither."
            if diff(entry, M).free_symbols & {M, *recipe.state}:
                do = "Give all that moves as one operator, with its divergence."
                yield where, f"the divergence of {entry} does not follow from that of {M}", do


def _matrix_over_sites(where: str, a: Block, b: Block, entry: Expr) -> Refusals:
    """Refuse an entry with operators that is not a matrix over sites, or that lacks a known root in D."""
    if not (a.is_vector and b.is_vector):
        yield where, f"{entry} is a matrix over sites, of which a scalar has none", "Use a vector."
    for F, factor in parts(entry):
        if is_site(factor):
            what = f"{factor} varies by site, and does not commute with {F}"
            yield where, what, "Give their product as one operator."
        yield from _operator_formula(where, F, (a, b))
    if where[0] == "D" and (a != b or len(operators_of(entry)) > 1):
        what = f"the square root of {entry} is not known" if a == b else "two vectors share the noise of an operator"
        yield where, what, "Give what stands there as one operator, of one vector."


def _operator_formula(where: str, F: Expr, blocks: Iterable[Block]) -> Refusals:
    """Refuse formulas of several operators, formulas that change with the state, and blocks that are not real."""
    if len(operators_of(F)) > 1:
        yield where, f"the operators in {F} do not commute", "Apply one after the other, A(B(p))."
    for moving in sorted((s for s in F.atoms(Block)), key=str):
        yield where, f"{F} changes with {moving}", f"Let {moving} multiply an operator."
    for b in blocks:
        if not b.domain.is_real:
            yield where, f"{b} is {b.domain.in_words}", "Operators act on vectors of real numbers."


def spheres(recipe: Dynamics) -> Refusals:
    """Refuse rows and columns of a block of the sphere that are not multiples of its projection."""
    for u in (u for u in recipe.spheres if not u.is_vector):
        yield f"{u}", "it is a scalar, and a sphere is of the sites of a vector", f"Declare vector({u.name!r}, ...)."
    others = (recipe.H, *recipe.supplied, *recipe.adapt.values(), *recipe.formulas_of_jumps)
    for P in sorted(set().union(*map(projections_of, others)), key=str):
        yield f"{P}", "it stands outside of D and Q as if it were a number", f"Apply it to a vector: {P}(p)."
    for where, a, b, entry in named_entries(recipe):
        own = {x for x in (a, b) if x.domain.is_sphere}
        projections = projections_of(entry)
        if not (own or projections):
            continue
        u = min(own or {P.on for P in projections}, key=str)
        if own != {P.on for P in projections} or not is_multiple(entry):
            what = f"{entry} is no number times project({u}), with which alone {u} stays on the sphere"
            yield where, what, f"Write {{({u}, theta): project({u})/(n - 1)}} or {{{u}: eta*project({u})}}."
        if not (a.is_vector and b.is_vector) or where[0] == "D" and a != b:
            yield where, f"{u} shares its noise, or moves with a scalar", f"Couple {u} to a vector by Q."
