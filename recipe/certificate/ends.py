"""Feller's test along each coordinate: whether a chain reaches an end of its domain, infinity, or a wall inside.

With all else frozen, the point x = b is not reached iff the integral of the scale density exp(H/T)/D up to b diverges
(Feller 1952). In a coordinate y with b at infinity, x = b + e^-y or x = sinh y, the log of the integrand is
L(y) = H/T - log D + log |dx/dy|: the integral converges if L falls in proportion to y at large y.
A coordinate without noise of its own, moved by Q, reaches b if H is finite there.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from sympy import (
    Abs,
    Add,
    Expr,
    Float,
    Function,
    Max,
    Min,
    Poly,
    Pow,
    Rational,
    S,
    Symbol,
    atan,
    cos,
    cosh,
    exp,
    expand_mul,
    log,
    sin,
    sinh,
    sqrt,
    tanh,
    together,
)

from ..algebra import at_one_site
from ..algebra import entries as nonzero
from ..calculus import derivative
from ..declared import Block
from ..declared import temperature as T
from ..domains import Domain
from ..dynamics import Dynamics
from ..fields import fields_of, operators_of
from ..logs import log_of
from ..marginal import eliminate_gaussians
from ..operators import times
from ..symbols import OPAQUE
from . import tails
from .bertrand import is_finite
from .case import Case
from .explicit import SEED, Explicit, Line, draw_inside

FALLS = -1e-3  # slope of L below which L is taken to fall
STATES, MORE_STATES = 4, 24  # numbers of states of the other coordinates, to find a wall and to make sure of it
NEAR, FAR, FAR_FROM_0 = 8.0, 24.0, 14.0  # values of y between which the slope of L is taken: x is b + e^-24, say
APART = 12.0  # value of y from which the slope is looked at again: a steep bulk has no part in it
MOST_ORDERS = 4  # number of states at which an end that looks reached is looked at by the order of the integrand
NEARBY = 16  # number of points of the bulk at which many states are asked for noise
RAYS = 64  # number of rays on which coordinates that share their noise are followed
ALIKE = 1.0  # largest difference of log A between rays that are alike
APPROACH = np.array([-8.0, -16.0, -24.0])  # logarithms of distances from an end, towards it
ARRIVES = 0.99  # power of the distance below which a speed leads to the end in finite time
ROUNDED = 1e-12  # speed through an end, relative to the largest at other states, that counts as 0
LEVEL = 1e-9  # rise of H between two distances below which it has a limit
LOOKS = 20  # number of dips that are searched
FINITE = (exp, sin, cos, sinh, cosh, tanh, atan, Abs, Max, Min)  # functions finite at finite arguments
NOTHING = 600.0  # rise of H/T above its least value at which exp(-H/T) is numerically 0
GRID = 4001  # points of a coordinate scanned for walls, in x = sinh y to 1e5
CUTS = 16  # parts of an interval in the search for a dip


@dataclass(frozen=True)
class End:
    """An end of a coordinate that a chain reaches, or a wall that no chain passes."""

    coordinate: str
    block: Block
    at: float
    is_still: bool = False  # whether D vanishes there, so that no mass leaves
    has_noise: bool = True


def reached_ends(explicit: Explicit) -> list[End]:
    """The finite ends of domains that a chain reaches at one or more states of the other coordinates."""
    reached = []
    for line in explicit.sheaves():
        for at, inside in line.block.domain.ends:
            reaches = is_reached(line, at, inside)
            noisy = has_noise(line)
            still = noisy & (noise_at(line, at, inside) == 0)
            kinds = {(bool(a), bool(b)) for a, b in zip(still[reaches], noisy[reaches], strict=True)}
            reached += [End(str(line.z), line.block, at, *kind) for kind in sorted(kinds)]
    return reached


def ends_passed(explicit: Explicit) -> list[End]:
    """The finite ends of coordinates with noise through which the current of exp(-H/T) from Q does not vanish.

    Feller's test asks of D and H alone. The current is the drift from Q times exp(-H/T).
    """
    return [
        End(str(line.z), line.block, at)
        for line in explicit.sheaves()
        for at, inside in line.block.domain.ends
        if (has_noise(line) & ~_vanishes(line, at + inside * np.exp([-NEAR, -FAR]))).any()
    ]


def _vanishes(line: Line, x: np.ndarray) -> np.ndarray:
    """Whether the current from Q falls from the first point to the second, which is near an end, or is rounding."""
    with np.errstate(all="ignore"):
        drift = np.nan_to_num(abs(line.drift(x)))
        H = line.H(x)
        current = np.nan_to_num(drift * np.exp(H.min(axis=-1, keepdims=True) - H))
    return (current[..., 1] <= 0.5 * current[..., 0]) | (drift[..., 1] <= ROUNDED * drift.max())


def explosions(explicit: Explicit) -> list[End]:
    """The infinities that a chain reaches in finite time along a coordinate with noise of its own."""
    reached = []
    for line in explicit.lines(STATES):
        domain = line.block.domain
        if not domain.wraps and has_noise(line):
            infinities = [at for at in (math.inf, -math.inf) if at in (domain.low, domain.high)]
            reached += [End(str(line.z), line.block, at) for at in infinities if explodes(line, at)]
    return reached


def outwards(explicit: Explicit) -> str:
    """Whether chains run off along rays of the coordinates that share their noise: "failed", "open", "checked" or "".

    With A(r) the mean of D_rr exp(-H/T) r^(n-1) over the directions, a chain of a proper law stays finite if the
    integral of 1/A diverges: the capacity of a ball is 0 then. This is "checked" where A is alike on all rays and no
    other entry of D or Q varies. Chains run off where the integral converges along every ray. Source: Fukushima, Oshima
    & Takeda 2011, Dirichlet Forms and Symmetric Markov Processes, Theorem 1.6.3.
    """
    pairs = enumerate(zip(explicit.coordinates, explicit.blocks, strict=True))
    axes = [i for i, (z, b) in pairs if b.domain.is_real and explicit.D[i, i].free_symbols - {z}]
    if len(axes) < 2:
        return ""
    draw = np.random.default_rng(SEED)
    u = draw.normal(size=(RAYS, len(axes)))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    y = np.arange(1.0, 90.0, 0.25)
    state = np.array([draw_inside(b, random.Random(SEED)) for b in explicit.blocks])
    at = np.repeat(state[:, None], RAYS * len(y), axis=1)
    at[axes] = (u.T[:, :, None] * np.sinh(y)).reshape(len(axes), -1)
    D = explicit.function([explicit.D[i, j] for i in axes for j in axes])(at).reshape(len(axes), len(axes), RAYS, -1)
    H = explicit.function([explicit.H])(at).reshape(RAYS, -1) / explicit.temperature
    with np.errstate(all="ignore"):
        log_A = np.log(np.einsum("ri,ijry,rj->ry", u, D, u)) - H + (len(axes) - 1) * y
        rays = [_falls(y - ray) for ray in log_A]
        mean = _falls(y - np.log(np.mean(np.exp(log_A - log_A.max(axis=0)), axis=0)) - log_A.max(axis=0))
        spread = np.nan_to_num(log_A.max(axis=0) - log_A.min(axis=0), nan=0.0).max()
    varying = {i for (i, _), e in nonzero(explicit.D).items() if e.free_symbols}
    if all(rays) or mean:
        return "failed" if all(rays) else "open"
    return "checked" if spread < ALIKE and varying <= {*axes} and not any(nonzero(explicit.Q)) else ""


def _falls(L: np.ndarray) -> bool:
    """Whether a function falls at the last of the points where it is finite."""
    known = L[: int(np.isfinite(L).argmin())] if not np.isfinite(L).all() else L
    return len(known) > 4 and bool(known[-1] - known[-5] < FALLS)


def walls(explicit: Explicit, jumping: Collection[Block] = ()) -> list[End]:
    """Points inside of a domain that no chain reaches from either side, those in the middle of the law first.

    They are such at any state of the other coordinates. A circle has walls if there are two: a chain goes around a
    single one. A block that is `jumping` has none.
    """
    infinite = may_make_infinite(explicit.H)
    D = explicit.D.diagonal()
    moving = [z for z, b in zip(explicit.coordinates, explicit.blocks, strict=True) if b not in jumping]
    diffusion = dict(zip(explicit.coordinates, D, strict=True))
    varying = [z for z in moving if z in diffusion[z].free_symbols | infinite]
    noisy = [line for line in explicit.lines(STATES, varying) if has_noise(line)]
    times = Counter(
        End(str(line.z), line.block, at, is_still) for line in noisy for at, is_still in walls_of(line).items()
    )
    closed = [end for end, number in times.items() if number == STATES]
    if closed:  # a gate may be open elsewhere
        lines = [line for line in explicit.lines(MORE_STATES, varying) if has_noise(line)]
        closed = [end for end in closed if all(is_wall(x, end.at) for x in lines if str(x.z) == end.coordinate)]
    of_coordinate = Counter(end.coordinate for end in closed)
    closed = [end for end in closed if not end.block.domain.wraps or of_coordinate[end.coordinate] > 1]
    middle = dict(zip(map(str, explicit.coordinates), np.median(explicit.bulk, axis=1), strict=True))
    return sorted(closed, key=lambda end: abs(end.at - middle[end.coordinate]))


def is_integrable(recipe: Dynamics) -> bool:
    """Whether D, Q and the speeds of positions without noise have finite means under exp(-H) by their form.

    Then chains do not explode: D and Q bound what noise moves, and a speed of finite mean leads nowhere in finite time.
    Such entries are constants, or polynomials of blocks that are Gaussian whatever the other blocks are; such speeds
    read no positions. Source: Stannat 1999, (Nonsymmetric) Dirichlet operators on L1, Proposition 1.10.
    """
    if any(fields_of(e) or e.has(*positions(recipe)) for e in _speeds(recipe)):
        return False
    free = _free_gaussians(recipe)
    for e in map(at_one_site, {*nonzero(recipe.D).values(), *nonzero(recipe.Q).values()}):
        moving = [b for b in recipe.state if e.has(b)]
        if (
            fields_of(e)
            or any(b not in free for b in moving)
            or e.has(*OPAQUE[1:])
            or (moving and not e.is_polynomial(*moving))
        ):
            return False
    return True


def positions(recipe: Dynamics) -> list[Block]:
    """The blocks that are neither momenta nor thermostats."""
    return [b for b in recipe.state if b not in recipe.momenta + recipe.thermostats]


def _speeds(recipe: Dynamics) -> list[Expr]:
    """The terms Q_ij dH/dz_j of positions without noise of their own."""
    still = _still(recipe)
    return [times(q, derivative(recipe.H, recipe.state[j])) for (i, j), q in nonzero(recipe.Q).items() if i in still]


def _still(recipe: Dynamics) -> set[int]:
    """The rows of positions without noise of their own."""
    places = positions(recipe)
    return {i for i, b in enumerate(recipe.state) if b in places and not recipe.D[i, i].is_positive}


def _free_gaussians(recipe: Dynamics) -> list[Block]:
    """The auxiliary blocks that are Gaussian whatever the other blocks are."""
    gaussians, _ = eliminate_gaussians(recipe.H, recipe.momenta + recipe.thermostats)
    return [g.block for g in gaussians if not (g.mean.free_symbols | g.precision.free_symbols) & set(recipe.state)]


def carries_to_infinity(recipe: Dynamics) -> bool:
    """Whether transport and involutions are not known to leave chains finite.

    A transport that is linear in the state and involutions that leave a norm, the H of free Gaussians, let the state
    grow at most exponentially, and rates are bounded where the state is. At a rate of at most 1, jumps are finite many.
    """
    often = [jump for jump in recipe.involutions if not together(1 - jump.rate.xreplace({T: S.One})).is_nonnegative]
    jumping = {b for jump in often for b in jump.blocks}
    bounded = {b for b in jumping if b.domain.is_discrete} | {*_free_gaussians(recipe)}
    rows = [at_one_site(e) for e in recipe.transport if e != 0]
    linear = all(e.is_polynomial(*recipe.state) and not e.has(*OPAQUE[1:]) for e in rows)
    return not (jumping <= bounded and linear and all(Poly(e, *recipe.state).total_degree() <= 1 for e in rows))


def speed_without_mean(case: Case) -> str:
    """A position without noise of its own whose speed has no finite mean under exp(-H/T), by its tails; or "".

    Of momenta ~ N(mean, T/a) the speed Q a p has the scale Q a^(1/2), and a mean with it.
    """
    gaussians, _, rest = case.auxiliary
    precisions = {g.block: g.precision for g in gaussians if not operators_of(g.precision)}
    recipe = case.recipe
    places, still = positions(recipe), _still(recipe)
    for (i, j), q in nonzero(recipe.Q).items():
        a, b = recipe.state[i], recipe.state[j]
        if i in still and b in precisions and not operators_of(q):
            scale = Abs(at_one_site(q)) * sqrt(at_one_site(precisions[b]))
            of_law = case.over(1, H=at_one_site(rest) - T * log(1 + scale))
            domains = {z: c.domain for z, c in zip(of_law.coordinates, of_law.blocks, strict=True) if c in places}
            tail = tails.growth(of_law.H, domains, case.temperature)
            if not (tail.is_integrable or tail.is_undecided):
                return f"the speed of {a}"
    return ""


def entry_without_mean(explicit: Explicit) -> str:
    """The name of an entry of D or Q without a finite mean under exp(-H/T), by its tails; "" if there is none.

    Such an entry may carry a chain to infinity in finite time. Entries of D that read their own coordinate only are
    left to Feller's test along the coordinate, which is sharper.
    """
    z, H, domains = explicit.coordinates, explicit.H, explicit.domains
    D = {(i, j): e for (i, j), e in nonzero(explicit.D).items() if i < j or i == j and e.free_symbols - {z[i]}}
    Q = {(i, j): e for (i, j), e in nonzero(explicit.Q).items() if i < j}
    entries = {f"{letter}[{z[i]}, {z[j]}]": e for letter, A in (("D", D), ("Q", Q)) for (i, j), e in A.items()}
    entries = {name: e for name, e in entries.items() if e.free_symbols}
    if not entries or _has_mean(H, entries.values(), domains, explicit.temperature):
        return ""
    return next((name for name, e in entries.items() if not _has_mean(H, [e], domains, explicit.temperature)), "")


def _has_mean(H: Expr, entries: Iterable[Expr], domains: dict[Symbol, Domain], temperature: float) -> bool:
    """Whether the sum of the absolute values of entries has a finite mean under exp(-H/T), or is undecided."""
    tail = tails.growth(H - temperature * log(1 + Add(*map(Abs, entries))), domains, temperature)
    return tail.is_integrable or tail.is_undecided


def may_make_infinite(H: Expr) -> set[Symbol]:
    """The symbols in logarithms, poles or other functions of H that may be infinite at finite arguments."""
    poles = [e.base for e in H.atoms(Pow) if e.exp.is_nonnegative is not True and not e.base.is_positive]
    functions = [e for e in H.atoms(Function) if not isinstance(e, FINITE)]
    functions = [e for e in functions if not (isinstance(e, log) and e.args[0].is_positive)]
    return set().union(*(e.free_symbols for e in (*poles, *functions)))


def has_noise(line: Line) -> np.ndarray:
    """Whether the coordinate has noise of its own, at each state of the others."""
    near = line.within + np.linspace(0.0, 0.2, 7)
    values = line.D(np.concatenate([near, line.explicit.bulk[line.i][: NEARBY if line.is_sheaf else None]]))
    return (np.nan_to_num(values) > 0).any(axis=-1)


def noise_at(line: Line, at: float, inside: float) -> np.ndarray:
    """The limit of D_ii at a point from one side, at each state of the others; 0 if D_ii vanishes there."""
    near = line.D(at + inside * np.exp([-18.0, -27.0]))
    return np.where(near[..., 1] > 0.5 * near[..., 0], near[..., 1], 0.0)


def is_reached(line: Line, at: float, inside: float) -> np.ndarray:
    """Whether a chain reaches a point from one side, at each state of the others."""
    x = at + inside * np.exp(APPROACH)
    with np.errstate(all="ignore"):
        speed = abs(line.drift(x))
        first, second = np.moveaxis(np.diff(line.H(x)), -1, 0)
        is_slow = np.log(speed[..., 0] / speed[..., 2]) > ARRIVES * (APPROACH[0] - APPROACH[2])
    is_moved = speed.all(axis=-1) & ~is_slow & (second < np.maximum(first / 2, LEVEL))
    noisy = has_noise(line)
    if not noisy.any():
        return is_moved
    rise = slope(line, at, inside)
    falls = (rise < FALLS) & (slope(line, at, inside, APART) < FALLS)
    reaches = noisy & falls
    steepest = np.argsort(np.where(reaches, rise, np.inf))[: min(MOST_ORDERS, reaches.sum())]
    states = np.stack([line.state[k][steepest, 0] for k in range(line.explicit.size)], axis=1)
    if len(states) and all(converges(line, at, list(state)) is False for state in states):
        falls = np.zeros_like(falls)
    return np.where(noisy, falls, is_moved)


def converges(line: Line, at: float, state: Sequence[float]) -> bool | None:
    """Whether Feller's integral converges up to an end, by its leading order at a state; None if that is not known."""
    explicit, domain = line.explicit, line.block.domain
    numbers = {z: Float(x) for z, x in zip(explicit.coordinates, state, strict=True) if z != line.z}
    K = log_of(explicit.D[line.i, line.i]) - explicit.H / Rational(repr(float(explicit.temperature)))
    return is_finite(expand_mul(_along(line.z, K, numbers)), line.z, domain, at_high=at == float(domain.high))


