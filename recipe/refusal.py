"""Refusals of malformed declarations: each function raises a RecipeError that says where, what, and what to do."""

import random
import sys
from collections.abc import Iterable, Iterator

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
    diff,
    expand,
    log,
    pi,
    postorder_traversal,
    sign,
    zeros,
)
from sympy.core.function import AppliedUndef

from .algebra import at_one_site, entries, is_continuous, random_value, vanishes
from .calculus import derivative
from .certificate import least_eigenvalue, minimum_eigenvalue
from .domains import Domain
from .dynamics import Dynamics
from .errors import RecipeError, did_you_mean
from .laws import Law, compared
from .marginal import eliminate_gaussians
from .operators import Applied, bare, fields_of, operators_of, parts
from .swaps import Swap
from .symbols import (
    OPAQUE,
    Adapted,
    Block,
    Crossing,
    Observed,
    Parameter,
    Partial,
    Potential,
    Total,
    is_site,
    masked,
    step_number,
    step_size,
    valid_name,
)

STATES = 64
ROUNDING = 1e-12
SMALL_STEP = {step_size: 1e-9}
CALLS_A_LEVEL = 9  # nested Python calls per level of a formula, as sympy differentiates, expands and prints


def refuse_malformed(recipe: Dynamics) -> None:
    """Refuse a declaration that is not a sampler."""
    for check in (
        _nested,
        _symbols,
        _names,
        _potentials,
        _operators,
        _inputs,
        _adaptations,
        _periods,
        _values_per_site,
        _latents,
        _entries_per_site,
        _corners,
        _discontinuities,
        _more_of_U,
        _not_real,
        _diffusion,
        _jumps,
        _supplied,
        _normalisable,
    ):
        check(recipe)


def _matrix_entries(recipe: Dynamics) -> Iterator[tuple[str, Block, Block, Expr]]:
    """The nonzero entries of D and Q: letter of the matrix, row, column, entry."""
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q)):
        for (i, j), entry in entries(matrix).items():
            yield label, recipe.state[i], recipe.state[j], entry


# ---- symbols and names


def _nested(recipe: Dynamics) -> None:
    """Raise RecursionError for formulas nested too deeply for sympy, here or at compilation."""
    deepest = sys.getrecursionlimit() // CALLS_A_LEVEL
    for formula in recipe.formulas:
        level: list[Basic] = [formula]
        for _ in range(deepest):
            level = list({a for e in level for a in e.args})
            if not level:
                break
        else:
            raise RecursionError(f"{deepest} levels")


def _symbols(recipe: Dynamics) -> None:
    """Refuse blocks missing in the state, and plain symbols."""
    known = {b.name for b in recipe.state} | {s.name for s in recipe.symbols if isinstance(s, Parameter)}
    for s in sorted(recipe.symbols, key=str):
        if isinstance(s, Block) and not isinstance(s, Adapted) and s not in recipe.state:
            raise RecipeError(recipe.name, f"block '{s}' is used but is not in the state", do=f"Add {s} to state=.")
        if not isinstance(s, (Block, Parameter, Observed)):
            raise RecipeError(
                recipe.name,
                f"'{s}' is unbound: a plain sympy symbol, neither a block nor a parameter",
                do=f"Use the declared {s}." if s.name in known else did_you_mean(s.name, known),
            )


def _names(recipe: Dynamics) -> None:
    """Refuse duplicate names."""
    functions = {f for e in recipe.formulas for f in e.atoms(AppliedUndef)}
    names = [s.name for s in recipe.entries + recipe.parameters + recipe.observations]
    names += [valid_name(f.func.__name__, "function") for f in functions]
    names += sorted({U.name for U in recipe.potentials if U.name})
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(
                recipe.name, f"two blocks, parameters, functions or potentials are named '{name}'", do="Rename one."
            )


