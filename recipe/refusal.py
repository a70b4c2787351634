"""Refusals of malformed declarations: each check yields where, what and what to do, and the first refusal is raised."""

import random
import sys
from collections.abc import Iterator

from sympy import (
    Basic,
    Derivative,
    DiracDelta,
    Expr,
    Heaviside,
    ImmutableMatrix,
    Piecewise,
    Pow,
    S,
    Symbol,
    acos,
    acosh,
    asin,
    atanh,
    expand,
    log,
    pi,
    postorder_traversal,
    sign,
)
from sympy.core.function import AppliedUndef

from .algebra import entries, is_continuous, vanishes
from .calculus import derivative
from .certificate import least_eigenvalue, minimum_eigenvalue
from .declared import OF_THE_STEP, Adapted, Block, Observed, Parameter, step_number, temperature, valid_name
from .derive import divergence_of_entry, gradient
from .domains import Domain
from .dynamics import Dynamics
from .errors import RecipeError, did_you_mean
from .operators import Operator
from .random_points import random_value
from .refused_jumps import SMALL_STEP, STATES, Refusals, jumps
from .refused_operators import fields, named_entries, operators, products, spheres
from .scheme import all_letters, scheme
from .symbols import OPAQUE, Crossing, Partial, Potential, Total, is_site, masked

ROUNDING = 1e-12
CALLS_A_LEVEL = 9  # nested Python calls per level of a formula, as sympy differentiates, expands and prints


def refuse_malformed(recipe: Dynamics) -> None:
    """Refuse a declaration that is not a sampler; RecursionError for formulas nested too deeply for sympy."""
    deepest = sys.getrecursionlimit() // CALLS_A_LEVEL
    level: set[Basic] = set(recipe.formulas)
    for _ in range(deepest + 1):
        level = {a for e in level for a in e.args}
    if level:
        raise RecursionError(f"{deepest} levels")
    for check in CHECKS:
        for where, what, do in check(recipe):
            raise RecipeError(f"{recipe.name}, {where}" if where else recipe.name, what, do=do)


# ---- symbols and names


def _symbols(recipe: Dynamics) -> Refusals:
    known = {b.name for b in recipe.state} | {s.name for s in recipe.symbols if isinstance(s, Parameter)}
    for s in sorted(recipe.symbols, key=str):
        if isinstance(s, Block) and not isinstance(s, Adapted) and s not in recipe.state:
            yield "", f"block '{s}' is used but is not in the state", f"Add {s} to state=."
        if not isinstance(s, (Block, Parameter, Observed)):
            do = f"Use the declared {s}." if s.name in known else did_you_mean(s.name, known)
            yield "", f"'{s}' is unbound: a plain sympy symbol, neither a block nor a parameter", do


def _names(recipe: Dynamics) -> Refusals:
    functions = {f for e in recipe.formulas for f in e.atoms(AppliedUndef)}
    names = [s.name for s in recipe.entries + recipe.parameters + recipe.observations]
    names += [valid_name(f.func.__name__, "function") for f in functions]
    names += sorted({U.name for U in recipe.potentials if U.name})
    for name in names:
        if names.count(name) > 1:
            yield "", f"two blocks, parameters, functions or potentials are named '{name}'", "Rename one."


def _potentials(recipe: Dynamics) -> Refusals:
    """Refuse a U of blocks other than the target, and totals in a state without vectors."""
    potentials = sorted(set().union(*(e.atoms(Potential) for e in recipe.formulas)), key=str)
    targets = set(recipe.targets)
    for U in potentials:
        is_part = len(potentials) > 1 or U.name
        if not (set(U.blocks) <= targets if is_part else set(U.blocks) == targets):
            do = f"Write potential({', '.join(b.name for b in recipe.targets)})."
            yield "", f"{U} is not the potential of the target {recipe.target}", do
    plain = [U for U in potentials if not (U.name or U.is_copy)]
    if plain and len(potentials) > 1:
        do = 'Name each, potential(x, name="prior"), or write U, V = copies(x, y) of one energy.'
        yield "", f"{plain[0]} stands beside other potentials", do
    if not any(b.is_vector for b in recipe.state) and any(e.has(Total) for e in recipe.formulas):
        yield "", "total() has no sites to sum: every block is a scalar", "Drop total()."