def _along(z: Symbol, e: Expr, numbers: dict[Symbol, Float]) -> Expr:
    """A formula of one coordinate, with rational numbers for all parts that read others alone."""
    if not e.free_symbols & numbers.keys():
        return e
    if z not in e.free_symbols:
        return Rational(repr(float(e.xreplace(numbers))))
    return e.func(*(_along(z, part, numbers) for part in e.args))


def slope(line: Line, at: float, inside: float, first: float = NEAR) -> np.ndarray:
    """The slope of L towards a point, in y of x = at + inside e^-y, at each state of the others."""
    y = np.array([first, FAR if at == 0 else FAR_FROM_0])
    L = log_scale(line, at + inside * np.exp(-y)) - y
    with np.errstate(all="ignore"):
        rise = (L[..., 1] - L[..., 0]) / (y[1] - y[0])
    return np.where(np.isnan(L).any(axis=-1), np.nan, np.where(np.isfinite(L).all(axis=-1), rise, L[..., 1]))


def log_scale(line: Line, x: np.ndarray) -> np.ndarray:
    """H/T - log D."""
    with np.errstate(all="ignore"):
        return line.H(x) - line.log_D(x)


def explodes(line: Line, at: float) -> bool:
    """Whether L falls towards infinity, within the range of floats."""
    y = np.arange(2.0, 90.0, 0.5)
    with np.errstate(all="ignore"):
        falls = _falls(log_scale(line, math.copysign(1.0, at) * np.sinh(y)) + y)
    return falls and converges(line, at, line.state) is not False