def _potentials(recipe: Dynamics) -> None:
    """Refuse a U of blocks other than the target, and totals in a state without vectors."""
    potentials = set().union(*(e.atoms(Potential) for e in recipe.formulas))
    for U in sorted(potentials, key=str):
        is_part = len(potentials) > 1 or U.name
        if not (set(U.blocks) <= {*recipe.targets} if is_part else set(U.blocks) == {*recipe.targets}):
            raise RecipeError(
                recipe.name,
                f"{U} is not the potential of the target {recipe.target}",
                do=f"Write potential({', '.join(b.name for b in recipe.targets)}).",
            )
    plain = [U for U in sorted(potentials, key=str) if not (U.name or U.is_copy)]
    if plain and len(potentials) > 1:
        advice = 'Name each, potential(x, name="prior"), or write U, V = copies(x, y) of one energy.'
        raise RecipeError(recipe.name, f"{plain[0]} stands beside other potentials", do=advice)
    if not any(b.is_vector for b in recipe.state) and any(e.has(Total) for e in recipe.formulas):
        raise RecipeError(recipe.name, "total() has no sites to sum: every block is a scalar", do="Drop total().")


# ---- operators


def _operators(recipe: Dynamics) -> None:
    """Refuse operators used as numbers, and operators that are not matrices over the sites of real vectors."""
    if not any(operators_of(e) for e in recipe.formulas):
        return
    of_jumps = (e for jump in recipe.jumps.values() for e in jump.formulas)
    numbers = [("H", recipe.H), *(("an update", e) for e in recipe.adapt.values()), *(("a jump", e) for e in of_jumps)]
    for what, e in numbers:
        for M in sorted(bare(e), key=str):
            do = f"Apply it to a vector: {M}(p), {M}.inverse(p)."
            raise RecipeError(f"{recipe.name}, operator {M}", f"it stands in {what} as if it were a number", do=do)
        for x in e.atoms(Applied):
            _formula_of_operators(f"{recipe.name}, {x}", x.formula, (b for b in recipe.state if x.argument.has(b)))
    _matrices_over_sites(recipe)
    _fields(recipe)


def _fields(recipe: Dynamics) -> None:
    """Refuse fields anywhere but as the only entry in their block's row of D or Q."""
    for M in recipe.fields:
        where = f"{recipe.name}, operator {M}"
        if M.at not in recipe.state:
            raise RecipeError(where, f"it is a function of {M.at}, which is no block", do="Put it into the state.")
        others = (recipe.H, *recipe.supplied, *recipe.adapt.values())
        of_jumps = (e for jump in recipe.jumps.values() for e in jump.formulas)
        if any(M in e.free_symbols for e in (*others, *of_jumps)):
            do = f"A function of {M.at} stands in D or Q alone."
            raise RecipeError(
                where, f"it stands in H, in supplied, in an update or in a jump, and moves with {M.at}", do=do
            )
    for label, a, b, entry in _matrix_entries(recipe):
        for M in sorted(fields_of(entry), key=str):
            where = f"{recipe.name}, {label}[{a}, {b}]"
            if not a == b == M.at:
                what = f"{M} is a function of {M.at}, and stands in the row of {a} and the column of {b}"
                raise RecipeError(where, what, do=f"Let it stand at {M.at} alone.")
            factor = diff(entry, M)
            if factor.free_symbols & {M, *recipe.state}:
                what = f"the divergence of {entry} does not follow from that of {M}"
                raise RecipeError(where, what, do="Give all that moves as one operator, with its divergence.")


def _matrices_over_sites(recipe: Dynamics) -> None:
    """Refuse entries with operators that are not matrices over sites; an entry of D includes the supplied noise."""
    for label, a, b, entry in _matrix_entries(recipe):
        where = f"{recipe.name}, {label}[{a}, {b}]"
        if label == "D":
            entry += recipe.supplied[recipe.state.index(a), recipe.state.index(b)]
        if entry.has(Crossing):
            what = f"{entry} is no matrix: an operator is applied in it"
            raise RecipeError(where, what, do="Write the operator alone, {theta: M}.")
        if operators_of(entry):
            _matrix_over_sites(where, label, a, b, entry)


