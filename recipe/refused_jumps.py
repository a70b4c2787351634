"""Refusals of jumps: of laws that cannot be drawn or are not the conditional of exp(-H), of rates, of new values."""

from collections.abc import Iterator

from sympy import Abs, Add, Expr, ImmutableMatrix, Mul, Poly, diff, expand, factor, im

from .algebra import at_one_site, vanishes
from .calculus import derivative
from .certificate import minimum_eigenvalue
from .declared import Block, step_size
from .dynamics import Dynamics
from .fields import reads
from .involutions import Involution
from .laws import DiscreteLaw, Law, compared
from .marginal import eliminate_gaussians
from .operators import bare
from .pieces import Jump
from .swaps import Swap
from .symbols import Total, is_site

STATES = 64
SMALLEST = 1e-12  # part of a variance that a refreshment redraws
REAL = 1e-9  # an imaginary part that is rounding
SMALL_STEP = {step_size: 1e-9}

Refusals = Iterator[tuple[str, str, str]]  # where within the recipe, what, what to do


def jumps(recipe: Dynamics) -> Refusals:
    """Refuse jumps that cannot be made, and transport that jumps cannot balance at every temperature."""
    yield from _transport(recipe)
    proposed = {b for jump in recipe.proposals for b in jump.blocks}
    for b in (b for b in recipe.targets if b.domain.is_discrete and b not in proposed):
        do = f"Keep it beside the target, or propose({b}, laws.Categorical(...))."
        yield "target", f"{b} is of categories, and has no gradient", do
    for letter, jump in recipe.jumps.items():
        where = f"jump {letter!r}"
        if jump.rate is not None:
            read = () if isinstance(jump, Involution) else jump.blocks
            yield from _rate(f"jumps[{letter!r}], rate", jump.rate, read, isinstance(jump, Swap))
        if isinstance(jump, Swap):
            yield from _exchanged(recipe, where, jump)
            continue
        if isinstance(jump, Involution):
            yield from _new_values(recipe, where, jump)
            continue
        if jump.persistence != 0:
            yield from _kept_in_part(f"jumps[{letter!r}], persistence", jump)
        if jump.proposed is not None:
            yield from _proposed(where, jump.blocks[0], jump.proposed)
        elif jump.law is None:
            yield from _redrawn(recipe, where, jump.blocks)
        else:
            yield from _drawn(recipe, where, jump.blocks[0], jump.law)


def _rate(where: str, rate: Expr, blocks: tuple[Block, ...], of_chain: bool) -> Refusals:
    for b in blocks:
        if rate.has(b):
            yield where, f"{rate} reads {b}, and the jump would not keep the law", "Make it a rate of what stays."
    if of_chain and is_site(rate):
        what = f"{rate} has one value per site, and a chain is swapped as a whole"
        yield where, what, "Wrap it in total()."
    if minimum_eigenvalue(ImmutableMatrix([[rate]]), points=STATES)[0] < 0:
        yield where, f"{rate} may be below 0", "Make it of positive parameters."


def _kept_in_part(where: str, jump: Jump) -> Refusals:
    """Refuse a persistence outside of [0, 1), or read by the jump, or of more than one normal block."""
    c = jump.persistence
    b, *others = jump.blocks
    if others or b.domain.is_discrete:
        yield where, f"{jump} keeps a part of what is not one normal block", "Refresh one block, or all of them whole."
    if c.has(b) or is_site(c) and not b.is_vector:
        yield where, f"{c} is no number of {b}'s own that the jump leaves", "Make it a fraction(...), or a number."
    for margin in (c, 1 - c**2 if c.free_symbols else 1 - c**2 - SMALLEST):
        if minimum_eigenvalue(ImmutableMatrix([[margin]]), points=STATES)[0] < 0:
            yield where, f"{c} may be outside of [0, 1)", "Make it a fraction(...), or a number."
            return


def _exchanged(recipe: Dynamics, where: str, swap: Swap) -> Refusals:
    """Refuse a swap that leads to potentials missing in H, or that lacks the inverse ratio on the way back."""
    for U in recipe.potentials:
        after = U.xreplace(swap.places)
        if after not in recipe.potentials:
            do = "Give both blocks one energy: U_x, U_y = copies(x, y)."
            yield where, f"{swap} makes {after} of {U}, which H does not have", do
    if swap.is_balanced(recipe.H) is None:
        what = f"the way back of {swap} has not the inverse ratio of exp(-H/T)"
        yield where, what, "Write H as a smooth function of the blocks."


def _new_values(recipe: Dynamics, where: str, jump: Involution) -> Refusals:
    """Refuse new values that are not linear or leave a domain, and jumps of one site whose rate reads other sites."""
    for b, image in jump.images:
        if any(b in U.blocks for U in recipe.potentials):
            yield where, f"it moves {b}, which the open energy reads", "Move what U does not read."
        leaves = vanishes(image + b - 1) is None if b.domain.is_discrete else not b.domain.is_real
        if leaves or b.domain.categories > 2:
            do = "Move real blocks, or flip binary ones."
            yield where, f"{b} is {b.domain.in_words}, and {image} may leave it", do
    if not jump.is_linear():
        yield where, f"{jump} is not seen to be linear in what moves", "Give new values that are linear in it."
    if jump.is_by_site:
        sums = {e for f in jump.formulas for e in f.atoms(Total) if e.has(*jump.blocks)}
        if sums or not all(b.is_vector for b in jump.blocks):
            what = f"{jump} has a rate per site, and reads or moves more than a site"
            yield where, what, "Wrap the rate in total(), so that all sites jump together."


