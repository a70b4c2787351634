"""Log ratios of the densities of flows with Gaussian noise and of their time reversals, for the work of a step."""

from collections import Counter
from collections.abc import Collection

from sympy import Abs, Add, Dummy, Expr, ImmutableMatrix, Piecewise, S, diff, log

from recipe import Recipe
from recipe.algebra import vanishes
from recipe.errors import RecipeError
from recipe.operators import coefficient, times
from recipe.symbols import Block, Crossing
from recipe.symbols import duration as t
from recipe.symbols import temperature as T

from .direction import noise_in, reversed_in_time, summed, unsigned, value_before
from .flow import Flow
from .functions import Change, MatrixOU
from .numerical_flows import METHODS
from .split import Subsystem
from .variates import Normal

WARM = {s: Dummy(positive=True) for s in (T, t)}  # positive symbols for temperature and time


def log_ratio(recipe: Recipe, piece: Subsystem, flow: Flow) -> tuple[Expr, Expr]:
    """T log k_s(z -> z') at z, and -T log k_{-s}(z' -> z) at z', for a flow with Gaussian noise."""
    where = f"{recipe.name}, work of {flow.letter!r}"
    blocks = list(flow.updates)
    draws = {d.block: d for d in flow.draws}
    if not _is_gaussian(piece, flow):
        what = f"{flow.equation} [{flow.rule}] has no density that is known"
        raise RecipeError(where, what, do="Let every block that moves have a noise of its own, or cut it finer.")
    spreads = ImmutableMatrix([[diff(new, draws[b]) for b in blocks] for new in flow.updates.values()])
    if spreads.has(*draws.values()):
        raise RecipeError(where, f"{flow.equation} is not linear in its noise", do="Cut it finer.")
    if not spreads.is_diagonal():
        return _joint_log_ratio(piece, flow, blocks, draws, spreads, where)
    there: list[Expr] = []
    back: list[Expr] = []
    for b, new in flow.updates.items():
        if new.has(Crossing):
            density, density_back = _operator_log_ratio(b, new, draws[b], where)
            back.append(summed(density_back, b))
        else:
            density, density_back = _block_log_ratio(b, new, draws[b], blocks)
            back.append(density_back)
        there.append(summed(density, b))
    return Add(*there), Add(*back)


def _is_gaussian(piece: Subsystem, flow: Flow) -> bool:
    """Whether every moving block has a normal number of its own, without predicted points."""
    numbers = Counter(d.block for d in flow.draws)  # several of a block with outer products in its noise
    normal = all(isinstance(d, Normal) for d in flow.draws) and numbers == dict.fromkeys(flow.updates, 1)
    predicts = piece.method is not None and METHODS[piece.method].predicts  # then the update is not linear in the noise
    return normal and not predicts


def _block_log_ratio(b: Block, new: Expr, draw: Normal, blocks: Collection[Block]) -> tuple[Expr, Expr]:
    """`log_ratio` for z' = mean + spread N, the first part per site.

    For a constant spread, whose logarithms cancel, the ratio is one difference of squares at z'.
    """
    spread = diff(new, draw)
    width = reversed_in_time(spread)
    mean = new.xreplace({draw: S.Zero})
    residual = value_before(b) - reversed_in_time(mean)
    density = -T * (draw**2 / 2 + log(spread))
    back = [T * ((residual / width) ** 2 / 2 + log(width)), S.Zero]
    if width == spread and not spread.has(*blocks):
        density, back = S.Zero, [T * (x / width) ** 2 / 2 for x in (residual, noise_in(b))]
    if not spread.xreplace(WARM).is_positive:
        alone = -T * log(Abs(diff(mean, b)))  # without noise z' is the mean
        density = Piecewise((density, spread > 0), (alone, True))
        back = [Piecewise((e, width > 0), (S.Zero, True)) for e in back]
    return density, Change(*map(unsigned, back))


def _operator_log_ratio(b: Block, new: Expr, draw: Normal, where: str) -> tuple[Expr, Expr]:
    """`log_ratio` per site for z' = mean + F(N), F a constant formula of an operator; its determinant cancels."""
    affine = coefficient(new, draw)
    spread, mean = affine or (S.Zero, S.Zero)
    if spread.has(*(s for s in new.free_symbols if isinstance(s, Block))) or not spread.xreplace(WARM).is_positive:
        raise RecipeError(where, "the spread of its noise may vanish, or moves", do="Use definite operators.")
    residual = times(1 / spread, value_before(b) - reversed_in_time(mean))
    return -T * draw**2 / 2, T * residual**2 / 2


def _joint_log_ratio(
    piece: Subsystem, flow: Flow, blocks: list[Block], draws: dict[Block, Normal], spreads: ImmutableMatrix, where: str
) -> tuple[Expr, Expr]:
    """`log_ratio` for blocks with shared noise, z' = mean + L N: -T |N|^2/2 - T log|det L|, and back likewise."""
    if len({b.is_vector for b in blocks}) != 1:
        raise RecipeError(where, "vectors and scalars share their noise", do="Cut it finer.")
    mixes = spreads.has(MatrixOU)  # the drift carries noise on to other blocks
    if not mixes and vanishes(piece.matrix(piece.diffusion).det()):
        what = f"{flow.equation} moves along fewer directions than blocks, and its path has no density"
        raise RecipeError(where, what, do="Give D its full rank, or run without acceptance.")
    still = {draw: S.Zero for draw in draws.values()}
    widths = spreads.applyfunc(reversed_in_time)
    means = {b: reversed_in_time(new.xreplace(still)) for b, new in flow.updates.items()}
    residual = ImmutableMatrix([value_before(b) - mean for b, mean in means.items()])
    drawn = sum(draws[b] ** 2 for b in blocks) / 2 + log(Abs(spreads.det()))
    # a width of 0 is S.Zero: a test for zero in other forms takes seconds
    inverse = widths.inv(iszerofunc=lambda e: e == 0)
    returned = sum(x**2 for x in inverse * residual) / 2 + log(Abs(widths.det()))
    return summed(-T * drawn, blocks[0]), summed(T * returned, blocks[0])