def _matrix_over_sites(where: str, label: str, a: Block, b: Block, entry: Expr) -> None:
    """Refuse an entry with operators that is not a matrix over sites, or that lacks a known root in D."""
    if not (a.is_vector and b.is_vector):
        raise RecipeError(where, f"{entry} is a matrix over sites, of which a scalar has none", do="Use a vector.")
    for F, factor in parts(entry):
        if is_site(factor):
            what = f"{factor} varies by site, and does not commute with {F}"
            raise RecipeError(where, what, do="Give their product as one operator.")
        _formula_of_operators(where, F, (a, b))
    if label == "D" and (a != b or len(operators_of(entry)) > 1):
        what = f"the square root of {entry} is not known" if a == b else "two vectors share the noise of an operator"
        raise RecipeError(where, what, do="Give what stands there as one operator, of one vector.")


def _formula_of_operators(where: str, F: Expr, blocks: Iterable[Block]) -> None:
    """Refuse formulas of several operators, formulas that change with the state, and blocks that are not real."""
    if len(operators_of(F)) > 1:
        raise RecipeError(where, f"the operators in {F} do not commute", do="Apply one after the other, A(B(p)).")
    moving = sorted((s for s in F.free_symbols if isinstance(s, Block)), key=str)
    if moving:
        raise RecipeError(where, f"{F} changes with {moving[0]}", do=f"Let {moving[0]} multiply an operator.")
    for b in blocks:
        if not b.domain.is_real:
            raise RecipeError(where, f"{b} is {b.domain.in_words}", do="Operators act on vectors of real numbers.")


# ---- inputs, adaptations, periods and values per site


def _inputs(recipe: Dynamics) -> None:
    """Refuse observations and step numbers in the dynamics."""
    read = set().union(*(e.free_symbols for e in (recipe.H, recipe.D, recipe.Q, recipe.supplied)))
    for s in sorted(read, key=str):
        if isinstance(s, Observed):
            raise RecipeError(
                recipe.name,
                f"the observation '{s}' is used in H, D, Q or supplied, where it would be taken for a constant",
                do=f"Let an adapted quantity follow it: adapt={{...: {s}}}.",
            )
        if s == step_number:
            raise RecipeError(recipe.name, "H, D, Q or supplied read step_number", do="Only adaptations may.")


def _adaptations(recipe: Dynamics) -> None:
    """Refuse adapted quantities without an update, a fitting domain, or a start from parameters and grad(U)."""
    for a in recipe.adapted:
        if a not in recipe.adapt:
            raise RecipeError(
                f"{recipe.name}, adapt",
                f"no update of {a} is given",
                do=f"Write adapt={{{a}: ...}}, or make it a parameter.",
            )
        if a.domain.is_discrete or a.domain.wraps or a.domain.reflects:
            what = "an adapted quantity is not binary, and has no way back from an end"
            raise RecipeError(f"{recipe.name}, {a}", what, do="Use another domain.")
        start = a.start.xreplace({g: S.One for g in a.start.atoms(Partial)})
        for s in sorted(start.free_symbols, key=str):
            if isinstance(s, (Block, Observed)):
                advice = "It may read parameters and grad(U)."
                raise RecipeError(f"{recipe.name}, start of {a}", f"it reads {s}", do=advice)


def _periods(recipe: Dynamics) -> None:
    """Refuse formulas that do not have the period of an angle."""
    for b in recipe.state:
        if b.domain.wraps:
            refuse_other_period(f"{recipe.name}, H", recipe.H, b, b.domain)
            for label, row, column, entry in _matrix_entries(recipe):
                refuse_other_period(f"{recipe.name}, {label}[{row}, {column}]", entry, b, b.domain)


def refuse_other_period(where: str, e: Expr, angle: Symbol, circle: Domain) -> None:
    """Refuse a formula without the period of an angle on a circle; opaque parts are assumed to have the period."""
    period = circle.width
    known, _ = masked(e, Potential, Partial, AppliedUndef, Derivative)
    for own in (True, False):
        change = expand(_gone_round(known, angle, period, own) - known)
        if change != 0 and not vanishes(change):
            what = f"it changes by {change} when {angle} goes round once, by {period}"
            advice = (
                f"Use functions of that period, such as cos({2 * pi / period * angle}), or declare {angle} as real."
            )
            raise RecipeError(where, what, do=advice)