def _transport(recipe: Dynamics) -> Refusals:
    """Refuse a transport with a divergence, or of blocks that cannot drift freely."""
    rows = [(b, e) for b, e in zip(recipe.state, recipe.transport, strict=True) if e != 0]
    for b, e in rows:
        if not b.domain.is_real:
            yield f"transport[{b}]", f"{b} is {b.domain.in_words}, and has an end or no drift", "Transport real blocks."
        if bare(e):
            yield f"transport[{b}]", f"an operator stands in {e} as if it were a number", "Apply it to a vector."
    slopes = ((b, derivative(e, b)) for b, e in rows)
    divergence = Add(*(Total(slope) if b.is_vector else slope for b, slope in slopes))
    if vanishes(divergence) is None:
        what = f"its divergence is {divergence}, and rates that balance it are not those of other temperatures"
        yield "transport", what, "Give a drift without divergence, and what is left as D and Q."


def _redrawn(recipe: Dynamics, where: str, blocks: tuple[Block, ...]) -> Refusals:
    """Refuse to refresh blocks of a law that is not Gaussian, even on a sphere, or that of one Bernoulli block."""
    if len(blocks) == 1 and blocks[0].domain.is_sphere and not reads(recipe.H, blocks[0]):
        return
    if len(blocks) > 1 or not blocks[0].domain.is_discrete:
        names = ", ".join(map(str, blocks))
        laws, _ = eliminate_gaussians(recipe.H, blocks)
        if len(laws) < len(blocks) or any(b in U.blocks for U in recipe.potentials for b in blocks):
            law = f"gibbs({blocks[0]}, laws.Gamma(...))"
            do = f"Only Gaussian and binary blocks can be refreshed: give its law, {law} say."
            bounded = next((f"{b} is {b.domain.in_words}" for b in blocks if not b.domain.is_real), "")
            yield where, f"the law of {names} is not Gaussian, {bounded or 'H is not quadratic in it'}", do
        elif any(g.precision.is_nonpositive for g in laws):
            yield where, f"exp(-H) has no finite integral over {names}", "Give each a confining energy."
        return
    (b,) = blocks
    if b.domain.categories > 2:
        yield where, f"the law of {b} is not read off H", f"Give it: gibbs({b}, laws.Categorical(...))."
    cost = expand(diff(recipe.H, b))
    if cost.has(b) or any(e.has(b) for e in cost.atoms(Total)):
        do = f"Write H = total({b}*f + g), with f and g free of {b}."
        yield where, f"H is not linear in the binary block {b}", do


def _drawn(recipe: Dynamics, where: str, b: Block, law: Law) -> Refusals:
    """Refuse a law that is not the conditional of the block, or that has invalid parameters at some states."""
    for e in law.arguments:
        if e.has(b):
            what = f"{e} reads {b}, and a law given all else is of what stays"
            yield where, what, f"Write its parameters without {b}, or propose it."
    yield from _unsuited(where, b, law)
    if any(b in U.blocks for U in recipe.potentials):
        yield where, f"the law of {b} is that of U, which is open", "Draw another block."
    comparison = compared(recipe.H, b, law)
    if comparison is None:
        do = f"H must be total() of {b}, times what is free of it."
        yield where, f"the sites of {b} are not independent given all else", do
    elif comparison[1] is None:
        what = f"exp(-H), as a function of {b}, is {law} times the further factor {comparison[0]}"
        yield where, what, "Change the parameters of the law, or H."
    yield from _negative(where, law)


def _proposed(where: str, b: Block, law: Law) -> Refusals:
    """Refuse a proposed law of another support, or with an integral that is not in closed form."""
    yield from _unsuited(where, b, law)
    for name in law.still:
        if getattr(law, name).atoms(Block):
            what = f"the {name} of {law} moves, and its integral is not in closed form"
            yield where, what, "Let other parameters read the state."
    yield from _negative(where, law)
    if isinstance(law, DiscreteLaw):
        return
    for name in law.positive:
        e = getattr(law, name)
        if _has_zero(at_one_site(e)):
            what = f"{name} = {e} is 0 at some states, and {law} has no density there"
            yield where, what, "Add a positive number to it."


def _has_zero(e: Expr) -> bool:
    """Whether a formula is 0 at a state, by a real root of a factor that is a polynomial of one block and numbers."""
    for f in Mul.make_args(factor(e)):
        base = f.as_base_exp()[0]
        base = base.args[0] if isinstance(base, Abs) else base
        blocks = base.atoms(Block)
        if len(base.free_symbols) == len(blocks) == 1 and base.is_polynomial(*blocks) and base.is_positive is not True:
            if any(abs(im(root)) < REAL for root in Poly(base, *blocks).nroots()):
                return True
    return False


def _unsuited(where: str, b: Block, law: Law) -> Refusals:
    """Refuse a law of another support than the block's domain, or values per site of one number."""
    if any(is_site(e) for e in law.arguments) and not b.is_vector:
        yield where, f"{law} has one value per site, but {b} is one number", "Wrap it in total()."
    if not law.suits(b.domain):
        do = f"Declare {b} with a domain of this law: {', '.join(law.domains) or 'as many categories as weights'}."
        yield where, f"{b} is {b.domain.in_words}, and no number of {law}", do


def _negative(where: str, law: Law) -> Refusals:
    """Refuse a law with invalid parameters at some states."""
    for name in law.positive:
        of_one_site = ImmutableMatrix([[at_one_site(getattr(law, name))]])
        lowest, at = minimum_eigenvalue(of_one_site, points=STATES, fixed=SMALL_STEP)
        if lowest < 0:
            what = f"{name} = {getattr(law, name)} may be below 0, {lowest:.3g} at {at}"
            yield where, what, "Make it of positive parameters."
