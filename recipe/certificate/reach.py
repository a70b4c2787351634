"""Rank of the motions made by noise and curl together, for the question whether the noise reaches every block.

The control system has the columns of D as controls beside the drift -Q grad H + T rowdiv(Q); D grad H and the Ito
correction lie along the columns. The rank of the Lie algebra equals the rank of a path's endpoint as a function of its
controls, at almost all controls (Sussmann & Jurdjevic 1972), so that one random path suffices.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sympy import Abs, Expr, Max, Min, Rational, Symbol, sqrt

from ..algebra import at_one_site
from ..arrays import of_arrays
from ..calculus import expanded
from ..declared import Block
from ..dynamics import Dynamics
from ..fields import outer_products
from ..sites import Sites
from ..swaps import Swap
from ..symbols import OPAQUE, masked
from .explicit import Explicit

INTERVALS = 3  # intervals of constant controls for each coordinate
LENGTHS = (0.5, 1.5, 3.0, 6.0)  # lengths of the paths in time: long ones separate high brackets from rounding
STEP = 0.01  # largest Runge-Kutta step, so that its errors do not look like a motion
REGIONS = 200  # number of states searched for a region without noise
LEFT_WITHIN, PATIENT = 30.0, 0.04  # time in which the drift must leave such a region, and its steps
SMALL = 1e-7  # singular values that count as 0, relative to the largest
USUAL = 3.0  # length of the longest path where the rank is sure
GAP = 300.0  # least ratio of two neighbouring singular values of which the lower one counts as 0


def way_by_form(recipe: Dynamics) -> str:
    """How positive noise reaches every block, one after the other, through constant couplings and swaps; or "".

    A block is moved by noise of its own, or redrawn by a jump. A reached block reaches another one if some derivative
    of the drift by the former is a nonzero constant in the row of the latter, and 0 in all other rows that are not
    reached yet; or if a swap exchanges the two.
    """
    if not recipe.D.is_diagonal():
        return ""
    jumps = [j for j in recipe.jumps.values() if j.rate is None or j.rate.is_positive]
    places = {a: b for j in jumps if isinstance(j, Swap) for a, b in j.places.items()}
    moving = {b for b in recipe.state if not b.domain.is_discrete}
    noisy = {b for i, b in enumerate(recipe.state) if recipe.D[i, i].is_positive}
    redrawn = {b for j in jumps for b in j.redrawn if not b.domain.is_discrete} - noisy
    ways = ["noise of its own"] * bool(noisy) + ["a jump that redraws it"] * bool(redrawn)
    if noisy | redrawn >= moving:
        return f"every block has {' or '.join(ways)}" if moving else ""
    reached = noisy | redrawn
    while new := next((b for source in reached for b in _next_reached(recipe, source, reached, places)), None):
        reached.add(new)
    swapped = any(a in reached and b not in noisy | redrawn for a, b in places.items())
    return f"through the drift{' and swaps' if swapped else ''}, to all" if reached >= moving else ""


def along_few(recipe: Dynamics, sites: int) -> str:
    """Whether the noise of a block is along too few vectors, in words; empty if it is not.

    r independent vectors span the sites but for states of codimension r + 1 - sites, which chains go around from 2 on.
    """
    for i, b in enumerate(recipe.state):
        vectors = [masked(x.vector, *OPAQUE)[0] for x in outer_products(recipe.D[i, i])]
        if vectors and not recipe.D[i, i].is_positive:
            over = Sites(recipe.state, len(vectors) + 1)
            columns = [over.at(v, k) for v in vectors for k in range(over.number)]
            symbols = sorted(set().union(*(e.free_symbols for e in columns)), key=str)
            state = np.random.default_rng(0).uniform(0.5, 1.5, len(symbols))
            values = np.array(of_arrays([symbols], columns)(state), float).reshape(len(vectors), -1)
            number = int(np.linalg.matrix_rank(values))
            if number <= sites:
                return f"the noise of {b} is along {number} vectors: {sites + 1} would do for {sites} sites"
    return ""


def _next_reached(
    recipe: Dynamics, source: Block, reached: set[Block], places: Mapping[Block, Block]
) -> Iterator[Block]:
    """The blocks that `source` reaches by a swap, or by a constant derivative of the drift."""
    if source in places and places[source] not in reached:
        yield places[source]
    slopes = {b: f for b, f in zip(recipe.state, recipe.drift, strict=True) if b not in reached}
    if not all(at_one_site(f).is_polynomial(source) for f in slopes.values()):
        return
    for _ in range(4):
        slopes = {b: expanded(f.diff(source)) for b, f in slopes.items()}
        rows = [b for b, f in slopes.items() if f != 0]
        if len(rows) == 1 and (source.is_vector or not rows[0].is_vector):
            slope = slopes[rows[0]]
            if slope.is_nonzero and not slope.has(*recipe.state):
                yield rows[0]
                return


def described(explicit: Explicit, directions: np.ndarray) -> str:
    """The unreached directions in words: coordinates, or linear combinations."""
    names = []
    for row in directions:
        parts = [(c, z) for c, z in zip(row, explicit.coordinates, strict=True) if abs(c) > 1e-6]
        text = str(parts[0][1]) if len(parts) == 1 else " + ".join(f"{c:.2g}*{z}" for c, z in parts)
        names.append(text.replace("+ -", "- "))
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def rank(explicit: Explicit, *, refreshed: Sequence[Symbol] = (), timed: bool = False) -> tuple[int, np.ndarray]:
    """The greatest rank over a few random states, and the unreached directions there, as rows.

    `refreshed`: coordinates that a jump redraws; `timed`: whether discrete coordinates jump at random times, between
    which the drift is a control too. With a rank below the number of coordinates the chain stays on a
    surface: its law is invariant, but the chain is not ergodic.
    """
    field, columns = _fields(explicit, refreshed, timed)

    def velocity(z: np.ndarray, w: np.ndarray) -> np.ndarray:
        return field(z) + np.einsum("ijn,jn->in", columns(z), w)

    width = explicit.size + len(refreshed) + timed
    return rank_of(velocity, explicit.blocks, INTERVALS * explicit.size, width)


def rank_of(
    velocity: Callable,
    blocks: Sequence[Block],
    intervals: int,
    width: int,
    *,
    lengths: Sequence[float] = LENGTHS,
) -> tuple[int, np.ndarray]:
    """The rank of a path's endpoint as a function of its controls, and the unreached directions, as in `rank`.

    A rank without a gap between what counts and what does not is a lower bound, and no direction is known as unreached.
    `velocity`: of states (size, N) and controls (width, N); `blocks`: of the coordinates.
    """
    draw = np.random.default_rng(0)
    best = (-1, np.eye(len(blocks)))
    for length in lengths:
        if length > USUAL and len(best[1]):
            break
        start = np.array([_start(b, draw) for b in blocks])
        for u in {b for b in blocks if b.domain.is_sphere}:
            sites = [b == u for b in blocks]
            start[sites] /= np.linalg.norm(start[sites])
        jumps = [(i, b.domain.categories) for i, b in enumerate(blocks) if b.domain.is_discrete]
        values = {i: draw.integers(categories, size=intervals) for i, categories in jumps}
        J = _sensitivities(start, draw.normal(size=(intervals, width)), values, length, velocity)
        if not np.isfinite(J).all():
            continue
        U, sizes, _ = np.linalg.svd(J)
        number = int((sizes > SMALL * sizes[0]).sum())
        is_sure = number in (0, len(sizes)) or sizes[number - 1] > GAP * sizes[number]
        if number > best[0]:
            best = number, U[:, number:].T if is_sure else np.empty((0, len(blocks)))
        if number == min(J.shape):
            break
    return best


def silent(explicit: Explicit, refreshed: Sequence[Symbol] = ()) -> str:
    """The noise or motion of a coordinate that vanishes in a region, which the drift need not leave, in words; or "".

    Motion without noise may go in circles there, which a rank at a random state misses; a coordinate without noise of
    its own may stand still there. What depends on a binary block counts if it is nonzero at either value.
    """
    for i, z in enumerate(explicit.coordinates):
        what, motion = ("the noise", explicit.D[i, i]) if explicit.D[i, i] != 0 else ("the motion", explicit.curl[i])
        varies = motion.free_symbols if what == "the noise" else explicit.Q[i, :].free_symbols
        if z in refreshed or not varies:
            continue
        if vanishes_in_a_region(explicit, motion):
            return f"{what} of {z}"
    return ""


def vanishes_in_a_region(explicit: Explicit, motion: Expr) -> bool:
    """Whether a formula is 0 in a region, though not everywhere, that the drift need not leave."""
    states = explicit.bulk[:, :REGIONS]
    binary = np.array([b.domain.is_discrete for b in explicit.blocks])[:, None]
    values = explicit.function([motion])

    def is_moved(x: np.ndarray) -> np.ndarray:
        return np.any([values(np.where(binary, bit, x))[0] != 0 for bit in (0.0, 1.0)], axis=0)

    dead = ~is_moved(states)
    return bool(dead.any() and not dead.all() and not _is_left(explicit, states[:, dead], is_moved))


def _is_left(explicit: Explicit, z: np.ndarray, is_moved: Callable) -> bool:
    """Whether the drift -Q grad H + T rowdiv(Q) carries all states z (size, N) to a state that noise or it moves."""
    field = explicit.function(explicit.curl)
    is_out = np.zeros(z.shape[1], dtype=bool)
    with np.errstate(all="ignore"):
        for _ in range(math.ceil(LEFT_WITHIN / PATIENT)):
            z = _runge_kutta(field, z, PATIENT)
            is_out |= is_moved(z) & np.isfinite(z).all(axis=0)
            if is_out.all():
                return True
    return False


def without_kinks(e: Any) -> Any:
    """The formula with |x| as sqrt(x^2 + 1/10), and Max and Min likewise, so that a path feels both sides of a kink."""
    e = e.replace(lambda x: isinstance(x, Max | Min), lambda x: x.rewrite(Abs))
    return e.replace(Abs, lambda x: sqrt(x**2 + Rational(1, 10)))


def _start(block: Block, draw: np.random.Generator) -> float:
    value = float(draw.normal())
    if block.domain.is_compact:
        return block.domain.inside(1 / (1 + math.exp(-value)))
    return value if block.domain.is_endless or block.domain.is_discrete else 0.3 + abs(value)


def _fields(explicit: Explicit, refreshed: Sequence[Symbol], timed: bool) -> tuple[Callable, Callable]:
    """The drift (size, N) and the control directions (size, width, N), as functions of states (size, N)."""
    size = explicit.size
    rounded = replace(explicit, H=without_kinks(explicit.H), D=without_kinks(explicit.D), Q=without_kinks(explicit.Q))
    D, field = rounded.function(rounded.D), rounded.function(rounded.curl)
    redrawn = np.array([[float(z == r) for r in refreshed] for z in explicit.coordinates]).reshape(size, -1)

    def columns(z):
        jumps = np.broadcast_to(redrawn[..., None], (*redrawn.shape, z.shape[1]))
        times = [field(z)[:, None]] if timed else []
        return np.concatenate([D(z).reshape(size, size, -1), jumps, *times], axis=1)

    return field, columns


def _sensitivities(
    start: np.ndarray, controls: np.ndarray, jumps: Mapping[int, np.ndarray], length: float, velocity: Callable
) -> np.ndarray:
    """The derivative of the endpoint of a path in all its controls, by central differences.

    `jumps`: the values of discrete coordinates by number, one for each interval.
    """
    step = 1e-4
    number = controls.size
    shifts = step * np.concatenate([np.eye(number), -np.eye(number)]).T.reshape(*controls.shape, 2 * number)
    starts = np.repeat(start[:, None], 2 * number, axis=1)
    ends = _endpoints(starts, controls[..., None] + shifts, jumps, length, velocity)
    with np.errstate(invalid="ignore"):
        return (ends[:, :number] - ends[:, number:]) / (2 * step)


def _endpoints(
    z: np.ndarray, controls: np.ndarray, jumps: Mapping[int, np.ndarray], length: float, velocity: Callable
) -> np.ndarray:
    """The endpoints of paths under piecewise constant controls (intervals, width, N), by Runge-Kutta steps."""
    steps = max(2, math.ceil(length / len(controls) / STEP))
    dt = length / (len(controls) * steps)
    with np.errstate(all="ignore"):
        for k, u in enumerate(controls):
            for i, values in jumps.items():
                z[i] = values[k]
            for _ in range(steps):
                z = _runge_kutta(partial(velocity, w=u), z, dt)
        return z


def _runge_kutta(velocity: Callable, z: np.ndarray, dt: float) -> np.ndarray:
    """One classical Runge-Kutta step of fourth order."""
    a = velocity(z)
    b = velocity(z + dt / 2 * a)
    c = velocity(z + dt / 2 * b)
    d = velocity(z + dt * c)
    return z + dt / 6 * (a + 2 * b + 2 * c + d)