def _gone_round(e: Expr, angle: Symbol, period: Expr, own: bool) -> Expr:
    """The formula at a site after one turn of an angle: the angle of this site (`own`), or of another site."""
    outside, sums = masked(e, Total)
    if own:
        outside = outside.xreplace({angle: angle + period})
    after = {}
    for name, total in sums.items():
        integrand = _gone_round(total.integrand, angle, period, own=True)
        after[name] = total + integrand - total.integrand if is_site(angle) else Total(integrand)
    return outside.xreplace(after)


def _values_per_site(recipe: Dynamics) -> None:
    """Refuse starts and updates per site of adapted quantities with one value per chain."""
    for a in recipe.adapted:
        for what, e in (("start", a.start), ("update", recipe.adapt.get(a, a))):
            if is_site(e) and not a.is_vector:
                raise RecipeError(
                    f"{recipe.name}, {what} of {a}",
                    f"{e} has one value per site, but {a} is one number",
                    do=f"Wrap it in total(), or declare {a} with like={recipe.targets[0]}.",
                )


def _latents(recipe: Dynamics) -> None:
    """Refuse categories with drift or noise."""
    for b in (b for b in recipe.state if b.domain.is_discrete):
        i = recipe.state.index(b)
        if any(recipe.D[i, :]) or any(recipe.Q[i, :]):
            raise RecipeError(
                f"{recipe.name}, {b}",
                f"it is {b.domain.in_words}, and has no drift and no noise",
                do=f'Let it jump: jumps={{"J": refresh({b})}}.',
            )


def _entries_per_site(recipe: Dynamics) -> None:
    """Refuse values per site in H or between scalars, and noise shared by a vector and a scalar."""
    if is_site(recipe.H):
        loose = next(t for t in recipe.H.as_ordered_terms() if is_site(t))
        raise RecipeError(
            f"{recipe.name}, H",
            f"{loose} has one value per site, but H is one number per chain",
            do=f"Wrap it: total({loose}).",
        )
    for label, a, b, entry in _matrix_entries(recipe):
        if not a.is_vector and not b.is_vector and is_site(entry):
            raise RecipeError(
                f"{recipe.name}, {label}[{a}, {b}]",
                f"{entry} has one value per site, but both blocks are scalars",
                do="Wrap it in total().",
            )
        if label == "D" and a.is_vector != b.is_vector and entry != 0:
            raise RecipeError(
                f"{recipe.name}, D[{a}, {b}]",
                "noise shared by a vector and a scalar block is not supported",
                do="Couple them by Q instead.",
            )


# ---- derivatives


def _corners(recipe: Dynamics) -> None:
    """Refuse entries that lack a derivative in Gamma."""
    for (i, j), entry in entries(recipe.D + recipe.Q).items():
        slope = derivative(entry, recipe.state[j])
        rough = [f for f in slope.atoms(sign, Heaviside, DiracDelta) if f.free_symbols & set(recipe.state)]
        if rough or slope.has(S.NaN, S.ComplexInfinity):
            kink = rough[0].args[0] if rough else slope
            raise RecipeError(
                f"{recipe.name}, Gamma[{recipe.state[i]}]",
                f"it is undefined where {kink} = 0, because {entry} has no derivative there",
                do="Use a smooth function.",
            )


def _discontinuities(recipe: Dynamics) -> None:
    """Refuse discontinuous formulas, except discontinuities in categories."""
    _continuous(recipe, "H", recipe.H, tuple(b for b in recipe.state if not b.domain.is_discrete))
    for label, a, b, entry in _matrix_entries(recipe):
        _continuous(recipe, f"{label}[{a}, {b}]", entry, (a, b))


def _continuous(recipe: Dynamics, where: str, entry: Expr, blocks: tuple[Block, ...]) -> None:
    for choice in entry.atoms(Piecewise):
        if not is_continuous(choice, blocks):
            raise RecipeError(
                f"{recipe.name}, {where}",
                f"{choice} is not seen to be continuous, and a jump has no derivative",
                do="Use a continuous function, or Max and Min.",
            )
    for jump in entry.atoms(sign, Heaviside):
        if jump.free_symbols & set(blocks):
            what = f"{jump} is not continuous, and a jump has no derivative"
            raise RecipeError(f"{recipe.name}, {where}", what, do="Use a continuous function, or Abs, Max and Min.")


