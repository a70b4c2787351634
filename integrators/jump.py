"""Flows of jumps: a block redrawn from its conditional law, blocks swapped, or moved by an involution."""

from collections.abc import Collection
from itertools import accumulate

from sympy import Expr, Min, Piecewise, S, diff, exp, expand, sqrt

from recipe import Recipe
from recipe.involutions import Involution
from recipe.laws import Bernoulli, Beta, Categorical, Gamma, InverseGamma, Law, Normal
from recipe.marginal import eliminate_gaussians
from recipe.operators import times
from recipe.pieces import Jump
from recipe.swaps import Swap
from recipe.symbols import Block, total
from recipe.symbols import duration as t
from recipe.symbols import temperature as T

from . import variates
from .boundaries import led_back
from .flow import Flow
from .functions import phi1
from .variates import Drawn, GammaVariate, Uniform, Variate


def solve_jump(recipe: Recipe, letter: str, jump: Jump | Swap | Involution, frozen: Collection[str] = ()) -> Flow:
    """The exact kernel of a jump: a draw from the conditional law under exp(-H/T), an accepted swap, or an involution.

    With a rate nu a chain jumps with probability 1 - e^{-nu t}. `frozen`: names of blocks that do not move.
    """
    if any(b.name in frozen for b in jump.blocks):
        return Flow(letter, {}, (), "frozen", True, "nothing moves")
    if isinstance(jump, Swap):
        return _swapped(recipe, letter, jump)
    if isinstance(jump, Involution):
        return turned(letter, jump, jump.rate)
    if jump.proposed:
        laws = {jump.blocks[0]: jump.proposed}
    else:
        laws = {jump.blocks[0]: jump.law} if jump.law else _read_off(recipe, jump.blocks)
        laws = {b: law.tempered() for b, law in laws.items()}
    updates: dict[Block, Expr] = {}
    draws: tuple[Variate, ...] = ()
    for b, law in laws.items():
        new, variates = _redrawn(b, law, jump.persistence)
        updates[b] = led_back(b, new) if b.domain.is_sphere else new.xreplace(updates)
        draws += variates
    equation = ", ".join(f"{b} ~ {law}" for b, law in laws.items())
    equation += f" in part, persistence {jump.persistence}" if jump.persistence != 0 else ""
    if jump.rate is None:
        return Flow(letter, updates, draws, "jump", True, equation)
    first = jump.blocks[0]
    turn = Uniform(first, f"turn of {first}", is_vector=False)
    updates = {b: Piecewise((new, turn < 1 - exp(-jump.rate * t)), (b, True)) for b, new in updates.items()}
    return Flow(letter, updates, (turn, *draws), "jump", True, f"{equation} at the rate {jump.rate}")


def _swapped(recipe: Recipe, letter: str, swap: Swap) -> Flow:
    """All pairs swap or none, by one uniform number per chain; at a rate nu, tried with probability 1 - e^{-nu t}."""
    (first, _), *_ = swap.pairs
    turn = Uniform(first, f"swap of {first}", is_vector=False)
    ratio = swap.ratio(recipe.H)
    accepted = turn < (ratio if swap.rate is None else (1 - exp(-swap.rate * t)) * Min(1, ratio))
    updates = {b: Piecewise((other, accepted), (b, True)) for b, other in swap.places.items()}
    equation = f"{swap} with the probability min(1, {ratio})"
    return Flow(letter, updates, (turn,), "swap", True, equation, swaps=swap.places)


def turned(letter: str, jump: Involution, rate: Expr) -> Flow:
    """F(z) or z, by a uniform number per chain or per site, with the law of jumps back and forth at a rate from z."""
    first = jump.blocks[0]
    turn = Uniform(first, f"turn of {first}", is_vector=jump.is_by_site)
    happens = turn < probability(jump, rate)
    updates = {b: Piecewise((image, happens), (b, True)) for b, image in jump.images}
    return Flow(letter, updates, (turn,), "jump", True, str(jump))


def probability(jump: Involution, rate: Expr) -> Expr:
    """The probability to be at F(z) after a time t, of a chain that begins at z with a rate there, one of both.

    lambda/(lambda + lambda') (1 - exp(-(lambda + lambda') t/T)), with lambda' the other rate.
    """
    return rate * t / T * phi1(-jump.rate_of_both * t / T)


def _read_off(recipe: Recipe, blocks: tuple[Block, ...]) -> dict[Block, Law]:
    """N(mean, 1/precision) for H quadratic in blocks, of each given the blocks before it in the answer.

    Of a block on the sphere a normal law in every direction, and of a binary block alone Bernoulli with the odds
    exp(H(0) - H(1)).
    """
    first = blocks[0]
    if first.domain.is_sphere:
        return {first: Normal(S.Zero, 1 / (T * total(1)))}  # of any temperature, and of about the length 1
    if first.domain.is_discrete:
        return {first: Bernoulli(1 / (1 + exp(expand(diff(recipe.H, first)))))}
    laws, _ = eliminate_gaussians(recipe.H, blocks)
    return {g.block: Normal(g.mean, 1 / g.precision) for g in reversed(laws)}


def _redrawn(b: Block, law: Law, kept: Expr = S.Zero) -> tuple[Expr, tuple[Variate, ...]]:
    """The new value of a block with a law, and its random numbers; `kept`: the persistence of a normal block.

    N(m, v) is the law of m + c (z - m) + sqrt((1 - c^2) v) N if it is that of z, and the pair of both is symmetric.
    """
    match law:
        case Normal():
            normal = variates.Normal(b)
            mean = law.mean + kept * (b - law.mean)
            return mean + times(sqrt((1 - kept**2) * law.variance), normal), (normal,)
        case Gamma():
            gamma = GammaVariate(b)
            return Drawn(gamma, law.shape) / law.rate, (gamma,)
        case InverseGamma():
            gamma = GammaVariate(b)
            return law.scale / Drawn(gamma, law.shape), (gamma,)
        case Beta():  # X/(X + Y) for Gamma variates X, Y of shapes a, b
            first, second = GammaVariate(b), GammaVariate(b, f"second of {b}")
            x, y = Drawn(first, law.a), Drawn(second, law.b)
            return x / (x + y), (first, second)
        case Bernoulli():
            share = Uniform(b)
            return Piecewise((S.One, share / law.probability < 1), (S.Zero, True)), (share,)
        case Categorical():  # the first with a cumulative weight above a share of the total; weights over the largest
            share = Uniform(b)
            least = Min(*law.costs, evaluate=False)
            *sums, whole = accumulate(exp(least - cost, evaluate=False) for cost in law.costs)
            below = [(S(k), share * whole < part) for k, part in enumerate(sums)]
            return Piecewise(*below, (S(len(sums)), True)), (share,)
    raise TypeError(f"a law without draws: {law}")