def _words(recipe: Dynamics) -> Refusals:
    """Refuse a word with a letter that no piece and no jump has; the certificate asks whether anything moves."""
    words = () if recipe.idle else (recipe.scheme, *recipe.schemes.values())
    for word in filter(None, words):
        scheme(word, [*all_letters(recipe), *recipe.jumps])
    yield from ()


# ---- inputs, adaptations, periods and values per site


def _inputs(recipe: Dynamics) -> Refusals:
    read = set().union(*(e.free_symbols for e in (recipe.H, recipe.D, recipe.Q, recipe.supplied)))
    for s in sorted(read, key=str):
        if isinstance(s, Observed):
            what = f"the observation '{s}' is used in H, D, Q or supplied, where it would be taken for a constant"
            yield "", what, f"Let an adapted quantity follow it: adapt={{...: {s}}}."
        if s == step_number:
            yield "", "H, D, Q or supplied read step_number", "Only adaptations may."


def _weights(recipe: Dynamics) -> Refusals:
    """Refuse weights that are not one number of the kept state, or are adapted to the step that led there."""
    psi = recipe.weights
    if psi is None:
        return
    if is_site(psi):
        yield "weights", f"{psi} has one value per site, but a draw has one weight", f"Wrap it: total({psi})."
    if vanishes(psi):
        yield "weights", f"{psi} is 0 at every draw", "A weight is positive somewhere."
    kinds = (Partial, Derivative, AppliedUndef, Crossing, Observed, Operator)
    read = sorted(map(str, psi.atoms(*kinds) | psi.free_symbols & {*OF_THE_STEP} - {temperature}))
    if read or psi.has(Potential) and recipe.has_several_potentials:
        what = f"they read {', '.join(read) or 'one of several potentials'}, which kept states do not tell"
        yield "weights", what, "Write them of blocks, adapted quantities, parameters and U; let adapt= follow others."
    if recipe.order == "same_step" and psi.has(Adapted):
        what = "with order='same_step' a kept state has what was adapted to the step before"
        yield "weights", what, "Leave out order."
    value, at = minimum_eigenvalue(ImmutableMatrix([[psi]]), points=STATES, fixed=SMALL_STEP)
    if value < -ROUNDING:
        do = " for every U, which may be below 0: log(1 + exp(U)), say." if psi.has(Potential) else "."
        yield "weights", f"they are {value:.3g} at {at}", f"A weight is >= 0{do}"


def _adaptations(recipe: Dynamics) -> Refusals:
    """Refuse adapted quantities without an update, a fitting domain, or a start from parameters and grad(U)."""
    for a in recipe.adapted:
        if a not in recipe.adapt:
            yield "adapt", f"no update of {a} is given", f"Write adapt={{{a}: ...}}, or make it a parameter."
        if a.domain.is_discrete or a.domain.wraps or a.domain.reflects:
            what = "an adapted quantity is not binary, and has no way back from an end"
            yield f"{a}", what, "Use another domain."
        start = a.start.xreplace({g: S.One for g in a.start.atoms(Partial)})
        for s in sorted(start.free_symbols, key=str):
            if isinstance(s, (Block, Observed)):
                yield f"start of {a}", f"it reads {s}", "It may read parameters and grad(U)."
        for what, e in (("start", a.start), ("update", recipe.adapt.get(a, a))):
            if is_site(e) and not a.is_vector:
                do = f"Wrap it in total(), or declare {a} with like={recipe.targets[0]}."
                yield f"{what} of {a}", f"{e} has one value per site, but {a} is one number", do


def _periods(recipe: Dynamics) -> Refusals:
    for b in recipe.state:
        if b.domain.wraps:
            for where, e in (("H", recipe.H), *((f"{entry}", entry.formula) for entry in named_entries(recipe))):
                yield from ((where, what, do) for what, do in _other_period(e, b, b.domain))