def walls_of(line: Line) -> dict[float, bool]:
    """The points inside of the domain that no chain reaches from either side, rounded, and whether D vanishes there.

    Candidates are points where D has a dip, or |H| a peak.
    """
    bulk = line.explicit.bulk[line.i]
    x = np.union1d(_scanned(line.block.domain), np.linspace(bulk.min(), bulk.max(), GRID))
    points: dict[float, bool] = {}
    for is_still, depth in ((False, lambda at: -abs(line.H(at))), (True, line.log_D)):
        with np.errstate(all="ignore"):
            values = np.nan_to_num(depth(x), nan=-1e300)
            dips = 1 + np.flatnonzero((values[1:-1] <= values[:-2]) & (values[1:-1] < values[2:]))
            deepest, nearest = (dips[np.argsort(by[dips])[:LOOKS]] for by in (values, abs(x)))
            dips = np.union1d(deepest, nearest)
            points |= {round(float(at), 9): is_still for at in lowest(depth, x[dips - 1], x[dips + 1])}
    H = np.nan_to_num(line.H(x), nan=np.inf)
    occupied = x[H <= H.min() + NOTHING]  # beyond them a wall cuts nothing off
    inside = {at: is_still for at, is_still in points.items() if occupied[0] < at < occupied[-1]}
    return {round(at, 5) + 0.0: is_still for at, is_still in inside.items() if is_wall(line, at)}