def _more_of_U(recipe: Dynamics) -> None:
    """Refuse formulas that read more of U than its gradient and Hessian diagonal, by deriving the drift."""
    recipe.drift


# ---- signs


def _not_real(recipe: Dynamics) -> None:
    """Refuse entries of D, Q and supplied that are not real at every state, such as roots of negative numbers."""
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q), ("supplied", recipe.supplied)):
        upper = {(i, j): entry for (i, j), entry in entries(matrix).items() if i <= j}
        for (i, j), entry in upper.items():
            for part in filter(_may_be_complex, postorder_traversal(entry)):
                _real_everywhere(f"{recipe.name}, {label}[{recipe.state[i]}, {recipe.state[j]}]", part)


def _may_be_complex(e: Basic) -> bool:
    """Whether a function is not real for some arguments, and not known to be real here."""
    partial = isinstance(e, (log, asin, acos, acosh, atanh)) or isinstance(e, Pow) and not e.exp.is_Integer
    return partial and not e.is_real


def _real_everywhere(where: str, part: Expr) -> None:
    """Refuse a function that is not real at a random state."""
    outside, _ = masked(part, *OPAQUE)
    symbols = sorted(outside.free_symbols, key=lambda s: s.name)
    draw = random.Random(2015)
    for _ in range(STATES):
        at = {s: random_value(s, draw) for s in symbols} | SMALL_STEP
        value = complex(outside.xreplace({s: S(v) for s, v in at.items()}).evalf())
        if abs(value.imag) > ROUNDING * abs(value):
            values = ", ".join(f"{s.name} = {at[s]:.3g}" for s in symbols)
            advice = 'Use a function that is real at every state, or declare the sign: vector(..., domain="positive").'
            raise RecipeError(where, f"{part} is not real at {values}", do=advice)


def _diffusion(recipe: Dynamics) -> None:
    """Refuse a D that is not positive semidefinite."""
    value, where = least_eigenvalue(recipe, points=STATES, fixed=SMALL_STEP)
    if value < -ROUNDING:
        raise RecipeError(
            f"{recipe.name}, D",
            f"it is not positive semidefinite: an eigenvalue is {value:.3g} at {where}",
            do="A diffusion needs D >= 0 for every state and every allowed parameter.",
        )


def _jumps(recipe: Dynamics) -> None:
    """Refuse jumps with a law that cannot be drawn, or with a negative rate."""
    for letter, jump in recipe.jumps.items():
        if isinstance(jump, Swap):
            _exchanged(recipe, letter, jump)
        elif jump.law is None:
            _redrawn(recipe, letter, jump.block)
        else:
            _drawn(recipe, letter, jump.block, jump.law)
        if jump.rate is None:
            continue
        lowest, _ = minimum_eigenvalue(ImmutableMatrix([[jump.rate]]), points=STATES)
        if lowest < 0:
            raise RecipeError(
                f"{recipe.name}, jumps[{letter!r}], rate",
                f"{jump.rate} may be below 0",
                do="Make it of positive parameters.",
            )


def _exchanged(recipe: Dynamics, letter: str, swap: Swap) -> None:
    """Refuse a swap that leads to potentials missing in H, or that lacks the inverse ratio on the way back."""
    where = f"{recipe.name}, jump {letter!r}"
    for U in recipe.potentials:
        after = U.xreplace(swap.places)
        if after not in recipe.potentials:
            what = f"{swap} makes {after} of {U}, which H does not have"
            raise RecipeError(where, what, do="Give both blocks one energy: U_x, U_y = copies(x, y).")
    if swap.is_balanced(recipe.H) is None:
        what = f"the way back of {swap} has not the inverse ratio of exp(-H/T)"
        raise RecipeError(where, what, do="Write H as a smooth function of the blocks.")