def refuse_other_period(where: str, e: Expr, angle: Symbol, circle: Domain) -> None:
    """Refuse a formula without the period of an angle on a circle; opaque parts are assumed to have the period."""
    for what, do in _other_period(e, angle, circle):
        raise RecipeError(where, what, do=do)


def _other_period(e: Expr, angle: Symbol, circle: Domain) -> Iterator[tuple[str, str]]:
    period = circle.width
    known, _ = masked(e, Potential, Partial, AppliedUndef, Derivative)
    for here in (True, False):
        change = expand(_gone_round(known, angle, period, here) - known)
        if change != 0 and not vanishes(change):
            what = f"it changes by {change} when {angle} goes round once, by {period}"
            cosine = f"cos({2 * pi / period * angle})"
            yield what, f"Use functions of that period, such as {cosine}, or declare {angle} as real."


def _gone_round(e: Expr, angle: Symbol, period: Expr, here: bool) -> Expr:
    """The formula at a site after one turn of an angle: the angle of this site (`here`), or of another site."""
    outside, sums = masked(e, Total)
    if here:
        outside = outside.xreplace({angle: angle + period})
    after = {}
    for name, total in sums.items():
        integrand = _gone_round(total.integrand, angle, period, here=True)
        after[name] = total + integrand - total.integrand if is_site(angle) else Total(integrand)
    return outside.xreplace(after)


def _places(recipe: Dynamics) -> Refusals:
    """Refuse categories with drift or noise, values per site of one number, and noise of a vector and a scalar."""
    for i, b in enumerate(recipe.state):
        if b.domain.is_discrete and (any(recipe.D[i, :]) or any(recipe.Q[i, :])):
            do = f'Let it jump: jumps={{"J": refresh({b})}}.'
            yield f"{b}", f"it is {b.domain.in_words}, and has no drift and no noise", do
    if is_site(recipe.H):
        loose = next(t for t in recipe.H.as_ordered_terms() if is_site(t))
        yield "H", f"{loose} has one value per site, but H is one number per chain", f"Wrap it: total({loose})."
    for entry in named_entries(recipe):
        matrix, a, b, formula = entry
        if not a.is_vector and not b.is_vector and is_site(formula):
            yield f"{entry}", f"{formula} has one value per site, but both blocks are scalars", "Wrap it in total()."
        if matrix == "D" and a.is_vector != b.is_vector:
            what = "noise shared by a vector and a scalar block is not supported"
            yield f"{entry}", what, "Couple them by Q instead."


# ---- derivatives


def _corners(recipe: Dynamics) -> Refusals:
    """Refuse entries that lack a derivative in Gamma."""
    for (i, j), entry in entries(recipe.D + recipe.Q).items():
        slope = divergence_of_entry(entry, recipe.state[j])
        rough = [f for f in slope.atoms(sign, Heaviside, DiracDelta) if f.free_symbols & set(recipe.state)]
        rough = [f for f in rough if not _vanishes_there(slope, f)]
        if rough or slope.has(S.NaN, S.ComplexInfinity):
            kink = rough[0].args[0] if rough else slope
            what = f"it is undefined where {kink} = 0, because {entry} has no derivative there"
            do = "Use a smooth function, such as sqrt(1 + theta**2)."
            yield f"Gamma[{recipe.state[i]}]", what, do


def _vanishes_there(slope: Expr, f: Expr) -> bool:
    """Whether a slope has no jump where sign(k) or Heaviside(k) has one, as Max(0, k)*Heaviside(k)."""
    if isinstance(f, DiracDelta):
        return False
    jump, _ = masked(slope.xreplace({f: S.One}) - slope.xreplace({f: -S.One}), Partial)
    return bool(jump.xreplace({f.args[0]: S.Zero}).is_zero)


