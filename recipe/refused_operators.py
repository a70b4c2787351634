"""Refusals of operators: taken for numbers, of several in one entry, of unknown divergence or root; outer products."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sympy import Add, Expr, S, diff, expand

from .algebra import entries
from .declared import Block
from .dynamics import Dynamics
from .ensembles import Outer
from .fields import fields_of, operators_of, outer_products
from .operators import Applied, bare, parts
from .refused_jumps import Refusals
from .spheres import is_multiple, projections_of
from .symbols import Crossing, is_site


class Entry(NamedTuple):
    """A nonzero entry of D or Q."""

    matrix: str
    row: Block
    column: Block
    formula: Expr

    def __str__(self):
        return f"{self.matrix}[{self.row}, {self.column}]"


def named_entries(recipe: Dynamics) -> Iterator[Entry]:
    """The nonzero entries of D and of Q."""
    for name, matrix in (("D", recipe.D), ("Q", recipe.Q)):
        for (i, j), formula in entries(matrix).items():
            yield Entry(name, recipe.state[i], recipe.state[j], formula)


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
    for entry in named_entries(recipe):
        matrix, a, b, formula = entry
        if matrix == "D":
            formula += recipe.supplied[recipe.state.index(a), recipe.state.index(b)]
        if formula.has(Crossing):
            do = "Write the operator alone, {theta: M}."
            yield f"{entry}", f"{formula} is no matrix: an operator is applied in it", do
        if operators_of(formula) and not outer_products(formula):
            yield from _matrix_over_sites(Entry(matrix, a, b, formula))


def products(recipe: Dynamics) -> Refusals:
    """Refuse outer products but for nonnegative numbers times them, on the diagonal of D, alone in their row."""
    formulas = (recipe.H, *recipe.supplied, *recipe.transport, *recipe.adapt.values(), *recipe.formulas_of_jumps)
    for e in (e for e in formulas if outer_products(e)):
        yield "", f"an outer product stands in {e}", "It is an entry of D: D={theta: outer(v)}."
    for entry in named_entries(recipe):
        matrix, a, b, formula = entry
        absent = dict.fromkeys(outer_products(formula), S.Zero)
        if not absent:
            continue
        i, where = recipe.state.index(a), f"{entry}"
        if matrix == "Q" or a != b or not a.is_vector or len(entries(recipe.D[i, :])) > 1:
            yield where, f"{formula} is the noise of one vector alone", "Put it on the diagonal of D, alone in its row."
        rest = formula.xreplace(absent)
        if operators_of(rest) or recipe.supplied[i, i] != 0:
            what = f"the square root of {formula} is not known beside an operator, or less supplied noise"
            yield where, what, "Leave the other out."
        terms = expand(formula)
        numbers = {x: terms.coeff(x) for x in absent}
        if expand(formula - rest - Add(*(c * x for x, c in numbers.items()))) != 0:
            yield where, f"{formula} is no sum of numbers times outer products", "Let each stand alone in a term."
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
        formulas = (*recipe.supplied, *recipe.adapt.values(), *recipe.formulas_of_jumps)
        if any(M in e.free_symbols for e in formulas):
            what = f"it stands in supplied, in an update or in a jump, and moves with {M.at}"
            yield where, what, f"A function of {M.at} stands in H, D or Q."
        forms = {x.formula for x in recipe.H.atoms(Applied) if M in x.free_symbols} - {M, 1 / M}
        if forms:
            what = f"H has {min(map(str, forms))}, whose slope by {M.at} is not known"
            yield where, what, f"Apply {M} or its inverse, of a momentum."
    for entry in named_entries(recipe):
        _, a, b, formula = entry
        for M in sorted(fields_of(formula), key=str):
            if M.at not in (a, b):
                continue
            if a != b:
                what = f"{M} is a function of {M.at}, and stands in the row of {a} and the column of {b}"
                yield f"{entry}", what, f"Let it stand in the row and the column of {M.at}, or in neither."
            if diff(formula, M).free_symbols & {M, *recipe.state}:
                do = "Give all that moves as one operator, with its divergence."
                yield f"{entry}", f"the divergence of {formula} does not follow from that of {M}", do


def _matrix_over_sites(entry: Entry) -> Refusals:
    """Refuse an entry with operators that is not a matrix over sites, or that lacks a known root in D."""
    matrix, a, b, formula = entry
    where = f"{entry}"
    if not (a.is_vector and b.is_vector):
        yield where, f"{formula} is a matrix over sites, of which a scalar has none", "Use a vector."
    for F, factor in parts(formula):
        if is_site(factor):
            what = f"{factor} varies by site, and does not commute with {F}"
            yield where, what, "Give their product as one operator."
        yield from _operator_formula(where, F, (a, b))
    if matrix == "D" and (a != b or len(operators_of(formula)) > 1):
        what = f"the square root of {formula} is not known" if a == b else "two vectors share the noise of an operator"
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
    formulas = (recipe.H, *recipe.supplied, *recipe.adapt.values(), *recipe.formulas_of_jumps)
    for P in sorted(set().union(*map(projections_of, formulas)), key=str):
        yield f"{P}", "it stands outside of D and Q as if it were a number", f"Apply it to a vector: {P}(p)."
    for entry in named_entries(recipe):
        matrix, a, b, formula = entry
        on_spheres = {x for x in (a, b) if x.domain.is_sphere}
        projected = {P.on for P in projections_of(formula)}
        if not (on_spheres or projected):
            continue
        u = min(on_spheres or projected, key=str)
        where = f"{entry}"
        if on_spheres != projected or not is_multiple(formula):
            what = f"{formula} is no number times project({u}), with which alone {u} stays on the sphere"
            yield where, what, f"Write {{({u}, theta): project({u})/(n - 1)}} or {{{u}: eta*project({u})}}."
        if not (a.is_vector and b.is_vector) or matrix == "D" and a != b:
            yield where, f"{u} shares its noise, or moves with a scalar", f"Couple {u} to a vector by Q."