def is_wall(line: Line, at: float) -> bool:
    """Whether no chain reaches a point from either side, and Q does not carry a chain across."""
    sides = (1.0, -1.0)
    if not all(slope(line, at, side) >= FALLS for side in sides):
        return False
    crossing = line.drift([at + side * 1e-9 for side in sides])
    return not (abs(np.nan_to_num(crossing)) > 1e-6).any()


def _scanned(domain: Domain) -> np.ndarray:
    """The points of a coordinate scanned for walls; shifted on a circle, to scan across its joined ends."""
    if not domain.is_compact:
        x = np.sinh(np.linspace(-12.0, 12.0, GRID))
        return x[x > float(domain.low)]
    return domain.inside(np.linspace(0.0, 1.0, GRID) + (0.1234 if domain.wraps else 0.0))


def lowest(depth: Callable, low: np.ndarray, high: np.ndarray, steps: int = 16) -> np.ndarray:
    """Lower ends of short intervals around the minima of a function with one dip in each interval."""
    columns = np.arange(len(low))
    for _ in range(steps if len(low) else 0):
        x = np.linspace(low, high, CUTS + 1)
        values = depth(x.ravel()).reshape(x.shape)
        least = np.nan_to_num(values, nan=-1e300).argmin(0)
        low, high = x[np.maximum(least - 1, 0), columns], x[np.minimum(least + 1, CUTS), columns]
    return low