def _discontinuities(recipe: Dynamics) -> Refusals:
    """Refuse discontinuous formulas, except discontinuities in categories."""
    smooth = tuple(b for b in recipe.state if not b.domain.is_discrete)
    in_matrices = ((f"{entry}", entry.formula, (entry.row, entry.column)) for entry in named_entries(recipe))
    along = ((f"transport[{b}]", e, (b,)) for b, e in zip(recipe.state, recipe.transport, strict=True))
    for where, e, blocks in (("H", recipe.H, smooth), *in_matrices, *along):
        for choice in e.atoms(Piecewise):
            if not is_continuous(choice, blocks):
                what = f"{choice} is not seen to be continuous, and a jump has no derivative"
                yield where, what, f"Use a continuous function{'' if where[0] == 'D' else ', or Max and Min'}."
        for jump in e.atoms(sign, Heaviside):
            if jump.free_symbols & set(blocks):
                what = f"{jump} is not continuous, and a jump has no derivative"
                yield where, what, "Use a continuous function, or Abs, Max and Min."
    gradient(recipe.H, recipe.state)  # raises for an H that reads more of U than U and its gradient


# ---- signs


def _not_real(recipe: Dynamics) -> Refusals:
    """Refuse entries of D, Q and supplied that are not real at every state, such as roots of negative numbers."""
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q), ("supplied", recipe.supplied)):
        for (i, j), entry in entries(matrix).items():
            if i > j:
                continue
            for part in filter(_may_be_complex, postorder_traversal(entry)):
                at = _complex_at(part)
                if at:
                    do = 'Use a function real at every state, or declare the sign: vector(..., domain="positive").'
                    yield f"{label}[{recipe.state[i]}, {recipe.state[j]}]", f"{part} is not real at {at}", do


def _may_be_complex(e: Basic) -> bool:
    """Whether a function is not real for some arguments, and not known to be real here."""
    partial = isinstance(e, (log, asin, acos, acosh, atanh)) or isinstance(e, Pow) and not e.exp.is_Integer
    return partial and not e.is_real


def _complex_at(part: Expr) -> str:
    """A random state at which a function is not real; empty if there is none."""
    outside, _ = masked(part, *OPAQUE)
    symbols = sorted(outside.free_symbols, key=lambda s: s.name)
    draw = random.Random(2015)
    for _ in range(STATES):
        at = {s: random_value(s, draw) for s in symbols} | SMALL_STEP
        value = complex(outside.xreplace({s: S(v) for s, v in at.items()}).evalf())
        if abs(value.imag) > ROUNDING * abs(value):
            return ", ".join(f"{s.name} = {at[s]:.3g}" for s in symbols)
    return ""


def _semidefinite(recipe: Dynamics) -> Refusals:
    """Refuse D, supplied, or D - supplied that is not positive semidefinite."""
    defaults = {s: s.default for s in recipe.parameters if s.default is not None} | SMALL_STEP

    def least(matrix: ImmutableMatrix) -> tuple[float, str]:
        return minimum_eigenvalue(matrix, points=STATES, fixed=defaults, requires=recipe.requires)

    do = "A diffusion needs D >= 0 for every state and every allowed parameter."
    rows = [("D", "it", least_eigenvalue(recipe, points=STATES, fixed=SMALL_STEP), do)]
    if any(recipe.supplied):
        rows.append(("supplied", "it", least(recipe.supplied), "What a gradient supplies is a covariance."))
        do = "The gradient cannot supply more noise than D."
        rows.append(("supplied", "D - supplied", least(recipe.D - recipe.supplied), do))
    for where, matrix, (value, at), do in rows:
        if value < -ROUNDING:
            yield where, f"{matrix} is not positive semidefinite: an eigenvalue is {value:.3g} at {at}", do


def _normalisable(recipe: Dynamics) -> Refusals:
    """Refuse auxiliary blocks in which exp(-H) has no finite integral."""
    for block in recipe.momenta + recipe.thermostats:
        curvature = derivative(derivative(recipe.H, block), block)
        if block.domain.is_real and not curvature.has(block) and curvature.is_nonpositive:
            what = f"exp(-H) is not normalisable in {block}: d2H/d{block}2 = {curvature}"
            yield "H", what, f"Give {block} a confining energy, e.g. {block}**2/2."


CHECKS = (
    _symbols,
    _names,
    _potentials,
    operators,
    products,
    fields,
    spheres,
    _inputs,
    _weights,
    _adaptations,
    _periods,
    _places,
    _corners,
    _discontinuities,
    _not_real,
    _semidefinite,
    jumps,
    _normalisable,
    _words,
)