def _redrawn(recipe: Dynamics, letter: str, b: Block) -> None:
    """Refuse to refresh a block with a conditional law that is neither Gaussian nor Bernoulli."""
    where = f"{recipe.name}, jump {letter!r}"
    if b.domain.categories > 2:
        do = f"Give it: gibbs({b}, laws.Categorical(...))."
        raise RecipeError(where, f"the law of {b} is not read off H", do=do)
    if b.domain.is_discrete:
        cost = expand(diff(recipe.H, b))
        if cost.has(b) or any(e.has(b) for e in cost.atoms(Total)):
            raise RecipeError(
                where,
                f"H is not linear in the binary block {b}",
                do=f"Write H = total({b}*f + g), with f and g free of {b}.",
            )
    elif any(b in U.blocks for U in recipe.H.atoms(Potential)) or not eliminate_gaussians(recipe.H, (b,))[0]:
        raise RecipeError(
            where,
            f"the law of {b} is not Gaussian, H is not quadratic in it",
            do=f"Only Gaussian and binary blocks can be refreshed: give its law, gibbs({b}, laws.Gamma(...)) say.",
        )


def _drawn(recipe: Dynamics, letter: str, b: Block, law: Law) -> None:
    """Refuse a law that is not the conditional of the block, or that has invalid parameters at some states."""
    where = f"{recipe.name}, jump {letter!r}"
    if not law.suits(b.domain):
        do = f"Declare {b} with a domain of this law: {', '.join(law.domains) or 'as many categories as weights'}."
        raise RecipeError(where, f"{b} is {b.domain.in_words}, and no number of {law}", do=do)
    if any(b in U.blocks for U in recipe.H.atoms(Potential)):
        raise RecipeError(where, f"the law of {b} is that of U, which is open", do="Draw another block.")
    comparison = compared(recipe.H, b, law)
    if comparison is None:
        what = f"the sites of {b} are not independent given all else"
        raise RecipeError(where, what, do=f"H must be total() of {b}, times what is free of it.")
    if comparison.known is None:
        what = f"exp(-H), as a function of {b}, is {law} times the further factor {comparison.factor}"
        raise RecipeError(where, what, do="Change the parameters of the law, or H.")
    for name in law.positive:
        of_one_site = ImmutableMatrix([[at_one_site(getattr(law, name))]])
        lowest, at = minimum_eigenvalue(of_one_site, points=STATES, fixed=SMALL_STEP)
        if lowest < 0:
            what = f"{name} = {getattr(law, name)} may be below 0, {lowest:.3g} at {at}"
            raise RecipeError(where, what, do="Make it of positive parameters.")


def _supplied(recipe: Dynamics) -> None:
    """Refuse a `supplied`, or a D - supplied, that is not positive semidefinite."""
    if recipe.supplied == zeros(*recipe.supplied.shape):
        return
    where = f"{recipe.name}, supplied"
    defaults = {s: s.default for s in recipe.parameters if s.default is not None} | SMALL_STEP
    value, at = minimum_eigenvalue(recipe.supplied, points=STATES, fixed=defaults)
    if value < -ROUNDING:
        raise RecipeError(
            where,
            f"it is not positive semidefinite: an eigenvalue is {value:.3g} at {at}",
            do="What a gradient supplies is a covariance.",
        )
    value, at = minimum_eigenvalue(recipe.D - recipe.supplied, points=STATES, fixed=defaults)
    if value < -ROUNDING:
        raise RecipeError(
            where,
            f"D - supplied is not positive semidefinite: an eigenvalue is {value:.3g} at {at}",
            do="The gradient cannot supply more noise than D.",
        )


def _normalisable(recipe: Dynamics) -> None:
    """Refuse auxiliary blocks in which exp(-H) has no finite integral."""
    for block in recipe.momenta + recipe.thermostats:
        curvature = recipe.H.diff(block, 2)
        if block.domain.is_real and not curvature.has(block) and curvature.is_nonpositive:
            raise RecipeError(
                f"{recipe.name}, H",
                f"exp(-H) is not normalisable in {block}: d2H/d{block}2 = {curvature}",
                do=f"Give {block} a confining energy, e.g. {block}**2/2.",
            )
